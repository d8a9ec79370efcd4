//! A process that stores entries is killed at any moment, many times over one folder: nothing that it acknowledged is lost,
//! and no byte is wrong, though segments are compressed beside it. The process is this test program again, at [`the_process_that_is_killed`].

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "support/killed.rs"]
mod killed;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, Durability, LogStore};
use forgeyard_cache::store::{Clock, Limits, Store as _};
use forgeyard_model::Timestamp;
use killed::{PROCESS, Process};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

const FOLDER: &str = "FORGEYARD_TEST_KILL_FOLDER";

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000))
}

fn open(folder: &Path) -> LogStore {
    let durability = if folder.join("group").exists() { Durability::Group } else { Durability::PageCache };
    let config =
        Config { segment: 256 << 10, capacity: 1 << 30, durability, ..Config::new(folder.join("store")) };
    LogStore::open(config, clock()).unwrap()
}

fn name(number: u64) -> Name {
    Name {
        scope: format!("s{}", number % 3).parse().unwrap(),
        kind: Kind::Keyed,
        key: (number % 400).to_string(),
    }
}

/// Content of the write with this number; some repeat, some are large.
fn content(number: u64) -> Vec<u8> {
    let (seed, size) = (number / 2, if number.is_multiple_of(97) { 1_200_000 } else { number * 37 % 9000 });
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.resize(8 + size as usize, (seed % 251) as u8);
    bytes
}

#[test]
#[ignore = "is started, and killed, by the other test"]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let store = Arc::new(open(Path::new(&folder)));
    let shrinking = Arc::clone(&store);
    std::thread::spawn(move || {
        loop {
            shrinking.shrink_all().unwrap();
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let from: u64 = std::env::var("FORGEYARD_TEST_KILL_FROM").unwrap().parse().unwrap();
    let mut out = std::io::stdout();
    for number in from.. {
        let put = killed::put(&store, &name(number), &content(number)).unwrap();
        runtime.block_on(store.settled(put.ticket)).unwrap();
        // one write call a line: a line that is there is an acknowledgement
        out.write_all(format!("acknowledged {number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
        if number % 150 == 149 {
            store.snapshot().unwrap();
        }
    }
}

#[rstest::rstest]
fn nothing_acknowledged_is_lost_when_the_process_is_killed(#[values(false, true)] group: bool) {
    let folder = tempfile::tempdir().unwrap();
    if group {
        fs_err::write(folder.path().join("group"), "").unwrap();
    }
    let mut next = 0u64;
    let mut last: BTreeMap<Name, u64> = BTreeMap::new();
    let mut shrunk = 0;
    for round in 0..8u64 {
        let folder_of = folder.path().display().to_string();
        let mut process =
            Process::start(PROCESS, [(FOLDER, folder_of), ("FORGEYARD_TEST_KILL_FROM", next.to_string())]);
        let mut acknowledged = Vec::new();
        let stop_after = 40 + round * 67 % 190;
        let mut killed = false;
        // what was in the pipe when the process died was acknowledged too
        while let Some(line) = process.line() {
            if let Some(at) = line.find("acknowledged ") {
                acknowledged.push(line[at + 13..].parse::<u64>().unwrap());
            }
            if !killed && acknowledged.len() as u64 >= stop_after {
                process.kill();
                killed = true;
            }
        }
        process.end();
        assert!(killed, "the process ended by itself after {} writes", acknowledged.len());
        for number in &acknowledged {
            last.insert(name(*number), *number);
        }
        next = acknowledged.last().copied().unwrap() + 1;
        let store = open(folder.path());
        let mut buffer = Vec::new();
        for (name, number) in &last {
            let found = store.get(name.hash(), &mut buffer).unwrap();
            let found =
                found.unwrap_or_else(|| panic!("{name} of write {number} is lost after round {round}"));
            let bytes = killed::bytes(found.place, &buffer).unwrap();
            // the one write that was under way may have taken effect
            assert!(
                bytes == content(*number) || (name == &self::name(next) && bytes == content(next)),
                "{name}"
            );
        }
        assert_eq!(store.scrub().unwrap().1, 0);
        shrunk += store.shrunk().bodies + store.totals().saved_bytes;
        store.shrink_all().unwrap();
        shrunk += store.shrunk().bodies;
        store.maintain(&|_| Limits::default()).unwrap();
        assert_eq!(fs_err::read_dir(folder.path().join("store/incoming")).unwrap().count(), 0);
    }
    assert!(shrunk > 0, "nothing was compressed");
}
