//! A connection that speaks TLS: its handshake, and how heads, bodies and files go through it.
//!
//! Whoever speaks no TLS is told so in an answer without TLS, as far as that can be told by the first byte: each record of a
//! handshake begins with [`RECORD`], no request does.

use crate::socket::STALLED;
use crate::tls::Tls;
use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Type of a record of a handshake, which is its first byte (RFC 8446, 5.1).
const RECORD: u8 = 22;
/// Bytes of a file that are read at once.
const PIECE: usize = 256 << 10;
/// How long a client may take to hear that the connection ends.
const FAREWELL: Duration = Duration::from_secs(5);

const NO_TLS: &str = "this port speaks TLS: use https, or grpcs\n";

/// See the module.
pub(crate) struct Secured {
    pub(crate) stream: TlsStream<TcpStream>,
    /// What was read of a file last.
    piece: Vec<u8>,
}

impl Secured {
    /// Waits for the client's handshake, and not for long.
    pub(crate) async fn handshake(tls: &Tls, mut stream: TcpStream) -> std::io::Result<Self> {
        let done = tokio::time::timeout(tls.handshake, async {
            let mut first = [0];
            if stream.peek(&mut first).await? == 1 && first != [RECORD] {
                refuse(&mut stream).await?;
                return Err(std::io::Error::from(std::io::ErrorKind::InvalidData));
            }
            tls.acceptor.accept(stream).await
        });
        let stream = done.await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        Ok(Self { stream, piece: Vec::new() })
    }

    /// Writes a head, and the body behind it, in as few records as they fit in.
    pub(crate) async fn write_both(&mut self, head: &[u8], body: &[u8]) -> std::io::Result<()> {
        pass(&mut self.stream, head, body).await?;
        patiently(self.stream.flush()).await
    }

    /// Writes a head, and a part of a file behind it.
    pub(crate) async fn write_file(
        &mut self,
        mut head: &[u8],
        file: &File,
        part: Range<u64>,
    ) -> std::io::Result<()> {
        let Self { stream, piece } = self;
        let mut at = part.start;
        while at < part.end {
            let some = (part.end - at).min(PIECE as u64) as usize;
            if piece.len() < some {
                piece.resize(some, 0);
            }
            let some = piece.get_mut(..some).unwrap_or_default();
            let read = match file.read_at(some, at) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            pass(stream, head, some.get(..read).unwrap_or_default()).await?;
            head = &[];
            at += read as u64;
        }
        self.write_both(head, &[]).await
    }

    /// Tells the client that nothing more comes, since the end of a connection alone could be anybody's doing.
    pub(crate) async fn end(&mut self) {
        let _ = tokio::time::timeout(FAREWELL, self.stream.shutdown()).await;
    }
}

/// Hands bytes over; some of them may not be sent yet.
async fn pass(stream: &mut TlsStream<TcpStream>, mut head: &[u8], mut body: &[u8]) -> std::io::Result<()> {
    while !head.is_empty() || !body.is_empty() {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        let written = patiently(stream.write_vectored(&parts)).await?;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        let of_head = written.min(head.len());
        head = &head[of_head..];
        body = &body[written - of_head..];
    }
    Ok(())
}

/// Waits for a step of writing, and sets a timer only when there is something to wait for.
async fn patiently<T>(step: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    let mut step = pin!(step);
    if let Poll::Ready(done) = std::future::poll_fn(|context| Poll::Ready(step.as_mut().poll(context))).await
    {
        return done;
    }
    let stalled = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    tokio::time::timeout(STALLED, step).await.map_err(stalled)?
}

/// Answers somebody who speaks no TLS.
async fn refuse(stream: &mut TcpStream) -> std::io::Result<()> {
    // what is not read makes the system throw the answer away
    let mut request = vec![0; 16 << 10];
    let _ = stream.read(&mut request).await?;
    let length = NO_TLS.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{NO_TLS}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
