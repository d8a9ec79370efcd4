//! The end of a large content that is compressed: what `large` keeps behind a plain one, as a frame that decoders skip.
//!
//! ```text
//! large/ab/abcd…   frames as in `frames`, tail, table of the frames
//! tail             0x184D2A50, length u32, CRC-32 of each frame as it is stored (u32 each), foot
//! foot             64 bytes: "FYLRG2\n\0", size u64, SHA-256, bytes of all frames u64, zeros,
//!                  CRC-32 of the checksums and of the foot before it             all numbers little-endian
//! ```
//!
//! So the file as a whole is a stream that any Zstandard decoder reads, in the published seekable format.

use super::frames::{FRAME, Frames, table, table_len};
use forgeyard_model::Digest;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const SKIPPABLE: u32 = 0x184D_2A50;
const MAGIC: &[u8; 8] = b"FYLRG2\n\0";
const FOOT: usize = 64;
/// Larger contents stay as they are: their tables would be long.
pub(super) const LARGEST: u64 = 64 << 30;

/// What the end of a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Size of the content.
    pub size: u64,
    /// Its digest.
    pub digest: Digest,
    /// Where its frames lie.
    pub frames: Frames,
    /// CRC-32 of each frame as it is stored.
    pub crcs: Vec<u8>,
}

/// Bytes of tail and table for a content with so many frames.
const fn tail_len(frames: u64) -> u64 {
    8 + frames * 4 + FOOT as u64 + table_len(frames * FRAME)
}

/// What goes behind frames of these lengths.
pub(super) fn write(lengths: &[u32], crcs: &[u8], size: u64, digest: Digest) -> Vec<u8> {
    let stored: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    let mut bytes = SKIPPABLE.to_le_bytes().to_vec();
    bytes.extend_from_slice(&((crcs.len() + FOOT) as u32).to_le_bytes());
    bytes.extend_from_slice(crcs);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(digest.as_bytes());
    bytes.extend_from_slice(&stored.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let crc = crc32fast::hash(&bytes[8..]);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(&table(lengths, size));
    bytes
}

/// Reads the end of a file of this length: tail and table and nothing before. Never panics.
pub fn read_framed_tail(bytes: &[u8], length: u64) -> Option<Tail> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let frames = u64::from(number(bytes.len().checked_sub(9)?)?);
    if bytes.len() as u64 != tail_len(frames) || number(0)? != SKIPPABLE {
        return None;
    }
    let crcs = frames as usize * 4;
    let (summed, rest) = bytes[8..].split_at_checked(crcs + FOOT - 4)?;
    let (crc, table) = rest.split_at_checked(4)?;
    let foot = &summed[crcs..];
    if number(4)? as usize != crcs + FOOT
        || crc32fast::hash(summed).to_le_bytes() != crc
        || &foot[..8] != MAGIC
    {
        return None;
    }
    let size = u64::from_le_bytes(foot[8..16].try_into().ok()?);
    let digest = Digest::from_bytes(foot[16..48].try_into().ok()?);
    let stored = u64::from_le_bytes(foot[48..56].try_into().ok()?);
    let frames = Frames::read(table, size)?;
    let whole = stored.checked_add(bytes.len() as u64)?;
    let holds = frames.stored() == stored && whole == length && size <= LARGEST;
    holds.then(|| Tail { size, digest, frames, crcs: summed[..crcs].to_vec() })
}

/// Reads the end of a file, if it is that of a compressed content.
pub(super) fn read(file: &File, length: u64) -> Option<Tail> {
    let mut foot = [0; 9];
    file.read_exact_at(&mut foot, length.checked_sub(9)?).ok()?;
    let frames = u64::from(u32::from_le_bytes([foot[0], foot[1], foot[2], foot[3]]));
    let tail = tail_len(frames);
    if frames > LARGEST / FRAME || tail > length {
        return None;
    }
    let mut bytes = vec![0; tail as usize];
    file.read_exact_at(&mut bytes, length - tail).ok()?;
    read_framed_tail(&bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_framed_tail_is_read_or_refused(mut bytes: Vec<u8>, lengths in prop::collection::vec(1u32..1000, 1..4), cut: bool, at: usize) {
            let _ = read_framed_tail(&bytes, 1 << 20);
            let size = lengths.len() as u64 * FRAME - 5;
            let crcs = vec![7; lengths.len() * 4];
            let tail = write(&lengths, &crcs, size, Digest::of(b"a"));
            let stored: u32 = lengths.iter().sum();
            let length = u64::from(stored) + tail.len() as u64;
            let back = read_framed_tail(&tail, length).unwrap();
            prop_assert_eq!((back.size, back.digest, back.frames.stored()), (size, Digest::of(b"a"), u64::from(stored)));
            prop_assert_eq!(read_framed_tail(&tail, length + 1), None);
            bytes = tail;
            let at = at % bytes.len();
            bytes[at] ^= 1;
            // zeros of the length of a table are the only bytes that nothing depends on, and there are none
            prop_assert_eq!(read_framed_tail(&bytes, length), None);
            if cut {
                prop_assert_eq!(read_framed_tail(&bytes[1..], length), None);
            }
        }
    }
}
