//! The least that a server of entries can do: what is measured beside it says what our checks, names and rules cost.
//!
//! As many threads as ours, an event loop each; for a GET `recv`, and then `pread` and `writev`, or `send` and `sendfile` from 8 KiB
//! on; for a PUT `recv`, one `pwrite` at the end of a log, `send`. Which bytes belong to a path is kept in a map that is locked. A head is
//! looked through for its end and its `Content-Length`, and nothing is checked: neither who asks, nor the bytes, nor that the disk took
//! them. It forgets everything when it ends, and never frees what was written over. Nobody could use it.

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use nix::sys::socket::MsgFlags;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const THREADS: usize = 2;
const READ: usize = 64 << 10;
const MORE: MsgFlags = MsgFlags::from_bits_retain(0x8000);

struct Log {
    file: File,
    end: AtomicU64,
    places: Mutex<HashMap<Vec<u8>, (u64, usize)>>,
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Place and bytes left of a body that is being read.
    body: Option<(u64, usize)>,
    /// What is still to be sent.
    head: Vec<u8>,
    entry: Vec<u8>,
    sent: usize,
    file: Option<(u64, usize)>,
}

/// Serves for ever, when this process was started for it.
pub(crate) fn serve_if_asked() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some("--floor") {
        return;
    }
    let folder = arguments.next().unwrap();
    let (mut options, path) = (File::options(), Path::new(&folder).join("log"));
    let file = options.create(true).truncate(true).read(true).write(true).open(path).unwrap();
    let log = Arc::new(Log { file, end: AtomicU64::new(0), places: Mutex::default() });
    // one listener each, as ours has, so that the kernel deals the connections out
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut threads = Vec::new();
    for _ in 0..THREADS {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseport(true).unwrap();
        socket.bind(address).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let listener = runtime.block_on(async { socket.listen(64) }).unwrap().into_std().unwrap();
        address = listener.local_addr().unwrap();
        let log = Arc::clone(&log);
        threads.push(std::thread::spawn(move || serve(TcpListener::from_std(listener), &log)));
    }
    println!("{address}");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    std::process::exit(0);
}

fn serve(mut listener: TcpListener, log: &Log) {
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(64));
    poll.registry().register(&mut listener, Token(0), Interest::READABLE).unwrap();
    let mut connections: Vec<Option<Connection>> = vec![None];
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            if event.token() == Token(0) {
                while let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.set_nodelay(true);
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(connections.len()), interest).unwrap();
                    let (buffer, head, entry) = (Vec::new(), Vec::new(), Vec::new());
                    connections.push(Some(Connection {
                        stream,
                        buffer,
                        body: None,
                        head,
                        entry,
                        sent: 0,
                        file: None,
                    }));
                }
                continue;
            }
            let place = &mut connections[event.token().0];
            if place.as_mut().is_some_and(|connection| !connection.go_on(log)) {
                *place = None;
            }
        }
    }
}

impl Connection {
    /// Does what it can without waiting. Whether it is still open.
    fn go_on(&mut self, log: &Log) -> bool {
        loop {
            match self.send(log) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
            let before = self.buffer.len();
            self.buffer.resize(before + READ, 0);
            let read = self.stream.read(&mut self.buffer[before..]);
            self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
            let short = match read {
                Ok(0) => return false,
                Ok(some) => some < READ,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            };
            if !self.take(log) {
                return false;
            }
            if short && self.head.is_empty() {
                return true;
            }
            if short {
                return self.send(log).is_ok();
            }
        }
    }

    /// Takes what came. Whether it is a request that this knows.
    fn take(&mut self, log: &Log) -> bool {
        if self.body.is_none() {
            let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { return true };
            let head = &self.buffer[..end];
            let words: Vec<&[u8]> = head.splitn(3, |byte| *byte == b' ').collect();
            let [method, path, rest] = words[..] else { return false };
            if method == b"GET" {
                let place = log.places.lock().unwrap().get(path).copied();
                let Some((at, length)) = place else { return false };
                self.head.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: ");
                write!(self.head, "{length}\r\n\r\n").unwrap();
                if length < 8 << 10 {
                    self.entry.resize(length, 0);
                    log.file.read_exact_at(&mut self.entry, at).unwrap();
                } else {
                    self.file = Some((at, length));
                }
                self.buffer.clear();
                return true;
            }
            const LENGTH: &[u8] = b"Content-Length: ";
            let Some(from) = rest.windows(LENGTH.len()).position(|text| text == LENGTH) else { return false };
            let digits = rest[from + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
            let length = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
            let at = log.end.fetch_add(length as u64, Relaxed);
            log.places.lock().unwrap().insert(path.to_vec(), (at, length));
            self.buffer.drain(..end + 4);
            self.body = Some((at, length));
        }
        if let Some((at, left)) = self.body
            && (self.buffer.len() >= left || self.buffer.len() >= READ)
        {
            log.file.write_all_at(&self.buffer, at).unwrap();
            let left = left - self.buffer.len();
            self.body = (left > 0).then_some((at + self.buffer.len() as u64, left));
            self.buffer.clear();
            if left == 0 {
                self.head.extend_from_slice(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
            }
        }
        true
    }

    /// Sends what there is. Whether all of it is gone.
    fn send(&mut self, log: &Log) -> std::io::Result<bool> {
        while self.sent < self.head.len() + self.entry.len() || self.file.is_some() {
            let head = self.head.get(self.sent..).unwrap_or_default();
            let sent = match &mut self.file {
                Some((at, left)) if head.is_empty() => {
                    let mut place = *at as i64;
                    nix::sys::sendfile::sendfile(&self.stream, &log.file, Some(&mut place), *left).map(
                        |some| {
                            (*at, *left) = (place as u64, *left - some);
                            0
                        },
                    )
                }
                Some(_) => nix::sys::socket::send(self.stream.as_raw_fd(), head, MORE),
                None => {
                    let entry = &self.entry[self.sent.saturating_sub(self.head.len())..];
                    let parts = [IoSlice::new(head), IoSlice::new(entry)];
                    nix::sys::uio::writev(&self.stream, &parts)
                }
            };
            match sent {
                Ok(some) => self.sent += some,
                Err(nix::errno::Errno::EAGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if matches!(self.file, Some((_, 0))) {
                self.file = None;
            }
        }
        self.head.clear();
        self.entry.clear();
        self.sent = 0;
        Ok(true)
    }
}
