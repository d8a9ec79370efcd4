//! Whether a file of Nix unpacks to what its `narinfo` says: `NarHash`, `NarSize`, and `FileHash` where it is given.
//!
//! cachix#251: an upload that had lost its first 32 KiB was announced and served for months. The file is read and
//! decompressed once, when its `narinfo` comes in, and what was found is remembered, so the same path pushed again or into
//! another scope costs nothing.
//!
//! Bounded: at most [`AT_ONCE`] files at a time, off the threads that answer; unpacking ends at the first byte beyond
//! `NarSize`; a decoder may take 128 MiB of memory for its window. Not looked into: a `NarSize` above [`LARGEST`], and
//! compressions other than none, xz and zstd (Nix can also write bzip2, brotli, lzip, lz4 and gzip); Nix measures what it
//! reads itself. What was not looked into is logged.

use crate::exchange::Access;
use crate::name::Kind;
use crate::nix::NarInfo;
use crate::promise::look;
use crate::service::Core;
use crate::shape::ShapeError;
use crate::store::large::Large;
use crate::store::{Place, Store as _};
use forgeyard_model::Digest;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Semaphore;

/// Largest NAR that is looked into.
pub(crate) const LARGEST: u64 = 8 << 30;
/// How many are unpacked at once.
const AT_ONCE: usize = 2;
/// Largest window of a decoder, as a power of two.
const WINDOW: u32 = 27;
/// Files that are remembered.
const MOST: usize = 4096;

static UNPACKING: Semaphore = Semaphore::const_new(AT_ONCE);

/// How a file is compressed, as far as that is understood here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// Not at all.
    None,
    /// As Nix does it unless it is told otherwise.
    Xz,
    /// Zstandard.
    Zstd,
}

impl Coding {
    /// The word for it in a `narinfo`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Coding::None => "none",
            Coding::Xz => "xz",
            Coding::Zstd => "zstd",
        }
    }

    /// The end of the name of such a file, behind `.nar`.
    pub fn by_ending(ending: &str) -> Option<Self> {
        match ending {
            "" => Some(Self::None),
            ".xz" => Some(Self::Xz),
            ".zst" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// As a `narinfo` names it. One that says nothing means bzip2, for historical reasons.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "xz" => Some(Self::Xz),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// What these bytes unpack to, as a stream.
fn unpack<'a>(packed: impl Read + 'a, coding: Coding) -> Option<Box<dyn Read + 'a>> {
    Some(match coding {
        Coding::None => Box::new(packed),
        Coding::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, 1 << (WINDOW - 10))),
        Coding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::new(packed).ok()?;
            decoder.window_log_max(WINDOW).ok()?;
            Box::new(decoder)
        }
    })
}

/// The same for what was found in the store: its place, and the buffer that it may lie in.
pub(crate) fn unpack_found(place: Place, buffer: Vec<u8>, coding: Coding) -> Option<Box<dyn Read>> {
    match place {
        Place::Buffer(range) => {
            let mut bytes = std::io::Cursor::new(buffer);
            bytes.set_position(range.start as u64);
            unpack(bytes.take(range.len() as u64), coding)
        }
        Place::Large(large) => {
            let pieces = Pieces { large, next: 0, piece: Vec::new(), at: 0 };
            unpack(std::io::BufReader::with_capacity(256 << 10, pieces), coding)
        }
    }
}

/// Hash and size of what these bytes unpack to. Nothing when they do not, or to more than so many bytes.
pub fn measure<'a>(packed: impl Read + 'a, coding: Coding, most: u64) -> Option<(Digest, u64)> {
    measure_unpacked(unpack(packed, coding)?, most)
}

