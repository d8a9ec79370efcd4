//! Only what is cold is compressed: what somebody reads as it is stays so, and a large content that is decoded again and again
//! is written back.

use super::atrest::code;
use super::*;
use forgeyard_cache::store::port::Stored;
use forgeyard_cache::store::shrink::Compression;

/// What is read within an hour stays.
fn config(folder: &Path) -> Config {
    let compression = Compression { percent: 100, after_minutes: 60, ..Compression::default() };
    Config { segment: 1 << 20, compression, ..Config::new(folder) }
}

fn open(folder: &Path, minutes: &Minutes) -> LogStore {
    let mut store = LogStore::open(config(folder), minutes.clock()).unwrap();
    store.loaded();
    store
}

/// As the service does it all the time.
fn round(store: &LogStore) {
    store.shrink(&|| false).unwrap();
}

fn part(kind: &str, number: u64) -> (Name, Vec<u8>) {
    let seed = number + kind.len() as u64 * 1000;
    (name("a/main", &format!("{kind}{number}")), code(30_000 + number as usize * 77, seed))
}

/// So many of a kind.
fn fill(store: &LogStore, kind: &str, count: u64) -> Vec<(Name, Vec<u8>)> {
    let all: Vec<_> = (0..count).map(|number| part(kind, number)).collect();
    all.iter().for_each(|(name, bytes)| assert_eq!(put(store, name, bytes), Outcome::New));
    all
}

fn read_all(store: &LogStore, all: &[(Name, Vec<u8>)]) {
    for (name, bytes) in all {
        assert!(read(store, name).unwrap_or_else(|| panic!("{name} is lost")) == *bytes, "{name}");
    }
}

/// How many are compressed, asked as a client does that takes both.
fn framed(store: &LogStore, all: &[(Name, Vec<u8>)]) -> usize {
    let mut buffer = Vec::new();
    let mut is_framed = |name: &Name| match store.get_either(name.hash(), &mut buffer).unwrap().unwrap() {
        (found, Stored::File) => matches!(found.place, Place::Large(large) if large.frames().is_some()),
        (_, stored) => matches!(stored, Stored::Framed(_)),
    };
    all.iter().filter(|(name, _)| is_framed(name)).count()
}

#[test]
fn entry_that_is_read_often_stays_plain() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let (hot, cold) = (fill(&store, "hot", 5), fill(&store, "cold", 20));
    store.seal().unwrap();
    for _ in 0..20 {
        round(&store);
        read_all(&store, &hot);
        minutes.pass(20);
    }
    assert_eq!((framed(&store, &hot), framed(&store, &cold)), (0, 20));
    assert_eq!(store.shrunk().bodies, 20);
    assert!(store.shrunk().read >= 5, "{:?}", store.shrunk());
    read_all(&store, &cold);
    assert_eq!((store.scrub().unwrap(), store.damaged()), ((25, 0), 0));
    drop(store);
    let store = open(folder.path(), &minutes);
    assert_eq!((framed(&store, &hot), framed(&store, &cold)), (0, 20));
}

#[test]
fn nothing_is_compressed_before_its_time() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let cold = fill(&store, "cold", 20);
    store.seal().unwrap();
    for _ in 0..59 {
        round(&store);
        minutes.pass(1);
    }
    round(&store);
    assert_eq!(framed(&store, &cold), 0);
    minutes.pass(1);
    round(&store);
    assert_eq!(store.shrunk().bodies, 20);
}

#[test]
fn entry_that_is_read_no_more_is_compressed_in_the_end() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let hot = fill(&store, "hot", 20);
    store.seal().unwrap();
    for _ in 0..10 {
        round(&store);
        read_all(&store, &hot);
        minutes.pass(20);
    }
    assert_eq!(framed(&store, &hot), 0);
    // its segment is looked at again after the time that is configured, and reads are remembered for a third more
    for _ in 0..8 {
        minutes.pass(20);
        round(&store);
    }
    assert_eq!(store.shrunk().bodies, 20);
    read_all(&store, &hot);
}

