//! What a thread read and found whole a short while ago. Small entries are sent again from its memory, the others from the page
//! cache without copying them through itself: `sendfile`, as a server of static files does.
//!
//! For [`HOLDS`] after a check the bytes are taken to be what they were. What could change them meanwhile is a disk that
//! returns other bytes for a page that had left the page cache; most clients check what they read, and whatever is
//! checked again (each entry once in [`HOLDS`], and by the scrub) and does not hold is a miss from then on. Nothing in the
//! store is ever written over.
//!
//! Each thread remembers its own. One memory for all of them, behind 64 locks, was tried: a GET of 1 KiB cost 10.0 µs in place of 9.0,
//! since lock, entry and reference count travel between cores, and larger ones cost the same (medians of eight runs, of four above 16 KiB).
//! That load reads each entry over one connection, so by one thread, and could show the cost of sharing better than its gain.

use crate::name::{NameHash, half};
use crate::store::Facts;
use crate::store::port::Placed;
use forgeyard_model::{Digest, Timestamp};
use std::rc::Rc;
use std::time::Duration;

/// How long a check holds.
pub(crate) const HOLDS: Duration = Duration::from_secs(300);
/// Below this size bytes are kept and copied: two more system calls cost more than the copy.
pub(crate) const LEAST: u64 = 8 << 10;
/// How many entries, and pieces of large contents, a thread remembers.
const MOST: usize = 8 << 10;
/// Bytes of small entries that a thread keeps.
const MOST_BYTES: usize = 16 << 20;
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
    pub(crate) bytes: Option<Rc<[u8]>>,
}

/// Entries and pieces that were found whole. A newer piece takes the place of an older one by chance, a newer entry that of the oldest
/// of its group.
#[derive(Debug, Default)]
pub(crate) struct Checked {
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

fn place(digest: Digest, piece: u64) -> (u128, usize) {
    let half = half(digest.as_bytes());
    (half, (half as usize).wrapping_add(piece as usize) % MOST)
}

/// Places of an entry.
fn group(name: NameHash) -> std::ops::Range<usize> {
    let first = name.0 as usize % (MOST / GROUP) * GROUP;
    first..first + GROUP
}

const fn tag_of(name: NameHash) -> u64 {
    (name.0 >> 64) as u64
}

impl Checked {
    pub(crate) fn entry(&self, name: NameHash, now: Timestamp) -> Option<Whole> {
        let group = group(name);
        let at = self.tags.get(group.clone())?.iter().position(|tag| *tag == tag_of(name))?;
        let whole = self.entries.get(group.start + at)?.as_ref()?;
        (whole.name == name && holds(whole.at, now)).then(|| whole.clone())
    }

    /// An entry with these bytes was found whole.
    pub(crate) fn keep_entry(
        &mut self,
        name: NameHash,
        facts: Facts,
        placed: Placed,
        bytes: &[u8],
        now: Timestamp,
    ) {
        let bytes: Option<Rc<[u8]>> = (facts.size < LEAST).then(|| bytes.into());
        let length = |bytes: &Option<Rc<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        self.kept += length(&bytes);
        if self.kept > MOST_BYTES {
            self.entries.clear();
            self.tags.clear();
            self.kept = length(&bytes);
        }
        self.entries.resize(MOST, None);
        self.tags.resize(MOST, 0);
        let (tags, entries) = (&mut self.tags[group(name)], &mut self.entries[group(name)]);
        let until = tags.iter().position(|tag| *tag == tag_of(name)).unwrap_or(GROUP - 1);
        tags[..=until].rotate_right(1);
        entries[..=until].rotate_right(1);
        tags[0] = tag_of(name);
        let before = entries[0].replace(Whole { name, at: now, facts, placed, bytes });
        self.kept -= before.map_or(0, |before| length(&before.bytes));
    }

    pub(crate) fn piece(&self, digest: Digest, piece: u64, now: Timestamp) -> bool {
        let (half, at) = place(digest, piece);
        let kept = self.pieces.get(at).copied().flatten();
        kept.is_some_and(|(of, number, at)| of == half && number == piece && holds(at, now))
    }

    pub(crate) fn keep_piece(&mut self, digest: Digest, piece: u64, now: Timestamp) {
        self.pieces.resize(MOST, None);
        let (half, at) = place(digest, piece);
        self.pieces[at] = Some((half, piece, now));
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
        let (mut checked, begin) = (Checked::default(), Timestamp::from_micros(1));
        let name = |number: u128| NameHash(number << 64 | 8);
        assert!(checked.entry(name(1), begin).is_none());
        let keep = |checked: &mut Checked, number, now| {
            checked.keep_entry(name(number), found.facts, placed, b"x", now);
        };
        (1..=4).for_each(|number| keep(&mut checked, number, begin));
        let known = |checked: &Checked, number, now| checked.entry(name(number), now).is_some();
        assert!((1..=4).all(|number| known(&checked, number, begin)));
        keep(&mut checked, 1, begin.plus(HOLDS / 2));
        keep(&mut checked, 5, begin);
        assert_eq!(checked.kept, 4);
        let bytes = checked.entry(name(1), begin.plus(HOLDS / 2)).unwrap().bytes;
        assert_eq!(bytes.as_deref(), Some(&b"x"[..]));
        assert!(
            known(&checked, 1, begin.plus(HOLDS)) && known(&checked, 5, begin) && !known(&checked, 2, begin)
        );
        assert!(!known(&checked, 3, begin.plus(HOLDS)) && !known(&checked, 1 << 32, begin));
        // there is an end to what is kept
        let (large, facts) = (vec![1; LEAST as usize - 1], Facts { size: LEAST - 1, ..found.facts });
        for number in 0..4000u128 {
            let name = NameHash(number << 64 | number);
            checked.keep_entry(name, facts, placed, &large, begin);
            assert!(checked.kept <= MOST_BYTES && checked.entry(name, begin).is_some());
        }
        let kept: usize =
            checked.entries.iter().flatten().filter_map(|whole| Some(whole.bytes.as_ref()?.len())).sum();
        assert_eq!(kept, checked.kept);
    }
}
