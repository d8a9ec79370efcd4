//! One suite for every store, and what only the store on disk promises.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, Durability, LogStore};
use forgeyard_cache::store::twin::MemoryStore;
use forgeyard_cache::store::{Body, Clock, INLINE, Limits, Outcome, Place, Policy, Provenance, Store, Which};
use forgeyard_model::{Digest, Timestamp};
use rstest::rstest;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A clock that the test moves, in minutes.
#[derive(Clone, Default)]
struct Minutes(Arc<AtomicI64>);

impl Minutes {
    fn pass(&self, minutes: i64) {
        self.0.fetch_add(minutes * 60_000_000, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let this = self.clone();
        Arc::new(move || Timestamp::from_micros(1_800_000_000_000_000 + this.0.load(Ordering::SeqCst)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    Disk,
    DiskGroup,
    Memory,
}

fn open(kept: Kept, folder: &Path, minutes: &Minutes) -> Box<dyn Store> {
    let config = |durability| Config { durability, ..Config::new(folder) };
    match kept {
        Kept::Disk => Box::new(LogStore::open(config(Durability::PageCache), minutes.clock()).unwrap()),
        Kept::DiskGroup => Box::new(LogStore::open(config(Durability::Group), minutes.clock()).unwrap()),
        Kept::Memory => Box::new(MemoryStore::new(folder, minutes.clock())),
    }
}

fn name(scope: &str, key: &str) -> Name {
    Name { scope: scope.parse().unwrap(), kind: Kind::Keyed, key: key.to_owned() }
}

fn by(principal: &str) -> Provenance {
    Provenance {
        principal: principal.to_owned(),
        run: Some(format!("run of {principal}")),
        ..Provenance::default()
    }
}

fn read(store: &dyn Store, name: &Name) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    let found = store.get(name.hash(), &mut buffer).unwrap()?;
    let bytes = match found.place {
        Place::Buffer(range) => buffer[range].to_vec(),
        Place::Large(large) => {
            let mut all = Vec::new();
            for piece in 0..large.pieces() {
                large.piece(piece, &mut buffer).unwrap();
                all.extend_from_slice(&buffer);
            }
            all
        }
    };
    assert_eq!(Digest::of(&bytes), found.facts.digest);
    Some(bytes)
}

fn put(store: &dyn Store, name: &Name, bytes: &[u8]) -> Outcome {
    put_with(store, name, bytes, Policy::Replace, "somebody")
}

fn put_with(store: &dyn Store, name: &Name, bytes: &[u8], policy: Policy, who: &str) -> Outcome {
    let done = if bytes.len() as u64 > INLINE {
        let mut spool = store.spool().unwrap();
        bytes.chunks(99_999).for_each(|some| spool.write(some).unwrap());
        store.put(name, Body::Large(spool.finish(false).unwrap()), policy, &by(who)).unwrap()
    } else {
        store.put(name, Body::Inline(bytes), policy, &by(who)).unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.settled(done.ticket)).unwrap();
    done.outcome
}

fn some_bytes(length: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

#[rstest]
fn entry_reads_back_whatever_its_size(
    #[values(Kept::Disk, Kept::DiskGroup, Kept::Memory)] kept: Kept,
    #[values(0, 1, 64, 4097, 1 << 20, (1 << 20) + 1, 3 << 20)] size: usize,
) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(kept, folder.path(), &Minutes::default());
    let (key, bytes) = (name("a/main", "k"), some_bytes(size, 3));
    assert_eq!(read(&*store, &key), None);
    assert_eq!(put(&*store, &key, &bytes), Outcome::New);
    assert_eq!(put(&*store, &key, &bytes), Outcome::Same);
    assert!(read(&*store, &key).unwrap() == bytes);
    assert_eq!(store.facts(key.hash()).unwrap().unwrap().size, size as u64);
    assert!(store.remove(&key).unwrap());
    assert!(!store.remove(&key).unwrap());
    assert_eq!(read(&*store, &key), None);
}

#[rstest]
fn first_writer_wins_only_where_asked(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(kept, folder.path(), &Minutes::default());
    let key = name("a", "k");
    put(&*store, &key, b"one");
    assert_eq!(put_with(&*store, &key, b"two", Policy::Keep, "x"), Outcome::Kept);
    assert_eq!(read(&*store, &key).unwrap(), b"one");
    assert_eq!(put_with(&*store, &key, b"two", Policy::Replace, "x"), Outcome::Replaced);
    assert_eq!(read(&*store, &key).unwrap(), b"two");
}

#[rstest]
fn name_of_one_scope_or_kind_is_not_that_of_another(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(kept, folder.path(), &Minutes::default());
    put(&*store, &name("a/main", "k"), b"main");
    assert_eq!(read(&*store, &name("a/pr/1", "k")), None);
    assert_eq!(read(&*store, &Name { kind: Kind::Sccache, ..name("a/main", "k") }), None);
    put(&*store, &name("a/pr/1", "k"), b"mine");
    assert_eq!(read(&*store, &name("a/main", "k")).unwrap(), b"main");
}

#[rstest]
fn same_bytes_in_two_scopes_are_counted_in_both_and_stay_for_the_other(
    #[values(Kept::Disk, Kept::Memory)] kept: Kept,
    #[values(1000, 2 << 20)] size: usize,
) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(kept, folder.path(), &Minutes::default());
    let bytes = some_bytes(size, 1);
    put(&*store, &name("a", "k"), &bytes);
    put(&*store, &name("b", "other"), &bytes);
    let uses = store.uses();
    assert_eq!(
        uses.iter().map(|scope| (scope.entries, scope.bytes)).collect::<Vec<_>>(),
        [(1, size as u64); 2]
    );
    store.remove(&name("a", "k")).unwrap();
    assert!(read(&*store, &name("b", "other")).unwrap() == bytes);
    store.remove(&name("b", "other")).unwrap();
    assert!(store.uses().is_empty(), "{:?}", store.uses());
}

#[rstest]
fn all_that_a_writer_wrote_is_removed_and_nothing_else(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(kept, folder.path(), &Minutes::default());
    for number in 0..10 {
        put_with(&*store, &name("a", &format!("g{number}")), b"good", Policy::Keep, "good");
        // the same bytes too: what counts is the name's writer
        put_with(&*store, &name("b", &format!("b{number}")), b"good", Policy::Keep, "bad");
    }
    assert_eq!(store.list(Some("a")).unwrap().len(), 10);
    assert_eq!(store.remove_all(&Which::Writer("run of bad".to_owned())).unwrap(), 10);
    assert_eq!(store.list(None).unwrap().len(), 10);
    assert_eq!(read(&*store, &name("a", "g3")).unwrap(), b"good");
    let which = Which::Scope { scope: "a".to_owned(), prefix: "g1".to_owned() };
    assert_eq!(store.remove_all(&which).unwrap(), 1);
}

#[rstest]
fn scope_over_its_quota_loses_what_was_not_used_for_longest(#[values(Kept::Disk, Kept::Memory)] kept: Kept) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(kept, folder.path(), &minutes);
    for number in 0..10u8 {
        put(&*store, &name("a", &number.to_string()), &some_bytes(1000, number));
        put(&*store, &name("b", &number.to_string()), &some_bytes(1000, 100 + number));
        minutes.pass(1);
    }
    read(&*store, &name("a", "0")).unwrap();
    let limits = |scope: &str| Limits { bytes: (scope == "a").then_some(5000), idle_minutes: None };
    store.maintain(&limits).unwrap();
    let left: Vec<bool> =
        (0..10).map(|number| read(&*store, &name("a", &number.to_string())).is_some()).collect();
    assert_eq!(left, [true, false, false, false, false, false, false, true, true, true]);
    assert_eq!(store.list(Some("b")).unwrap().len(), 10);
    minutes.pass(100);
    store.maintain(&|_| Limits { bytes: None, idle_minutes: Some(60) }).unwrap();
    assert!(store.uses().is_empty());
}

#[rstest]
fn restart_finds_everything(#[values(false, true)] snapshot: bool) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let large = some_bytes(2 << 20, 9);
    {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        for number in 0..50u8 {
            put(&store, &name("a", &number.to_string()), &some_bytes(100 * usize::from(number), number));
        }
        put(&store, &name("b", "linked"), &some_bytes(700, 7));
        put(&store, &name("a", "large"), &large);
        if snapshot {
            store.snapshot().unwrap();
        }
        put(&store, &name("a", "3"), b"another");
        store.remove(&name("a", "4")).unwrap();
        put(&store, &name("b", "large"), &large);
    }
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    assert_eq!(read(&store, &name("a", "3")).unwrap(), b"another");
    assert_eq!(read(&store, &name("a", "4")), None);
    assert_eq!(read(&store, &name("a", "5")).unwrap(), some_bytes(500, 5));
    assert_eq!(read(&store, &name("b", "linked")).unwrap(), some_bytes(700, 7));
    assert!(read(&store, &name("b", "large")).unwrap() == large);
    let uses = store.uses();
    assert_eq!(uses.iter().map(|scope| scope.entries).collect::<Vec<_>>(), [50, 2]);
    assert_eq!(store.scrub().unwrap(), (52, 0));
    store.remove(&name("a", "large")).unwrap();
    assert!(read(&store, &name("b", "large")).unwrap() == large);
}

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

#[test]
fn damaged_bytes_are_a_miss_and_never_served() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    put(&store, &name("a", "k"), &some_bytes(5000, 1));
    put(&store, &name("a", "other"), &some_bytes(5000, 2));
    let path = folder.path().join("seg/00000001.fyl");
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[1000] ^= 1;
    fs_err::write(&path, &bytes).unwrap();
    assert_eq!(store.scrub().unwrap(), (2, 1));
    assert_eq!(read(&store, &name("a", "k")), None);
    assert!(read(&store, &name("a", "other")).is_some());
    assert_eq!(put(&store, &name("a", "k"), &some_bytes(4000, 1)), Outcome::New);
}

/// A content that looks like a record of another scope must not become one, whatever is damaged before it.
#[test]
fn record_that_is_smuggled_in_a_content_is_never_found() {
    use forgeyard_cache::store::record::{HEAD, Record, What};
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let fake = Record {
        what: What::Entry,
        flags: 0,
        kind: Kind::Keyed,
        scope: "main",
        key: "poison",
        provenance: b"{}",
        stored_at: Timestamp::from_micros(1),
        digest: Digest::of(b"bad"),
        size: 3,
        payload: b"bad",
    };
    {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        let provenance = serde_json::to_vec(&by("somebody")).unwrap().len();
        let texts = HEAD + "pr/1".len() + 1 + provenance;
        let mut content = vec![0; texts.next_multiple_of(64) - texts];
        for _ in 0..20 {
            fake.write(&mut content);
        }
        put(&store, &name("pr/1", "k"), &content);
        put(&store, &name("pr/1", "z"), b"last");
    }
    let path = folder.path().join("seg/00000001.fyl");
    let mut bytes = fs_err::read(&path).unwrap();
    assert!(bytes.chunks(64).filter(|some| some.starts_with(b"FYR1")).count() > 20, "the fakes are aligned");
    bytes[64 + 40] ^= 1;
    fs_err::write(&path, &bytes).unwrap();
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    assert_eq!(read(&store, &name("main", "poison")), None);
}

#[test]
fn second_process_is_refused() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let _store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    assert!(LogStore::open(Config::new(folder.path()), minutes.clock()).is_err());
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

/// bazel-remote#529: nothing has to be read before the first answer but the head of the snapshot and the end of the log.
/// What is asked for before its part of the index is in memory is looked for all the same: an early miss would be a lie,
/// and an early write must not be undone by what the snapshot knew.
#[test]
fn bazel_remote_529_entry_is_found_while_the_index_is_still_on_disk() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let (content, large) = (some_bytes(300, 1), some_bytes(2 << 20, 2));
    for round in 0..6u32 {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        // at once, in an order that has nothing to do with that of the index
        for before in (0..round * 300).rev() {
            let found = read(&store, &name("a", &format!("{before}")));
            match before % 3 {
                0 => assert_eq!(found, Some(before.to_le_bytes().to_vec()), "{before} in round {round}"),
                1 => assert_eq!(found, Some(content.clone()), "{before} in round {round}"),
                _ => assert_eq!(found, None, "{before} in round {round}"),
            }
        }
        for number in round * 300..(round + 1) * 300 {
            let key = name("a", &format!("{number}"));
            put(&store, &key, if number % 3 == 0 { b"first" } else { &content });
        }
        put(&store, &name("b", "large"), &large);
        if round % 2 == 0 {
            store.snapshot().unwrap();
        }
        // behind the snapshot
        for number in round * 300..(round + 1) * 300 {
            let key = name("a", &format!("{number}"));
            match number % 3 {
                0 => assert_eq!(put(&store, &key, &number.to_le_bytes()), Outcome::Replaced),
                1 => assert_eq!(put(&store, &key, &content), Outcome::Same),
                _ => assert!(store.remove(&key).unwrap()),
            }
        }
        store.remove(&name("b", "large")).unwrap();
        put(&store, &name("b", "large again"), &large);
    }
    let mut store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    assert!(read(&store, &name("b", "large again")).unwrap() == large);
    store.loaded();
    assert!(read(&store, &name("b", "large again")).unwrap() == large, "the log named it again");
    let uses: Vec<_> = store.uses().iter().map(|scope| (scope.entries, scope.bytes)).collect();
    assert_eq!(uses, [(1200, 600 * 4 + 600 * 300), (1, 2 << 20)]);
    assert_eq!(store.scrub().unwrap(), (1201, 0));
}

