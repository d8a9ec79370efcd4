//! Clients of several kinds write and read over real sockets while the service is killed (`SIGKILL`) and started again, with
//! room for everything, with too little room, and on a disk that is full. Looked for: an acknowledged entry that is lost, a
//! byte that is wrong, an action result whose files are not there, memory that grows.
//!
//! `cargo xtask soak cache [SECONDS]` runs [`soak`] for so long; 60 seconds of it belong to CI, half an hour to a release.
//! The service is this test program again, in a process of its own, at [`the_service`]. That the looking finds something is
//! shown by [`lost_entry_and_wrong_byte_are_noticed`], which plants both.
//!
//! What a kill of the *process* can show is that nothing waits in its memory after it acknowledged. It says nothing of a
//! machine that loses power: there `group` promises what `fdatasync` does, and `page-cache` may lose the last seconds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::{Config, Durability};
use forgeyard_cache::token::Access;
use forgeyard_model::{Digest, Timestamp};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{token, write_authority};

const FOLDER: &str = "FORGEYARD_TEST_SOAK_FOLDER";
const CLIENTS: u64 = 4;
/// Keys of a client.
const KEYS: u64 = 300;
/// Memory of the service, at most. The index of what fits here is a few megabytes; the rest are buffers of connections.
const MEMORY: u64 = 200 << 20;
/// Clients write no more than this into one folder.
const BYTES: u64 = 1 << 30;

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    /// For everything: what was acknowledged is there.
    Enough,
    /// For a part: entries are evicted. A miss is no loss.
    Little,
    /// For a part, and the disk is full before the cache knows. Writes fail, a miss is no loss.
    FullDisk,
}

#[test]
#[ignore = "is started, and killed, by the soak"]
fn the_service() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let say = |name: &str| std::env::var(name).unwrap();
    let authority = folder.join("authority.json");
    if !authority.exists() {
        write_authority(&authority, |_| {});
    }
    let durability = if say("SOAK_GROUP") == "true" { Durability::Group } else { Durability::PageCache };
    let capacity = say("SOAK_CAPACITY").parse().unwrap();
    let running = start(Options {
        listen: say("SOAK_LISTEN").parse().unwrap(),
        store: Config { durability, capacity, segment: 16 << 20, ..Config::new(folder.join("disk/store")) },
        authority,
        largest: 16 << 20,
        threads: 2,
        scrub_bytes: 4 << 20,
        clock: Arc::new(|| {
            let passed = std::fs::read_to_string("/proc/uptime").unwrap();
            let seconds: f64 = passed.split_whitespace().next().unwrap().parse().unwrap();
            Timestamp::from_micros(support::NOW + (seconds * 1e6) as i64 % 3_000_000_000)
        }),
    })
    .unwrap();
    println!("listens on {}", running.address);
    loop {
        std::thread::park();
    }
}

struct Service {
    child: Child,
    address: SocketAddr,
}

impl Service {
    fn start(folder: &Path, listen: SocketAddr, room: Room, group: bool) -> Self {
        let capacity: u64 = match room {
            Room::Enough => 64 << 30,
            Room::Little => 128 << 20,
            Room::FullDisk => 1 << 30,
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "the_service", "--nocapture"])
            .env(FOLDER, folder)
            .env("SOAK_LISTEN", listen.to_string())
            .env("SOAK_CAPACITY", capacity.to_string())
            .env("SOAK_GROUP", group.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.filter_map(|line| line.split("listens on ").nth(1)?.parse().ok()).next();
        Self { child, address: address.expect("the service starts") }
    }

    fn memory(&self) -> u64 {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn kill(mut self) -> (SocketAddr, u64) {
        let memory = self.memory();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.address, memory)
    }
}

/// A connection that says when it broke.
struct Wire {
    stream: TcpStream,
    token: String,
}

