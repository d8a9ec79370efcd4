//! Uploads on their way: what is reserved, which blocks are in, what was committed.
//!
//! A reservation holds a name until it is finalized, fails, or nothing was heard of it for ten minutes: a job that died in
//! between must not hold the key for ever (actions/cache#463). It is in memory only, so a restart frees all of them, and
//! the files of their blocks are removed by the store. Blocks are kept apart and put together by the block list in one
//! step (falcondev#65): what was never committed is never served.
//!
//! Bounds: bytes of one upload by its URL, bytes of all by a share of the store's capacity, blocks by number, small blocks
//! in memory up to 64 MiB in all and in files beyond.

use crate::name::{Name, NameHash};
use crate::store::large::{Finished, Spool};
use crate::store::{Body, StoreError};
use forgeyard_model::{Digest, Timestamp};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a reservation lasts without a sign of life, in microseconds.
pub(crate) const LIFE: i64 = 600 * 1_000_000;
/// Reservations of all scopes at once.
const MOST: usize = 4096;
/// Bytes of blocks in memory.
const MEMORY: u64 = 64 << 20;

/// Bytes that came in.
#[derive(Debug)]
pub(crate) enum Content {
    Memory(Vec<u8>),
    File(Finished),
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        match self {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File(file) => file.size,
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        match self {
            Content::Memory(bytes) => Digest::of(bytes),
            Content::File(file) => file.digest,
        }
    }

    fn in_memory(&self) -> u64 {
        if let Content::Memory(bytes) = self { bytes.len() as u64 } else { 0 }
    }

