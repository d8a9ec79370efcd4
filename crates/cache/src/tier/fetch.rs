//! Bringing back what lies beyond: one record, or one large content, held against everything that is known of it.

use super::Inner;
use super::manifest::{LONGEST_INDEX, Manifest, Sent, read_index};
use super::s3::Trouble;
use super::send::LONGEST_MANIFEST;
use crate::name::{Name, NameHash, half};
use crate::store::beyond::Purge;
use crate::store::frames;
use crate::store::handle::{Line, Means};
use crate::store::index::{Slot, Spot, Table};
use crate::store::large::{PIECE, Spool};
use crate::store::record::{HEAD, Head, LARGE, Record, What};
use crate::store::sum::Sum;
use crate::store::{Body, Provenance, StoreError};
use forgeyard_model::{Digest, Timestamp};
use std::borrow::Cow;
use std::io::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// Largest window of a compressed content, as a power of two: frames here are much smaller.
const WINDOW: u32 = 22;

/// What another writer, or a store that this farm had before, has in the tier.
pub(super) struct Foreign {
    writer: String,
    segments: Vec<Sent>,
    names: Table<Slot>,
    contents: Table<Spot>,
    purges: Vec<Purge>,
}

impl Foreign {
    fn new(writer: &str) -> Self {
        let (names, contents) = (Table::default(), Table::default());
        Self { writer: writer.to_owned(), segments: Vec::new(), names, contents, purges: Vec::new() }
    }

