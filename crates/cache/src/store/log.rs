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

use super::index::{LAST_MINUTE, LAST_SCOPE, LAST_SEGMENT, Slot, Spot, Table};
use super::record::{self, LARGE, Record, SEGMENT_HEAD};
use super::scrub::Cursor;
use super::snapshot::Loading;
use super::{Clock, StoreError};
use forgeyard_model::{Digest, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::watch;

/// Payloads from this size on are written from where they lie.
const GATHERED: usize = 4 << 10;

/// Writes parts one behind the other.
fn write_gathered(file: &File, at: u64, parts: &[&[u8]]) -> std::io::Result<()> {
    let slices: Vec<std::io::IoSlice<'_>> = parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
    let mut done = loop {
        match nix::sys::uio::pwritev(file, &slices, at as i64) {
            Err(nix::errno::Errno::EINTR) => {}
            written => break written?,
        }
    };
    // what a short write left, one part after the other
    let mut at = at;
    for part in parts {
        let here = done.min(part.len());
        file.write_all_at(&part[here..], at + here as u64)?;
        at += part.len() as u64;
        done -= here;
    }
    Ok(())
}

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
    /// Bytes of large contents that its records name.
    pub(super) large: AtomicU64,
    /// Minute of the last write.
    pub(super) written: AtomicU32,
}

/// What holds the end of the log.
pub(super) struct Writer {
    pub(super) active: Arc<Segment>,
    buffer: Vec<u8>,
    pub(super) sequence: u64,
    /// Segments that were sealed since the last snapshot.
    pub(super) unsynced: Vec<Arc<Segment>>,
    /// Records since the last snapshot: what a start has to read.
    pub(super) behind: u64,
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
    pub(super) names: Table<Slot>,
    pub(super) contents: Table<Spot>,
    /// Some shards may still be in the snapshot.
    pub(super) loading: AtomicBool,
    pub(super) load_state: Mutex<Loading>,
    /// The log is being read: what it drops it may name again further on.
    pub(super) recovering: AtomicBool,
    pub(super) closing: AtomicBool,
    pub(super) segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    pub(super) writer: Mutex<Writer>,
    pub(super) scopes: RwLock<Scopes>,
    /// Large contents and how many names each has.
    pub(super) large: Mutex<HashMap<Digest, (u32, u64)>>,
    pub(super) large_bytes: AtomicI64,
    /// Bytes of segments.
    pub(super) log_bytes: AtomicU64,
    /// Files that are to be removed when nobody waits.
    pub(super) trash: Mutex<Vec<PathBuf>>,
    pub(super) scrubbing: Mutex<Option<Cursor>>,
    pub(super) scrubbed: AtomicU64,
    pub(super) aged: AtomicU32,
    pub(super) damaged: AtomicU64,
    pub(super) keeping: Mutex<()>,
    pub(super) next_part: AtomicU64,
    pub(super) wanted: Mutex<Wanted>,
    pub(super) wake: Condvar,
    pub(super) synced: watch::Sender<u64>,
    pub(super) broken: AtomicBool,
    pub(super) _lock: File,
}

