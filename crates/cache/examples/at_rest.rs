//! Measures compression at rest: how far object files shrink, what that costs, and what a read costs then. `cargo xtask bench
//! cache-at-rest` runs it.
//!
//! The object files are those of the standard library that is installed with the compiler. Three services hold them: one as they
//! came, one with all of them compressed, and one that did what it does by itself: every fourth file was read within the last day
//! (the *hot* set), the others were not (the *cold* set). They are asked over HTTP in turns; what counts is the CPU time that each
//! takes. The day passes by a *simulated* clock. The second service does nothing by itself, so that it stays as it is; the third
//! one writes back what it had to decode again and again, so its cold set is measured at the first read and at later ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement stops at the first surprise")]

mod measure;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::shrink::{Compression, ShrinkStat};
use forgeyard_cache::store::{Body, INLINE, Policy, Provenance, Store as _};
use forgeyard_model::{Digest, Timestamp};
use measure::{Figure, clock, cpu, median, server};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const ROUNDS: usize = 5;
/// An hour, in microseconds.
const HOUR: i64 = 3_600_000_000;

/// Members of an `ar` archive that are object files.
fn members(archive: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = archive.strip_prefix(b"!<arch>\n").unwrap_or_default();
    let mut all = Vec::new();
    while rest.len() > 60 {
        let size: usize = std::str::from_utf8(&rest[48..58]).unwrap().trim().parse().unwrap();
        let end = (60 + size).min(rest.len());
        if rest[60..end].starts_with(b"\x7fELF") {
            all.push(rest[60..end].to_vec());
        }
        rest = rest.get(end + size % 2..).unwrap_or_default();
    }
    all
}

fn object_files() -> Vec<Vec<u8>> {
    let folder = Command::new("rustc").args(["--print", "target-libdir"]).output().unwrap();
    let folder = PathBuf::from(String::from_utf8(folder.stdout).unwrap().trim());
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let archives = files.filter(|path| path.extension().is_some_and(|end| end == "rlib"));
    let mut all: Vec<Vec<u8>> = archives
        .flat_map(|path| members(&std::fs::read(path).unwrap()))
        .filter(|one| one.len() > 2048)
        .collect();
    all.sort();
    all.dedup();
    // so that every fourth is one of every fourth of each size
    all.sort_by_key(Vec::len);
    all
}

/// What becomes of the object files.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    /// They stay as they came.
    Plain,
    /// All are compressed.
    Framed,
    /// What nobody read for a day is compressed.
    ByUse,
}

/// Every so many files are read.
const HOT: usize = 4;

fn name(bytes: &[u8]) -> Name {
    Name { scope: "bench".parse().unwrap(), kind: Kind::Content, key: Digest::of(bytes).hex() }
}

/// What a folder was filled with.
struct Filled {
    /// Seconds of CPU time that compressing took.
    took: f64,
    shrunk: ShrinkStat,
    disk_bytes: f64,
}

/// Fills a folder.
fn fill(folder: &Path, objects: &[Vec<u8>], kept: Kept) -> Filled {
    // the service sees the time at which this ends
    let now = Arc::new(AtomicI64::new(clock()().as_micros() - 25 * HOUR));
    let seen = Arc::clone(&now);
    let compression = Compression { on: kept != Kept::Plain, percent: 100, ..Compression::default() };
    let config = Config { compression, ..Config::new(folder.join("store")) };
    let store = LogStore::open(config, Arc::new(move || Timestamp::from_micros(seen.load(Relaxed)))).unwrap();
    for bytes in objects {
        let (name, by) = (name(bytes), Provenance::default());
        if bytes.len() as u64 > INLINE {
            let mut spool = store.spool().unwrap();
            spool.write(bytes).unwrap();
            store.put(&name, Body::Large(spool.finish(false).unwrap()), Policy::Keep, &by).unwrap();
        } else {
            store.put(&name, Body::Inline(bytes), Policy::Keep, &by).unwrap();
        }
    }
    let before = cpu(std::process::id());
    match kept {
        Kept::Plain => {}
        Kept::Framed => {
            store.seal().unwrap();
            store.shrink_all().unwrap();
        }
        Kept::ByUse => {
            for _ in 0..=25 {
                // as the service does it; the small cache ends its segment by itself
                store.shrink(&|| false).unwrap();
                let mut buffer = Vec::new();
                for bytes in objects.iter().step_by(HOT) {
                    store.get_stored(name(bytes).hash(), &mut buffer).unwrap().unwrap();
                }
                now.fetch_add(HOUR, Relaxed);
            }
        }
    }
    let took = cpu(std::process::id()) - before;
    now.store(clock()().as_micros(), Relaxed);
    let disk_bytes = store.totals().disk_bytes as f64;
    store.snapshot().unwrap();
    Filled { took, shrunk: store.shrunk(), disk_bytes }
}

struct Client(TcpStream, Vec<u8>);

