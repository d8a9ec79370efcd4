//! Compression at rest, in the background: what shrinks is rewritten as frames (`frames`), what does not is left and remembered.
//!
//! **Nothing is compressed on the way of a put.** A segment that grows no more, and was not written to for the time that is
//! configured, is looked at: heads alone say what is compressed already, a few KiB of each other body say how far it shrinks.
//! When an eighth of the segment would be saved, its entries move to the end of the log (`shrink_segment`), compressed or marked
//! as tried, as they move in an eviction; when nothing stands in the segment any more and the copies are synced, it is removed.
//! Otherwise it stays as it is. Large contents are in `shrink_large`.
//!
//! - **What is read stays plain**: a content that somebody read as it is within that time (`plain_reads`) is not compressed. It
//!   moves as it is, or, when there is little else in its segment, the segment is looked at again after that time.
//!   One that is compressed and read all the same is written back (`write_back`).
//! - **A crash** at any moment finds the old record, or both, or the new one: the last record of a name counts, and the old
//!   segment goes only when the new ones are on disk.
//! - **Readers** look into the index again when what it said is gone, as with eviction; who has the old segment open, has it.
//! - **Leases, minutes of use and links** stay with the names: a move changes place and length of a slot and nothing else.
//! - **Quotas** count the size of contents, compressed or not: what somebody may keep does not depend on when a round was.
//!   Room on disk is counted as it is taken.
//! - **The time** that it takes is a share of one core: after each slice it pauses for as long as the share asks.
//! - **A small log**, of less than [`FEW`] segments, ends a segment that began before that time, so that it is not left
//!   out because it never fills one.
//! - **With a tier** a segment is looked at as soon as it grows no more, since it is sent as it is then, and once.

use super::StoreError;
use super::append::Segment;
use super::frames::Encoder;
use super::index::{Slot, Spot, minutes_ahead, minutes_since};
use super::log::{LogStore, Shared, locked};
use super::record::{FRAMES, Record, SEGMENT_HEAD};
use super::shrink_segment::Came;
use super::write_back::Decoded;
use super::{LEASE_MINUTES, NAR_MINUTES};
use crate::name::half;
use forgeyard_model::Digest;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// So long it works before it pauses.
const SLICE: Duration = Duration::from_millis(10);
/// Between two looks at large contents, at most; what is new in one is compressed in the next, when nothing else waits.
const LARGE_EVERY: Duration = Duration::from_secs(30);
/// A log of fewer segments is a small one.
const FEW: usize = 8;
/// Its segments end early only when they hold one part in so many of what they could.
const WORTH_ENDING: u64 = 64;
/// There was no look yet.
const NEVER: u32 = u32::MAX;

/// What becomes of bodies that shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    /// Whether anything is compressed. What is so already is read in any case.
    pub on: bool,
    /// Level of Zstandard.
    pub level: i32,
    /// Most time that it takes, in hundredths of one core.
    pub percent: u32,
    /// What was written or read within so many minutes stays as it is.
    pub after_minutes: u32,
}

impl Default for Compression {
    fn default() -> Self {
        Self { on: true, level: 3, percent: 25, after_minutes: 24 * 60 }
    }
}

/// What was compressed since the start, and what that saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ShrinkStat {
    /// Whether anything is compressed.
    pub on: bool,
    /// Bodies that were compressed.
    pub bodies: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Bytes of what became of them.
    pub bytes_out: u64,
    /// Bodies that were tried, or are compressed by their looks, and stayed as they are.
    pub left: u64,
    /// Bodies in the log that a look at their segment left as they are because they are read.
    #[serde(default)]
    pub read: u64,
    /// Bodies that are plain again because they are read again and again.
    #[serde(default)]
    pub restored: u64,
    /// Time that it took, without pauses.
    pub busy_millis: u64,
}

