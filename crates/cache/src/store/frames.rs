//! Bodies at rest as Zstandard: frames of a fixed size with a table behind them, so that a part is read without the rest.
//!
//! ```text
//! frames     one for each FRAME bytes of content, the last one shorter; each says the size of its content and has a checksum
//! [tail]     in a file of its own: a skippable frame (0x184D2A50) with what `large` keeps at its end
//! table      0x184D2A5E, length u32, for each frame: its bytes u32, bytes of its content u32;
//!            then number of frames u32, descriptor 0 u8, 0x8F92EAB1                        all numbers little-endian
//! ```
//!
//! This is the *seekable format* that Zstandard publishes (`contrib/seekable_format`), so the whole is also a plain stream that
//! any decoder reads, and the frames alone are what REAPI calls `compressed-blobs/zstd`.
//!
//! - **No bombs.** The size of the content is known before, from the head of the record or the foot of the file. A table has to
//!   add up to it frame by frame, a frame has to say the size that the table says, and is decoded into room of just that size.
//! - **No wrong bytes.** What is written is decoded again and compared first. What is read was held against the CRC-32 of the
//!   stored bytes before it is decoded.

use super::INLINE;
use super::record::{FRAMES, Record};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use zstd::zstd_safe;

/// Bytes of content in a frame.
pub const FRAME: u64 = 256 << 10;
/// A body is kept compressed when it is smaller by at least one part in so many.
pub(super) const SHARE: u64 = 8;
/// Bytes that are tried to find whether more is worth it.
pub(super) const SAMPLE: usize = 16 << 10;

const SKIPPABLE: u32 = 0x184D_2A5E;
const SEEKABLE: u32 = 0x8F92_EAB1;
/// Bytes of a table without frames.
const AROUND: u64 = 8 + 9;

/// Where the frames of a body lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frames {
    /// Where each ends.
    ends: Vec<u64>,
    size: u64,
}

/// Bytes of the table for a content of this size.
pub const fn table_len(size: u64) -> u64 {
    AROUND + size.div_ceil(FRAME) * 8
}

/// Bytes of content in a frame, by its number.
const fn content_len(size: u64, number: u64) -> u64 {
    let left = size.saturating_sub(number * FRAME);
    if left < FRAME { left } else { FRAME }
}

/// The table for frames of these lengths.
pub fn table(lengths: &[u32], size: u64) -> Vec<u8> {
    let mut bytes = SKIPPABLE.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(lengths.len() as u32 * 8 + 9).to_le_bytes());
    for (number, length) in lengths.iter().enumerate() {
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&(content_len(size, number as u64) as u32).to_le_bytes());
    }
    bytes.extend_from_slice(&(lengths.len() as u32).to_le_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&SEEKABLE.to_le_bytes());
    bytes
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl Frames {
    /// Reads a table, when it is one of a content of this size. Never panics.
    pub fn read(table: &[u8], size: u64) -> Option<Self> {
        let count = size.div_ceil(FRAME);
        if size == 0 || table.len() as u64 != table_len(size) {
            return None;
        }
        let (inner, foot) = (u64::from(number(table, 4)?), table.len() - 9);
        let holds = number(table, 0)? == SKIPPABLE
            && inner == count * 8 + 9
            && u64::from(number(table, foot)?) == count
            && table[foot + 4] == 0
            && number(table, foot + 5)? == SEEKABLE;
        if !holds {
            return None;
        }
        let (mut ends, mut end) = (Vec::with_capacity(count as usize), 0u64);
        for (at, entry) in table[8..foot].chunks_exact(8).enumerate() {
            let (length, content) = (number(entry, 0)?, u64::from(number(entry, 4)?));
            if length == 0 || content != content_len(size, at as u64) {
                return None;
            }
            end += u64::from(length);
            ends.push(end);
        }
        Some(Self { ends, size })
    }

    /// Of a body that is frames and table and nothing else.
    pub fn of(body: &[u8], size: u64) -> Option<Self> {
        if size > INLINE {
            return None;
        }
        let from = body.len().checked_sub(table_len(size) as usize)?;
        Self::read(&body[from..], size).filter(|frames| frames.stored() == from as u64)
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Bytes of all frames.
    pub fn stored(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes of the content.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Where a frame lies; nothing behind the last one.
    pub fn place(&self, number: u64) -> Range<u64> {
        let end = |number: u64| self.ends.get(number as usize).copied().unwrap_or(self.stored());
        number.checked_sub(1).map_or(0, end)..end(number)
    }

    /// The content of a frame. Nothing when it is not what the table says.
    pub fn decode(&self, number: u64, frame: &[u8], content: &mut Vec<u8>) -> Option<()> {
        let size = content_len(self.size, number) as usize;
        content.resize(size, 0);
        decode(frame, content)
    }

    /// The content of all frames, which lie at the beginning of these bytes.
    pub fn decode_all(&self, body: &[u8], content: &mut Vec<u8>) -> Option<()> {
        content.resize(usize::try_from(self.size).ok()?, 0);
        for (at, piece) in content.chunks_mut(FRAME as usize).enumerate() {
            let place = self.place(at as u64);
            decode(body.get(place.start as usize..place.end as usize)?, piece)?;
        }
        Some(())
    }
}

/// Decodes one frame into the room that it has to fill.
fn decode(frame: &[u8], content: &mut [u8]) -> Option<()> {
    thread_local! {
        static DECODER: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    }
    let said = zstd_safe::get_frame_content_size(frame).ok()?;
    let one = zstd_safe::find_frame_compressed_size(frame) == Ok(frame.len());
    if !one || said != Some(content.len() as u64) {
        return None;
    }
    DECODER.with_borrow_mut(|decoder| {
        if decoder.is_none() {
            *decoder = zstd::bulk::Decompressor::new().ok();
        }
        let decoded = decoder.as_mut()?.decompress_to_buffer(frame, content).ok()?;
        (decoded == content.len()).then_some(())
    })
}

/// The content of a record that carries one, decoded when it is compressed.
pub fn content<'a>(record: &Record<'a>) -> Option<Cow<'a, [u8]>> {
    if record.flags & FRAMES == 0 {
        return Some(Cow::Borrowed(record.payload));
    }
    let mut content = Vec::new();
    Frames::of(record.payload, record.size)?.decode_all(record.payload, &mut content)?;
    Some(Cow::Owned(content))
}

