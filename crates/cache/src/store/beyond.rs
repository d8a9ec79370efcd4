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
//! - A name is known here from the moment at which it leaves the index, with the end of the log held: one that is written anew before the
//!   file is written is found, and stands in `taken.log`, which is read after all files.
//! - A name that is written anew or removed is taken out here first: what lies beyond is older, and would be a wrong answer. A kill in
//!   between costs what lies beyond, and nothing wrong is told.
//! - What is on its way from there ([`Awaited`]) when its name is written anew or removed does not arrive: the newer one may have left
//!   this disk in its turn by then, and nothing here would tell that what comes is older.
//! - Slots are as in `index`, and as little believed: what is fetched is held against name, checksum and SHA-256.

use super::index::{Slot, Spot, Table, Word as _};
use super::log::locked;
use super::record::Record;
use super::{Provenance, StoreError, Which};
use crate::name::NameHash;
use forgeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

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
    taken: Mutex<Taken>,
    purges: RwLock<Vec<Purge>>,
    unsent: AtomicU64,
    /// Names that are on their way from there, and whether they were written anew or removed since they were asked for.
    awaited: Mutex<HashMap<u128, bool>>,
}

/// The log of what was taken. What a write left that failed is written over.
#[derive(Debug)]
struct Taken {
    file: File,
    end: u64,
    /// Not known to be on disk.
    fresh: bool,
}

