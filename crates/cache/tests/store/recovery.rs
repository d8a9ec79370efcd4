//! What the store on disk finds after a start, and how soon.

use super::*;

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

#[test]
fn second_process_is_refused() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let _store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    assert!(LogStore::open(Config::new(folder.path()), minutes.clock()).is_err());
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

/// The first start on the folder of another version, older or newer: nothing is lost, it is said what happens, and the next
/// snapshot is one of this version.
#[rstest]
fn snapshot_of_another_version_is_passed_over_and_the_log_is_read(#[values(b'1', b'2', b'4')] version: u8) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    {
        let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
        for number in 0..100u32 {
            put(&store, &name("a", &format!("{number}")), &number.to_le_bytes());
        }
        put(&store, &name("b", "large"), &some_bytes(2 << 20, 3));
        put(&store, &name("a", "gone"), b"gone");
        store.remove(&name("a", "gone")).unwrap();
        store.snapshot().unwrap();
    }
    let path = folder.path().join("index.snap");
    let mut bytes = fs_err::read(&path).unwrap();
    assert_eq!(&bytes[..8], b"FYSNAP3\n");
    bytes[6] = version;
    // what follows is of another form
    bytes[16..].iter_mut().for_each(|byte| *byte = !*byte);
    fs_err::write(&path, &bytes).unwrap();
    let said = crate::said::Said::default();
    let to_said = tracing_subscriber::fmt().with_writer(said.clone()).finish();
    let store = tracing::subscriber::with_default(to_said, || {
        LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap()
    });
    let said = said.text();
    assert!(said.contains(&format!("it is in version {}", char::from(version))), "{said}");
    assert!(said.contains("the log is read from its beginning") && !said.contains("WARN"), "{said}");
    for number in 0..100u32 {
        assert_eq!(read(&store, &name("a", &format!("{number}"))), Some(number.to_le_bytes().to_vec()));
    }
    assert!(read(&store, &name("b", "large")).unwrap() == some_bytes(2 << 20, 3));
    assert_eq!(read(&store, &name("a", "gone")), None);
    assert_eq!(store.uses().iter().map(|scope| scope.entries).collect::<Vec<_>>(), [100, 1]);
    assert_eq!((store.scrub().unwrap(), store.damaged()), ((101, 0), 0));
    store.snapshot().unwrap();
    assert_eq!(&fs_err::read(&path).unwrap()[..8], b"FYSNAP3\n");
    drop(store);
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    assert_eq!(read(&store, &name("a", "7")), Some(7u32.to_le_bytes().to_vec()));
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

/// Entries that have no digest in their key were kept by SHA-256 once: they are read, repeated and contradicted as before.
#[test]
fn entry_from_before_that_has_a_sha_256_is_compared_by_it() {
    use forgeyard_cache::store::record::{Record, What};
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    drop(LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap());
    let (bytes, provenance) = (some_bytes(3000, 1), serde_json::to_vec(&by("somebody")).unwrap());
    let before = Record {
        what: What::Entry,
        flags: 0,
        kind: Kind::Keyed,
        scope: "a",
        key: "k",
        provenance: &provenance,
        stored_at: Timestamp::from_micros(1_800_000_000_000_000),
        digest: Digest::of(&bytes),
        sum: Sum::Sha256,
        size: bytes.len() as u64,
        payload: &bytes,
    };
    let segment = folder.path().join("seg/00000001.fyl");
    let mut log = fs_err::read(&segment).unwrap();
    before.write(&mut log);
    fs_err::write(&segment, &log).unwrap();
    let store = LogStore::open(Config::new(folder.path()), minutes.clock()).unwrap();
    let digest = |name: &Name| store.facts(name.hash()).unwrap().unwrap().digest;
    assert_eq!(digest(&name("a", "k")), Digest::of(&bytes));
    assert_eq!(store.scrub().unwrap(), (1, 0));
    let keep = |bytes: &[u8]| put_with(&store, &name("a", "k"), bytes, Policy::Keep, "somebody");
    assert_eq!((keep(&bytes), keep(b"another")), (Outcome::Same, Outcome::Kept));
    put(&store, &name("b", "k"), &bytes);
    assert_eq!(digest(&name("b", "k")), Sum::Blake3.of(&bytes), "new ones have the new digest");
    assert_eq!(put(&store, &name("a", "k"), b"another"), Outcome::Replaced);
    assert_eq!(read(&store, &name("a", "k")).unwrap(), b"another");
}