impl Wire {
    fn open(address: SocketAddr, token: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, token: token.to_owned() })
    }

    fn ask(&mut self, method: &str, path: &str, body: Option<&[u8]>) -> std::io::Result<(u16, Vec<u8>)> {
        let length = body.map_or(0, <[u8]>::len);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Length: {length}\r\n\r\n",
            self.token
        );
        self.stream.write_all(&[head.as_bytes(), body.unwrap_or_default()].concat())?;
        let broken = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        let end = loop {
            if let Some(end) = all.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(broken()),
                read => all.extend_from_slice(&buffer[..read]),
            }
        };
        let head = String::from_utf8(all.drain(..end).collect()).unwrap();
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length = length.map_or(0, |text| text.parse::<usize>().unwrap());
        while all.len() < length {
            match self.stream.read(&mut buffer)? {
                0 => return Err(broken()),
                read => all.extend_from_slice(&buffer[..read]),
            }
        }
        if head.contains("Connection: close") {
            self.stream.shutdown(std::net::Shutdown::Both)?;
        }
        Ok((status, all))
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Content of a write: says which it is, so that anybody can tell a wrong byte.
fn content(write: u64) -> Vec<u8> {
    let mut state = write.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let size = match random(&mut state) % 100 {
        0 => 1_500_000 + random(&mut state) % 1_500_000,
        1..=20 => random(&mut state) % 150_000,
        _ => random(&mut state) % 5_000,
    };
    let mut bytes = write.to_le_bytes().to_vec();
    while bytes.len() < size as usize {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes
}

/// What a client knows of one key: the write that was acknowledged last, and those after it that may have happened.
#[derive(Default)]
struct Known {
    acknowledged: Option<u64>,
    perhaps: Vec<u64>,
}

/// What is wrong with an answer.
#[derive(Debug, PartialEq)]
enum Wrong {
    Lost,
    Bytes,
    Older,
}

impl Known {
    fn judge(&self, room: Room, status: u16, body: &[u8]) -> Result<(), Wrong> {
        if status != 200 {
            let lost = status == 404 && room == Room::Enough && self.acknowledged.is_some();
            return if lost { Err(Wrong::Lost) } else { Ok(()) };
        }
        let write = body.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let Some(write) = write.filter(|write| content(*write) == body) else { return Err(Wrong::Bytes) };
        // what was evicted may leave an earlier write of this key behind only by mistake
        let known = self.acknowledged == Some(write) || self.perhaps.contains(&write);
        if known { Ok(()) } else { Err(Wrong::Older) }
    }
}

/// An action result that names these contents, as the Remote Execution API writes it.
fn action(files: &[(String, usize)]) -> Vec<u8> {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 128 {
            all.push(length as u8 | 128);
            length >>= 7;
        }
        all.push(length as u8);
        all.extend_from_slice(bytes);
        all
    }
    let file = |(hash, size): &(String, usize)| {
        let mut digest = field(1, hash.as_bytes());
        digest.push(2 << 3);
        let mut size = *size;
        while size >= 128 {
            digest.push(size as u8 | 128);
            size >>= 7;
        }
        digest.push(size as u8);
        field(2, &[field(1, hash[..8].as_bytes()), field(2, &digest)].concat())
    };
    files.iter().flat_map(file).collect()
}

/// What all clients count together.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    refused: AtomicU64,
    reads: AtomicU64,
    hits: AtomicU64,
    results: AtomicU64,
    bytes: AtomicU64,
}

struct Soaker {
    number: u64,
    room: Room,
    token: String,
    next: u64,
    keys: BTreeMap<u64, Known>,
    results: Vec<(String, Vec<(String, Vec<u8>)>)>,
}

impl Soaker {
    fn new(number: u64, room: Room) -> Self {
        let token = token(&format!("p/pr/{number}"), Access::Write);
        let next = number << 40;
        Self { number, room, token, next, keys: BTreeMap::new(), results: Vec::new() }
    }

