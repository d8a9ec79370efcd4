//! The index in memory: from the hash of a name, or half of a digest, to a place in the log.
//!
//! A name costs 20 bytes and a content that names can share 8. What makes that possible is that neither keeps its hash:
//! ten bits of it choose the shard, a few more (the *print*) are kept, and whoever finds a slot reads the record there
//! and looks whether it is the one that was meant. So a lookup answers with *candidates*, of which there is hardly ever
//! more than one: 72 bits of a name are compared, 28 of a digest.
//!
//! ```text
//! Slot, a name       segment 22 | place / 64: 22 | length / 64: 15 | minute of last use 20 | scope 18 | print 62 | carries 1
//! Spot, a content    segment 22 | place / 64: 22 | linked 1 | used 1 | print 18
//! ```
//!
//! **72 bits are enough to promise by**: that a name whose record *carries* its content is here is told without a look at the
//! record. Among ten million names, another one agrees in 72 bits once in 10^14 questions. Whoever wants it to happen has to try
//! 2^72 contents, in a scope that they may write (the scope is part of what is hashed), to have a client told that an upload
//! may be left out. It gives nobody a wrong byte: whatever is read is read with its record, which has the whole name.
//!
//! Tables are split into shards with a lock each. A shard is an open-addressed table that grows by a sixth, so that it
//! is between 71 and 83 of a hundred full; removal closes the gap by moving later slots back, so there are no
//! tombstones. A name with its content costs 39 bytes at worst and 36 on average.
//!
//! A shard may be *away*: still in the snapshot on disk, with the changes that the log made since. And it may have to be
//! *saved* before it changes: then a snapshot is being written that is to show it as it is now. Both are in `snapshot`.

