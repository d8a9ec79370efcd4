//! The port: what the core, the web handlers and the log service ask of a database.

use crate::Error;
use async_trait::async_trait;
use bytes::Bytes;
use forgeyard_model::commit::{Commit, EventRecord, Row, UsageFact};
use forgeyard_model::input::JournalEntry;
use forgeyard_model::{AttemptId, DemandId, Digest, EventId, ForgeName, Timestamp};
use std::time::Duration;

/// What of the past is loaded after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// What ended then or later, demands apart.
    pub since: Timestamp,
    /// Demands that came to rest then or later. Of those that did so before, and not before `since`, only the numbers of their
    /// jobs are loaded.
    pub demands_since: Timestamp,
    /// So many of these numbers at most, the newest.
    pub numbers: u32,
}

impl Keep {
    /// Everything since one moment.
    pub const fn since(at: Timestamp) -> Self {
        Self { since: at, demands_since: at, numbers: 0 }
    }
}

/// What the core needs after a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Rows, tables in a fixed order, keys ascending within a table.
    pub rows: Vec<Row>,
    /// Jobs of forges whose demands came to rest too long ago to be loaded: those that did so last come last.
    pub numbers: Vec<(ForgeName, u64)>,
    /// Position of the last journal entry; 0 = there is none.
    pub last_seq: u64,
    /// Time of the last journal entry. The clock never runs behind it.
    pub last_at: Timestamp,
    /// Current epoch; 0 = no core ever ran.
    pub epoch: u64,
}

/// Decisions that become durable together, in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Epoch of the core that decided.
    pub epoch: u64,
    /// The decisions, in journal order.
    pub commits: Vec<Commit>,
    /// Raw webhook bodies by GUID of their delivery. The first body of a GUID stays.
    pub bodies: Vec<(String, Bytes)>,
}

/// Which events to read: newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Only of this thing (`job_…`); absent = all.
    pub subject: Option<String>,
    /// Only older than this event; an unknown event gives nothing.
    pub before: Option<EventId>,
    /// How many at most.
    pub limit: u32,
}

/// A piece of a log; its bytes are in the blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogChunk {
    /// Position of its first byte in the log.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Digest of the bytes.
    pub digest: Digest,
}

/// Answer to [`Store::log_append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogAppend {
    /// The chunk is durable.
    Appended,
    /// All bytes of the chunk were durable before; nothing was changed.
    AlreadyThere,
    /// The chunk does not begin where the log ends; nothing was changed.
    Gap {
        /// Number of durable bytes: where the next chunk must begin.
        durable: u64,
    },
    /// The log was declared complete; nothing was changed.
    Closed {
        /// Number of durable bytes.
        durable: u64,
    },
}

/// How far a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogState {
    /// Number of durable bytes.
    pub durable: u64,
    /// Nothing will follow.
    pub complete: bool,
}

/// The farm's memory that survives. Every method is one transaction.
///
/// All answers are of durable data: what a method returns has survived a crash of process and machine.
#[async_trait]
pub trait Store: Send + Sync {
    /// Everything the core needs after a restart, from one consistent view.
    ///
    /// That is: standing things (sites, devices, channels, tokens, the newest environment of each name); everything
    /// that has not ended, or ended lately enough to be kept; and all that belongs to a pipeline or a demand which is
    /// loaded, however long ago it ended. What belongs to one is loaded with it, or not at all.
    async fn load(&self, keep: Keep) -> Result<Snapshot, Error>;

    /// Makes the batch durable, all of it or nothing.
    ///
    /// A row of generation 1 is inserted, any other replaces the row whose generation is one less. A row may be
    /// written several times in a batch; only its last version is stored, all journal entries, events and usage facts
    /// are. After [`Error::Unavailable`] the outcome is unknown; offering the same batch again is safe, and is refused
    /// by the constraint `journal_seq_unique` when it was stored the first time.
    async fn commit(&self, batch: &Batch) -> Result<(), Error>;

    /// Raw body of a delivery.
    async fn delivery_body(&self, guid: &str) -> Result<Option<Bytes>, Error>;

    /// Events, newest first: by journal order, not by their time.
    async fn events(&self, query: EventQuery) -> Result<Vec<EventRecord>, Error>;

    /// Journal entries from this position on, in order.
    async fn journal(&self, from_seq: u64, limit: u32) -> Result<Vec<JournalEntry>, Error>;

    /// Usage facts known in `since <= at < until`, in journal order.
    async fn usage(&self, since: Timestamp, until: Timestamp) -> Result<Vec<UsageFact>, Error>;

    /// One row, for things older than memory.
    async fn row(&self, kind: &str, key: &str) -> Result<Option<Row>, Error>;

    /// Rows of one kind with a key below `before_key`, keys descending; ids sort by time, so that is newest first.
    async fn list(&self, kind: &str, before_key: Option<&str>, limit: u32) -> Result<Vec<Row>, Error>;

    /// The demand of a job of a forge, however long ago it ended.
    async fn demand_of(&self, forge: &ForgeName, job: u64) -> Result<Option<Row>, Error>;

    /// A demand with its jobs, their attempts, runners and leases, and its effects, for demands older than memory; nothing when
    /// there is no such demand.
    async fn of_demand(&self, demand: DemandId) -> Result<Vec<Row>, Error>;

    /// Records a chunk whose bytes are already stored.
    async fn log_append(&self, attempt: AttemptId, chunk: LogChunk) -> Result<LogAppend, Error>;

    /// The chunks of a log, in order, without gaps.
    async fn log_chunks(&self, attempt: AttemptId) -> Result<Vec<LogChunk>, Error>;

    /// Declares that nothing will follow. Idempotent.
    async fn log_complete(&self, attempt: AttemptId) -> Result<(), Error>;

    /// How far a log is; an unknown log is empty.
    async fn log_state(&self, attempt: AttemptId) -> Result<LogState, Error>;

    /// A setting.
    async fn setting(&self, key: &str) -> Result<Option<String>, Error>;

    /// Writes a setting.
    async fn set_setting(&self, key: &str, value: &str) -> Result<(), Error>;

    /// Elects the one core, by database time: begins a new epoch, after which no older one can commit. Refused with
    /// [`Error::Held`] while another holder's lease lasts; the same holder may take over from itself.
    async fn take_epoch(&self, holder: &str, ttl: Duration) -> Result<u64, Error>;

    /// Prolongs the lease of this epoch, counted from now.
    async fn renew_epoch(&self, epoch: u64, ttl: Duration) -> Result<(), Error>;

    /// Ends the lease of this epoch, so that another core need not wait for it. The epoch itself stays until another
    /// is taken.
    async fn release_epoch(&self, epoch: u64) -> Result<(), Error>;

    /// Whether the database answers.
    async fn ping(&self) -> Result<(), Error>;

    /// Ends all connections in order. Every later call gives [`Error::Unavailable`].
    async fn close(&self);
}
