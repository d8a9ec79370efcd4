//! Which large contents are read again and again, and which only once: what is read once is not left in the page cache.
//!
//! bb-storage#121: a server slowed to a crawl because large contents that nobody would ask for again had pushed the small
//! ones, which everybody asks for, out of memory. So a large content that was not read within [`AGAIN`] minutes is sent and
//! then dropped from the page cache (`POSIX_FADV_DONTNEED`); one that is read again meanwhile stays. Pages that are not
//! written to disk yet are not dropped by the kernel, so what was just stored is still there for its first reader.
//!
//! Remembered by chance, in a table of fixed size: forgetting one costs a read from disk.

use forgeyard_model::Digest;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Contents from this size on are dropped.
pub(crate) const LEAST: u64 = 4 << 20;
/// Read again within so many minutes, a content is hot.
const AGAIN: u32 = 10;
const PLACES: usize = 4096;

/// Large contents that were read a short while ago.
#[derive(Debug)]
pub(crate) struct Recent(Box<[AtomicU64]>);

impl Default for Recent {
    fn default() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(PLACES).collect())
    }
}

impl Recent {
    /// Notes that a content is read at this minute; whether it was so a short while ago too.
    pub(crate) fn again(&self, digest: Digest, minute: u32) -> bool {
        let bytes = digest.as_bytes();
        let print = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let place = usize::from(u16::from_le_bytes([bytes[4], bytes[5]])) % PLACES;
        let before = self.0[place].swap(u64::from(print) << 32 | u64::from(minute), Relaxed);
        (before >> 32) as u32 == print
            && before != 0
            && super::index::minutes_since(before as u32, minute) < AGAIN
    }
}

/// Drops a part of a file from the page cache. It is advice: what the kernel makes of it harms nobody.
pub(crate) fn drop_behind(file: &File, part: &Range<u64>) {
    let (from, length) = (part.start as i64, part.end.saturating_sub(part.start) as i64);
    let _ = posix_fadvise(file, from, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_hot_when_it_is_read_again_soon() {
        let recent = Recent::default();
        let digest = Digest::of(b"a");
        assert!(!recent.again(digest, 100));
        assert!(recent.again(digest, 105));
        assert!(!recent.again(digest, 115));
        assert!(!recent.again(Digest::of(b"b"), 115));
    }
}
