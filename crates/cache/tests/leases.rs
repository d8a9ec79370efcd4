//! What a lease promises, for every store, and the collector at work during reads and uploads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::twin::MemoryStore;
use forgeyard_cache::store::{
    Body, Clock, LEASE_MINUTES, Limits, Place, Policy, Provenance, Store, StoreError,
};
use forgeyard_model::{Digest, Timestamp};
use rstest::rstest;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};

/// A clock that the test moves, in minutes.
#[derive(Clone, Default)]
struct Minutes(Arc<AtomicI64>);

impl Minutes {
    fn pass(&self, minutes: u32) {
        self.0.fetch_add(i64::from(minutes) * 60_000_000, SeqCst);
    }

    fn clock(&self) -> Clock {
        let this = self.clone();
        Arc::new(move || Timestamp::from_micros(1_800_000_000_000_000 + this.0.load(SeqCst)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    Disk,
    Memory,
}

fn open(kept: Kept, folder: &Path, minutes: &Minutes) -> Box<dyn Store> {
    match kept {
        Kept::Disk => Box::new(LogStore::open(Config::new(folder), minutes.clock()).unwrap()),
        Kept::Memory => Box::new(MemoryStore::new(folder, minutes.clock())),
    }
}

fn name(scope: &str, key: &str) -> Name {
    Name { scope: scope.parse().unwrap(), kind: Kind::Content, key: key.to_owned() }
}

fn put(store: &dyn Store, name: &Name, bytes: &[u8]) -> Result<(), StoreError> {
    store.put(name, Body::Inline(bytes), Policy::Replace, &Provenance::default()).map(|_| ())
}

fn read(store: &dyn Store, name: &Name) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    let found = store.get(name.hash(), &mut buffer).unwrap()?;
    let Place::Buffer(range) = found.place else { panic!("these are small") };
    assert_eq!(Digest::of(&buffer[range.clone()]), found.facts.digest);
    Some(buffer[range].to_vec())
}

/// Content that only this number has.
fn content(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

#[rstest]
fn leased_entry_outlives_quota_and_age_until_its_lease_ends(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(kept, folder.path(), &minutes);
    assert!(
        !store.lease(name("a", "none").hash(), LEASE_MINUTES).unwrap(),
        "what is not there is not promised"
    );
    for number in 0..10u64 {
        put(&*store, &name("a", &number.to_string()), &content(number, 1000)).unwrap();
        minutes.pass(1);
    }
    assert!(store.lease(name("a", "0").hash(), LEASE_MINUTES).unwrap());
    // a read later does not shorten it
    read(&*store, &name("a", "0")).unwrap();
    minutes.pass(LEASE_MINUTES - 1);
    let tight = |_: &str| Limits { bytes: Some(1500), idle_minutes: Some(5) };
    store.maintain(&tight).unwrap();
    assert!(read(&*store, &name("a", "0")).is_some());
    assert_eq!(store.uses()[0].entries, 1, "the others went");
    minutes.pass(8);
    store.maintain(&tight).unwrap();
    assert_eq!(read(&*store, &name("a", "0")), None, "the lease has ended");
}

#[rstest]
fn scope_full_of_promises_takes_nothing_new_and_others_do(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(kept, folder.path(), &minutes);
    for number in 0..10u64 {
        put(&*store, &name("pr/7", &number.to_string()), &content(number, 1000)).unwrap();
        assert!(store.lease(name("pr/7", &number.to_string()).hash(), LEASE_MINUTES).unwrap());
    }
    let quota = |scope: &str| Limits { bytes: (scope == "pr/7").then_some(5000), idle_minutes: None };
    store.maintain(&quota).unwrap();
    assert_eq!(store.uses()[0].entries, 10, "promised");
    assert!(matches!(put(&*store, &name("pr/7", "new"), b"x"), Err(StoreError::Full(_))));
    put(&*store, &name("pr/8", "new"), b"x").unwrap();
    minutes.pass(LEASE_MINUTES + 1);
    store.maintain(&quota).unwrap();
    put(&*store, &name("pr/7", "new"), b"x").unwrap();
}

#[rstest]
fn leased_entry_can_be_removed_by_people(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(kept, folder.path(), &minutes);
    put(&*store, &name("a", "poison"), b"bad").unwrap();
    assert!(store.lease(name("a", "poison").hash(), LEASE_MINUTES).unwrap());
    assert!(store.remove(&name("a", "poison")).unwrap());
    assert!(!store.lease(name("a", "poison").hash(), LEASE_MINUTES).unwrap());
}

fn small(folder: &Path) -> Config {
    Config { capacity: 400 << 10, segment: 64 << 10, ..Config::new(folder) }
}

#[test]
fn leased_entries_outlive_a_full_disk_and_a_restart() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let mut store = LogStore::open(small(folder.path()), minutes.clock()).unwrap();
    for number in 0..40u64 {
        put(&store, &name("a", &number.to_string()), &content(number, 3000)).unwrap();
        assert!(store.lease(name("a", &number.to_string()).hash(), LEASE_MINUTES).unwrap());
    }
    for round in 0..20u64 {
        for number in 0..40 {
            put(&store, &name("b", &format!("{round}/{number}")), &content(1000 + round * 40 + number, 3000))
                .unwrap();
        }
        minutes.pass(1);
        store.maintain(&|_| Limits::default()).unwrap();
        if round == 10 {
            store.snapshot().unwrap();
            drop(store);
            store = LogStore::open(small(folder.path()), minutes.clock()).unwrap();
        }
    }
    assert!(store.totals().disk_bytes <= 400 << 10);
    for number in 0..40u64 {
        assert_eq!(read(&store, &name("a", &number.to_string())), Some(content(number, 3000)), "{number}");
    }
}

#[test]
fn disk_full_of_promises_refuses_new_entries_until_they_end() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = LogStore::open(small(folder.path()), minutes.clock()).unwrap();
    let none = |_: &str| Limits::default();
    let mut promised = Vec::new();
    let refused = (0..2000u64).find(|number| {
        let key = name("a", &number.to_string());
        let refused = match put(&store, &key, &content(*number, 3000)) {
            Ok(()) => false,
            Err(StoreError::Full(_)) => true,
            Err(error) => panic!("{error}"),
        };
        if !refused {
            assert!(store.lease(key.hash(), LEASE_MINUTES).unwrap());
            promised.push(*number);
            store.maintain(&none).unwrap();
        }
        refused
    });
    assert!(refused.is_some(), "the disk has a limit");
    assert!(store.totals().disk_bytes < 600 << 10);
    for number in &promised {
        assert_eq!(read(&store, &name("a", &number.to_string())), Some(content(*number, 3000)));
    }
    minutes.pass(LEASE_MINUTES + 1);
    store.maintain(&none).unwrap();
    put(&store, &name("a", "new"), b"room again").unwrap();
}

/// Whoever ends, ends the others, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Bazel is told that a content is there while the collector has already put it on its list (the case of a result that
/// is archived while it is collected): what was promised is served afterwards, and whatever is served is right.
#[test]
fn collector_during_reads_and_uploads_breaks_no_promise_and_serves_no_wrong_byte() {
    const ROUNDS: u64 = 1500;
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = LogStore::open(small(folder.path()), minutes.clock()).unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (kept, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        // half of the uploads are of contents that another scope has, which lie in segments on their way out
        threads.spawn(|| {
            let _stop = Stop(&stop);
            // puts are quicker than this small disk is emptied; then they are refused for a while
            let put = |scope: &str, number: u64| {
                let (key, bytes) = (name(scope, &number.to_string()), content(number, 2000));
                loop {
                    match put(&store, &key, &bytes) {
                        Ok(()) => return,
                        Err(StoreError::Full(_)) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            for number in 0..ROUNDS {
                put("main", number);
                if let Some(old) = number.checked_sub(150) {
                    put("pr", old);
                }
                written.store(number + 1, SeqCst);
            }
        });
        for seed in 1..3u64 {
            let (store, written, stop, kept, lost, minutes) =
                (&store, &written, &stop, &kept, &lost, &minutes);
            threads.spawn(move || {
                let _stop = Stop(stop);
                let mut at = seed;
                while !stop.load(SeqCst) {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                    let all = written.load(SeqCst);
                    // old enough to be on the list
                    let Some(number) = all.checked_sub(60 + (at >> 33) % 120) else { continue };
                    let key = name(if at >> 63 == 0 { "main" } else { "pr" }, &number.to_string());
                    match read(store, &key) {
                        Some(bytes) => assert!(bytes == content(number, 2000), "the wrong bytes"),
                        None => drop(lost.fetch_add(1, SeqCst)),
                    }
                    let end = minutes.0.load(SeqCst) + 30 * 60_000_000;
                    if (at >> 40).is_multiple_of(64) && store.lease(key.hash(), 30).unwrap() {
                        for _ in 0..20 {
                            let found = read(store, &key);
                            // the time may have passed while this thread waited
                            if minutes.0.load(SeqCst) < end {
                                assert!(found.is_some(), "{key} was promised");
                                kept.fetch_add(1, SeqCst);
                            }
                            assert!(found.is_none_or(|bytes| bytes == content(number, 2000)));
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        threads.spawn(|| {
            let _stop = Stop(&stop);
            while !stop.load(SeqCst) {
                store.maintain(&|_| Limits::default()).unwrap();
                minutes.pass(1);
                std::thread::yield_now();
            }
        });
    });
    assert!(kept.load(SeqCst) > 0 && lost.load(SeqCst) > 0, "{kept:?} promised, {lost:?} gone");
    // now and after a start that has nothing but the log: right bytes, or a miss
    let look = |store: &LogStore| {
        let keys = (0..ROUNDS).flat_map(|number| [("main", number), ("pr", number)]);
        keys.filter(|(scope, number)| {
            let found = read(store, &name(scope, &number.to_string()));
            assert!(found.as_ref().is_none_or(|bytes| *bytes == content(*number, 2000)), "{scope} {number}");
            found.is_some()
        })
        .count()
    };
    assert!(look(&store) > 0);
    drop(store);
    let _ = fs_err::remove_file(folder.path().join("index.snap"));
    let store = LogStore::open(small(folder.path()), minutes.clock()).unwrap();
    assert!(look(&store) > 0);
    assert_eq!(store.scrub().unwrap().1, 0, "what is left is whole");
}