/// A part of the snapshot that the disk lost costs a look through the log and no entry.
#[test]
fn damaged_snapshot_costs_no_entry() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        for number in 0..3000u32 {
            put(&store, &name("a", &format!("{number}")), &number.to_le_bytes());
            put(&store, &name("b", &format!("{number}")), &number.to_le_bytes());
        }
        put(&store, &name("a", "gone"), b"gone");
        store.remove(&name("a", "gone")).unwrap();
        store.snapshot().unwrap();
    }
    let path = folder.path().join("index.snap");
    let mut bytes = fs_err::read(&path).unwrap();
    let images = bytes.len() - 150_000;
    (images..bytes.len()).step_by(3001).for_each(|at| bytes[at] ^= 1);
    fs_err::write(&path, &bytes).unwrap();
    let mut store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    store.loaded();
    for number in 0..3000u32 {
        for scope in ["a", "b"] {
            let found = read(&store, &name(scope, &format!("{number}")));
            assert_eq!(found, Some(number.to_le_bytes().to_vec()), "{number} of {scope}");
        }
    }
    assert_eq!(read(&store, &name("a", "gone")), None);
    assert_eq!(store.uses().iter().map(|scope| scope.entries).collect::<Vec<_>>(), [3000, 3000]);
}

/// A snapshot shows one moment though puts go on while it is written; what they did is in the log behind it.
#[test]
fn puts_go_on_while_the_snapshot_is_written() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let written = {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut number = 0u32;
                while !done.load(Ordering::SeqCst) {
                    put(&store, &name("a", &format!("{}", number % 5000)), &number.to_le_bytes());
                    if number.is_multiple_of(7) {
                        store.remove(&name("a", &format!("{}", number / 2 % 5000))).unwrap();
                    }
                    number += 1;
                }
            });
            (0..10).for_each(|_| store.snapshot().unwrap());
            done.store(true, Ordering::SeqCst);
            writing.join().unwrap();
        });
        let mut listed = store.list(None).unwrap();
        listed.iter_mut().for_each(|entry| entry.idle_minutes = 0);
        (listed, store.uses())
    };
    let mut store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    store.loaded();
    let mut listed = store.list(None).unwrap();
    listed.iter_mut().for_each(|entry| entry.idle_minutes = 0);
    assert!((listed, store.uses()) == written);
}

