//! Reading everything again, a little at a time, to find what a disk lost before somebody asks for it.
//!
//! A pass goes through the segments by number and then through the large contents by digest. Each content is checked
//! against its SHA-256, each link against the content that it stands for. What does not hold loses its name, is counted and
//! logged, and is a miss from then on; the next write of it stores it again. Where a pass stands is kept in `scrub.pos`,
//! so that restarts do not make it begin again: `segment place digest`, one line, in plain numbers and hex.

use super::StoreError;
use super::frames;
use super::index::Word as _;
use super::large::Large;
use super::log::{Shared, locked};
use super::record::{LARGE, Record, SEGMENT_HEAD, What};
use super::walk::walk_on;
use crate::name::half;
use forgeyard_model::Digest;
use sha2::{Digest as _, Sha256};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

/// Where a pass stands: behind all segments when there is a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    segment: u32,
    at: u64,
    large: Option<Digest>,
}

impl Cursor {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (segment, at) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let large = words.next().and_then(|digest| Digest::from_hex(digest).ok());
        Some(Self { segment, at, large })
    }

    fn text(self) -> String {
        let large = self.large.map_or_else(|| "-".to_owned(), |digest| digest.hex());
        format!("{} {} {large}\n", self.segment, self.at)
    }
}

#[derive(Debug, Default)]
struct Tally {
    read: u64,
    damaged: u64,
    bytes: u64,
}

impl Shared {
    /// A whole pass, as fast as it goes.
    pub(super) fn scrub_all(&self) -> Result<(u64, u64), StoreError> {
        let mut tally = Tally::default();
        let mut cursor = Cursor::default();
        while self.step(&mut cursor, u64::MAX, &mut tally)? {}
        Ok((tally.read, tally.damaged))
    }

    /// About so many bytes of the pass that is under way.
    pub(super) fn scrub_some(&self, bytes: u64) -> Result<(), StoreError> {
        let path = self.config.folder.join("scrub.pos");
        let mut place = locked(&self.scrubbing);
        let kept = || fs_err::read_to_string(&path).ok().and_then(|text| Cursor::read(&text));
        let mut cursor = (*place).or_else(kept).unwrap_or_default();
        let mut tally = Tally::default();
        while tally.bytes < bytes && self.step(&mut cursor, bytes, &mut tally)? {}
        self.scrubbed.fetch_add(tally.bytes, Relaxed);
        if tally.bytes < bytes {
            // the end of the pass
            cursor = Cursor::default();
        }
        if tally.damaged > 0 {
            tracing::error!(damaged = tally.damaged, "reading entries again found damage");
        }
        *place = Some(cursor);
        fs_err::write(&path, cursor.text()).map_err(StoreError::io("writing", &path))
    }

    /// Reads on, at most to the end of a segment or of a large content; answers with whether there is more.
    fn step(&self, cursor: &mut Cursor, most: u64, tally: &mut Tally) -> Result<bool, StoreError> {
        self.load_all();
        if let Some(large) = cursor.large {
            return self.step_large(cursor, large, tally);
        }
        let segments = self.all_segments();
        let Some(segment) = segments.iter().find(|segment| segment.number >= cursor.segment) else {
            cursor.large = Some(Digest::from_bytes([0; 32]));
            return Ok(true);
        };
        let number = segment.number;
        let from = if number == cursor.segment { cursor.at.max(SEGMENT_HEAD) } else { SEGMENT_HEAD };
        let (begin, mut reached) = (tally.bytes, None);
        let mut buffer = Vec::new();
        let walked = walk_on(segment, from, |at, record, length| {
            if tally.bytes - begin >= most {
                reached = Some(at);
                return Ok(ControlFlow::Break(()));
            }
            tally.bytes += length;
            self.look_again(number, at, record, length, &mut buffer, tally)?;
            Ok(ControlFlow::Continue(()))
        })?;
        *cursor = match reached {
            Some(at) => Cursor { segment: number, at, large: None },
            None => {
                self.forget_behind(segment, walked);
                Cursor { segment: number + 1, at: 0, large: None }
            }
        };
        Ok(true)
    }

