//! Content-addressed bytes: one port, [`BlobStore`], its backends and its decorators.
//!
//! A blob is named by the SHA-256 of its bytes and never changes. Who may see it, what it is called and how far it is
//! trusted are facts of records elsewhere; this crate knows only bytes.
//!
//! Contract of every backend, checked by `tests/conformance.rs`:
//! - a put that answered `Ok` survives a crash of the process and of the machine;
//! - a put that did not answer `Ok` leaves nothing that can be read: no half blob is ever visible under a digest;
//! - a put whose bytes are not what the caller said is refused with [`Error::Mismatch`] and stores nothing;
//! - putting the same bytes again is `Ok`, also at the same time; it renews the blob's age and lifts its tombstone;
//! - a reader delivers exactly the bytes of its range, or an error: a blob that ends early is never a short read.
//!
//! Garbage collection is in [`collect`]. It needs three more operations of a backend, [`BlobStore::bury`],
//! [`BlobStore::unbury`] and [`BlobStore::delete_buried`]; the last one and [`BlobStore::put`] exclude each other per
//! digest, which is what lets a put that runs during a sweep win.

pub mod collect;
mod disk;
mod error;
#[cfg(feature = "twin")]
mod memory;
mod metered;
mod reader;
mod verified;

pub use disk::DiskStore;
pub use error::Error;
#[cfg(feature = "twin")]
pub use memory::MemoryStore;
pub use metered::Metered;
pub use verified::Verified;

use forgeyard_model::{Digest, Timestamp};
use futures::stream::BoxStream;
use std::ops::Range;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Where a store takes the time from. Ages of blobs are measured against it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Bytes that are read piece by piece.
pub type Reader<'a> = Box<dyn AsyncRead + Send + Unpin + 'a>;

/// What a put stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Digest of the bytes, computed while they were written.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
}

/// What is known of a blob without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobFacts {
    /// Its name.
    pub digest: Digest,
    /// Its size, in bytes.
    pub size: u64,
    /// When it was last put or touched.
    pub stored_at: Timestamp,
    /// Since when a tombstone lies on it. A buried blob can still be read.
    pub buried_at: Option<Timestamp>,
}

/// A blob that is open for reading.
pub struct Blob {
    /// Size of the whole blob, in bytes.
    pub size: u64,
    /// The part that [`Blob::reader`] delivers.
    pub range: Range<u64>,
    /// The bytes of the range: all of them, or an error.
    pub reader: Reader<'static>,
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blob").field("size", &self.size).field("range", &self.range).finish_non_exhaustive()
    }
}

impl Blob {
    /// How many bytes the reader delivers.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether the reader delivers nothing.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Reads all bytes of the range into memory.
    pub async fn bytes(mut self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.reader.read_to_end(&mut bytes).await.map_err(Error::from_reading)?;
        Ok(bytes)
    }
}

/// A place that keeps blobs.
#[async_trait::async_trait]
pub trait BlobStore: Send + Sync {
    /// Stores all bytes of `bytes`. With `expected`, refuses them when their digest is another.
    async fn put(&self, expected: Option<Digest>, bytes: Reader<'_>) -> Result<Stored, Error>;

    /// Opens a blob, whole or in part. A range must lie within the blob: `start <= end <= size`.
    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error>;

    /// What is known of a blob; `None` when it is not here.
    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error>;

    /// Makes a blob young again and lifts its tombstone, as a put would, without its bytes. Answers whether it is here.
    /// Whoever skips an upload because the blob is here already calls this, not only [`BlobStore::stat`].
    async fn touch(&self, digest: Digest) -> Result<bool, Error>;

    /// Removes a blob at once, whatever refers to it. Answers whether it was here.
    async fn delete(&self, digest: Digest) -> Result<bool, Error>;

    /// All blobs, in no order.
    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>>;

    /// Bytes that can still be stored; `None` when the backend has no limit that it knows of.
    async fn free_space(&self) -> Result<Option<u64>, Error>;

    /// Reads the whole blob and compares. [`Error::Corrupt`] when a byte differs.
    async fn verify(&self, digest: Digest) -> Result<Stored, Error> {
        let blob = self.get(digest, None).await?;
        let stored = reader::drain(blob.reader).await?;
        if stored.digest == digest {
            Ok(stored)
        } else {
            Err(Error::Corrupt { digest, found: stored.digest })
        }
    }

    /// Lays a tombstone on a blob: the first phase of its removal. Keeps an older tombstone. Does nothing when the blob
    /// was put or touched after `seen`, the [`BlobFacts::stored_at`] that the caller decided on: that is a new upload.
    /// Answers whether a tombstone lies there.
    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error>;

    /// Lifts the tombstone without making the blob younger.
    async fn unbury(&self, digest: Digest) -> Result<(), Error>;

    /// Removes a blob if a tombstone still lies on it: the second phase. Answers whether it was removed.
    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error>;

    /// Stores bytes that are in memory already.
    async fn put_bytes(&self, bytes: &[u8]) -> Result<Stored, Error> {
        self.put(None, Box::new(bytes)).await
    }
}

#[async_trait::async_trait]
impl<S: BlobStore + ?Sized> BlobStore for Arc<S> {
    async fn put(&self, expected: Option<Digest>, bytes: Reader<'_>) -> Result<Stored, Error> {
        (**self).put(expected, bytes).await
    }
    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error> {
        (**self).get(digest, range).await
    }
    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        (**self).stat(digest).await
    }
    async fn touch(&self, digest: Digest) -> Result<bool, Error> {
        (**self).touch(digest).await
    }
    async fn delete(&self, digest: Digest) -> Result<bool, Error> {
        (**self).delete(digest).await
    }
    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>> {
        (**self).list()
    }
    async fn free_space(&self) -> Result<Option<u64>, Error> {
        (**self).free_space().await
    }
    async fn verify(&self, digest: Digest) -> Result<Stored, Error> {
        (**self).verify(digest).await
    }
    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        (**self).bury(digest, seen).await
    }
    async fn unbury(&self, digest: Digest) -> Result<(), Error> {
        (**self).unbury(digest).await
    }
    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error> {
        (**self).delete_buried(digest).await
    }
}
