//! Reports about storage and HTTP of other caches, as tests. *Protocol tests*: the requests are written by hand. The names say
//! which report; `docs/cache-reports.md` lists all of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::{Body, Clock, Limits, Policy, Provenance, Store as _};
use forgeyard_cache::token::Access;
use forgeyard_model::{Digest, Timestamp};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Client, NOW, service, token};

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut all = Vec::with_capacity(length + 8);
    while all.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(length);
    all
}

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_micros(NOW))
}

fn name(key: &str) -> Name {
    Name { scope: "p/main".parse().unwrap(), kind: Kind::Keyed, key: key.to_owned() }
}

fn put(store: &LogStore, key: &str, bytes: &[u8]) {
    store.put(&name(key), Body::Inline(bytes), Policy::Replace, &Provenance::default()).unwrap();
}

/// ccache#927, #934: a client that reads, compiles for long and then writes; and one whose connection broke meanwhile and
/// that sends the same again.
#[test]
fn ccache_927_write_that_is_sent_again_over_a_new_connection_is_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    let entry = bytes(50_000, 1);
    let mut client = Client::new(running.address);
    assert_eq!(client.ask("GET", "/-/kv/k", Some(&main), None).status, 404);
    // half of it, and the connection is gone
    let head =
        format!("PUT /-/kv/k HTTP/1.1\r\nAuthorization: Bearer {main}\r\nContent-Length: 50000\r\n\r\n");
    client.send(&[head.as_bytes(), &entry[..20_000]].concat());
    drop(client);
    let mut client = Client::new(running.address);
    assert_eq!(client.ask("GET", "/-/kv/k", Some(&main), None).status, 404, "half of a body is no entry");
    assert_eq!(client.ask("PUT", "/-/kv/k", Some(&main), Some(&entry)).status, 201);
    assert_eq!(client.ask("PUT", "/-/kv/k", Some(&main), Some(&entry)).status, 200);
    assert!(client.ask("GET", "/-/kv/k", Some(&main), None).body == entry);
}

/// ccache#1510: a client that asks for the connection to be closed gets that, and one that does not keeps it.
#[test]
fn ccache_1510_connection_is_kept_or_closed_as_the_client_asks() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    for (request, kept) in [
        ("GET /p/main/-/kv/x HTTP/1.1\r\n\r\n", true),
        ("GET /p/main/-/kv/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true),
        ("GET /p/main/-/kv/x HTTP/1.1\r\nConnection: close\r\n\r\n", false),
    ] {
        client.send(request.as_bytes());
        let answer = client.answer(false);
        assert_eq!(answer.status, 404);
        assert_eq!(answer.head.contains("Connection: close"), !kept, "{request:?}");
    }
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0, "it was closed");
    let mut client = Client::new(running.address);
    client.send(b"GET /p/main/-/kv/x HTTP/1.0\r\n\r\n");
    assert!(client.answer(false).head.contains("Connection: close"));
}

/// bazel-remote#479, #517, #394: ten thousand threads, because each request that waits for a disk or a client had one.
#[test]
fn bazel_remote_479_connections_cost_no_threads() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    Client::new(running.address).ask("PUT", "/-/kv/k", Some(&main), Some(&bytes(100_000, 1)));
    // other tests of this program run beside, so only names count: the threads of the service have none of their own
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut clients: Vec<Client> = (0..300).map(|_| Client::new(running.address)).collect();
    for client in &mut clients {
        // asked, and not read
        client.send(format!("GET /-/kv/k HTTP/1.1\r\nAuthorization: Bearer {main}\r\n\r\n").as_bytes());
    }
    let during = threads();
    for client in &mut clients {
        assert_eq!(client.answer(false).body.len(), 100_000);
    }
    assert!(during < before + 100, "{before} threads before, {during} with 300 connections");
}

