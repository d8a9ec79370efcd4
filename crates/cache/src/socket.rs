//! What a connection reads from and writes to, and the patience with who says nothing.
//!
//! No timer is set for a read, since nearly each request waits for its bytes: a socket notes until when it waits, and once every
//! [`TICK`] its thread ends those that waited too long. Such a read ends as if the client had closed. A write that stalls is rare,
//! and has a timer.
//!
//! A connection by TLS is kept in a box ([`Secured`]), so that one without it is as small and as fast as it can be.

use crate::secured::Secured;
use crate::tls::Tls;
use nix::sys::socket::{MsgFlags, Shutdown};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, RawFd};
#[cfg(feature = "grpc")]
use std::pin::Pin;
use std::rc::{Rc, Weak};
#[cfg(feature = "grpc")]
use std::task::Context;
use std::task::Poll;
use std::time::Duration;
#[cfg(feature = "grpc")]
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;

/// Without a request for so long, a connection is closed.
pub(crate) const IDLE: Duration = Duration::from_secs(180);
/// Within a request, so long without a byte ends it.
pub(crate) const STALLED: Duration = Duration::from_secs(60);
/// How exactly that is meant.
const TICK: Duration = Duration::from_secs(5);

/// `MSG_MORE` of Linux, which the crate does not name: the head waits for the bytes that follow.
const MORE: MsgFlags = MsgFlags::from_bits_retain(0x8000);

/// A socket that may be waited for.
struct Seat {
    socket: RawFd,
    /// The tick at which its patience ends; `u32::MAX` when nothing is waited for.
    until: Cell<u32>,
}

/// The sockets of a thread.
#[derive(Default)]
pub(crate) struct Patience {
    now: Rc<Cell<u32>>,
    seats: RefCell<Vec<Weak<Seat>>>,
}

impl Patience {
    /// Ends what waited too long, for ever.
    pub(crate) async fn watch(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tick();
        }
    }

    fn tick(&self) {
        let now = self.now.get().saturating_add(1);
        self.now.set(now);
        self.seats.borrow_mut().retain(|seat| {
            let Some(seat) = seat.upgrade() else { return false };
            if seat.until.get() <= now {
                // whoever reads is woken and reads the end; the socket is open, since its seat is there
                let _ = nix::sys::socket::shutdown(seat.socket, Shutdown::Both);
            }
            true
        });
    }

    /// A socket of this thread.
    pub(crate) fn seat(&self, stream: TcpStream) -> Socket {
        let seat = Rc::new(Seat { socket: stream.as_raw_fd(), until: Cell::new(u32::MAX) });
        self.seats.borrow_mut().push(Rc::downgrade(&seat));
        Socket { stream: Stream::Plain(stream), seat, now: Rc::clone(&self.now) }
    }
}

/// What bytes go through.
enum Stream {
    Plain(TcpStream),
    Tls(Box<Secured>),
}

/// The socket of a connection.
pub(crate) struct Socket {
    stream: Stream,
    seat: Rc<Seat>,
    now: Rc<Cell<u32>>,
}

impl Socket {
    /// The same, from now on by TLS.
    pub(crate) async fn by(self, tls: &Tls) -> std::io::Result<Self> {
        let Self { stream, seat, now } = self;
        let stream = match stream {
            Stream::Plain(stream) => Stream::Tls(Box::new(Secured::handshake(tls, stream).await?)),
            stream => stream,
        };
        Ok(Self { stream, seat, now })
    }

    /// Whether the client speaks TLS.
    pub(crate) fn secure(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// The stream, for whoever has a patience of its own; it begins with these bytes.
    #[cfg(feature = "grpc")]
    pub(crate) fn into_stream(self, begun: Vec<u8>) -> Whole {
        Whole { begun, at: 0, stream: self.stream }
    }

    /// Tells the client now that its bytes came. The kernel waits 40 ms with that, for an answer that could carry it; and a client that
    /// writes its head first and has Nagle's algorithm on (ccache 4.7) holds its body back for as long.
    pub(crate) fn acknowledge(&self) {
        let stream = match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(secured) => secured.stream.get_ref().0,
        };
        // without it the body is late, and nothing else is wrong
        let _ = stream.set_quickack(true);
    }

