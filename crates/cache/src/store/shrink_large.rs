//! Compression at rest of large contents: each is a file, and is replaced by a compressed one under the same name.
//!
//! The new file is written beside, frame by frame, each read piece held against its checksum and each frame decoded again;
//! it is synced and then renamed over the old one. So a crash finds the old file or the new one, whole, and whoever has the old one
//! open reads on. A content waits that has not been there for the time that is configured, or for half a minute, and one that is
//! read as it is; see `shrink`. The way back is in `write_back`.
//!
//! ```text
//! large.plain   contents that were tried in vain: records of 36 bytes, SHA-256 and its CRC-32
//! ```

use super::StoreError;
use super::cold::drop_behind;
use super::frames::{Encoder, FRAME, SAMPLE, SHARE, packed, promising};
use super::index::{LAST_MINUTE, minutes_since};
use super::large::Large;
use super::log::{Shared, locked};
use super::shrink::Pace;
use super::tail;
use crate::name::half;
use forgeyard_model::Digest;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

const RECORD: usize = 36;
/// After so many bytes it gives up when they hardly shrank.
const ENOUGH: u64 = 4 << 20;

fn record(digest: Digest) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..32].copy_from_slice(digest.as_bytes());
    bytes[32..].copy_from_slice(&crc32fast::hash(digest.as_bytes()).to_le_bytes());
    bytes
}

/// Records that hold. Never panics.
fn records(bytes: &[u8]) -> impl Iterator<Item = Digest> + '_ {
    bytes.chunks_exact(RECORD).filter_map(|one| {
        let (digest, crc) = one.split_at_checked(32)?;
        (crc32fast::hash(digest).to_le_bytes() == crc).then_some(Digest::from_bytes(digest.try_into().ok()?))
    })
}

/// A file on its way that is removed when it comes to nothing.
struct Beside(Option<PathBuf>);

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = fs_err::remove_file(path);
        }
    }
}

impl Shared {
    fn plain_path(&self) -> PathBuf {
        self.config.folder.join("large.plain")
    }