/// bazel-remote#838: a put waited while files of evicted entries were removed. Here eviction runs all the time, and each put
/// comes through.
#[test]
fn bazel_remote_838_puts_go_on_while_entries_are_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { capacity: 8 << 20, segment: 256 << 10, ..Config::new(folder.path()) };
    let (store, done) = (LogStore::open(config, clock()).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                store.maintain(&|_| Limits::default()).unwrap();
            }
        });
        for number in 0..4000u64 {
            while store.over() {
                std::thread::yield_now();
            }
            let entry = bytes(10_000, number);
            put(&store, &number.to_string(), &entry);
            let mut buffer = Vec::new();
            assert!(store.get(name(&number.to_string()).hash(), &mut buffer).unwrap().is_some(), "{number}");
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(store.totals().disk_bytes <= 9 << 20);
    assert_eq!(store.damaged(), 0);
}

/// NixOS/nix#4832: a download that broke off goes on where it was, with the same file.
#[test]
fn nix_4832_download_that_broke_off_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    for size in [20_000, 2_500_000] {
        let entry = bytes(size, 7);
        let mut client = Client::new(running.address);
        assert_eq!(client.ask("PUT", "/-/nix/log/some.drv", Some(&main), Some(&entry)).status, 201);
        // twice: the second time it is sent from the page cache
        for _ in 0..2 {
            let whole = client.ask("GET", "/-/nix/log/some.drv", Some(&main), None);
            assert!(whole.head.contains("Accept-Ranges: bytes") && !whole.head.contains("Content-Encoding"));
            assert!(whole.body == entry);
            let from = size / 3;
            client.send(
                format!("GET /-/nix/log/some.drv HTTP/1.1\r\nAuthorization: Bearer {main}\r\nRange: bytes={from}-\r\n\r\n")
                    .as_bytes(),
            );
            let rest = client.answer(false);
            assert_eq!(rest.status, 206);
            let range = format!("Content-Range: bytes {from}-{}/{size}\r\n", size - 1);
            assert!(rest.head.contains(&range), "{}", rest.head);
            assert!(rest.body == entry[from..]);
        }
        assert_eq!(client.ask("DELETE", "/-/nix/log/some.drv", Some(&main), None).status, 204);
    }
}

/// NixOS/nix#4533: a download that ends early must not look whole. Every answer says its length, and one that cannot be
/// finished ends with a reset.
#[test]
fn nix_4533_answer_that_cannot_be_finished_does_not_end_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    let entry = bytes(9 << 20, 3);
    let mut client = Client::new(running.address);
    assert_eq!(client.ask("PUT", "/-/kv/k", Some(&main), Some(&entry)).status, 201);
    let hex = Digest::of(&entry).hex();
    let path = folder.path().join("store/large").join(&hex[..2]).join(&hex);
    let mut file = fs_err::read(&path).unwrap();
    file[8 << 20 | 5] ^= 1;
    fs_err::write(&path, &file).unwrap();
    client.send(format!("GET /-/kv/k HTTP/1.1\r\nAuthorization: Bearer {main}\r\n\r\n").as_bytes());
    let mut all = Vec::new();
    let ended = client.stream.read_to_end(&mut all);
    let head = String::from_utf8_lossy(&all[..200]).into_owned();
    assert!(head.contains(&format!("Content-Length: {}\r\n", 9 << 20)), "{head}");
    assert!(all.len() < 9 << 20, "the damaged piece was sent");
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

/// harmonia#1139: a range answered with 200; one past the end must be 416 with the size.
#[test]
fn harmonia_1139_range_is_206_and_one_past_the_end_416() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    let mut client = Client::new(running.address);
    client.ask("PUT", "/-/kv/k", Some(&main), Some(b"0123456789"));
    let mut ask = |range: &str| {
        client.send(
            format!("GET /-/kv/k HTTP/1.1\r\nAuthorization: Bearer {main}\r\nRange: {range}\r\n\r\n")
                .as_bytes(),
        );
        let answer = client.answer(false);
        (
            answer.status,
            String::from_utf8(answer.body).unwrap(),
            answer.head.contains("Content-Range: bytes */10"),
        )
    };
    assert_eq!(ask("bytes=2-4"), (206, "234".to_owned(), false));
    assert_eq!(ask("bytes=-3"), (206, "789".to_owned(), false));
    assert_eq!(ask("bytes=10-"), (416, String::new(), true));
    assert_eq!(ask("pages=1-2").0, 200, "what is no range of bytes is not there");
}

