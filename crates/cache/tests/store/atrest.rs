//! Compression at rest: what shrinks is rewritten in the background, reads as before, survives restarts, and whoever reads the
//! old form is not cut off.

use super::*;
use forgeyard_cache::store::Put;
use forgeyard_cache::store::port::Stored;
use forgeyard_cache::store::shrink::Compression;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;

/// Bytes as an object file has them: they shrink to a few parts in a hundred.
pub(crate) fn code(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 64);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes()[..3]);
        bytes.extend_from_slice(b".text.relocation._ZN9forgeyard5cache");
    }
    bytes.truncate(length);
    bytes
}

fn config(folder: &Path) -> Config {
    Config { segment: 1 << 20, ..Config::new(folder) }
}

/// Entries of many kinds, then a segment of their own for what comes after.
fn filled(store: &LogStore) -> Vec<(Name, Vec<u8>)> {
    let mut all = Vec::new();
    for number in 0..40u64 {
        let size = [300, 1500, 20_000, 90_000, 262_144, 300_000][number as usize % 6];
        all.push((name("a/main", &format!("code{number}")), code(size, number)));
        all.push((name("a/pr/1", &format!("noise{number}")), some_bytes(size / 8 + 1, number as u8)));
    }
    all.push((name("a/main", "large"), code((5 << 20) + 77, 1000)));
    all.push((name("a/main", "large noise"), some_bytes(2 << 20, 201)));
    // the same bytes under another name
    all.push((name("b", "same"), code(20_000, 2)));
    for (name, bytes) in &all {
        put(store, name, bytes);
    }
    store.seal().unwrap();
    all
}

fn all_read(store: &LogStore, all: &[(Name, Vec<u8>)]) {
    for (name, bytes) in all {
        assert!(read(store, name).unwrap_or_else(|| panic!("{name} is lost")) == *bytes, "{name}");
    }
}

#[rstest]
fn what_shrinks_is_compressed_once_and_reads_as_before(#[values(false, true)] snapshot: bool) {
    let folder = tempfile::tempdir().unwrap();
    let minutes = Minutes::default();
    let all = {
        let store = LogStore::open(config(folder.path()), minutes.clock()).unwrap();
        let all = filled(&store);
        let (before, uses) = (store.totals().disk_bytes, store.uses());
        store.shrink_all().unwrap();
        all_read(&store, &all);
        let totals = store.totals();
        assert!(totals.saved_bytes > 5 << 20, "{totals:?}");
        assert!(totals.disk_bytes + (5 << 20) < before, "{} of {before}", totals.disk_bytes);
        // a quota counts what is in there, not how it lies
        assert_eq!(store.uses(), uses);
        let once = store.shrunk();
        assert!(once.bodies > 20 && once.left > 20, "{once:?}");
        // what moved is looked at again when its segment is full, and is not tried again
        for _ in 0..3 {
            store.seal().unwrap();
            store.shrink_all().unwrap();
        }
        let again = store.shrunk();
        assert_eq!((again.bodies, again.left), (once.bodies, once.left));
        assert_eq!(store.scrub().unwrap(), (all.len() as u64, 0));
        if snapshot {
            store.snapshot().unwrap();
        }
        all
    };
    let mut store = LogStore::open(config(folder.path()), minutes.clock()).unwrap();
    store.loaded();
    all_read(&store, &all);
    assert_eq!(store.list(None).unwrap().len(), all.len());
    store.shrink_all().unwrap();
    assert_eq!(store.shrunk().bodies, 0, "nothing is left to do");
    assert!(store.totals().saved_bytes > 5 << 20, "counted again: {:?}", store.totals());
    assert_eq!(store.scrub().unwrap().1, 0);
}

#[test]
fn nothing_is_compressed_when_that_is_not_wanted_and_what_was_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let off = Compression { on: false, ..Compression::default() };
    let all = {
        let store = LogStore::open(config(folder.path()), Minutes::default().clock()).unwrap();
        let all = filled(&store);
        store.shrink_all().unwrap();
        all
    };
    let without = Config { compression: off, ..config(folder.path()) };
    let store = LogStore::open(without, Minutes::default().clock()).unwrap();
    all_read(&store, &all);
    let more = name("a", "more");
    put(&store, &more, &code(500_000, 77));
    store.seal().unwrap();
    store.shrink_all().unwrap();
    assert_eq!(store.shrunk().bodies, 0);
    assert!(store.totals().saved_bytes > 5 << 20);
}

