//! Storage of entries: names for each scope, bytes once for all scopes.
//!
//! [`Store`] is the port; [`LogStore`](log::LogStore) keeps a log of segments on disk, [`MemoryStore`](twin::MemoryStore) is
//! its twin. Both pass `tests/store.rs`.
//!
//! Why a store of our own: a build cache is millions of small values that are written once, read whole and dropped in
//! bulk. Measured once on the two cores where this was written, CPU time for a put and a get of 1 KiB: this layout
//! 1.3 and 1.3 µs, fjall 2 6.0 and 6.4 µs, redb 2 (64 puts in a transaction, no sync) 30 and 2.1 µs; a get of 16 KiB:
//! 3.4, 14.8 and 32 µs. Neither can drop old values without rewriting the others, which is what eviction is. foyer keeps 64
//! bits of a key, may lose any entry and knows no quota of a scope.

mod append;
pub mod beyond;
pub(crate) mod cold;
mod counts;
mod find;
pub mod frames;
pub(crate) mod handle;
pub mod index;
mod keeper;
mod kept;
pub mod large;
pub mod log;
mod plain_reads;
pub mod port;
pub mod record;
mod recovery;
mod removal;
mod scrub;
pub mod shrink;
mod shrink_large;
mod shrink_segment;
mod shrunk;
mod snapshot;
pub mod sum;
pub mod tail;
#[cfg(any(test, feature = "twin"))]
pub mod twin;
mod walk;
mod words;
mod write_back;

use crate::name::{Kind, Name, NameHash};
use forgeyard_model::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// Up to this size an entry lies in a segment; larger ones are files of their own.
pub const INLINE: u64 = 1 << 20;

/// How long an action hit, or the answer that a content is here, keeps what it promised: two hours, in minutes.
pub const LEASE_MINUTES: u32 = 120;

/// How long the file of a `narinfo` stays after the last time that it was handed out: so long a client of Nix believes it.
pub const NAR_MINUTES: u32 = 30 * 24 * 60;

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The disk, or the space that the cache may use, is full.
    #[error("no space is left for {0}")]
    Full(&'static str),
    /// Another process has the folder.
    #[error("the folder {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// A sync failed earlier: what the disk holds is not known any more.
    #[error("an earlier sync of the log failed; restart the cache after looking at the disk")]
    Broken,
    /// A name or provenance that is too long to store.
    #[error("the {0} of the entry is too long")]
    TooLong(&'static str),
    /// What comes from beyond this disk was written anew, removed or purged while it was on its way.
    #[error("the entry was written anew or removed meanwhile")]
    Superseded,
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::Full(action),
            _ => Self::Io { action, path, source },
        }
    }
}

/// Who wrote an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Provenance {
    /// Principal of the token.
    pub principal: String,
    /// Run of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The program, as it calls itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// Address that it came from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
}

impl Provenance {
    /// Whether this is the writer: by principal or by run.
    pub fn by(&self, writer: &str) -> bool {
        self.principal == writer || self.run.as_deref() == Some(writer)
    }
}

/// What happens when the name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The first content stays.
    Keep,
    /// The last content counts.
    Replace,
}

/// What a put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A new name.
    New,
    /// The name had this content already.
    Same,
    /// The name had another content, which is gone.
    Replaced,
    /// The name has another content, which stays.
    Kept,
}

/// Answer to a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// What it did.
    pub outcome: Outcome,
    /// What to wait for before the put is acknowledged.
    pub ticket: u64,
}

/// Bytes to store.
#[derive(Debug)]
pub enum Body<'a> {
    /// In memory, at most [`INLINE`] bytes.
    Inline(&'a [u8]),
    /// The same, with the SHA-256 that was just found to be theirs.
    Checked(&'a [u8], Digest),
    /// In a file.
    Large(large::Finished),
}

/// Facts of an entry that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Digest of the content; which one says [`sum`].
    pub digest: Digest,
    /// Its size.
    pub size: u64,
    /// When it was stored.
    pub stored_at: Timestamp,
}

/// Where the bytes of a found entry are.
#[derive(Debug)]
pub enum Place {
    /// In this range of the caller's buffer, checked.
    Buffer(Range<usize>),
    /// In a file, to be read in checked pieces.
    Large(large::Large),
}

