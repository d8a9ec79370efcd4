//! The index in memory: from the hash of a name, or half of a digest, to a place in the log.
//!
//! A slot is 32 bytes: 16 of hash and 16 of place, size, last use and scope. A last use that lies ahead is a lease: until
//! then the entry is not taken away to make room. Tables are split by hash into shards with a
//! lock each. A shard is an open-addressed table that grows by a quarter, so that it is between two thirds and five
//! sixths full; removal closes the gap by moving later slots back, so there are no tombstones.

use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Where a record lies, how long it is, when it was last used, and for names the number of the scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u128);

/// Largest number of a scope, and of a minute.
pub const MASK24: u32 = 0xff_ffff;

impl Slot {
    /// Packs. `at` is a multiple of 64 below 1 GiB, `segment` and `scope` are below 2^24.
    pub fn new(segment: u32, at: u64, len: u32, minute: u32, scope: u32) -> Self {
        let field = |value: u32, shift: u32| u128::from(value & MASK24) << shift;
        let at = u32::try_from(at / 64).unwrap_or(MASK24);
        Self(u128::from(len) | field(segment, 32) | field(at, 56) | field(minute, 80) | field(scope, 104))
    }

    fn field(self, shift: u32) -> u32 {
        (self.0 >> shift) as u32 & MASK24
    }

    /// Number of the segment.
    pub fn segment(self) -> u32 {
        self.field(32)
    }

    /// Place in it.
    pub fn at(self) -> u64 {
        u64::from(self.field(56)) * 64
    }

    /// Bytes of the record.
    #[expect(clippy::len_without_is_empty, reason = "a record is never empty")]
    pub fn len(self) -> u32 {
        self.0 as u32
    }

    /// Minute of the last use.
    pub fn minute(self) -> u32 {
        self.field(80)
    }

    /// Number of the scope.
    pub fn scope(self) -> u32 {
        self.field(104)
    }

    /// Whether both name the same record.
    pub fn same_place(self, other: Slot) -> bool {
        self.segment() == other.segment() && self.at() == other.at()
    }

    /// At another place.
    pub fn moved(self, segment: u32, at: u64) -> Self {
        Self::new(segment, at, self.len(), self.minute(), self.scope())
    }

    /// Used at this minute.
    pub fn used(self, minute: u32) -> Self {
        Self(self.0 & !(u128::from(MASK24) << 80) | u128::from(minute & MASK24) << 80)
    }

    /// As a number, for the snapshot.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// From the snapshot.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

/// One shard. A hash of zero marks a free place; the hash zero itself is kept as one.
#[derive(Debug, Default)]
struct Shard {
    places: Vec<(u128, u128)>,
    full: usize,
}

impl Shard {
    fn home(&self, hash: u128) -> usize {
        // multiply-shift keeps any table size fair; the low bits chose the shard
        (((hash >> 64) * self.places.len() as u128) >> 64) as usize
    }

    fn find(&self, hash: u128) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            match self.places[at].0 {
                0 => return None,
                found if found == hash => return Some(at),
                _ => at = (at + 1) % self.places.len(),
            }
        }
    }

    fn grow(&mut self) {
        let larger = (self.places.len() + self.places.len() / 4).max(16);
        let old = std::mem::replace(&mut self.places, vec![(0, 0); larger]);
        for (hash, slot) in old.into_iter().filter(|place| place.0 != 0) {
            self.place(hash, slot);
        }
    }

    fn place(&mut self, hash: u128, slot: u128) {
        let mut at = self.home(hash);
        while self.places[at].0 != 0 {
            at = (at + 1) % self.places.len();
        }
        self.places[at] = (hash, slot);
    }

    fn insert(&mut self, hash: u128, slot: u128) -> Option<u128> {
        if let Some(at) = self.find(hash) {
            return Some(std::mem::replace(&mut self.places[at].1, slot));
        }
        if (self.full + 1) * 6 > self.places.len() * 5 {
            self.grow();
        }
        self.place(hash, slot);
        self.full += 1;
        None
    }

    fn remove(&mut self, hash: u128) -> Option<u128> {
        let mut hole = self.find(hash)?;
        let removed = self.places[hole].1;
        self.places[hole] = (0, 0);
        self.full -= 1;
        let size = self.places.len();
        let mut at = hole;
        loop {
            at = (at + 1) % size;
            let (hash, _) = self.places[at];
            if hash == 0 {
                return Some(removed);
            }
            // a slot may move back into the hole unless its home lies after the hole
            let home = self.home(hash);
            if (at + size - home) % size >= (at + size - hole) % size {
                self.places[hole] = std::mem::take(&mut self.places[at]);
                hole = at;
            }
        }
    }
}

/// What became of a slot that was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is gone.
    Removed(Slot),
    /// A lease keeps it.
    Leased,
    /// It names another place by now, or is gone already.
    Elsewhere,
}

