//! Readers that check what passes through them.

use crate::{Error, Reader, Stored};
use forgeyard_model::Digest;
use sha2::{Digest as _, Sha256};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf, Take};

/// Size of the pieces in which bytes are moved: large enough that the cost per piece does not show.
pub(crate) const PIECE: usize = 512 * 1024;

/// Digest of what a hasher has seen.
pub(crate) fn finish(hash: Sha256) -> Digest {
    Digest::from_bytes(hash.finalize().into())
}

/// Checks a range against a size; no range means everything.
pub(crate) fn within(digest: Digest, range: Option<Range<u64>>, size: u64) -> Result<Range<u64>, Error> {
    let range = range.unwrap_or(0..size);
    if range.start <= range.end && range.end <= size {
        Ok(range)
    } else {
        Err(Error::Range { digest, start: range.start, end: range.end, size })
    }
}

/// Reads to the end and says what it was.
pub(crate) async fn drain(mut reader: Reader<'_>) -> Result<Stored, Error> {
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut piece = vec![0; PIECE];
    loop {
        let count = reader.read(&mut piece).await.map_err(Error::from_reading)?;
        if count == 0 {
            return Ok(Stored { digest: finish(hash), size });
        }
        hash.update(&piece[..count]);
        size += count as u64;
    }
}

/// Delivers exactly so many bytes: stops there, and turns an early end into [`Error::Short`].
pub(crate) struct Exact<R> {
    inner: Take<R>,
    digest: Digest,
}

impl<R: AsyncRead> Exact<R> {
    pub(crate) fn new(inner: R, digest: Digest, length: u64) -> Self {
        Self { inner: inner.take(length), digest }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Exact<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let room = into.remaining();
        ready!(Pin::new(&mut self.inner).poll_read(cx, into))?;
        let missing = self.inner.limit();
        if into.filled().len() == before && room > 0 && missing > 0 {
            let short = Error::Short { digest: self.digest, missing };
            return Poll::Ready(Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, short)));
        }
        Poll::Ready(Ok(()))
    }
}
