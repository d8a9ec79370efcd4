//! What the farm is told. Pure.
//!
//! Invariants: the report is complete, and nothing that may still be there is left out; a lease is told as released
//! only when the journal says so.

use crate::ledger::{LeasePhase, Ledger, MachinePhase};
use crate::tries::Tries;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{DesiredSet, HostFacts, ObservedLease, SiteReport};
use forgeyard_model::{Explanation, RunnerId};
use std::collections::{BTreeMap, BTreeSet};

/// All that a report is made from.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// What should be.
    pub desired: &'a DesiredSet,
    /// What the host offers.
    pub host: &'a HostFacts,
    /// Devices that answer.
    pub devices: &'a [DeviceFacts],
    /// What the providers list.
    pub rows: &'a BTreeMap<RunnerId, ObservedRunner>,
    /// What was claimed and touched.
    pub ledger: &'a Ledger,
    /// What failed.
    pub tries: &'a Tries,
    /// Machines that are being worked on: the lists may be older than what the ledger says of them.
    pub at_work: &'a BTreeSet<RunnerId>,
    /// Machines that went since the last report that the farm took.
    pub gone: &'a BTreeSet<RunnerId>,
}

/// The report.
pub fn build(from: &Sources<'_>) -> SiteReport {
    let wanted: BTreeSet<RunnerId> = from.desired.runners.iter().map(|desired| desired.runner).collect();
    let mut runners = from.rows.clone();
    for (runner, record) in &from.ledger.machines {
        let removal = from.tries.removal_failure(*runner);
        let told = match (&record.phase, from.rows.contains_key(runner)) {
            // What the site has concluded counts more than a machine that turned up afterwards.
            (MachinePhase::GaveUp { reason } | MachinePhase::Refused { reason }, _) => {
                Some(ObservedState::Failed { reason: reason.clone() })
            }
            (_, true) => None,
            (_, false) if removal.is_some() => {
                removal.map(|reason| ObservedState::Exited { reason: reason.clone() })
            }
            (MachinePhase::Claimed, false) => Some(ObservedState::Creating),
            (MachinePhase::Up, false) if from.at_work.contains(runner) => Some(ObservedState::Creating),
            (MachinePhase::Up, false) => {
                Some(ObservedState::Exited { reason: vanished(wanted.contains(runner)) })
            }
        };
        if let Some(state) = told {
            let enforced = from.rows.get(runner).map(|row| row.enforced.clone()).unwrap_or_default();
            runners.insert(*runner, ObservedRunner { runner: *runner, state, enforced });
        }
    }
    for runner in from.gone {
        // One that is back in a list or in the ledger is not gone.
        runners.entry(*runner).or_insert_with(|| ObservedRunner {
            runner: *runner,
            state: ObservedState::Absent,
            enforced: BTreeSet::new(),
        });
    }
    let leases = from.ledger.leases.iter().map(|(lease, record)| {
        let lease = *lease;
        match &record.phase {
            LeasePhase::Held => ObservedLease::Held { lease },
            LeasePhase::Resetting => ObservedLease::Resetting { lease },
            LeasePhase::Verifying => ObservedLease::Verifying { lease },
            LeasePhase::Released { sick } => ObservedLease::Released { lease, sick: sick.clone() },
        }
    });
    SiteReport {
        epoch: from.desired.epoch,
        generation: from.desired.generation,
        host: from.host.clone(),
        devices: from.devices.to_vec(),
        runners: runners.into_values().collect(),
        leases: leases.collect(),
    }
}

