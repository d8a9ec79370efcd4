//! Names whose record was read and found to be theirs: promised again without another look at the disk.
//!
//! The index keeps 41 bits of a name, too few to promise a content by. What is kept here is all 128 bits and the place of the
//! record. A place is never written over and numbers of segments are not used again, so what was found there once is there
//! for as long as the index has a slot at that place. Only records that carry their content count: a link may lose what it
//! stands for. A table of fixed size that is made as it is needed, 24 MiB at most; a newer name takes the place of an older
//! one by chance, and then costs one more read.

use super::index::Slot;
use crate::name::NameHash;
use std::sync::{Mutex, PoisonError};

const SHARDS: usize = 256;
/// Names of a shard.
const PLACES: usize = 4096;

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    low: u64,
    high: u64,
    place: u64,
}

/// Names that were found.
#[derive(Debug)]
pub(super) struct Known(Box<[Mutex<Vec<Seen>>]>);

impl Default for Known {
    fn default() -> Self {
        Self(std::iter::repeat_with(Mutex::default).take(SHARDS).collect())
    }
}

fn seen(name: NameHash, slot: Slot) -> Seen {
    let place = (u64::from(slot.segment()) << 32) | (slot.at() / 64);
    Seen { low: name.0 as u64, high: (name.0 >> 64) as u64, place }
}

impl Known {
    fn at(name: NameHash) -> (usize, usize) {
        // the lowest ten bits choose the shard of the index, others are the print
        ((name.0 >> 10) as usize % SHARDS, (name.0 >> 18) as usize % PLACES)
    }

    /// Whether the record in this place was found to be this name's.
    pub(super) fn has(&self, name: NameHash, slot: Slot) -> bool {
        let (shard, at) = Self::at(name);
        let shard = self.0[shard].lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = seen(name, slot);
        shard
            .get(at)
            .is_some_and(|one| (one.low, one.high, one.place) == (wanted.low, wanted.high, wanted.place))
    }

    /// It was found to be.
    pub(super) fn keep(&self, name: NameHash, slot: Slot) {
        let (shard, at) = Self::at(name);
        let mut shard = self.0[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.is_empty() {
            shard.resize(PLACES, Seen::default());
        }
        shard[at] = seen(name, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_known_at_its_place_alone() {
        let known = Known::default();
        let (name, slot) = (NameHash(u128::MAX / 3), Slot::new(7, 640, 128, 5, 1));
        assert!(!known.has(name, slot));
        known.keep(name, slot);
        assert!(known.has(name, slot) && known.has(name, slot.used(9)));
        assert!(!known.has(name, slot.moved(8, 640)) && !known.has(name, slot.moved(7, 704)));
        assert!(!known.has(NameHash(name.0 ^ 1 << 127), slot));
    }
}
