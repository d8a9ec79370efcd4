//! What stays whatever else comes: long promises, and small entries beside large ones.

use super::*;
use forgeyard_cache::store::NAR_MINUTES;

/// nix#1885: the promise is known after a crash, and without a snapshot too; quota and age respect it until it has passed.
#[rstest]
fn nix_1885_promise_for_30_days_outlives_a_crash_a_quota_and_an_age(#[values(false, true)] snapshot: bool) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let (kept, other) = (name("pr", "kept"), name("pr", "other"));
    let large = some_bytes(2 << 20, 3);
    {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        put(&store, &kept, &large);
        put(&store, &other, &some_bytes(2 << 20, 4));
        if snapshot {
            store.snapshot().unwrap();
        }
        assert!(store.keep(kept.hash(), NAR_MINUTES).unwrap());
        assert!(!store.keep(name("pr", "never").hash(), NAR_MINUTES).unwrap());
    }
    let none = |_: &str| Limits { bytes: Some(1000), idle_minutes: Some(60) };
    for days in [1, 27] {
        minutes.pass(days * 24 * 60);
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        store.maintain(&none).unwrap();
        assert_eq!(read(&store, &other), None);
        // reading it is no use that would count
        assert!(read(&store, &kept).as_ref() == Some(&large), "after {days} more days");
    }
    minutes.pass(3 * 24 * 60);
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    store.maintain(&none).unwrap();
    assert_eq!(read(&store, &kept), None, "the promise has passed");
}

/// What was promised for days yields when it takes more than half of the room: else one scope stops all others for a month.
#[test]
fn promises_for_days_give_way_when_they_fill_the_cache() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let config = Config { capacity: 8 << 20, segment: 256 << 10, ..Config::new(folder.path()) };
    let store = LogStore::open(config, minutes.clock()).unwrap();
    for number in 0..30u8 {
        let name = name("pr", &number.to_string());
        put(&store, &name, &some_bytes(300_000, number));
        store.keep(name.hash(), NAR_MINUTES).unwrap();
        store.maintain(&|_| Limits::default()).unwrap();
    }
    minutes.pass(1);
    for number in 0..30u8 {
        put(&store, &name("main", &number.to_string()), &some_bytes(300_000, 100 + number));
        store.maintain(&|_| Limits::default()).unwrap();
    }
    assert!(read(&store, &name("main", "29")).is_some());
    assert!(store.totals().disk_bytes <= 9 << 20, "{}", store.totals().disk_bytes);
}

/// bb-storage#121: a scan of large contents, each read once, and others that come in, take no small entry away that is used.
#[test]
fn bb_storage_121_scan_of_large_contents_evicts_no_small_entry_that_is_used() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let config = Config { capacity: 64 << 20, segment: 1 << 20, ..Config::new(folder.path()) };
    let store = LogStore::open(config, minutes.clock()).unwrap();
    let small = |number: u32| name("main", &format!("small-{number}"));
    let large = |number: u32| name("main", &format!("large-{number}"));
    // small ones between large ones, so that they share their segments
    for number in 0..20u32 {
        for some in 0..10 {
            put(&store, &small(number * 10 + some), &some_bytes(4000, (number * 10 + some) as u8));
        }
        put(&store, &large(number), &some_bytes(2 << 20, number as u8));
    }
    for round in 0..30u32 {
        minutes.pass(10);
        (0..200)
            .for_each(|number| assert!(read(&store, &small(number)).is_some(), "{number} in round {round}"));
        minutes.pass(1);
        // after the small ones, so that a large one is what was used last
        (0..20).for_each(|number| drop(read(&store, &large(number))));
        for some in 0..2 {
            let number = 50 + round * 2 + some;
            put(&store, &large(100 + number), &some_bytes(2 << 20, number as u8));
        }
        store.maintain(&|_| Limits::default()).unwrap();
    }
    assert!(store.totals().disk_bytes <= 64 << 20);
    (0..200).for_each(|number| assert!(read(&store, &small(number)).is_some(), "{number}"));
}