fn vanished(wanted: bool) -> Explanation {
    if wanted {
        Explanation::new(
            "site.machine_vanished",
            "the machine was there and is gone, and the site did not remove it",
        )
        .fix("see whether the host was restarted; the attempt is lost, not the job")
    } else {
        Explanation::new("site.removing", "the machine is being removed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{LeaseRecord, MachineRecord};
    use forgeyard_model::{DeviceId, Id as _, LeaseId};

    fn told(ledger: &Ledger, rows: &[ObservedRunner], gone: &[RunnerId], tries: &Tries) -> SiteReport {
        build(&Sources {
            desired: &DesiredSet { epoch: 4, generation: 9, runners: Vec::new(), releasing: Vec::new() },
            host: &crate::host::machine(),
            devices: &[],
            rows: &rows.iter().map(|row| (row.runner, row.clone())).collect(),
            ledger,
            tries,
            at_work: &BTreeSet::new(),
            gone: &gone.iter().copied().collect(),
        })
    }

    fn ledger(phase: MachinePhase) -> Ledger {
        let record = MachineRecord { provider: "sandbox".parse().unwrap(), phase };
        Ledger { machines: BTreeMap::from([(RunnerId::from_bits(1), record)]), ..Ledger::default() }
    }

    #[test]
    fn a_machine_that_may_be_there_is_never_left_out() {
        let why = Explanation::new("a", "b");
        let cases = [
            (MachinePhase::Claimed, "creating"),
            (MachinePhase::Up, "exited"),
            (MachinePhase::GaveUp { reason: why.clone() }, "failed"),
            (MachinePhase::Refused { reason: why.clone() }, "failed"),
        ];
        for (phase, name) in cases {
            let report = told(&ledger(phase), &[], &[RunnerId::from_bits(1)], &Tries::default());
            assert_eq!(serde_json::to_value(&report.runners[0]).unwrap()["observed"], name);
            assert_eq!((report.epoch, report.generation, report.runners.len()), (4, 9, 1));
        }
    }

    #[test]
    fn a_machine_that_cannot_be_removed_says_what_is_left() {
        let mut tries = Tries::default();
        let runner = RunnerId::from_bits(1);
        tries.not_removed(
            runner,
            Explanation::new("provider.left_behind", "a mount is left"),
            Default::default(),
        );
        let report = told(&ledger(MachinePhase::Up), &[], &[], &tries);
        let ObservedState::Exited { reason } = &report.runners[0].state else { panic!("{report:?}") };
        assert_eq!(reason.message, "a mount is left");
    }

    #[test]
    fn a_machine_that_was_made_after_the_last_listing_is_not_told_as_vanished() {
        let (set, ledger) = (
            DesiredSet { epoch: 4, generation: 9, runners: Vec::new(), releasing: Vec::new() },
            ledger(MachinePhase::Up),
        );
        let sources = Sources {
            desired: &set,
            host: &crate::host::machine(),
            devices: &[],
            rows: &BTreeMap::new(),
            ledger: &ledger,
            tries: &Tries::default(),
            at_work: &BTreeSet::from([RunnerId::from_bits(1)]),
            gone: &BTreeSet::new(),
        };
        assert_eq!(build(&sources).runners[0].state, ObservedState::Creating);
        let later = Sources { at_work: &BTreeSet::new(), ..sources };
        assert!(matches!(build(&later).runners[0].state, ObservedState::Exited { .. }));
    }

    #[test]
    fn what_the_provider_sees_is_told_and_a_machine_that_went_is_told_as_absent() {
        let row = ObservedRunner {
            runner: RunnerId::from_bits(1),
            state: ObservedState::Running,
            enforced: BTreeSet::from([forgeyard_model::resources::Limit::Memory]),
        };
        let report = told(
            &ledger(MachinePhase::Up),
            std::slice::from_ref(&row),
            &[RunnerId::from_bits(2)],
            &Tries::default(),
        );
        assert_eq!(report.runners[0], row);
        assert_eq!(report.runners[1].state, ObservedState::Absent);
    }

    #[test]
    fn a_lease_is_told_as_the_journal_has_it() {
        let sick = vec![(DeviceId::from_bits(5), "no answer".to_owned())];
        let phases = [
            LeasePhase::Held,
            LeasePhase::Resetting,
            LeasePhase::Verifying,
            LeasePhase::Released { sick: sick.clone() },
        ];
        let leases = phases.into_iter().enumerate().map(|(at, phase)| {
            (
                LeaseId::from_bits(at as u128),
                LeaseRecord { runner: RunnerId::from_bits(1), devices: Vec::new(), phase },
            )
        });
        let report =
            told(&Ledger { leases: leases.collect(), ..Ledger::default() }, &[], &[], &Tries::default());
        let id = LeaseId::from_bits;
        assert_eq!(
            report.leases,
            [
                ObservedLease::Held { lease: id(0) },
                ObservedLease::Resetting { lease: id(1) },
                ObservedLease::Verifying { lease: id(2) },
                ObservedLease::Released { lease: id(3), sick },
            ]
        );
    }
}
