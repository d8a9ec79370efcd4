//! Large contents: a file each, in pieces of 1 MiB with a checksum each.
//!
//! ```text
//! incoming/<n>.part     on its way in, removed at start
//! large/ab/abcd…        content, then CRC-32 of each MiB (u32 each), then a foot of 64 bytes:
//!                       "FYLRG1\n\0", size u64, SHA-256, zeros, CRC-32 of the checksums and of the foot before it
//! ```
//!
//! One that was compressed since has another form, see `tail`: frames of 256 KiB instead of pieces, each with a checksum too.
//!
//! The digest is known once the last byte is in; the file gets its name by one rename, after a sync where the store
//! promises one. A reader checks each piece before it hands it on.

use super::StoreError;
use super::frames::{FRAME, Frames};
use super::tail;
use forgeyard_model::Digest;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Bytes that one checksum covers.
pub const PIECE: u64 = 1 << 20;
const FOOT: usize = 64;
const MAGIC: &[u8; 8] = b"FYLRG1\n\0";

/// A file on its way in. Dropped before it is finished, it is removed.
pub struct Spool {
    file: File,
    part: Part,
    sha: Sha256,
    crc: crc32fast::Hasher,
    in_piece: u64,
    crcs: Vec<u8>,
    size: u64,
}

/// Path that is removed when nobody took it.
#[derive(Debug)]
struct Part(Option<PathBuf>);

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = fs_err::remove_file(path);
        }
    }
}

/// A whole file, not yet in its place.
#[derive(Debug)]
pub struct Finished {
    part: Part,
    /// Digest of the content.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
}

impl Spool {
    /// A new file at this path.
    pub fn create(path: PathBuf) -> Result<Self, StoreError> {
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(StoreError::io("making", &path))?;
        let (sha, crc) = (Sha256::new(), crc32fast::Hasher::new());
        Ok(Self { file, part: Part(Some(path)), sha, crc, in_piece: 0, crcs: Vec::new(), size: 0 })
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> StoreError + use<> {
        StoreError::io(action, self.part.0.clone().unwrap_or_default())
    }

    /// Adds bytes.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        self.sha.update(bytes);
        self.file.write_all(bytes).map_err(self.failed("writing"))?;
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = (PIECE - self.in_piece).min(bytes.len() as u64) as usize;
            self.crc.update(&bytes[..room]);
            self.in_piece += room as u64;
            bytes = &bytes[room..];
            if self.in_piece == PIECE {
                self.end_piece();
            }
        }
        Ok(())
    }

    fn end_piece(&mut self) {
        let crc = std::mem::take(&mut self.crc).finalize();
        self.crcs.extend_from_slice(&crc.to_le_bytes());
        self.in_piece = 0;
    }

    /// Bytes so far.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Ends the file; syncs it where that is promised. Blocks.
    pub fn finish(mut self, sync: bool) -> Result<Finished, StoreError> {
        if self.in_piece > 0 {
            self.end_piece();
        }
        let digest = Digest::from_bytes(std::mem::take(&mut self.sha).finalize().into());
        let mut tail = std::mem::take(&mut self.crcs);
        let foot = tail.len();
        tail.extend_from_slice(MAGIC);
        tail.extend_from_slice(&self.size.to_le_bytes());
        tail.extend_from_slice(digest.as_bytes());
        tail.resize(foot + FOOT - 4, 0);
        let crc = crc32fast::hash(&tail);
        tail.extend_from_slice(&crc.to_le_bytes());
        self.file.write_all(&tail).map_err(self.failed("writing"))?;
        if sync {
            self.file.sync_data().map_err(self.failed("syncing"))?;
        }
        Ok(Finished { part: self.part, digest, size: self.size })
    }
}

impl Finished {
    /// Puts the file into its place, which may hold the same content already.
    pub fn place(mut self, to: &Path) -> Result<(), StoreError> {
        if let Some(folder) = to.parent() {
            fs_err::create_dir_all(folder).map_err(StoreError::io("making", folder))?;
        }
        if let Some(part) = self.part.0.take() {
            fs_err::rename(&part, to).map_err(StoreError::io("renaming to", to))?;
        }
        Ok(())
    }

    /// The file, to read it again.
    pub fn open(&self) -> Result<Large, StoreError> {
        Large::open(self.part.0.as_deref().unwrap_or(Path::new("")))
    }
}

/// A large content that is open.
#[derive(Debug)]
pub struct Large {
    file: File,
    path: PathBuf,
    crcs: Vec<u8>,
    frames: Option<Frames>,
    /// Its digest.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
}

/// Size and digest from checksums and foot, when they hold for a file of this length. Never panics.
pub fn read_tail(tail: &[u8], length: u64) -> Option<(u64, Digest)> {
    let (before, crc) = tail.split_at_checked(tail.len().checked_sub(4)?)?;
    let crcs = tail.len().checked_sub(FOOT)?;
    let foot = &tail[crcs..];
    if crc32fast::hash(before).to_le_bytes() != crc || &foot[..8] != MAGIC {
        return None;
    }
    let size = u64::from_le_bytes(foot[8..16].try_into().ok()?);
    let digest = Digest::from_bytes(foot[16..48].try_into().ok()?);
    let pieces = size.div_ceil(PIECE).checked_mul(4)?;
    let whole = size.checked_add(pieces)?.checked_add(FOOT as u64)?;
    (pieces == crcs as u64 && whole == length).then_some((size, digest))
}

