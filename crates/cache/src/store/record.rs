//! The form of records in a segment. Reading never panics and never trusts a length that a checksum does not cover.
//!
//! ```text
//! segment   64 bytes of head, then records, each at a multiple of 64
//! head      "FYSEG1\n\0", number u32, zeros, CRC-32 of the 60 bytes before
//! record    head of 96 bytes, scope, key, provenance (JSON), payload, zeros up to a multiple of 64
//!
//!  0  magic "FYR1" or "FYR2" 24  CRC-32 of the payload u32
//!  4  what: 1 entry, 2 link, 3 drop,      28  zeros
//!     4 content
//!  5  flags: 2 large,            32  stored at, microseconds i64
//!     4 frames, 8 tried
//!  6  kind of the name       40  size of the content u64
//!  7  digest: 0 SHA-256, 1 BLAKE3   48  digest of the content, see `sum`
//!  8  scope length u16       80  zeros
//! 10  key length u16         92  CRC-32 of bytes 0..92, scope, key and provenance
//! 12  provenance length u16
//! 16  payload length u32     all numbers little-endian
//! ```
//!
//! An *entry* carries a name and its content. A *link* gives one more name to a content that another record carries, or
//! that is a file of its own (*large*). A *drop* takes a name away. A *content* is an entry whose own name is gone while
//! links still stand for it: eviction writes one when it moves such an entry. The last record for a name counts, in the
//! order of segment numbers and places.
//!
//! In a record with the flag *frames* the payload is the content compressed (`frames`), and the magic is "FYR2": a program that
//! does not know of it finds no record there, rather than a content that is not what was stored. *Tried* says that the payload
//! hardly shrinks.

use super::sum::Sum;
use crate::name::{Kind, NameHash};
use forgeyard_model::{Digest, Timestamp};

/// Places and lengths are multiples of this.
pub const ALIGN: u64 = 64;
/// Bytes before the first record of a segment.
pub const SEGMENT_HEAD: u64 = 64;
/// Bytes of a record before its texts.
pub const HEAD: usize = 96;
const SEGMENT_MAGIC: &[u8; 8] = b"FYSEG1\n\0";
const MAGIC: &[u8; 4] = b"FYR1";
/// Of a record whose payload is compressed.
const FRAMED: &[u8; 4] = b"FYR2";

/// What a record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// Name and content.
    Entry = 1,
    /// Name for a content that lies elsewhere.
    Link = 2,
    /// Name that is gone.
    Drop = 3,
    /// Content whose own name is gone.
    Content = 4,
}

/// The content is a file of its own.
pub const LARGE: u8 = 2;
/// The payload is the content compressed, see [`super::frames`].
pub const FRAMES: u8 = 4;
/// It was tried whether the payload shrinks, and it hardly does.
pub const TRIED: u8 = 8;

/// A record, its texts and payload borrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it does.
    pub what: What,
    /// [`LARGE`], [`FRAMES`], [`TRIED`].
    pub flags: u8,
    /// Kind of the name.
    pub kind: Kind,
    /// Scope of the name.
    pub scope: &'a str,
    /// Key of the name.
    pub key: &'a str,
    /// Who wrote it, JSON.
    pub provenance: &'a [u8],
    /// When.
    pub stored_at: Timestamp,
    /// Digest of the content.
    pub digest: Digest,
    /// Which one.
    pub sum: Sum,
    /// Size of the content.
    pub size: u64,
    /// The content, in an entry.
    pub payload: &'a [u8],
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// They end too early.
    #[error("the record is cut off")]
    Short,
    /// They do not begin like one.
    #[error("no record begins here")]
    Magic,
    /// The head does not hold.
    #[error("the checksum of the record's head does not hold")]
    Head,
    /// The payload does not hold.
    #[error("the checksum of the payload does not hold")]
    Payload,
}

