//! Compression at rest, in the background: what shrinks is rewritten as frames (`frames`), what does not is left and remembered.
//!
//! **Nothing is compressed on the way of a put.** A segment that grows no more is looked at once: heads alone say what is
//! compressed already, a few KiB of each other body say how far it shrinks. When an eighth of the segment would be saved, its
//! entries move to the end of the log, compressed or marked as tried, as they move in an eviction; when nothing stands in the
//! segment any more and the copies are synced, it is removed. Otherwise it stays as it is. Large contents are in `shrink_large`.
//!
//! - **A crash** at any moment finds the old record, or both, or the new one: the last record of a name counts, and the old
//!   segment goes only when the new ones are on disk.
//! - **Readers** look into the index again when what it said is gone, as with eviction; who has the old segment open, has it.
//! - **Leases, minutes of use and links** stay with the names: a move changes place and length of a slot and nothing else.
//! - **Quotas** count the size of contents, compressed or not: what somebody may keep does not depend on when a round was.
//!   Room on disk is counted as it is taken.
//! - **The time** that it takes is a share of one core: after each slice it pauses for as long as the share asks.
//!
//! ```text
//! shrunk   a line for each segment: number, bytes of the file, 1 when it was looked at, bytes that its records save
//! ```
//!
//! That file may be missing or old: then segments are looked at again, which costs time and nothing else.

use super::StoreError;
use super::append::Segment;
use super::frames::{Encoder, SAMPLE, SHARE, packed, promising};
use super::index::{Slot, Spot, Word as _};
use super::log::{LogStore, Shared, locked};
use super::record::{FRAMES, HEAD, LARGE, Record, SEGMENT_HEAD, TRIED, What};
use super::walk::walk_on;
use crate::name::half;
use forgeyard_model::Digest;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// Smaller bodies are left: a head and a table would eat what they save.
const LEAST: u64 = 1 << 10;
/// So long it works before it pauses.
const SLICE: Duration = Duration::from_millis(10);
/// Between two looks at large contents; what is new in one is compressed in the next.
const LARGE_EVERY: Duration = Duration::from_secs(30);

/// What becomes of bodies that shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    /// Whether anything is compressed. What is so already is read in any case.
    pub on: bool,
    /// Level of Zstandard.
    pub level: i32,
    /// Most time that it takes, in hundredths of one core.
    pub percent: u32,
}

impl Default for Compression {
    fn default() -> Self {
        Self { on: true, level: 3, percent: 25 }
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
    before: u64,
    /// What these save is known.
    counted: AtomicBool,
    looked: AtomicBool,
    saved: AtomicI64,
}

impl Shrunk {
    pub(super) const fn new(before: u64) -> Self {
        let (counted, looked) = (AtomicBool::new(before <= SEGMENT_HEAD), AtomicBool::new(false));
        Self { before, counted, looked, saved: AtomicI64::new(0) }
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
    saved_large: AtomicI64,
    pub(super) bodies: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) left: AtomicU64,
    busy_micros: AtomicU64,
    counted: AtomicBool,
    looked_at_large: Mutex<Option<Instant>>,
    /// So many read the whole log and must meet each entry: nothing moves meanwhile.
    held: AtomicU32,
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
    /// There at the last look.
    pub(super) seen: HashSet<Digest>,
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

    fn took(&self, content: u64, stored: u64) {
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

    fn stopped(&self) -> bool {
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

    /// The same without pauses, and with large contents that have just come.
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
            busy_millis: shrinking.busy_micros.load(Relaxed) / 1000,
        }
    }
}

/// What came of a look at a segment.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// It needs no other.
    Done,
    /// It was told to stop.
    Later,
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

    /// Bytes that compression saves, as far as they were counted.
    pub(super) fn saved_bytes(&self) -> u64 {
        let all = self.all_segments();
        let log: i64 = all.iter().map(|segment| segment.shrunk.saved.load(Relaxed)).sum();
        u64::try_from(log).unwrap_or(0) + self.shrinking.saved_large()
    }

