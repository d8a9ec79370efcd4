//! Whether an archive is whole, as far as that can be told without unpacking it.
//!
//! Restoring a cut-off archive succeeds in part and breaks the build that uses it (actions/cache#757), so a whole one is
//! asked for when it is stored. A zstd file is a row of frames, each with blocks that say how long they are and which is
//! the last: walking over them costs one read and no memory. A ZIP ends with a record that says where its directory is.
//! Whatever does not begin like either is taken as it is: some clients keep other things than archives.

const ZSTD: u32 = 0xfd2f_b528;

/// Whether bytes begin like a zstd file.
pub fn is_zstd(bytes: &[u8]) -> bool {
    bytes.starts_with(&ZSTD.to_le_bytes())
}

/// Whether bytes begin like a ZIP.
pub fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Magic,
    SkippableSize,
    Descriptor,
    Block,
}

/// Walks over a zstd file that comes in pieces.
#[derive(Debug)]
pub struct Frames {
    next: Next,
    skip: u64,
    kept: Vec<u8>,
    checksum: bool,
    wrong: bool,
    frames: u64,
}

impl Default for Frames {
    fn default() -> Self {
        Self { next: Next::Magic, skip: 0, kept: Vec::new(), checksum: false, wrong: false, frames: 0 }
    }
}

impl Frames {
    /// Takes the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.wrong {
            if self.skip > 0 {
                let some = self.skip.min(bytes.len() as u64) as usize;
                self.skip -= some as u64;
                bytes = &bytes[some..];
                continue;
            }
            let wanted = match self.next {
                Next::Magic | Next::SkippableSize => 4,
                Next::Descriptor => 1,
                Next::Block => 3,
            };
            let some = (wanted - self.kept.len()).min(bytes.len());
            self.kept.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.kept.len() == wanted {
                let mut value = [0; 4];
                value[..wanted].copy_from_slice(&self.kept);
                self.kept.clear();
                self.step(u32::from_le_bytes(value));
            }
        }
    }

    fn step(&mut self, value: u32) {
        match self.next {
            Next::Magic if value == ZSTD => self.next = Next::Descriptor,
            Next::Magic if value & 0xffff_fff0 == 0x184d_2a50 => self.next = Next::SkippableSize,
            Next::Magic => self.wrong = true,
            Next::SkippableSize => {
                self.skip = u64::from(value);
                self.frames += 1;
                self.next = Next::Magic;
            }
            Next::Descriptor => {
                let single = value & 0x20 != 0;
                self.checksum = value & 4 != 0;
                let dictionary = [0, 1, 2, 4][(value & 3) as usize];
                let size = [u64::from(single), 2, 4, 8][(value >> 6 & 3) as usize];
                self.skip = u64::from(!single) + dictionary + size;
                self.wrong = value & 8 != 0;
                self.next = Next::Block;
            }
            Next::Block => {
                let (last, kind, size) = (value & 1 != 0, value >> 1 & 3, u64::from(value >> 3));
                self.skip = if kind == 1 { 1 } else { size };
                self.wrong = kind == 3;
                if last {
                    self.skip += if self.checksum { 4 } else { 0 };
                    self.frames += 1;
                    self.next = Next::Magic;
                }
            }
        }
    }

    /// Whether what was taken is a whole file.
    pub fn whole(&self) -> bool {
        !self.wrong && self.skip == 0 && self.kept.is_empty() && self.next == Next::Magic && self.frames > 0
    }
}

/// Longest end of a ZIP that is looked at: its last record with the longest comment.
pub const ZIP_TAIL: u64 = 22 + 65_535;

/// Whether a ZIP of this size that ends so has its end. `tail` holds the last [`ZIP_TAIL`] bytes, or all.
pub fn zip_ends(tail: &[u8], size: u64) -> bool {
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(tail.get(at..at.checked_add(bytes)?)?);
        Some(u64::from_le_bytes(value))
    };
    tail.windows(4).enumerate().rev().filter(|(_, window)| *window == b"PK\x05\x06").any(|(at, _)| {
        let whole = || -> Option<bool> {
            let comment = number(at + 20, 2)? as usize;
            let (length, from) = (number(at + 12, 4)?, number(at + 16, 4)?);
            let here = size.checked_sub(tail.len() as u64)? + at as u64;
            // 0xffffffff: the numbers are in the record before this one
            let large = length == 0xffff_ffff || from == 0xffff_ffff;
            Some(at + 22 + comment == tail.len() && (large || from.checked_add(length)? <= here))
        };
        whole() == Some(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walk(bytes: &[u8], cut: usize) -> bool {
        let mut frames = Frames::default();
        for some in bytes.chunks(cut.max(1)) {
            frames.feed(some);
        }
        frames.whole()
    }

    /// A frame by the format's description: one raw block, one repeated, without a checksum.
    fn frame(content: &[u8]) -> Vec<u8> {
        let header =
            |last: u32, kind: u32, size: u32| (last | kind << 1 | size << 3).to_le_bytes()[..3].to_vec();
        [
            &ZSTD.to_le_bytes()[..],
            &[0x00, 0x58],
            &header(0, 0, content.len() as u32),
            content,
            &header(1, 1, 1000),
            b"x",
        ]
        .concat()
    }

    #[test]
    fn cut_off_frames_are_told_from_whole_ones() {
        let whole = [frame(b"some content"), frame(b""), [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 1].to_vec()]
            .concat();
        assert!(walk(&whole, 1) && walk(&whole, 7) && walk(&whole, 1000));
        let first = frame(b"some content").len();
        let second = first + frame(b"").len();
        for cut in 1..whole.len() {
            assert_eq!(walk(&whole[..cut], 5), cut == first || cut == second, "{cut}");
        }
        assert!(!walk(&[&whole[..], b"rubbish"].concat(), 3));
    }

    #[test]
    fn cut_off_zip_is_told_from_a_whole_one() {
        let end = [b"PK\x05\x06".as_slice(), &[0; 8], &[0; 4], &[0; 4], &[0; 2]].concat();
        let whole = [b"PK\x03\x04".as_slice(), &end].concat();
        assert!(zip_ends(&whole, whole.len() as u64));
        assert!(!zip_ends(&whole[..whole.len() - 1], whole.len() as u64 - 1));
        assert!(!zip_ends(b"", 0));
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_a_panic(bytes: Vec<u8>, cut in 1usize..9) {
            let with_magic = [&ZSTD.to_le_bytes()[..], &bytes].concat();
            prop_assert_eq!(walk(&with_magic, cut), walk(&with_magic, 1000));
            let _ = zip_ends(&bytes, bytes.len() as u64);
        }

        #[test]
        fn cut_of_a_frame_is_never_whole(content: Vec<u8>, cut: prop::sample::Index) {
            let bytes = frame(&content);
            prop_assert!(walk(&bytes, 3));
            prop_assert!(!walk(&bytes[..cut.index(bytes.len())], 3));
        }
    }
}