/// A name that is on its way from beyond.
#[derive(Debug)]
pub struct Awaited {
    beyond: Arc<Beyond>,
    name: u128,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        locked(&self.beyond.awaited).remove(&self.name);
    }
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
        let log = File::options().create(true).truncate(false).write(true).read(true).open(&path);
        let log = log.and_then(|file| {
            let length = file.metadata()?.len();
            Ok(Taken { file, end: length - length % TAKEN as u64, fresh: false })
        });
        let log = log.map_err(StoreError::io("opening", &path))?;
        let purges = fs_err::read_to_string(folder.join("purges.jsonl")).unwrap_or_default();
        let this = Self {
            names: Table::default(),
            contents: Table::default(),
            sent: RwLock::default(),
            taken: Mutex::new(log),
            purges: RwLock::new(purges.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
            unsent: AtomicU64::new(0),
            awaited: Mutex::default(),
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
        gone.names.iter().for_each(|(hash, slot)| self.went(*hash, *slot));
        self.take_in_contents(number, gone);
    }

    fn take_in_contents(&self, number: u32, gone: &Gone) {
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

    /// Whether what stands in a segment lies beyond once it is dropped here; counts those of which nothing does.
    pub(super) fn receives(&self, number: u32) -> bool {
        let sent = self.is_sent(number);
        self.unsent.fetch_add(u64::from(!sent), Relaxed);
        sent
    }

    /// A name that stood in a segment that was sent stands here no more. Whoever calls this holds the end of the log.
    pub(super) fn went(&self, hash: u128, slot: Slot) {
        // another one that looks alike is an older one of this name: what is written later counts
        self.forget(hash, slot.segment());
        self.names.add(hash, slot);
    }

    /// Writes down what stood in a segment that was sent and is about to be dropped here. Its names went before, and some were written
    /// anew since, which stands in the log of what was taken.
    pub(super) fn dropping(&self, number: u32, gone: &Gone) -> Result<(), StoreError> {
        if gone.names.is_empty() && gone.contents.is_empty() {
            return Ok(());
        }
        let path = self.folder.join(format!("{number:08}.gone"));
        let beside = path.with_extension("new");
        fs_err::write(&beside, gone.write()).map_err(StoreError::io("writing", &beside))?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))?;
        self.take_in_contents(number, gone);
        Ok(())
    }

    /// A name is written anew, or taken away: what lies beyond, or is on its way from there, does not count any more. Whether there
    /// was something. Whoever calls this holds the end of the log.
    pub(super) fn supersede(&self, name: NameHash) -> Result<bool, StoreError> {
        if let Some(superseded) = locked(&self.awaited).get_mut(&name.0) {
            *superseded = true;
        }
        if !self.forget(name.0, u32::MAX) {
            return Ok(false);
        }
        // up to here: the same segment may be dropped later with a newer record of the name
        let last = self.sent.read().unwrap_or_else(PoisonError::into_inner).last().copied().unwrap_or(0);
        self.write_taken(name, last)?;
        Ok(true)
    }

    fn write_taken(&self, name: NameHash, until: u32) -> Result<(), StoreError> {
        let mut log = locked(&self.taken);
        let written = log.file.write_all_at(&taken(name.0, until), log.end);
        written.map_err(StoreError::io("writing down that a name is gone, in", &self.folder))?;
        log.end += TAKEN as u64;
        log.fresh = true;
        Ok(())
    }

    /// What was taken is on disk afterwards, as what took its place has to be before it is acknowledged.
    pub(super) fn sync(&self) -> std::io::Result<()> {
        let mut log = locked(&self.taken);
        if log.fresh {
            log.file.sync_data()?;
            log.fresh = false;
        }
        Ok(())
    }

    /// A name is asked for beyond. Only one asks for a name at a time.
    pub(crate) fn await_name(self: &Arc<Self>, name: NameHash) -> Awaited {
        locked(&self.awaited).insert(name.0, false);
        Awaited { beyond: Arc::clone(self), name: name.0 }
    }

    /// Whether an entry that comes from beyond may be kept: nobody wrote or removed its name since it was asked for, and it was not
    /// purged. Whoever asks holds the end of the log.
    pub(super) fn may_arrive(&self, record: &Record<'_>, by: &Provenance) -> bool {
        let superseded = locked(&self.awaited).get(&record.name().0).copied().unwrap_or(false);
        let purges = self.purges.read().unwrap_or_else(PoisonError::into_inner);
        let purged = |purge: &Purge| {
            record.stored_at <= purge.until && purge.which.means(record.scope, record.key, by)
        };
        !superseded && !purges.iter().any(purged)
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

    /// What was looked for at this place is not there, or not what it should be.
    pub(crate) fn lost(&self, name: NameHash, slot: Slot) {
        let place = self.names.find(name.0).find(|found| found.same_place(slot));
        if place.is_some_and(|place| self.names.remove(name.0, place).is_some())
            && let Err(error) = self.write_taken(name, slot.segment())
        {
            tracing::error!("{error}");
        }
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
        assert!(!beyond.receives(3) && beyond.unsent() == 1, "it was not sent");
        beyond.mark(3);
        assert!(beyond.receives(3) && beyond.unsent() == 1);
        let drop = |beyond: &Beyond, number: u32, gone: &Gone| {
            gone.names.iter().for_each(|(hash, slot)| beyond.went(*hash, *slot));
            beyond.dropping(number, gone).unwrap();
        };
        drop(&beyond, 3, &gone);
        assert!(beyond.name(name(1)).is_some_and(|found| found.same_place(slot(3, 64))));
        assert!(beyond.supersede(name(1)).unwrap() && !beyond.supersede(name(1)).unwrap());
        let beyond = Beyond::open(path.clone()).unwrap();
        assert_eq!((beyond.name(name(1)), beyond.len(), beyond.is_sent(3)), (None, 1, true));
        assert!(beyond.content(5).is_some());
        // the newer one goes beyond in its turn
        beyond.mark(4);
        drop(&beyond, 4, &Gone { names: vec![(name(1).0, slot(4, 64))], contents: vec![] });
        let beyond = Beyond::open(path).unwrap();
        assert!(beyond.name(name(1)).is_some_and(|found| found.segment() == 4));
    }

    #[test]
    fn torn_end_of_what_was_taken_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let name = |number: u128| NameHash((number << 64) | (number * 7));
        let gone = Gone {
            names: (1..=2).map(|n| (name(n).0, Slot::new(3, n as u64 * 64, 64, 0, 0))).collect(),
            contents: Vec::new(),
        };
        let beyond = Beyond::open(folder.path().to_owned()).unwrap();
        beyond.mark(3);
        beyond.dropping(3, &gone).unwrap();
        let beyond = Beyond::open(folder.path().to_owned()).unwrap();
        assert!(beyond.supersede(name(1)).unwrap());
        let log = File::options().append(true).open(folder.path().join("taken.log")).unwrap();
        std::io::Write::write_all(&mut &log, &[7; TAKEN / 2]).unwrap();
        let beyond = Beyond::open(folder.path().to_owned()).unwrap();
        assert!(beyond.supersede(name(2)).unwrap());
        assert!(Beyond::open(folder.path().to_owned()).unwrap().is_empty());
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
