//! What went through a relay, in all and for each client.

use super::answers::surface;
use forgeyard_model::verdict::CacheClient;
use hyper::{Method, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What went through a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Reads that found something.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes that were taken.
    pub writes: u64,
    /// Writes that were refused or thrown away by the cache.
    pub denied: u64,
    /// Requests that the relay answered itself, because the cache did not.
    pub alone: u64,
    /// How often the cache went away.
    pub breaks: u64,
}

/// Clients that are counted by themselves, by the word of their surface in a path.
const CLIENTS: [&str; 11] =
    ["dav", "s3", "ccache", "bazel", "nix", "turbo", "gradle", "kv", "github", "warm", "other"];

/// What a client asks before its first entry: neither hit nor miss.
const BEFORE: [&str; 3] = ["/.sccache_check", "/nix-cache-info", "/v8/artifacts/status"];

/// Which of them a path is of.
pub(super) fn client_of(path: &str) -> usize {
    let word = match surface(path) {
        _ if path.starts_with("/twirp/") => "github",
        _ if path.starts_with("/v2/") => "warm",
        Some((word, _)) => word,
        None => "other",
    };
    CLIENTS.iter().position(|known| *known == word).unwrap_or(CLIENTS.len() - 1)
}

#[derive(Default)]
struct OfClient {
    hits: AtomicU64,
    misses: AtomicU64,
    writes: AtomicU64,
    denied: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

/// Counters of a relay.
#[derive(Default)]
pub(super) struct Counters {
    clients: [OfClient; CLIENTS.len()],
    alone: AtomicU64,
}

impl Counters {
    /// The relay answered itself.
    pub(super) fn alone(&self) {
        self.alone.fetch_add(1, Relaxed);
    }

    /// So many bytes of an entry came from the cache.
    pub(super) fn received(&self, client: usize, bytes: u64) {
        if let Some(counters) = self.clients.get(client) {
            counters.received.fetch_add(bytes, Relaxed);
        }
    }

    /// What the cache answered to a request with a body of so many bytes, if that is known.
    pub(super) fn count(
        &self,
        client: usize,
        method: &Method,
        path: &str,
        status: StatusCode,
        discarded: bool,
        size: Option<u64>,
    ) {
        let Some(counters) = self.clients.get(client) else { return };
        let counter = match *method {
            _ if BEFORE.iter().any(|end| path.ends_with(end)) => return,
            Method::GET if status.is_success() => &counters.hits,
            Method::GET if status == StatusCode::NOT_FOUND => &counters.misses,
            Method::PUT if status.is_success() && !discarded => {
                counters.sent.fetch_add(size.unwrap_or(0), Relaxed);
                &counters.writes
            }
            Method::PUT => &counters.denied,
            _ => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// All of it, with how often the cache went away.
    pub(super) fn sum(&self, breaks: u64) -> Counts {
        let sum = |of: fn(&OfClient) -> &AtomicU64| {
            self.clients.iter().map(|client| of(client).load(Relaxed)).sum()
        };
        Counts {
            hits: sum(|of| &of.hits),
            misses: sum(|of| &of.misses),
            writes: sum(|of| &of.writes),
            denied: sum(|of| &of.denied),
            alone: self.alone.load(Relaxed),
            breaks,
        }
    }

    /// Each client that came.
    pub(super) fn clients(&self) -> Vec<CacheClient> {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let all = CLIENTS.iter().zip(&self.clients).map(|(name, counters)| CacheClient {
            client: (*name).to_owned(),
            hits: of(&counters.hits),
            misses: of(&counters.misses),
            stored: of(&counters.writes),
            denied: of(&counters.denied),
            received_bytes: of(&counters.received),
            sent_bytes: of(&counters.sent),
        });
        all.filter(|one| one.hits + one.misses + one.stored + one.denied > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_for_the_client_that_their_path_is_of() {
        for (path, client) in [
            ("/-/dav/p/a", "dav"),
            ("/iree/main/-/ccache/ab/cd", "ccache"),
            ("/-/warm/git/x.git/HEAD", "warm"),
            ("/-/turbo/v8/artifacts/ab", "turbo"),
            ("/-/gradle/ab", "gradle"),
            ("/v2/pre/warm/x/manifests/1", "warm"),
            ("/twirp/github.actions.results.api.v1.CacheService/X", "github"),
            ("/-/strange/x", "other"),
            ("/x", "other"),
        ] {
            assert_eq!(CLIENTS[client_of(path)], client, "{path}");
        }
    }
}
