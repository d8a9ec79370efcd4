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
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shards of a table. Both tables are split by the same bits.
pub const SHARDS: usize = 1024;

const fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Largest number of a segment.
pub const LAST_SEGMENT: u32 = mask(22);
/// Largest number of a scope.
pub const LAST_SCOPE: u32 = mask(18);
/// Largest number of a minute: they wrap after two years.
pub const LAST_MINUTE: u32 = mask(20);
/// Largest place of a record in a segment.
pub const LAST_PLACE: u64 = (mask(22) as u64) * 64;

/// Minutes between two minutes that wrap. A time that seems to lie ahead is now.
pub const fn minutes_since(then: u32, now: u32) -> u32 {
    let passed = now.wrapping_sub(then) & LAST_MINUTE;
    if passed > LAST_MINUTE / 2 { 0 } else { passed }
}

/// How far a minute lies ahead: so long a lease still holds. Nothing for one that has passed.
pub const fn minutes_ahead(until: u32, now: u32) -> u32 {
    let ahead = until.wrapping_sub(now) & LAST_MINUTE;
    if ahead > LAST_MINUTE / 2 { 0 } else { ahead }
}

/// What a table keeps.
pub trait Word: Copy + Default + PartialEq + std::fmt::Debug + Send {
    /// Bits of the print.
    const PRINT: u32;
    /// Bytes on disk.
    const BYTES: usize;
    /// Its print.
    fn print(self) -> u64;
    /// With this print.
    fn with_print(self, print: u64) -> Self;
    /// Whether both name the same record.
    fn same_place(self, other: Self) -> bool;
    /// Appends it as it is on disk.
    fn write(self, to: &mut Vec<u8>);
    /// From so many bytes; a free place when there are fewer.
    fn read(bytes: &[u8]) -> Self;
}

/// A name: where its record lies, how long it is, when it was last used, the number of its scope, and whether the record
/// carries the content. In five words, since eight bytes that have to lie at a multiple of eight would cost four more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot([u32; 5]);

impl Slot {
    const CARRIES: u32 = 1 << 31;

    /// Packs. `at` and `len` are multiples of 64.
    pub fn new(segment: u32, at: u64, len: u64, minute: u32, scope: u32) -> Self {
        let field = |value: u32, bits: u32, shift: u32| u128::from(value & mask(bits)) << shift;
        let (at, len) = ((at / 64) as u32, (len / 64) as u32);
        Self::default().with_packed(
            field(segment, 22, 0)
                | field(at, 22, 22)
                | field(len, 15, 44)
                | field(minute, 20, 59)
                | field(scope, 18, 79),
        )
    }

    /// The first four words.
    fn packed(self) -> u128 {
        let [a, b, c, d, _] = self.0.map(u128::from);
        a | b << 32 | c << 64 | d << 96
    }

    fn with_packed(self, packed: u128) -> Self {
        let word = |number: u32| (packed >> (32 * number)) as u32;
        Self([word(0), word(1), word(2), word(3), self.0[4]])
    }

    fn field(self, bits: u32, shift: u32) -> u32 {
        (self.packed() >> shift) as u32 & mask(bits)
    }

    /// Number of the segment.
    pub fn segment(self) -> u32 {
        self.field(22, 0)
    }

    /// Place in it.
    pub fn at(self) -> u64 {
        u64::from(self.field(22, 22)) * 64
    }

    /// Bytes of the record.
    #[expect(clippy::len_without_is_empty, reason = "a record is never empty")]
    pub fn len(self) -> u64 {
        u64::from(self.field(15, 44)) * 64
    }

    /// Minute of the last use.
    pub fn minute(self) -> u32 {
        self.field(20, 59)
    }

    /// Number of the scope.
    pub fn scope(self) -> u32 {
        self.field(18, 79)
    }

    /// Whether the record is known to carry its content. A link may lose what it stands for.
    pub const fn carries(self) -> bool {
        self.0[4] & Self::CARRIES != 0
    }

    /// The record carries its content, or it is not known.
    pub const fn carrying(mut self, carries: bool) -> Self {
        self.0[4] = self.0[4] & !Self::CARRIES | if carries { Self::CARRIES } else { 0 };
        self
    }

    /// At another place.
    pub fn moved(self, segment: u32, at: u64) -> Self {
        let moved = Self::new(segment, at, self.len(), self.minute(), self.scope());
        moved.with_print(self.print()).carrying(self.carries())
    }

    /// Used at this minute.
    pub fn used(self, minute: u32) -> Self {
        let kept = self.packed() & !(u128::from(LAST_MINUTE) << 59);
        self.with_packed(kept | u128::from(minute & LAST_MINUTE) << 59)
    }
}

impl Word for Slot {
    const PRINT: u32 = 62;
    const BYTES: usize = 20;

    fn print(self) -> u64 {
        u64::from(self.0[3] >> 1) | u64::from(self.0[4] & !Self::CARRIES) << 31
    }

    fn with_print(mut self, print: u64) -> Self {
        self.0[3] = self.0[3] & 1 | (print as u32) << 1;
        self.0[4] = self.0[4] & Self::CARRIES | (print >> 31) as u32 & !Self::CARRIES;
        self
    }

    fn same_place(self, other: Self) -> bool {
        let low = |slot: Self| u64::from(slot.0[0]) | u64::from(slot.0[1]) << 32;
        (low(self) ^ low(other)) & ((1 << 44) - 1) == 0
    }

    fn write(self, to: &mut Vec<u8>) {
        self.0.iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
    }

    fn read(bytes: &[u8]) -> Self {
        let mut slot = Self::default();
        if bytes.len() == Self::BYTES {
            for (word, bytes) in slot.0.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        slot
    }
}

/// A content that names can share: where the record lies that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spot(u64);

impl Spot {
    const LINKED: u64 = 1 << 44;
    const USED: u64 = 1 << 45;

    /// Packs. `at` is a multiple of 64.
    pub fn new(segment: u32, at: u64) -> Self {
        Self(u64::from(segment & mask(22)) | ((at / 64) & u64::from(mask(22))) << 22)
    }

    /// Number of the segment.
    pub const fn segment(self) -> u32 {
        self.0 as u32 & mask(22)
    }

    /// Place in it.
    pub const fn at(self) -> u64 {
        (self.0 >> 22 & mask(22) as u64) * 64
    }

    /// Another name links to it.
    pub const fn linked(self) -> bool {
        self.0 & Self::LINKED != 0
    }

    /// It was read or written through a link since it was last moved.
    pub const fn used(self) -> bool {
        self.0 & Self::USED != 0
    }

    /// At another place, not used there yet.
    pub fn moved(self, segment: u32, at: u64) -> Self {
        let linked = self.0 & Self::LINKED;
        Self(Self::new(segment, at).0 | linked).with_print(self.print())
    }

    const fn through_a_link(self) -> Self {
        Self(self.0 | Self::LINKED | Self::USED)
    }
}

impl Word for Spot {
    const PRINT: u32 = 18;
    const BYTES: usize = 8;

    fn print(self) -> u64 {
        self.0 >> 46
    }

    fn with_print(self, print: u64) -> Self {
        Self(self.0 & ((1 << 46) - 1) | print << 46)
    }

    fn same_place(self, other: Self) -> bool {
        (self.0 ^ other.0) & ((1 << 44) - 1) == 0
    }

    fn write(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.0.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        Self(bytes.try_into().map_or(0, u64::from_le_bytes))
    }
}

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
        let before = shard.places[found];
        let place = Spot::new(segment, at).with_print(before.print());
        shard.places[found] = Spot(place.0 | before.0 & (Spot::LINKED | Spot::USED));
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
