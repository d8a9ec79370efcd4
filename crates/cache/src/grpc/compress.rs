//! Contents that become Zstandard while they are sent.
//!
//! An encoder holds more than a MiB for as long as its reader takes, so there are at most [`MOST`] of them at once
//! (harmonia#1003). A reader beyond those gets the same bytes in blocks that are not compressed: that is Zstandard too, needs no
//! memory, and nobody waits.
//!
//! ```text
//! frame     FD2FB528  descriptor 00  window 38 (128 KiB)  block…        RFC 8878, §3.1.1
//! block     3 bytes, little endian: last | type 0 (raw) << 1 | size << 3, then the bytes, at most 128 KiB
//! ```

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Encoders of this process at once.
const MOST: usize = 64;
/// How hard it is compressed: the network is the cheaper one of the two.
pub(super) const LEVEL: i32 = 1;
/// Largest block, by the window of the frame.
const BLOCK: usize = 128 << 10;
const HEAD: [u8; 6] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];

static ENCODERS: AtomicUsize = AtomicUsize::new(0);

/// An encoder that is counted.
struct Counted(zstd::stream::write::Encoder<'static, Vec<u8>>);

impl Counted {
    /// None when there are enough.
    fn new(most: usize) -> io::Result<Option<Self>> {
        let more = |count: usize| (count < most).then_some(count + 1);
        if ENCODERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Ok(None);
        }
        match zstd::stream::write::Encoder::new(Vec::new(), LEVEL) {
            Ok(encoder) => Ok(Some(Self(encoder))),
            Err(error) => {
                ENCODERS.fetch_sub(1, Ordering::AcqRel);
                Err(error)
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ENCODERS.fetch_sub(1, Ordering::AcqRel);
    }
}

enum Form {
    Encoded(Box<Counted>),
    Raw(Vec<u8>),
}

/// Takes bytes and gives Zstandard.
pub(super) struct Compressor(Form);

impl Compressor {
    pub(super) fn new() -> io::Result<Self> {
        Self::of_at_most(MOST)
    }

    fn of_at_most(most: usize) -> io::Result<Self> {
        Ok(Self(match Counted::new(most)? {
            Some(encoder) => Form::Encoded(Box::new(encoder)),
            None => Form::Raw(HEAD.to_vec()),
        }))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Form::Encoded(encoder) => encoder.0.write_all(bytes),
            Form::Raw(out) => {
                bytes.chunks(BLOCK).for_each(|block| {
                    out.extend_from_slice(&head(block.len(), false));
                    out.extend_from_slice(block);
                });
                Ok(())
            }
        }
    }

    /// What there is to send, once it is so much.
    pub(super) fn ready(&mut self, least: usize) -> Option<Vec<u8>> {
        let out = match &mut self.0 {
            Form::Encoded(encoder) => encoder.0.get_mut(),
            Form::Raw(out) => out,
        };
        (out.len() >= least).then(|| std::mem::take(out))
    }

    /// The end.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        match &mut self.0 {
            Form::Encoded(encoder) => {
                encoder.0.do_finish()?;
                Ok(std::mem::take(encoder.0.get_mut()))
            }
            Form::Raw(out) => {
                out.extend_from_slice(&head(0, true));
                Ok(std::mem::take(out))
            }
        }
    }
}

/// The head of a block that is not compressed.
fn head(size: usize, last: bool) -> [u8; 3] {
    let [a, b, c, ..] = ((size as u32) << 3 | u32::from(last)).to_le_bytes();
    [a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn through(mut compressor: Compressor, pieces: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in pieces {
            compressor.write(piece).unwrap();
            out.extend(compressor.ready(1000).unwrap_or_default());
        }
        out.extend(compressor.finish().unwrap());
        out
    }

    #[test]
    fn harmonia_1003_encoders_are_counted_and_whoever_comes_later_gets_raw_blocks() {
        let encoded = |one: &Compressor| matches!(one.0, Form::Encoded(_));
        // another test may hold one as well
        let held: Vec<Compressor> = (0..MOST + 8).map(|_| Compressor::new().unwrap()).collect();
        let count = held.iter().filter(|one| encoded(one)).count();
        assert!((MOST - 1..=MOST).contains(&count), "{count}");
        drop(held);
        assert!(encoded(&Compressor::new().unwrap()), "one that ended makes room");
    }

    proptest! {
        #[test]
        fn both_forms_are_zstandard_of_the_same_bytes(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6),
            large in 0usize..400_000,
        ) {
            let mut pieces = pieces;
            pieces.push(vec![7; large]);
            for most in [0, usize::MAX] {
                let compressor = Compressor::of_at_most(most).unwrap();
                prop_assert_eq!(matches!(compressor.0, Form::Raw(_)), most == 0);
                let read = zstd::stream::decode_all(&*through(compressor, &pieces)).unwrap();
                prop_assert!(read == pieces.concat());
            }
        }
    }
}
