//! A decorator that compares whole blobs with their digest while they are read.

use crate::reader::finish;
use crate::{Blob, BlobFacts, BlobStore, Error, Reader, Stored};
use forgeyard_model::{Digest, Timestamp};
use futures::stream::BoxStream;
use sha2::{Digest as _, Sha256};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Verifies reads of whole blobs. The last piece is delivered only after the digest was compared, so nobody ever holds
/// all bytes of a corrupt blob. Reads of a part cannot be compared and pass as they are.
#[derive(Debug, Clone)]
pub struct Verified<S> {
    inner: S,
}

impl<S> Verified<S> {
    /// Verifies what `inner` delivers.
    pub fn new(inner: S) -> Self {
        Self { inner }
    }
}

#[async_trait::async_trait]
impl<S: BlobStore> BlobStore for Verified<S> {
    async fn put(&self, expected: Option<Digest>, bytes: Reader<'_>) -> Result<Stored, Error> {
        self.inner.put(expected, bytes).await
    }

    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error> {
        let blob = self.inner.get(digest, range).await?;
        if blob.len() != blob.size {
            return Ok(blob);
        }
        let left = blob.size;
        let comparing = Comparing { inner: blob.reader, digest, hash: Some(Sha256::new()), left };
        Ok(Blob { reader: Box::new(comparing), ..blob })
    }

    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        self.inner.stat(digest).await
    }
    async fn touch(&self, digest: Digest) -> Result<bool, Error> {
        self.inner.touch(digest).await
    }
    async fn delete(&self, digest: Digest) -> Result<bool, Error> {
        self.inner.delete(digest).await
    }
    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>> {
        self.inner.list()
    }
    async fn free_space(&self) -> Result<Option<u64>, Error> {
        self.inner.free_space().await
    }
    async fn verify(&self, digest: Digest) -> Result<Stored, Error> {
        self.inner.verify(digest).await
    }
    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        self.inner.bury(digest, seen).await
    }
    async fn unbury(&self, digest: Digest) -> Result<(), Error> {
        self.inner.unbury(digest).await
    }
    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error> {
        self.inner.delete_buried(digest).await
    }
}

struct Comparing {
    inner: Reader<'static>,
    digest: Digest,
    /// Gone once compared.
    hash: Option<Sha256>,
    left: u64,
}

impl AsyncRead for Comparing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, into))?;
        let new = &into.filled()[before..];
        self.left = self.left.saturating_sub(new.len() as u64);
        if let Some(hash) = &mut self.hash {
            hash.update(new);
        }
        if self.left == 0
            && let Some(found) = self.hash.take().map(finish)
            && found != self.digest
        {
            into.set_filled(before);
            let corrupt = Error::Corrupt { digest: self.digest, found };
            return Poll::Ready(Err(std::io::Error::new(std::io::ErrorKind::InvalidData, corrupt)));
        }
        Poll::Ready(Ok(()))
    }
}