    /// Which large contents are compressed already, and which were tried in vain. Whether it came to the end.
    pub(super) fn count_large(&self, pace: &mut Pace<'_>) -> Result<bool, StoreError> {
        let path = self.plain_path();
        let tried = fs_err::read(&path).unwrap_or_default();
        let minute = self.minute();
        let all: Vec<(Digest, u64)> =
            locked(&self.large).iter().map(|(digest, (_, size))| (*digest, *size)).collect();
        for (digest, size) in &all {
            if !pace.go_on() {
                return Ok(false);
            }
            let facts = fs_err::metadata(self.large_path(*digest));
            let length = facts.as_ref().map_or(u64::MAX, std::fs::Metadata::len);
            let age = facts.ok().and_then(|facts| self.age(facts.modified().ok()?)).unwrap_or(0);
            locked(&self.shrinking.large).seen.insert(*digest, minute.wrapping_sub(age) & LAST_MINUTE);
            let named = locked(&self.large);
            if length < *size && named.contains_key(digest) {
                self.shrinking.keep(*digest, size - length);
            }
        }
        let here: HashSet<Digest> = all.into_iter().map(|(digest, _)| digest).collect();
        let plain: HashSet<Digest> = records(&tried).filter(|digest| here.contains(digest)).collect();
        let beside = path.with_extension("new");
        let bytes: Vec<u8> = plain.iter().flat_map(|digest| record(*digest)).collect();
        fs_err::write(&beside, bytes).map_err(StoreError::io("writing", &beside))?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))?;
        locked(&self.shrinking.large).plain.extend(plain);
        Ok(true)
    }

    /// Minutes since a time, as far as minutes reach.
    fn age(&self, then: std::time::SystemTime) -> Option<u32> {
        let then = i64::try_from(then.duration_since(std::time::UNIX_EPOCH).ok()?.as_micros()).ok()?;
        let minutes = ((self.clock)().as_micros() - then) / 60_000_000;
        Some(u32::try_from(minutes).ok()?.min(LAST_MINUTE / 4))
    }

    /// Compresses large contents that nobody reads and that were there for long enough, or all.
    pub(super) fn shrink_large_ones(
        &self,
        encoder: &mut Encoder,
        pace: &mut Pace<'_>,
    ) -> Result<(), StoreError> {
        let all: Vec<Digest> = locked(&self.large).keys().copied().collect();
        let (minute, at_once) = (self.minute(), pace.at_once);
        // with a tier nothing waits but for its readers: what is there is sent soon
        let tier = self.beyond.is_some();
        let wait = if tier { 0 } else { self.config.compression.after_minutes };
        let known = tier || self.plain_reads.knows(minute);
        let is_read = |digest: &Digest| self.plain_reads.was_read(half(digest.as_bytes()) as u64);
        let mut waiting: Vec<Digest> = {
            let mut ones = locked(&self.shrinking.large);
            let new = |digest: &Digest| !ones.framed.contains_key(digest) && !ones.plain.contains(digest);
            let since = |digest: Digest| (digest, ones.seen.get(&digest).copied().unwrap_or(minute));
            let open: HashMap<Digest, u32> = all.into_iter().filter(new).map(since).collect();
            let old = |(digest, since): &(&Digest, &u32)| {
                let there = minutes_since(**since, minute) >= wait;
                there && ones.seen.contains_key(*digest) && known && !is_read(digest)
            };
            let due = open.iter().filter(|one| at_once || old(one)).map(|(digest, _)| *digest).collect();
            ones.seen = open;
            due
        };
        waiting.sort();
        for digest in waiting {
            if !pace.go_on() {
                return Ok(());
            }
            match self.shrink_large(digest, encoder, pace)? {
                Shrank::Vain => {
                    self.shrinking.left.fetch_add(1, Relaxed);
                    locked(&self.shrinking.large).plain.insert(digest);
                    let path = self.plain_path();
                    let file = File::options().create(true).append(true).open(&path);
                    let written = file.and_then(|mut file| file.write_all(&record(digest)));
                    written.map_err(StoreError::io("writing to", &path))?;
                }
                Shrank::Placed | Shrank::Gone => {}
            }
        }
        Ok(())
    }

    fn shrink_large(
        &self,
        digest: Digest,
        encoder: &mut Encoder,
        pace: &mut Pace<'_>,
    ) -> Result<Shrank, StoreError> {
        let path = self.large_path(digest);
        // what is damaged is for the scrub
        let Ok(large) = Large::open(&path) else { return Ok(Shrank::Gone) };
        if large.frames().is_some() || large.digest != digest {
            return Ok(Shrank::Gone);
        }
        if large.size > tail::LARGEST || !self.large_promises(&large, encoder) {
            return Ok(Shrank::Vain);
        }
        if self.disk_bytes() + large.size > self.hard_limit() {
            return Ok(Shrank::Gone);
        }
        let number = self.next_part.fetch_add(1, Relaxed);
        let part = self.config.folder.join("incoming").join(format!("{number}.part"));
        let file = File::options().write(true).create_new(true).open(&part);
        let mut file = file.map_err(StoreError::io("making", &part))?;
        let mut beside = Beside(Some(part.clone()));
        let failed = || StoreError::io("writing", &part);
        let (mut piece, mut out, mut lengths, mut crcs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut taken, mut made) = (0u64, 0u64);
        for number in 0..large.pieces() {
            if !pace.go_on() || large.piece(number, &mut piece).is_err() {
                return Ok(Shrank::Gone);
            }
            for content in piece.chunks(FRAME as usize) {
                out.clear();
                lengths.push(encoder.frame(content, &mut out).map_err(failed())?);
                crcs.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
                file.write_all(&out).map_err(failed())?;
                made += out.len() as u64;
            }
            taken += piece.len() as u64;
            if taken >= ENOUGH && !worth(taken, made) {
                return Ok(Shrank::Vain);
            }
        }
        let end = tail::write(&lengths, &crcs, large.size, digest);
        file.write_all(&end).map_err(failed())?;
        let length = made + end.len() as u64;
        if !worth(large.size, length) {
            return Ok(Shrank::Vain);
        }
        file.sync_data().map_err(StoreError::io("syncing", &part))?;
        if self.place_framed(digest, &path, &part, large.size - length)? {
            beside.0 = None;
            self.shrinking.bodies.fetch_add(1, Relaxed);
            self.shrinking.bytes_in.fetch_add(large.size, Relaxed);
            self.shrinking.bytes_out.fetch_add(length, Relaxed);
            drop_behind(large.file(), &(0..large.size));
            drop_behind(&file, &(0..length));
            return Ok(Shrank::Placed);
        }
        Ok(Shrank::Gone)
    }

    /// Whether a few KiB of a file shrink.
    fn large_promises(&self, large: &Large, encoder: &mut Encoder) -> bool {
        let mut sample = vec![0; SAMPLE];
        if large.file().read_exact_at(&mut sample, 0).is_err() || packed(&sample) {
            return false;
        }
        // any of them, as archives begin and end with what they are not full of
        let places = [0, large.size / 4, large.size / 2, large.size / 4 * 3];
        let mut good = 0;
        for at in places {
            let at = at.min(large.size.saturating_sub(SAMPLE as u64));
            let read = large.file().read_exact_at(&mut sample, at);
            good += u32::from(read.is_ok() && promising(encoder.permille(&sample)));
        }
        good >= 2
    }

    /// Puts the compressed file in the place of the other, if that is still there.
    fn place_framed(&self, digest: Digest, path: &Path, part: &Path, saved: u64) -> Result<bool, StoreError> {
        let _writer = locked(&self.writer);
        let large = locked(&self.large);
        if !large.contains_key(&digest) || !path.exists() {
            return Ok(false);
        }
        fs_err::rename(part, path).map_err(StoreError::io("renaming to", path))?;
        self.shrinking.keep(digest, saved);
        Ok(true)
    }
}

const fn worth(content: u64, stored: u64) -> bool {
    stored <= content - content / SHARE
}

/// What came of a large content.
enum Shrank {
    /// It is compressed.
    Placed,
    /// It hardly shrinks.
    Vain,
    /// It went meanwhile, or it is not the time.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_records_or_passed_over(mut bytes: Vec<u8>, count in 0usize..5) {
            let good: Vec<u8> = (0..count).flat_map(|at| record(Digest::of(&[at as u8]))).collect();
            prop_assert_eq!(records(&good).count(), count);
            bytes.splice(0..0, good);
            prop_assert!(records(&bytes).count() >= count);
        }
    }
}