impl ShrinkStat {
    /// The text that Prometheus reads.
    pub fn prometheus(&self) -> String {
        let families = [
            ("bodies_total", "Bodies that were compressed at rest", self.bodies),
            ("bytes_in_total", "Bytes of bodies before they were compressed at rest", self.bytes_in),
            ("bytes_out_total", "Bytes of bodies after they were compressed at rest", self.bytes_out),
            ("left_total", "Bodies that were tried and stayed as they are", self.left),
            ("read_total", "Bodies that a look at their segment left plain because they are read", self.read),
            ("restored_total", "Bodies that are plain again because they are read", self.restored),
            ("busy_milliseconds_total", "Time that compressing at rest took", self.busy_millis),
        ];
        let line = |(name, help, value): (&str, &str, u64)| {
            let name = format!("forgeyard_cache_shrink_{name}");
            format!("# HELP {name} {help}.\n# TYPE {name} counter\n{name} {value}\n")
        };
        families.into_iter().map(line).collect()
    }
}

/// Of one segment: whether it was looked at, and what its records save.
#[derive(Debug)]
pub(super) struct Shrunk {
    /// Bytes that were there when it was opened.
    pub(super) before: u64,
    /// What these save is known.
    pub(super) counted: AtomicBool,
    /// It needs no look any more.
    pub(super) looked: AtomicBool,
    /// Minute of a look that found much that is read.
    pub(super) seen: AtomicU32,
    pub(super) saved: AtomicI64,
}

impl Shrunk {
    pub(super) const fn new(before: u64) -> Self {
        let (counted, looked) = (AtomicBool::new(before <= SEGMENT_HEAD), AtomicBool::new(false));
        Self { before, counted, looked, seen: AtomicU32::new(NEVER), saved: AtomicI64::new(0) }
    }

    /// Whether it was written to, or looked at in vain, within so many minutes.
    fn waits(&self, written: u32, minutes: u32, now: u32) -> bool {
        let within = |then: u32| minutes_since(then, now) < minutes;
        let seen = self.seen.load(Relaxed);
        within(written) || (seen != NEVER && within(seen))
    }

    /// Counts a record that was written.
    pub(super) fn count(&self, record: &Record<'_>) {
        if record.flags & FRAMES != 0 {
            self.saved.fetch_add(record.size as i64 - record.payload.len() as i64, Relaxed);
        }
    }
}

/// What is known of large contents, and figures.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    pub(super) large: Mutex<LargeOnes>,
    pub(super) decoded: Decoded,
    saved_large: AtomicI64,
    pub(super) bodies: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) left: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) restored: AtomicU64,
    busy_micros: AtomicU64,
    counted: AtomicBool,
    /// When it last looked at large contents, and at which minute.
    looked_at_large: Mutex<Option<(Instant, u32)>>,
    /// So many read the whole log and must meet each entry: nothing moves meanwhile.
    pub(super) held: AtomicU32,
    /// One at a time.
    turn: Mutex<()>,
}

/// Large contents that need no look.
#[derive(Debug, Default)]
pub(super) struct LargeOnes {
    /// Compressed, and what that saves.
    pub(super) framed: HashMap<Digest, u64>,
    /// Tried in vain.
    pub(super) plain: HashSet<Digest>,
    /// There at the last look, and since which minute.
    pub(super) seen: HashMap<Digest, u32>,
}

impl Shrinking {
    pub(super) fn saved_large(&self) -> u64 {
        u64::try_from(self.saved_large.load(Relaxed)).unwrap_or(0)
    }

    /// The file of a large content goes.
    pub(super) fn forget(&self, digest: Digest) {
        if let Some(saved) = locked(&self.large).framed.remove(&digest) {
            self.saved_large.fetch_sub(saved as i64, Relaxed);
        }
    }

    /// The file of a large content is compressed.
    pub(super) fn keep(&self, digest: Digest, saved: u64) {
        let before = locked(&self.large).framed.insert(digest, saved).unwrap_or(0);
        self.saved_large.fetch_add(saved as i64 - before as i64, Relaxed);
    }

