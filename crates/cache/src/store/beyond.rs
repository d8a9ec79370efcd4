//! What lies beyond this disk: entries whose segment was copied to S3-compatible storage and then dropped here (`tier`).
//!
//! ```text
//! tier/00000007.gone   what still stood in segment 7 when it was dropped: "FYGONE2\n", number of names u32, of contents u32,
//!                      names of 36 bytes (hash 16, slot 20), contents of 24 (hash 16, spot 8), CRC-32 of all before
//! tier/taken.log       names that were taken away or written anew since: records of 24 bytes, hash 16, last segment up to
//!                      which it counts u32, CRC-32
//! tier/purges.jsonl    what was removed by scope or writer, and when; a line each
//! ```
//!
//! - Only what still stood in a segment when it went is kept: what a quota, an age or a person had taken away before stays away.
//! - A file is written before the segment that it speaks of is removed, so a crash in between finds the segment.
//! - A name that is written anew or removed is taken out here at once: what lies beyond is older, and would be a wrong answer.
//! - Slots are as in `index`, and as little believed: what is fetched is held against name, checksum and SHA-256.

use super::StoreError;
use super::Which;
use super::index::{Slot, Spot, Table, Word as _};
use super::log::locked;
use crate::name::NameHash;
use forgeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};

const MAGIC: &[u8; 8] = b"FYGONE2\n";
const TAKEN: usize = 24;
/// Bytes of a name, and of a content.
const NAME: usize = 16 + Slot::BYTES;
const CONTENT: usize = 16 + Spot::BYTES;

/// Something that was removed by what it is rather than by name: what lies beyond and is older does not come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Purge {
    /// What.
    pub which: Which,
    /// Everything that was stored until then.
    pub until: Timestamp,
}

/// What lies beyond this disk.
#[derive(Debug)]
pub struct Beyond {
    folder: PathBuf,
    names: Table<Slot>,
    contents: Table<Spot>,
    /// Segments that are there as a whole.
    sent: RwLock<BTreeSet<u32>>,
    taken: Mutex<File>,
    purges: RwLock<Vec<Purge>>,
    unsent: AtomicU64,
}

/// What of a segment goes beyond.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Gone {
    pub(super) names: Vec<(u128, Slot)>,
    pub(super) contents: Vec<(u128, Spot)>,
}

impl Gone {
    fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(self.names.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.contents.len() as u32).to_le_bytes());
        for (hash, slot) in &self.names {
            bytes.extend_from_slice(&hash.to_le_bytes());
            slot.write(&mut bytes);
        }
        for (hash, spot) in &self.contents {
            bytes.extend_from_slice(&hash.to_le_bytes());
            spot.write(&mut bytes);
        }
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Never panics; nothing when it does not hold.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (said, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if crc32fast::hash(said).to_le_bytes() != crc {
            return None;
        }
        let rest = said.strip_prefix(MAGIC)?;
        let (counts, rest) = rest.split_at_checked(8)?;
        let names = u32::from_le_bytes(counts[..4].try_into().ok()?) as usize;
        let contents = u32::from_le_bytes(counts[4..].try_into().ok()?) as usize;
        if rest.len() != names.checked_mul(NAME)?.checked_add(contents.checked_mul(CONTENT)?)? {
            return None;
        }
        let (names, contents) = rest.split_at_checked(names * NAME)?;
        let hash = |one: &[u8]| one[..16].try_into().map_or(0, u128::from_le_bytes);
        Some(Self {
            names: names.chunks_exact(NAME).map(|one| (hash(one), Slot::read(&one[16..]))).collect(),
            contents: contents.chunks_exact(CONTENT).map(|one| (hash(one), Spot::read(&one[16..]))).collect(),
        })
    }
}