impl Large {
    /// Opens a file and checks its tail.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io("opening", path))?;
        let length = file.metadata().map_err(StoreError::io("looking at", path))?.len();
        let damaged = || {
            let wrong = std::io::Error::new(std::io::ErrorKind::InvalidData, "its tail does not hold");
            StoreError::io("reading", path)(wrong)
        };
        // length = size + 4 * ceil(size / PIECE) + FOOT, solved for the number of pieces
        let pieces = length.saturating_sub(FOOT as u64).div_ceil(PIECE + 4);
        let tail = (pieces * 4 + FOOT as u64).min(length);
        let mut bytes = vec![0; tail as usize];
        file.read_exact_at(&mut bytes, length - tail).map_err(StoreError::io("reading", path))?;
        let path = path.to_owned();
        if let Some((size, digest)) = read_tail(&bytes, length) {
            bytes.truncate(bytes.len() - FOOT);
            return Ok(Self { file, path, crcs: bytes, frames: None, digest, size });
        }
        let tail = tail::read(&file, length).ok_or_else(damaged)?;
        let (crcs, frames, digest, size) = (tail.crcs, Some(tail.frames), tail.digest, tail.size);
        Ok(Self { file, path, crcs, frames, digest, size })
    }

    /// Pieces of the content.
    pub const fn pieces(&self) -> u64 {
        self.size.div_ceil(self.step())
    }

    /// Bytes of a piece, but for the last.
    pub const fn step(&self) -> u64 {
        if self.frames.is_some() { FRAME } else { PIECE }
    }

    /// The file; unless it has frames, the content lies at its beginning.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Its frames, when it is compressed.
    pub const fn frames(&self) -> Option<&Frames> {
        self.frames.as_ref()
    }

    /// Where a part of the content lies in the file.
    pub fn lies(&self, part: &Range<u64>) -> Range<u64> {
        let Some(frames) = &self.frames else { return part.clone() };
        frames.place(part.start / FRAME).start..frames.place(part.end.saturating_sub(1) / FRAME).end
    }

    fn damaged(&self, what: &'static str) -> StoreError {
        StoreError::io("reading", &self.path)(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
    }

    /// Reads a frame as it is stored into the buffer and checks it.
    pub fn stored_frame(&self, number: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let place = self.frames.as_ref().map_or(0..0, |frames| frames.place(number));
        buffer.resize((place.end - place.start) as usize, 0);
        self.file.read_exact_at(buffer, place.start).map_err(StoreError::io("reading", &self.path))?;
        let at = number as usize * 4;
        if self.crcs.get(at..at + 4) != Some(&crc32fast::hash(buffer).to_le_bytes()[..]) {
            return Err(self.damaged("the checksum of a frame does not hold"));
        }
        Ok(())
    }

    /// Reads a piece into the buffer and checks it.
    pub fn piece(&self, number: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        if let Some(frames) = &self.frames {
            let mut stored = Vec::new();
            self.stored_frame(number, &mut stored)?;
            let decoded = frames.decode(number, &stored, buffer);
            return decoded.ok_or_else(|| self.damaged("a frame is not what the table says"));
        }
        let from = number * PIECE;
        let length = PIECE.min(self.size.saturating_sub(from));
        buffer.resize(length as usize, 0);
        self.file.read_exact_at(buffer, from).map_err(StoreError::io("reading", &self.path))?;
        let at = number as usize * 4;
        if self.crcs.get(at..at + 4) != Some(&crc32fast::hash(buffer).to_le_bytes()[..]) {
            return Err(self.damaged("the checksum of a piece does not hold"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[rstest::rstest]
    fn file_reads_back_in_pieces(#[values(0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE)] size: u64) {
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        let mut spool = Spool::create(folder.path().join("a.part")).unwrap();
        for some in content.chunks(70_001) {
            spool.write(some).unwrap();
        }
        let finished = spool.finish(false).unwrap();
        assert_eq!(finished.digest, Digest::of(&content));
        let path = folder.path().join("x/y");
        finished.place(&path).unwrap();
        let large = Large::open(&path).unwrap();
        let (mut back, mut buffer) = (Vec::new(), Vec::new());
        for piece in 0..large.pieces() {
            large.piece(piece, &mut buffer).unwrap();
            back.extend_from_slice(&buffer);
        }
        assert!(back == content);
        if size > 0 {
            let mut bytes = fs_err::read(&path).unwrap();
            bytes[size as usize / 2] ^= 1;
            fs_err::write(&path, &bytes).unwrap();
            let large = Large::open(&path).unwrap();
            assert!(large.piece(size / 2 / PIECE, &mut buffer).is_err());
        }
    }

    #[test]
    fn unfinished_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.part");
        let mut spool = Spool::create(path.clone()).unwrap();
        spool.write(b"some").unwrap();
        drop(spool);
        assert!(!path.exists());
    }

    proptest! {
        #[test]
        fn any_tail_is_read_or_refused(tail: Vec<u8>, length: u64) {
            let _ = read_tail(&tail, length);
        }
    }
}