fn measure_unpacked(mut unpacked: impl Read, most: u64) -> Option<(Digest, u64)> {
    let (mut sha, mut size, mut buffer) = (Sha256::new(), 0u64, vec![0; 64 << 10]);
    loop {
        match unpacked.read(&mut buffer) {
            Ok(0) => return Some((Digest::from_bytes(sha.finalize().into()), size)),
            Ok(read) => {
                size += read as u64;
                if size > most {
                    return None;
                }
                sha.update(&buffer[..read]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// A large content as one stream, each piece checked.
struct Pieces {
    large: Large,
    next: u64,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.piece.len() {
            if self.next >= self.large.pieces() {
                return Ok(0);
            }
            self.large.piece(self.next, &mut self.piece).map_err(std::io::Error::other)?;
            (self.next, self.at) = (self.next + 1, 0);
        }
        let some = into.len().min(self.piece.len() - self.at);
        into[..some].copy_from_slice(&self.piece[self.at..self.at + some]);
        self.at += some;
        Ok(some)
    }
}

/// What files were found to unpack to.
#[derive(Debug, Default)]
pub(crate) struct Measured(Mutex<HashMap<(Digest, Coding), (Digest, u64)>>);

/// Holds a `narinfo`, whose file is here, against that file. Answers with how the file is compressed and the hash of what it
/// unpacks to, when that was looked into.
pub(crate) async fn verify(
    core: &Core,
    access: &Access,
    info: &NarInfo,
) -> Result<Option<(Coding, Digest)>, ShapeError> {
    let mut buffer = Vec::new();
    let found = look(access, Kind::Nix, &info.url, |_, name| core.store.get(name, &mut buffer));
    let Some((_, found)) = found else { return Err(ShapeError::NoFile) };
    let digest = found.facts.digest;
    if info.file_hash.as_deref().and_then(crate::nix::hash).is_some_and(|said| said != digest) {
        return Err(ShapeError::FileHash);
    }
    let coding = info.compression.as_deref().and_then(Coding::named);
    let (Some(coding), Some(said)) = (coding, crate::nix::hash(&info.nar_hash)) else {
        tracing::info!(path = %info.store_path, "a path is taken without unpacking it: its compression or hash is not known here");
        return Ok(None);
    };
    if info.nar_size > LARGEST {
        tracing::info!(path = %info.store_path, size = info.nar_size, "a path is taken without unpacking it: it is too large");
        return Ok(None);
    }
    let key = (digest, coding);
    let lock = || core.measured.0.lock().unwrap_or_else(PoisonError::into_inner);
    let known = lock().get(&key).copied();
    let (hash, size) = match known {
        Some(known) => known,
        None => {
            let most = info.nar_size;
            let _turn = UNPACKING.acquire().await;
            let found = tokio::task::spawn_blocking(move || {
                measure_unpacked(unpack_found(found.place, buffer, coding)?, most)
            });
            let found = found.await.unwrap_or_default().ok_or(ShapeError::Nar)?;
            let mut all = lock();
            if all.len() >= MOST {
                all.clear();
            }
            all.insert(key, found);
            found
        }
    };
    if (hash, size) == (said, info.nar_size) { Ok(Some((coding, hash))) } else { Err(ShapeError::Nar) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `printf 'a NAR\n' | xz`, made once with xz 5.4.
    const XZ: &str = "fd377a585a000004e6d6b4460200210116000000742fe5a301000561204e41520a0000007dd91ae1a60b77c600011e06c12fa4\
                      1d1fb6f37d010000000004595a";

    fn xz() -> Vec<u8> {
        let digits: Vec<u8> = XZ.bytes().filter(u8::is_ascii_hexdigit).collect();
        let value = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(value).collect()
    }

    #[test]
    fn file_is_measured_as_it_unpacks() {
        let plain = b"a NAR\n";
        let expected = Some((Digest::of(plain), 6));
        assert_eq!(measure(&plain[..], Coding::None, 6), expected);
        assert_eq!(measure(&zstd::bulk::compress(plain, 1).unwrap()[..], Coding::Zstd, 6), expected);
        assert_eq!(measure(&xz()[..], Coding::Xz, 6), expected);
        assert_eq!(measure(&xz()[..], Coding::Xz, 5), None, "more than was announced");
        assert_eq!(measure(&xz()[..40], Coding::Xz, 6), None, "cut off");
        assert_eq!(measure(&plain[..], Coding::Xz, 6), None);
    }

    proptest! {
        #[test]
        fn any_bytes_unpack_or_are_refused(mut bytes: Vec<u8>, at: usize, value: u8) {
            for coding in [Coding::None, Coding::Xz, Coding::Zstd] {
                let _ = measure(&bytes[..], coding, 1 << 20);
            }
            bytes = xz();
            let at = at % bytes.len();
            bytes[at] = value;
            let found = measure(&bytes[..], Coding::Xz, 1 << 20);
            prop_assert!(found.is_none_or(|(_, size)| size <= 1 << 20));
        }
    }
}