    pub(super) fn took(&self, content: u64, stored: u64) {
        self.bodies.fetch_add(1, Relaxed);
        self.bytes_in.fetch_add(content, Relaxed);
        self.bytes_out.fetch_add(stored, Relaxed);
    }
}

/// As long as it is there, nothing is moved to be compressed.
pub(super) struct Held<'a>(&'a AtomicU32);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

/// Works and pauses.
pub(super) struct Pace<'a> {
    shrinking: &'a Shrinking,
    percent: u32,
    /// Nothing waits, whoever reads it.
    pub(super) at_once: bool,
    began: Instant,
    stop: &'a dyn Fn() -> bool,
}

impl Pace<'_> {
    /// Pauses when it is time to. Whether to go on.
    pub(super) fn go_on(&mut self) -> bool {
        let busy = self.began.elapsed();
        if busy >= SLICE {
            self.note(busy);
            let percent = self.percent.clamp(1, 100);
            let until = Instant::now() + busy * (100 - percent) / percent;
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            {
                if (self.stop)() {
                    return false;
                }
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
            self.began = Instant::now();
        }
        !(self.stop)()
    }

    pub(super) fn stopped(&self) -> bool {
        (self.stop)()
    }

    fn note(&self, busy: Duration) {
        self.shrinking.busy_micros.fetch_add(busy.as_micros() as u64, Relaxed);
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        self.note(self.began.elapsed());
    }
}

impl LogStore {
    /// Compresses what there is to compress, at the pace of the configuration, until that is done or it is told to stop.
    pub fn shrink(&self, stop: &dyn Fn() -> bool) -> Result<(), StoreError> {
        self.shared.shrink(self.shared.config.compression.percent, false, stop)
    }

    /// The same without pauses, and with all that has just come, whether it is read or not.
    pub fn shrink_all(&self) -> Result<(), StoreError> {
        self.shared.shrink(100, true, &|| false)
    }

    /// What was compressed.
    pub fn shrunk(&self) -> ShrinkStat {
        let shrinking = &self.shared.shrinking;
        ShrinkStat {
            on: self.shared.config.compression.on,
            bodies: shrinking.bodies.load(Relaxed),
            bytes_in: shrinking.bytes_in.load(Relaxed),
            bytes_out: shrinking.bytes_out.load(Relaxed),
            left: shrinking.left.load(Relaxed),
            read: shrinking.read.load(Relaxed),
            restored: shrinking.restored.load(Relaxed),
            busy_millis: shrinking.busy_micros.load(Relaxed) / 1000,
        }
    }
}

impl Shared {
    /// Whether a segment that grows no more is as it will stay.
    pub(super) fn looked_at(&self, segment: &Segment) -> bool {
        !self.config.compression.on || segment.shrunk.looked.load(Acquire) || self.is_sent(segment.number)
    }