    /// From now on its end tells the client that something broke off.
    pub(crate) fn end_abruptly(&self) {
        let _ = match &self.stream {
            Stream::Plain(stream) => stream.set_zero_linger(),
            Stream::Tls(secured) => secured.stream.get_ref().0.set_zero_linger(),
        };
    }

    /// The connection ends, and nothing broke off.
    pub(crate) async fn end(&mut self) {
        if let Stream::Tls(secured) = &mut self.stream {
            secured.end().await;
        }
    }

    /// Reads what there is room for; nothing when the client closed, or said nothing for so long.
    pub(crate) async fn read(&mut self, buffer: &mut Vec<u8>, within: Duration) -> std::io::Result<usize> {
        let Self { stream, seat, now } = self;
        match stream {
            // unlike `try_read`, this knows after a short read that nothing is left, and saves asking once more
            Stream::Plain(stream) => seat.wait(stream.read_buf(buffer), now, within).await,
            Stream::Tls(secured) => match seat.wait(secured.stream.read_buf(buffer), now, within).await {
                // requests say themselves where they end, so it does not matter that TLS did not
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
                read => read,
            },
        }
    }

    /// Writes all of it.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(bytes).await,
            Stream::Tls(secured) => secured.write_both(bytes, &[]).await,
        }
    }

    /// Writes a head, and the body behind it.
    pub(crate) async fn write_both(&mut self, head: &[u8], body: &[u8]) -> std::io::Result<()> {
        match &mut self.stream {
            Stream::Plain(stream) => write_both(stream, head, body).await,
            Stream::Tls(secured) => secured.write_both(head, body).await,
        }
    }

    /// Writes a head, and a part of a file behind it: from the page cache as it is, where there is no TLS.
    pub(crate) async fn write_file(
        &mut self,
        head: &[u8],
        file: &File,
        part: Range<u64>,
    ) -> std::io::Result<()> {
        match &mut self.stream {
            Stream::Plain(stream) => write_file(stream, head, file, part).await,
            Stream::Tls(secured) => secured.write_file(head, file, part).await,
        }
    }
}

impl Seat {
    /// Waits for a read, and notes until when.
    async fn wait(
        &self,
        read: impl Future<Output = std::io::Result<usize>>,
        now: &Cell<u32>,
        within: Duration,
    ) -> std::io::Result<usize> {
        let mut read = std::pin::pin!(read);
        std::future::poll_fn(|context| {
            let read = read.as_mut().poll(context);
            self.until.set(match read {
                Poll::Pending => {
                    let ticks = within.as_secs().div_ceil(TICK.as_secs()) as u32;
                    // a part of this tick is over
                    now.get().saturating_add(ticks + 1)
                }
                Poll::Ready(_) => u32::MAX,
            });
            read
        })
        .await
    }
}

async fn write_both(stream: &TcpStream, mut head: &[u8], mut body: &[u8]) -> std::io::Result<()> {
    while !head.is_empty() || !body.is_empty() {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        let written = match stream.try_write_vectored(&parts) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                writable(stream).await?;
                continue;
            }
            written => written?,
        };
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        let of_head = written.min(head.len());
        head = &head[of_head..];
        body = &body[written - of_head..];
    }
    Ok(())
}

