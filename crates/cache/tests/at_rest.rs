//! Compression at rest as clients see it, over HTTP: parts, heads, figures; and how much real object files shrink.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::service::{Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Digest;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use support::{Client, options, service, token};

const FRAME: usize = 256 << 10;

/// Bytes that shrink, and that are unlike at every place.
fn code(length: usize) -> Vec<u8> {
    (0u32..).flat_map(|at| format!("{at} mov %rax,%rbx; call _ZN;").into_bytes()).take(length).collect()
}

/// A service that writes back nothing, however often it is read.
fn compressing(folder: &Path) -> Running {
    let mut options = options(folder, Durability::PageCache);
    options.store.compression.after_minutes = 0;
    start(options).unwrap()
}

/// Whoever reads compressed entries again and again gets the same answers before, while and after they are written back.
#[test]
fn entries_that_are_read_all_the_time_are_written_back_under_their_readers() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    let entries = [("small", code(700_000)), ("large", code((2 << 20) + 3)), ("one", code(5000))];
    let path = |key: &str| format!("/p/main/-/kv/{key}");
    for (key, bytes) in &entries {
        assert_eq!(client.ask("PUT", &path(key), Some(&main), Some(bytes)).status, 201);
    }
    running.seal().unwrap();
    running.shrink().unwrap();
    let admin = token("admin", Access::Admin);
    let begun = Instant::now();
    loop {
        for (key, bytes) in &entries {
            let whole = client.ask("GET", &path(key), None, None);
            assert!(whole.status == 200 && whole.body == *bytes, "{key}");
        }
        let stat = client.ask("GET", "/-/admin/stat", Some(&admin), None).body;
        let stat: Stat = serde_json::from_slice(&stat).unwrap();
        if stat.shrunk.restored == 3 {
            break;
        }
        assert!(begun.elapsed().as_secs() < 100, "{:?}", stat.shrunk);
    }
    for (key, bytes) in &entries {
        assert!(client.ask("GET", &path(key), None, None).body == *bytes, "{key}");
    }
    running.stop().unwrap();
}

