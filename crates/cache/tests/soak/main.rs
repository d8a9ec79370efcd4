//! Clients of several kinds write and read over real sockets while the service is killed (`SIGKILL`) and started again, with
//! room for everything, with too little room, on a disk that is full, and with a tier in S3-compatible storage that is slow,
//! failing, hung and dead in turns. Looked for: an acknowledged entry that is lost, a
//! byte that is wrong, an action result whose files are not there, memory that grows.
//!
//! `cargo xtask soak cache [SECONDS]` runs [`soak`] for so long; 60 seconds of it belong to CI, half an hour to a release.
//! The service is this test program again, in a process of its own, at [`the_service`]. That the looking finds something is
//! shown by [`lost_entry_and_wrong_byte_are_noticed`], which plants both.
//!
//! What a kill of the *process* can show is that nothing waits in its memory after it acknowledged. It says nothing of a
//! machine that loses power: there `group` promises what `fdatasync` does, and `page-cache` may lose the last seconds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod client;
#[path = "../support/killed.rs"]
mod killed;
#[path = "../support/s3.rs"]
mod s3;
mod service;
#[path = "../support/mod.rs"]
mod support;
mod wire;

use client::{Known, Soaker, Tally, Wrong, content};
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::{Config, Durability};
use forgeyard_cache::store::shrink::Compression;
use forgeyard_cache::token::Access;
use forgeyard_model::{Digest, Timestamp};
use killed::Process;
use s3::Fault;
use service::{Service, SmallDisk};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{token, write_authority};
use wire::Wire;

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
    /// For a part, with a tier behind it that is slow, failing, hung and dead in turns. A miss is no loss.
    Tier,
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
    let tier = std::env::var("SOAK_TIER").ok().map(|address| forgeyard_cache::tier::Config {
        endpoint: format!("http://{address}"),
        bucket: s3::BUCKET.to_owned(),
        region: "us-east-1".to_owned(),
        prefix: "soak".to_owned(),
        writer: "soak".to_owned(),
        reads: Vec::new(),
        key: forgeyard_model::Secret::new(s3::KEY.to_owned()),
        secret: forgeyard_model::Secret::new(s3::SECRET.to_owned()),
        seal_minutes: 1,
    });
    let running = start(Options {
        listen: say("SOAK_LISTEN").parse().unwrap(),
        tls: None,
        store: Config {
            durability,
            capacity,
            segment: if tier.is_some() { 4 << 20 } else { 16 << 20 },
            // with a tier what is read stays plain, or is written back; else everything is compressed, at once
            compression: Compression { after_minutes: u32::from(tier.is_some()), ..Compression::default() },
            tier,
            ..Config::new(folder.join("disk/store"))
        },
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

/// One folder: a few rounds of clients, each ended by a kill, and a last look at everything.
fn one(room: Room, group: bool, rounds: u32, round: Duration) -> String {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("disk");
    fs_err::create_dir_all(&place).unwrap();
    let disk = if room == Room::FullDisk { SmallDisk::new(&place) } else { None };
    if room == Room::FullDisk && disk.is_none() {
        return "SKIPPED: a small disk cannot be mounted here; too little room stands in for it".to_owned();
    }
    let server = if room == Room::Tier { s3::S3::start() } else { None };
    if room == Room::Tier && server.is_none() {
        return "SKIPPED: no S3-compatible server".to_owned();
    }
    let proxy = server.as_ref().map(|server| s3::Proxy::start(server.address));
    let tier = proxy.as_ref().map(|proxy| proxy.address);
    let (mut address, mut memory, tally) = (SocketAddr::from(([127, 0, 0, 1], 0)), 0, Tally::default());
    let mut clients: Vec<Soaker> = (0..CLIENTS).map(|number| Soaker::new(number, room)).collect();
    for _ in 0..rounds {
        let service = Service::start(folder.path(), address, room, group, tier);
        address = service.address;
        tally.stop.store(false, Ordering::SeqCst);
        let killed = std::thread::scope(|scope| {
            let running: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.run(address, &tally))).collect();
            let begin = Instant::now();
            // as long as asked, and at a full disk until it is full
            let waits = || room == Room::FullDisk && tally.refused.load(Ordering::Relaxed) == 0;
            let more = || begin.elapsed() < round || waits() && begin.elapsed() < Duration::from_secs(120);
            let mut faults = [
                Fault::None,
                Fault::Slow,
                Fault::None,
                Fault::Failing,
                Fault::None,
                Fault::Hung,
                Fault::Dead,
            ]
            .into_iter()
            .cycle();
            let mut changed = Instant::now();
            while more() && !running.iter().any(|client| client.is_finished()) {
                std::thread::sleep(Duration::from_millis(20));
                if let Some(proxy) = &proxy
                    && changed.elapsed() > round / 7
                    && let Some(fault) = faults.next()
                {
                    proxy.fault(fault);
                    changed = Instant::now();
                }
            }
            // in the middle of what they do
            let killed = service.kill();
            tally.stop.store(true, Ordering::SeqCst);
            running.into_iter().for_each(|client| client.join().expect("a client found something"));
            killed
        });
        memory = memory.max(killed.1);
    }
    if let Some(proxy) = &proxy {
        proxy.fault(Fault::None);
    }
    let service = Service::start(folder.path(), address, room, group, tier);
    for client in &mut clients {
        let mut wire = Wire::open(service.address, &client.token).unwrap();
        let keys: Vec<u64> = client.keys.keys().copied().collect();
        keys.into_iter().for_each(|key| client.read(&mut wire, key, &tally).unwrap());
        (0..client.results.len()).for_each(|result| client.warm(&mut wire, result, &tally).unwrap());
    }
    let behind = tier.map(|_| metric(service.address, "forgeyard_cache_tier_"));
    memory = memory.max(service.kill().1);
    assert!(memory < MEMORY, "the service took {} MiB", memory >> 20);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert!(count(&tally.hits) > 0 && count(&tally.acknowledged) > 0, "nothing happened");
    if room == Room::FullDisk {
        assert!(count(&tally.refused) > 0, "the disk was never full");
    }
    let behind = behind.map_or_else(String::new, |figures| format!("; the tier: {figures}"));
    format!(
        "{rounds} kills: {} writes acknowledged, {} refused for want of room, {} of {} reads found something, {} results \
         with all their files, at most {} MiB of memory{behind}",
        count(&tally.acknowledged),
        count(&tally.refused),
        count(&tally.hits),
        count(&tally.reads),
        count(&tally.results),
        memory >> 20
    )
}

