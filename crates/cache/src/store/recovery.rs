//! Opening a store: the head of the snapshot of the index, then the log behind it.
//!
//! What the log says goes beside the shards that are still in the snapshot, or into the index when there is no snapshot
//! that holds. Names whose segment is gone since are given up, unless their record was moved to the part of the log
//! behind the snapshot.

use super::append::Segment;
use super::beyond::Beyond;
use super::index::{SHARDS, Slot, Spot, shard_of};
use super::kept::Kept;
use super::log::{Config, Shared, locked};
use super::record::{LARGE, Record, SEGMENT_HEAD, What, segment_head};
use super::snapshot::{Head, NoHead, Since};
use super::walk::walk;
use super::{Clock, StoreError};
use crate::name::half;
use forgeyard_model::Digest;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Places in a segment are kept in 22 bits of 64 bytes each.
const LARGEST_SEGMENT: u64 = super::index::LAST_PLACE + 64;

/// Opens the folder and reads what is there.
pub(super) fn open(mut config: Config, clock: Clock) -> Result<Shared, StoreError> {
    let folder = &config.folder;
    for part in ["seg", "large", "incoming"] {
        let part = folder.join(part);
        fs_err::create_dir_all(&part).map_err(StoreError::io("making", &part))?;
    }
    let path = folder.join("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(StoreError::io("opening", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(folder.clone())),
        Err(TryLockError::Error(error)) => return Err(StoreError::io("locking", &path)(error)),
    }
    empty(&folder.join("incoming"))?;
    // eviction goes by whole segments; a few must fit
    config.segment = config.segment.min(config.capacity / 4).clamp(4096, LARGEST_SEGMENT);
    let minute = super::log::minute_of(clock());
    let mut segments = segments(&config.folder, minute)?;
    let active = match segments.last_key_value() {
        Some((_, last)) => Arc::clone(last),
        None => Arc::new(Segment::create(&config.folder, 1, minute)?),
    };
    segments.insert(active.number, Arc::clone(&active));
    let now = u32::try_from(clock().as_micros() / 60_000_000).unwrap_or(0);
    let kept = Kept::open(&config.folder, now)?;
    let beyond = match config.tier {
        Some(_) => Some(Arc::new(Beyond::open(config.folder.join("tier"))?)),
        None => None,
    };
    let shared = Shared::new(config, clock, segments, active, lock, kept, beyond);
    shared.recall_shrunk();
    let path = shared.config.folder.join("index.snap");
    let from = match Head::read(&path) {
        Ok(head) => shared.take_over(&head),
        Err(NoHead::Absent) => None,
        Err(why @ NoHead::Version(_)) => {
            tracing::info!(
                "the snapshot of the index is not used, {why}: the log is read from its beginning, once; no entry is lost, but \
                 when entries were last used is known as of when they were written"
            );
            None
        }
        Err(why @ NoHead::Damaged) => {
            tracing::warn!("the snapshot of the index is not used, {why}: reading the whole log");
            None
        }
    };
    shared.replay(from.unwrap_or((0, 0)))?;
    shared.sweep_large()?;
    match from {
        Some(_) => shared.settle(),
        None => shared.recovered(),
    }
    Ok(shared)
}

fn empty(folder: &Path) -> Result<(), StoreError> {
    let failed = || StoreError::io("clearing", folder);
    for entry in fs_err::read_dir(folder).map_err(failed())? {
        fs_err::remove_file(entry.map_err(failed())?.path()).map_err(failed())?;
    }
    Ok(())
}

/// The segments that are there. A file with a wrong head is left alone and not used.
fn segments(folder: &Path, minute: u32) -> Result<BTreeMap<u32, Arc<Segment>>, StoreError> {
    let folder = folder.join("seg");
    let failed = || StoreError::io("listing", &folder);
    let mut segments = BTreeMap::new();
    for entry in fs_err::read_dir(&folder).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        let Some(number) = number.filter(|_| path.extension().is_some_and(|end| end == "fyl")) else {
            continue;
        };
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(StoreError::io("opening", &path))?;
        let size = file.metadata().map_err(StoreError::io("looking at", &path))?.len();
        let mut head = [0; SEGMENT_HEAD as usize];
        if size < SEGMENT_HEAD {
            // a crash while it was made: it holds nothing
            file.write_all_at(&segment_head(number), 0).map_err(StoreError::io("writing to", &path))?;
        } else {
            file.read_exact_at(&mut head, 0).map_err(StoreError::io("reading", &path))?;
            if head != segment_head(number) {
                tracing::error!("{} is no segment of this version; it is not used", path.display());
                continue;
            }
        }
        let segment = Segment::over(number, path, file, size.max(SEGMENT_HEAD), minute);
        segments.insert(number, Arc::new(segment));
    }
    Ok(segments)
}

