//! Which contents were read as they are, lately: these are not compressed, since each such read would have to decode them.
//!
//! The index keeps when an entry was last used, but not how. A client that asked for Zstandard is served the better the sooner a
//! content is compressed, and a promise that it is here is no read at all. So reads of the plain form are noted here, by digest,
//! in [`SPANS`] tables of bits, one for each third of the time that is configured. The oldest one is emptied to be the next: a
//! read is remembered for that time, and for at most a third longer.
//!
//! It is a filter of Bloom with both bits of a content in one word, so a read costs one look at memory. Of a hundred thousand
//! contents that are read in a span, one in some hundreds of others seems to be read too; of a million, one in seven. Such a one
//! stays plain for longer, if it was used at all lately, and nothing else happens.
//!
//! ```text
//! plain.reads   "FYREADS1", minutes of a span u32, minute since when all is noted u32, minute when the span began u32,
//!               number of the span u32, the tables (4 times 65536 words u64), CRC-32 of all before; little-endian
//! ```
//!
//! The file is written with the snapshot of the index. When it is missing, or one of another span, nobody knows what was read
//! how, and what was used lately counts as read.

use super::index::{LAST_MINUTE, minutes_since};
use super::log::locked;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Tables of bits.
pub(super) const SPANS: usize = 4;
/// Words of each: half a MiB.
const WORDS: usize = 1 << 16;
const MAGIC: &[u8; 8] = b"FYREADS1";
const HEAD: usize = 24;

/// See the module.
#[derive(Debug)]
pub(super) struct PlainReads {
    /// Minutes of a span; nothing is noted when it is 0.
    span: u32,
    tables: Vec<Box<[AtomicU64]>>,
    now: AtomicUsize,
    times: Mutex<Times>,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    /// Since this minute every read is noted.
    since: u32,
    /// The span began at this minute.
    began: u32,
}

fn table() -> Box<[AtomicU64]> {
    std::iter::repeat_with(AtomicU64::default).take(WORDS).collect()
}

fn place(content: u64) -> (usize, u64) {
    let bit = |shift: u32| 1u64 << (content >> shift & 63);
    (content as usize % WORDS, bit(16) | bit(22))
}

impl PlainReads {
    /// Remembers for so many minutes; from this minute on.
    pub(super) fn new(minutes: u32, minute: u32) -> Self {
        let span = minutes.div_ceil(SPANS as u32 - 1);
        let tables = if span == 0 { Vec::new() } else { (0..SPANS).map(|_| table()).collect() };
        let times = Mutex::new(Times { since: minute, began: minute });
        Self { span, tables, now: AtomicUsize::new(0), times }
    }

    /// Minutes after which a read is forgotten for sure.
    pub(super) const fn longest(&self) -> u32 {
        self.span.saturating_mul(SPANS as u32)
    }

    /// A content, by half of its digest, is read as it is.
    pub(super) fn note(&self, content: u64) {
        let Some(table) = self.tables.get(self.now.load(Relaxed)) else { return };
        let (word, bits) = place(content);
        if table[word].load(Relaxed) & bits != bits {
            table[word].fetch_or(bits, Relaxed);
        }
    }

    /// Whether it was read so, lately.
    pub(super) fn was_read(&self, content: u64) -> bool {
        let (word, bits) = place(content);
        self.tables.iter().any(|table| table[word].load(Relaxed) & bits == bits)
    }

    /// Whether all that was read lately is known.
    pub(super) fn knows(&self, minute: u32) -> bool {
        self.span == 0 || minutes_since(locked(&self.times).since, minute) >= self.span * (SPANS as u32 - 1)
    }

    /// Begins the next span when it is time to. Whether it did.
    pub(super) fn turn(&self, minute: u32) -> bool {
        let mut times = locked(&self.times);
        let due = minutes_since(times.began, minute).checked_div(self.span).unwrap_or(0);
        for _ in 0..due.min(SPANS as u32) {
            let next = (self.now.load(Relaxed) + 1) % SPANS;
            self.tables[next].iter().for_each(|word| word.store(0, Relaxed));
            self.now.store(next, Relaxed);
        }
        if due > 0 {
            times.began = times.began.wrapping_add(due * self.span) & LAST_MINUTE;
            // minutes wrap
            if minutes_since(times.since, minute) > self.longest() {
                times.since = minute.wrapping_sub(self.longest()) & LAST_MINUTE;
            }
        }
        due > 0
    }

