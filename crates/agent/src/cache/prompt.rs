//! A connection of a job that tells its client at once that the head of a request came, when its body is waited for.
//!
//! The kernel waits 40 ms with an acknowledgement, for an answer that could carry it. A client that writes head and body one after the
//! other with Nagle's algorithm on (ccache 4.7) holds the body back until then, at each file that it compiled.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Set by whoever waits for a body.
pub(super) type Awaited = Arc<AtomicBool>;

/// The connection.
pub(super) struct Prompt {
    stream: TcpStream,
    awaited: Awaited,
}

impl Prompt {
    /// Takes over a connection.
    pub(super) fn new(stream: TcpStream) -> (Self, Awaited) {
        let _ = stream.set_nodelay(true);
        let awaited = Awaited::default();
        (Self { stream, awaited: Arc::clone(&awaited) }, awaited)
    }
}

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() && self.awaited.swap(false, Ordering::Relaxed) {
            // without it the body is late, and nothing else is wrong
            let _ = self.stream.set_quickack(true);
        }
        read
    }
}

impl AsyncWrite for Prompt {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
