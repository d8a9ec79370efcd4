//! Long promises, which outlive a crash: what must stay for days, whatever quota, age or room say.
//!
//! A client of Nix believes a `narinfo` for 30 days, so the file that it names stays for 30 days after the last time that it
//! was handed out (nix#1885). A lease in the index alone would be known only as of the last snapshot.
//!
//! ```text
//! kept.log   records of 24 bytes: hash of the name, minute since 1970 until which it stays u32, CRC-32 of both; little-endian
//! ```
//!
//! One record for each name and day at most. A record that does not hold ends the file. It is written anew at the start with
//! what has not passed; a promise is put into the index before anything is taken out of it.

use super::StoreError;
use super::index::minutes_ahead;
use super::log::{Shared, locked};
use crate::name::NameHash;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

const RECORD: usize = 24;
/// A promise that reaches further by less than this is not written down again.
const DAY: u32 = 24 * 60;

/// The file, and what it says that is not in the index yet.
#[derive(Debug)]
pub(super) struct Kept {
    file: File,
    waiting: HashMap<u128, u32>,
}

fn record(name: u128, until: u32) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..16].copy_from_slice(&name.to_le_bytes());
    bytes[16..20].copy_from_slice(&until.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Records that hold, from the beginning. Never panics.
fn records(bytes: &[u8]) -> impl Iterator<Item = (u128, u32)> + '_ {
    bytes.chunks_exact(RECORD).map_while(|one| {
        let (said, crc) = one.split_at_checked(20)?;
        if crc32fast::hash(said).to_le_bytes() != crc {
            return None;
        }
        Some((
            u128::from_le_bytes(said[..16].try_into().ok()?),
            u32::from_le_bytes(said[16..].try_into().ok()?),
        ))
    })
}

impl Kept {
    /// Reads what was promised and has not passed at this minute since 1970.
    pub(super) fn open(folder: &Path, now: u32) -> Result<Self, StoreError> {
        let path = folder.join("kept.log");
        let bytes = match fs_err::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(StoreError::io("reading", &path))?,
        };
        let mut waiting: HashMap<u128, u32> = records(&bytes).collect();
        waiting.retain(|_, until| *until > now);
        let beside = path.with_extension("new");
        let file = File::options().create(true).truncate(true).write(true).open(&beside);
        let mut file = file.map_err(StoreError::io("making", &beside))?;
        let all: Vec<u8> = waiting.iter().flat_map(|(name, until)| record(*name, *until)).collect();
        file.write_all(&all).map_err(StoreError::io("writing to", &beside))?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))?;
        Ok(Self { file, waiting })
    }
}

impl Shared {
    /// Minute since 1970 that does not wrap.
    fn minute_whole(&self) -> u32 {
        u32::try_from((self.clock)().as_micros() / 60_000_000).unwrap_or(u32::MAX)
    }

    /// Leases a name for so many minutes and writes that down. Whether it is there.
    pub(super) fn keep(&self, name: NameHash, minutes: u32) -> Result<bool, StoreError> {
        while let Some((slot, _)) = self.known(name)? {
            let now = self.minute();
            let held = minutes_ahead(slot.minute(), now);
            if !self.names.lease(name.0, slot, now.wrapping_add(minutes), now) {
                // it was moved while it was looked at
                continue;
            }
            if held + DAY <= minutes {
                let until = self.minute_whole().saturating_add(minutes);
                let mut kept = locked(&self.kept);
                let written = kept.file.write_all(&record(name.0, until));
                written.map_err(StoreError::io("writing to", self.config.folder.join("kept.log")))?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Puts what was promised before the start into the index. The index is whole.
    pub(super) fn keep_waiting(&self) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut locked(&self.kept).waiting);
        let (now, wrapped) = (self.minute_whole(), self.minute());
        for (name, until) in waiting {
            let Some(ahead) = until.checked_sub(now) else { continue };
            if let Some((slot, ())) = self.find(NameHash(name), |_| ())? {
                self.names.lease(name, slot, wrapped.wrapping_add(ahead), wrapped);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_records_or_end_the_file(mut bytes: Vec<u8>, until: Vec<u32>) {
            let good: Vec<u8> = until.iter().flat_map(|until| record(7, *until)).collect();
            prop_assert_eq!(records(&good).count(), until.len());
            bytes.splice(0..0, good);
            prop_assert!(records(&bytes).count() >= until.len());
        }
    }
}