    /// What the file says; nothing when nothing is noted.
    pub(super) fn image(&self) -> Option<Vec<u8>> {
        if self.tables.is_empty() {
            return None;
        }
        let mut bytes = MAGIC.to_vec();
        let times = locked(&self.times);
        for number in [self.span, times.since, times.began, self.now.load(Relaxed) as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        drop(times);
        for word in self.tables.iter().flatten() {
            bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    /// Takes over what a file says, if it holds and is one of these spans. Whether it is. Never panics.
    pub(super) fn take_over(&self, bytes: &[u8]) -> bool {
        let number =
            |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
        let words = SPANS * WORDS * 8;
        if self.span == 0 || bytes.len() != HEAD + words + 4 || !bytes.starts_with(MAGIC) {
            return false;
        }
        let (said, _) = bytes.split_at(HEAD + words);
        let (Some(span), Some(since), Some(began), Some(now), Some(crc)) =
            (number(8), number(12), number(16), number(20), number(HEAD + words))
        else {
            return false;
        };
        if crc32fast::hash(said) != crc || span != self.span || now as usize >= SPANS {
            return false;
        }
        for (word, bytes) in self.tables.iter().flatten().zip(said[HEAD..].chunks_exact(8)) {
            word.store(bytes.try_into().map_or(0, u64::from_le_bytes), Relaxed);
        }
        self.now.store(now as usize, Relaxed);
        *locked(&self.times) = Times { since: since & LAST_MINUTE, began: began & LAST_MINUTE };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: u64 = 0x1234_5678_9abc_def0;

    #[test]
    fn read_is_remembered_for_the_time_that_is_wanted_and_a_third_more_at_most() {
        for at in 0..30 {
            let reads = PlainReads::new(30, 0);
            reads.turn(at);
            reads.note(A);
            for minute in at..at + 30 {
                reads.turn(minute);
                assert!(reads.was_read(A), "read at {at}, asked at {minute}");
            }
            reads.turn(at + 40);
            assert!(!reads.was_read(A), "read at {at}");
        }
        assert_eq!(PlainReads::new(30, 0).longest(), 40);
    }

    #[test]
    fn what_was_read_is_known_after_a_restart_and_once_the_time_has_passed() {
        let reads = PlainReads::new(30, 100);
        reads.note(A);
        assert!(!reads.knows(129) && reads.knows(130));
        let image = reads.image().unwrap();
        let again = PlainReads::new(30, 120);
        assert!(again.take_over(&image));
        assert!(again.was_read(A) && !again.was_read(!A) && again.knows(130));
        // it was down for long
        again.turn(1000);
        assert!(!again.was_read(A));
        let other = PlainReads::new(60, 120);
        assert!(!other.take_over(&image) && !other.was_read(A), "spans of another length");
    }

    #[test]
    fn what_is_known_stays_known_though_minutes_wrap() {
        let reads = PlainReads::new(30_000, 0);
        for step in 3..220 {
            let minute = (step * 10_000) & LAST_MINUTE;
            reads.turn(minute);
            assert!(reads.knows(minute), "{minute}");
        }
    }

    #[test]
    fn nothing_is_noted_when_nothing_waits() {
        let reads = PlainReads::new(0, 7);
        reads.note(A);
        reads.turn(1000);
        assert!(!reads.was_read(A) && reads.knows(7) && reads.image().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn any_bytes_are_noted_reads_or_refused(bytes: Vec<u8>, at: usize, bit in 0u8..8) {
            let reads = PlainReads::new(30, 0);
            prop_assert!(!reads.take_over(&bytes));
            let mut image = reads.image().unwrap();
            prop_assert!(reads.take_over(&image));
            let at = at % image.len();
            image[at] ^= 1 << bit;
            prop_assert!(!reads.take_over(&image));
        }
    }
}
