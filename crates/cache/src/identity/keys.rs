//! Keys of issuers: fetched, kept for an hour, and fetched once more for a key that is not known.
//!
//! An attempt is made at most every thirty seconds for each issuer, whether it succeeds or not, so that tokens with made-up
//! keys cannot make this cache a burden for the forge. Whoever asks during one waits for it. When the issuer does not
//! answer, the old keys go on.

use super::jwt::{RsaKey, key_set};
use forgeyard_model::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long keys are good without being fetched anew, in microseconds.
const FRESH: i64 = 3600 * 1_000_000;
/// Between two attempts.
const PACE: i64 = 30 * 1_000_000;
/// Longest set of keys.
const LONGEST: usize = 256 << 10;

/// Why keys cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("fetching {url}: {reason}")]
    Fetch { url: String, reason: String },
    #[error("what {0} answers is no set of keys")]
    Form(String),
}

#[derive(Default)]
struct Held {
    keys: BTreeMap<String, RsaKey>,
    fetched: Option<Timestamp>,
    tried: Option<Timestamp>,
    failed: Option<KeyError>,
}

/// Keys of all issuers, by their address.
#[derive(Default)]
pub(crate) struct Keys {
    held: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Held>>>>,
    client: OnceLock<reqwest::Client>,
}

impl Keys {
    /// The key with this id; nothing when the issuer does not have it.
    pub(crate) async fn key(&self, url: &str, id: &str, now: Timestamp) -> Result<Option<RsaKey>, KeyError> {
        let held = {
            let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(url.to_owned()).or_default())
        };
        let mut held = held.lock().await;
        let since = |at: Option<Timestamp>| at.map_or(i64::MAX, |at| now.as_micros() - at.as_micros());
        let stale = !held.keys.contains_key(id) || since(held.fetched) > FRESH;
        if stale && since(held.tried) >= PACE {
            held.tried = Some(now);
            match self.fetch(url).await {
                Ok(keys) => {
                    held.keys = keys;
                    held.fetched = Some(now);
                    held.failed = None;
                }
                Err(error) => {
                    tracing::warn!("keys of an issuer: {error}");
                    held.failed = Some(error);
                }
            }
        }
        match (held.keys.get(id), &held.failed) {
            (Some(key), _) => Ok(Some(key.clone())),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(None),
        }
    }

    fn client(&self) -> Result<&reqwest::Client, reqwest::Error> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            // threads have runtimes of their own; a connection belongs to one of them
            .pool_max_idle_per_host(0)
            .user_agent(concat!("forgeyard/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(self.client.get_or_init(|| client))
    }

    async fn fetch(&self, url: &str) -> Result<BTreeMap<String, RsaKey>, KeyError> {
        let failed = |reason: String| KeyError::Fetch { url: url.to_owned(), reason };
        let because = |error: reqwest::Error| failed(error.without_url().to_string());
        let mut answer = self.client().map_err(because)?.get(url).send().await.map_err(because)?;
        if !answer.status().is_success() {
            return Err(failed(format!("it answers {}", answer.status())));
        }
        let mut body = Vec::new();
        while let Some(some) = answer.chunk().await.map_err(because)? {
            if body.len() + some.len() > LONGEST {
                return Err(failed("its answer is too long".to_owned()));
            }
            body.extend_from_slice(&some);
        }
        key_set(&body).ok_or_else(|| KeyError::Form(url.to_owned()))
    }
}
