//! The store on disk: a log of segments, an index in memory, large contents as files.
//!
//! ```text
//! lock                  held (flock) by the one process that has the folder open
//! seg/00000001.fyl      segments, see `record`; only the one with the highest number grows, none is ever rewritten
//! large/, incoming/     see `large`
//! index.snap            the index as of some place in the log, see `recovery`; may be missing
//! ```
//!
//! - A put writes one record under the lock of the writer, then changes the index, then waits for durability. So a crash
//!   of the process loses nothing that was acknowledged, and cuts off at most the last record, which was not.
//! - With [`Durability::Group`] a put is acknowledged after `fdatasync`; puts that arrive during one share the next. With
//!   [`Durability::PageCache`] it is acknowledged once the kernel has it: a crash of the machine may lose the last seconds.
//!   What it leaves half-written fails its checksum and is a miss.
//! - Content comes before the name: it is in the same record or in an earlier one, a large file is renamed before.
//! - Space comes back by whole segments (`keeper`): an open reader keeps an unlinked segment alive.
//! - Locks, in the order in which they are taken: writer, then segments, large, scopes or a shard of an index.

use super::index::{MASK24, Slot, Table};
use super::record::{self, Head, LARGE, Record, SEGMENT_HEAD};
use super::{Clock, StoreError};
use crate::name::{NameHash, half};
use forgeyard_model::{Digest, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::watch;

/// When a put is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When the kernel has it.
    PageCache,
    /// When the disk has it.
    Group,
}

/// How the store works.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder.
    pub folder: PathBuf,
    /// Most bytes on disk.
    pub capacity: u64,
    /// Bytes of a segment; at least four of them fit into the capacity.
    pub segment: u64,
    /// When a put is acknowledged.
    pub durability: Durability,
}

impl Config {
    /// In this folder, with the usual sizes.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            capacity: 50 << 30,
            segment: 256 << 20,
            durability: Durability::PageCache,
        }
    }
}

/// One file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// Bytes written.
    pub(super) size: AtomicU64,
    /// Bytes of records that names stand for, once for each name.
    pub(super) live: AtomicI64,
    /// Minute of the last write.
    pub(super) written: AtomicU32,
}

/// What holds the end of the log.
pub(super) struct Writer {
    pub(super) active: Arc<Segment>,
    buffer: Vec<u8>,
    pub(super) sequence: u64,
}

/// Count of a scope.
#[derive(Debug)]
pub(super) struct ScopeCount {
    pub(super) path: Box<str>,
    pub(super) entries: AtomicI64,
    pub(super) bytes: AtomicI64,
    /// Over its quota, and leases keep what could go.
    pub(super) full: AtomicBool,
}

/// Scopes by name and by number.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    pub(super) numbers: HashMap<Box<str>, u32>,
    pub(super) counts: Vec<Arc<ScopeCount>>,
}

#[derive(Default)]
pub(super) struct Wanted {
    pub(super) ticket: u64,
    stop: bool,
}

pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) names: Table,
    pub(super) contents: Table,
    pub(super) segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    pub(super) writer: Mutex<Writer>,
    pub(super) scopes: RwLock<Scopes>,
    /// Large contents and how many names each has.
    pub(super) large: Mutex<HashMap<Digest, (u32, u64)>>,
    pub(super) large_bytes: AtomicI64,
    pub(super) damaged: AtomicU64,
    pub(super) keeping: Mutex<()>,
    pub(super) next_part: AtomicU64,
    pub(super) wanted: Mutex<Wanted>,
    pub(super) wake: Condvar,
    pub(super) synced: watch::Sender<u64>,
    pub(super) broken: AtomicBool,
    /// The disk is over its hard limit, and leases keep what could go.
    pub(super) promised_away: AtomicBool,
    pub(super) _lock: File,
}

/// The store. Clones are one store; the last one that goes stops its threads.
pub struct LogStore {
    pub(super) shared: Arc<Shared>,
    syncer: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStore").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Minutes since 1970, as slots keep them: wraps after 31 years, which only confuses what is older than that.
pub(super) fn minute_of(time: Timestamp) -> u32 {
    (time.as_micros() / 60_000_000) as u32 & MASK24
}

impl LogStore {
    /// Opens the folder and reads what is there.
    pub fn open(config: Config, clock: Clock) -> Result<Self, StoreError> {
        let shared = Arc::new(super::recovery::open(config, clock)?);
        let group = shared.config.durability == Durability::Group;
        let syncer = group.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.sync_loop())
        });
        Ok(Self { shared, syncer })
    }

    /// Writes the index to disk, so that the next start is quick.
    pub fn snapshot(&self) -> Result<(), StoreError> {
        let _keeping = locked(&self.shared.keeping);
        self.shared.snapshot()
    }

    /// Reads every record and large file again. Damaged ones lose their names. Answers with how many were read and how
    /// many were damaged.
    pub fn scrub(&self) -> Result<(u64, u64), StoreError> {
        self.shared.scrub()
    }

    /// When a put is acknowledged.
    pub fn durability(&self) -> Durability {
        self.shared.config.durability
    }

    /// Records that failed their checksum since the start.
    pub fn damaged(&self) -> u64 {
        self.shared.damaged.load(Relaxed)
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        locked(&self.shared.wanted).stop = true;
        self.shared.wake.notify_all();
        if let Some(syncer) = self.syncer.take() {
            let _ = syncer.join();
        }
    }
}

