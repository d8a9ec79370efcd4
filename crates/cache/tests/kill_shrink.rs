//! A process that compresses what is at rest, or writes it back, is killed in the middle of it, many times over one folder: each
//! entry is there in the old form or in the new one, and nothing is damaged. The process is this test program again, at
//! [`the_process_that_is_killed`].

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, Durability, LogStore};
use forgeyard_cache::store::port::Stored;
use forgeyard_cache::store::shrink::Compression;
use forgeyard_cache::store::{Body, Clock, Place, Policy, Provenance, Store as _};
use forgeyard_model::Timestamp;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "FORGEYARD_TEST_KILL_SHRINK_FOLDER";
/// Whether it reads everything often before it begins, so that everything is written back.
const BACK: &str = "FORGEYARD_TEST_KILL_SHRINK_BACK";
const ENTRIES: u64 = 300;

fn open(folder: &Path) -> LogStore {
    let clock: Clock = Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000));
    let durability = Durability::PageCache;
    let compression = Compression { percent: 100, ..Compression::default() };
    let config = Config { segment: 1 << 20, durability, compression, ..Config::new(folder.join("store")) };
    LogStore::open(config, clock).unwrap()
}

fn name(number: u64) -> Name {
    let scope = format!("s{}", number % 3);
    Name { scope: scope.parse().unwrap(), kind: Kind::Keyed, key: number.to_string() }
}

/// Every third does not shrink, every fiftieth is a file of its own, every seventh is that of another name.
fn content(number: u64) -> Vec<u8> {
    let seed = if number % 7 == 6 { number - 3 } else { number };
    let size = if seed % 50 == 1 { 1_500_000 } else { 2000 + seed * 977 % 40_000 };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size as usize + 64);
    while (bytes.len() as u64) < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
        if seed % 3 != 2 {
            bytes.extend_from_slice(b"_ZN9forgeyard5cache5store6shrink17h");
        }
    }
    bytes.truncate(size as usize);
    bytes
}

#[test]
#[ignore = "is started, and killed, by the other test"]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let store = open(Path::new(&folder));
    let back = std::env::var_os(BACK).is_some();
    if back {
        let mut buffer = Vec::new();
        for number in 0..ENTRIES {
            for _ in 0..5 {
                store.get_stored(name(number).hash(), &mut buffer).unwrap().unwrap();
            }
        }
    }
    println!("shrinking");
    match back {
        true => store.shrink(&|| false).unwrap(),
        false => store.shrink_all().unwrap(),
    }
    println!("done");
    std::thread::sleep(Duration::from_secs(60));
}

/// How many lie there in the old form and in the new one; all are right.
fn look(folder: &Path, snapshot: bool) -> (u64, u64) {
    let store = open(folder);
    let (mut plain, mut framed, mut buffer) = (0, 0, Vec::new());
    for number in 0..ENTRIES {
        let (name, expected) = (name(number), content(number));
        let (found, stored) =
            store.get_stored(name.hash(), &mut buffer).unwrap().unwrap_or_else(|| panic!("{name} is lost"));
        let compressed = match (&found.place, stored) {
            (Place::Large(large), _) => large.frames().is_some(),
            (_, Stored::Framed(_)) => true,
            _ => false,
        };
        *if compressed { &mut framed } else { &mut plain } += 1;
        let found = store.get(name.hash(), &mut buffer).unwrap().unwrap();
        let bytes = match found.place {
            Place::Buffer(range) => buffer[range].to_vec(),
            Place::Large(large) => {
                let (mut all, mut piece) = (Vec::new(), Vec::new());
                for number in 0..large.pieces() {
                    large.piece(number, &mut piece).unwrap();
                    all.extend_from_slice(&piece);
                }
                all
            }
        };
        assert!(bytes == expected, "{name}");
    }
    assert_eq!(store.scrub().unwrap(), (ENTRIES, 0));
    assert_eq!(store.damaged(), 0);
    if snapshot {
        store.snapshot().unwrap();
    }
    (plain, framed)
}

/// Everything, in segments that grow no more.
fn fill(folder: &Path) {
    let store = open(folder);
    let by = Provenance { principal: "killed".to_owned(), ..Provenance::default() };
    for number in 0..ENTRIES {
        let bytes = content(number);
        let body = if bytes.len() > 1 << 20 {
            let mut spool = store.spool().unwrap();
            spool.write(&bytes).unwrap();
            Body::Large(spool.finish(false).unwrap())
        } else {
            Body::Inline(&bytes)
        };
        store.put(&name(number), body, Policy::Replace, &by).unwrap();
    }
    store.seal().unwrap();
}

/// Starts the process and kills it, a little later in each round, until it comes to the end. Answers with how many rounds that
/// took, and how many entries are plain and compressed after each.
fn kill_until_it_is_done(folder: &Path, back: bool, millis: u64) -> Vec<(u64, u64)> {
    let mut after = Vec::new();
    loop {
        let rounds = after.len() as u64;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "the_process_that_is_killed", "--nocapture"]);
        command.env(FOLDER, folder).stdout(Stdio::piped());
        if back {
            command.env(BACK, "");
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("shrinking")));
        // so that some end in the first segment and one comes to the end
        std::thread::sleep(Duration::from_millis(2 + rounds * millis));
        child.kill().unwrap();
        child.wait().unwrap();
        let came = lines.any(|line| line.contains("done"));
        after.push(look(folder, rounds % 3 == 1));
        if came {
            return after;
        }
        assert!(rounds < 400, "it never came to the end");
    }
}

/// So many do not shrink.
fn noise() -> u64 {
    let shrinks = |number: &u64| content(*number).windows(8).any(|some| some == b"_ZN9forg");
    ENTRIES - (0..ENTRIES).filter(shrinks).count() as u64
}

#[test]
fn kill_in_the_middle_of_a_rewrite_leaves_the_old_form_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    assert_eq!(look(folder.path(), false).1, 0);
    let after = kill_until_it_is_done(folder.path(), false, 5);
    assert_eq!(after.last().unwrap().0, noise(), "what does not shrink");
    let mixed = after.iter().filter(|(plain, framed)| *framed > 0 && *plain > noise()).count();
    println!("{} rounds, {mixed} of them ended between the two", after.len());
    assert!(mixed > 0, "no kill found it in the middle, in {} rounds", after.len());
}

#[test]
fn kill_while_something_is_written_back_leaves_the_old_form_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    open(folder.path()).shrink_all().unwrap();
    assert_eq!(look(folder.path(), false).0, noise());
    let after = kill_until_it_is_done(folder.path(), true, 5);
    assert_eq!(*after.last().unwrap(), (ENTRIES, 0), "everything is plain");
    let mixed = after.iter().filter(|(plain, framed)| *framed > 0 && *plain > noise()).count();
    println!("{} rounds, {mixed} of them ended between the two", after.len());
    assert!(mixed > 0, "no kill found it in the middle, in {} rounds", after.len());
}
