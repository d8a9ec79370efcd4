//! Compression of a segment that grows no more: the look whether it is worth it, and the move of its entries to the end of the
//! log. What holds of both is told in `shrink`.

use super::StoreError;
use super::append::Segment;
use super::frames::{Encoder, SAMPLE, SHARE, packed, promising};
use super::index::{Slot, Spot, Word as _};
use super::log::{Shared, locked};
use super::record::{FRAMES, HEAD, LARGE, Record, SEGMENT_HEAD, TRIED, What};
use super::shrink::Pace;
use super::walk::walk_on;
use crate::name::half;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// Smaller bodies are left: a head and a table would eat what they save.
const LEAST: u64 = 1 << 10;

/// Whether a record carries a body of which it is not known whether it shrinks.
fn is_open(record: &Record<'_>) -> bool {
    record.what.carries() && record.flags & (FRAMES | TRIED) == 0 && record.size >= LEAST
}

/// About what compression would do to a segment.
struct Look {
    /// Bytes that it would save.
    saved: u64,
    /// Bytes of bodies that stay as they are because they are read.
    read: u64,
}

/// What came of a look at a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// It needs no other.
    Done,
    /// Little else than what is read is in it: it is looked at again when that may have changed.
    Read,
    /// It was told to stop.
    Later,
}

impl Shared {
    /// The slot and the spot that stand for a record.
    fn stands_for(&self, record: &Record<'_>, segment: u32, at: u64) -> (Option<Slot>, Option<Spot>) {
        let slot = match record.what {
            What::Drop | What::Content => None,
            _ => self.stands_at(record.name(), segment, at),
        };
        let place = Spot::new(segment, at);
        let mut spots = self.contents.find(half(record.digest.as_bytes()));
        let spot = spots.find(|spot| record.what.carries() && spot.same_place(place));
        (slot, spot)
    }