/// The head of a record whose checksum held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    scope: usize,
    key: usize,
    provenance: usize,
    /// Bytes of payload.
    pub payload: usize,
}

impl Head {
    /// Reads lengths from the fixed part, which may be damaged: only for knowing how much to read.
    pub fn peek(bytes: &[u8]) -> Result<Self, Damage> {
        let fixed = bytes.get(..HEAD).ok_or(Damage::Short)?;
        if &fixed[..4] != MAGIC && &fixed[..4] != FRAMED {
            return Err(Damage::Magic);
        }
        let short = |at: usize| usize::from(u16::from_le_bytes([fixed[at], fixed[at + 1]]));
        let payload = u32::from_le_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]) as usize;
        Ok(Self { scope: short(8), key: short(10), provenance: short(12), payload })
    }

    /// Where the payload begins.
    pub const fn texts_end(&self) -> usize {
        HEAD + self.scope + self.key + self.provenance
    }

    /// Bytes of the whole record on disk.
    pub const fn len(&self) -> u64 {
        ((self.texts_end() + self.payload) as u64).next_multiple_of(ALIGN)
    }

    /// A record is never empty.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

impl What {
    /// Whether the content is in the record.
    pub const fn carries(self) -> bool {
        matches!(self, What::Entry | What::Content)
    }
}

impl<'a> Record<'a> {
    /// Bytes on disk.
    pub fn len(&self) -> u64 {
        let texts = self.scope.len() + self.key.len() + self.provenance.len();
        ((HEAD + texts + self.payload.len()) as u64).next_multiple_of(ALIGN)
    }

    /// A record is never empty.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// What the index knows its name by.
    pub fn name(&self) -> NameHash {
        NameHash::of(self.scope, self.kind, self.key)
    }

    /// Writes head and texts; the payload follows as it is.
    pub fn write_head(&self, to: &mut Vec<u8>) {
        let begin = to.len();
        let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes();
        to.extend_from_slice(if self.flags & FRAMES == 0 { MAGIC } else { FRAMED });
        to.extend_from_slice(&[self.what as u8, self.flags, self.kind as u8, self.sum as u8]);
        to.extend_from_slice(&short(self.scope.len()));
        to.extend_from_slice(&short(self.key.len()));
        to.extend_from_slice(&short(self.provenance.len()));
        to.extend_from_slice(&[0; 2]);
        to.extend_from_slice(&u32::try_from(self.payload.len()).unwrap_or(u32::MAX).to_le_bytes());
        to.extend_from_slice(&[0; 4]);
        to.extend_from_slice(&crc32fast::hash(self.payload).to_le_bytes());
        to.extend_from_slice(&[0; 4]);
        to.extend_from_slice(&self.stored_at.as_micros().to_le_bytes());
        to.extend_from_slice(&self.size.to_le_bytes());
        to.extend_from_slice(self.digest.as_bytes());
        to.extend_from_slice(&[0; 12]);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&to[begin..]);
        for text in [self.scope.as_bytes(), self.key.as_bytes(), self.provenance] {
            crc.update(text);
        }
        to.extend_from_slice(&crc.finalize().to_le_bytes());
        for text in [self.scope.as_bytes(), self.key.as_bytes(), self.provenance] {
            to.extend_from_slice(text);
        }
    }

    /// Writes the whole record, padding included.
    pub fn write(&self, to: &mut Vec<u8>) {
        let end = to.len() as u64 + self.len();
        self.write_head(to);
        to.extend_from_slice(self.payload);
        to.resize(end as usize, 0);
    }

    /// Reads head and texts from the beginning of these bytes; the payload need not be there and is left empty.
    pub fn read_head(bytes: &'a [u8]) -> Result<(Self, Head), Damage> {
        let head = Head::peek(bytes)?;
        let texts = bytes.get(HEAD..head.texts_end()).ok_or(Damage::Short)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[..HEAD - 4]);
        crc.update(texts);
        if crc.finalize().to_le_bytes() != bytes[HEAD - 4..HEAD] {
            return Err(Damage::Head);
        }
        let what = match bytes[4] {
            1 => What::Entry,
            2 => What::Link,
            3 => What::Drop,
            4 => What::Content,
            _ => return Err(Damage::Head),
        };
        if (&bytes[..4] == FRAMED) != (bytes[5] & FRAMES != 0) || (bytes[5] & FRAMES != 0 && !what.carries())
        {
            return Err(Damage::Head);
        }
        let text = |from: usize, length: usize| {
            std::str::from_utf8(&texts[from..from + length]).map_err(|_| Damage::Head)
        };
        let record = Self {
            what,
            flags: bytes[5],
            kind: Kind::from_byte(bytes[6]).ok_or(Damage::Head)?,
            scope: text(0, head.scope)?,
            key: text(head.scope, head.key)?,
            provenance: &texts[head.scope + head.key..],
            stored_at: Timestamp::from_micros(i64::from_le_bytes(array(bytes, 32))),
            digest: Digest::from_bytes(array(bytes, 48)),
            sum: Sum::from_byte(bytes[7]).ok_or(Damage::Head)?,
            size: u64::from_le_bytes(array(bytes, 40)),
            payload: &[],
        };
        Ok((record, head))
    }

    /// Reads a whole record and checks its payload.
    pub fn read(bytes: &'a [u8]) -> Result<(Self, Head), Damage> {
        let (mut record, head) = Self::read_head(bytes)?;
        let from = head.texts_end();
        record.payload = bytes.get(from..from + head.payload).ok_or(Damage::Short)?;
        if crc32fast::hash(record.payload).to_le_bytes() != bytes[24..28] {
            return Err(Damage::Payload);
        }
        Ok((record, head))
    }
}

