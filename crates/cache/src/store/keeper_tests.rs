use super::*;
use crate::name::{Kind, Name};
use crate::store::beyond::Purge;
use crate::store::log::{Config, LogStore};
use crate::store::{Body, Policy, Provenance, Store as _, Which};
use crate::tier;
use forgeyard_model::{Secret, Timestamp};
use std::path::Path;
use std::sync::Arc;

fn open(folder: &Path) -> LogStore {
    let text = || "none".to_owned();
    let tier = tier::Config {
        endpoint: text(),
        bucket: text(),
        region: text(),
        prefix: text(),
        writer: text(),
        reads: Vec::new(),
        key: Secret::new(text()),
        secret: Secret::new(text()),
        seal_minutes: 60,
    };
    let config = Config { tier: Some(tier), ..Config::new(folder) };
    LogStore::open(config, Arc::new(|| Timestamp::from_micros(60_000_000))).unwrap()
}

fn name(key: &str) -> Name {
    Name { scope: "p/pr/7".parse().unwrap(), kind: Kind::Keyed, key: key.to_owned() }
}

fn put(store: &LogStore, key: &str, bytes: &[u8]) {
    store.put(&name(key), Body::Inline(bytes), Policy::Replace, &Provenance::default()).unwrap();
}

fn read(store: &LogStore, key: &str) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    let found = store.get(name(key).hash(), &mut buffer).unwrap()?;
    let crate::store::Place::Buffer(range) = found.place else { panic!("it is small") };
    Some(buffer[range].to_vec())
}

/// Ends the segment that grows.
fn sealed(store: &LogStore) -> Arc<crate::store::append::Segment> {
    store.seal().unwrap();
    let mut all = store.shared.all_segments();
    all.pop();
    all.pop().unwrap()
}

/// Found by the soak, once in half an hour: a client read what it had overwritten.
#[test]
fn entry_written_anew_while_its_segment_leaves_this_disk_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for key in ["written", "removed", "left"] {
        put(&store, key, format!("older {key}").as_bytes());
    }
    let (segment, shared) = (sealed(&store), &store.shared);
    let beyond = store.beyond().unwrap();
    beyond.mark(segment.number);
    // a segment goes in two steps, and others write in between
    let mut gone = Gone::default();
    while !shared.clear_out(&segment, &mut gone, Some(beyond)).unwrap() {}
    put(&store, "written", b"newer");
    put(&store, "removed", b"newer, for a moment");
    store.remove(&name("removed")).unwrap();
    beyond.dropping(segment.number, &gone).unwrap();
    shared.retire(&segment).unwrap();
    assert_eq!(read(&store, "written").as_deref(), Some(&b"newer"[..]));
    // what is newer goes in its turn, and nobody has it
    shared.drop_segment(&sealed(&store)).unwrap();
    let judge = |store: &LogStore| {
        for key in ["written", "removed"] {
            assert_eq!(read(store, key), None);
            assert_eq!(store.beyond().unwrap().name(name(key).hash()), None, "{key}");
        }
        assert!(store.beyond().unwrap().name(name("left").hash()).is_some());
    };
    judge(&store);
    drop(store);
    judge(&open(folder.path()));
}

#[test]
fn what_is_on_its_way_from_beyond_does_not_arrive_once_its_name_was_written_removed_or_purged() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (handle, beyond) = (store.handle(), store.handle().beyond().unwrap());
    let bring = |key: &str| {
        handle
            .bring(&name(key), Body::Inline(b"older"), &Provenance::default(), Timestamp::from_micros(5))
            .unwrap()
    };
    type Way = fn(&LogStore, &str);
    let ways: [(&str, Way); 3] = [
        ("written", |store, key| {
            put(store, key, b"newer");
            store.shared.drop_segment(&sealed(store)).unwrap();
        }),
        ("removed", |store, key| assert!(!store.remove(&name(key)).unwrap())),
        ("purged", |store, key| {
            let which = Which::Scope { scope: "p/pr/7".to_owned(), prefix: key.to_owned() };
            store.remove_all(&which).unwrap();
        }),
    ];
    for (key, way) in ways {
        let awaited = beyond.await_name(name(key).hash());
        way(&store, key);
        assert!(matches!(bring(key), Err(StoreError::Superseded)), "{key}");
        assert_eq!(read(&store, key), None, "{key}");
        drop(awaited);
    }
    let _awaited = beyond.await_name(name("plain").hash());
    bring("plain").unwrap();
    assert_eq!(read(&store, "plain").as_deref(), Some(&b"older"[..]));
    // what was purged is older than the purge, and a newer one of the name may come
    let [Purge { until, .. }] = &beyond.purges()[..] else { panic!("one purge") };
    assert!(*until > Timestamp::from_micros(5));
}