/// attic#155, LMCache: a write of bytes whose stored copy is damaged must store them again, not point at the damage.
#[test]
fn write_of_bytes_whose_copy_is_damaged_stores_them_again() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    let bytes = some_bytes(5000, 1);
    put(&store, &name("a", "k"), &bytes);
    let path = folder.path().join("seg/00000001.fyl");
    let mut file = fs_err::read(&path).unwrap();
    file[1000] ^= 1;
    fs_err::write(&path, &file).unwrap();
    put(&store, &name("b", "k"), &bytes);
    assert_eq!(read(&store, &name("b", "k")).unwrap(), bytes);
    assert_eq!(put(&store, &name("a", "k"), &bytes), Outcome::New, "the damaged one is no entry");
    assert_eq!(read(&store, &name("a", "k")).unwrap(), bytes);
}

/// nativelink#2715: what removes the old file of a content must not remove the new one.
#[test]
fn nativelink_2715_content_written_again_survives_the_removal_of_the_old_one() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    let bytes = some_bytes(2 << 20, 1);
    for _ in 0..5 {
        put(&store, &name("a", "k"), &bytes);
        assert!(store.remove(&name("a", "k")).unwrap());
        put(&store, &name("a", "k"), &bytes);
        store.maintain(&|_| Limits::default()).unwrap();
        assert!(read(&store, &name("a", "k")).unwrap() == bytes);
    }
    assert_eq!(fs_err::read_dir(folder.path().join("incoming")).unwrap().count(), 0);
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

