//! Connections: heads and bodies in, answers out. What to answer is decided in [`crate::exchange`].
//!
//! A connection is kept for as long as the client likes, and for three minutes without a request: clients that compile
//! between a read and a write must find it open (ccache#927), and a server that closes after so many requests loses
//! some of Bazel's (bazel#10159). Memory of one is bounded: a head, a piece of a body, an entry of a segment.

use crate::checked::Checked;
use crate::exchange::{self, Access};
use crate::http::{self, Chunks, Framing, Head, LONGEST_HEAD, Wrong};
use crate::service::Core;
use crate::store::cold::drop_behind;
use crate::store::frames::{FRAME, Frames};
use crate::store::large::{Large, Spool};
use crate::store::{INLINE, Store as _, StoreError};
use forgeyard_model::Digest;
use nix::sys::socket::MsgFlags;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::future::Future as _;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Without a request for so long, a connection is closed.
const IDLE: Duration = Duration::from_secs(180);
/// Within a request, so long without a byte ends it.
const STALLED: Duration = Duration::from_secs(60);
/// Bytes read at once.
const READ: usize = 64 << 10;

/// `MSG_MORE` of Linux, which the crate does not name: the head waits for the bytes that follow.
const MORE: MsgFlags = MsgFlags::from_bits_retain(0x8000);

/// What is said of a body that is too large.
pub(crate) const TOO_LARGE: Wrong =
    Wrong { status: 413, reason: "the entry is larger than this cache takes" };

/// What a thread knows: the core, and callers that it has met.
pub(crate) struct Thread {
    pub(crate) core: Arc<Core>,
    pub(crate) met: RefCell<HashMap<Vec<u8>, Rc<Access>>>,
    /// The one that was met last, which is nearly always the next one too.
    pub(crate) last: RefCell<Option<exchange::Met>>,
    pub(crate) checked: RefCell<Checked>,
}

