//! What is written to the tier beside segments: the manifest of a writer, and the index of each segment.
//!
//! ```text
//! manifest.json   {"format":1,"writer","epoch","store","segments":[{"segment","index","size","records"}],"purges":[…]}
//! *.fyx           "FYIDX1\n\0", number of lines u32, zeros u32, lines of 32 bytes, CRC-32 of all before
//! line            hash of the name, or half of the digest, 16 bytes; place / 64 u32; length / 64 u32;
//!                 what u32: 1 name, 2 name that is gone, 3 content; zeros u32      all numbers little-endian
//! ```
//!
//! Neither is believed: a manifest that does not read is none, an index that does not hold makes its segment a miss, and what a
//! line points at is held against the name that was asked for.

use crate::store::beyond::Purge;
use crate::store::handle::{Line, Means};
use serde::{Deserialize, Serialize};

/// Version of both.
pub(super) const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"FYIDX1\n\0";
const LINE: usize = 32;

/// A segment that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sent {
    /// Its object.
    pub segment: String,
    /// The object of its index.
    pub index: String,
    /// Bytes of the segment.
    pub size: u64,
    /// Its number in the store that wrote it.
    pub number: u32,
}

/// What a writer wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Manifest {
    /// Version: 1.
    pub format: u32,
    /// Its name.
    pub writer: String,
    /// One more with each start: whoever has an older one writes no more.
    pub epoch: u64,
    /// The store that wrote last.
    pub store: String,
    /// In the order in which they count: the last record of a name holds.
    pub segments: Vec<Sent>,
    /// What was removed by scope or writer.
    #[serde(default)]
    pub purges: Vec<Purge>,
}

impl Manifest {
    /// Reads one that is of this version, and whose objects lie below the place of its writer.
    pub fn read(bytes: &[u8], place: &str) -> Option<Self> {
        let manifest: Self = serde_json::from_slice(bytes).ok()?;
        let below =
            |key: &str| key.starts_with(place) && !key.split('/').any(|word| matches!(word, "" | "." | ".."));
        let good = |sent: &Sent| below(&sent.segment) && below(&sent.index);
        (manifest.format == FORMAT && manifest.segments.iter().all(good)).then_some(manifest)
    }
}

/// Writes the index of a segment.
pub(super) fn write_index(lines: &[Line]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(lines.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for line in lines {
        bytes.extend_from_slice(&line.hash.to_le_bytes());
        let what: u32 = match line.means {
            Means::Name => 1,
            Means::Gone => 2,
            Means::Content => 3,
        };
        for number in [(line.at / 64) as u32, (line.length / 64) as u32, what, 0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Reads the index of a segment. Never panics.
pub(super) fn read_index(bytes: &[u8]) -> Option<Vec<Line>> {
    let (said, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    if crc32fast::hash(said).to_le_bytes() != crc {
        return None;
    }
    let (count, rest) = said.strip_prefix(MAGIC)?.split_at_checked(8)?;
    let count = u32::from_le_bytes(count[..4].try_into().ok()?) as usize;
    if rest.len() != count.checked_mul(LINE)? {
        return None;
    }
    let line = |one: &[u8]| {
        let number = |at: usize| Some(u32::from_le_bytes(one.get(at..at + 4)?.try_into().ok()?));
        let means = match number(24)? {
            1 => Means::Name,
            2 => Means::Gone,
            3 => Means::Content,
            _ => return None,
        };
        let hash = u128::from_le_bytes(one[..16].try_into().ok()?);
        Some(Line { hash, at: u64::from(number(16)?) * 64, length: u64::from(number(20)?) * 64, means })
    };
    rest.chunks_exact(LINE).map(line).collect()
}

/// Longest index that is read: of a segment with nothing but the smallest records.
pub(super) const LONGEST_INDEX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn manifest_that_points_elsewhere_is_none() {
        let sent = |segment: &str| Sent {
            segment: segment.to_owned(),
            index: "c/a/s/idx/1".to_owned(),
            size: 1,
            number: 1,
        };
        let manifest = |segment: &str| {
            let manifest = Manifest {
                format: FORMAT,
                writer: "a".to_owned(),
                epoch: 1,
                store: "s".to_owned(),
                segments: vec![sent(segment)],
                purges: vec![],
            };
            Manifest::read(&serde_json::to_vec(&manifest).unwrap(), "c/a/")
        };
        assert!(manifest("c/a/s/seg/1").is_some());
        for wrong in ["c/b/s/seg/1", "c/a/../b/seg/1", "c/a//x", ""] {
            assert_eq!(manifest(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn index_reads_back(lines in prop::collection::vec((any::<u128>(), any::<u32>(), any::<u32>(), 0..3), 0..20)) {
            let lines: Vec<Line> = lines.into_iter().map(|(hash, at, length, means)| Line {
                hash,
                at: u64::from(at) * 64,
                length: u64::from(length) * 64,
                means: [Means::Name, Means::Gone, Means::Content][means as usize],
            }).collect();
            let mut bytes = write_index(&lines);
            prop_assert_eq!(read_index(&bytes), Some(lines));
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            prop_assert_eq!(read_index(&bytes), None);
        }

        #[test]
        fn any_bytes_are_a_manifest_or_an_index_or_refused(bytes: Vec<u8>, text in "\\PC{0,80}") {
            let _ = (Manifest::read(&bytes, "a/"), Manifest::read(text.as_bytes(), "a/"), read_index(&bytes));
        }
    }
}
