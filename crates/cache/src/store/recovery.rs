//! Opening a store: the snapshot of the index, then the log behind it.
//!
//! ```text
//! index.snap   "FYSNAP1\n", segment u32 and place u64 up to which it holds, number of scopes u32, each: length u16, path,
//!              entries i64, bytes i64; number of names u64, each: hash u128, slot u128; contents likewise; number of
//!              large contents u32, each: digest, names u32, size u64; CRC-32 of all of it. Little-endian.
//! ```
//!
//! It is written beside and renamed, while the writer stands still, so counts and place agree. A snapshot that does not
//! hold is not used: the whole log is read instead. Names whose segment is gone since are given up, unless their content
//! was moved to the part of the log behind the snapshot.

use super::index::{Slot, Table};
use super::keeper::walk;
use super::log::{Config, Segment, Shared, locked};
use super::record::{LARGE, Record, SEGMENT_HEAD, What, segment_head};
use super::{Clock, StoreError};
use crate::name::half;
use forgeyard_model::Digest;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

const MAGIC: &[u8; 8] = b"FYSNAP1\n";
/// Places in a segment are kept in 24 bits of 64 bytes each.
const LARGEST_SEGMENT: u64 = 1 << 30;

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
    let shared = Shared::new(config, clock, segments, active, lock);
    let mut recovery = Recovery::new(&shared);
    let path = shared.config.folder.join("index.snap");
    let from = match fs_err::read(&path) {
        Ok(bytes) => match recovery.load(&bytes) {
            Some(from) => from,
            None => {
                tracing::warn!("the snapshot of the index does not hold; reading the whole log");
                shared.clear();
                recovery = Recovery::new(&shared);
                (0, 0)
            }
        },
        Err(_) => (0, 0),
    };
    recovery.replay(from)?;
    recovery.finish()?;
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

struct Recovery<'a> {
    shared: &'a Shared,
    /// Names of the snapshot whose segment is gone.
    lost: HashMap<u128, Slot>,
    /// Place of a lost content → its digest.
    moved: HashMap<(u32, u64), u128>,
    /// Names that link to a content that was not seen yet.
    pending: HashMap<u128, (u128, u32, u32, u64)>,
}

/// Reads from bytes that may end anywhere.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn table(&mut self, mut see: impl FnMut(u128, Slot)) -> Option<()> {
        let count = usize::try_from(self.u64()?).ok()?;
        let bytes = self.take(count.checked_mul(32)?)?;
        for pair in bytes.chunks_exact(32) {
            let (hash, slot) = pair.split_at(16);
            let number = |bytes: &[u8]| bytes.try_into().map(u128::from_le_bytes).ok();
            see(number(hash)?, Slot::from_bits(number(slot)?));
        }
        Some(())
    }
}