/// Accepts connections on this thread until it is stopped.
pub(crate) async fn accept(core: Arc<Core>, listener: TcpListener, stop: CancellationToken) {
    let thread = Rc::new(Thread {
        core,
        met: RefCell::default(),
        last: RefCell::default(),
        checked: RefCell::default(),
    });
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                let thread = Rc::clone(&thread);
                tokio::task::spawn_local(async move {
                    let mut connection = Connection::new(stream, peer);
                    #[cfg(feature = "grpc")]
                    match connection.prefaced().await {
                        Ok(false) => {}
                        Ok(true) => {
                            let core = Arc::clone(&thread.core);
                            return crate::grpc::serve(core, connection.stream, connection.buffer, peer)
                                .await;
                        }
                        Err(_) => return,
                    }
                    // whatever ends a connection early is the client's business, and it asks again
                    let _ = connection.serve(&thread).await;
                });
            }
            Err(error) => {
                tracing::warn!("accepting a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// One connection.
pub(crate) struct Connection {
    stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) buffer: Vec<u8>,
    begin: usize,
    /// Bytes of an entry of a segment.
    pub(crate) entry: Vec<u8>,
    head: String,
}

/// A body that came in.
pub(crate) enum Incoming {
    /// Small enough for memory.
    Memory(Vec<u8>),
    /// In a file.
    File(Spool),
    /// Read and thrown away.
    Discarded,
}

/// Where a body is that came in.
pub(crate) enum Came {
    /// It came whole with the head, and lies there in the buffer of the connection.
    Here(Range<usize>),
    /// Elsewhere.
    Read(Incoming),
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Wrong(#[from] Wrong),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Connection {
    fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        let (buffer, entry, head) = (Vec::new(), Vec::new(), String::new());
        Self { stream, peer, buffer, begin: 0, entry, head }
    }

    async fn serve(&mut self, thread: &Thread) -> Result<(), End> {
        let mut head = Head::default();
        loop {
            match self.head(&mut head).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(End::Wrong(wrong)) => return self.refuse(wrong).await,
                Err(end) => return Err(end),
            }
            match exchange::exchange(thread, self, &head).await {
                Ok(()) if head.keep_alive => {}
                Ok(()) => return Ok(()),
                Err(End::Wrong(wrong)) => return self.refuse(wrong).await,
                Err(end) => {
                    // an answer that breaks off must not look like one that ends (nix#4533)
                    let _ = self.stream.set_zero_linger();
                    return Err(end);
                }
            }
        }
    }

    /// Whether the connection begins as HTTP/2 does. Takes no byte.
    #[cfg(feature = "grpc")]
    async fn prefaced(&mut self) -> Result<bool, End> {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        loop {
            let some = self.buffer.len().min(PREFACE.len());
            if self.buffer[..some] != PREFACE[..some] {
                return Ok(false);
            }
            if some == PREFACE.len() {
                return Ok(true);
            }
            if self.fill(IDLE).await? == 0 {
                return Ok(false);
            }
        }
    }

    async fn refuse(&mut self, wrong: Wrong) -> Result<(), End> {
        let text = format!("{}\n", wrong.reason);
        http::answer(
            &mut self.head,
            wrong.status,
            text.len() as u64,
            false,
            &[("Content-Type", "text/plain")],
        );
        self.send(Some(text.as_bytes())).await
    }

    async fn fill(&mut self, within: Duration) -> Result<usize, End> {
        if self.begin == self.buffer.len() {
            self.buffer.clear();
            self.begin = 0;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.reserve(READ);
        let read = self.fill_into(&mut buffer, within).await;
        self.buffer = buffer;
        read
    }

    /// Reads what there is room for.
    async fn fill_into(&mut self, buffer: &mut Vec<u8>, within: Duration) -> Result<usize, End> {
        // unlike `try_read`, this knows after a short read that nothing is left, and saves asking once more
        let mut read = std::pin::pin!(self.stream.read_buf(buffer));
        // no timer for bytes that are there already
        let first = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        match first {
            Poll::Ready(read) => Ok(read?),
            Poll::Pending => tokio::time::timeout(within, read).await.map_or(Ok(0), |read| Ok(read?)),
        }
    }

    /// Reads the next head. Whether there is one.
    async fn head(&mut self, head: &mut Head) -> Result<bool, End> {
        loop {
            let waiting = &self.buffer[self.begin..];
            if !waiting.is_empty()
                && let Some(length) = http::parse_into(waiting, head)?
            {
                self.begin += length;
                return Ok(true);
            }
            if self.begin > LONGEST_HEAD {
                self.buffer.drain(..self.begin);
                self.begin = 0;
            }
            if self.fill(IDLE).await? == 0 {
                return Ok(false);
            }
        }
    }

    /// Reads the body of a request, to memory, to a file, or to nowhere.
    pub(crate) async fn body(&mut self, core: &Core, head: &Head, keep: bool) -> Result<Incoming, End> {
        Ok(match self.body_in_place(core, head, keep).await? {
            Came::Here(range) => Incoming::Memory(self.buffer.get(range).unwrap_or_default().to_vec()),
            Came::Read(incoming) => incoming,
        })
    }

    /// The same, but what came whole with the head stays in the buffer of the connection.
    pub(crate) async fn body_in_place(&mut self, core: &Core, head: &Head, keep: bool) -> Result<Came, End> {
        if matches!(head.framing, Framing::Length(length) if length > core.largest) {
            return Err(TOO_LARGE.into());
        }
        self.proceed(head).await?;
        let mut into = match (keep, head.framing) {
            (false, _) => Incoming::Discarded,
            (true, Framing::Length(length)) if length > INLINE => Incoming::File(core.store.spool()?),
            (true, Framing::Length(length)) => Incoming::Memory(Vec::with_capacity(length as usize)),
            (true, Framing::Chunked) => Incoming::Memory(Vec::new()),
        };
        if let (Incoming::Memory(all), Framing::Length(length)) = (&mut into, head.framing) {
            let length = length as usize;
            let here = self.begin..self.begin + length;
            if here.end <= self.buffer.len() {
                self.begin = here.end;
                return Ok(Came::Here(here));
            }
            // the rest is read to where it is to stay
            all.extend_from_slice(&self.buffer[self.begin..]);
            self.begin = self.buffer.len();
            while all.len() < length {
                if self.fill_into(all, STALLED).await? == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
            }
            if all.len() > length {
                // the next request
                self.buffer.clear();
                self.begin = 0;
                self.buffer.extend(all.drain(length..));
            }
            return Ok(Came::Read(into));
        }
        self.pour(core, head, &mut into).await?;
        Ok(Came::Read(into))
    }

    /// Reads the body of a request to behind these bytes, which are kept in front of it.
    pub(crate) async fn body_behind(
        &mut self,
        core: &Core,
        head: &Head,
        front: Vec<u8>,
    ) -> Result<Incoming, End> {
        if matches!(head.framing, Framing::Length(length) if length > core.largest) {
            return Err(TOO_LARGE.into());
        }
        self.proceed(head).await?;
        let mut into = Incoming::Memory(front);
        self.pour(core, head, &mut into).await?;
        Ok(into)
    }

    /// Tells a client that waits for it to send its body.
    pub(crate) async fn proceed(&mut self, head: &Head) -> Result<(), End> {
        if head.expects {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        Ok(())
    }

    /// Reads the body of a request to the end of what came in before. What came stays there when the connection breaks.
    pub(crate) async fn pour(&mut self, core: &Core, head: &Head, into: &mut Incoming) -> Result<(), End> {
        let mut chunks = Chunks::default();
        let (mut left, mut total) = (0, 0u64);
        if let Framing::Length(length) = head.framing {
            left = length;
        }
        loop {
            let done = match head.framing {
                Framing::Length(_) => left == 0,
                Framing::Chunked => chunks.done(),
            };
            if done {
                return Ok(());
            }
            if self.begin == self.buffer.len() && self.fill(STALLED).await? == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            let waiting = &self.buffer[self.begin..];
            match head.framing {
                Framing::Length(_) => {
                    let some = left.min(waiting.len() as u64) as usize;
                    into.take(core, &waiting[..some])?;
                    left -= some as u64;
                    self.begin += some;
                }
                Framing::Chunked => {
                    let mut failed = Ok(());
                    let taken = chunks.feed(waiting, |bytes| {
                        total += bytes.len() as u64;
                        if failed.is_ok() {
                            failed = into.take(core, bytes);
                        }
                    })?;
                    failed?;
                    self.begin += taken;
                    if total > core.largest {
                        return Err(TOO_LARGE.into());
                    }
                }
            }
        }
    }

    /// Begins an answer.
    pub(crate) fn begin(&mut self, status: u16, length: u64, keep_alive: bool, headers: &[(&str, &str)]) {
        http::answer(&mut self.head, status, length, keep_alive, headers);
    }

    /// Begins an answer with an entry, or with a part of it.
    pub(crate) fn begin_entry(
        &mut self,
        digest: Digest,
        size: u64,
        part: Option<&Range<u64>>,
        keep_alive: bool,
    ) {
        let length = part.map_or(size, |part| part.end - part.start);
        let part = part.map(|part| (part.start, part.end, size));
        http::entry(&mut self.head, length, keep_alive, digest, part);
    }

    /// Sends the head that was begun, and a body.
    pub(crate) async fn send(&mut self, body: Option<&[u8]>) -> Result<(), End> {
        Ok(write_both(&self.stream, self.head.as_bytes(), body.unwrap_or_default()).await?)
    }

    /// Sends more of a body whose head was sent.
    pub(crate) async fn send_more(&mut self, body: &[u8]) -> Result<(), End> {
        Ok(write_both(&self.stream, &[], body).await?)
    }

    /// Sends the head that was begun, and a part of the entry in the buffer.
    pub(crate) async fn send_entry(&mut self, part: Range<usize>) -> Result<(), End> {
        let body = self.entry.get(part).unwrap_or_default();
        Ok(write_both(&self.stream, self.head.as_bytes(), body).await?)
    }

    /// Sends the head that was begun, and a part of the entry in the buffer, which is compressed there: each frame that the part
    /// touches is decoded when those before it are sent.
    pub(crate) async fn send_frames(
        &mut self,
        frames: &Frames,
        body: Range<usize>,
        part: Range<u64>,
    ) -> Result<(), End> {
        let mut content = Vec::new();
        let mut head = std::mem::take(&mut self.head);
        for number in part.start / FRAME..part.end.div_ceil(FRAME) {
            let place = frames.place(number);
            let frame = body.start + place.start as usize..body.start + place.end as usize;
            let decoded = frames.decode(number, self.entry.get(frame).unwrap_or_default(), &mut content);
            decoded.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))?;
            let from = part.start.saturating_sub(number * FRAME) as usize;
            let until = (part.end - number * FRAME).min(content.len() as u64) as usize;
            write_both(&self.stream, head.as_bytes(), content.get(from..until).unwrap_or_default()).await?;
            head.clear();
        }
        self.head = head;
        Ok(())
    }

    /// Sends the head that was begun, and a part of a file, from the page cache as it is.
    pub(crate) async fn send_file(&mut self, file: &File, part: Range<u64>) -> Result<(), End> {
        Ok(send_file(&self.stream, self.head.as_bytes(), file, part).await?)
    }

    /// Sends the head that was begun, and a part of a large content, each piece checked before it goes. A damaged piece
    /// ends the connection before the promised length, which no client takes for a whole.
    pub(crate) async fn send_large(
        &mut self,
        thread: &Thread,
        large: &Large,
        part: Range<u64>,
    ) -> Result<(), End> {
        let mut at = part.start;
        let mut head = std::mem::take(&mut self.head);
        let now = (thread.core.clock)();
        let cold = thread.core.store.cold(large);
        let step = large.step();
        while at < part.end {
            let number = at / step;
            let end = part.end.min((number + 1) * step);
            // what is compressed cannot be sent as it lies there
            let plain = large.frames().is_none();
            if plain && thread.checked.borrow().piece(large.digest, number, now) {
                send_file(&self.stream, head.as_bytes(), large.file(), at..end).await?;
                head.clear();
                at = end;
                continue;
            }
            large.piece(number, &mut self.entry)?;
            if plain {
                thread.checked.borrow_mut().keep_piece(large.digest, number, now);
            }
            let from = (at - number * step) as usize;
            let until = (part.end - number * step).min(self.entry.len() as u64) as usize;
            write_both(&self.stream, head.as_bytes(), &self.entry[from..until]).await?;
            head.clear();
            at = (number + 1) * step;
        }
        if cold {
            drop_behind(large.file(), &large.lies(&part));
        }
        self.entry.truncate(0);
        self.head = head;
        Ok(())
    }
}