#[test]
fn reader_of_the_old_form_is_not_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let store = LogStore::open(config(folder.path()), Minutes::default().clock()).unwrap();
    let all = filled(&store);
    let (key, bytes) = &all[6];
    let mut buffer = Vec::new();
    let (_, stored) = store.get_stored(key.hash(), &mut buffer).unwrap().unwrap();
    let Stored::Plain(placed) = stored else { panic!("{stored:?}") };
    let log = store.still(key.hash(), &placed).unwrap();
    let large = name("a/main", "large");
    let found = store.get(large.hash(), &mut buffer).unwrap().unwrap();
    let Place::Large(open) = found.place else { panic!() };
    store.shrink_all().unwrap();
    assert!(store.still(key.hash(), &placed).is_none(), "it lies elsewhere");
    let mut old = vec![0; bytes.len()];
    log.file().read_exact_at(&mut old, placed.at).unwrap();
    assert!(old == *bytes);
    let mut file = open.file();
    file.rewind().unwrap();
    let mut start = vec![0; 5 << 20];
    file.read_exact(&mut start).unwrap();
    assert!(start == code((5 << 20) + 77, 1000)[..5 << 20]);
    // and the new form is a stream that any decoder reads
    let path =
        folder.path().join("large").join(&found.facts.digest.hex()[..2]).join(found.facts.digest.hex());
    let whole = zstd::stream::decode_all(fs_err::File::open(path).unwrap()).unwrap();
    assert!(whole == code((5 << 20) + 77, 1000));
    let (_, stored) = store.get_stored(key.hash(), &mut buffer).unwrap().unwrap();
    assert!(matches!(stored, Stored::Framed(_)));
}

#[test]
fn what_was_removed_or_replaced_stays_so_and_a_link_keeps_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let (twice, gone, carrier, link) =
        (name("a", "twice"), name("a", "gone"), name("a", "c"), name("b", "l"));
    {
        let store = LogStore::open(config(folder.path()), Minutes::default().clock()).unwrap();
        put(&store, &name("a", "first"), &some_bytes(1000, 1));
        store.seal().unwrap();
        put(&store, &gone, &code(200_000, 1));
        put(&store, &twice, &code(200_000, 2));
        put(&store, &carrier, &code(200_000, 3));
        store.seal().unwrap();
        put(&store, &link, &code(200_000, 3));
        put(&store, &twice, &code(200_000, 4));
        store.remove(&gone).unwrap();
        store.remove(&carrier).unwrap();
        store.shrink_all().unwrap();
        assert!(store.shrunk().bodies >= 1);
        assert!(read(&store, &link).unwrap() == code(200_000, 3));
    }
    let store = LogStore::open(config(folder.path()), Minutes::default().clock()).unwrap();
    assert_eq!((read(&store, &gone), read(&store, &carrier)), (None, None));
    assert!(read(&store, &twice).unwrap() == code(200_000, 4));
    assert!(read(&store, &link).unwrap() == code(200_000, 3));
    // shared still: a third name costs no bytes
    let before = store.totals().disk_bytes;
    put(&store, &name("c", "third"), &code(200_000, 3));
    assert!(store.totals().disk_bytes < before + 1000);
}

#[test]
fn lease_holds_over_a_rewrite() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = LogStore::open(config(folder.path()), minutes.clock()).unwrap();
    let all = filled(&store);
    assert!(store.lease(all[4].0.hash(), 60).unwrap());
    store.shrink_all().unwrap();
    minutes.pass(30);
    store.maintain(&|_| Limits { bytes: Some(0), idle_minutes: Some(1) }).unwrap();
    assert!(read(&store, &all[4].0).unwrap() == all[4].1);
    assert_eq!(store.list(None).unwrap().len(), 1);
}

/// What sccache, ccache and Nix send: the segment stays where it is, and a later start does not look at it again.
#[test]
fn what_is_compressed_already_is_left_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let magics: [&[u8]; 5] =
        [b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"\x1f\x8b\x08", b"\xcc\xac\x01\0\x01"];
    for start in 0..2 {
        let store = LogStore::open(config(folder.path()), Minutes::default().clock()).unwrap();
        if start == 0 {
            for number in 0..60u8 {
                let body = [magics[number as usize % 5], &code(9000, u64::from(number))].concat();
                put(&store, &name("a", &number.to_string()), &body);
            }
            put(&store, &name("a", "large"), &[magics[0], &code(2 << 20, 5)].concat());
            put(&store, &name("a", "small text"), &code(900, 5));
            store.seal().unwrap();
        }
        store.shrink_all().unwrap();
        let shrunk = store.shrunk();
        assert_eq!((shrunk.bodies, shrunk.bytes_out, shrunk.left), (0, 0, 1 - start));
        store.snapshot().unwrap();
        let noted = fs_err::read_to_string(folder.path().join("shrunk")).unwrap();
        assert!(noted.starts_with("1 ") && noted.lines().next().unwrap().ends_with(" 1 0"), "{noted}");
    }
}

