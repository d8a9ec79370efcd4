//! From a candidate of the index to the record that was meant.
//!
//! The index says where a record may lie (`index`); what lies there is read and compared. Eviction may move a record, and
//! remove its segment, between the look into the index and the read: then the index is asked again, so that what moves is
//! never a miss.

use super::StoreError;
use super::index::{Slot, Spot};
use super::log::{Shared, locked};
use super::record::{HEAD, Head, Record};
use crate::name::{NameHash, half};
use forgeyard_model::Digest;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// How often a record is looked for that moves away.
pub(super) const AGAIN: usize = 3;

impl Shared {
    /// Reads so many bytes at a place into the buffer, or as many as there are. Nothing when the segment is gone.
    pub(super) fn read(
        &self,
        segment: u32,
        at: u64,
        length: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<()>, StoreError> {
        let Some(segment) = self.segment(segment) else { return Ok(None) };
        let there = segment.size.load(Acquire).saturating_sub(at);
        // growing zeroes; a buffer that is reused does not grow
        buffer.resize(length.min(there) as usize, 0);
        match segment.file.read_exact_at(buffer, at) {
            Ok(()) => Ok(Some(())),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(StoreError::io("reading", &segment.path)(error)),
        }
    }

    /// Head of the record at a place, if it holds.
    pub(super) fn head<T>(
        &self,
        segment: u32,
        at: u64,
        see: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let mut buffer = Vec::new();
        if self.read(segment, at, 768, &mut buffer)?.is_none() {
            return Ok(None);
        }
        if let Ok(head) = Head::peek(&buffer)
            && head.texts_end() > buffer.len()
            && self.read(segment, at, head.texts_end() as u64, &mut buffer)?.is_none()
        {
            return Ok(None);
        }
        Ok(Record::read_head(&buffer).ok().map(|(record, _)| see(&record)))
    }

    /// A content that names share, read whole into the buffer as it is stored and checked, with the flags of its record. One that is damaged is forgotten, so that the
    /// next write of these bytes stores them again.
    pub(super) fn content(
        &self,
        digest: Digest,
        size: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Spot, Head, u8)>, StoreError> {
        let hash = half(digest.as_bytes());
        for _ in 0..AGAIN {
            let mut gone = false;
            for spot in self.contents.find(hash) {
                // most texts are shorter than this
                let length = HEAD as u64 + 512 + size;
                let mut there = self.read(spot.segment(), spot.at(), length, buffer)?.is_some();
                let needed = Head::peek(buffer).map_or(0, |head| (head.texts_end() + head.payload) as u64);
                if there && needed > length {
                    there = self.read(spot.segment(), spot.at(), needed, buffer)?.is_some();
                }
                if !there {
                    gone = true;
                    continue;
                }
                match Record::read(buffer) {
                    Ok((record, head)) if record.digest == digest && record.what.carries() => {
                        return Ok(Some((spot, head, record.flags)));
                    }
                    Ok(_) => {}
                    Err(_) => self.forget_content(hash, spot),
                }
            }
            if !gone {
                break;
            }
        }
        Ok(None)
    }

    /// Whether a content that names share is there, without looking at its bytes.
    pub(super) fn has_content(&self, digest: Digest) -> Result<Option<Spot>, StoreError> {
        for _ in 0..AGAIN {
            let mut gone = false;
            for spot in self.contents.find(half(digest.as_bytes())) {
                match self.head(spot.segment(), spot.at(), |record| record.digest == digest)? {
                    Some(true) => return Ok(Some(spot)),
                    Some(false) => {}
                    None => gone = true,
                }
            }
            if !gone {
                break;
            }
        }
        Ok(None)
    }

    pub(super) fn forget_content(&self, hash: u128, spot: Spot) {
        if self.contents.remove(hash, spot).is_some() {
            self.damaged.fetch_add(1, Relaxed);
            tracing::warn!(
                segment = spot.segment(),
                at = spot.at(),
                "a content is damaged; it is not shared any more"
            );
        }
    }

    /// The slot of a name, its record looked at. The shard is in, see [`Shared::ready`].
    pub(super) fn find<T>(
        &self,
        hash: NameHash,
        see: impl Fn(&Record<'_>) -> T,
    ) -> Result<Option<(Slot, T)>, StoreError> {
        for _ in 0..AGAIN {
            let mut gone = false;
            for slot in self.names.find(hash.0) {
                let seen = |record: &Record<'_>| (record.name() == hash).then(|| see(record));
                match self.head(slot.segment(), slot.at(), seen)? {
                    Some(Some(seen)) => return Ok(Some((slot, seen))),
                    Some(None) => {}
                    None => gone = true,
                }
            }
            if !gone {
                break;
            }
        }
        Ok(None)
    }

    /// Takes a damaged name out of the index.
    pub(super) fn forget(&self, hash: NameHash, slot: Slot) {
        let _writer = locked(&self.writer);
        if self.names.remove(hash.0, slot).is_some() {
            self.damaged.fetch_add(1, Relaxed);
            self.uncount(slot);
            tracing::warn!(segment = slot.segment(), at = slot.at(), "an entry is damaged; it is a miss now");
        }
    }

    /// Takes a name out of the index whose content was evicted. That is no damage: eviction takes a content that nobody read
    /// through a link, and writes nothing to the log, so a start can find links to what went.
    pub(super) fn forget_dangling(&self, hash: NameHash, slot: Slot) {
        let _writer = locked(&self.writer);
        if self.names.remove(hash.0, slot).is_some() {
            self.uncount(slot);
            tracing::debug!(segment = slot.segment(), at = slot.at(), "the content of an entry was evicted");
        }
    }

    /// Whether the file of a large content was not there at the start: then its names are leftovers of an eviction before it.
    pub(super) fn went_before(&self, digest: Digest) -> bool {
        locked(&self.missing).contains(&digest)
    }
}