    /// Reads what an earlier process knew of the segments.
    pub(super) fn recall_shrunk(&self) {
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

    fn shrink(&self, percent: u32, at_once: bool, stop: &dyn Fn() -> bool) -> Result<(), StoreError> {
        let _turn = locked(&self.shrinking.turn);
        let stop = || stop() || self.closing.load(Relaxed);
        let mut pace = Pace { shrinking: &self.shrinking, percent, began: Instant::now(), stop: &stop };
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
        let level = self.config.compression.level;
        let mut encoder =
            Encoder::new(level).map_err(StoreError::io("making a compressor for", &self.config.folder))?;
        let mut all = self.all_segments();
        all.pop();
        for segment in all.into_iter().filter(|segment| !self.looked_at(segment)) {
            let came = self.shrink_segment(&segment, &mut encoder, &mut pace);
            if matches!(came, Ok(Came::Later)) {
                break;
            }
            // one that failed stays as it is until the next start: it has to be sent to the tier too
            segment.shrunk.looked.store(true, Release);
            came?;
            self.note_shrunk()?;
        }
        let mut last = locked(&self.shrinking.looked_at_large);
        if at_once || last.is_none_or(|last| last.elapsed() > LARGE_EVERY) {
            *last = Some(Instant::now());
            self.shrink_large_ones(at_once, &mut encoder, &mut pace)?;
        }
        Ok(())
    }

    /// What segments save that an earlier process left without saying. Whether it came to the end.
    fn count_saved(&self, pace: &mut Pace<'_>) -> Result<bool, StoreError> {
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

    fn shrink_segment(
        &self,
        segment: &Segment,
        encoder: &mut Encoder,
        pace: &mut Pace<'_>,
    ) -> Result<Came, StoreError> {
        self.load_all();
        let size = segment.size.load(Relaxed);
        let Some(saved) = self.would_save(segment, encoder, pace)? else { return Ok(Came::Later) };
        // what a round before this moved out of it, and then stopped, comes back with it
        let live = u64::try_from(segment.live.load(Relaxed)).unwrap_or(0);
        let gain = if saved > 0 { saved + size.saturating_sub(live) } else { 0 };
        if gain.saturating_mul(SHARE) < size {
            return Ok(Came::Done);
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
            targets.extend(self.move_smaller(segment, (at, length), record, encoder, &mut buffer)?);
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

    /// About how many bytes of a segment compression would save. Nothing when it was told to stop.
    fn would_save(
        &self,
        segment: &Segment,
        encoder: &mut Encoder,
        pace: &mut Pace<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let (number, mut saved, mut stopped, mut sample) = (segment.number, 0, false, Vec::new());
        let walked = walk_on(segment, SEGMENT_HEAD, |at, record, _| {
            if !pace.go_on() {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            if !record.what.carries() || record.flags & (FRAMES | TRIED) != 0 || record.size < LEAST {
                return Ok(ControlFlow::Continue(()));
            }
            let texts = HEAD + record.scope.len() + record.key.len() + record.provenance.len();
            let body = at + texts as u64;
            self.read(number, body, 16, &mut sample)?;
            if packed(&sample) || self.stands_for(record, number, at) == (None, None) {
                return Ok(ControlFlow::Continue(()));
            }
            let some = record.size.min(SAMPLE as u64);
            self.read(number, body + (record.size - some) / 2, some, &mut sample)?;
            let permille = encoder.permille(&sample);
            if promising(permille) {
                saved += record.size * (1000 - permille.min(1000)) / 1000;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        // behind damage nothing is known, and the scrub says so
        let whole = walked.good >= walked.end;
        Ok((!stopped).then_some(if whole { saved } else { 0 }))
    }

    /// Moves what stands for a record to the end of the log, compressed when it shrinks. Answers with the segment.
    fn move_smaller(
        &self,
        segment: &Segment,
        (at, length): (u64, u64),
        head: &Record<'_>,
        encoder: &mut Encoder,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<u32>, StoreError> {
        let number = segment.number;
        if self.stands_for(head, number, at) == (None, None) {
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
        if record.what.carries() && record.flags & (FRAMES | TRIED) == 0 && record.size >= LEAST {
            smaller = self.smaller(record.payload, encoder)?;
            match &smaller {
                Some(_) => record.flags |= FRAMES,
                None => record.flags |= TRIED,
            }
        }
        if let Some(smaller) = &smaller {
            record.payload = smaller;
        }
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
