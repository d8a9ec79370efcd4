//! Connections: heads and bodies in, answers out. What to answer is decided in [`crate::exchange`].
//!
//! A connection is kept for as long as the client likes, and for three minutes without a request: clients that compile
//! between a read and a write must find it open (ccache#927), and a server that closes after so many requests loses
//! some of Bazel's (bazel#10159). Memory of one is bounded: a head, a piece of a body, an entry of a segment.

use crate::checked::Checked;
use crate::exchange::{self, Access};
use crate::http::{self, Chunks, Framing, Head, LONGEST_HEAD, Wrong};
use crate::service::Core;
use crate::socket::{IDLE, Patience, STALLED, Socket};
use crate::store::cold::drop_behind;
use crate::store::frames::{FRAME, Frames};
use crate::store::large::{Large, Spool};
use crate::store::{INLINE, Store as _, StoreError};
use crate::tls::Tls;
use forgeyard_model::Digest;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Bytes read at once.
const READ: usize = 64 << 10;

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

/// Where connections come from, by TLS or without it.
pub(crate) struct Door {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Accepts connections on this thread until it is stopped.
pub(crate) async fn accept(core: Arc<Core>, doors: Vec<Door>, stop: CancellationToken) {
    let thread = Rc::new(Thread {
        core,
        met: RefCell::default(),
        last: RefCell::default(),
        checked: RefCell::default(),
    });
    let patience = Rc::new(Patience::default());
    let watching = Rc::clone(&patience);
    tokio::task::spawn_local(async move { watching.watch().await });
    futures::future::join_all(doors.iter().map(|door| through(door, &thread, &patience, &stop))).await;
}

async fn through(door: &Door, thread: &Rc<Thread>, patience: &Patience, stop: &CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = door.listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                let (thread, mut socket) = (Rc::clone(thread), patience.seat(stream));
                let tls = door.tls.clone();
                tokio::task::spawn_local(async move {
                    if let Some(tls) = tls {
                        // in a box, so that the task of a connection without TLS is not larger for it
                        socket = match Box::pin(socket.by(&tls)).await {
                            Ok(secured) => secured,
                            Err(error) => return tracing::debug!(%peer, "no handshake of TLS: {error}"),
                        };
                    }
                    let mut connection = Connection::new(socket, peer);
                    #[cfg(feature = "grpc")]
                    match connection.prefaced().await {
                        Ok(false) => {}
                        Ok(true) => {
                            let core = Arc::clone(&thread.core);
                            let Connection { socket, buffer, .. } = connection;
                            return crate::grpc::serve(core, socket.into_stream(buffer), peer).await;
                        }
                        Err(_) => return,
                    }
                    // whatever ends a connection early is the client's business, and it asks again
                    if connection.serve(&thread).await.is_ok() {
                        connection.socket.end().await;
                    }
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
    socket: Socket,
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
    fn new(socket: Socket, peer: SocketAddr) -> Self {
        let (buffer, entry, head) = (Vec::new(), Vec::new(), String::new());
        Self { socket, peer, buffer, begin: 0, entry, head }
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
                    self.socket.end_abruptly();
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
        // who tries paths that climb, or two bodies in one, is seen
        tracing::info!(status = wrong.status, peer = %self.peer.ip(), "a request is refused: {}", wrong.reason);
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
        let read = self.socket.read(&mut buffer, within).await;
        self.buffer = buffer;
        Ok(read?)
    }

    /// Reads the next head. Whether there is one.
    async fn head(&mut self, head: &mut Head) -> Result<bool, End> {
        loop {
            let waiting = &self.buffer[self.begin..];
            if !waiting.is_empty()
                && let Some(length) = http::parse_into(waiting, head)?
            {
                self.begin += length;
                head.secure |= self.socket.secure();
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
                if self.socket.read(all, STALLED).await? == 0 {
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
            self.socket.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        } else if self.begin == self.buffer.len() && !matches!(head.framing, Framing::Length(0)) {
            self.socket.acknowledge();
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
        Ok(self.socket.write_both(self.head.as_bytes(), body.unwrap_or_default()).await?)
    }

    /// Sends more of a body whose head was sent.
    pub(crate) async fn send_more(&mut self, body: &[u8]) -> Result<(), End> {
        Ok(self.socket.write_both(&[], body).await?)
    }

    /// Sends the head that was begun, and a part of the entry in the buffer.
    pub(crate) async fn send_entry(&mut self, part: Range<usize>) -> Result<(), End> {
        let body = self.entry.get(part).unwrap_or_default();
        Ok(self.socket.write_both(self.head.as_bytes(), body).await?)
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
            self.socket.write_both(head.as_bytes(), content.get(from..until).unwrap_or_default()).await?;
            head.clear();
        }
        self.head = head;
        Ok(())
    }

    /// Sends the head that was begun, and a part of a file, from the page cache as it is.
    pub(crate) async fn send_file(&mut self, file: &File, part: Range<u64>) -> Result<(), End> {
        Ok(self.socket.write_file(self.head.as_bytes(), file, part).await?)
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
                self.socket.write_file(head.as_bytes(), large.file(), at..end).await?;
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
            self.socket.write_both(head.as_bytes(), &self.entry[from..until]).await?;
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
