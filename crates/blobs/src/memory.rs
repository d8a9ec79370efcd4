//! *Simulated* store: everything in memory, gone with the process. The twin of the real backends, for tests of callers.

use crate::reader::{Exact, within};
use crate::{Blob, BlobFacts, BlobStore, Clock, Error, Reader, Stored};
use forgeyard_model::{Digest, Timestamp};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::AsyncReadExt as _;

/// A store in memory. Cheap to clone; all clones are one store.
#[derive(Clone)]
pub struct MemoryStore {
    blobs: Arc<Mutex<BTreeMap<Digest, Entry>>>,
    clock: Clock,
    capacity: Option<u64>,
}

struct Entry {
    bytes: Arc<Vec<u8>>,
    size: u64,
    stored_at: Timestamp,
    buried_at: Option<Timestamp>,
}

impl MemoryStore {
    /// An empty store without a limit.
    pub fn new(clock: Clock) -> Self {
        Self { blobs: Arc::default(), clock, capacity: None }
    }

    /// An empty store that is full at this many bytes.
    pub fn with_capacity(clock: Clock, bytes: u64) -> Self {
        Self { capacity: Some(bytes), ..Self::new(clock) }
    }

    /// Flips one bit of the stored bytes, as a failing disk would. Answers whether there was a bit to flip.
    pub fn damage(&self, digest: Digest) -> bool {
        let mut blobs = self.lock();
        let Some(entry) = blobs.get_mut(&digest) else { return false };
        let mut bytes = entry.bytes.as_ref().clone();
        let Some(last) = bytes.last_mut() else { return false };
        *last ^= 1;
        entry.bytes = Arc::new(bytes);
        true
    }

    /// Cuts the last byte off without changing the recorded size. Answers whether there was one.
    pub fn truncate(&self, digest: Digest) -> bool {
        let mut blobs = self.lock();
        let Some(entry) = blobs.get_mut(&digest) else { return false };
        let mut bytes = entry.bytes.as_ref().clone();
        let cut = bytes.pop().is_some();
        entry.bytes = Arc::new(bytes);
        cut
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Digest, Entry>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(blobs: &BTreeMap<Digest, Entry>) -> u64 {
        blobs.values().map(|entry| entry.size).sum()
    }
}

fn facts(digest: Digest, entry: &Entry) -> BlobFacts {
    BlobFacts { digest, size: entry.size, stored_at: entry.stored_at, buried_at: entry.buried_at }
}

#[async_trait::async_trait]
impl BlobStore for MemoryStore {
    async fn put(&self, expected: Option<Digest>, mut bytes: Reader<'_>) -> Result<Stored, Error> {
        let mut all = Vec::new();
        bytes.read_to_end(&mut all).await.map_err(|source| Error::Source { source })?;
        let (digest, size) = (Digest::of(&all), all.len() as u64);
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(Error::Mismatch { expected, found: digest });
        }
        let mut blobs = self.lock();
        let replaced = blobs.get(&digest).map_or(0, |entry| entry.size);
        if self.capacity.is_some_and(|capacity| Self::used(&blobs) - replaced + size > capacity) {
            return Err(Error::NoSpace { place: "memory".into() });
        }
        let entry = Entry { bytes: Arc::new(all), size, stored_at: (self.clock)(), buried_at: None };
        blobs.insert(digest, entry);
        Ok(Stored { digest, size })
    }

    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error> {
        let blobs = self.lock();
        let entry = blobs.get(&digest).ok_or(Error::NotFound { digest })?;
        let range = within(digest, range, entry.size)?;
        let mut cursor = std::io::Cursor::new(Bytes(entry.bytes.clone()));
        cursor.set_position(range.start);
        let reader = Box::new(Exact::new(cursor, digest, range.end - range.start));
        Ok(Blob { size: entry.size, range, reader })
    }

    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        Ok(self.lock().get(&digest).map(|entry| facts(digest, entry)))
    }

    async fn touch(&self, digest: Digest) -> Result<bool, Error> {
        let now = (self.clock)();
        Ok(self
            .lock()
            .get_mut(&digest)
            .map(|entry| (entry.stored_at, entry.buried_at) = (now, None))
            .is_some())
    }

    async fn delete(&self, digest: Digest) -> Result<bool, Error> {
        Ok(self.lock().remove(&digest).is_some())
    }

    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>> {
        let all: Vec<_> = self.lock().iter().map(|(digest, entry)| Ok(facts(*digest, entry))).collect();
        futures::stream::iter(all).boxed()
    }

    async fn free_space(&self) -> Result<Option<u64>, Error> {
        let used = Self::used(&self.lock());
        Ok(self.capacity.map(|capacity| capacity.saturating_sub(used)))
    }

    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        let now = (self.clock)();
        let mut blobs = self.lock();
        let Some(entry) = blobs.get_mut(&digest).filter(|entry| entry.stored_at <= seen) else {
            return Ok(false);
        };
        entry.buried_at.get_or_insert(now);
        Ok(true)
    }

    async fn unbury(&self, digest: Digest) -> Result<(), Error> {
        if let Some(entry) = self.lock().get_mut(&digest) {
            entry.buried_at = None;
        }
        Ok(())
    }

    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error> {
        let mut blobs = self.lock();
        let buried = blobs.get(&digest).is_some_and(|entry| entry.buried_at.is_some());
        if buried {
            blobs.remove(&digest);
        }
        Ok(buried)
    }
}

/// Shared bytes as a slice, which is what a cursor reads.
struct Bytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}
