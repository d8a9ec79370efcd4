//! Names whose record was read and found to be theirs: promised again without another look at the disk.
//!
//! The index keeps 41 bits of a name, too few to promise a content by. What is kept here is all 128 bits and the place of the
//! record. A place is never written over and numbers of segments are not used again, so what was found there once is there
//! for as long as the index has a slot at that place. Only records that carry their content count: a link may lose what it
//! stands for. A table of fixed size that is made as it is needed, 24 MiB at most, in groups of four; a fifth name of a group
//! takes the place of the oldest, which then costs one more read.

use super::index::Slot;
use crate::name::NameHash;
use std::sync::{Mutex, PoisonError};

const SHARDS: usize = 256;
/// Names of a shard.
const PLACES: usize = 4096;
/// Places in which a name may be.
const GROUP: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
        ((name.0 >> 10) as usize % SHARDS, (name.0 >> 18) as usize % (PLACES / GROUP) * GROUP)
    }

    /// Whether the record in this place was found to be this name's.
    pub(super) fn has(&self, name: NameHash, slot: Slot) -> bool {
        let (shard, at) = Self::at(name);
        let shard = self.0[shard].lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = seen(name, slot);
        shard.get(at..at + GROUP).is_some_and(|group| group.contains(&wanted))
    }

    /// It was found to be.
    pub(super) fn keep(&self, name: NameHash, slot: Slot) {
        let (shard, at) = Self::at(name);
        let mut shard = self.0[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.is_empty() {
            shard.resize(PLACES, Seen::default());
        }
        let group = &mut shard[at..at + GROUP];
        let new = seen(name, slot);
        let old =
            group.iter().position(|one| (one.low, one.high) == (new.low, new.high)).unwrap_or(GROUP - 1);
        group[..=old].rotate_right(1);
        group[0] = new;
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

    #[test]
    fn hardly_any_of_half_a_million_names_is_forgotten() {
        let known = Known::default();
        let names: Vec<(NameHash, Slot)> = (0..500_000u64)
            .map(|number| {
                let hash =
                    u128::from_str_radix(&forgeyard_model::Digest::of(&number.to_le_bytes()).hex()[..32], 16);
                (
                    NameHash(hash.unwrap()),
                    Slot::new(1 + number as u32 % 9, 64 + number * 64 % 4_000_000, 128, 5, 1),
                )
            })
            .collect();
        for round in 0..2 {
            let mut has = 0;
            for (name, slot) in &names {
                match known.has(*name, *slot) {
                    true => has += 1,
                    false => known.keep(*name, *slot),
                }
            }
            assert!(round == 0 || has > 400_000, "{has}");
        }
    }
}