    pub(super) fn name(&self, name: NameHash) -> Option<Slot> {
        self.names.find(name.0).next()
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Takes a segment in, behind those that are there.
    fn take_in(&mut self, sent: Sent, lines: &[Line]) {
        let number = self.segments.len() as u32;
        self.segments.push(sent);
        for line in lines {
            if line.means == Means::Content {
                for before in self.contents.find(line.hash) {
                    self.contents.remove(line.hash, before);
                }
                self.contents.add(line.hash, Spot::new(number, line.at));
                continue;
            }
            for before in self.names.find(line.hash) {
                self.names.remove(line.hash, before);
            }
            if line.means == Means::Name {
                self.names.add(line.hash, Slot::new(number, line.at, line.length, 0, 0));
            }
        }
    }
}

/// Looks at what others wrote, and at what this farm wrote with a store that it has no more.
pub(super) async fn refresh(inner: &Inner, own: Option<&Manifest>) -> Result<(), Trouble> {
    let mut sources = Vec::new();
    if let Some(manifest) = own {
        let mut former = manifest.clone();
        former.segments.retain(|sent| !sent.segment.starts_with(&inner.own()));
        sources.push(former);
    }
    for writer in &inner.config.reads {
        match inner.remote.get(&inner.manifest_key(writer), None, LONGEST_MANIFEST).await {
            Ok((bytes, _)) => match Manifest::read(&bytes, &inner.place(writer)) {
                Some(manifest) => sources.push(Manifest { writer: writer.clone(), ..manifest }),
                None => tracing::warn!(writer, "what a writer of the tier says of itself is not understood"),
            },
            Err(Trouble::Absent) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    for manifest in sources {
        take_over(inner, manifest).await?;
    }
    Ok(())
}

async fn take_over(inner: &Inner, manifest: Manifest) -> Result<(), Trouble> {
    let foreign = || inner.foreign.write().unwrap_or_else(PoisonError::into_inner);
    let known = {
        let mut all = foreign();
        let at = match all.iter().position(|one| one.writer == manifest.writer) {
            Some(at) => at,
            None => {
                all.push(Foreign::new(&manifest.writer));
                all.len() - 1
            }
        };
        all[at].purges.clone_from(&manifest.purges);
        if !manifest.segments.starts_with(&all[at].segments) {
            // something was taken away: begin anew
            all[at] = Foreign { purges: manifest.purges.clone(), ..Foreign::new(&manifest.writer) };
        }
        all[at].segments.len()
    };
    for sent in manifest.segments.into_iter().skip(known) {
        let lines = match inner.remote.get(&sent.index, None, LONGEST_INDEX).await {
            Ok((bytes, _)) => read_index(&bytes).unwrap_or_else(|| {
                tracing::warn!(
                    index = sent.index,
                    "an index in the tier does not hold; its segment is a miss"
                );
                Vec::new()
            }),
            // it went by the rules of the bucket
            Err(Trouble::Absent) => Vec::new(),
            Err(trouble) => return Err(trouble),
        };
        let mut all = foreign();
        if let Some(one) = all.iter_mut().find(|one| one.writer == manifest.writer) {
            one.take_in(sent, &lines);
        }
    }
    Ok(())
}

/// Where a record may be.
struct Candidate {
    object: String,
    at: u64,
    length: u64,
    /// The place that this farm knows for it.
    own: Option<Slot>,
    purges: Vec<Purge>,
}

fn candidates(inner: &Inner, name: NameHash) -> Vec<Candidate> {
    let mut all = Vec::new();
    if let Some(beyond) = inner.store.beyond()
        && let Some(slot) = beyond.name(name)
    {
        let (object, purges) = (inner.segment_key(slot.segment()), beyond.purges());
        all.push(Candidate { object, at: slot.at(), length: slot.len(), own: Some(slot), purges });
    }
    let foreign = inner.foreign.read().unwrap_or_else(PoisonError::into_inner);
    for one in foreign.iter() {
        let Some(slot) = one.name(name) else { continue };
        let Some(sent) = one.segments.get(slot.segment() as usize) else { continue };
        // what was removed here does not come back from there either
        let purges = [&one.purges[..], &inner.store.purges()].concat();
        all.push(Candidate {
            object: sent.segment.clone(),
            at: slot.at(),
            length: slot.len(),
            own: None,
            purges,
        });
    }
    all
}

/// Objects in which a content may be, and where.
fn contents(inner: &Inner, digest: Digest) -> Vec<(String, u64)> {
    let hash = half(digest.as_bytes());
    let mut all = Vec::new();
    if let Some(spot) = inner.store.beyond().and_then(|beyond| beyond.content(hash)) {
        all.push((inner.segment_key(spot.segment()), spot.at()));
    }
    let foreign = inner.foreign.read().unwrap_or_else(PoisonError::into_inner);
    for one in foreign.iter() {
        if let Some(spot) = one.contents.find(hash).next()
            && let Some(sent) = one.segments.get(spot.segment() as usize)
        {
            all.push((sent.segment.clone(), spot.at()));
        }
    }
    all
}

/// What came of looking in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// It is here now.
    Here,
    /// It is not what was looked for.
    Not,
    /// It is older than what was done here meanwhile.
    Late,
}

/// Brings an entry back; whether it is here now.
pub(super) async fn fetch(inner: &Inner, name: &Name) -> bool {
    let hash = name.hash();
    let Some(beyond) = inner.store.beyond() else { return false };
    // before it is asked where it lies
    let _awaited = beyond.await_name(hash);
    for candidate in candidates(inner, hash) {
        match bring(inner, name, &candidate).await {
            Ok(Came::Here) => {
                inner.figures.brought.fetch_add(1, Relaxed);
                return true;
            }
            Ok(Came::Late) => return false,
            Ok(Came::Not) | Err(Trouble::Absent) => {
                inner.figures.absent.fetch_add(1, Relaxed);
                if let Some(slot) = candidate.own {
                    beyond.lost(hash, slot);
                }
            }
            Err(trouble) => {
                inner.figures.failures.fetch_add(1, Relaxed);
                tracing::info!(entry = %name, "bringing an entry back from the tier: {trouble}");
            }
        }
        // what others, or a former store, have of a name that was written here is older
        if candidate.own.is_some() {
            return false;
        }
    }
    false
}

/// Whether the record there is what was asked for, whole, and not removed since; and is here now.
async fn bring(inner: &Inner, name: &Name, from: &Candidate) -> Result<Came, Trouble> {
    let part = from.at..from.at + from.length;
    let (bytes, _) = inner.remote.get(&from.object, Some(part), from.length).await?;
    let Ok((record, _)) = Record::read(&bytes) else { return Ok(Came::Not) };
    if record.name() != name.hash() || record.scope != name.scope.as_str() || record.key != name.key {
        return Ok(Came::Not);
    }
    let by = serde_json::from_slice(record.provenance).unwrap_or_default();
    let purged =
        |purge: &Purge| record.stored_at <= purge.until && purge.which.means(record.scope, record.key, &by);
    if from.purges.iter().any(purged) {
        return Ok(Came::Not);
    }
    let (digest, sum, size, stored_at) = (record.digest, record.sum, record.size, record.stored_at);
    let body = match record.what {
        What::Entry => match frames::content(&record) {
            Some(content) => content.into_owned(),
            None => return Ok(Came::Not),
        },
        What::Link if record.flags & LARGE != 0 => {
            let Some(spool) = inner.store.spool() else { return Ok(Came::Not) };
            let spool = spool.map_err(|error| Trouble::Local(error.to_string()))?;
            let Some(spool) = large(inner, digest, size, spool).await? else { return Ok(Came::Not) };
            let finished = tokio::task::spawn_blocking(move || spool.finish(false)).await;
            let finished = finished.map_err(|error| Trouble::Local(error.to_string()))?;
            let finished = finished.map_err(|error| Trouble::Local(error.to_string()))?;
            if (finished.digest, finished.size) != (digest, size) {
                return Ok(Came::Not);
            }
            return store(inner, name, Body::Large(finished), &by, stored_at);
        }
        What::Link => match content(inner, digest, size).await? {
            Some(bytes) => bytes,
            None => return Ok(Came::Not),
        },
        What::Drop | What::Content => return Ok(Came::Not),
    };
    if sum.of(&body) != digest || body.len() as u64 != size {
        return Ok(Came::Not);
    }
    let body = if sum == Sum::Sha256 { Body::Checked(&body, digest) } else { Body::Inline(&body) };
    store(inner, name, body, &by, stored_at)
}

/// A large content, from its file in the tier. That is shorter than the content when it is compressed, and only then.
async fn large(inner: &Inner, digest: Digest, size: u64, spool: Spool) -> Result<Option<Spool>, Trouble> {
    let object = inner.large_key(digest);
    let Some(length) = inner.remote.size(&object).await? else { return Ok(None) };
    let local = |error: &dyn std::fmt::Display| Trouble::Local(error.to_string());
    if length >= size {
        let mut spool = spool;
        // content, checksums, foot
        let most = size + size.div_ceil(PIECE) * 4 + 64;
        let taken = inner.remote.get_to(&object, None, most, |some| {
            let left = usize::try_from(size - spool.size()).unwrap_or(usize::MAX).min(some.len());
            spool.write(&some[..left]).map_err(|error| local(&error))
        });
        taken.await?;
        return Ok(Some(spool));
    }
    let sink = Limited { spool, left: size };
    let mut decoder = zstd::stream::write::Decoder::new(sink).map_err(|error| local(&error))?;
    decoder.window_log_max(WINDOW).map_err(|error| local(&error))?;
    let mut whole = true;
    let taken = inner.remote.get_to(&object, None, length, |some| {
        whole = whole && decoder.write_all(some).is_ok();
        Ok(())
    });
    taken.await?;
    whole = whole && decoder.flush().is_ok();
    Ok(whole.then(|| decoder.into_inner().spool))
}

/// Takes no more than it was told before.
struct Limited {
    spool: Spool,
    left: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| std::io::Error::other("it unpacks to more than was said"))?;
        self.spool.write(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn store(
    inner: &Inner,
    name: &Name,
    body: Body<'_>,
    by: &Provenance,
    stored_at: Timestamp,
) -> Result<Came, Trouble> {
    match inner.store.bring(name, body, by, stored_at) {
        Some(Ok(_)) => Ok(Came::Here),
        Some(Err(StoreError::Superseded)) => Ok(Came::Late),
        Some(Err(error)) => Err(Trouble::Local(error.to_string())),
        None => Err(Trouble::Local("the cache is being stopped".to_owned())),
    }
}

/// A content that a record links to: from this disk, or from wherever it lies.
async fn content(inner: &Inner, digest: Digest, size: u64) -> Result<Option<Vec<u8>>, Trouble> {
    if let Some(bytes) = inner.store.content(digest, size) {
        return Ok(Some(bytes));
    }
    for (object, at) in contents(inner, digest) {
        // most texts are shorter than this
        let mut length = (HEAD as u64 + 512 + size).next_multiple_of(64);
        for _ in 0..2 {
            let (bytes, _) = inner.remote.get(&object, Some(at..at + length), length).await?;
            match Head::peek(&bytes) {
                Ok(head) if head.len() > bytes.len() as u64 && head.len() > length => {
                    length = head.len().min(4 << 20)
                }
                Ok(_) => match Record::read(&bytes) {
                    Ok((record, _)) if record.what.carries() && record.digest == digest => {
                        return Ok(frames::content(&record).map(Cow::into_owned));
                    }
                    _ => break,
                },
                Err(_) => break,
            }
        }
    }
    Ok(None)
}