    fn look_again(
        &self,
        segment: u32,
        at: u64,
        record: &Record<'_>,
        length: u64,
        buffer: &mut Vec<u8>,
        tally: &mut Tally,
    ) -> Result<(), StoreError> {
        let name = record.name();
        let slot = match record.what {
            What::Drop | What::Content => None,
            _ => self.stands_at(name, segment, at),
        };
        let content = half(record.digest.as_bytes());
        let place = super::index::Spot::new(segment, at);
        let spot = self.contents.find(content).find(|spot| record.what.carries() && spot.same_place(place));
        if slot.is_none() && spot.is_none() {
            return Ok(());
        }
        // a content that nothing names any more is looked at, but is no entry
        tally.read += u64::from(slot.is_some());
        let good = match record.what {
            What::Link if record.flags & LARGE != 0 => self.large_path(record.digest).exists(),
            What::Link => self.has_content(record.digest)?.is_some(),
            _ => {
                let whole = self.read(segment, at, length, buffer)?.map(|()| Record::read(buffer));
                let right = |whole: &Record<'_>| {
                    frames::content(whole).is_some_and(|content| whole.sum.of(&content) == whole.digest)
                };
                matches!(whole, Some(Ok((whole, _))) if right(&whole))
            }
        };
        let went = match record.what {
            What::Link if record.flags & LARGE != 0 => self.went_before(record.digest),
            what => what == What::Link,
        };
        if !good && went {
            // its content was evicted; written down, or each start would find the name again
            let mut writer = locked(&self.writer);
            if self.stands_at(name, segment, at).is_some() {
                self.drop_name(&mut writer, record.scope, record.kind, record.key)?;
            }
            return Ok(());
        }
        if !good {
            // what was moved while it was looked at is whole where it lies now
            let mut writer = locked(&self.writer);
            let spot = spot.filter(|spot| self.contents.find(content).any(|there| there.same_place(*spot)));
            let slot = slot.and_then(|_| self.stands_at(name, segment, at));
            tally.damaged += u64::from(slot.is_some() || spot.is_some());
            if let Some(spot) = spot {
                self.forget_content(content, spot);
            }
            // written down, or the next start would find the name again
            if slot.is_some() && self.drop_name(&mut writer, record.scope, record.kind, record.key)? {
                self.damaged.fetch_add(1, Relaxed);
                tracing::warn!(segment, at, scope = record.scope, "an entry is damaged; it is a miss now");
            }
        }
        Ok(())
    }

    fn step_large(&self, cursor: &mut Cursor, after: Digest, tally: &mut Tally) -> Result<bool, StoreError> {
        let next = {
            let large = locked(&self.large);
            large.keys().filter(|digest| **digest > after).min().copied()
        };
        let Some(digest) = next else { return Ok(false) };
        cursor.large = Some(digest);
        let (mut piece, mut sha) = (Vec::new(), Sha256::new());
        // one that was removed meanwhile is no damage
        let Ok(large) = Large::open(&self.large_path(digest)) else {
            let named = locked(&self.large).contains_key(&digest) && !self.went_before(digest);
            tally.damaged += u64::from(named);
            if named {
                self.give_up(digest);
            }
            return Ok(true);
        };
        tally.bytes += large.size;
        let cold = large.size >= super::cold::LEAST && !self.recent.again(digest, self.minute());
        let pieces = (0..large.pieces()).all(|number| {
            let good = large.piece(number, &mut piece).is_ok();
            sha.update(&piece);
            good
        });
        if cold {
            super::cold::drop_behind(large.file(), &large.lies(&(0..large.size)));
        }
        if !pieces || Digest::from_bytes(sha.finalize().into()) != digest {
            tally.damaged += 1;
            self.give_up(digest);
        }
        Ok(true)
    }

    /// Takes the file away. Its names become misses when somebody asks for them, and the next write brings the file back.
    fn give_up(&self, digest: Digest) {
        self.damaged.fetch_add(1, Relaxed);
        tracing::warn!("the large content {} is damaged; it is a miss now", digest.hex());
        self.discard(digest);
    }
}
