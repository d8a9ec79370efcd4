//! What the site has claimed and touched: the content of the lease journal, as values. Pure.
//!
//! Layout of the journal: one entry a line, `CHECK SPACE JSON LF`, where `CHECK` is the first 8 hexadecimal digits of
//! the SHA-256 of the JSON. The ledger is what is left when all entries are applied in their order.
//!
//! Invariants:
//! - a line that was cut short by a crash can only be the last one; it is dropped. A broken line with whole lines
//!   after it is damage, and the site refuses to guess;
//! - an entry that applies twice changes nothing the second time;
//! - a lease is in the ledger from before its machine is touched until after the farm knows that it ended.

use forgeyard_model::name::ProviderName;
use forgeyard_model::{DeviceId, Explanation, LeaseId, RunnerId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// How far the site is with a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum MachinePhase {
    /// The provider may have been asked to make it. Whether it did, only its list can say.
    Claimed,
    /// It was there.
    Up,
    /// The provider was asked, did not make it, and is not asked again.
    GaveUp {
        /// Why.
        reason: Explanation,
    },
    /// The provider was never asked.
    Refused {
        /// Why.
        reason: Explanation,
    },
}

/// A machine that the site has dealt with and that is not known to be gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// What makes it.
    pub provider: ProviderName,
    /// How far.
    #[serde(flatten)]
    pub phase: MachinePhase,
}

/// How far the site is with a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum LeasePhase {
    /// The devices are given to the machine, or may be.
    Held,
    /// The machine is gone; the devices are being reset.
    Resetting,
    /// The devices are reset; they are being asked to answer.
    Verifying,
    /// The devices are free.
    Released {
        /// Devices that did not come back, each with what was seen.
        sick: Vec<(DeviceId, String)>,
    },
}

/// A lease that the farm may still count as live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Its machine.
    pub runner: RunnerId,
    /// Its devices, with their keys.
    pub devices: Vec<(DeviceId, String)>,
    /// How far.
    #[serde(flatten)]
    pub phase: LeasePhase,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    /// The site joined a farm. Epochs seen before are of no meaning for it.
    Joined,
    /// A desired set of this epoch was seen. Older ones are refused from now on.
    Epoch {
        /// Which.
        epoch: u64,
    },
    /// How far a machine is.
    Machine {
        /// Which.
        runner: RunnerId,
        /// How far.
        #[serde(flatten)]
        record: MachineRecord,
    },
    /// Nothing of the machine is left.
    Gone {
        /// Which.
        runner: RunnerId,
    },
    /// How far a lease is.
    Lease {
        /// Which.
        lease: LeaseId,
        /// How far.
        #[serde(flatten)]
        record: LeaseRecord,
    },
    /// The farm knows that the lease ended.
    Forgotten {
        /// Which.
        lease: LeaseId,
    },
}

/// All that the site has claimed and touched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Newest epoch seen; 0 = none.
    pub epoch: u64,
    /// Machines that are not known to be gone.
    pub machines: BTreeMap<RunnerId, MachineRecord>,
    /// Leases that the farm may still count as live.
    pub leases: BTreeMap<LeaseId, LeaseRecord>,
}

impl Ledger {
    /// Applies one entry.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Joined => self.epoch = 0,
            Entry::Epoch { epoch } => self.epoch = self.epoch.max(epoch),
            Entry::Machine { runner, record } => {
                self.machines.insert(runner, record);
            }
            Entry::Gone { runner } => {
                self.machines.remove(&runner);
            }
            Entry::Lease { lease, record } => {
                self.leases.insert(lease, record);
            }
            Entry::Forgotten { lease } => {
                self.leases.remove(&lease);
            }
        }
    }

    /// The shortest entries that lead to this ledger.
    pub fn entries(&self) -> Vec<Entry> {
        let machines = self.machines.iter().map(|(runner, record)| Entry::Machine { runner: *runner, record: record.clone() });
        let leases = self.leases.iter().map(|(lease, record)| Entry::Lease { lease: *lease, record: record.clone() });
        std::iter::once(Entry::Epoch { epoch: self.epoch }).chain(leases).chain(machines).collect()
    }
}

/// A journal that a crash cannot explain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is damaged and whole lines follow it")]
pub struct Damaged {
    /// Which line, from 1.
    pub line: usize,
}

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The ledger after the last whole line.
    pub ledger: Ledger,
    /// Number of whole lines.
    pub entries: usize,
    /// Length up to the last whole line, in bytes. What follows was cut short by a crash.
    pub whole: usize,
}

