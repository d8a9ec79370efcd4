//! The build cache as people see it.

use forgeyard_model::Timestamp;
use forgeyard_model::rules::Money;
use serde::{Deserialize, Serialize};

/// Everything of the cache at a glance. Counters count since the cache was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheView {
    /// Where jobs find it.
    pub address: String,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes that it may use.
    pub capacity_bytes: u64,
    /// Names of all scopes.
    pub entries: u64,
    /// Minutes since the last use of the entry that would go next, when that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_idle_minutes: Option<u32>,
    /// Scopes that hold something, were asked, or have a budget; by name.
    pub scopes: Vec<CacheScope>,
    /// The last day in quarters of an hour, oldest first; quarters in which nothing was asked are left out.
    #[serde(default)]
    pub day: Vec<CacheMoment>,
    /// What a CPU costs for an hour, where that is known: times what was saved, that is the money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_cpu_hour: Option<Money>,
    /// What is fetched before jobs come: mirrors of repositories, containers, inputs.
    #[serde(default)]
    pub warm: Vec<CacheWarm>,
}

/// A thing that is fetched before jobs come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheWarm {
    /// The list that names it.
    pub list: String,
    /// `git`, `container` or `input`.
    pub kind: String,
    /// Its path on the cache.
    pub path: String,
    /// Where it comes from.
    pub source: String,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Bytes so far, while it is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetching: Option<u64>,
    /// When it was last found to be as its source has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good: Option<Timestamp>,
    /// Why its source fails: what, where, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When a source that fails is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
}

/// One scope.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheScope {
    /// Its path.
    pub scope: String,
    /// Names that it holds.
    pub entries: u64,
    /// Bytes that it holds, shared ones in full.
    pub bytes: u64,
    /// What was asked of it, by client.
    pub traffic: Vec<CacheTraffic>,
    /// What its budget says, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<CacheBudget>,
}

/// What was asked of a scope by one kind of client.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheTraffic {
    /// The surface: `dav`, `s3`, `ccache`, `bazel`, `nix`, `kv`, `github`.
    pub client: String,
    /// Reads that found something in the own scope.
    pub hits: u64,
    /// Reads that found something in a parent.
    pub parent_hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Entries stored.
    pub writes: u64,
    /// Writes by callers who may not.
    pub denied: u64,
    /// Other contents for keys of a trusted scope, refused.
    pub mismatches: u64,
    /// Writes whose bytes were not what their protocol says.
    pub malformed: u64,
    /// Requests that the store failed.
    pub failures: u64,
    /// Hits of what the client would have made otherwise: compilations, actions.
    #[serde(default)]
    pub spared: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes stored.
    pub bytes_in: u64,
    /// Misses that were followed by a write of the same key within an hour.
    #[serde(default)]
    pub made: u64,
    /// Milliseconds between those misses and their writes, together: how long it took to make what was missing.
    #[serde(default)]
    pub made_millis: u64,
    /// Milliseconds of work that hits saved, when that can be told: what was spared, times the mean of `made_millis`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_millis: Option<u64>,
}

impl CacheTraffic {
    /// Reads of all kinds.
    pub const fn reads(&self) -> u64 {
        self.hits.saturating_add(self.parent_hits).saturating_add(self.misses)
    }
}

/// What a budget says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheBudget {
    /// How it stands.
    pub state: CacheBudgetState,
    /// The cause in one word when it is missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The figures, and what to do.
    pub text: String,
}

/// How a budget stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CacheBudgetState {
    /// Met.
    Met,
    /// Missed.
    Missed,
    /// Too little was seen to say.
    Undecided,
}

/// A quarter of an hour of the whole cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheMoment {
    /// When it began.
    pub at: Timestamp,
    /// Reads that found something.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Entries stored.
    pub writes: u64,
}

/// Entries of a scope, by key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheEntries {
    /// The scope.
    pub scope: String,
    /// The first ones whose key begins as asked.
    pub entries: Vec<CacheEntry>,
    /// How many there are with that beginning.
    pub of: u64,
}

/// One entry, with who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheEntry {
    /// What kind of name: `kv`, `content`, `action`, `nix`…
    pub kind: String,
    /// The key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// When it was stored.
    pub stored_at: Timestamp,
    /// Whose token.
    pub principal: String,
    /// The run that the token was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// What the client called itself.
    pub client: String,
}

/// Which entries are to be removed: those of a scope, or those of a writer in every scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CacheRemoval {
    /// Entries of this scope whose key begins so; all of them for nothing.
    Scope {
        /// The scope.
        scope: String,
        /// The beginning.
        #[serde(default)]
        prefix: String,
    },
    /// What a principal or a run wrote, in every scope.
    Writer {
        /// The principal or the run.
        writer: String,
    },
}

/// How many entries were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheRemoved {
    /// So many.
    pub removed: u64,
}
