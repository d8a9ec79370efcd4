//! The store on disk: a log of segments, an index in memory, large contents as files.
//!
//! ```text
//! lock                  held (flock) by the one process that has the folder open
//! seg/00000001.fyl      segments, see `record`; only the one with the highest number grows, none is ever rewritten
//! large/, incoming/     see `large`
//! shrunk, large.plain   what was compressed and what does not shrink, see `shrink`
//! plain.reads           what is read as it is, and stays so
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

use super::append::{Segment, Writer};
use super::beyond::Beyond;
use super::cold::Recent;
use super::counts::Scopes;
use super::index::{LAST_MINUTE, Slot, Spot, Table};
use super::kept::Kept;
use super::plain_reads::PlainReads;
use super::scrub::Cursor;
use super::shrink::{Compression, Shrinking};
use super::snapshot::Loading;
use super::{Clock, StoreError};
use crate::name::NameHash;
use forgeyard_model::{Digest, Timestamp};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
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
    /// S3-compatible storage behind the disk.
    pub tier: Option<crate::tier::Config>,
    /// What becomes of bodies that shrink.
    pub compression: Compression,
}

impl Config {
    /// In this folder, with the usual sizes.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            capacity: 50 << 30,
            segment: 256 << 20,
            durability: Durability::PageCache,
            tier: None,
            compression: Compression::default(),
        }
    }
}

#[derive(Default)]
pub(super) struct Wanted {
    pub(super) ticket: u64,
    pub(super) stop: bool,
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
    pub(super) kept: Mutex<Kept>,
    /// Longest lease that keeps an entry when there is too little room, in minutes.
    pub(super) holding: AtomicU32,
    pub(super) recent: Recent,
    /// Large contents that names stood for at the start, and whose file was not there.
    pub(super) missing: Mutex<HashSet<Digest>>,
    /// What was dropped here and lies in the tier.
    pub(super) beyond: Option<Arc<Beyond>>,
    pub(super) scrubbing: Mutex<Option<Cursor>>,
    pub(super) scrubbed: AtomicU64,
    pub(super) aged: AtomicU32,
    pub(super) damaged: AtomicU64,
    pub(super) keeping: Mutex<()>,
    pub(super) shrinking: Shrinking,
    pub(super) plain_reads: PlainReads,
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
        self.shared.snapshot()?;
        self.shared.note_reads()?;
        self.shared.note_shrunk()
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

    /// Keeps an entry for so many minutes from now, whatever quota, age or room say, and over a crash too. Whether it is
    /// there. Nobody but a person takes it away.
    pub fn keep(&self, name: NameHash, minutes: u32) -> Result<bool, StoreError> {
        self.shared.keep(name, minutes)
    }

    /// Notes that a large content is read; whether it is one that is read only now and then, and should be dropped from the
    /// page cache behind the read.
    pub(crate) fn cold(&self, large: &super::large::Large) -> bool {
        large.size >= super::cold::LEAST && !self.shared.recent.again(large.digest, self.shared.minute())
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
        kept: Kept,
        beyond: Option<Arc<Beyond>>,
    ) -> Self {
        let compression = config.compression;
        let wait = if compression.on { compression.after_minutes } else { 0 };
        let plain_reads = PlainReads::new(wait, minute_of(clock()));
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
            kept: Mutex::new(kept),
            holding: AtomicU32::new(u32::MAX),
            recent: Recent::default(),
            missing: Mutex::default(),
            beyond,
            scrubbing: Mutex::default(),
            scrubbed: AtomicU64::new(0),
            aged: AtomicU32::new(u32::MAX),
            damaged: AtomicU64::new(0),
            keeping: Mutex::new(()),
            shrinking: Shrinking::default(),
            plain_reads,
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

    /// Most bytes on disk: beyond the capacity eviction runs, beyond this nothing is stored until it has caught up.
    pub(super) fn hard_limit(&self) -> u64 {
        self.config.capacity + (self.config.capacity / 10).max(2 * self.config.segment)
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