/// Promises that it is here, and reads of the compressed form, are no reason to keep the other one.
#[test]
fn entry_that_only_clients_of_zstandard_read_is_compressed() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let all = fill(&store, "hot", 20);
    store.seal().unwrap();
    for _ in 0..10 {
        assert!(all.iter().all(|(name, _)| store.lease(name.hash(), 120).unwrap()));
        framed(&store, &all);
        minutes.pass(20);
        round(&store);
    }
    assert_eq!(framed(&store, &all), 20);
}

/// The name that carries the bytes is asked for by nobody, another one with the same bytes is.
#[test]
fn content_that_is_read_through_a_link_stays_plain() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let (hot, _) = (fill(&store, "hot", 5), fill(&store, "cold", 20));
    let link = name("b", "link");
    put(&store, &link, &hot[0].1);
    store.seal().unwrap();
    for _ in 0..10 {
        assert!(read(&store, &link).is_some());
        minutes.pass(20);
        round(&store);
    }
    assert_eq!(framed(&store, &hot), 4);
    assert_eq!(framed(&store, &[(link, Vec::new())]), 0);
}

/// What was read is in `plain.reads`; without it nobody knows, and what was used lately is spared.
#[rstest]
fn what_was_read_is_known_after_a_restart(#[values(false, true)] kept: bool) {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let (hot, asked, cold) = {
        let store = open(folder.path(), &minutes);
        let all = (fill(&store, "hot", 5), fill(&store, "asked", 10), fill(&store, "cold", 10));
        store.seal().unwrap();
        minutes.pass(59);
        round(&store);
        read_all(&store, &all.0);
        framed(&store, &all.1);
        store.snapshot().unwrap();
        all
    };
    if !kept {
        fs_err::remove_file(folder.path().join("plain.reads")).unwrap();
    }
    let store = open(folder.path(), &minutes);
    minutes.pass(30);
    round(&store);
    let asked_for = if kept { 10 } else { 0 };
    assert_eq!((framed(&store, &hot), framed(&store, &asked), framed(&store, &cold)), (0, asked_for, 10));
}

/// A cache that never fills a segment of the usual size.
#[test]
fn small_cache_is_compressed_too() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let mut all = fill(&store, "cold", 10);
    let before = store.totals().disk_bytes;
    assert!(before < 1 << 19, "less than a segment");
    for _ in 0..7 {
        minutes.pass(20);
        let late = name("b", &minutes.0.load(Ordering::SeqCst).to_string());
        put(&store, &late, &some_bytes(100, 1));
        all.push((late, some_bytes(100, 1)));
        round(&store);
    }
    assert_eq!(store.shrunk().bodies, 10);
    assert!(store.totals().disk_bytes < before / 2);
    read_all(&store, &all);
    // nor does it end segments for ever
    for _ in 0..60 {
        fill_more(&store, &minutes, &mut all);
        minutes.pass(61);
        round(&store);
    }
    let segments = fs_err::read_dir(folder.path().join("seg")).unwrap().count();
    assert!(segments <= 10, "{segments} segments");
    read_all(&store, &all);
}

/// What does not shrink.
fn fill_more(store: &LogStore, minutes: &Minutes, all: &mut Vec<(Name, Vec<u8>)>) {
    let one = name("c", &minutes.0.load(Ordering::SeqCst).to_string());
    let bytes = some_bytes(20_000, all.len() as u8);
    put(store, &one, &bytes);
    all.push((one, bytes));
}

#[test]
fn large_content_that_is_read_stays_plain_and_follows_when_it_is_cold() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let hot = [(name("a", "hot"), code(2 << 20, 1))];
    let cold = [(name("a", "cold"), code(3 << 20, 2))];
    hot.iter().chain(&cold).for_each(|(name, bytes)| assert_eq!(put(&store, name, bytes), Outcome::New));
    for _ in 0..10 {
        round(&store);
        read_all(&store, &hot);
        minutes.pass(20);
    }
    assert_eq!((framed(&store, &hot), framed(&store, &cold)), (0, 1));
    for _ in 0..5 {
        minutes.pass(20);
        round(&store);
    }
    assert_eq!(framed(&store, &hot), 1);
    read_all(&store, &hot);
}