/// The store. Clones are one store; the last one that goes stops its threads.
pub struct LogStore {
    pub(super) shared: Arc<Shared>,
    syncer: Option<std::thread::JoinHandle<()>>,
    loader: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for LogStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStore").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Minutes since 1970, as slots keep them: they wrap after two years.
pub(super) fn minute_of(time: Timestamp) -> u32 {
    (time.as_micros() / 60_000_000) as u32 & LAST_MINUTE
}

impl LogStore {
    /// Opens the folder. What is there can be read at once; most of the index is brought in behind it.
    pub fn open(config: Config, clock: Clock) -> Result<Self, StoreError> {
        let shared = Arc::new(super::recovery::open(config, clock)?);
        let group = shared.config.durability == Durability::Group;
        let syncer = group.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.sync_loop())
        });
        let loader = shared.loading.load(Relaxed).then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.load_in_background())
        });
        Ok(Self { shared, syncer, loader })
    }

    /// Waits until the whole index is in memory. Nobody needs to, but for measuring.
    pub fn loaded(&mut self) {
        if let Some(loader) = self.loader.take() {
            let _ = loader.join();
        }
    }

    /// Writes the index to disk, so that the next start is quick.
    pub fn snapshot(&self) -> Result<(), StoreError> {
        let _keeping = locked(&self.shared.keeping);
        self.shared.snapshot()
    }

    /// Whether so much was written since the last snapshot that a start would take long to read it.
    pub fn wants_snapshot(&self) -> bool {
        let behind = locked(&self.shared.writer).behind;
        behind > (self.shared.names.len() as u64 / 100).max(50_000)
    }

    /// Whether there is more on disk than there may be.
    pub fn over(&self) -> bool {
        self.shared.disk_bytes() > self.shared.config.capacity
    }

    /// Reads every record and large file again. Damaged ones lose their names. Answers with how many were read and how
    /// many were damaged.
    pub fn scrub(&self) -> Result<(u64, u64), StoreError> {
        self.shared.scrub_all()
    }

    /// Reads about so many bytes, from where the last call or the last process stopped.
    pub fn scrub_some(&self, bytes: u64) -> Result<(), StoreError> {
        self.shared.scrub_some(bytes)
    }

    /// Bytes that were read again since the start.
    pub fn scrubbed(&self) -> u64 {
        self.shared.scrubbed.load(Relaxed)
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
        self.shared.closing.store(true, Relaxed);
        locked(&self.shared.wanted).stop = true;
        self.shared.wake.notify_all();
        self.loaded();
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
        let log_bytes = segments.values().map(|segment| segment.size.load(Relaxed)).sum();
        Self {
            config,
            clock,
            names: Table::default(),
            contents: Table::default(),
            segments: RwLock::new(segments),
            loading: AtomicBool::new(false),
            load_state: Mutex::default(),
            recovering: AtomicBool::new(true),
            closing: AtomicBool::new(false),
            writer: Mutex::new(Writer {
                active,
                buffer: Vec::new(),
                sequence: 0,
                unsynced: Vec::new(),
                behind: 0,
            }),
            scopes: RwLock::default(),
            large: Mutex::default(),
            large_bytes: AtomicI64::new(0),
            log_bytes: AtomicU64::new(log_bytes),
            trash: Mutex::default(),
            scrubbing: Mutex::default(),
            scrubbed: AtomicU64::new(0),
            aged: AtomicU32::new(u32::MAX),
            damaged: AtomicU64::new(0),
            keeping: Mutex::new(()),
            next_part: AtomicU64::new(0),
            wanted: Mutex::default(),
            wake: Condvar::new(),
            synced: watch::channel(0).0,
            broken: AtomicBool::new(false),
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

    /// Number of a scope; makes one for a new scope, that of an empty one when there are too many.
    pub(super) fn scope(&self, path: &str) -> Result<(u32, Arc<ScopeCount>), StoreError> {
        let scopes = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = scopes.numbers.get(path) {
            return Ok((*number, Arc::clone(&scopes.counts[*number as usize])));
        }
        drop(scopes);
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = scopes.numbers.get(path) {
            return Ok((*number, Arc::clone(&scopes.counts[*number as usize])));
        }
        let (entries, bytes) = (AtomicI64::new(0), AtomicI64::new(0));
        let count = Arc::new(ScopeCount { path: path.into(), entries, bytes, full: AtomicBool::new(false) });
        let number = if scopes.counts.len() as u32 <= LAST_SCOPE {
            scopes.counts.push(Arc::clone(&count));
            scopes.counts.len() as u32 - 1
        } else {
            let empty = scopes.counts.iter().position(|count| count.entries.load(Relaxed) <= 0);
            let number = empty.ok_or(StoreError::Full("numbers of scopes"))?;
            let before = std::mem::replace(&mut scopes.counts[number], Arc::clone(&count));
            scopes.numbers.remove(&before.path);
            number as u32
        };
        scopes.numbers.insert(path.into(), number);
        Ok((number, count))
    }

    pub(super) fn count(&self, number: u32) -> Option<Arc<ScopeCount>> {
        self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.get(number as usize).cloned()
    }

    /// Counts a name out: its scope, its segment, its large file. The writer is locked.
    pub(super) fn uncount(&self, slot: Slot) {
        if let Some(segment) = self.segment(slot.segment()) {
            segment.live.fetch_sub(slot.len() as i64, Relaxed);
        }
        let seen = self.head(slot.segment(), slot.at(), |record| {
            (record.size, record.flags & LARGE != 0, record.digest)
        });
        let (size, large) = match seen {
            Ok(Some((size, large, digest))) => (size, large.then_some(digest)),
            // its size is not known any more: at least the record was there
            _ => (slot.len(), None),
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
            segment.live.fetch_add(slot.len() as i64, Relaxed);
        }
        if let Some(count) = self.count(slot.scope()) {
            count.entries.fetch_add(1, Relaxed);
            count.bytes.fetch_add(size as i64, Relaxed);
        }
    }

    /// One more name for a large content.
    pub(super) fn name_large(&self, digest: Digest, size: u64) {
        let mut large = locked(&self.large);
        let entry = large.entry(digest).or_insert_with(|| {
            self.large_bytes.fetch_add(size as i64, Relaxed);
            (0, size)
        });
        entry.0 += 1;
    }

    /// One name less for a large content. The last one takes the file with it, but not while the log is being read: it may
    /// give the content a name again further on.
    pub(super) fn release_large(&self, digest: Digest) {
        let mut large = locked(&self.large);
        let Some((names, size)) = large.get_mut(&digest) else { return };
        *names = names.saturating_sub(1);
        if *names == 0 && !self.recovering.load(Acquire) {
            let size = *size;
            large.remove(&digest);
            self.large_bytes.fetch_sub(size as i64, Relaxed);
            self.discard(digest);
        }
    }

    /// Takes the file of a large content away. It gets a name of its own first: the same content may be written again
    /// before the file is removed, and must not be removed with it (nativelink#2715). Removing may take long, so it is left
    /// to whoever keeps the limits (bazel-remote#838).
    pub(super) fn discard(&self, digest: Digest) {
        let number = self.next_part.fetch_add(1, Relaxed);
        let gone = self.config.folder.join("incoming").join(format!("{number}.gone"));
        match fs_err::rename(self.large_path(digest), &gone) {
            Ok(()) => locked(&self.trash).push(gone),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("removing a large content: {error}"),
        }
    }

    /// Removes what was taken away.
    pub(super) fn empty_trash(&self) {
        for path in std::mem::take(&mut *locked(&self.trash)) {
            if let Err(error) = fs_err::remove_file(&path) {
                tracing::warn!("removing a large content: {error}");
            }
        }
    }

    /// Most bytes on disk: beyond the capacity eviction runs, beyond this nothing is stored until it has caught up.
    pub(super) fn hard_limit(&self) -> u64 {
        self.config.capacity + (self.config.capacity / 10).max(2 * self.config.segment)
    }

    /// Writes a record at the end of the log. The place does not move when the write fails, so what a failed write left
    /// is written over.
    pub(super) fn append(&self, writer: &mut Writer, record: &Record<'_>) -> Result<(u32, u64), StoreError> {
        if self.broken.load(Relaxed) {
            return Err(StoreError::Broken);
        }
        let length = record.len();
        // large contents go with the segment that names them, so it must not name too many
        let names_much = writer.active.large.load(Relaxed) > self.config.capacity / 8;
        let size = writer.active.size.load(Relaxed);
        if names_much || size + length > self.config.segment.max(SEGMENT_HEAD + length) {
            self.roll(writer)?;
        }
        let mut buffer = std::mem::take(&mut writer.buffer);
        buffer.clear();
        record.write_head(&mut buffer);
        let padding = length as usize - buffer.len() - record.payload.len();
        let segment = &writer.active;
        let at = segment.size.load(Relaxed);
        // small ones are cheaper to copy than to gather
        let written = if record.payload.len() < GATHERED {
            buffer.extend_from_slice(record.payload);
            buffer.resize(length as usize, 0);
            segment.file.write_all_at(&buffer, at)
        } else {
            write_gathered(&segment.file, at, &[&buffer, record.payload, &[0; 64][..padding]])
        };
        writer.buffer = buffer;
        written.map_err(StoreError::io("writing to", &segment.path))?;
        segment.size.store(at + length, Release);
        segment.written.store(self.minute(), Relaxed);
        self.log_bytes.fetch_add(length, Relaxed);
        writer.sequence += 1;
        writer.behind += 1;
        Ok((segment.number, at))
    }

    /// Starts a new segment.
    fn roll(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let number = writer.active.number + 1;
        if number >= LAST_SEGMENT {
            return Err(StoreError::Full("numbers of segments"));
        }
        if self.config.durability == Durability::Group {
            let sealed = &writer.active;
            sealed.file.sync_data().map_err(StoreError::io("syncing", &sealed.path))?;
        }
        let segment = Arc::new(Segment::create(&self.config.folder, number, self.minute())?);
        self.log_bytes.fetch_add(SEGMENT_HEAD, Relaxed);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.insert(number, Arc::clone(&segment));
        drop(segments);
        let sealed = std::mem::replace(&mut writer.active, segment);
        writer.unsynced.push(sealed);
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
        Self { number, path, file, size, live, large: AtomicU64::new(0), written }
    }
}

#[cfg(any(test, feature = "twin"))]
impl LogStore {
    /// Fills the index with so many made-up entries, whose records are not there: for measuring a start.
    pub fn pretend(&self, count: u64) {
        let mut writer = locked(&self.shared.writer);
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (u128::from(state ^ state >> 29) << 64)
                | u128::from((state >> 20).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        };
        let segment = writer.active.number;
        for number in 0..count {
            let at = 64 + number % 4_000_000 * 64;
            self.shared.names.add(random(), Slot::new(segment, at, 1024, 1, 0));
            self.shared.contents.add(random(), Spot::new(segment, at));
        }
        writer.behind = 0;
    }
}