/// A table of slots.
#[derive(Debug)]
pub struct Table {
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for Table {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Table {
    fn shard(&self, hash: u128) -> MutexGuard<'_, Shard> {
        let shard = (hash as usize) % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn key(hash: u128) -> u128 {
        if hash == 0 { 1 } else { hash }
    }

    /// The slot of a hash.
    pub fn get(&self, hash: u128) -> Option<Slot> {
        let hash = Self::key(hash);
        let shard = self.shard(hash);
        shard.find(hash).map(|at| Slot(shard.places[at].1))
    }

    /// The slot of a hash, marked as used at this minute. A later minute, which a lease left there, stays.
    pub fn touch(&self, hash: u128, minute: u32) -> Option<Slot> {
        let hash = Self::key(hash);
        let mut shard = self.shard(hash);
        let at = shard.find(hash)?;
        let slot = Slot(shard.places[at].1);
        if slot.minute() < minute {
            shard.places[at].1 = slot.used(minute).0;
        }
        Some(slot)
    }

    /// Sets a slot; answers with the one before.
    pub fn insert(&self, hash: u128, slot: Slot) -> Option<Slot> {
        let hash = Self::key(hash);
        self.shard(hash).insert(hash, slot.0).map(Slot)
    }

    /// Takes a slot away.
    pub fn remove(&self, hash: u128) -> Option<Slot> {
        let hash = Self::key(hash);
        self.shard(hash).remove(hash).map(Slot)
    }

    /// Takes a slot away if it still names this place.
    pub fn remove_at(&self, hash: u128, place: Slot) -> Option<Slot> {
        let hash = Self::key(hash);
        let mut shard = self.shard(hash);
        let at = shard.find(hash)?;
        if !Slot(shard.places[at].1).same_place(place) {
            return None;
        }
        shard.remove(hash).map(Slot)
    }

    /// Takes a slot away if it still names this place and no lease reaches beyond this minute.
    pub fn remove_unless_leased(&self, hash: u128, place: Slot, minute: u32) -> Taken {
        let hash = Self::key(hash);
        let mut shard = self.shard(hash);
        let Some(at) = shard.find(hash) else { return Taken::Elsewhere };
        let slot = Slot(shard.places[at].1);
        match slot.same_place(place) {
            false => Taken::Elsewhere,
            true if slot.minute() > minute => Taken::Leased,
            true => {
                shard.remove(hash);
                Taken::Removed(slot)
            }
        }
    }

    /// Moves a slot if it still names this place.
    pub fn move_at(&self, hash: u128, place: Slot, segment: u32, at: u64) -> bool {
        let hash = Self::key(hash);
        let mut shard = self.shard(hash);
        let Some(found) = shard.find(hash) else { return false };
        let slot = Slot(shard.places[found].1);
        if slot.same_place(place) {
            shard.places[found].1 = slot.moved(segment, at).0;
        }
        slot.same_place(place)
    }

    /// Takes all slots away.
    pub fn clear(&self) {
        (0..SHARDS as u128).for_each(|shard| *self.shard(shard) = Shard::default());
    }

    /// How many slots.
    pub fn len(&self) -> usize {
        (0..SHARDS as u128).map(|shard| self.shard(shard).full).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        (0..SHARDS as u128).map(|shard| self.shard(shard).places.capacity() * 32).sum()
    }

    /// Shows every slot, a shard at a time. What comes or goes meanwhile may be shown or not.
    pub fn each(&self, mut see: impl FnMut(u128, Slot)) {
        for shard in 0..SHARDS as u128 {
            for (hash, slot) in &self.shard(shard).places {
                if *hash != 0 {
                    see(*hash, Slot(*slot));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn table_does_what_a_map_does(steps in prop::collection::vec((0u8..3, 0u128..60), 0..400)) {
            let table = Table::default();
            let mut map = BTreeMap::new();
            for (step, (what, key)) in steps.into_iter().enumerate() {
                // few shards and homes, so that slots collide
                let hash = key.max(1) * 64 + ((key % 3) << 126);
                let slot = Slot::new(step as u32, 64, 1, 1, 1);
                match what {
                    0 => prop_assert_eq!(table.insert(hash, slot), map.insert(hash, slot)),
                    1 => prop_assert_eq!(table.remove(hash), map.remove(&hash)),
                    _ => prop_assert_eq!(table.get(hash), map.get(&hash).copied()),
                }
                prop_assert_eq!(table.len(), map.len());
            }
            let mut all = BTreeMap::new();
            table.each(|hash, slot| { all.insert(hash, slot); });
            prop_assert_eq!(all, map);
        }

        #[test]
        fn slot_keeps_its_fields(segment in 0..=MASK24, at in 0u64..1 << 24, len: u32, minute in 0..=MASK24, scope in 0..=MASK24) {
            let slot = Slot::new(segment, at * 64, len, minute, scope);
            prop_assert_eq!((slot.segment(), slot.at(), slot.len(), slot.minute(), slot.scope()), (segment, at * 64, len, minute, scope));
            prop_assert_eq!(slot.used(7).used(minute), slot);
        }
    }

    #[test]
    fn a_slot_costs_at_most_48_bytes_of_memory() {
        let table = Table::default();
        for number in 0..100_000u64 {
            let hash = crate::name::NameHash::of("a", crate::name::Kind::Keyed, &number.to_string());
            table.insert(hash.0, Slot::new(1, 64, 1, 1, 1));
        }
        assert!(table.memory() <= 100_000 * 48, "{}", table.memory() / 100_000);
    }
}
