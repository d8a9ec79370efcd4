//! How long a start with ten million entries takes to the first byte, and what an entry costs in memory.
//!
//! `cargo xtask bench cache-start` runs it. The entries are made up: their slots lie in a snapshot as real ones would, their
//! records do not exist. A thousand real ones do, some of them behind the snapshot with as many records as a start ever
//! has to read. Time is taken from the start of the process to the first byte of the answer to a GET of a real entry: with
//! the files in the page cache, and after they were dropped from it. Memory is what the process has more than one with an
//! empty store, once the whole index is in.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measuring program stops at the first surprise"
)]

mod measure;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::{Body, Policy, Provenance, Store as _};
use measure::Figure;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const ENTRIES: u64 = 10_000_000;
/// Records behind the snapshot: a hundredth of the entries, when the next one is written.
const BEHIND: u64 = ENTRIES / 100;
const REAL: u64 = 1000;

fn main() {
    measure::serve_if_asked(true);
    let (full, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let made = Instant::now();
    fill(full.path());
    eprintln!("  made {ENTRIES} entries in {:.1} s", made.elapsed().as_secs_f64());
    let warm: Vec<f64> = (0..5).map(|_| first_byte(full.path()).0).collect();
    let cold: Vec<f64> = (0..3)
        .map(|_| {
            forget(full.path());
            first_byte(full.path()).0
        })
        .collect();
    let (_, full) = first_byte(full.path());
    let (_, empty) = first_byte(empty.path());
    let each = full.saturating_sub(empty) as f64 / (ENTRIES + BEHIND) as f64;
    figure("cache start, 10 M entries, to the first byte", measure::median(warm), "ms", 1000.0);
    figure("cache start, 10 M entries, files not in the page cache", measure::median(cold), "ms", 1000.0);
    figure("cache memory for each entry", each, "bytes", 40.0);
}

fn figure(text: &str, value: f64, unit: &str, aim: f64) {
    Figure { text, value, unit, peer: None, aim: Some(("at most", aim)) }.print();
}

fn fill(folder: &Path) {
    let store = LogStore::open(Config::new(folder.join("store")), measure::clock()).unwrap();
    let by = Provenance { principal: "bench".to_owned(), ..Provenance::default() };
    let put = |key: String| {
        let name = Name { scope: "bench".parse().unwrap(), kind: Kind::Keyed, key };
        store.put(&name, Body::Inline(name.key.as_bytes()), Policy::Replace, &by).unwrap();
    };
    (0..REAL).for_each(|number| put(format!("real-{number}")));
    store.pretend(ENTRIES);
    store.snapshot().unwrap();
    (0..BEHIND).for_each(|number| put(format!("behind-{number}")));
}

/// Milliseconds from the start of the process to the first byte, and bytes of memory once it is at rest.
fn first_byte(folder: &Path) -> (f64, u64) {
    let begin = Instant::now();
    let (mut child, address) = measure::server(folder);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /bench/-/kv/real-7 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let empty = !folder.join("store/index.snap").exists();
    assert!(answer.ends_with("real-7") || empty, "{answer}");
    let memory = at_rest(&child);
    eprintln!(
        "  first byte after {took:.0} ms, all in memory after {:.0} ms",
        begin.elapsed().as_secs_f64() * 1e3
    );
    child.kill().unwrap();
    child.wait().unwrap();
    (took, memory)
}

/// Memory of a process once it has not grown for a second.
fn at_rest(child: &Child) -> u64 {
    let now = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    let (mut before, mut quiet) = (now(), 0);
    while quiet < 10 {
        std::thread::sleep(Duration::from_millis(100));
        let after = now();
        quiet = if after.abs_diff(before) < 64 << 10 { quiet + 1 } else { 0 };
        before = after;
    }
    before
}

/// Drops the files of a store from the page cache.
fn forget(folder: &Path) {
    let store = folder.join("store");
    let segments = std::fs::read_dir(store.join("seg")).unwrap().map(|entry| entry.unwrap().path());
    for path in segments.chain([store.join("index.snap")]) {
        let file = std::fs::File::open(path).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}
