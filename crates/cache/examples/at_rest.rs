//! Measures compression at rest: how far object files shrink, what that costs, and what a read costs then. `cargo xtask bench
//! cache-at-rest` runs it.
//!
//! The object files are those of the standard library that is installed with the compiler. Two services hold them, one as they
//! came and one compressed, and are asked over HTTP in turns; what counts is the CPU time that each takes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement stops at the first surprise")]

mod measure;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::shrink::Compression;
use forgeyard_cache::store::{Body, INLINE, Policy, Provenance, Store as _};
use forgeyard_model::Digest;
use measure::{Figure, clock, cpu, median, server};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 5;

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
    all
}

/// Fills a folder; answers with seconds of CPU time that compressing took and what came of it.
fn fill(
    folder: &Path,
    objects: &[Vec<u8>],
    on: bool,
) -> (f64, forgeyard_cache::store::shrink::ShrinkStat, f64) {
    let compression = Compression { on, ..Compression::default() };
    let config = Config { compression, ..Config::new(folder.join("store")) };
    let store = LogStore::open(config, clock()).unwrap();
    for bytes in objects {
        let name =
            Name { scope: "bench".parse().unwrap(), kind: Kind::Content, key: Digest::of(bytes).hex() };
        let by = Provenance::default();
        if bytes.len() as u64 > INLINE {
            let mut spool = store.spool().unwrap();
            spool.write(bytes).unwrap();
            store.put(&name, Body::Large(spool.finish(false).unwrap()), Policy::Keep, &by).unwrap();
        } else {
            store.put(&name, Body::Inline(bytes), Policy::Keep, &by).unwrap();
        }
    }
    store.seal().unwrap();
    let before = cpu(std::process::id());
    store.shrink_all().unwrap();
    let took = cpu(std::process::id()) - before;
    let totals = store.totals();
    store.snapshot().unwrap();
    (took, store.shrunk(), totals.disk_bytes as f64)
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
    let (plain, framed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, _, before) = fill(plain.path(), &objects, false);
    let (took, shrunk, after) = fill(framed.path(), &objects, true);
    let figure = |text: &str, value: f64, unit| Figure { text, value, unit, peer: None, aim: None }.print();
    figure("object files", objects.len() as f64, "files");
    figure("their size", mib, "MiB");
    figure("on disk, of what it was", after * 100.0 / before, "%");
    figure(
        "what was compressed, of what it was",
        shrunk.bytes_out as f64 * 100.0 / shrunk.bytes_in as f64,
        "%",
    );
    figure("CPU time to compress", took * 1000.0 * f64::from(1 << 20) / shrunk.bytes_in as f64, "ms a MiB");
    // by its service neither
    std::fs::write(plain.path().join("plain"), "").unwrap();
    let mut servers = [server(plain.path()), server(framed.path())];
    let largest = objects.iter().map(Vec::len).max().unwrap();
    let mut clients = [Client::new(servers[0].1, largest), Client::new(servers[1].1, largest)];
    let keys: Vec<(String, usize)> =
        objects.iter().map(|bytes| (Digest::of(bytes).hex(), bytes.len())).collect();
    for (text, least, most) in [
        ("2 to 16 KiB", 0, 16 << 10),
        ("16 to 128 KiB", 16 << 10, 128 << 10),
        ("128 KiB to 1 MiB", 128 << 10, 1 << 20),
        ("above 1 MiB", 1 << 20, usize::MAX),
    ] {
        let some: Vec<&(String, usize)> =
            keys.iter().filter(|(_, length)| (least..most).contains(length)).collect();
        if some.is_empty() {
            continue;
        }
        // about as many bytes of each
        let turns = (2000 / some.len()).clamp(1, 40);
        let mut spent = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for at in 0..2 {
                let before = cpu(servers[at].0.id());
                for (key, length) in (0..turns).flat_map(|_| &some) {
                    clients[at].get(key, *length);
                }
                // the first time, entries are checked
                if round > 0 {
                    let each = (cpu(servers[at].0.id()) - before) * 1e6 / (turns * some.len()) as f64;
                    spent[at].push(each);
                }
            }
        }
        let [plain, framed] = spent.map(median);
        let text = format!("CPU time of a GET, {text}, compressed");
        Figure { text: &text, value: framed, unit: "µs", peer: Some(("as it came", plain)), aim: None }
            .print();
    }
    for (child, _) in &mut servers {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
