//! One suite for every store, and what only the store on disk promises.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod atrest;
mod damage;
mod hot;
mod kept;
mod recovery;
mod room;
#[path = "../support/said.rs"]
mod said;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, Durability, LogStore};
use forgeyard_cache::store::sum::Sum;
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
    let sum = if bytes.len() as u64 > INLINE { Sum::Sha256 } else { Sum::for_kind(name.kind) };
    assert_eq!(sum.of(&bytes), found.facts.digest);
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