impl Shared {
    /// Takes the head of a snapshot over; answers with where the log goes on. Nothing when it is not one of this log.
    fn take_over(&self, head: &Head) -> Option<(u32, u64)> {
        // a log that ends before the snapshot is not the log that it was made of
        if self.segment(head.segment)?.size.load(Relaxed) < head.at {
            return None;
        }
        for (path, entries, bytes) in &head.scopes {
            let (_, count) = self.scope(path).ok()?;
            count.entries.store(*entries, Relaxed);
            count.bytes.store(*bytes, Relaxed);
        }
        let mut loading = locked(&self.load_state);
        for (number, (live, written)) in &head.segments {
            match self.segment(*number) {
                Some(segment) => {
                    segment.live.store(*live, Relaxed);
                    segment.written.store(*written, Relaxed);
                }
                None => drop(loading.gone.insert(*number)),
            }
        }
        let bytes: u64 = head.large.values().map(|(_, size)| *size).sum();
        self.large_bytes.store(bytes as i64, Relaxed);
        locked(&self.large).clone_from(&head.large);
        head.hang(&self.names, &self.contents);
        self.loading.store(true, Release);
        Some((head.segment, head.at))
    }

    fn replay(&self, (first, at): (u32, u64)) -> Result<(), StoreError> {
        let segments = self.all_segments();
        let last = segments.last().map(|segment| segment.number);
        let mut behind = 0;
        for segment in segments.iter().filter(|segment| segment.number >= first) {
            let from = if segment.number == first { at } else { 0 };
            let walked = walk(segment, from, |at, record, length| {
                behind += 1;
                segment.written.store(Self::minute_at(record.stored_at), Relaxed);
                self.replay_record(segment.number, at, record, length)
            })?;
            let (good, size) = (walked.good, walked.end);
            if good < size && Some(segment.number) == last {
                tracing::info!(segment = segment.number, bytes = size - good, "cut off what a crash left");
                segment.file.set_len(good).map_err(StoreError::io("cutting", &segment.path))?;
                segment.size.store(good, Relaxed);
            }
        }
        locked(&self.writer).behind = behind;
        Ok(())
    }

    fn replay_record(
        &self,
        segment: u32,
        at: u64,
        record: &Record<'_>,
        length: u64,
    ) -> Result<(), StoreError> {
        let content = half(record.digest.as_bytes());
        let away = self.loading.load(Relaxed);
        if record.what.carries() {
            let spot = Spot::new(segment, at);
            if away {
                locked(&self.load_state).contents.push((content, spot));
            } else {
                self.set_content(content, spot);
            }
        }
        if record.what == What::Content {
            return Ok(());
        }
        let (scope, _) = self.scope(record.scope)?;
        let slot = Slot::new(segment, at, length, Self::minute_at(record.stored_at), scope);
        let slot = slot.carrying(record.what.carries());
        let large = record.what == What::Link && record.flags & LARGE != 0;
        if large {
            self.name_large(record.digest, record.size);
        }
        let slot = (record.what != What::Drop).then_some(slot);
        let since = Since { hash: record.name().0, slot, size: record.size, large };
        if away {
            locked(&self.load_state).names.push(since);
        } else {
            self.set_name(since);
        }
        Ok(())
    }

    /// Sorts what the log said by shard. The last word on a name counts; what an earlier one counted for is taken back.
    fn settle(&self) {
        let mut loading = locked(&self.load_state);
        loading.contents.sort_by_key(|(hash, _)| shard_of(*hash));
        loading.names.sort_by_key(|since| (shard_of(since.hash), since.hash));
        let mut taken_back = Vec::new();
        loading.names.dedup_by(|later, earlier| {
            let same = later.hash == earlier.hash;
            if same {
                if let (true, Some(slot)) = (earlier.large, earlier.slot) {
                    taken_back.push(slot);
                }
                *earlier = *later;
            }
            same
        });
        drop(loading);
        for slot in taken_back {
            if let Ok(Some(digest)) = self.head(slot.segment(), slot.at(), |record| record.digest) {
                self.release_large(digest);
            }
        }
    }

