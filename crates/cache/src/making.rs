//! How long it takes to make what was missing, and so what a hit saves.
//!
//! Whoever misses an entry makes it and writes it, so the time between a miss and the write of the same name is the time
//! that making it took: a compilation, an action. That is seen here without asking any client.
//!
//! Kept are the misses of the last hour at most, in two turns: when the young one is full it becomes the old one, and the
//! old one is forgotten. So memory is bounded ([`MOST`] names in each of [`SHARDS`], twice), and what is forgotten is only
//! not measured.

use crate::name::{Kind, NameHash};
use forgeyard_model::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Locks, by name.
const SHARDS: usize = 16;
/// Names of one turn of a shard.
const MOST: usize = 4096;
/// A write later than this after a miss does not belong to it, in milliseconds.
const LONGEST: u64 = 3_600_000;

/// Whether entries of this kind are made by whoever misses them. Contents are parts of what was made; files of Nix, caches
/// of GitHub and artifacts are written at the end of a build, long after they were looked for.
pub(crate) const fn is_made(kind: Kind) -> bool {
    matches!(kind, Kind::Keyed | Kind::Sccache | Kind::Ccache | Kind::Action | Kind::Turbo | Kind::Gradle)
}

#[derive(Debug, Default)]
struct Turns {
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
}

/// The misses of late.
#[derive(Debug, Default)]
pub(crate) struct Making {
    shards: [Mutex<Turns>; SHARDS],
}

const fn millis(now: Timestamp) -> u64 {
    now.as_micros().unsigned_abs() / 1000
}

impl Making {
    fn shard(&self, name: NameHash) -> (&Mutex<Turns>, u64) {
        // halves of a hash
        let key = name.0 as u64;
        (&self.shards[(name.0 >> 64) as usize % SHARDS], key)
    }

    /// A caller that may write this name missed it.
    pub(crate) fn missed(&self, name: NameHash, now: Timestamp) {
        let (shard, key) = self.shard(name);
        let mut turns = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.young.len() >= MOST {
            turns.old = std::mem::take(&mut turns.young);
        }
        turns.young.insert(key, millis(now));
    }

    /// The name was written: milliseconds since it was missed, when that was seen.
    pub(crate) fn wrote(&self, name: NameHash, now: Timestamp) -> Option<u64> {
        let (shard, key) = self.shard(name);
        let mut turns = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let (young, old) = (turns.young.remove(&key), turns.old.remove(&key));
        let took = millis(now).checked_sub(young.or(old)?)?;
        (took <= LONGEST).then_some(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(millis * 1000)
    }

    #[test]
    fn time_between_a_miss_and_its_write_is_what_making_it_took() {
        let making = Making::default();
        making.missed(NameHash(7), at(1000));
        making.missed(NameHash(7), at(2000));
        assert_eq!(making.wrote(NameHash(8), at(2500)), None, "never missed");
        assert_eq!(making.wrote(NameHash(7), at(2500)), Some(500), "since the last miss");
        assert_eq!(making.wrote(NameHash(7), at(2600)), None, "each miss counts once");
        making.missed(NameHash(9), at(0));
        assert_eq!(making.wrote(NameHash(9), at(LONGEST as i64 + 1)), None, "too late to belong to it");
    }

    #[test]
    fn memory_is_bounded_and_the_latest_misses_are_kept() {
        let making = Making::default();
        for name in 0..10 * MOST as u128 {
            making.missed(NameHash(name), at(5));
        }
        let turns = making.shards[0].lock().unwrap();
        assert!(turns.young.len() + turns.old.len() <= 2 * MOST);
        drop(turns);
        assert_eq!(making.wrote(NameHash(10 * MOST as u128 - 1), at(6)), Some(1));
        assert_eq!(making.wrote(NameHash(0), at(6)), None);
    }
}