use super::snapshot::{Away, Save};
pub use super::words::{
    LAST_MINUTE, LAST_PLACE, LAST_SCOPE, LAST_SEGMENT, Slot, Spot, Word, minutes_ahead, minutes_since,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shards of a table. Both tables are split by the same bits.
pub const SHARDS: usize = 1024;

/// Number of the shard of a hash.
pub const fn shard_of(hash: u128) -> usize {
    hash as usize % SHARDS
}

const fn print_of<W: Word>(hash: u128) -> u64 {
    (hash >> 64) as u64 & ((1 << W::PRINT) - 1)
}

/// Candidates for a hash; hardly ever more than one.
#[derive(Debug)]
pub struct Few<W> {
    first: Option<W>,
    more: Vec<W>,
}

impl<W: Word> Iterator for Few<W> {
    type Item = W;

    fn next(&mut self) -> Option<W> {
        self.first.take().or_else(|| self.more.pop())
    }
}

/// One shard. A default word marks a free place: no record lies at the beginning of a segment.
#[derive(Debug, Default)]
pub(super) struct Shard<W> {
    pub(super) places: Vec<W>,
    pub(super) full: usize,
    /// What is still in the snapshot.
    pub(super) away: Option<Box<Away<W>>>,
    /// The snapshot that is to show this shard as it is.
    pub(super) save: Option<Box<Save>>,
}

impl<W: Word> Shard<W> {
    fn home(&self, print: u64) -> usize {
        ((u128::from(print) * self.places.len() as u128) >> W::PRINT) as usize
    }

    /// Shows every word with this print and where it is, until the caller has seen enough.
    fn probe(&self, print: u64, mut see: impl FnMut(usize, W) -> bool) {
        if self.places.is_empty() {
            return;
        }
        let mut at = self.home(print);
        while self.places[at] != W::default() {
            if self.places[at].print() == print && see(at, self.places[at]) {
                return;
            }
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
    }

    fn position(&self, print: u64, place: W) -> Option<usize> {
        let mut found = None;
        self.probe(print, |at, word| {
            let same = word.same_place(place);
            if same {
                found = Some(at);
            }
            same
        });
        found
    }

    fn grow(&mut self) {
        let larger = (self.places.len() + self.places.len() / 6).max(self.places.len() + 4);
        let old = std::mem::replace(&mut self.places, vec![W::default(); larger]);
        for word in old.into_iter().filter(|word| *word != W::default()) {
            self.place(word);
        }
    }

    fn place(&mut self, word: W) {
        let mut at = self.home(word.print());
        while self.places[at] != W::default() {
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
        self.places[at] = word;
    }

    /// To be called before anything but a minute changes.
    fn before_change(&mut self) {
        if let Some(save) = self.save.take() {
            save.write(&self.image());
        }
    }

    /// All places, as they are on disk.
    pub(super) fn image(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.places.len() * W::BYTES);
        self.places.iter().for_each(|word| word.write(&mut bytes));
        bytes
    }

    pub(super) fn add(&mut self, word: W) {
        self.before_change();
        if (self.full + 1) * 6 > self.places.len() * 5 {
            self.grow();
        }
        self.place(word);
        self.full += 1;
    }

    pub(super) fn remove(&mut self, mut hole: usize) -> W {
        self.before_change();
        let removed = std::mem::take(&mut self.places[hole]);
        self.full -= 1;
        let size = self.places.len();
        let mut at = hole;
        loop {
            at = if at + 1 == size { 0 } else { at + 1 };
            let word = self.places[at];
            if word == W::default() {
                return removed;
            }
            // a word may move back into the hole unless its home lies after the hole
            let home = self.home(word.print());
            if (at + size - home) % size >= (at + size - hole) % size {
                self.places[hole] = std::mem::take(&mut self.places[at]);
                hole = at;
            }
        }
    }
}

/// A table of slots or spots. A hash may be one that [`Table::each`] handed out.
#[derive(Debug)]
pub struct Table<W> {
    shards: Box<[Mutex<Shard<W>>]>,
}

impl<W: Word> Default for Table<W> {
    fn default() -> Self {
        let shard = || Mutex::new(Shard { places: Vec::new(), full: 0, away: None, save: None });
        Self { shards: std::iter::repeat_with(shard).take(SHARDS).collect() }
    }
}

impl<W: Word> Table<W> {
    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard<W>> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may be meant by a hash.
    pub fn find(&self, hash: u128) -> Few<W> {
        let mut few = Few { first: None, more: Vec::new() };
        self.lock(shard_of(hash)).probe(print_of::<W>(hash), |_, word| {
            match few.first {
                None => few.first = Some(word),
                Some(_) => few.more.push(word),
            }
            false
        });
        few
    }

    /// Adds a word beside those that are there.
    pub fn add(&self, hash: u128, word: W) {
        self.lock(shard_of(hash)).add(word.with_print(print_of::<W>(hash)));
    }

    /// Puts a word into the place of another one, if that is still there.
    pub fn replace(&self, hash: u128, before: W, word: W) -> bool {
        let print = print_of::<W>(hash);
        let mut shard = self.lock(shard_of(hash));
        let Some(at) = shard.position(print, before) else { return false };
        shard.before_change();
        shard.places[at] = word.with_print(print);
        true
    }

    /// Takes a word away if it is still there.
    pub fn remove(&self, hash: u128, place: W) -> Option<W> {
        let mut shard = self.lock(shard_of(hash));
        let at = shard.position(print_of::<W>(hash), place)?;
        Some(shard.remove(at))
    }

    /// How many words.
    pub fn len(&self) -> usize {
        (0..SHARDS)
            .map(|shard| {
                let shard = self.lock(shard);
                shard.away.as_ref().map_or(shard.full, |away| away.full as usize)
            })
            .sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let fixed = SHARDS * std::mem::size_of::<Mutex<Shard<W>>>();
        fixed + (0..SHARDS).map(|shard| self.lock(shard).places.capacity() * W::BYTES).sum::<usize>()
    }

    /// Shows every word with a hash to find it by, a shard at a time. What comes or goes meanwhile may be shown or not.
    pub fn each(&self, mut see: impl FnMut(u128, W)) {
        (0..SHARDS).for_each(|number| self.each_of(number, &mut see));
    }

    /// The same for one shard.
    pub fn each_of(&self, number: usize, mut see: impl FnMut(u128, W)) {
        let copy: Vec<W> =
            self.lock(number).places.iter().filter(|word| **word != W::default()).copied().collect();
        for word in copy {
            see(number as u128 | u128::from(word.print()) << 64, word);
        }
    }
}

impl Table<Slot> {
    /// Marks a name as used at this minute, unless a lease reaches further.
    pub fn touch(&self, hash: u128, slot: Slot, minute: u32) {
        if slot.minute() != minute & LAST_MINUTE && minutes_ahead(slot.minute(), minute) == 0 {
            self.lease(hash, slot, minute, minute);
        }
    }

    /// Leases a name until this minute, or for longer if it is so already. Whether it is still at this place.
    pub fn lease(&self, hash: u128, slot: Slot, until: u32, now: u32) -> bool {
        let mut shard = self.lock(shard_of(hash));
        let Some(at) = shard.position(print_of::<Slot>(hash), slot) else { return false };
        let held = minutes_ahead(shard.places[at].minute(), now);
        if held == 0 || held < minutes_ahead(until, now) {
            shard.places[at] = shard.places[at].used(until);
        }
        true
    }

    /// Leases a name until this minute if there is one whose record carries its content. Whether there is.
    pub fn promise(&self, hash: u128, until: u32, now: u32) -> bool {
        let mut shard = self.lock(shard_of(hash));
        let mut found = None;
        shard.probe(print_of::<Slot>(hash), |at, slot| {
            found = slot.carries().then_some(at);
            found.is_some()
        });
        let Some(at) = found else { return false };
        let held = minutes_ahead(shard.places[at].minute(), now);
        if held == 0 || held < minutes_ahead(until, now) {
            shard.places[at] = shard.places[at].used(until);
        }
        true
    }

    /// Notes that the record at this place carries its content.
    pub fn carries(&self, hash: u128, slot: Slot) {
        let mut shard = self.lock(shard_of(hash));
        if let Some(at) = shard.position(print_of::<Slot>(hash), slot) {
            shard.places[at] = shard.places[at].carrying(true);
        }
    }

    /// Takes a name away if it is still at this place, unless it is leased for no longer than so many minutes. Whether it is
    /// not leased so, and what was taken away.
    pub fn remove_unless_leased(&self, hash: u128, slot: Slot, now: u32, most: u32) -> (bool, Option<Slot>) {
        let mut shard = self.lock(shard_of(hash));
        match shard.position(print_of::<Slot>(hash), slot) {
            Some(at) if (1..=most).contains(&minutes_ahead(shard.places[at].minute(), now)) => (false, None),
            Some(at) => (true, Some(shard.remove(at))),
            None => (true, None),
        }
    }

    /// Moves a name if it is still at this place. It keeps its minute.
    pub fn move_to(&self, hash: u128, slot: Slot, segment: u32, at: u64) -> bool {
        let mut shard = self.lock(shard_of(hash));
        let Some(found) = shard.position(print_of::<Slot>(hash), slot) else { return false };
        shard.before_change();
        shard.places[found] = shard.places[found].moved(segment, at);
        true
    }

    /// The same for a record that has another length there.
    pub fn shift(&self, hash: u128, slot: Slot, (segment, at, length): (u32, u64, u64)) -> bool {
        let mut shard = self.lock(shard_of(hash));
        let Some(found) = shard.position(print_of::<Slot>(hash), slot) else { return false };
        shard.before_change();
        let before = shard.places[found];
        let after = Slot::new(segment, at, length, before.minute(), before.scope());
        shard.places[found] = after.with_print(before.print()).carrying(before.carries());
        true
    }
}

impl Table<Spot> {
    /// Moves a content if it is still at this place; how it was used is kept.
    pub fn shift(&self, hash: u128, spot: Spot, segment: u32, at: u64) -> bool {
        let mut shard = self.lock(shard_of(hash));
        let Some(found) = shard.position(print_of::<Spot>(hash), spot) else { return false };
        shard.before_change();
        shard.places[found] = shard.places[found].shifted(segment, at);
        true
    }

    /// Takes a content away if it is still there and was not linked to or used since. Whether it is gone.
    pub fn remove_unless_used(&self, hash: u128, spot: Spot) -> bool {
        let mut shard = self.lock(shard_of(hash));
        match shard.position(print_of::<Spot>(hash), spot) {
            Some(at) if shard.places[at] != spot => false,
            Some(at) => {
                shard.remove(at);
                true
            }
            None => true,
        }
    }

    /// Notes that a content is linked to, and was used so.
    pub fn use_link(&self, hash: u128, spot: Spot) {
        if spot.linked() && spot.used() {
            return;
        }
        let mut shard = self.lock(shard_of(hash));
        if let Some(at) = shard.position(print_of::<Spot>(hash), spot) {
            shard.places[at] = shard.places[at].through_a_link();
        }
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