impl Client {
    fn new(address: SocketAddr, largest: usize) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream, vec![0; largest + 4096])
    }

    fn get(&mut self, key: &str, length: usize) {
        let head = format!("GET /bench/-/bazel/cas/{key} HTTP/1.1\r\nHost: bench\r\n\r\n");
        self.0.write_all(head.as_bytes()).unwrap();
        let (mut got, mut wanted) = (0, None);
        while wanted.is_none_or(|wanted| got < wanted) {
            let some = self.0.read(&mut self.1[got..]).unwrap();
            assert!(some > 0);
            got += some;
            if wanted.is_none()
                && let Some(end) = self.1[..got].windows(4).position(|four| four == b"\r\n\r\n")
            {
                assert!(self.1.starts_with(b"HTTP/1.1 200"));
                wanted = Some(end + 4 + length);
            }
        }
    }
}

fn main() {
    measure::serve_if_asked(true);
    let objects = object_files();
    let bytes: u64 = objects.iter().map(|bytes| bytes.len() as u64).sum();
    let mib = bytes as f64 / f64::from(1 << 20);
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let all = [Kept::Plain, Kept::Framed, Kept::ByUse];
    let [plain, framed, by_use] = std::array::from_fn(|at| fill(folders[at].path(), &objects, all[at]));
    let figure = |text: &str, value: f64, unit| Figure { text, value, unit, peer: None, aim: None }.print();
    let part = |some: f64, of: f64| some * 100.0 / of;
    figure("object files", objects.len() as f64, "files");
    figure("their size", mib, "MiB");
    figure("on disk, of what it was, all compressed", part(framed.disk_bytes, plain.disk_bytes), "%");
    figure("on disk, of what it was, hot ones plain", part(by_use.disk_bytes, plain.disk_bytes), "%");
    let hot: usize = objects.iter().step_by(HOT).map(Vec::len).sum();
    figure("hot ones, of all bytes", part(hot as f64, bytes as f64), "%");
    let (given, came) = (framed.shrunk.bytes_in as f64, framed.shrunk.bytes_out as f64);
    figure("what was compressed, of what it was", part(came, given), "%");
    figure("CPU time to compress", framed.took * 1000.0 * f64::from(1 << 20) / given, "ms a MiB");
    // nothing happens in these two by itself
    (0..2).for_each(|at| std::fs::write(folders[at].path().join("plain"), "").unwrap());
    let mut servers = [0, 1, 2].map(|at| server(folders[at].path()));
    let largest = objects.iter().map(Vec::len).max().unwrap();
    let mut clients = [0, 1, 2].map(|at| Client::new(servers[at].1, largest));
    let keys: Vec<(String, usize)> =
        objects.iter().map(|bytes| (Digest::of(bytes).hex(), bytes.len())).collect();
    // CPU time of a GET of some, in microseconds, at each service: the first one, which checks the entry, and later ones
    let mut measure = |some: &[&(String, usize)]| {
        // about as many bytes of each
        let turns = (2000 / some.len()).clamp(1, 40);
        let mut first = [0.0; 3];
        let mut spent = [const { Vec::new() }; 3];
        for round in 0..=ROUNDS + 1 {
            for at in 0..3 {
                let (turns, before) = (if round == 0 { 1 } else { turns }, cpu(servers[at].0.id()));
                for (key, length) in (0..turns).flat_map(|_| some) {
                    clients[at].get(key, *length);
                }
                let each = (cpu(servers[at].0.id()) - before) * 1e6 / (turns * some.len()) as f64;
                match round {
                    0 => first[at] = each,
                    // in which something may be written back
                    1 => std::thread::sleep(std::time::Duration::from_secs(2)),
                    _ => spent[at].push(each),
                }
            }
        }
        (first, spent.map(median))
    };
    let beside = |text: &str, value: f64, peer: (&'static str, f64)| {
        Figure { text, value, unit: "µs", peer: Some(peer), aim: None }.print();
    };
    for (text, least, most) in [
        ("2 to 16 KiB", 0, 16 << 10),
        ("16 to 128 KiB", 16 << 10, 128 << 10),
        ("128 KiB to 1 MiB", 128 << 10, 1 << 20),
        ("above 1 MiB", 1 << 20, usize::MAX),
    ] {
        let of_all = keys.iter().enumerate().filter(|(_, (_, length))| (least..most).contains(length));
        let (hot, cold): (Vec<_>, Vec<_>) = of_all.partition(|(at, _)| at % HOT == 0);
        let keys =
            |set: Vec<(usize, _)>| -> Vec<&(String, usize)> { set.into_iter().map(|(_, key)| key).collect() };
        let (hot, cold) = (keys(hot), keys(cold));
        if !hot.is_empty() {
            let (_, [plain, framed, by_use]) = measure(&hot);
            beside(&format!("GET, {text}, hot"), by_use, ("as it came", plain));
            beside(&format!("GET, {text}, hot, where all is compressed"), framed, ("as it came", plain));
        }
        if !cold.is_empty() {
            let ([first, _, by_use_first], [plain, framed, by_use]) = measure(&cold);
            beside(&format!("GET, {text}, cold, the first"), by_use_first, ("as it came", first));
            beside(&format!("GET, {text}, cold, later ones"), by_use, ("as it came", plain));
            beside(&format!("GET, {text}, cold, where all is compressed"), framed, ("as it came", plain));
        }
    }
    for (child, _) in &mut servers {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