/// A byte of each file that holds bodies is changed; nobody is served what is not what was stored.
#[test]
fn damaged_compressed_body_is_a_miss_and_is_stored_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = LogStore::open(config(folder.path()), Minutes::default().clock()).unwrap();
    let all = filled(&store);
    store.shrink_all().unwrap();
    let (key, bytes) = &all[8];
    let mut buffer = Vec::new();
    let (found, _) = store.get_stored(key.hash(), &mut buffer).unwrap().unwrap();
    let Place::Buffer(range) = found.place else { panic!() };
    let body = buffer[range].to_vec();
    let mut hit = 0;
    for file in fs_err::read_dir(folder.path().join("seg")).unwrap() {
        let path = file.unwrap().path();
        let log = fs_err::read(&path).unwrap();
        if let Some(at) = log.windows(64).position(|some| some == &body[100..164]) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[!body[110]], at as u64 + 10).unwrap();
            hit += 1;
        }
    }
    assert_eq!(hit, 1);
    assert_eq!(read(&store, key), None);
    assert_eq!(store.damaged(), 1);
    put(&store, key, bytes);
    assert!(read(&store, key).unwrap() == *bytes);

    let large = name("a/main", "large");
    let digest = store.facts(large.hash()).unwrap().unwrap().digest.hex();
    let path = folder.path().join("large").join(&digest[..2]).join(&digest);
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1000).unwrap();
    file.write_all_at(&[!byte[0]], 1000).unwrap();
    assert_eq!(store.scrub().unwrap().1, 1);
    assert_eq!(read(&store, &large), None);
    put(&store, &large, &code((5 << 20) + 77, 1000));
    assert!(read(&store, &large).is_some());
}

/// Puts, reads and removals while segments are rewritten under them.
#[test]
fn rewriting_goes_on_under_puts_and_reads_without_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let small = Config { segment: 256 << 10, ..Config::new(folder.path()) };
    let store = LogStore::open(small, Minutes::default().clock()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let put_one = |number: u64| -> Put {
        let bytes = code(5000 + number as usize * 13 % 30_000, number);
        store.put(&name("a", &number.to_string()), Body::Inline(&bytes), Policy::Replace, &by("x")).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.shrink_all().unwrap();
            }
        });
        for number in 0..400u64 {
            put_one(number);
            for back in [0, 1, 7, 60, 200] {
                let Some(number) = number.checked_sub(back) else { continue };
                let bytes = read(&store, &name("a", &number.to_string()));
                assert!(bytes.unwrap() == code(5000 + number as usize * 13 % 30_000, number), "{number}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(store.shrunk().bodies > 100, "{:?}", store.shrunk());
    assert_eq!(store.scrub().unwrap(), (400, 0));
    assert_eq!(store.damaged(), 0);
}

/// A purge reads the whole log, and a scrub reads it at a place; neither misses or harms what moves meanwhile.
#[test]
fn purge_and_scrub_meet_each_entry_while_segments_are_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let small = Config { segment: 256 << 10, ..Config::new(folder.path()) };
    let store = LogStore::open(small, Minutes::default().clock()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.shrink_all().unwrap();
            }
        });
        for round in 0..6u64 {
            for number in 0..60u64 {
                let who = if number % 2 == 0 { "bad" } else { "good" };
                let bytes = code(20_000, round * 1000 + number);
                put_with(&store, &name("a", &format!("{round} {number}")), &bytes, Policy::Replace, who);
            }
            assert_eq!(store.scrub().unwrap().1, 0);
            assert_eq!(store.remove_all(&Which::Writer("bad".to_owned())).unwrap(), 30, "round {round}");
            let left = store.list(None).unwrap();
            assert!(left.iter().all(|listed| listed.by.principal == "good"), "round {round}");
            assert_eq!(left.len() as u64, 30 * (round + 1));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(store.damaged(), 0);
    assert!(store.shrunk().bodies > 50, "{:?}", store.shrunk());
}