    /// Until told to stop, over as many connections as it takes.
    fn run(&mut self, address: SocketAddr, tally: &Tally) {
        while !tally.stop.load(Ordering::SeqCst) {
            if let Ok(mut wire) = Wire::open(address, &self.token) {
                while !tally.stop.load(Ordering::SeqCst) && self.step(&mut wire, tally).is_ok() {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn step(&mut self, wire: &mut Wire, tally: &Tally) -> std::io::Result<()> {
        self.next += 1;
        let mut state = self.next.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
        let key = random(&mut state) % KEYS;
        let full = tally.bytes.load(Ordering::Relaxed) > BYTES;
        match random(&mut state) % 10 {
            0..=3 if !full => self.write(wire, key, tally),
            4 if !full => self.build(wire, tally),
            5 => self.warm(wire, random(&mut state) as usize, tally),
            6 => self.odd(wire, &mut state),
            _ => self.read(wire, key, tally),
        }
    }

    fn write(&mut self, wire: &mut Wire, key: u64, tally: &Tally) -> std::io::Result<()> {
        let (write, known) = (self.next, self.keys.entry(key).or_default());
        let bytes = content(write);
        known.perhaps.push(write);
        let path = format!("/-/kv/{key}");
        let (status, _) = wire.ask("PUT", &path, Some(&bytes))?;
        match status {
            200 | 201 => {
                *known = Known { acknowledged: Some(write), perhaps: Vec::new() };
                tally.acknowledged.fetch_add(1, Ordering::Relaxed);
                tally.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            507 if self.room != Room::Enough => drop(tally.refused.fetch_add(1, Ordering::Relaxed)),
            status => panic!("client {}: PUT {path} is answered with {status}", self.number),
        }
        Ok(())
    }

    fn read(&mut self, wire: &mut Wire, key: u64, tally: &Tally) -> std::io::Result<()> {
        let path = format!("/-/kv/{key}");
        let (status, body) = wire.ask("GET", &path, None)?;
        tally.reads.fetch_add(1, Ordering::Relaxed);
        tally.hits.fetch_add(u64::from(status == 200), Ordering::Relaxed);
        assert!(matches!(status, 200 | 404), "GET {path} is answered with {status}");
        let known = self.keys.entry(key).or_default();
        if let Err(wrong) = known.judge(self.room, status, &body) {
            panic!("client {}: {path}: {wrong:?}; {:?} was acknowledged", self.number, known.acknowledged);
        }
        Ok(())
    }

    /// A build: its files, then the result that names them.
    fn build(&mut self, wire: &mut Wire, tally: &Tally) -> std::io::Result<()> {
        let files: Vec<(String, Vec<u8>)> = (0..3)
            .map(|file| {
                let bytes = content(self.next << 2 | file);
                (Digest::of(&bytes).hex(), bytes)
            })
            .collect();
        for (hash, bytes) in &files {
            let (status, _) = wire.ask("PUT", &format!("/-/bazel/cas/{hash}"), Some(bytes))?;
            if status == 507 {
                return Ok(());
            }
            assert!(matches!(status, 200 | 201), "a content is answered with {status}");
            tally.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        let sizes: Vec<_> = files.iter().map(|(hash, bytes)| (hash.clone(), bytes.len())).collect();
        let key = Digest::of(&self.next.to_le_bytes()).hex();
        let (status, _) = wire.ask("PUT", &format!("/-/bazel/ac/{key}"), Some(&action(&sizes)))?;
        if matches!(status, 200 | 201) {
            self.results.push((key, files));
        }
        Ok(())
    }

    /// A build again: a result that is there has its files, now.
    fn warm(&mut self, wire: &mut Wire, which: usize, tally: &Tally) -> std::io::Result<()> {
        if self.results.is_empty() {
            return Ok(());
        }
        let (key, files) = &self.results[which % self.results.len()];
        let (status, _) = wire.ask("GET", &format!("/-/bazel/ac/{key}"), None)?;
        assert!(
            status == 200 || status == 404 && self.room != Room::Enough,
            "a result is answered with {status}"
        );
        if status == 200 {
            for (hash, bytes) in files {
                let (status, body) = wire.ask("GET", &format!("/-/bazel/cas/{hash}"), None)?;
                assert_eq!(
                    status, 200,
                    "client {}: the result {key} names {hash}, which is not there",
                    self.number
                );
                assert!(&body == bytes, "wrong bytes in {hash}");
            }
            tally.results.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What clients do besides: sccache's check, a connection that ends within a body, a part of an entry.
    fn odd(&mut self, wire: &mut Wire, state: &mut u64) -> std::io::Result<()> {
        match random(state) % 3 {
            0 => {
                let (status, _) = wire.ask("GET", "/-/dav/.sccache_check", None)?;
                assert_eq!(status, 404);
            }
            1 => {
                let head = format!(
                    "PUT /-/kv/never HTTP/1.1\r\nAuthorization: Bearer {}\r\nContent-Length: 3000000\r\n\r\n",
                    self.token
                );
                wire.stream.write_all(head.as_bytes())?;
                wire.stream.write_all(&vec![7; random(state) as usize % 2_000_000])?;
                wire.stream.shutdown(std::net::Shutdown::Both)?;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            _ => {
                let (status, _) = wire.ask("GET", "/-/kv/never", None)?;
                assert_eq!(status, 404, "a body that did not come whole is no entry");
            }
        }
        Ok(())
    }
}

/// A small disk of its own, or nothing where mounting is not allowed.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(folder: &Path) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m", "soak"]).arg(folder).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(folder.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// One folder: a few rounds of clients, each ended by a kill, and a last look at everything.
fn one(room: Room, group: bool, rounds: u32, round: Duration) -> String {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("disk");
    fs_err::create_dir_all(&place).unwrap();
    let disk = if room == Room::FullDisk { SmallDisk::new(&place) } else { None };
    if room == Room::FullDisk && disk.is_none() {
        return "SKIPPED: a small disk cannot be mounted here; too little room stands in for it".to_owned();
    }
    let (mut address, mut memory, tally) = (SocketAddr::from(([127, 0, 0, 1], 0)), 0, Tally::default());
    let mut clients: Vec<Soaker> = (0..CLIENTS).map(|number| Soaker::new(number, room)).collect();
    for _ in 0..rounds {
        let service = Service::start(folder.path(), address, room, group);
        address = service.address;
        tally.stop.store(false, Ordering::SeqCst);
        let killed = std::thread::scope(|scope| {
            let running: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.run(address, &tally))).collect();
            let end = Instant::now() + round;
            while Instant::now() < end && !running.iter().any(|client| client.is_finished()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            // in the middle of what they do
            let killed = service.kill();
            tally.stop.store(true, Ordering::SeqCst);
            running.into_iter().for_each(|client| client.join().expect("a client found something"));
            killed
        });
        memory = memory.max(killed.1);
    }
    let service = Service::start(folder.path(), address, room, group);
    for client in &mut clients {
        let mut wire = Wire::open(service.address, &client.token).unwrap();
        let keys: Vec<u64> = client.keys.keys().copied().collect();
        keys.into_iter().for_each(|key| client.read(&mut wire, key, &tally).unwrap());
        (0..client.results.len()).for_each(|result| client.warm(&mut wire, result, &tally).unwrap());
    }
    memory = memory.max(service.kill().1);
    assert!(memory < MEMORY, "the service took {} MiB", memory >> 20);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert!(count(&tally.hits) > 0 && count(&tally.acknowledged) > 0, "nothing happened");
    if room == Room::FullDisk {
        assert!(count(&tally.refused) > 0, "the disk was never full");
    }
    format!(
        "{rounds} kills: {} writes acknowledged, {} refused for want of room, {} of {} reads found something, {} results \
         with all their files, at most {} MiB of memory",
        count(&tally.acknowledged),
        count(&tally.refused),
        count(&tally.hits),
        count(&tally.reads),
        count(&tally.results),
        memory >> 20
    )
}

/// The long one. `FORGEYARD_SOAK_SECONDS` says how long.
#[test]
#[ignore = "takes as long as it is told: cargo xtask soak cache"]
fn soak() {
    let seconds = std::env::var("FORGEYARD_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let (begin, whole) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(60)));
    // a kill every 20 seconds, and six of them at least
    let round = (whole / 6).min(Duration::from_secs(20));
    let mut number = 0;
    while begin.elapsed() < whole {
        let room = [Room::Enough, Room::Little, Room::FullDisk][number % 3];
        let group = number % 2 == 1;
        let done = one(room, group, 2, round);
        println!("{:>5.0} s  {room:?}, group commit {group}: {done}", begin.elapsed().as_secs_f64());
        number += 1;
    }
}

/// A few kills of each kind, so that every run of the tests has some.
#[rstest::rstest]
fn nothing_is_lost_and_no_byte_is_wrong_over_a_few_kills(
    #[values(Room::Enough, Room::Little, Room::FullDisk)] room: Room,
) {
    println!("{room:?}: {}", one(room, room == Room::Enough, 2, Duration::from_millis(1500)));
}

/// The checker checked: a fault that is planted in the log is found, and so is each kind of wrong answer.
#[test]
fn lost_entry_and_wrong_byte_are_noticed() {
    let known = Known { acknowledged: Some(5), perhaps: vec![7] };
    assert_eq!(known.judge(Room::Enough, 404, b""), Err(Wrong::Lost));
    assert_eq!(known.judge(Room::Little, 404, b""), Ok(()));
    for (write, expected) in [(5, Ok(())), (7, Ok(())), (4, Err(Wrong::Older))] {
        assert_eq!(known.judge(Room::Enough, 200, &content(write)), expected);
    }
    let mut bytes = content(5);
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(known.judge(Room::Little, 200, &bytes), Err(Wrong::Bytes));

    let folder = tempfile::tempdir().unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let service = Service::start(folder.path(), any, Room::Enough, false);
    let (mut client, tally) = (Soaker::new(1, Room::Enough), Tally::default());
    let mut wire = Wire::open(service.address, &client.token).unwrap();
    for key in 0..50 {
        client.next += 1;
        client.write(&mut wire, key, &tally).unwrap();
    }
    service.kill();
    // the end of the log, as if it had been acknowledged before it was written
    let log = folder.path().join("disk/store/seg/00000001.fyl");
    let length = fs_err::metadata(&log).unwrap().len();
    fs_err::OpenOptions::new().write(true).open(&log).unwrap().set_len(length / 2).unwrap();
    let service = Service::start(folder.path(), any, Room::Enough, false);
    let mut wire = Wire::open(service.address, &client.token).unwrap();
    let judged: Vec<_> = (0..50)
        .map(|key| {
            let (status, body) = wire.ask("GET", &format!("/-/kv/{key}"), None).unwrap();
            client.keys[&key].judge(Room::Enough, status, &body)
        })
        .collect();
    service.kill();
    assert!(judged.contains(&Err(Wrong::Lost)) && judged.contains(&Ok(())), "{judged:?}");
}
