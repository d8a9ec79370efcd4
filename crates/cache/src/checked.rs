//! What was read and found whole a short while ago, by any thread. Small entries are sent again from memory, the others from the page
//! cache without copying them through this program: `sendfile`, as a server of static files does.
//!
//! For [`HOLDS`] after a check the bytes are taken to be what they were. What could change them meanwhile is a disk that
//! returns other bytes for a page that had left the page cache; most clients check what they read, and whatever is
//! checked again (each entry once in [`HOLDS`], and by the scrub) and does not hold is a miss from then on. Nothing in the
//! store is ever written over.
//!
//! It is in [`SHARDS`] parts with a lock each, which is held for as long as it takes to look at four places. Memory is bounded by
//! places and by [`MOST_BYTES`].

use crate::name::{NameHash, half};
use crate::store::Facts;
use crate::store::port::Placed;
use forgeyard_model::{Digest, Timestamp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a check holds.
pub(crate) const HOLDS: Duration = Duration::from_secs(300);
/// Below this size bytes are kept and copied: two more system calls cost more than the copy.
pub(crate) const LEAST: u64 = 8 << 10;
/// Parts.
const SHARDS: usize = 64;
/// How many entries, and pieces of large contents, a part remembers.
const MOST: usize = 512;
/// Bytes of small entries that a part keeps.
const MOST_BYTES: usize = 512 << 10;
/// Places in which an entry may be.
const GROUP: usize = 4;

/// An entry that was found whole.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    name: NameHash,
    at: Timestamp,
    pub(crate) facts: Facts,
    pub(crate) placed: Placed,
    /// Those of a small one.
    pub(crate) bytes: Option<Arc<[u8]>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Checked {
    shards: Box<[Mutex<Shard>]>,
}

/// Entries and pieces that were found whole. A newer piece takes the place of an older one by chance, a newer entry that of the oldest
/// of its group.
#[derive(Debug, Default)]
struct Shard {
    /// A part of the name of each entry, close together: most that are looked for are not here.
    tags: Vec<u64>,
    entries: Vec<Option<Whole>>,
    /// Bytes of small entries.
    kept: usize,
    pieces: Vec<Option<(u128, u64, Timestamp)>>,
}

fn holds(at: Timestamp, now: Timestamp) -> bool {
    at <= now && now.since(at) < HOLDS
}

/// Its half, and where a piece is: in all parts together.
fn place(digest: Digest, piece: u64) -> (u128, usize) {
    let half = half(digest.as_bytes());
    (half, (half as usize).wrapping_add(piece as usize) % (MOST * SHARDS))
}

/// Places of an entry, in its part.
fn group(name: NameHash) -> std::ops::Range<usize> {
    let first = name.0 as usize % (MOST / GROUP) * GROUP;
    first..first + GROUP
}

const fn tag_of(name: NameHash) -> u64 {
    (name.0 >> 64) as u64
}

impl Default for Checked {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Checked {
    /// The part of this number. Bits of a name that choose it choose no place in it.
    fn shard(&self, number: usize) -> Option<MutexGuard<'_, Shard>> {
        let shard = self.shards.get(number % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn shard_of(&self, name: NameHash) -> Option<MutexGuard<'_, Shard>> {
        self.shard((name.0 >> 32) as usize)
    }

    pub(crate) fn entry(&self, name: NameHash, now: Timestamp) -> Option<Whole> {
        let shard = self.shard_of(name)?;
        let group = group(name);
        let at = shard.tags.get(group.clone())?.iter().position(|tag| *tag == tag_of(name))?;
        let whole = shard.entries.get(group.start + at)?.as_ref()?;
        (whole.name == name && holds(whole.at, now)).then(|| whole.clone())
    }

    /// An entry with these bytes was found whole.
    pub(crate) fn keep_entry(
        &self,
        name: NameHash,
        facts: Facts,
        placed: Placed,
        bytes: &[u8],
        now: Timestamp,
    ) {
        let bytes: Option<Arc<[u8]>> = (facts.size < LEAST).then(|| bytes.into());
        if let Some(mut shard) = self.shard_of(name) {
            shard.keep_entry(Whole { name, at: now, facts, placed, bytes });
        }
    }

    pub(crate) fn piece(&self, digest: Digest, piece: u64, now: Timestamp) -> bool {
        let (half, at) = place(digest, piece);
        let kept = self.shard(at / MOST).and_then(|shard| shard.pieces.get(at % MOST).copied().flatten());
        kept.is_some_and(|(of, number, at)| of == half && number == piece && holds(at, now))
    }

    pub(crate) fn keep_piece(&self, digest: Digest, piece: u64, now: Timestamp) {
        let (half, at) = place(digest, piece);
        if let Some(mut shard) = self.shard(at / MOST) {
            shard.pieces.resize(MOST, None);
            shard.pieces[at % MOST] = Some((half, piece, now));
        }
    }
}

impl Shard {
    fn keep_entry(&mut self, whole: Whole) {
        let length = |whole: &Whole| whole.bytes.as_ref().map_or(0, |bytes| bytes.len());
        self.kept += length(&whole);
        if self.kept > MOST_BYTES {
            self.entries.clear();
            self.tags.clear();
            self.kept = length(&whole);
        }
        self.entries.resize(MOST, None);
        self.tags.resize(MOST, 0);
        let (tag, group) = (tag_of(whole.name), group(whole.name));
        let (tags, entries) = (&mut self.tags[group.clone()], &mut self.entries[group]);
        let until = tags.iter().position(|known| *known == tag).unwrap_or(GROUP - 1);
        tags[..=until].rotate_right(1);
        entries[..=until].rotate_right(1);
        tags[0] = tag;
        let before = entries[0].replace(whole);
        self.kept -= before.map_or(0, |before| length(&before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::log::{Config, LogStore};
    use crate::store::port::Stored;
    use crate::store::{Body, Policy, Provenance, Store as _};
    use std::sync::Arc;

    #[test]
    fn entry_is_known_for_five_minutes_beside_three_others_of_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let store =
            LogStore::open(Config::new(folder.path()), Arc::new(|| Timestamp::from_micros(1))).unwrap();
        let stored = crate::name::Name {
            scope: "a".parse().unwrap(),
            kind: crate::name::Kind::Keyed,
            key: "k".to_owned(),
        };
        store.put(&stored, Body::Inline(b"x"), Policy::Keep, &Provenance::default()).unwrap();
        let found = store.get_stored(stored.hash(), &mut Vec::new()).unwrap();
        let Some((found, Stored::Plain(placed))) = found else { panic!("it lies as it came") };
        let (checked, begin) = (Checked::default(), Timestamp::from_micros(1));
        let name = |number: u128| NameHash(number << 64 | 8);
        assert!(checked.entry(name(1), begin).is_none());
        let keep = |number, now| checked.keep_entry(name(number), found.facts, placed, b"x", now);
        (1..=4).for_each(|number| keep(number, begin));
        let known = |checked: &Checked, number, now| checked.entry(name(number), now).is_some();
        assert!((1..=4).all(|number| known(&checked, number, begin)));
        keep(1, begin.plus(HOLDS / 2));
        keep(5, begin);
        let kept = || checked.shards.iter().map(|shard| shard.lock().unwrap().kept);
        assert_eq!(kept().sum::<usize>(), 4);
        let bytes = checked.entry(name(1), begin.plus(HOLDS / 2)).unwrap().bytes;
        assert_eq!(bytes.as_deref(), Some(&b"x"[..]));
        assert!(
            known(&checked, 1, begin.plus(HOLDS)) && known(&checked, 5, begin) && !known(&checked, 2, begin)
        );
        assert!(!known(&checked, 3, begin.plus(HOLDS)) && !known(&checked, 1 << 32, begin));
        // there is an end to what is kept
        let (large, facts) = (vec![1; LEAST as usize - 1], Facts { size: LEAST - 1, ..found.facts });
        for number in 0..8000u128 {
            let name = NameHash(number << 64 | number << 32 | number);
            checked.keep_entry(name, facts, placed, &large, begin);
            assert!(checked.entry(name, begin).is_some());
            assert!(kept().all(|kept| kept <= MOST_BYTES));
        }
        for shard in &checked.shards {
            let shard = shard.lock().unwrap();
            let bytes = shard.entries.iter().flatten().filter_map(|whole| Some(whole.bytes.as_ref()?.len()));
            assert_eq!(bytes.sum::<usize>(), shard.kept);
        }
    }

    #[test]
    fn piece_is_known_for_five_minutes_by_its_digest_and_number() {
        let (checked, begin) = (Checked::default(), Timestamp::from_micros(1));
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        assert!(!checked.piece(one, 0, begin));
        // some shard of each
        (0..200).for_each(|number| checked.keep_piece(one, number * 977, begin));
        assert!((0..200).all(|number| checked.piece(one, number * 977, begin)));
        assert!(!checked.piece(one, 1, begin) && !checked.piece(other, 0, begin));
        assert!(!checked.piece(one, 0, begin.plus(HOLDS)));
    }
}