/// The head of a segment.
pub fn segment_head(number: u32) -> [u8; SEGMENT_HEAD as usize] {
    let mut head = [0; SEGMENT_HEAD as usize];
    head[..8].copy_from_slice(SEGMENT_MAGIC);
    head[8..12].copy_from_slice(&number.to_le_bytes());
    let crc = crc32fast::hash(&head[..60]);
    head[60..].copy_from_slice(&crc.to_le_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn record_reads_back(
            scope in "[a-z/]{1,20}", key in "\\PC{0,40}", provenance: Vec<u8>, payload: Vec<u8>, at: i64, flags in 0u8..16, blake: bool,
        ) {
            let sum = if blake { Sum::Blake3 } else { Sum::Sha256 };
            let record = Record {
                what: What::Entry, flags, kind: Kind::Action, scope: &scope, key: &key, provenance: &provenance,
                stored_at: Timestamp::from_micros(at), digest: sum.of(&payload), sum, size: payload.len() as u64,
                payload: &payload,
            };
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            prop_assert_eq!(bytes.len() as u64, record.len());
            let (back, head) = Record::read(&bytes).unwrap();
            prop_assert_eq!(head.len(), record.len());
            prop_assert_eq!(back, record);
        }

        #[test]
        fn one_changed_bit_is_noticed(payload in prop::collection::vec(any::<u8>(), 1..200), at: prop::sample::Index, bit in 0u8..8) {
            let record = Record {
                what: What::Entry, flags: 0, kind: Kind::Keyed, scope: "a", key: "k", provenance: b"{}",
                stored_at: Timestamp::from_micros(1), digest: Digest::of(&payload), sum: Sum::Sha256, size: payload.len() as u64,
                payload: &payload,
            };
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            let end = HEAD + 4 + payload.len();
            let at = at.index(end);
            bytes[at] ^= 1 << bit;
            // bytes 28..32 are zeros that the head's checksum covers as well
            prop_assert!(Record::read(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, like: bool) {
            if like && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(MAGIC);
            }
            let _ = Record::read(&bytes);
        }
    }
}
