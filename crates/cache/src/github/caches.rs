//! The cache service: reserve, finalize, look.

use super::messages::{
    CreateCacheEntryRequest, CreateCacheEntryResponse, FinalizeCacheEntryUploadRequest,
    FinalizeCacheEntryUploadResponse, GetCacheEntryDownloadUrlRequest, GetCacheEntryDownloadUrlResponse,
};
use super::signed::{LIFE_SECONDS, Right};
use super::twirp::{Code, TwirpError};
use super::uploads::{Content, Purpose, UploadError};
use super::{Asked, archive, random_id, refused, unavailable};
use crate::name::{Kind, LONGEST_KEY, Name};
use crate::scope::ScopePath;
use crate::service::Core;
use crate::shape::{self, ShapeError};
use crate::store::{Facts, Outcome, Policy, Provenance, Store as _, StoreError};
use crate::surface::Shape;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most keys of one look, as in GitHub's service.
const MOST_KEYS: usize = 10;
/// Longest key, in characters, as in GitHub's service.
const LONGEST: usize = 512;
/// What the official client understands as a refusal that it prints and lives with.
const DENIED: &str = "cache write denied: this token may read and not write";

/// Name of an entry. A key has no comma, so the first one ends it.
fn name(scope: &ScopePath, key: &str, version: &str) -> Name {
    Name { scope: scope.clone(), kind: Kind::Github, key: format!("{key},{version}") }
}

fn check(key: &str, version: &str) -> Result<(), TwirpError> {
    let wrong = |why: &str| Err(TwirpError::new(Code::InvalidArgument, why));
    if key.is_empty() || key.contains(',') || key.chars().count() > LONGEST {
        return wrong("a key has 1 to 512 characters and no comma");
    }
    if version.is_empty() || key.len() + version.len() + 1 > LONGEST_KEY {
        return wrong("the version is missing, or key and version are too long");
    }
    Ok(())
}

/// Whether a key is that of an object of sccache: `sccache/a/b/c/<64 digits>`. There is one for each object file, and nobody
/// looks for the beginning of one.
fn of_sccache(key: &str) -> bool {
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_hexdigit());
    let words: Vec<&str> = key.split('/').collect();
    matches!(words.as_slice(), ["sccache", a, b, c, hash]
        if digits(a, 1) && digits(b, 1) && digits(c, 1) && digits(hash, 64))
}

/// An entry stays for as long as the URL that is given for it. A lease that cannot be had is no reason for a miss.
pub(super) fn lease(asked: &Asked, name: &Name) {
    if let Err(error) = asked.core.store.lease(name.hash(), (LIFE_SECONDS / 60) as u32) {
        tracing::warn!(entry = %name, "an entry is read and not leased: {error}");
    }
}

/// What an object of a URL for reading is: an entry with just this content.
pub(super) fn object(name: &Name, facts: &Facts) -> String {
    format!("{:032x}.{}", name.hash().0, facts.digest.hex())
}

/// A number for the entry, small enough for JavaScript.
fn number(name: &Name) -> i64 {
    (name.hash().0 & ((1 << 53) - 1)) as i64
}

pub(super) fn create(
    asked: &Asked,
    request: CreateCacheEntryRequest,
) -> Result<CreateCacheEntryResponse, TwirpError> {
    let CreateCacheEntryRequest { key, version } = request;
    check(&key, &version)?;
    let core = &asked.core;
    let Some(scope) = &asked.access.grant.writes else {
        asked.access.counters.denied.fetch_add(1, Relaxed);
        return Err(TwirpError::new(Code::PermissionDenied, DENIED));
    };
    let name = name(scope, &key, &version);
    if core.store.facts(name.hash()).map_err(|error| unavailable(&error))?.is_some() {
        return Err(TwirpError::new(Code::AlreadyExists, "there is an entry with this key and version"));
    }
    let id = random_id()?;
    let purpose = Purpose::Entry { key, version };
    core.github.uploads.reserve(id.clone(), name, &asked.writer(), purpose, asked.now).map_err(refused)?;
    let signed_upload_url = asked.url(Right::Upload, id, scope, None);
    Ok(CreateCacheEntryResponse { ok: true, signed_upload_url, message: String::new() })
}

pub(super) async fn finalize(
    asked: &Asked,
    request: FinalizeCacheEntryUploadRequest,
) -> Result<FinalizeCacheEntryUploadResponse, TwirpError> {
    let FinalizeCacheEntryUploadRequest { key, version, size_bytes } = request;
    check(&key, &version)?;
    let Some(scope) = &asked.access.grant.writes else {
        return Err(TwirpError::new(Code::PermissionDenied, DENIED));
    };
    let name = name(scope, &key, &version);
    let done = |name: &Name| FinalizeCacheEntryUploadResponse {
        ok: true,
        entry_id: number(name),
        message: String::new(),
    };
    let ready = match asked.core.github.uploads.take(name.hash(), &asked.writer()) {
        Ok(ready) => ready,
        Err(UploadError::Unknown) => {
            // the answer to the first call may have been lost
            let facts = asked.core.store.facts(name.hash()).map_err(|error| unavailable(&error))?;
            return match facts {
                Some(facts) if facts.size == size_bytes as u64 => Ok(done(&name)),
                _ => Err(refused(UploadError::Unknown)),
            };
        }
        Err(error) => return Err(refused(error)),
    };
    if ready.content.size() != size_bytes as u64 {
        asked.access.counters.malformed.fetch_add(1, Relaxed);
        let text = format!("{size_bytes} bytes were promised and {} were uploaded", ready.content.size());
        tracing::warn!(entry = %name, "an upload is refused: {text}");
        return Err(TwirpError::new(Code::InvalidArgument, text));
    }
    let size = ready.content.size();
    let sccache = of_sccache(&key);
    let settled =
        settle(&asked.core, &name, ready.content, &asked.by, move |content| sound(sccache, content));
    let outcome = match settled.await {
        Ok((outcome, _)) => outcome,
        Err(error) => return Err(error.answer(asked, &name)),
    };
    match outcome {
        Outcome::New | Outcome::Replaced => {
            asked.access.counters.writes.fetch_add(1, Relaxed);
            asked.access.counters.bytes_in.fetch_add(size, Relaxed);
        }
        Outcome::Same => {
            asked.access.counters.repeats.fetch_add(1, Relaxed);
        }
        Outcome::Kept => {
            asked.access.counters.mismatches.fetch_add(1, Relaxed);
            return Err(TwirpError::new(Code::AlreadyExists, "there is an entry with this key and version"));
        }
    }
    if !sccache {
        let noted = asked.core.github.catalog.entry(scope, &version, &key, asked.now);
        noted.map_err(|error| unavailable(&error))?;
    }
    Ok(done(&name))
}