impl Shared {
    pub(super) fn new(
        config: Config,
        clock: Clock,
        segments: BTreeMap<u32, Arc<Segment>>,
        active: Arc<Segment>,
        lock: File,
    ) -> Self {
        Self {
            config,
            clock,
            names: Table::default(),
            contents: Table::default(),
            segments: RwLock::new(segments),
            writer: Mutex::new(Writer { active, buffer: Vec::new(), sequence: 0 }),
            scopes: RwLock::default(),
            large: Mutex::default(),
            large_bytes: AtomicI64::new(0),
            damaged: AtomicU64::new(0),
            keeping: Mutex::new(()),
            next_part: AtomicU64::new(0),
            wanted: Mutex::default(),
            wake: Condvar::new(),
            synced: watch::channel(0).0,
            broken: AtomicBool::new(false),
            promised_away: AtomicBool::new(false),
            _lock: lock,
        }
    }

    pub(super) fn minute(&self) -> u32 {
        minute_of((self.clock)())
    }

    pub(super) fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    pub(super) fn all_segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn large_path(&self, digest: Digest) -> PathBuf {
        let hex = digest.hex();
        self.config.folder.join("large").join(&hex[..2]).join(hex)
    }

    /// Number of a scope; makes one for a new scope.
    pub(super) fn scope(&self, path: &str) -> (u32, Arc<ScopeCount>) {
        let scopes = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = scopes.numbers.get(path) {
            return (*number, Arc::clone(&scopes.counts[*number as usize]));
        }
        drop(scopes);
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = scopes.numbers.get(path) {
            return (*number, Arc::clone(&scopes.counts[*number as usize]));
        }
        let number = scopes.counts.len() as u32;
        let (entries, bytes) = (AtomicI64::new(0), AtomicI64::new(0));
        let count = Arc::new(ScopeCount { path: path.into(), entries, bytes, full: AtomicBool::new(false) });
        scopes.numbers.insert(path.into(), number);
        scopes.counts.push(Arc::clone(&count));
        (number, count)
    }

    pub(super) fn count(&self, number: u32) -> Option<Arc<ScopeCount>> {
        self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.get(number as usize).cloned()
    }

    /// Reads the record of a slot into the buffer. Nothing when its segment is gone or the record is damaged.
    pub(super) fn read(
        &self,
        slot: Slot,
        buffer: &mut Vec<u8>,
        most: usize,
    ) -> Result<Option<()>, StoreError> {
        let Some(segment) = self.segment(slot.segment()) else { return Ok(None) };
        let length = (slot.len() as usize).min(most);
        // growing zeroes; a buffer that is reused does not grow
        buffer.resize(length, 0);
        match segment.file.read_exact_at(buffer, slot.at()) {
            Ok(()) => Ok(Some(())),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(StoreError::io("reading", &segment.path)(error)),
        }
    }

    /// Head of the record of a slot, if it holds.
    pub(super) fn head<T>(
        &self,
        slot: Slot,
        see: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let mut buffer = Vec::new();
        if self.read(slot, &mut buffer, 1024)?.is_none() {
            return Ok(None);
        }
        if let Ok(head) = Head::peek(&buffer)
            && head.texts_end() > buffer.len()
            && self.read(slot, &mut buffer, head.texts_end())?.is_none()
        {
            return Ok(None);
        }
        Ok(Record::read_head(&buffer).ok().map(|(record, _)| see(&record)))
    }

    /// Takes a damaged or dangling name out of the index.
    pub(super) fn forget(&self, hash: NameHash, slot: Slot) {
        let _writer = locked(&self.writer);
        if self.names.remove_at(hash.0, slot).is_some() {
            self.damaged.fetch_add(1, Relaxed);
            self.uncount(slot);
            tracing::warn!(
                segment = slot.segment(),
                at = slot.at(),
                "an entry is damaged or gone; it is a miss now"
            );
        }
    }

