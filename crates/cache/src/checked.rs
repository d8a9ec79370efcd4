//! What a thread read and found whole a short while ago, so that it can send the same bytes again from the page cache
//! without copying them through itself: `sendfile`, as a server of static files does.
//!
//! For [`HOLDS`] after a check the bytes are taken to be what they were. What could change them meanwhile is a disk that
//! returns other bytes for a page that had left the page cache; most clients check what they read, and whatever is
//! checked again (each entry once in [`HOLDS`], and by the scrub) and does not hold is a miss from then on. Nothing in the
//! store is ever written over.

use crate::name::{NameHash, half};
use crate::store::Facts;
use crate::store::port::Placed;
use forgeyard_model::{Digest, Timestamp};
use std::time::Duration;

/// How long a check holds.
pub(crate) const HOLDS: Duration = Duration::from_secs(300);
/// Below this size bytes are copied: two more system calls cost more than the copy.
pub(crate) const LEAST: u64 = 8 << 10;
/// How many entries, and pieces of large contents, a thread remembers.
const MOST: usize = 8 << 10;
/// Places in which an entry may be.
const GROUP: usize = 4;

/// An entry that was found whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    name: NameHash,
    at: Timestamp,
    pub(crate) facts: Facts,
    pub(crate) placed: Placed,
}

/// Entries and pieces that were found whole. A newer piece takes the place of an older one by chance, a newer entry that of the oldest
/// of its group.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    entries: Vec<Option<Whole>>,
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

impl Checked {
    pub(crate) fn entry(&self, name: NameHash, now: Timestamp) -> Option<Whole> {
        let group = self.entries.get(group(name))?;
        group.iter().flatten().find(|whole| whole.name == name && holds(whole.at, now)).copied()
    }

    pub(crate) fn keep_entry(&mut self, name: NameHash, facts: Facts, placed: Placed, now: Timestamp) {
        self.entries.resize(MOST, None);
        let group = &mut self.entries[group(name)];
        let same = group.iter().position(|whole| whole.is_some_and(|whole| whole.name == name));
        group[..=same.unwrap_or(GROUP - 1)].rotate_right(1);
        group[0] = Some(Whole { name, at: now, facts, placed });
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