pub(super) fn look(
    asked: &Asked,
    request: &GetCacheEntryDownloadUrlRequest,
) -> Result<GetCacheEntryDownloadUrlResponse, TwirpError> {
    let GetCacheEntryDownloadUrlRequest { key, restore_keys, version } = request;
    if restore_keys.len() >= MOST_KEYS {
        return Err(TwirpError::new(Code::InvalidArgument, "at most ten keys"));
    }
    for key in std::iter::once(key).chain(restore_keys) {
        check(key, version)?;
    }
    let (core, counters) = (&asked.core, &asked.access.counters);
    for (depth, scope) in asked.access.grant.reads.iter().enumerate() {
        let there = |key: &str| {
            let name = name(scope, key, version);
            match core.store.facts(name.hash()) {
                Ok(facts) => facts.map(|facts| (name, facts)),
                Err(error) => {
                    // as everywhere: what cannot be read is a miss
                    counters.failures.fetch_add(1, Relaxed);
                    tracing::error!(%scope, "reading an entry: {error}");
                    None
                }
            }
        };
        let beginning =
            |prefix: &String| core.github.catalog.newest(scope, version, prefix, |key| there(key).is_some());
        let found = there(key).map(|found| (key.clone(), found)).or_else(|| {
            let matched_key = std::iter::once(key).chain(restore_keys).find_map(beginning)?;
            there(&matched_key).map(|found| (matched_key, found))
        });
        if let Some((matched_key, (name, facts))) = found {
            asked.access.found(core, depth, name.kind, &name.key);
            lease(asked, &name);
            let signed_download_url = asked.url(Right::Download, object(&name, &facts), scope, None);
            return Ok(GetCacheEntryDownloadUrlResponse { ok: true, signed_download_url, matched_key });
        }
    }
    counters.misses.fetch_add(1, Relaxed);
    Ok(GetCacheEntryDownloadUrlResponse::default())
}

/// Whether an entry is what it begins like. Blocks.
fn sound(sccache: bool, content: &Content) -> Result<(), String> {
    let text = |wrong: ShapeError| wrong.to_string();
    if sccache {
        return match content {
            Content::Memory(bytes) => shape::check(Shape::Sccache, "", bytes).map_err(text),
            Content::File(file) => shape::check_large(Shape::Sccache, "", file.digest).map_err(text),
        };
    }
    let (mut first, mut frames) = (None, archive::Frames::default());
    let read = content.read(0, |bytes| {
        if *first.get_or_insert_with(|| archive::is_zstd(bytes)) {
            frames.feed(bytes);
        }
    });
    read.map_err(|error| error.to_string())?;
    if first == Some(true) && !frames.whole() {
        return Err("the archive is cut off: its last zstd frame is not whole".to_owned());
    }
    Ok(())
}

/// Why an upload did not become an entry.
pub(super) enum Unsettled {
    /// It is not what it has to be.
    Wrong(String),
    /// The store failed.
    Store(StoreError),
}

impl Unsettled {
    pub(super) fn answer(self, asked: &Asked, name: &Name) -> TwirpError {
        match self {
            Unsettled::Wrong(wrong) => {
                asked.access.counters.malformed.fetch_add(1, Relaxed);
                tracing::warn!(entry = %name, client = %asked.by.client, "an upload is refused: {wrong}");
                TwirpError::new(Code::InvalidArgument, wrong)
            }
            Unsettled::Store(error) => {
                asked.access.counters.failures.fetch_add(1, Relaxed);
                unavailable(&error)
            }
        }
    }
}

/// Checks an upload and stores it, away from the threads that serve connections.
pub(super) async fn settle(
    core: &Arc<Core>,
    name: &Name,
    content: Content,
    by: &Provenance,
    check: impl FnOnce(&Content) -> Result<(), String> + Send + 'static,
) -> Result<(Outcome, Facts), Unsettled> {
    let (shared, name, by) = (Arc::clone(core), name.clone(), by.clone());
    let stored = tokio::task::spawn_blocking(move || {
        check(&content).map_err(Unsettled::Wrong)?;
        let stored_at = (shared.clock)();
        let facts = Facts { digest: content.digest(), size: content.size(), stored_at };
        let mut buffer = Vec::new();
        let put = shared.store.put(&name, content.body(&mut buffer), Policy::Keep, &by);
        put.map(|put| (put, facts)).map_err(Unsettled::Store)
    });
    let (put, facts) = stored.await.unwrap_or(Err(Unsettled::Store(StoreError::Broken)))?;
    core.store.settled(put.ticket).await.map_err(Unsettled::Store)?;
    Ok((put.outcome, facts))
}