    /// Keeps entries where they are while somebody reads the whole log.
    pub(super) fn hold(&self) -> Held<'_> {
        self.shrinking.held.fetch_add(1, AcqRel);
        // a move that began before ends first
        drop(locked(&self.keeping));
        Held(&self.shrinking.held)
    }

    fn is_sent(&self, number: u32) -> bool {
        self.beyond.as_ref().is_some_and(|beyond| beyond.is_sent(number))
    }

    /// Begins another span of reads when it is time to. A round may take hours.
    fn turn_reads(&self) {
        if self.plain_reads.turn(self.minute()) {
            self.shrinking.decoded.turn();
        }
    }

    /// Whether it is time to look at a segment that grows no more.
    fn due(&self, segment: &Segment) -> bool {
        let minutes = self.config.compression.after_minutes;
        self.beyond.is_some() || !segment.shrunk.waits(segment.written.load(Relaxed), minutes, self.minute())
    }

    /// Whether somebody reads a content as it is: then it stays so.
    pub(super) fn is_read(&self, digest: Digest, (slot, spot): (Option<Slot>, Option<Spot>)) -> bool {
        let minute = self.minute();
        // a lease says when it ends, not when it was given
        let idle = |slot: Slot| match minutes_ahead(slot.minute(), minute) {
            0 => minutes_since(slot.minute(), minute),
            ahead if ahead > LEASE_MINUTES => NAR_MINUTES.saturating_sub(ahead),
            _ => 0,
        };
        let used = slot.is_some_and(|slot| idle(slot) < self.plain_reads.longest())
            || spot.is_some_and(|spot| spot.linked() && spot.used());
        // a tier gets what there is now, so what is not known counts for nothing
        let unknown = || self.beyond.is_none() && !self.plain_reads.knows(minute);
        used && (self.plain_reads.was_read(half(digest.as_bytes()) as u64) || unknown())
    }

    /// Ends the segment that grows when the log is small and it began long ago.
    fn end_old_segment(&self) -> Result<(), StoreError> {
        let minutes = self.config.compression.after_minutes;
        if minutes == 0 || self.beyond.is_some() {
            return Ok(());
        }
        let all = self.all_segments();
        let Some(last) = all.last().filter(|_| all.len() < FEW) else { return Ok(()) };
        if last.size.load(Acquire) < self.config.segment / WORTH_ENDING {
            return Ok(());
        }
        let began = self.head(last.number, SEGMENT_HEAD, |record| Self::minute_at(record.stored_at))?;
        if began.is_some_and(|began| minutes_since(began, self.minute()) >= minutes) {
            self.seal(0)?;
        }
        Ok(())
    }

    fn shrink(&self, percent: u32, at_once: bool, stop: &dyn Fn() -> bool) -> Result<(), StoreError> {
        let _turn = locked(&self.shrinking.turn);
        let stop = || stop() || self.closing.load(Relaxed);
        let mut pace =
            Pace { shrinking: &self.shrinking, percent, at_once, began: Instant::now(), stop: &stop };
        if !self.shrinking.counted.load(Relaxed) {
            self.load_all();
            if !self.count_saved(&mut pace)? || !self.count_large(&mut pace)? {
                return Ok(());
            }
            self.shrinking.counted.store(true, Relaxed);
        }
        if !self.config.compression.on {
            return Ok(());
        }
        self.turn_reads();
        let large = {
            let mut last = locked(&self.shrinking.looked_at_large);
            let minute = self.minute();
            let long_ago = |(then, at): (Instant, u32)| then.elapsed() > LARGE_EVERY || at != minute;
            let due = at_once || last.is_none_or(long_ago);
            if due {
                *last = Some((Instant::now(), minute));
                self.end_old_segment()?;
            }
            due
        };
        let level = self.config.compression.level;
        let mut encoder =
            Encoder::new(level).map_err(StoreError::io("making a compressor for", &self.config.folder))?;
        let mut all = self.all_segments();
        all.pop();
        for segment in all.into_iter().filter(|one| !self.looked_at(one) && (at_once || self.due(one))) {
            self.turn_reads();
            if !at_once {
                self.write_back_all(&mut pace)?;
            }
            let came = self.shrink_segment(&segment, &mut encoder, &mut pace);
            match came {
                Ok(Came::Later) => return Ok(()),
                Ok(Came::Read) => segment.shrunk.seen.store(self.minute(), Relaxed),
                // one that failed stays as it is until the next start: it has to be sent to the tier too
                Ok(Came::Done) | Err(_) => segment.shrunk.looked.store(true, Release),
            }
            came?;
            self.note_shrunk()?;
        }
        if !at_once {
            self.write_back_all(&mut pace)?;
        }
        if large {
            self.shrink_large_ones(&mut encoder, &mut pace)?;
        }
        Ok(())
    }
}
