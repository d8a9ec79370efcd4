//! What the disk lost or somebody changed: a miss, never a wrong byte.

use super::*;

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
        sum: Sum::Sha256,
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
