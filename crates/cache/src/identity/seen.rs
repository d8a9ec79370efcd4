//! Which tokens were exchanged already: in memory, and in a file so that a restart forgets none.
//!
//! ```text
//! exchanged.log   records of 44 bytes: SHA-256 that stands for the token, end of its life in seconds i64, CRC-32 of both,
//!                 little-endian. One that does not hold ends the file: nothing was given for what a crash cut off.
//! ```
//!
//! A record is written before its token is answered for, and no token is given when it cannot be. It is not synced: a
//! machine that loses power may forget the last seconds, a process that dies forgets nothing. The file is written anew when
//! most of it has ended. Neither the foreign token nor its `jti` is in it.

use super::jwt::SKEW;
use forgeyard_model::Digest;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Exchanged tokens that are remembered at most.
const MOST: usize = 100_000;
const RECORD: usize = 44;

/// What was exchanged before.
#[derive(Debug)]
pub(super) struct Seen {
    path: PathBuf,
    file: File,
    records: usize,
    ends: HashMap<Digest, i64>,
}

/// Why a token is not exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// It was before.
    Replay,
    /// It could not be remembered.
    Busy,
}

fn record(id: Digest, end: i64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..32].copy_from_slice(id.as_bytes());
    bytes[32..40].copy_from_slice(&end.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..40]);
    bytes[40..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Records that hold, from the beginning. Never panics.
fn records(bytes: &[u8]) -> impl Iterator<Item = (Digest, i64)> + '_ {
    bytes.chunks_exact(RECORD).map_while(|one| {
        let (said, crc) = one.split_at_checked(40)?;
        if crc32fast::hash(said).to_le_bytes() != crc {
            return None;
        }
        Some((
            Digest::from_bytes(said[..32].try_into().ok()?),
            i64::from_le_bytes(said[32..].try_into().ok()?),
        ))
    })
}

impl Seen {
    /// Of this file, which need not be there.
    pub(super) fn open(path: PathBuf) -> std::io::Result<Self> {
        let bytes = match fs_err::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let ends: HashMap<Digest, i64> = records(&bytes).collect();
        // written anew, since what follows a record that does not hold would not be read
        let file = Self::write(&path, &ends)?;
        Ok(Self { path, file, records: ends.len(), ends })
    }

    fn write(path: &Path, ends: &HashMap<Digest, i64>) -> std::io::Result<File> {
        let beside = path.with_extension("new");
        let mut file = File::options().create(true).truncate(true).write(true).open(&beside)?;
        let all: Vec<u8> = ends.iter().flat_map(|(id, end)| record(*id, *end)).collect();
        file.write_all(&all)?;
        fs_err::rename(&beside, path)?;
        Ok(file)
    }

    /// Whether this is the first time; remembers it until `end`. Times are in seconds.
    pub(super) fn first(&mut self, id: Digest, end: i64, now: i64) -> Result<(), Again> {
        if self.ends.len() >= MOST || self.records > 1000 && self.records > 2 * self.ends.len() {
            self.ends.retain(|_, end| end.saturating_add(SKEW) > now);
            match Self::write(&self.path, &self.ends) {
                Ok(file) => (self.file, self.records) = (file, self.ends.len()),
                Err(error) => tracing::error!("writing {}: {error}", self.path.display()),
            }
        }
        if self.ends.len() >= MOST {
            return Err(Again::Busy);
        }
        if self.ends.get(&id).is_some_and(|before| before.saturating_add(SKEW) > now) {
            return Err(Again::Replay);
        }
        if let Err(error) = self.file.write_all(&record(id, end)) {
            tracing::error!("writing {}: {error}; no token is exchanged", self.path.display());
            return Err(Again::Busy);
        }
        self.records += 1;
        self.ends.insert(id, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn token_that_was_exchanged_is_known_after_a_restart_and_behind_a_record_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exchanged.log");
        let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
        assert_eq!(Seen::open(path.clone()).unwrap().first(one, 1000, 0), Ok(()));
        let mut bytes = fs_err::read(&path).unwrap();
        bytes.extend_from_slice(&record(two, 1000)[..20]);
        fs_err::write(&path, bytes).unwrap();
        let mut seen = Seen::open(path.clone()).unwrap();
        assert_eq!(seen.first(one, 1000, 10), Err(Again::Replay));
        assert_eq!(seen.first(two, 1000, 10), Ok(()));
        let mut seen = Seen::open(path).unwrap();
        assert_eq!(seen.first(two, 1000, 10), Err(Again::Replay));
        assert_eq!(seen.first(two, 3000, 1000 + SKEW), Ok(()), "its life is over");
    }

    proptest! {
        #[test]
        fn any_bytes_are_records_or_end_the_file(mut bytes: Vec<u8>, ends: Vec<i64>) {
            let good: Vec<u8> = ends.iter().flat_map(|end| record(Digest::of(b"x"), *end)).collect();
            prop_assert_eq!(records(&good).count(), ends.len());
            bytes.splice(0..0, good);
            prop_assert!(records(&bytes).count() >= ends.len());
        }
    }
}
