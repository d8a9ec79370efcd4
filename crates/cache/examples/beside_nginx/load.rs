//! The load: eight connections that are kept, each with one request at a time, entries that nobody else has, and bodies that are looked at.

use crate::peers::{Server, Speaks};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const CONNECTIONS: usize = 8;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Put,
    Get,
}

impl Act {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Act::Put => "PUT",
            Act::Get => "GET",
        }
    }
}

/// What came of it.
pub(crate) struct Done {
    /// CPU time of the server for each request, in seconds.
    pub(crate) cpu: f64,
    /// Requests in each second of the wall.
    pub(crate) rate: f64,
    /// Time of each request, when the load was paced, in seconds: from when it was due, so that a server that is late for one is
    /// late for those behind it.
    pub(crate) waited: Vec<f64>,
}

/// Does it to the entries with these numbers, as often as said; paced to so many requests a second, or as fast as it goes.
pub(crate) fn load(
    server: &Server,
    act: Act,
    size: usize,
    numbers: &Range<usize>,
    rounds: usize,
    pace: Option<f64>,
) -> Done {
    let (before, begin) = (server.cpu(), Instant::now());
    let waited = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                let own = numbers.clone().skip(connection).step_by(CONNECTIONS);
                scope.spawn(move || {
                    one(server, act, size, (0..rounds).flat_map(|_| own.clone()), connection, pace)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let (cpu, took) = ((server.cpu() - before).max(1e-6), begin.elapsed().as_secs_f64());
    let done = (numbers.len() * rounds) as f64;
    Done { cpu: cpu / done, rate: done / took, waited }
}

fn one(
    server: &Server,
    act: Act,
    size: usize,
    numbers: impl Iterator<Item = usize>,
    connection: usize,
    pace: Option<f64>,
) -> Vec<f64> {
    let mut stream = connect(server);
    let (mut buffer, mut waited) = (vec![0; 256 << 10], Vec::new());
    let begin = Instant::now();
    for (turn, number) in numbers.enumerate() {
        let (request, expected) = request(server, act, size, number);
        let due = pace.map(|pace| {
            let due = begin + Duration::from_secs_f64((turn * CONNECTIONS + connection) as f64 / pace);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due
        });
        stream.write_all(&request).unwrap();
        answer(server, &mut *stream, &mut buffer, act, &expected);
        waited.extend(due.map(|due| due.elapsed().as_secs_f64()));
    }
    waited
}

/// A connection, by TLS where the server speaks that.
trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

fn connect(server: &Server) -> Box<dyn Wire> {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    match &server.tls {
        None => Box::new(stream),
        Some(tls) => {
            let name = "localhost".try_into().unwrap();
            let connection = rustls::ClientConnection::new(Arc::clone(tls), name).unwrap();
            Box::new(rustls::StreamOwned::new(connection, stream))
        }
    }
}

/// Bytes that no other entry has.
fn body(number: usize, size: usize) -> Vec<u8> {
    let mut state = ((number * 31 + size) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0; size];
    for eight in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes()[..eight.len()]);
    }
    bytes
}

fn request(server: &Server, act: Act, size: usize, number: usize) -> (Vec<u8>, Vec<u8>) {
    let (body, key) = (body(number, size), format!("{size}-{number}"));
    let put = act == Act::Put;
    let mut request = match server.speaks {
        Speaks::Http => {
            let length = if put { format!("Content-Length: {size}\r\n") } else { String::new() };
            let (act, path, authorization) = (act.name(), server.path, &server.authorization);
            format!("{act} {path}{key} HTTP/1.1\r\nHost: a\r\n{authorization}{length}\r\n").into_bytes()
        }
        Speaks::Redis if put => {
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${size}\r\n", key.len()).into_bytes()
        }
        Speaks::Redis => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes(),
        Speaks::Memcached if put => format!("set {key} 0 0 {size}\r\n").into_bytes(),
        Speaks::Memcached => format!("get {key}\r\n").into_bytes(),
    };
    if put {
        request.extend_from_slice(&body);
        if server.speaks != Speaks::Http {
            request.extend_from_slice(b"\r\n");
        }
    }
    (request, body)
}

/// Reads an answer, and holds what was read against what was written.
fn answer(server: &Server, stream: &mut dyn Wire, buffer: &mut [u8], act: Act, expected: &[u8]) {
    let mark: &[u8] = if server.speaks == Speaks::Http { b"\r\n\r\n" } else { b"\r\n" };
    let mut read = 0;
    let end = loop {
        let some = stream.read(&mut buffer[read..]).unwrap();
        assert!(some > 0, "{} closed the connection", server.name);
        read += some;
        if let Some(end) = buffer[..read].windows(mark.len()).position(|w| w == mark) {
            break end + mark.len();
        }
    };
    let head = std::str::from_utf8(&buffer[..end]).unwrap();
    let (good, length) = match (server.speaks, act) {
        (Speaks::Http, _) => {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
            });
            (head.starts_with("HTTP/1.1 2"), length.unwrap_or(0))
        }
        (_, Act::Put) => (matches!(head.trim_end(), "+OK" | "STORED"), 0),
        (Speaks::Redis, Act::Get) => (head.starts_with('$'), expected.len()),
        (Speaks::Memcached, Act::Get) => (head.starts_with("VALUE "), expected.len()),
    };
    assert!(good, "{}: {head}", server.name);
    let whole = match (server.speaks, act) {
        (Speaks::Redis, Act::Get) => length + 2,
        (Speaks::Memcached, Act::Get) => length + 7,
        _ => length,
    };
    if act == Act::Get {
        assert_eq!(length, expected.len());
    }
    let mut got = 0;
    let mut piece = end..read;
    loop {
        let came = &buffer[piece.clone()];
        if act == Act::Get {
            let here = &expected[got.min(length)..(got + came.len()).min(length)];
            assert!(came[..here.len()] == *here, "{} sent wrong bytes", server.name);
        }
        got += came.len();
        if got >= whole {
            break;
        }
        let some = stream.read(buffer).unwrap();
        assert!(some > 0, "{} ended a body early", server.name);
        piece = 0..some;
    }
}