fn taken(hash: u128, until: u32) -> [u8; TAKEN] {
    let mut bytes = [0; TAKEN];
    bytes[..16].copy_from_slice(&hash.to_le_bytes());
    bytes[16..20].copy_from_slice(&until.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

impl Beyond {
    /// Reads what is known in this folder.
    pub(super) fn open(folder: PathBuf) -> Result<Self, StoreError> {
        fs_err::create_dir_all(&folder).map_err(StoreError::io("making", &folder))?;
        let path = folder.join("taken.log");
        let log = File::options().create(true).append(true).read(true).open(&path);
        let log = log.map_err(StoreError::io("opening", &path))?;
        let purges = fs_err::read_to_string(folder.join("purges.jsonl")).unwrap_or_default();
        let this = Self {
            names: Table::default(),
            contents: Table::default(),
            sent: RwLock::default(),
            taken: Mutex::new(log),
            purges: RwLock::new(purges.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            unsent: AtomicU64::new(0),
            folder,
        };
        this.load()?;
        Ok(this)
    }

    fn load(&self) -> Result<(), StoreError> {
        let failed = || StoreError::io("reading", &self.folder);
        let mut files = Vec::new();
        for entry in fs_err::read_dir(&self.folder).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
            if let Some(number) = number.filter(|_| path.extension().is_some_and(|end| end == "gone")) {
                files.push((number, path));
            }
        }
        files.sort();
        for (number, path) in files {
            match Gone::read(&fs_err::read(&path).map_err(failed())?) {
                Some(gone) => self.take_in(number, &gone),
                None => tracing::warn!("{} does not hold; what it speaks of is a miss", path.display()),
            }
        }
        let bytes = fs_err::read(self.folder.join("taken.log")).map_err(failed())?;
        for one in bytes.chunks_exact(TAKEN) {
            let (hash, until) = (
                one[..16].try_into().map(u128::from_le_bytes),
                one[16..20].try_into().map(u32::from_le_bytes),
            );
            if let (Ok(hash), Ok(until)) = (hash, until)
                && taken(hash, until) == one
            {
                self.forget(hash, until);
            }
        }
        Ok(())
    }

    fn take_in(&self, number: u32, gone: &Gone) {
        for (hash, slot) in &gone.names {
            // another one that looks alike is an older one of this name: what is written later counts
            self.forget(*hash, number);
            self.names.add(*hash, *slot);
        }
        for (hash, spot) in &gone.contents {
            for before in self.contents.find(*hash) {
                self.contents.remove(*hash, before);
            }
            self.contents.add(*hash, *spot);
        }
        self.mark(number);
    }

    fn forget(&self, hash: u128, until: u32) -> bool {
        let mut any = false;
        for slot in self.names.find(hash).filter(|slot| slot.segment() <= until) {
            any |= self.names.remove(hash, slot).is_some();
        }
        any
    }

    /// A segment is there as a whole.
    pub fn mark(&self, segment: u32) {
        self.sent.write().unwrap_or_else(PoisonError::into_inner).insert(segment);
    }

    /// Whether a segment is there as a whole.
    pub fn is_sent(&self, segment: u32) -> bool {
        self.sent.read().unwrap_or_else(PoisonError::into_inner).contains(&segment)
    }

    /// Notes what stood in a segment that is about to be dropped here. Nothing when it was not sent.
    pub(super) fn dropping(&self, number: u32, gone: &Gone) -> Result<(), StoreError> {
        if !self.is_sent(number) {
            self.unsent.fetch_add(1, Relaxed);
            return Ok(());
        }
        if gone.names.is_empty() && gone.contents.is_empty() {
            return Ok(());
        }
        let path = self.folder.join(format!("{number:08}.gone"));
        let beside = path.with_extension("new");
        fs_err::write(&beside, gone.write()).map_err(StoreError::io("writing", &beside))?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))?;
        self.take_in(number, gone);
        Ok(())
    }

    /// A name was written anew, or taken away: what lies beyond does not count any more. Whether there was something.
    pub(super) fn supersede(&self, name: NameHash) -> bool {
        if !self.forget(name.0, u32::MAX) {
            return false;
        }
        // up to here: the same segment may be dropped later with a newer record of the name
        let last = self.sent.read().unwrap_or_else(PoisonError::into_inner).last().copied().unwrap_or(0);
        if let Err(error) = locked(&self.taken).write_all(&taken(name.0, last)) {
            tracing::error!("writing down that a name is gone: {error}");
        }
        true
    }

    /// Everything that is meant and was stored until now is gone.
    pub(super) fn purge(&self, which: &Which, until: Timestamp) -> Result<(), StoreError> {
        let purge = Purge { which: which.clone(), until };
        let path = self.folder.join("purges.jsonl");
        let line = serde_json::to_string(&purge).unwrap_or_default() + "\n";
        let file = File::options().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(StoreError::io("writing to", &path))?;
        self.purges.write().unwrap_or_else(PoisonError::into_inner).push(purge);
        Ok(())
    }

    /// What was purged.
    pub fn purges(&self) -> Vec<Purge> {
        self.purges.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where a name may be.
    pub fn name(&self, name: NameHash) -> Option<Slot> {
        self.names.find(name.0).next()
    }

    /// Where a content may be.
    pub fn content(&self, hash: u128) -> Option<Spot> {
        self.contents.find(hash).next()
    }

    /// What was looked for is not there, or not what it should be.
    pub fn lost(&self, name: NameHash) {
        self.supersede(name);
    }

    /// Segments that were dropped here before they were sent, since the start.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed)
    }

    /// Names that lie beyond.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether nothing lies beyond.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_went_is_found_after_a_restart_and_what_was_written_anew_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tier");
        let name = |number: u128| NameHash((number << 64) | (number * 7));
        let slot = |segment: u32, at: u64| Slot::new(segment, at, 128, 0, 0);
        let beyond = Beyond::open(path.clone()).unwrap();
        let gone = Gone {
            names: vec![(name(1).0, slot(3, 64)), (name(2).0, slot(3, 192))],
            contents: vec![(5, Spot::new(3, 64))],
        };
        beyond.dropping(3, &gone).unwrap();
        assert_eq!(beyond.name(name(1)), None, "it was not sent");
        beyond.mark(3);
        beyond.dropping(3, &gone).unwrap();
        assert!(beyond.name(name(1)).is_some_and(|found| found.same_place(slot(3, 64))));
        assert!(beyond.supersede(name(1)) && !beyond.supersede(name(1)));
        let beyond = Beyond::open(path.clone()).unwrap();
        assert_eq!((beyond.name(name(1)), beyond.len(), beyond.is_sent(3)), (None, 1, true));
        assert!(beyond.content(5).is_some());
        // the newer one goes beyond in its turn
        beyond.mark(4);
        beyond.dropping(4, &Gone { names: vec![(name(1).0, slot(4, 64))], contents: vec![] }).unwrap();
        let beyond = Beyond::open(path).unwrap();
        assert!(beyond.name(name(1)).is_some_and(|found| found.segment() == 4));
    }

    proptest! {
        #[test]
        fn any_bytes_are_what_went_or_refused(bytes: Vec<u8>, names: u32, contents: u32, body: Vec<u8>) {
            let _ = Gone::read(&bytes);
            let mut summed = MAGIC.to_vec();
            summed.extend_from_slice(&names.to_le_bytes());
            summed.extend_from_slice(&contents.to_le_bytes());
            summed.extend_from_slice(&body);
            let crc = crc32fast::hash(&summed);
            summed.extend_from_slice(&crc.to_le_bytes());
            let _ = Gone::read(&summed);
        }
    }
}
