//! A decorator that counts.
//!
//! - `forgeyard_blobs_operations_total{store, operation, outcome}`: calls, `outcome` is `ok` or the code of the error;
//! - `forgeyard_blobs_bytes_total{store, direction}`: bytes stored (`in`) and bytes opened for reading (`out`).

use crate::{Blob, BlobFacts, BlobStore, Error, Reader, Stored};
use forgeyard_model::{Digest, Timestamp};
use futures::stream::BoxStream;
use std::ops::Range;

/// Counts calls and bytes of a store under a name.
#[derive(Debug, Clone)]
pub struct Metered<S> {
    inner: S,
    store: &'static str,
}

impl<S> Metered<S> {
    /// Counts what `inner` does under the label `store`.
    pub fn new(inner: S, store: &'static str) -> Self {
        Self { inner, store }
    }

    fn count<T>(&self, operation: &'static str, result: Result<T, Error>) -> Result<T, Error> {
        let outcome = match &result {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.explanation().code,
        };
        metrics::counter!(
            "forgeyard_blobs_operations_total",
            "store" => self.store, "operation" => operation, "outcome" => outcome
        )
        .increment(1);
        result
    }

    fn bytes(&self, direction: &'static str, count: u64) {
        metrics::counter!("forgeyard_blobs_bytes_total", "store" => self.store, "direction" => direction)
            .increment(count);
    }
}

#[async_trait::async_trait]
impl<S: BlobStore> BlobStore for Metered<S> {
    async fn put(&self, expected: Option<Digest>, bytes: Reader<'_>) -> Result<Stored, Error> {
        let stored = self.count("put", self.inner.put(expected, bytes).await)?;
        self.bytes("in", stored.size);
        Ok(stored)
    }
    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error> {
        let blob = self.count("get", self.inner.get(digest, range).await)?;
        self.bytes("out", blob.len());
        Ok(blob)
    }
    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        self.count("stat", self.inner.stat(digest).await)
    }
    async fn touch(&self, digest: Digest) -> Result<bool, Error> {
        self.count("touch", self.inner.touch(digest).await)
    }
    async fn delete(&self, digest: Digest) -> Result<bool, Error> {
        self.count("delete", self.inner.delete(digest).await)
    }
    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>> {
        self.inner.list()
    }
    async fn free_space(&self) -> Result<Option<u64>, Error> {
        self.count("free_space", self.inner.free_space().await)
    }
    async fn verify(&self, digest: Digest) -> Result<Stored, Error> {
        self.count("verify", self.inner.verify(digest).await)
    }
    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        self.count("bury", self.inner.bury(digest, seen).await)
    }
    async fn unbury(&self, digest: Digest) -> Result<(), Error> {
        self.count("unbury", self.inner.unbury(digest).await)
    }
    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error> {
        self.count("delete_buried", self.inner.delete_buried(digest).await)
    }
}