/// ncps#1333, #38: a check that deleted what was valid, since it looked between two steps of a write.
#[test]
fn ncps_1333_check_beside_writes_takes_nothing_that_holds() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { segment: 1 << 20, ..Config::new(folder.path()) };
    let (store, done) = (LogStore::open(config, clock()).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                assert_eq!(store.scrub().unwrap().1, 0);
                store.scrub_some(300_000).unwrap();
            }
        });
        for number in 0..3000u64 {
            // some share a content, some take the place of another
            put(&store, &format!("{}", number % 1000), &bytes(3000, number / 2));
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(store.damaged(), 0);
    assert_eq!(store.list(None).unwrap().len(), 1000);
}

/// kevincobain2000/cache-http#11, LMCache#4991: two that wrote one key at once shared a file on the way.
#[test]
fn cache_http_11_two_writers_of_one_key_leave_one_whole_entry() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let fork = token("p/pr/7", Access::Write);
    for size in [40_000usize, 3_000_000] {
        let entries = [bytes(size, 1), bytes(size, 2), bytes(size, 3)];
        for _ in 0..5 {
            std::thread::scope(|scope| {
                for entry in &entries {
                    scope.spawn(|| {
                        let mut client = Client::new(running.address);
                        assert!(client.ask("PUT", "/-/kv/k", Some(&fork), Some(entry)).status < 300);
                    });
                }
            });
            let found = Client::new(running.address).ask("GET", "/-/kv/k", Some(&fork), None);
            assert!(entries.contains(&found.body), "it is none of the three");
        }
    }
    assert_eq!(
        fs_err::read_dir(folder.path().join("store/incoming"))
            .unwrap()
            .filter(|entry| { entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "part") })
            .count(),
        0
    );
}

/// Bytes of a file that are in the page cache; nothing where `fincore` (util-linux) is missing.
fn in_page_cache(path: &std::path::Path) -> Option<u64> {
    let output = std::process::Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(path)
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).unwrap().trim().parse().ok()
}

/// The only file below a folder.
fn only_file(folder: &std::path::Path) -> std::path::PathBuf {
    let entry = fs_err::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    if entry.is_dir() { only_file(&entry) } else { entry }
}

/// bb-storage#121: what is read once is not left in the page cache, where it would push out what everybody reads; what is read
/// again stays.
#[test]
fn bb_storage_121_large_content_that_is_read_once_does_not_stay_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    let mut client = Client::new(running.address);
    let (large, small) = (bytes(24 << 20, 1), bytes(16 << 10, 2));
    assert_eq!(client.ask("PUT", "/-/kv/large", Some(&main), Some(&large)).status, 201);
    assert_eq!(client.ask("PUT", "/-/kv/small", Some(&main), Some(&small)).status, 201);
    let path = only_file(&folder.path().join("store/large"));
    let log = folder.path().join("store/seg/00000001.fyl");
    for path in [&path, &log] {
        fs_err::File::open(path).unwrap().sync_all().unwrap();
    }
    assert!(client.ask("GET", "/-/kv/large", Some(&main), None).body == large);
    assert!(client.ask("GET", "/-/kv/small", Some(&main), None).body == small);
    // the connection's thread drops the pages behind the answer
    assert_eq!(client.ask("GET", "/healthz", None, None).status, 200);
    let Some(after) = in_page_cache(&path) else {
        println!("SKIPPED: fincore is not installed");
        return;
    };
    let dropped = |left: u64| left < 2 << 20;
    if !dropped(after) {
        // a folder in memory drops nothing
        nix::fcntl::posix_fadvise(
            fs_err::File::open(&path).unwrap().file(),
            0,
            0,
            nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        )
        .unwrap();
        if !dropped(in_page_cache(&path).unwrap()) {
            println!("SKIPPED: this file system keeps what it is advised to drop");
            return;
        }
        panic!("{after} bytes of a large content are still in the page cache");
    }
    assert!(in_page_cache(&log).unwrap() > 0, "the small ones stay");
    for _ in 0..2 {
        assert!(client.ask("GET", "/-/kv/large", Some(&main), None).body == large);
    }
    assert_eq!(client.ask("GET", "/healthz", None, None).status, 200);
    assert!(in_page_cache(&path).unwrap() > 20 << 20, "what is read again stays");
    running.stop().unwrap();
}