    pub(super) fn shrink_segment(
        &self,
        segment: &Segment,
        encoder: &mut Encoder,
        pace: &mut Pace<'_>,
    ) -> Result<Came, StoreError> {
        self.load_all();
        let size = segment.size.load(Relaxed);
        let Some(look) = self.would_save(segment, encoder, pace)? else { return Ok(Came::Later) };
        let saved = look.saved;
        // what a round before this moved out of it, and then stopped, comes back with it
        let live = u64::try_from(segment.live.load(Relaxed)).unwrap_or(0);
        let gain = if saved > 0 { saved + size.saturating_sub(live) } else { 0 };
        if gain.saturating_mul(SHARE) < size {
            // with a tier it is sent now, and then stays
            let again = look.read.saturating_mul(SHARE) >= size && self.beyond.is_none();
            return Ok(if again { Came::Read } else { Came::Done });
        }
        if self.disk_bytes() + size.saturating_sub(gain) > self.hard_limit() {
            // eviction has other worries now
            return Ok(Came::Done);
        }
        let number = segment.number;
        let (mut buffer, mut targets, mut stopped) = (Vec::new(), BTreeSet::new(), false);
        let walked = walk_on(segment, SEGMENT_HEAD, |at, record, length| {
            // not while this waits
            if !pace.go_on() {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            let mut keeping = locked(&self.keeping);
            while self.shrinking.held.load(Acquire) > 0 && !pace.stopped() {
                drop(keeping);
                std::thread::sleep(Duration::from_millis(5));
                keeping = locked(&self.keeping);
            }
            if self.segment(number).is_none() {
                // it was evicted meanwhile
                return Ok(ControlFlow::Break(()));
            }
            targets.extend(self.move_smaller(
                segment,
                (at, length),
                record,
                encoder,
                pace.at_once,
                &mut buffer,
            )?);
            Ok(ControlFlow::Continue(()))
        })?;
        if stopped {
            return Ok(Came::Later);
        }
        let _keeping = locked(&self.keeping);
        if self.segment(number).is_none() || walked.good < walked.end {
            return Ok(Came::Done);
        }
        for target in targets.into_iter().filter_map(|number| self.segment(number)) {
            target.file.sync_data().map_err(StoreError::io("syncing", &target.path))?;
        }
        let mut stands = false;
        self.names.each(|_, slot| stands |= slot.segment() == number);
        self.contents.each(|_, spot| stands |= spot.segment() == number);
        if stands {
            tracing::warn!(segment = number, "a segment was not emptied when it was compressed; it stays");
            return Ok(Came::Done);
        }
        self.retire(segment)?;
        Ok(Came::Done)
    }

    /// About what compression would do to a segment. Nothing when it was told to stop.
    fn would_save(
        &self,
        segment: &Segment,
        encoder: &mut Encoder,
        pace: &mut Pace<'_>,
    ) -> Result<Option<Look>, StoreError> {
        let (number, mut stopped, mut sample) = (segment.number, false, Vec::new());
        let mut look = Look { saved: 0, read: 0 };
        let walked = walk_on(segment, SEGMENT_HEAD, |at, record, _| {
            if !pace.go_on() {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            if !is_open(record) {
                return Ok(ControlFlow::Continue(()));
            }
            let texts = HEAD + record.scope.len() + record.key.len() + record.provenance.len();
            let body = at + texts as u64;
            self.read(number, body, 16, &mut sample)?;
            let stands = self.stands_for(record, number, at);
            if packed(&sample) || stands == (None, None) {
                return Ok(ControlFlow::Continue(()));
            }
            if !pace.at_once && self.is_read(record.digest, stands) {
                self.shrinking.read.fetch_add(1, Relaxed);
                look.read += record.size;
                return Ok(ControlFlow::Continue(()));
            }
            let some = record.size.min(SAMPLE as u64);
            self.read(number, body + (record.size - some) / 2, some, &mut sample)?;
            let permille = encoder.permille(&sample);
            if promising(permille) {
                look.saved += record.size * (1000 - permille.min(1000)) / 1000;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        // behind damage nothing is known, and the scrub says so
        let whole = walked.good >= walked.end;
        if !whole {
            look = Look { saved: 0, read: 0 };
        }
        Ok((!stopped).then_some(look))
    }

    /// Moves what stands for a record to the end of the log, compressed when it shrinks and nobody reads it. Answers with the
    /// segment.
    fn move_smaller(
        &self,
        segment: &Segment,
        (at, length): (u64, u64),
        head: &Record<'_>,
        encoder: &mut Encoder,
        at_once: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<u32>, StoreError> {
        let number = segment.number;
        let stands = self.stands_for(head, number, at);
        if stands == (None, None) {
            return Ok(None);
        }
        if self.read(number, at, length, buffer)?.is_none() {
            return Ok(None);
        }
        let content = half(head.digest.as_bytes());
        let Ok((mut record, _)) = Record::read(buffer) else {
            let (slot, spot) = self.stands_for(head, number, at);
            if let Some(slot) = slot {
                self.forget(head.name(), slot);
            }
            if let Some(spot) = spot {
                self.forget_content(content, spot);
            }
            return Ok(None);
        };
        let mut smaller = None;
        if is_open(&record) && (at_once || !self.is_read(record.digest, stands)) {
            smaller = self.smaller(record.payload, encoder)?;
            match &smaller {
                Some(_) => record.flags |= FRAMES,
                None => record.flags |= TRIED,
            }
        }
        if let Some(smaller) = &smaller {
            record.payload = smaller;
        }
        self.move_record(segment, at, head, record)
    }

    /// Writes what a record became to the end of the log, and moves what stands for it there. Answers with the segment. Eviction
    /// has to wait meanwhile.
    pub(super) fn move_record(
        &self,
        segment: &Segment,
        at: u64,
        head: &Record<'_>,
        mut record: Record<'_>,
    ) -> Result<Option<u32>, StoreError> {
        let (number, content) = (segment.number, half(head.digest.as_bytes()));
        let mut writer = locked(&self.writer);
        // it may have been taken away, or written anew
        let (slot, spot) = self.stands_for(head, number, at);
        if (slot, spot) == (None, None) {
            return Ok(None);
        }
        if slot.is_none() {
            record.what = What::Content;
        }
        let (to, place) = self.append(&mut writer, &record)?;
        if record.flags & LARGE != 0 {
            writer.active.large.fetch_add(record.size, Relaxed);
        }
        if let Some(slot) = slot
            && self.names.shift(record.name().0, slot, (to, place, record.len()))
        {
            segment.live.fetch_sub(slot.len() as i64, Relaxed);
            writer.active.live.fetch_add(record.len() as i64, Relaxed);
        }
        if let Some(spot) = spot {
            self.contents.shift(content, spot, to, place);
        }
        Ok(Some(to))
    }

    /// A body as frames, when that is worth it.
    fn smaller(&self, body: &[u8], encoder: &mut Encoder) -> Result<Option<Vec<u8>>, StoreError> {
        let middle = (body.len() - body.len().min(SAMPLE)) / 2;
        let sample = &body[middle..middle + body.len().min(SAMPLE)];
        let smaller = match packed(body) || !promising(encoder.permille(sample)) {
            true => None,
            false => encoder.whole(body).map_err(StoreError::io("compressing for", &self.config.folder))?,
        };
        match &smaller {
            Some(smaller) => self.shrinking.took(body.len() as u64, smaller.len() as u64),
            None => drop(self.shrinking.left.fetch_add(1, Relaxed)),
        }
        Ok(smaller)
    }

    /// A body that was found whole but does not decode: the next write of it stores it again.
    pub(super) fn undecodable(&self, name: crate::name::NameHash) {
        tracing::error!("a compressed entry does not decode; it is a miss now");
        let Ok(Some((slot, digest))) = self.find(name, |record| record.digest) else { return };
        self.forget(name, slot);
        for spot in self.contents.find(half(digest.as_bytes())) {
            if let Ok(Some(true)) = self.head(spot.segment(), spot.at(), |record| record.digest == digest) {
                self.forget_content(half(digest.as_bytes()), spot);
            }
        }
    }
}