/// The line of an entry.
pub fn line(entry: &Entry) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_string(entry)?;
    Ok(format!("{} {json}\n", check(json.as_bytes())).into_bytes())
}

fn check(json: &[u8]) -> String {
    hex::encode(&Sha256::digest(json)[..4])
}

fn parse_line(line: &[u8]) -> Option<Entry> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, json) = (line.get(..8)?, line.get(8..)?.strip_prefix(b" ")?);
    (sum == check(json).as_bytes()).then(|| serde_json::from_slice(json).ok()).flatten()
}

/// Reads a journal.
pub fn read(bytes: &[u8]) -> Result<Read, Damaged> {
    let mut read = Read { ledger: Ledger::default(), entries: 0, whole: 0 };
    let mut broken = None;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match (parse_line(line), broken) {
            (Some(entry), None) => {
                read.ledger.apply(entry);
                read.entries += 1;
                read.whole += line.len();
            }
            (Some(_), Some(line)) => return Err(Damaged { line }),
            (None, None) => broken = Some(number + 1),
            (None, Some(_)) => {}
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::Id as _;
    use proptest::prelude::*;

    fn phase() -> impl Strategy<Value = LeasePhase> {
        prop_oneof![
            Just(LeasePhase::Held),
            Just(LeasePhase::Resetting),
            Just(LeasePhase::Verifying),
            ".{0,10}".prop_map(|text| LeasePhase::Released { sick: vec![(DeviceId::from_bits(7), text)] }),
        ]
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let runner = (0u128..4).prop_map(RunnerId::from_bits);
        let lease = (0u128..4).prop_map(LeaseId::from_bits);
        let provider: ProviderName = "sandbox".parse().unwrap();
        prop_oneof![
            (0u64..9).prop_map(|epoch| Entry::Epoch { epoch }),
            (runner.clone(), any::<bool>()).prop_map(move |(runner, up)| Entry::Machine {
                runner,
                record: MachineRecord {
                    provider: provider.clone(),
                    phase: if up {
                        MachinePhase::Up
                    } else {
                        MachinePhase::GaveUp { reason: Explanation::new("x", "a\nb").with("c") }
                    },
                },
            }),
            Just(Entry::Joined),
            runner.clone().prop_map(|runner| Entry::Gone { runner }),
            (lease.clone(), runner, phase()).prop_map(|(lease, runner, phase)| Entry::Lease {
                lease,
                record: LeaseRecord {
                    runner,
                    devices: vec![(DeviceId::from_bits(7), "pci:0000:9b:00.0".to_owned())],
                    phase,
                },
            }),
            lease.prop_map(|lease| Entry::Forgotten { lease }),
        ]
    }

    fn ledger(entries: &[Entry]) -> Ledger {
        let mut ledger = Ledger::default();
        for entry in entries {
            ledger.apply(entry.clone());
        }
        ledger
    }

    proptest! {
        #[test]
        fn a_journal_cut_anywhere_reads_as_its_whole_lines(entries in prop::collection::vec(entry(), 0..12), cut: prop::sample::Index) {
            let lines: Vec<Vec<u8>> = entries.iter().map(|entry| line(entry).unwrap()).collect();
            let mut bytes = lines.concat();
            bytes.truncate(cut.index(bytes.len() + 1));
            let read = read(&bytes).unwrap();
            prop_assert_eq!(&read.ledger, &ledger(&entries[..read.entries]));
            prop_assert_eq!(read.whole, lines[..read.entries].concat().len());
            prop_assert!(bytes.len() - read.whole < lines.get(read.entries).map_or(1, Vec::len));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_changed_byte_before_the_last_line_is_damage(
            entries in prop::collection::vec(entry(), 2..6), at: prop::sample::Index, to: u8,
        ) {
            let lines: Vec<Vec<u8>> = entries.iter().map(|entry| line(entry).unwrap()).collect();
            let mut bytes = lines.concat();
            let at = at.index(bytes.len() - lines[lines.len() - 1].len());
            prop_assume!(bytes[at] != to && to != b'\n' && bytes[at] != b'\n');
            bytes[at] = to;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn compaction_keeps_the_ledger_and_applying_twice_changes_nothing(entries in prop::collection::vec(entry(), 0..12)) {
            let once = ledger(&entries);
            prop_assert_eq!(&ledger(&once.entries()), &once);
            if let Some(last) = entries.last() {
                let mut twice = once.clone();
                twice.apply(last.clone());
                prop_assert_eq!(twice, once);
            }
        }
    }
}