    /// Removes large files that no name stands for: a crash between the file and its record leaves one.
    fn sweep_large(&self) -> Result<(), StoreError> {
        let root = self.config.folder.join("large");
        let failed = || StoreError::io("sweeping", &root);
        let large = locked(&self.large);
        let mut missing: HashSet<Digest> = large.keys().copied().collect();
        for folder in fs_err::read_dir(&root).map_err(failed())? {
            for file in fs_err::read_dir(folder.map_err(failed())?.path()).map_err(failed())? {
                let path = file.map_err(failed())?.path();
                let digest = path.file_name().and_then(|name| Digest::from_hex(name.to_str()?).ok());
                match digest.filter(|digest| large.contains_key(digest)) {
                    Some(digest) => drop(missing.remove(&digest)),
                    None => fs_err::remove_file(&path).map_err(failed())?,
                }
            }
        }
        *locked(&self.missing) = missing;
        Ok(())
    }

    /// Brings in what is still in the snapshot, a shard at a time, and then reads the log for what did not hold. Runs in
    /// the background; ends early when the store is closed.
    pub(super) fn load_in_background(&self) {
        for number in 0..SHARDS {
            if self.closing.load(Relaxed) {
                return;
            }
            self.load(number);
        }
        let (names, contents) = {
            let loading = std::mem::take(&mut *locked(&self.load_state));
            (loading.broken_names, loading.broken_contents)
        };
        if !names.is_empty() || !contents.is_empty() {
            let path = self.config.folder.join("index.snap");
            if let Err(error) = fs_err::remove_file(&path) {
                tracing::error!("removing a snapshot that does not hold: {error}");
            }
            let wanted = |hash: u128, of: &std::collections::BTreeSet<usize>| of.contains(&shard_of(hash));
            if let Err(error) = self.rebuild(&|hash| wanted(hash, &names), &|hash| wanted(hash, &contents)) {
                tracing::error!("reading the log for a part of the index: {error}");
            }
        }
        self.recovered();
    }

    /// Large contents may go from now on. Before, the log may still have named again what it had dropped.
    fn recovered(&self) {
        let _writer = locked(&self.writer);
        self.loading.store(false, Release);
        self.recovering.store(false, Release);
        let unnamed: Vec<Digest> = {
            let large = locked(&self.large);
            large.iter().filter(|(_, (names, _))| *names == 0).map(|(digest, _)| *digest).collect()
        };
        unnamed.into_iter().for_each(|digest| self.release_large(digest));
    }

    /// Finds names and contents of some shards in the log. No put runs meanwhile: this is the price of a damaged disk. The
    /// counts were in the head of the snapshot.
    fn rebuild(
        &self,
        names: &dyn Fn(u128) -> bool,
        contents: &dyn Fn(u128) -> bool,
    ) -> Result<(), StoreError> {
        let _writer = locked(&self.writer);
        let mut found: HashMap<u128, Option<Slot>> = HashMap::new();
        for segment in self.all_segments() {
            walk(&segment, SEGMENT_HEAD, |at, record, length| {
                let content = half(record.digest.as_bytes());
                if record.what.carries() && contents(content) {
                    self.set_content(content, Spot::new(segment.number, at));
                }
                let name = record.name().0;
                if record.what != What::Content && names(name) {
                    let (scope, _) = self.scope(record.scope)?;
                    let minute = Self::minute_at(record.stored_at);
                    let slot = Slot::new(segment.number, at, length, minute, scope);
                    let slot = slot.carrying(record.what.carries());
                    found.insert(name, (record.what != What::Drop).then_some(slot));
                }
                Ok(())
            })?;
        }
        for (name, slot) in found {
            if let Some(slot) = slot
                && !self.names.find(name).any(|known| self.is_named(known, name))
            {
                self.names.add(name, slot);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_snapshot_and_any_segment_are_read_or_refused(mut snapshot: Vec<u8>, tail: Vec<u8>, sum: bool) {
            let folder = tempfile::tempdir().unwrap();
            if sum {
                let mut head = 1u32.to_le_bytes().to_vec();
                head.extend_from_slice(&64u64.to_le_bytes());
                head.append(&mut snapshot);
                head.resize(head.len() + SHARDS * 16, 0);
                snapshot = b"FYSNAP3\n".to_vec();
                snapshot.extend_from_slice(&(head.len() as u32).to_le_bytes());
                snapshot.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
                snapshot.append(&mut head);
                snapshot.resize(snapshot.len() + SHARDS * 8, 0);
            }
            fs_err::create_dir_all(folder.path().join("seg")).unwrap();
            fs_err::write(folder.path().join("index.snap"), &snapshot).unwrap();
            fs_err::write(folder.path().join("seg/00000001.fyl"), [&segment_head(1)[..], &tail].concat()).unwrap();
            let clock: Clock = Arc::new(|| forgeyard_model::Timestamp::from_micros(1));
            prop_assert!(open(Config::new(folder.path()), clock).is_ok());
        }
    }
}