impl<'a> Recovery<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, lost: HashMap::new(), moved: HashMap::new(), pending: HashMap::new() }
    }

    /// Takes a snapshot over; answers with where the log goes on. Nothing when it does not hold.
    fn load(&mut self, bytes: &[u8]) -> Option<(u32, u64)> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if crc32fast::hash(body).to_le_bytes() != crc || body.get(..8)? != MAGIC {
            return None;
        }
        let mut input = Input(&body[8..]);
        let (segment, at) = (input.u32()?, input.u64()?);
        // a log that ends before the snapshot is not the log that it was made of
        if self.shared.segment(segment)?.size.load(Relaxed) < at {
            return None;
        }
        for _ in 0..input.u32()? {
            let length = u16::from_le_bytes(input.array()?);
            let path = std::str::from_utf8(input.take(usize::from(length))?).ok()?;
            let (_, count) = self.shared.scope(path);
            count.entries.store(input.i64()?, Relaxed);
            count.bytes.store(input.i64()?, Relaxed);
        }
        let there: BTreeSet<u32> = self.shared.all_segments().iter().map(|segment| segment.number).collect();
        let (shared, lost, moved) = (self.shared, &mut self.lost, &mut self.moved);
        input.table(|hash, slot| {
            if there.contains(&slot.segment()) {
                shared.names.insert(hash, slot);
            } else {
                lost.insert(hash, slot);
            }
        })?;
        input.table(|hash, slot| {
            if there.contains(&slot.segment()) {
                shared.contents.insert(hash, slot);
            } else {
                moved.insert((slot.segment(), slot.at()), hash);
            }
        })?;
        let mut large = locked(&shared.large);
        for _ in 0..input.u32()? {
            let digest = Digest::from_bytes(input.array()?);
            let (names, size) = (input.u32()?, input.u64()?);
            large.insert(digest, (names, size));
            shared.large_bytes.fetch_add(size as i64, Relaxed);
        }
        Some((segment, at))
    }

    fn replay(&mut self, (first, at): (u32, u64)) -> Result<(), StoreError> {
        let segments = self.shared.all_segments();
        let last = segments.last().map(|segment| segment.number);
        for segment in segments.iter().filter(|segment| segment.number >= first) {
            let from = if segment.number == first { at } else { 0 };
            let good = walk(segment, from, |at, record, length| {
                self.record(segment.number, at, record, length);
                segment.written.store(Shared::minute_at(record.stored_at), Relaxed);
                Ok(())
            })?;
            let size = segment.size.load(Relaxed);
            if good < size && Some(segment.number) == last {
                tracing::info!(segment = segment.number, bytes = size - good, "cut off what a crash left");
                segment.file.set_len(good).map_err(StoreError::io("cutting", &segment.path))?;
                segment.size.store(good, Relaxed);
            }
        }
        Ok(())
    }

    fn record(&mut self, segment: u32, at: u64, record: &Record<'_>, length: u64) {
        let shared = self.shared;
        let minute = Shared::minute_at(record.stored_at);
        let (scope, _) = shared.scope(record.scope);
        let own = Slot::new(segment, at, length as u32, minute, scope);
        if record.what == What::Content {
            shared.contents.insert(half(record.digest.as_bytes()), own);
            return;
        }
        let name = record.name().0;
        let content = half(record.digest.as_bytes());
        self.pending.remove(&name);
        let slot = match record.what {
            What::Drop | What::Content => None,
            What::Link if record.flags & LARGE == 0 => match shared.contents.get(content) {
                Some(target) => Some(Slot::new(target.segment(), target.at(), target.len(), minute, scope)),
                None => {
                    self.pending.insert(name, (content, minute, scope, record.size));
                    None
                }
            },
            What::Link => {
                let mut large = locked(&shared.large);
                let entry = large.entry(record.digest).or_insert_with(|| {
                    shared.large_bytes.fetch_add(record.size as i64, Relaxed);
                    (0, record.size)
                });
                entry.0 += 1;
                Some(own)
            }
            What::Entry => {
                shared.contents.insert(content, own);
                Some(own)
            }
        };
        let before = match slot {
            Some(slot) => {
                // counted before the old one is counted out, so that a large content is not removed in between
                shared.count_in(slot, record.size);
                shared.names.insert(name, slot)
            }
            None => shared.names.remove(name),
        };
        if let Some(before) = before {
            shared.uncount(before);
        }
        if let Some(slot) = self.lost.remove(&name) {
            shared.uncount(slot);
        }
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        let shared = self.shared;
        for (name, (content, minute, scope, size)) in self.pending.drain() {
            if let Some(target) = shared.contents.get(content) {
                let slot = Slot::new(target.segment(), target.at(), target.len(), minute, scope);
                shared.names.insert(name, slot);
                shared.count_in(slot, size);
            }
        }
        for (name, slot) in self.lost.drain() {
            let moved = self.moved.get(&(slot.segment(), slot.at()));
            match moved.and_then(|content| shared.contents.get(*content)) {
                Some(target) => {
                    shared.names.insert(name, slot.moved(target.segment(), target.at()));
                }
                None => shared.uncount(slot),
            }
        }
        for segment in shared.all_segments() {
            segment.live.store(0, Relaxed);
        }
        let mut live: HashMap<u32, i64> = HashMap::new();
        shared.names.each(|_, slot| *live.entry(slot.segment()).or_default() += i64::from(slot.len()));
        for (number, bytes) in live {
            if let Some(segment) = shared.segment(number) {
                segment.live.store(bytes, Relaxed);
            }
        }
        self.sweep_large()
    }

    /// Removes large files that no name stands for: a crash between the file and its record leaves one.
    fn sweep_large(&self) -> Result<(), StoreError> {
        let root = self.shared.config.folder.join("large");
        let failed = || StoreError::io("sweeping", &root);
        let large = locked(&self.shared.large);
        for folder in fs_err::read_dir(&root).map_err(failed())? {
            for file in fs_err::read_dir(folder.map_err(failed())?.path()).map_err(failed())? {
                let path = file.map_err(failed())?.path();
                let digest = path.file_name().and_then(|name| Digest::from_hex(name.to_str()?).ok());
                if digest.is_none_or(|digest| !large.contains_key(&digest)) {
                    fs_err::remove_file(&path).map_err(failed())?;
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Forgets what half a snapshot said.
    fn clear(&self) {
        self.names.clear();
        self.contents.clear();
        *self.scopes.write().unwrap_or_else(PoisonError::into_inner) = Default::default();
        locked(&self.large).clear();
        self.large_bytes.store(0, Relaxed);
    }

    /// Writes the snapshot. No put runs meanwhile; reads go on.
    pub(super) fn snapshot(&self) -> Result<(), StoreError> {
        let path = self.config.folder.join("index.snap");
        let beside = self.config.folder.join("index.snap.new");
        let failed = || StoreError::io("writing", &beside);
        let file = File::create(&beside).map_err(failed())?;
        let mut out =
            Summed { out: std::io::BufWriter::with_capacity(1 << 20, file), crc: Default::default() };
        {
            let writer = locked(&self.writer);
            // a snapshot must not promise what the log does not hold yet
            writer.active.file.sync_data().map_err(failed())?;
            self.write_snapshot(&mut out, writer.active.number, writer.active.size.load(Relaxed))
                .map_err(failed())?;
        }
        let crc = out.crc.finalize();
        out.out.write_all(&crc.to_le_bytes()).map_err(failed())?;
        let file = out.out.into_inner().map_err(|error| failed()(error.into_error()))?;
        file.sync_data().map_err(failed())?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))
    }

    fn write_snapshot(&self, out: &mut impl std::io::Write, segment: u32, at: u64) -> std::io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&segment.to_le_bytes())?;
        out.write_all(&at.to_le_bytes())?;
        let counts = self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.clone();
        out.write_all(&(counts.len() as u32).to_le_bytes())?;
        for count in counts {
            out.write_all(&(count.path.len() as u16).to_le_bytes())?;
            out.write_all(count.path.as_bytes())?;
            out.write_all(&count.entries.load(Relaxed).to_le_bytes())?;
            out.write_all(&count.bytes.load(Relaxed).to_le_bytes())?;
        }
        let table = |out: &mut dyn std::io::Write, table: &Table| {
            out.write_all(&(table.len() as u64).to_le_bytes())?;
            let mut written = Ok(());
            table.each(|hash, slot| {
                if written.is_ok() {
                    let mut pair = [0; 32];
                    pair[..16].copy_from_slice(&hash.to_le_bytes());
                    pair[16..].copy_from_slice(&slot.bits().to_le_bytes());
                    written = out.write_all(&pair);
                }
            });
            written
        };
        table(out, &self.names)?;
        table(out, &self.contents)?;
        let large = locked(&self.large);
        out.write_all(&(large.len() as u32).to_le_bytes())?;
        for (digest, (names, size)) in large.iter() {
            out.write_all(digest.as_bytes())?;
            out.write_all(&names.to_le_bytes())?;
            out.write_all(&size.to_le_bytes())?;
        }
        Ok(())
    }
}

/// Writes on and sums up.
struct Summed<W> {
    out: W,
    crc: crc32fast::Hasher,
}

impl<W: std::io::Write> std::io::Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
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
                let mut bytes = MAGIC.to_vec();
                bytes.extend_from_slice(&1u32.to_le_bytes());
                bytes.extend_from_slice(&64u64.to_le_bytes());
                bytes.append(&mut snapshot);
                let crc = crc32fast::hash(&bytes);
                bytes.extend_from_slice(&crc.to_le_bytes());
                snapshot = bytes;
            }
            fs_err::create_dir_all(folder.path().join("seg")).unwrap();
            fs_err::write(folder.path().join("index.snap"), &snapshot).unwrap();
            fs_err::write(folder.path().join("seg/00000001.fyl"), [&segment_head(1)[..], &tail].concat()).unwrap();
            let clock: Clock = Arc::new(|| forgeyard_model::Timestamp::from_micros(1));
            prop_assert!(open(Config::new(folder.path()), clock).is_ok());
        }
    }
}