async fn write_file(
    stream: &TcpStream,
    mut head: &[u8],
    file: &File,
    part: Range<u64>,
) -> std::io::Result<()> {
    let (mut at, end) = (part.start as i64, part.end as i64);
    while !head.is_empty() || at < end {
        let sent = stream.try_io(Interest::WRITABLE, || {
            if head.is_empty() {
                let left = (end - at) as usize;
                return Ok(nix::sys::sendfile::sendfile(stream, file, Some(&mut at), left)?);
            }
            let more = if at < end { MORE } else { MsgFlags::empty() } | MsgFlags::MSG_NOSIGNAL;
            let sent = nix::sys::socket::send(stream.as_raw_fd(), head, more)?;
            head = &head[sent..];
            Ok(sent)
        });
        match sent {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => writable(stream).await?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn writable(stream: &TcpStream) -> std::io::Result<()> {
    let stalled = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    tokio::time::timeout(STALLED, stream.writable()).await.map_err(stalled)?
}

/// The stream of a connection, from its first byte on.
#[cfg(feature = "grpc")]
pub(crate) struct Whole {
    begun: Vec<u8>,
    at: usize,
    stream: Stream,
}

#[cfg(feature = "grpc")]
impl AsyncRead for Whole {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let Self { begun, at, stream } = &mut *self;
        let waiting = begun.get(*at..).unwrap_or_default();
        if !waiting.is_empty() {
            let some = waiting.len().min(buffer.remaining());
            buffer.put_slice(&waiting[..some]);
            *at += some;
            return Poll::Ready(Ok(()));
        }
        match stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_read(context, buffer),
        }
    }
}

#[cfg(feature = "grpc")]
impl AsyncWrite for Whole {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(secured) => Pin::new(&mut secured.stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// ccache#927: a client reads, compiles for a minute or two, and writes over the same connection.
    #[test]
    fn ccache_927_connection_is_kept_for_longer_than_a_compilation_takes() {
        assert!(IDLE >= Duration::from_secs(120));
    }

    #[tokio::test]
    async fn silence_ends_a_read_after_its_time_and_bytes_begin_it_anew() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let patience = Patience::default();
        let mut socket = patience.seat(listener.accept().await.unwrap().0);
        let ticks = (STALLED.as_secs() / TICK.as_secs()) as u32;
        let mut buffer = Vec::with_capacity(9);
        for _ in 0..2 {
            let mut waits = std::pin::pin!(socket.read(&mut buffer, STALLED));
            let first = std::future::poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
            assert!(first.is_pending());
            (0..ticks).for_each(|_| patience.tick());
            client.write_all(b"x").unwrap();
            assert_eq!(waits.await.unwrap(), 1, "it had a part of a tick left");
        }
        (0..=ticks).for_each(|_| patience.tick());
        {
            let mut waits = std::pin::pin!(socket.read(&mut buffer, STALLED));
            let first = std::future::poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
            assert!(first.is_pending(), "nobody waited meanwhile");
            (0..=ticks).for_each(|_| patience.tick());
            assert_eq!(waits.await.unwrap(), 0);
        }
        drop(socket);
        patience.tick();
        assert!(patience.seats.borrow().is_empty());
    }

    #[tokio::test]
    async fn silence_ends_a_read_by_tls_as_if_the_client_had_closed() {
        let (_folder, options) = crate::tls::tests::made();
        let (certificate, tls) = (options.certificate.clone(), Tls::open(&options).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let client = std::thread::spawn(move || crate::tls::tests::client(&certificate, stream, b"x"));
        let patience = Patience::default();
        let mut socket = patience.seat(listener.accept().await.unwrap().0).by(&tls).await.unwrap();
        assert!(socket.secure());
        let mut buffer = Vec::with_capacity(9);
        assert_eq!(socket.read(&mut buffer, STALLED).await.unwrap(), 1);
        let _open = client.join().unwrap();
        let ticks = (STALLED.as_secs() / TICK.as_secs()) as u32;
        let mut waits = std::pin::pin!(socket.read(&mut buffer, STALLED));
        let first = std::future::poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
        assert!(first.is_pending());
        (0..=ticks).for_each(|_| patience.tick());
        assert_eq!(waits.await.unwrap(), 0);
    }
}