    /// Counts a name out: its scope, its segment, its large file. The writer is locked.
    pub(super) fn uncount(&self, slot: Slot) {
        if let Some(segment) = self.segment(slot.segment()) {
            segment.live.fetch_sub(i64::from(slot.len()), Relaxed);
        }
        let (size, large) =
            match self.head(slot, |record| (record.size, record.flags & LARGE != 0, record.digest)) {
                Ok(Some((size, large, digest))) => (size, large.then_some(digest)),
                // its size is not known any more: at least the record was there
                _ => (u64::from(slot.len()), None),
            };
        if let Some(count) = self.count(slot.scope()) {
            count.entries.fetch_sub(1, Relaxed);
            count.bytes.fetch_sub(size as i64, Relaxed);
        }
        if let Some(digest) = large {
            self.release_large(digest);
        }
    }

    pub(super) fn count_in(&self, slot: Slot, size: u64) {
        if let Some(segment) = self.segment(slot.segment()) {
            segment.live.fetch_add(i64::from(slot.len()), Relaxed);
        }
        if let Some(count) = self.count(slot.scope()) {
            count.entries.fetch_add(1, Relaxed);
            count.bytes.fetch_add(size as i64, Relaxed);
        }
    }

    fn release_large(&self, digest: Digest) {
        let mut large = locked(&self.large);
        let Some((names, size)) = large.get_mut(&digest) else { return };
        *names = names.saturating_sub(1);
        if *names == 0 {
            let size = *size;
            large.remove(&digest);
            self.contents.remove(half(digest.as_bytes()));
            self.large_bytes.fetch_sub(size as i64, Relaxed);
            let path = self.large_path(digest);
            if let Err(error) = fs_err::remove_file(&path) {
                tracing::warn!("removing a large content: {error}");
            }
        }
    }

    /// Writes a record at the end of the log. The place does not move when the write fails, so what a failed write left
    /// is written over.
    pub(super) fn append(&self, writer: &mut Writer, record: &Record<'_>) -> Result<(u32, u64), StoreError> {
        if self.broken.load(Relaxed) {
            return Err(StoreError::Broken);
        }
        let length = record.len();
        if writer.active.size.load(Relaxed) + length > self.config.segment.max(SEGMENT_HEAD + length) {
            self.roll(writer)?;
        }
        let mut buffer = std::mem::take(&mut writer.buffer);
        buffer.clear();
        record.write(&mut buffer);
        let segment = &writer.active;
        let at = segment.size.load(Relaxed);
        let written = segment.file.write_all_at(&buffer, at);
        writer.buffer = buffer;
        written.map_err(StoreError::io("writing to", &segment.path))?;
        segment.size.store(at + length, Relaxed);
        segment.written.store(self.minute(), Relaxed);
        writer.sequence += 1;
        Ok((segment.number, at))
    }

    /// Starts a new segment.
    fn roll(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let number = writer.active.number + 1;
        if number >= MASK24 {
            return Err(StoreError::Full("numbers of segments"));
        }
        if self.config.durability == Durability::Group {
            let sealed = &writer.active;
            sealed.file.sync_data().map_err(StoreError::io("syncing", &sealed.path))?;
        }
        let segment = Arc::new(Segment::create(&self.config.folder, number, self.minute())?);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.insert(number, Arc::clone(&segment));
        drop(segments);
        writer.active = segment;
        Ok(())
    }

    fn sync_loop(&self) {
        let mut done = 0;
        loop {
            let mut wanted = locked(&self.wanted);
            while wanted.ticket <= done && !wanted.stop {
                wanted = self.wake.wait(wanted).unwrap_or_else(PoisonError::into_inner);
            }
            if wanted.ticket <= done {
                return;
            }
            drop(wanted);
            let (sequence, segment) = {
                let writer = locked(&self.writer);
                (writer.sequence, Arc::clone(&writer.active))
            };
            // earlier segments were synced when they were sealed
            if let Err(error) = segment.file.sync_data() {
                tracing::error!(
                    "syncing {} failed: {error}; no put is acknowledged any more",
                    segment.path.display()
                );
                self.broken.store(true, Relaxed);
                self.synced.send_modify(|_| {});
                return;
            }
            done = sequence;
            self.synced.send_replace(done);
        }
    }
}

impl Segment {
    pub(super) fn create(folder: &std::path::Path, number: u32, minute: u32) -> Result<Self, StoreError> {
        let path = folder.join("seg").join(format!("{number:08}.fyl"));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(StoreError::io("making", &path))?;
        let head = record::segment_head(number);
        file.write_all_at(&head, 0).map_err(StoreError::io("writing to", &path))?;
        Ok(Self::over(number, path, file, SEGMENT_HEAD, minute))
    }

    pub(super) const fn over(number: u32, path: PathBuf, file: File, size: u64, minute: u32) -> Self {
        let (size, live, written) = (AtomicU64::new(size), AtomicI64::new(0), AtomicU32::new(minute));
        Self { number, path, file, size, live, written }
    }
}
