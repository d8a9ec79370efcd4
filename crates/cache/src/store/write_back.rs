//! What is compressed and read as it is again and again is written back: plain, at the end of the log, or as the file that it was.
//!
//! Decoding costs about a quarter of what compressing did, so a content that was decoded [`OFTEN`] times within a third of the time
//! for which reads are remembered (`plain_reads`) costs less when it is plain, and being read keeps it so. It is written back only
//! where there is room: nothing is driven out for it. A crash finds the old form, or both, or the new one, as it does when something
//! is compressed: the last record counts, a file is replaced by one rename. The old record of an entry stays where it is, dead,
//! until its segment goes.
//!
//! Counted by chance, in a table of fixed size: what is forgotten there is decoded some times more.

use super::StoreError;
use super::frames;
use super::large::Large;
use super::log::{Shared, locked};
use super::record::{FRAMES, Record};
use super::shrink::Pace;
use crate::name::half;
use forgeyard_model::Digest;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;

/// Decoded so often, writing it back costs less.
pub(super) const OFTEN: u64 = 5;
const PLACES: usize = 1 << 14;
/// Bits of a place that count.
const COUNT: u64 = 0xffff;
/// So many wait to be written back; the others come again.
const MOST: usize = 1024;

/// How often contents were decoded lately.
#[derive(Debug)]
pub(super) struct Decoded {
    counts: Box<[AtomicU64]>,
    often: Mutex<Vec<Digest>>,
}

impl Default for Decoded {
    fn default() -> Self {
        let counts = std::iter::repeat_with(AtomicU64::default).take(PLACES).collect();
        Self { counts, often: Mutex::default() }
    }
}

impl Decoded {
    fn note(&self, digest: Digest) {
        let half = half(digest.as_bytes());
        let (place, print) = (&self.counts[half as usize % PLACES], (half >> 64) as u64 & !COUNT);
        let before = place.load(Relaxed);
        let times = if before & !COUNT == print { (before & COUNT) + 1 } else { 1 };
        place.store(print | times.min(COUNT), Relaxed);
        if times == OFTEN {
            let mut often = locked(&self.often);
            if often.len() < MOST {
                often.push(digest);
            }
        }
    }

    /// Counts anew.
    pub(super) fn turn(&self) {
        self.counts.iter().for_each(|place| place.store(0, Relaxed));
    }
}

impl Shared {
    /// A content that is compressed is read as it is.
    pub(super) fn note_decoded(&self, digest: Digest) {
        if self.config.compression.on && self.config.compression.after_minutes > 0 {
            self.shrinking.decoded.note(digest);
        }
    }

    /// Writes back what was decoded often.
    pub(super) fn write_back_all(&self, pace: &mut Pace<'_>) -> Result<(), StoreError> {
        let often = std::mem::take(&mut *locked(&self.shrinking.decoded.often));
        for digest in often {
            if !pace.go_on() {
                break;
            }
            let large = locked(&self.large).contains_key(&digest);
            let written = match large {
                true => self.write_back_large(digest, pace)?,
                false => self.write_back(digest, pace)?,
            };
            self.shrinking.restored.fetch_add(u64::from(written), Relaxed);
        }
        Ok(())
    }

    fn has_room(&self, size: u64) -> bool {
        self.disk_bytes() + size <= self.config.capacity
    }

    /// The record of a content, plain. Whether it was written.
    fn write_back(&self, digest: Digest, pace: &Pace<'_>) -> Result<bool, StoreError> {
        self.load_all();
        // as when a segment is compressed: not while somebody reads the whole log, and no eviction moves it meanwhile
        let mut keeping = locked(&self.keeping);
        while self.shrinking.held.load(Acquire) > 0 {
            drop(keeping);
            if pace.stopped() {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
            keeping = locked(&self.keeping);
        }
        let Some(spot) = self.has_content(digest)? else { return Ok(false) };
        let size = self.head(spot.segment(), spot.at(), |record| record.size)?.unwrap_or(0);
        let mut buffer = Vec::new();
        let Some((spot, ..)) = self.content(digest, size, &mut buffer)? else { return Ok(false) };
        let Some(segment) = self.segment(spot.segment()) else { return Ok(false) };
        let Ok((mut record, _)) = Record::read(&buffer) else { return Ok(false) };
        if record.flags & FRAMES == 0 || !self.has_room(record.size) {
            return Ok(false);
        }
        let Some(content) = frames::content(&record) else { return Ok(false) };
        let head = record.clone();
        record.payload = &content;
        record.flags &= !FRAMES;
        Ok(self.move_record(&segment, spot.at(), &head, record)?.is_some())
    }

    /// The file of a large content, plain. Whether it took the place of the other.
    fn write_back_large(&self, digest: Digest, pace: &mut Pace<'_>) -> Result<bool, StoreError> {
        let path = self.large_path(digest);
        let Ok(large) = Large::open(&path) else { return Ok(false) };
        let compressed = large.frames().is_some() && large.digest == digest;
        if !compressed || !self.has_room(large.size) {
            return Ok(false);
        }
        let (mut spool, mut piece) = (self.new_spool()?, Vec::new());
        for number in 0..large.pieces() {
            if !pace.go_on() || large.piece(number, &mut piece).is_err() {
                return Ok(false);
            }
            spool.write(&piece)?;
        }
        let plain = spool.finish(true)?;
        if plain.digest != digest {
            return Ok(false);
        }
        let _writer = locked(&self.writer);
        let named = locked(&self.large);
        if !named.contains_key(&digest) || !path.exists() {
            return Ok(false);
        }
        plain.place(&path)?;
        self.shrinking.forget(digest);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_is_decoded_often_is_told_once() {
        let decoded = Decoded::default();
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        (0..20).for_each(|_| decoded.note(a));
        (0..OFTEN - 1).for_each(|_| decoded.note(b));
        assert_eq!(*locked(&decoded.often), [a]);
        decoded.turn();
        (0..OFTEN - 1).for_each(|_| decoded.note(b));
        assert_eq!(*locked(&decoded.often), [a], "not within one span");
    }
}