impl Incoming {
    /// Bytes so far.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Incoming::Memory(bytes) => bytes.len() as u64,
            Incoming::File(spool) => spool.size(),
            Incoming::Discarded => 0,
        }
    }

    fn take(&mut self, core: &Core, bytes: &[u8]) -> Result<(), End> {
        match self {
            Incoming::Memory(all) if (all.len() + bytes.len()) as u64 > INLINE => {
                let mut spool = core.store.spool()?;
                spool.write(all)?;
                spool.write(bytes)?;
                *self = Incoming::File(spool);
            }
            Incoming::Memory(all) => all.extend_from_slice(bytes),
            Incoming::File(spool) => spool.write(bytes)?,
            Incoming::Discarded => {}
        }
        Ok(())
    }
}

async fn send_file(
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
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let stalled = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
                tokio::time::timeout(STALLED, stream.writable()).await.map_err(stalled)??;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn write_both(stream: &TcpStream, mut head: &[u8], mut body: &[u8]) -> std::io::Result<()> {
    while !head.is_empty() || !body.is_empty() {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        let written = match stream.try_write_vectored(&parts) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let stalled = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
                tokio::time::timeout(STALLED, stream.writable()).await.map_err(stalled)??;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// ccache#927: a client reads, compiles for a minute or two, and writes over the same connection.
    #[test]
    fn ccache_927_connection_is_kept_for_longer_than_a_compilation_takes() {
        assert!(IDLE >= Duration::from_secs(120));
    }
}