/// An entry that was found.
#[derive(Debug)]
pub struct Found {
    /// Its facts.
    pub facts: Facts,
    /// Its bytes.
    pub place: Place,
}

/// An entry as listings show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Listed {
    /// Scope.
    pub scope: String,
    /// Kind.
    pub kind: Kind,
    /// Key.
    pub key: String,
    /// Digest of the content.
    pub digest: Digest,
    /// Size of the content.
    pub size: u64,
    /// When it was stored.
    pub stored_at: Timestamp,
    /// Minutes since it was last used.
    pub idle_minutes: u32,
    /// Who wrote it.
    pub by: Provenance,
}

/// How much a scope holds. A content that several scopes name is counted in each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ScopeUse {
    /// The scope.
    pub scope: String,
    /// Names.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Limits of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Most bytes.
    pub bytes: Option<u64>,
    /// Longest time without use, in minutes.
    pub idle_minutes: Option<u32>,
}

/// Which entries to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// All of a scope, or those whose key begins so.
    Scope {
        /// The scope.
        scope: String,
        /// Beginning of the key; empty for all.
        prefix: String,
    },
    /// All that a principal or run wrote, in every scope.
    Writer(String),
}

impl Which {
    /// Whether an entry is meant.
    pub fn means(&self, scope: &str, key: &str, by: &Provenance) -> bool {
        match self {
            Which::Scope { scope: wanted, prefix } => scope == wanted && key.starts_with(prefix.as_str()),
            Which::Writer(writer) => by.by(writer),
        }
    }
}

/// A future that a caller waits for before it acknowledges.
pub type Settled = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>>;

/// Where entries are kept.
pub trait Store: Send + Sync {
    /// Finds an entry, marks it as used, and puts its bytes into the buffer unless it is large. An entry whose bytes are
    /// damaged is no entry.
    fn get(&self, name: NameHash, buffer: &mut Vec<u8>) -> Result<Option<Found>, StoreError>;
    /// Finds an entry without its bytes, marks it as used.
    fn facts(&self, name: NameHash) -> Result<Option<Facts>, StoreError>;
    /// Whether an entry is there, by the index alone; if so, neither quota nor age nor a full disk takes it away for so many
    /// minutes from now. People can still remove it, and damage still makes it a miss. After a crash it is known as of the
    /// last snapshot.
    fn lease(&self, name: NameHash, minutes: u32) -> Result<bool, StoreError>;
    /// Stores an entry. It can be read at once; it is safe once [`Store::settled`] has answered for the ticket.
    fn put(&self, name: &Name, body: Body<'_>, policy: Policy, by: &Provenance) -> Result<Put, StoreError>;
    /// Waits until everything up to the ticket is as safe as this store promises.
    fn settled(&self, ticket: u64) -> Settled;
    /// A file for bytes that come in pieces.
    fn spool(&self) -> Result<large::Spool, StoreError>;
    /// Takes a name away.
    fn remove(&self, name: &Name) -> Result<bool, StoreError>;
    /// Takes many names away; answers with how many.
    fn remove_all(&self, which: &Which) -> Result<u64, StoreError>;
    /// Lists the entries of a scope, or of all. Reads the whole log: for people, not for builds.
    fn list(&self, scope: Option<&str>) -> Result<Vec<Listed>, StoreError>;
    /// How much each scope holds.
    fn uses(&self) -> Vec<ScopeUse>;
    /// Bytes on disk, names, contents, bytes of memory of the index.
    fn totals(&self) -> Totals;
    /// Keeps to the limits: drops what is over quota, too old, or does not fit.
    fn maintain(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError>;
}

/// Figures of the whole store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Totals {
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Names.
    pub names: u64,
    /// Contents that names can share.
    pub contents: u64,
    /// Bytes of memory of the index.
    pub index_bytes: u64,
    /// Minutes since the last use of the entry that would go next, when that is known.
    pub tail_idle_minutes: Option<u32>,
    /// Bytes more that would be on disk if nothing were compressed there.
    #[serde(default)]
    pub saved_bytes: u64,
}
