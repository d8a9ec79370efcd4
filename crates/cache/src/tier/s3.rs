//! The storage: five requests, each with a deadline, all through one breaker.
//!
//! What is relied on, and shown against a real server in `tests/tier`: GET with a range, HEAD, PUT whole, and the conditions
//! `If-Match` and `If-None-Match: *` on PUT. Requests are signed in the address (`rusty-s3`), with path-style names, which all
//! S3-compatible servers understand. `object_store` was weighed: it brings its own retries, of which we want none, and some
//! twenty crates for other clouds' sake; this signs, and nothing else.

use super::breaker::Breaker;
use super::settings::Config;
use reqwest::header::{CONTENT_LENGTH, ETAG, IF_MATCH, IF_NONE_MATCH, RANGE};
use reqwest::{Response, StatusCode};
use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle};
use std::fs::File;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a signature holds.
const SIGNED: Duration = Duration::from_secs(3600);
/// Every request has so long, and longer for its bytes.
const DEADLINE: Duration = Duration::from_secs(5);
/// A read has so long to begin; readers wait for a little longer.
const BEGINS: Duration = Duration::from_secs(2);
/// Slowest that is waited for, in bytes a second.
const SLOWEST: u64 = 512 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("there is no such object")]
    Absent,
    #[error("another one was there first")]
    Condition,
    #[error("the storage answers {0}")]
    Status(u16),
    #[error("the storage did not answer in time")]
    Slow,
    #[error("the storage sends more than was asked for")]
    Long,
    #[error("{0}")]
    Network(String),
    #[error("{0}")]
    Local(String),
}

/// On which condition an object is written.
#[derive(Debug, Clone)]
pub(super) enum If {
    Always,
    New,
    Still(String),
}

/// What is written.
pub(super) enum Content {
    Bytes(Vec<u8>),
    File(File, u64),
}

pub(super) struct Remote {
    bucket: Bucket,
    credentials: Credentials,
    client: reqwest::Client,
    breaker: Mutex<Breaker>,
}

fn deadline(bytes: u64) -> Duration {
    DEADLINE + Duration::from_secs(bytes / SLOWEST)
}

impl Remote {
    pub(super) fn new(config: &Config) -> Result<Self, String> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let endpoint: reqwest::Url =
            config.endpoint.parse().map_err(|error| format!("the address of the tier: {error}"))?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, config.bucket.clone(), config.region.clone());
        let bucket = bucket.map_err(|error| format!("the address or bucket of the tier: {error}"))?;
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("forgeyard/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| error.to_string())?;
        let credentials = Credentials::new(config.key.expose(), config.secret.expose());
        Ok(Self { bucket, credentials, client, breaker: Mutex::default() })
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether clients may wait for it.
    pub(super) fn closed(&self) -> bool {
        self.breaker().closed()
    }

    /// Whether the background may look.
    pub(super) fn may_look(&self) -> bool {
        self.breaker().may_look(Instant::now())
    }

    /// Whatever answers, if only that it has no such object, is alive.
    fn note<T>(&self, done: Result<T, Trouble>) -> Result<T, Trouble> {
        match &done {
            Ok(_) | Err(Trouble::Absent | Trouble::Condition) => self.breaker().answered(),
            // of our own making
            Err(Trouble::Local(_)) => {}
            Err(_) => self.breaker().failed(Instant::now()),
        }
        done
    }

    async fn within<T>(bytes: u64, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        tokio::time::timeout(deadline(bytes), work).await.unwrap_or(Err(Trouble::Slow))
    }

    fn status(answer: Response) -> Result<Response, Trouble> {
        match answer.status() {
            status if status.is_success() => Ok(answer),
            StatusCode::NOT_FOUND => Err(Trouble::Absent),
            // 409: two conditional writes at once, as Amazon answers
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Err(Trouble::Condition),
            status => Err(Trouble::Status(status.as_u16())),
        }
    }

    /// Reads an object, or a part of it, of at most so many bytes. Hands the bytes on as they come.
    pub(super) async fn get_to(
        &self,
        key: &str,
        part: Option<Range<u64>>,
        most: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), Trouble>,
    ) -> Result<Option<String>, Trouble> {
        let url = self.bucket.get_object(Some(&self.credentials), key).sign(SIGNED);
        let most = part.as_ref().map_or(most, |part| most.min(part.end - part.start));
        let done = Self::within(most, async {
            let mut request = self.client.get(url);
            if let Some(part) = &part {
                request = request.header(RANGE, format!("bytes={}-{}", part.start, part.end - 1));
            }
            let begun = tokio::time::timeout(BEGINS, request.send()).await.map_err(|_| Trouble::Slow)?;
            let mut answer = Self::status(begun.map_err(network)?)?;
            if part.is_some() && answer.status() != StatusCode::PARTIAL_CONTENT {
                return Err(Trouble::Status(answer.status().as_u16()));
            }
            let tag = tag(&answer);
            let mut got = 0;
            while let Some(some) = answer.chunk().await.map_err(network)? {
                got += some.len() as u64;
                if got > most {
                    return Err(Trouble::Long);
                }
                take(&some)?;
            }
            Ok(tag)
        });
        let done = done.await;
        self.note(done)
    }

    /// Reads an object, or a part of it, into memory.
    pub(super) async fn get(
        &self,
        key: &str,
        part: Option<Range<u64>>,
        most: u64,
    ) -> Result<(Vec<u8>, Option<String>), Trouble> {
        let mut all = Vec::new();
        let tag = self.get_to(key, part, most, |some| {
            all.extend_from_slice(some);
            Ok(())
        });
        let tag = tag.await?;
        Ok((all, tag))
    }

    /// Size of an object that is there.
    pub(super) async fn size(&self, key: &str) -> Result<Option<u64>, Trouble> {
        let url = self.bucket.head_object(Some(&self.credentials), key).sign(SIGNED);
        let done = Self::within(0, async {
            let answer = Self::status(self.client.head(url).send().await.map_err(network)?)?;
            Ok(answer.headers().get(CONTENT_LENGTH).and_then(|size| size.to_str().ok()?.parse().ok()))
        });
        match self.note(done.await) {
            Err(Trouble::Absent) => Ok(None),
            other => other,
        }
    }

    /// Writes an object whole; answers with its tag.
    pub(super) async fn put(&self, key: &str, content: Content, on: If) -> Result<Option<String>, Trouble> {
        let url = self.bucket.put_object(Some(&self.credentials), key).sign(SIGNED);
        let (body, length) = match content {
            Content::Bytes(bytes) => {
                let length = bytes.len() as u64;
                (reqwest::Body::from(bytes), length)
            }
            Content::File(file, length) => {
                use tokio::io::AsyncReadExt as _;
                let file = tokio::fs::File::from_std(file).take(length);
                let stream = tokio_util::io::ReaderStream::with_capacity(file, 256 << 10);
                (reqwest::Body::wrap_stream(stream), length)
            }
        };
        let done = Self::within(length, async {
            let mut request = self.client.put(url).header(CONTENT_LENGTH, length).body(body);
            request = match on {
                If::Always => request,
                If::New => request.header(IF_NONE_MATCH, "*"),
                If::Still(tag) => request.header(IF_MATCH, tag),
            };
            Ok(tag(&Self::status(request.send().await.map_err(network)?)?))
        });
        let done = done.await;
        self.note(done)
    }
}

fn tag(answer: &Response) -> Option<String> {
    answer.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned)
}

/// Without the address, which is signed.
fn network(error: reqwest::Error) -> Trouble {
    Trouble::Network(error.without_url().to_string())
}