/// Whether something begins as what is compressed already: archives, pictures, and what compiler caches send.
pub fn packed(beginning: &[u8]) -> bool {
    const MAGICS: [&[u8]; 11] = [
        &[0x28, 0xb5, 0x2f, 0xfd],       // Zstandard
        &[0x1f, 0x8b],                   // gzip
        &[0xfd, b'7', b'z', b'X', b'Z'], // xz
        b"BZh",                          // bzip2
        b"PK\x03\x04",                   // ZIP, and what sccache sends
        &[0x04, 0x22, 0x4d, 0x18],       // LZ4
        &[0x89, b'P', b'N', b'G'],
        &[0xff, 0xd8, 0xff], // JPEG
        b"7z\xbc\xaf",
        b"LZIP",
        b"wOF2",
    ];
    // ccache says in its fifth byte whether the rest is Zstandard
    let ccache = beginning.starts_with(&[0xcc, 0xac]) && beginning.get(4) == Some(&1);
    // a skippable frame of Zstandard
    let skippable = beginning.get(1..4) == Some(&[0x2a, 0x4d, 0x18]) && beginning[0] & 0xf0 == 0x50;
    ccache || skippable || MAGICS.iter().any(|magic| beginning.starts_with(magic))
}

/// Makes frames.
pub struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
    again: Vec<u8>,
}

impl Encoder {
    /// At this level.
    pub fn new(level: i32) -> std::io::Result<Self> {
        let mut compressor = zstd::bulk::Compressor::new(level)?;
        compressor.set_parameter(zstd_safe::CParameter::ChecksumFlag(true))?;
        Ok(Self { compressor, again: Vec::new() })
    }

    /// Appends a frame and answers with its length. It was decoded again and is right.
    pub fn frame(&mut self, content: &[u8], to: &mut Vec<u8>) -> std::io::Result<u32> {
        let frame = self.compressor.compress(content)?;
        self.again.resize(content.len(), 0);
        if decode(&frame, &mut self.again).is_none() || self.again != content {
            return Err(std::io::Error::other("what was compressed does not decode to what it was"));
        }
        to.extend_from_slice(&frame);
        Ok(frame.len() as u32)
    }

    /// About how many bytes out of a thousand are left of a sample.
    pub(super) fn permille(&mut self, sample: &[u8]) -> u64 {
        let left = self.compressor.compress(sample).map_or(sample.len(), |frame| frame.len());
        (left as u64 * 1000).checked_div(sample.len() as u64).unwrap_or(1000)
    }

    /// Frames and table of a content; nothing when they are not smaller by the share that makes it worth it.
    pub fn whole(&mut self, content: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        let most = content.len() as u64 - content.len() as u64 / SHARE;
        let (mut body, mut lengths) = (Vec::new(), Vec::new());
        for piece in content.chunks(FRAME as usize) {
            lengths.push(self.frame(piece, &mut body)?);
            if body.len() as u64 > most {
                return Ok(None);
            }
        }
        body.extend_from_slice(&table(&lengths, content.len() as u64));
        Ok((body.len() as u64 <= most).then_some(body))
    }
}

/// Whether so many of a thousand bytes are few enough.
pub(super) const fn promising(permille: u64) -> bool {
    permille <= 1000 - 1000 / SHARE
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