    /// Shows all bytes, in pieces, from a place on. Blocks.
    pub(crate) fn read(&self, from: u64, mut see: impl FnMut(&[u8])) -> Result<(), StoreError> {
        match self {
            Content::Memory(bytes) => see(bytes.get(from as usize..).unwrap_or_default()),
            Content::File(file) => {
                let (large, mut piece) = (file.open()?, Vec::new());
                let first = from / large.step();
                for number in first..large.pieces() {
                    large.piece(number, &mut piece)?;
                    let skip = from.saturating_sub(number * large.step()) as usize;
                    see(piece.get(skip..).unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// As the store takes it.
    pub(crate) fn body(self, buffer: &mut Vec<u8>) -> Body<'_> {
        match self {
            Content::Memory(bytes) => {
                *buffer = bytes;
                Body::Inline(buffer)
            }
            Content::File(file) => Body::Large(file),
        }
    }
}

/// What an upload will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    Entry { key: String, version: String },
    Artifact { run: String, job: String, name: String, mime: String, expires_at: Option<Timestamp> },
}

struct Upload {
    name: Name,
    by: String,
    purpose: Purpose,
    touched: Timestamp,
    blocks: HashMap<String, Content>,
    bytes: u64,
    committed: Option<(Content, Option<Digest>)>,
    /// Being put together; not to be expired or finalized.
    busy: bool,
}

/// An upload that is ready to become an entry.
pub(crate) struct Ready {
    pub(crate) name: Name,
    pub(crate) purpose: Purpose,
    pub(crate) content: Content,
}

/// Why something cannot be done with an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the upload is not known: it was finalized, it expired, or the cache was restarted")]
    Unknown,
    #[error("the key is reserved by an upload that is under way")]
    Taken,
    #[error("too many uploads are under way")]
    Many,
    #[error("the uploads that are under way take all the space that they may")]
    Space,
    #[error("the upload is larger than it may be")]
    Large,
    #[error("the block list names a block that was not uploaded")]
    NoBlock,
    #[error("the upload was committed already, with another list of blocks")]
    Committed,
    #[error("the upload was not committed: there is no blob and no block list")]
    Open,
    #[error("another job reserved this key")]
    Another,
    #[error("the upload has too many blocks")]
    Blocks,
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<String, Upload>,
    by_name: HashMap<NameHash, String>,
    memory: u64,
    pending: u64,
}

impl Inner {
    fn forget(&mut self, id: &str) -> Option<Upload> {
        let upload = self.by_id.remove(id)?;
        self.by_name.remove(&upload.name.hash());
        let contents = upload.blocks.values().chain(upload.committed.as_ref().map(|(content, _)| content));
        for content in contents {
            self.memory -= content.in_memory().min(self.memory);
            self.pending -= content.size().min(self.pending);
        }
        Some(upload)
    }

    fn expire(&mut self, now: Timestamp) {
        let old = |upload: &Upload| !upload.busy && now.as_micros() - upload.touched.as_micros() > LIFE;
        let ids: Vec<String> =
            self.by_id.iter().filter(|(_, upload)| old(upload)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            if let Some(upload) = self.forget(&id) {
                tracing::info!(entry = %upload.name, "an upload was given up: nothing was heard of it for ten minutes");
            }
        }
    }
}

/// All uploads under way.
pub(crate) struct Uploads {
    inner: Mutex<Inner>,
    most_pending: u64,
}

impl Uploads {
    pub(crate) fn new(most_pending: u64) -> Self {
        Self { inner: Mutex::default(), most_pending }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up what was not heard of.
    pub(crate) fn expire(&self, now: Timestamp) {
        self.inner().expire(now);
    }

    /// Reserves a name under an id that nobody can guess. Artifacts may be begun anew by the job that began them.
    pub(crate) fn reserve(
        &self,
        id: String,
        name: Name,
        by: &str,
        purpose: Purpose,
        now: Timestamp,
    ) -> Result<(), UploadError> {
        let mut inner = self.inner();
        inner.expire(now);
        if let Some(other) = inner.by_name.get(&name.hash()).cloned() {
            let anew = matches!(purpose, Purpose::Artifact { .. })
                && inner.by_id.get(&other).is_some_and(|upload| upload.by == by && !upload.busy);
            if !anew {
                return Err(UploadError::Taken);
            }
            inner.forget(&other);
        }
        if inner.by_id.len() >= MOST {
            return Err(UploadError::Many);
        }
        inner.by_name.insert(name.hash(), id.clone());
        let (by, blocks) = (by.to_owned(), HashMap::new());
        let upload =
            Upload { name, by, purpose, touched: now, blocks, bytes: 0, committed: None, busy: false };
        inner.by_id.insert(id, upload);
        Ok(())
    }

    /// Whether a body of this size may come, before it is read. Marks the upload as alive.
    pub(crate) fn admit(&self, id: &str, size: u64, longest: u64, now: Timestamp) -> Result<(), UploadError> {
        let mut inner = self.inner();
        let pending = inner.pending;
        let upload = inner.by_id.get_mut(id).ok_or(UploadError::Unknown)?;
        upload.touched = now;
        if upload.bytes.saturating_add(size) > longest {
            return Err(UploadError::Large);
        }
        if pending.saturating_add(size) > self.most_pending {
            return Err(UploadError::Space);
        }
        Ok(())
    }

    /// Whether a small block stays in memory.
    pub(crate) fn room(&self, size: u64) -> bool {
        self.inner().memory + size <= MEMORY
    }

    /// A block came in. The same id again replaces it.
    pub(crate) fn block(
        &self,
        id: &str,
        block: String,
        content: Content,
        longest: u64,
        now: Timestamp,
    ) -> Result<(), UploadError> {
        let mut inner = self.inner();
        let (size, memory) = (content.size(), content.in_memory());
        if inner.pending.saturating_add(size) > self.most_pending {
            return Err(UploadError::Space);
        }
        let upload = inner.by_id.get_mut(id).ok_or(UploadError::Unknown)?;
        upload.touched = now;
        if upload.committed.is_some() || upload.busy {
            return Err(UploadError::Committed);
        }
        if upload.blocks.len() >= super::block_list::MOST_BLOCKS && !upload.blocks.contains_key(&block) {
            return Err(UploadError::Blocks);
        }
        if upload.bytes.saturating_add(size) > longest {
            return Err(UploadError::Large);
        }
        upload.bytes += size;
        let before = upload.blocks.insert(block, content);
        if let Some(before) = &before {
            upload.bytes -= before.size();
        }
        let (was, was_memory) = before.map_or((0, 0), |before| (before.size(), before.in_memory()));
        inner.pending = (inner.pending + size).saturating_sub(was);
        inner.memory = (inner.memory + memory).saturating_sub(was_memory);
        Ok(())
    }

    /// A whole blob came in, or was put together from the blocks of this list.
    pub(crate) fn whole(
        &self,
        id: &str,
        content: Content,
        list: Option<Digest>,
        now: Timestamp,
    ) -> Result<(), UploadError> {
        let mut inner = self.inner();
        let (size, memory) = (content.size(), content.in_memory());
        if inner.pending.saturating_add(size) > self.most_pending {
            return Err(UploadError::Space);
        }
        let upload = inner.by_id.get_mut(id).ok_or(UploadError::Unknown)?;
        upload.touched = now;
        if list.is_none() && upload.busy {
            return Err(UploadError::Taken);
        }
        upload.busy = false;
        let before = upload.committed.replace((content, list)).map(|(before, _)| before);
        upload.bytes = size;
        let (was, was_memory) = before.map_or((0, 0), |before| (before.size(), before.in_memory()));
        inner.pending = (inner.pending + size).saturating_sub(was);
        inner.memory = (inner.memory + memory).saturating_sub(was_memory);
        Ok(())
    }

    /// The blocks of a list, in its order, to be put together. Nothing when just this list was committed before. Blocks
    /// that the list does not name are dropped, as Azure does.
    pub(crate) fn listed(
        &self,
        id: &str,
        ids: &[String],
        list: Digest,
    ) -> Result<Option<Vec<Content>>, UploadError> {
        let mut inner = self.inner();
        let upload = inner.by_id.get_mut(id).ok_or(UploadError::Unknown)?;
        match &upload.committed {
            Some((_, before)) if *before == Some(list) => return Ok(None),
            Some(_) => return Err(UploadError::Committed),
            None if upload.busy => return Err(UploadError::Taken),
            None => {}
        }
        let mut seen = std::collections::HashSet::new();
        if !ids.iter().all(|id| upload.blocks.contains_key(id) && seen.insert(id)) {
            return Err(UploadError::NoBlock);
        }
        upload.busy = true;
        let mut blocks = std::mem::take(&mut upload.blocks);
        let (mut size, mut memory) = (0, 0);
        for content in blocks.values() {
            size += content.size();
            memory += content.in_memory();
        }
        inner.pending = inner.pending.saturating_sub(size);
        inner.memory = inner.memory.saturating_sub(memory);
        Ok(Some(ids.iter().filter_map(|id| blocks.remove(id)).collect()))
    }

    /// Gives an upload up.
    pub(crate) fn abandon(&self, id: &str) {
        self.inner().forget(id);
    }

    /// Takes a committed upload out, to be stored. Its name is free again.
    pub(crate) fn take(&self, name: NameHash, by: &str) -> Result<Ready, UploadError> {
        let mut inner = self.inner();
        let id = inner.by_name.get(&name).cloned().ok_or(UploadError::Unknown)?;
        let upload = inner.by_id.get(&id).ok_or(UploadError::Unknown)?;
        if upload.by != by {
            return Err(UploadError::Another);
        }
        if upload.busy || upload.committed.is_none() {
            return Err(UploadError::Open);
        }
        let upload = inner.forget(&id).ok_or(UploadError::Unknown)?;
        let (content, _) = upload.committed.ok_or(UploadError::Open)?;
        Ok(Ready { name: upload.name, purpose: upload.purpose, content })
    }
}

/// Puts blocks together. Blocks.
pub(crate) fn assemble(
    mut blocks: Vec<Content>,
    spool: impl FnOnce() -> Result<Spool, StoreError>,
    sync: bool,
) -> Result<Content, StoreError> {
    let size: u64 = blocks.iter().map(Content::size).sum();
    if size <= crate::store::INLINE {
        let mut all = Vec::with_capacity(size as usize);
        for block in &blocks {
            block.read(0, |bytes| all.extend_from_slice(bytes))?;
        }
        return Ok(Content::Memory(all));
    }
    if blocks.len() == 1
        && !sync
        && let Some(one) = blocks.pop()
    {
        return Ok(one);
    }
    let mut to = spool()?;
    for block in blocks {
        let mut failed = Ok(());
        block.read(0, |bytes| {
            if failed.is_ok() {
                failed = to.write(bytes);
            }
        })?;
        failed?;
        // its file goes now, so that no more than one block is on the disk twice
    }
    Ok(Content::File(to.finish(sync)?))
}
