//! The build cache for people who look after it: a service of its own that may be asked, and may not answer. What jobs get of it is
//! in [`crate::cache_tokens`].
//!
//! The control plane keeps nothing of it. Every page and answer asks anew, within [`PATIENCE`], and says so when nobody
//! answers; nothing else of the farm waits for that.

use crate::http::error::HttpError;
use forgeyard_api::ApiError;
use forgeyard_api::cache::{CacheEntries, CacheRemoval, CacheView};
use forgeyard_api::error::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// How long the cache may take for an answer. Lists read its whole log.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why the cache gives no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Nobody listens, or something broke on the way.
    #[error("the build cache does not answer: {0}")]
    NoAnswer(String),
    /// It answered, and not as it should.
    #[error("the build cache refused: {0}")]
    Refused(String),
}

/// Asks the cache on behalf of people.
#[async_trait::async_trait]
pub trait CacheAdmin: Send + Sync + 'static {
    /// Everything at a glance.
    async fn look(&self) -> Result<CacheView, CacheError>;
    /// At most so many entries of a scope whose key begins so.
    async fn entries(&self, scope: &str, prefix: &str, most: usize) -> Result<CacheEntries, CacheError>;
    /// Removes entries in the name of somebody, and says how many.
    async fn remove(&self, by: &str, which: &CacheRemoval) -> Result<u64, CacheError>;
}

/// The cache of the farm, when it has one.
#[derive(Clone, Default)]
pub struct Cache(Option<Arc<dyn CacheAdmin>>);

impl From<Option<Arc<dyn CacheAdmin>>> for Cache {
    fn from(caches: Option<Arc<dyn CacheAdmin>>) -> Self {
        Self(caches)
    }
}

impl Cache {
    fn port(&self) -> Result<&Arc<dyn CacheAdmin>, HttpError> {
        self.0.as_ref().ok_or_else(none)
    }

    /// Everything at a glance; nothing without a cache.
    pub async fn look(&self) -> Result<Option<CacheView>, HttpError> {
        match &self.0 {
            None => Ok(None),
            Some(port) => patiently(port.look()).await.map(Some),
        }
    }

    /// At most so many entries of a scope whose key begins so.
    pub async fn entries(&self, scope: &str, prefix: &str, most: usize) -> Result<CacheEntries, HttpError> {
        patiently(self.port()?.entries(scope, prefix, most)).await
    }

    /// Removes entries in the name of somebody, and says how many.
    pub async fn remove(&self, by: &str, which: &CacheRemoval) -> Result<u64, HttpError> {
        patiently(self.port()?.remove(by, which)).await
    }
}

/// The farm has no cache.
pub(crate) fn none() -> HttpError {
    let error = ApiError::new(ErrorKind::NotFound, "cache.none", "this farm runs no build cache");
    HttpError(error.hint("write a section [cache] into forgeyard.toml, see docs/cache.md"))
}

async fn patiently<T>(answer: impl Future<Output = Result<T, CacheError>>) -> Result<T, HttpError> {
    let late = || CacheError::NoAnswer(format!("not within {} s", PATIENCE.as_secs()));
    let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(late()));
    answer.map_err(|error| {
        tracing::warn!("{error}");
        let (kind, code, hint) = match &error {
            CacheError::NoAnswer(_) => (
                ErrorKind::Unavailable,
                "cache.no_answer",
                "look whether it runs (forgeyard cache stat) and what its log says; jobs go on without it",
            ),
            CacheError::Refused(_) => {
                (ErrorKind::Conflict, "cache.refused", "what it refused and why stands in its log")
            }
        };
        HttpError(ApiError::new(kind, code, error.to_string()).hint(hint))
    })
}