#[test]
fn parts_over_the_borders_of_frames_are_those_of_the_content() {
    let folder = tempfile::tempdir().unwrap();
    let running = compressing(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    let entries = [("small", code(700_000)), ("large", code((2 << 20) + 3)), ("one", code(5000))];
    let tag = |head: &str| head.lines().find(|line| line.starts_with("ETag: ")).unwrap().to_owned();
    let mut tags = Vec::new();
    for (key, bytes) in &entries {
        let path = format!("/p/main/-/kv/{key}");
        assert_eq!(client.ask("PUT", &path, Some(&main), Some(bytes)).status, 201);
        // so that this thread knows of the old form
        let whole = client.ask("GET", &path, None, None);
        assert!(whole.body == *bytes);
        tags.push(tag(&whole.head));
    }
    running.seal().unwrap();
    running.shrink().unwrap();
    for ((key, bytes), before) in entries.iter().zip(&tags) {
        let path = format!("/p/main/-/kv/{key}");
        for _ in 0..2 {
            let whole = client.ask("GET", &path, None, None);
            assert!(whole.status == 200 && whole.body == *bytes, "{key}");
            assert_eq!(tag(&whole.head), *before);
        }
        let head = client.ask("HEAD", &path, None, None).head;
        assert!(head.contains(&format!("Content-Length: {}\r\n", bytes.len())), "{head}");
        let last = bytes.len() - 1;
        let places = [0, 1, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME - 1, 2 * FRAME, last];
        for (from, until) in places.iter().flat_map(|from| places.iter().map(move |until| (*from, *until))) {
            if from > until || from > last {
                continue;
            }
            client.send(
                format!("GET {path} HTTP/1.1\r\nHost: cache\r\nRange: bytes={from}-{until}\r\n\r\n")
                    .as_bytes(),
            );
            let part = client.answer(false);
            assert_eq!(part.status, 206);
            assert!(part.body == bytes[from..=until.min(last)], "{key} {from}-{until}");
        }
    }
    let admin = token("admin", Access::Admin);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    assert!(stat.shrunk.on && stat.shrunk.bodies == 3, "{:?}", stat.shrunk);
    assert!(stat.totals.saved_bytes > 2 << 20);
    let held = stat.scopes.iter().find(|scope| scope.scope == "p/main").unwrap();
    assert_eq!(held.bytes as usize, entries.iter().map(|(_, bytes)| bytes.len()).sum::<usize>());
    let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
    for name in ["saved_bytes", "shrink_bodies_total", "shrink_busy_milliseconds_total"] {
        assert!(metrics.contains(&format!("\nforgeyard_cache_{name} ")), "{name}");
    }
    running.stop().unwrap();
}

/// Members of an `ar` archive, in the form of System V.
fn members(archive: &[u8]) -> Vec<&[u8]> {
    let mut rest = archive.strip_prefix(b"!<arch>\n").unwrap();
    let mut all = Vec::new();
    while rest.len() > 60 {
        let size: usize = std::str::from_utf8(&rest[48..58]).unwrap().trim().parse().unwrap();
        let end = (60 + size).min(rest.len());
        all.push(&rest[60..end]);
        rest = rest.get(end + size % 2..).unwrap_or_default();
    }
    all
}

/// Object files of the standard library that is installed with the compiler: what a build sends that compresses nothing itself.
fn object_files() -> Vec<Vec<u8>> {
    let sysroot = Command::new("rustc").args(["--print", "target-libdir"]).output().unwrap();
    let folder = PathBuf::from(String::from_utf8(sysroot.stdout).unwrap().trim());
    let mut all = Vec::new();
    for file in fs_err::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "rlib") {
            let archive = fs_err::read(path).unwrap();
            let objects = members(&archive).into_iter().filter(|member| member.starts_with(b"\x7fELF"));
            all.extend(objects.map(<[u8]>::to_vec));
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Prints what the documentation says: how far object files shrink, and what that costs. Only the first is asserted.
#[test]
fn object_files_take_less_than_half_of_the_room() {
    let folder = tempfile::tempdir().unwrap();
    let running = compressing(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    let admin = token("admin", Access::Admin);
    let objects = object_files();
    let path = |bytes: &[u8]| format!("/p/main/-/bazel/cas/{}", Digest::of(bytes).hex());
    let paths: Vec<String> = objects.iter().map(|bytes| path(bytes)).collect();
    for (bytes, path) in objects.iter().zip(&paths) {
        assert_eq!(client.ask("PUT", path, Some(&main), Some(bytes)).status, 201);
    }
    let mut read_all = || {
        let begun = Instant::now();
        for (bytes, path) in objects.iter().zip(&paths) {
            assert!(client.ask("GET", path, None, None).body == *bytes);
        }
        begun.elapsed()
    };
    // the second time, the entries were checked
    let plain = (read_all(), read_all());
    running.seal().unwrap();
    running.shrink().unwrap();
    let framed = (read_all(), read_all());
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    let (shrunk, totals) = (stat.shrunk, stat.totals);
    let mib = shrunk.bytes_in as f64 / f64::from(1 << 20);
    println!(
        "{} object files, {} compressed: {mib:.1} MiB became {:.1} % in {:.1} ms a MiB; read in {:?} and {:?} before, {:?} and {:?} after",
        objects.len(),
        shrunk.bodies,
        shrunk.bytes_out as f64 * 100.0 / shrunk.bytes_in as f64,
        shrunk.busy_millis as f64 / mib,
        plain.0,
        plain.1,
        framed.0,
        framed.1,
    );
    assert!(totals.disk_bytes * 2 < totals.disk_bytes + totals.saved_bytes, "{totals:?}");
    running.stop().unwrap();
}