/// A pass in small steps finds what one big pass finds, goes on after a restart, and a damaged large content becomes a miss
/// that the next write repairs.
#[test]
fn scrub_goes_on_where_it_stopped_and_finds_damage() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let large = some_bytes(2 << 20, 9);
    let mut store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    for number in 0..50u8 {
        put(&store, &name("a", &number.to_string()), &some_bytes(5000, number));
    }
    put(&store, &name("a", "large"), &large);
    let path = folder.path().join("seg/00000001.fyl");
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[200_000] ^= 1;
    fs_err::write(&path, &bytes).unwrap();
    let hex = Digest::of(&large).hex();
    let path = folder.path().join("large").join(&hex[..2]).join(&hex);
    let mut bytes = fs_err::read(&path).unwrap();
    bytes[1_500_000] ^= 1;
    fs_err::write(&path, &bytes).unwrap();
    for _ in 0..20 {
        store.scrub_some(20_000).unwrap();
        drop(store);
        store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    }
    let there =
        (0..50u8).filter(|number| store.facts(name("a", &number.to_string()).hash()).unwrap().is_some());
    let before = there.count();
    assert_eq!(before, 49, "the pass found the damaged one before anybody asked");
    assert_eq!(read(&store, &name("a", "large")), None);
    put(&store, &name("a", "large"), &large);
    assert!(read(&store, &name("a", "large")).unwrap() == large);
}
