//! A process that compresses what is at rest is killed in the middle of it, many times over one folder: each entry is there in
//! the old form or in the new one, and nothing is damaged. The process is this test program again, at
//! [`the_process_that_is_killed`].

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, Durability, LogStore};
use forgeyard_cache::store::port::Stored;
use forgeyard_cache::store::{Body, Clock, Place, Policy, Provenance, Store as _};
use forgeyard_model::Timestamp;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "FORGEYARD_TEST_KILL_SHRINK_FOLDER";
const ENTRIES: u64 = 300;

fn open(folder: &Path) -> LogStore {
    let clock: Clock = Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000));
    let durability = Durability::PageCache;
    LogStore::open(Config { segment: 1 << 20, durability, ..Config::new(folder.join("store")) }, clock)
        .unwrap()
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
    println!("shrinking");
    store.shrink_all().unwrap();
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

#[test]
fn kill_in_the_middle_of_a_rewrite_leaves_the_old_form_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = open(folder.path());
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
    let (begun, mut mixed, mut rounds) = (look(folder.path(), false), 0, 0u64);
    assert_eq!(begun.1, 0);
    loop {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "the_process_that_is_killed", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("shrinking")));
        // a little later in each round, so that some end in the first segment and one comes to the end
        std::thread::sleep(Duration::from_millis(2 + rounds * 5));
        child.kill().unwrap();
        child.wait().unwrap();
        let came = lines.any(|line| line.contains("done"));
        let (plain, framed) = look(folder.path(), rounds % 3 == 1);
        let all = ENTRIES
            - (0..ENTRIES)
                .filter(|number| content(*number).windows(8).any(|some| some == b"_ZN9forg"))
                .count() as u64;
        mixed += u64::from(framed > 0 && plain > all);
        rounds += 1;
        if came {
            assert_eq!(plain, all, "what does not shrink");
            break;
        }
        assert!(rounds < 400, "it never came to the end");
    }
    println!("{rounds} rounds, {mixed} of them ended between the two");
    assert!(mixed > 0, "no kill found it in the middle, in {rounds} rounds");
}