fn send_part(client: &mut Client, token: &str, path: &str, range: &str, part: &[u8]) -> (u16, String) {
    client.send(
        format!(
            "PUT {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Range: bytes {range}\r\nContent-Length: {}\r\n\r\n",
            part.len()
        )
        .as_bytes(),
    );
    client.send(part);
    let answer = client.answer(false);
    let stands = answer.head.lines().find_map(|line| line.strip_prefix("Range: ")).unwrap_or("-");
    (answer.status, stands.to_owned())
}

/// attic#287, attic#281: a large upload through a proxy that takes no large bodies, and one whose connection breaks.
#[test]
fn attic_287_upload_in_parts_goes_on_where_it_broke_off_and_is_no_entry_before_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    let entry = bytes(5_000_000, 3);
    let digest = Digest::of(&entry).hex();
    for path in ["/-/kv/parts".to_owned(), format!("/-/bazel/cas/{digest}")] {
        let mut client = Client::new(running.address);
        let ask =
            |client: &mut Client, range: &str, part: &[u8]| send_part(client, &main, &path, range, part);
        assert_eq!(ask(&mut client, "*/5000000", b""), (308, "-".into()), "nothing yet");
        assert_eq!(
            ask(&mut client, "0-1999999/5000000", &entry[..2_000_000]),
            (308, "bytes=0-1999999".into())
        );
        assert_eq!(client.ask("GET", &path, Some(&main), None).status, 404);
        // a connection that breaks within a part
        client.send(
            format!(
                "PUT {path} HTTP/1.1\r\nAuthorization: Bearer {main}\r\nContent-Range: bytes 2000000-3999999/5000000\r\n\
                 Content-Length: 2000000\r\n\r\n"
            )
            .as_bytes(),
        );
        client.send(&entry[2_000_000..2_700_000]);
        drop(client);
        let mut client = Client::new(running.address);
        let at = loop {
            let (status, stands) = ask(&mut client, "*/5000000", b"");
            assert_eq!(status, 308);
            let at: usize = stands.rsplit('-').next().unwrap().parse().map_or(0, |last: usize| last + 1);
            // until the service has noticed
            if at > 2_000_000 {
                break at;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert!(at <= 2_700_000);
        assert_eq!(
            ask(&mut client, "4000000-4999999/5000000", &entry[4_000_000..]).0,
            409,
            "not where it stands"
        );
        let rest = format!("{at}-4999999/5000000");
        assert_eq!(send_part(&mut client, &fork, &path, &rest, &entry[at..]).0, 409, "another's upload");
        assert_eq!(ask(&mut client, &rest, &entry[at..]).0, 201);
        assert!(client.ask("GET", &path, Some(&main), None).body == entry);
    }
    // in small parts, and with bytes that are not what the key says
    let mut client = Client::new(running.address);
    let path = format!("/-/bazel/cas/{}", Digest::of(b"other").hex());
    assert_eq!(send_part(&mut client, &main, &path, "0-1/5", b"ot").0, 308);
    assert_eq!(send_part(&mut client, &main, &path, "2-4/5", b"hex").0, 422);
    assert_eq!(send_part(&mut client, &main, &path, "0-1/5", b"ot").0, 308);
    assert_eq!(send_part(&mut client, &main, &path, "2-4/5", b"her").0, 201);
    client.send(format!("PUT {path} HTTP/1.1\r\nAuthorization: Bearer {main}\r\nContent-Range: bytes 0-9\r\nContent-Length: 0\r\n\r\n").as_bytes());
    assert_eq!(client.answer(false).status, 400);
    running.stop().unwrap();
}
