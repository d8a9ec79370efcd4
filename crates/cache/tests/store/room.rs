//! What goes when there is too little room, and what stays.

use super::*;

/// Small segments, so that eviction has work; some keys are read all the time and must survive.
#[rstest]
fn full_store_drops_segments_keeps_what_is_used_and_survives_restarts(#[values(false, true)] abrupt: bool) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let config = Config { capacity: 400 << 10, segment: 64 << 10, ..Config::new(folder.path()) };
    let mut store = LogStore::open(config.clone(), minutes.clock()).unwrap();
    let no_limits = |_: &str| Limits::default();
    put(&store, &name("main", "poison"), b"bad");
    store.remove(&name("main", "poison")).unwrap();
    for round in 0..40u16 {
        for number in 0..10u16 {
            put(
                &store,
                &name("main", &format!("{round}/{number}")),
                &some_bytes(3000 + usize::from(round), number as u8),
            );
        }
        put(&store, &name("main", "hot"), &some_bytes(2000, 200));
        put(&store, &name("pr", "hot too"), &some_bytes(2000, 200));
        minutes.pass(1);
        assert!(read(&store, &name("main", "hot")).is_some(), "round {round}");
        store.maintain(&no_limits).unwrap();
        assert!(store.totals().disk_bytes <= 400 << 10);
        if round % 7 == 6 {
            if abrupt {
                let _ = fs_err::remove_file(folder.path().join("index.snap"));
            }
            drop(store);
            store = LogStore::open(config.clone(), minutes.clock()).unwrap();
        }
        assert!(read(&store, &name("main", "hot")).is_some(), "round {round} after a restart");
        assert!(read(&store, &name("pr", "hot too")).is_some(), "round {round} after a restart");
        assert_eq!(read(&store, &name("main", "poison")), None, "what was removed does not come back");
    }
    assert!(read(&store, &name("main", "39/9")).is_some());
    assert_eq!(read(&store, &name("main", "0/0")), None);
    assert_eq!(store.damaged(), 0);
}

/// A pull request wrote the same bytes as an entry that was purged. Moving those bytes must not bring the entry back.
#[test]
fn purged_name_stays_gone_when_its_bytes_move_for_another() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let config = Config { capacity: 400 << 10, segment: 64 << 10, ..Config::new(folder.path()) };
    let mut store = LogStore::open(config.clone(), minutes.clock()).unwrap();
    put(&store, &name("main", "poison"), b"shared bytes");
    put(&store, &name("pr", "mine"), b"shared bytes");
    store.remove(&name("main", "poison")).unwrap();
    for round in 0..40u16 {
        for number in 0..12u16 {
            put(
                &store,
                &name("main", &format!("{round}/{number}")),
                &some_bytes(3000 + usize::from(round), number as u8),
            );
        }
        minutes.pass(1);
        assert_eq!(read(&store, &name("pr", "mine")).unwrap(), b"shared bytes");
        store.maintain(&|_| Limits::default()).unwrap();
        drop(store);
        let _ = fs_err::remove_file(folder.path().join("index.snap"));
        store = LogStore::open(config.clone(), minutes.clock()).unwrap();
        assert_eq!(read(&store, &name("main", "poison")), None, "round {round}");
    }
}

/// nativelink#2024: an entry that can never fit is refused up front; bazel-remote#838: beyond the hard limit writes are
/// refused, and reads go on.
#[test]
fn nativelink_2024_entry_larger_than_the_cache_is_refused_and_nothing_is_lost_for_it() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let config = Config { capacity: 1 << 20, segment: 64 << 10, ..Config::new(folder.path()) };
    let store = LogStore::open(config, minutes.clock()).unwrap();
    put(&store, &name("a", "k"), b"small");
    let mut spool = store.spool().unwrap();
    spool.write(&some_bytes(2 << 20, 1)).unwrap();
    let body = Body::Large(spool.finish(false).unwrap());
    let refused = store.put(&name("a", "too large"), body, Policy::Replace, &by("x"));
    assert!(matches!(refused, Err(forgeyard_cache::store::StoreError::Full(_))), "{refused:?}");
    assert_eq!(read(&store, &name("a", "k")).unwrap(), b"small");
    // nobody evicts meanwhile
    let full = (0..40u8).find_map(|number| {
        let bytes = some_bytes(60_000, number);
        store.put(&name("a", &number.to_string()), Body::Inline(&bytes), Policy::Replace, &by("x")).err()
    });
    assert!(matches!(full, Some(forgeyard_cache::store::StoreError::Full(_))), "{full:?}");
    assert_eq!(read(&store, &name("a", "k")).unwrap(), b"small");
    store.maintain(&|_| Limits::default()).unwrap();
    put(&store, &name("a", "after"), b"after");
    assert!(store.totals().disk_bytes <= 1 << 20);
}

/// Contents of a file each count against the capacity like any other, however few records name them.
#[test]
fn large_contents_are_evicted_when_they_do_not_fit() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let config = Config { capacity: 24 << 20, segment: 64 << 10, ..Config::new(folder.path()) };
    let store = LogStore::open(config, minutes.clock()).unwrap();
    for number in 0..30u8 {
        put(&store, &name("a", &number.to_string()), &some_bytes(2 << 20, number));
        minutes.pass(1);
        assert!(read(&store, &name("a", "0")).is_some(), "it is used all the time: {number}");
        store.maintain(&|_| Limits::default()).unwrap();
        assert!(store.totals().disk_bytes <= 24 << 20, "after {number}");
    }
    assert!(read(&store, &name("a", "29")).is_some());
    assert_eq!(read(&store, &name("a", "1")), None);
    let files = fs_err::read_dir(folder.path().join("large")).unwrap();
    let files: usize = files.map(|folder| fs_err::read_dir(folder.unwrap().path()).unwrap().count()).sum();
    assert!(files <= 12, "{files} files");
}
