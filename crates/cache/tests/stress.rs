//! A seeded stress of the storage: a process that writes small and large entries, removes, and evicts is killed at any moment, and the
//! next start has no snapshot. No entry may be damaged then, no acknowledged one that fits may be lost, no byte may be wrong.
//!
//! A stress run once reported one damaged entry after such a start: a miss, not wrong bytes. `FORGEYARD_STRESS_SEED` and
//! `FORGEYARD_STRESS_ROUNDS` run others; what is found is printed with its seed. The process is this test program again, at
//! [`the_process_that_is_killed`].

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "support/killed.rs"]
mod killed;

use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, Durability, LogStore};
use forgeyard_cache::store::shrink::Compression;
use forgeyard_cache::store::sum::Sum;
use forgeyard_cache::store::{Clock, Limits, Store as _};
use forgeyard_model::Timestamp;
use killed::{PROCESS, Process};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

const FOLDER: &str = "FORGEYARD_TEST_STRESS_FOLDER";
const KEYS: u64 = 200;

static NOW: AtomicI64 = AtomicI64::new(1_800_000_000_000_000);

fn open(folder: &Path) -> LogStore {
    let clock: Clock = Arc::new(|| Timestamp::from_micros(NOW.load(Ordering::Relaxed)));
    let config = Config {
        segment: 512 << 10,
        capacity: 12 << 20,
        durability: Durability::PageCache,
        compression: Compression { percent: 100, after_minutes: 3, ..Compression::default() },
        ..Config::new(folder.join("store"))
    };
    LogStore::open(config, clock).unwrap()
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
}

fn name(key: u64) -> Name {
    Name { scope: format!("s{}", key % 3).parse().unwrap(), kind: Kind::Keyed, key: key.to_string() }
}

/// Content of a write: its number, then bytes that follow from it. Every few writes one repeats another's, so that names share it.
fn content(write: u64) -> Vec<u8> {
    let seed = write / 3;
    let size = match seed % 17 {
        0 => 1_100_000 + seed * 7919 % 400_000,
        other => seed * 131 % (other * 3000),
    };
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.resize(8 + size as usize, (seed % 251) as u8);
    bytes
}

#[test]
#[ignore = "is started, and killed, by the other test"]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let say = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (seed, from) = (say("STRESS_SEED"), say("STRESS_FROM"));
    let store = Arc::new(open(Path::new(&folder)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let mut state = seed.wrapping_add(from).wrapping_mul(0x9e37_79b9) + thread * 77 + 1;
                for step in from.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let write = step << 1 | thread;
                    let name = name(random(&mut state) % KEYS);
                    match random(&mut state) % 20 {
                        0 => drop(store.remove(&name).unwrap()),
                        1..=5 => {
                            let mut buffer = Vec::new();
                            for _ in 0..step % 7 {
                                drop(store.get(name.hash(), &mut buffer).unwrap());
                            }
                        }
                        _ => {
                            // without room nothing is stored
                            drop(killed::put(store, &name, &content(write)));
                        }
                    }
                    if random(&mut state).is_multiple_of(7) {
                        NOW.fetch_add(10_000_000, Ordering::Relaxed);
                    }
                    if step % 50 == 49 {
                        println!("step {step}");
                    }
                }
            });
        }
        // eviction beside it, and a quota now and then
        for round in 0u64.. {
            let quota = (round % 5 == 4).then_some(2 << 20);
            store.maintain(&|_| Limits { bytes: quota, idle_minutes: None }).unwrap();
            // it ends where the kill finds it
            match round % 6 {
                2 => store.shrink_all().unwrap(),
                // what is cold, and what is read goes the other way
                5 => store.shrink(&|| false).unwrap(),
                _ => {}
            }
            if round % 40 == 39 {
                store.snapshot().unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
}

/// Reads an entry as a client would; whether its bytes are those of a write.
fn whole(store: &LogStore, name: &Name) -> Option<bool> {
    let mut buffer = Vec::new();
    let found = store.get(name.hash(), &mut buffer).unwrap()?;
    let Some(bytes) = killed::bytes(found.place, &buffer) else { return Some(false) };
    let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    Some(
        bytes == content(seed * 3)
            && [Sum::Sha256, Sum::Blake3].iter().any(|sum| sum.of(&bytes) == found.facts.digest),
    )
}

fn stress(seed: u64, rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut from, mut found, mut saved) = (seed | 1, 0, 0, 0);
    for round in 0..rounds {
        let folder_of = folder.path().display().to_string();
        let with =
            [(FOLDER, folder_of), ("STRESS_SEED", seed.to_string()), ("STRESS_FROM", from.to_string())];
        let mut process = Process::start(PROCESS, with);
        let until = from + 100 + random(&mut state) % 500;
        while let Some(line) = process.line() {
            let step = line.split("step ").nth(1).and_then(|step| step.parse::<u64>().ok());
            if let Some(step) = step.filter(|step| *step >= until) {
                from = step + 1;
                // anywhere within the next steps
                std::thread::sleep(std::time::Duration::from_micros(random(&mut state) % 20_000));
                process.kill();
                break;
            }
        }
        let status = process.end();
        assert!(
            !status.success() && status.code().is_none(),
            "seed {seed}, round {round}: it ended by itself: {status}"
        );
        if !random(&mut state).is_multiple_of(3) {
            let _ = fs_err::remove_file(folder.path().join("store/index.snap"));
        }
        let store = open(folder.path());
        for key in 0..KEYS {
            let right = whole(&store, &name(key));
            found += u64::from(right == Some(true));
            assert_ne!(right, Some(false), "seed {seed}, round {round}: wrong bytes of {key}");
        }
        assert_eq!(store.damaged(), 0, "seed {seed}, round {round}: an entry is damaged after the start");
        let (read, damaged) = store.scrub().unwrap();
        assert_eq!(damaged, 0, "seed {seed}, round {round}: {damaged} of {read} entries are damaged");
        store.shrink_all().unwrap();
        saved += store.totals().saved_bytes;
    }
    assert!(saved > 0, "nothing was compressed");
    assert!(found > rounds * 10, "hardly anything was there: {found}");
}

#[test]
fn kills_between_evictions_and_starts_without_a_snapshot_leave_no_damaged_entry() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let rounds = number("FORGEYARD_STRESS_ROUNDS").unwrap_or(4);
    match number("FORGEYARD_STRESS_SEED") {
        Some(seed) => stress(seed, rounds),
        None => (1..=2).for_each(|seed| stress(seed, rounds)),
    }
}
