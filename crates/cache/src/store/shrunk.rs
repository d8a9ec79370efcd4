//! What is known of the segments: which ones were looked at, and what compression saves in each. Kept over a restart.
//!
//! ```text
//! shrunk   a line for each segment: number, bytes of the file, 1 when it needs no look, bytes that its records save
//! ```
//!
//! That file may be missing or old: then segments are looked at again, which costs time and nothing else.

use super::StoreError;
use super::log::{Shared, locked};
use super::record::{FRAMES, HEAD, SEGMENT_HEAD};
use super::shrink::Pace;
use super::walk::walk_on;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Relaxed, Release};

impl Shared {
    /// Bytes that compression saves, as far as they were counted.
    pub(super) fn saved_bytes(&self) -> u64 {
        let all = self.all_segments();
        let log: i64 = all.iter().map(|segment| segment.shrunk.saved.load(Relaxed)).sum();
        u64::try_from(log).unwrap_or(0) + self.shrinking.saved_large()
    }

    /// Reads what an earlier process knew of the segments, and who reads what.
    pub(super) fn recall_shrunk(&self) {
        if let Ok(bytes) = fs_err::read(self.config.folder.join("plain.reads")) {
            self.plain_reads.take_over(&bytes);
            self.plain_reads.turn(self.minute());
        }
        let text = fs_err::read_to_string(self.config.folder.join("shrunk")).unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
            let mut word = || words.next().flatten();
            let (Some(number), Some(size), Some(looked), Some(saved)) = (word(), word(), word(), word())
            else {
                continue;
            };
            let segment = u32::try_from(number).ok().and_then(|number| self.segment(number));
            let Some(segment) = segment.filter(|segment| segment.shrunk.before == size) else { continue };
            segment.shrunk.saved.store(saved as i64, Relaxed);
            segment.shrunk.counted.store(true, Relaxed);
            segment.shrunk.looked.store(looked == 1, Release);
        }
    }

    /// Writes down who reads what.
    pub(super) fn note_reads(&self) -> Result<(), StoreError> {
        let path = self.config.folder.join("plain.reads");
        let beside = path.with_extension("new");
        let Some(image) = self.plain_reads.image() else { return Ok(()) };
        fs_err::write(&beside, image).map_err(StoreError::io("writing", &beside))?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))
    }

    /// Writes what is known of the segments.
    pub(super) fn note_shrunk(&self) -> Result<(), StoreError> {
        let mut text = String::new();
        {
            // of the one that grows, size and saving belong together
            let _writer = locked(&self.writer);
            for segment in self.all_segments() {
                let shrunk = &segment.shrunk;
                if shrunk.counted.load(Relaxed) {
                    let (size, saved) = (segment.size.load(Relaxed), shrunk.saved.load(Relaxed));
                    let looked = u8::from(shrunk.looked.load(Relaxed));
                    text += &format!("{} {size} {looked} {saved}\n", segment.number);
                }
            }
        }
        let path = self.config.folder.join("shrunk");
        let beside = path.with_extension("new");
        fs_err::write(&beside, text).map_err(StoreError::io("writing", &beside))?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))
    }

    /// What segments save that an earlier process left without saying. Whether it came to the end.
    pub(super) fn count_saved(&self, pace: &mut Pace<'_>) -> Result<bool, StoreError> {
        for segment in self.all_segments() {
            let shrunk = &segment.shrunk;
            if shrunk.counted.load(Relaxed) {
                continue;
            }
            let (mut saved, mut end) = (0, false);
            walk_on(&segment, SEGMENT_HEAD, |at, record, length| {
                if at >= shrunk.before || !pace.go_on() {
                    end = at < shrunk.before;
                    return Ok(ControlFlow::Break(()));
                }
                if record.flags & FRAMES != 0 {
                    // but for what aligns it
                    let texts =
                        (HEAD + record.scope.len() + record.key.len() + record.provenance.len()) as u64;
                    saved += record.size as i64 - length.saturating_sub(texts) as i64;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if end {
                return Ok(false);
            }
            shrunk.saved.fetch_add(saved, Relaxed);
            shrunk.counted.store(true, Relaxed);
        }
        Ok(true)
    }
}