#[test]
fn large_content_that_is_decoded_again_and_again_is_written_back() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let all = [(name("a", "l"), code(2 << 20, 1)), (name("a", "once"), code(2 << 20, 2))];
    all.iter().for_each(|(name, bytes)| assert_eq!(put(&store, name, bytes), Outcome::New));
    round(&store);
    minutes.pass(61);
    round(&store);
    assert_eq!(framed(&store, &all), 2);
    let saved = store.totals().saved_bytes;
    read_all(&store, &all);
    (0..4).for_each(|_| read_all(&store, &all[..1]));
    minutes.pass(1);
    round(&store);
    assert_eq!((framed(&store, &all[..1]), framed(&store, &all[1..])), (0, 1));
    assert_eq!(store.shrunk().restored, 1);
    let left = store.totals().saved_bytes;
    assert!(left < saved && left > 0, "{left} of {saved}");
    read_all(&store, &all);
    assert_eq!((store.scrub().unwrap(), store.damaged()), ((2, 0), 0));
    assert_eq!(fs_err::read_dir(folder.path().join("incoming")).unwrap().count(), 0);
    drop(store);
    let store = open(folder.path(), &minutes);
    read_all(&store, &all);
    // and is compressed again when that ends
    for _ in 0..10 {
        minutes.pass(20);
        round(&store);
    }
    assert_eq!(framed(&store, &all), 2);
}

#[test]
fn entry_that_is_decoded_again_and_again_is_written_back() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let store = open(folder.path(), &minutes);
    let all = fill(&store, "cold", 20);
    // two of them have another name too, one has no name of its own any more
    let links = [(name("b", "0"), all[0].1.clone()), (name("b", "1"), all[1].1.clone())];
    links.iter().for_each(|(name, bytes)| assert_eq!(put(&store, name, bytes), Outcome::New));
    store.remove(&all[1].0).unwrap();
    store.seal().unwrap();
    minutes.pass(61);
    round(&store);
    assert_eq!((framed(&store, &links), framed(&store, &all[2..])), (2, 18));
    let uses = store.uses();
    for _ in 0..5 {
        read_all(&store, &links);
        read_all(&store, &all[2..4]);
    }
    (0..4).for_each(|_| read_all(&store, &all[4..6]));
    round(&store);
    assert_eq!(store.shrunk().restored, 4);
    let check = |store: &LogStore, plain: usize| {
        assert_eq!((framed(store, &links), framed(store, &all[2..4])), (2 - plain / 2, 2 - plain / 2));
        assert_eq!(framed(store, &all[4..]), 16);
        assert_eq!(store.uses(), uses);
        assert_eq!((store.scrub().unwrap(), store.damaged()), ((21, 0), 0));
        read_all(store, &links);
        read_all(store, &all[2..]);
        assert_eq!(read(store, &all[1].0), None);
    };
    check(&store, 4);
    drop(store);
    // by the log alone
    let store = open(folder.path(), &minutes);
    check(&store, 4);
    store.snapshot().unwrap();
    drop(store);
    let store = open(folder.path(), &minutes);
    check(&store, 4);
    // and compressed again when they are cold
    store.seal().unwrap();
    for _ in 0..10 {
        minutes.pass(20);
        round(&store);
    }
    assert_eq!((framed(&store, &links), framed(&store, &all[2..])), (2, 18));
    read_all(&store, &all[2..]);
}

/// There is room for the compressed form only: nothing is driven out for the other.
#[test]
fn large_content_is_not_written_back_where_there_is_no_room() {
    let (folder, minutes) = (tempfile::tempdir().unwrap(), Minutes::default());
    let small = Config { capacity: 5 << 20, ..config(folder.path()) };
    let store = LogStore::open(small, minutes.clock()).unwrap();
    let all = [(name("a", "l"), code(2 << 20, 1)), (name("a", "noise"), some_bytes(2 << 20, 1))];
    all.iter().for_each(|(name, bytes)| assert_eq!(put(&store, name, bytes), Outcome::New));
    round(&store);
    minutes.pass(61);
    round(&store);
    assert_eq!(framed(&store, &all), 1);
    put(&store, &name("a", "more"), &some_bytes((3 << 20) / 2, 7));
    (0..9).for_each(|_| read_all(&store, &all));
    minutes.pass(1);
    round(&store);
    assert_eq!((framed(&store, &all), store.shrunk().restored), (1, 0));
}