/// Figures whose names begin so, in a few words.
fn metric(address: SocketAddr, begins: &str) -> String {
    let mut wire = Wire::open(address, "").unwrap();
    let (_, text) = wire.ask("GET", "/metrics", None).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(begins));
    lines.collect::<Vec<_>>().join(", ")
}

/// The long one. `FORGEYARD_SOAK_SECONDS` says how long, `FORGEYARD_SOAK_ROOM` which kind of room alone, such as `Tier`.
#[test]
#[ignore = "takes as long as it is told: cargo xtask soak cache"]
fn soak() {
    let seconds = std::env::var("FORGEYARD_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let (begin, whole) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(60)));
    // a kill every 20 seconds, and six of them at least
    let round = (whole / 6).min(Duration::from_secs(20));
    let only = std::env::var("FORGEYARD_SOAK_ROOM").ok();
    let mut rooms = vec![Room::Enough, Room::Tier, Room::Little, Room::FullDisk];
    rooms.retain(|room| only.as_ref().is_none_or(|only| format!("{room:?}") == *only));
    let mut number = 0;
    while begin.elapsed() < whole {
        let room = rooms[number % rooms.len()];
        let group = number / 2 % 2 == 1;
        let done = one(room, group, 2, round);
        println!("{:>5.0} s  {room:?}, group commit {group}: {done}", begin.elapsed().as_secs_f64());
        number += 1;
    }
}

/// A few kills of each kind, so that every run of the tests has some.
#[rstest::rstest]
fn nothing_is_lost_and_no_byte_is_wrong_over_a_few_kills(
    #[values(Room::Enough, Room::Little, Room::FullDisk, Room::Tier)] room: Room,
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
    let service = Service::start(folder.path(), any, Room::Enough, false, None);
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
    let service = Service::start(folder.path(), any, Room::Enough, false, None);
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
