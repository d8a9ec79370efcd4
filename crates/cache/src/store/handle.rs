//! The store as the tier sees it: segments that grow no more, and a way to bring back what was dropped.

use super::append::Segment;
use super::beyond::{Beyond, Purge};
use super::frames;
use super::large::{Large, Spool};
use super::log::{LogStore, Shared, locked};
use super::port::Source;
use super::record::{LARGE, Record, SEGMENT_HEAD, What};
use super::walk::walk;
use super::{Body, Policy, Provenance, Put, StoreError};
use crate::name::{Name, half};
use forgeyard_model::{Digest, Timestamp};
use std::borrow::Cow;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Weak};

/// A store that may be closed meanwhile: then there is nothing to do.
#[derive(Clone)]
pub(crate) struct Handle(Weak<Shared>);

/// A segment that grows no more. It stays readable after it was dropped.
#[derive(Debug, Clone)]
pub(crate) struct Sealed {
    pub(crate) number: u32,
    pub(crate) size: u64,
    /// It stays as it is: it was looked at whether it shrinks.
    pub(crate) rests: bool,
    segment: Arc<Segment>,
}

/// What a record of a segment means to somebody who reads it from afar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// Hash of the name, or half of the digest of a content.
    pub(crate) hash: u128,
    /// Place in the segment.
    pub(crate) at: u64,
    /// Bytes of the record.
    pub(crate) length: u64,
    pub(crate) means: Means,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    Name,
    Gone,
    Content,
}

impl Sealed {
    /// A file of its own position, to read the segment from its beginning.
    pub(crate) fn open(&self) -> Result<File, StoreError> {
        // by the open file and not by its path: it may have been dropped meanwhile
        use std::os::fd::AsRawFd as _;
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.segment.file.as_raw_fd()));
        File::open(&path).map_err(StoreError::io("opening", path))
    }

    /// What its records mean, in their order, and the large contents that they name.
    pub(crate) fn lines(&self) -> Result<(Vec<Line>, Vec<Digest>), StoreError> {
        let (mut lines, mut large) = (Vec::new(), Vec::new());
        walk(&self.segment, SEGMENT_HEAD, |at, record, length| {
            let content = half(record.digest.as_bytes());
            if record.what.carries() {
                lines.push(Line { hash: content, at, length, means: Means::Content });
            }
            let means = match record.what {
                What::Content => return Ok(()),
                What::Drop => Means::Gone,
                What::Entry | What::Link => Means::Name,
            };
            if record.what == What::Link && record.flags & LARGE != 0 {
                large.push(record.digest);
            }
            lines.push(Line { hash: record.name().0, at, length, means });
            Ok(())
        })?;
        large.sort();
        large.dedup();
        Ok((lines, large))
    }
}

impl LogStore {
    /// The store as the tier sees it.
    pub(crate) fn handle(&self) -> Handle {
        Handle(Arc::downgrade(&self.shared))
    }

    /// What lies beyond this disk, when there is a tier.
    pub fn beyond(&self) -> Option<&Beyond> {
        self.shared.beyond.as_deref()
    }

    /// Ends the segment that grows, so that it can be sent; does nothing while there is little in it.
    pub fn seal(&self) -> Result<(), StoreError> {
        self.shared.seal(0)
    }
}

impl Shared {
    pub(super) fn seal(&self, minutes: u32) -> Result<(), StoreError> {
        let mut writer = locked(&self.writer);
        let active = &writer.active;
        let idle = super::index::minutes_since(active.written.load(Relaxed), self.minute());
        if active.size.load(Acquire) > SEGMENT_HEAD && idle >= minutes {
            self.roll(&mut writer)?;
        }
        Ok(())
    }
}

impl Handle {
    fn shared(&self) -> Option<Arc<Shared>> {
        self.0.upgrade().filter(|shared| !shared.closing.load(Relaxed))
    }

    pub(crate) fn beyond(&self) -> Option<Arc<Beyond>> {
        self.shared()?.beyond.clone()
    }

    /// Ends the segment that grows when nothing was written to it for so many minutes.
    pub(crate) fn seal(&self, minutes: u32) -> Option<Result<(), StoreError>> {
        Some(self.shared()?.seal(minutes))
    }

    /// Segments that grow no more.
    pub(crate) fn sealed(&self) -> Option<Vec<Sealed>> {
        let shared = self.shared()?;
        let mut all = shared.all_segments();
        all.pop();
        let sealed = |segment: Arc<Segment>| Sealed {
            number: segment.number,
            size: segment.size.load(Acquire),
            rests: shared.looked_at(&segment),
            segment,
        };
        Some(all.into_iter().map(sealed).collect())
    }

    /// A large content that is here.
    pub(crate) fn large(&self, digest: Digest) -> Option<(PathBuf, Large)> {
        let path = self.shared()?.large_path(digest);
        let large = Large::open(&path).ok()?;
        Some((path, large))
    }

    /// A content that names share and that is here.
    pub(crate) fn content(&self, digest: Digest, size: u64) -> Option<Vec<u8>> {
        let (shared, mut buffer) = (self.shared()?, Vec::new());
        shared.ready(half(digest.as_bytes()));
        shared.content(digest, size, &mut buffer).ok()??;
        let (record, _) = Record::read(&buffer).ok()?;
        frames::content(&record).map(Cow::into_owned)
    }

    pub(crate) fn spool(&self) -> Option<Result<Spool, StoreError>> {
        Some(self.shared()?.new_spool())
    }

    /// Stores again what lies beyond and was stored there then, under the name that it has there.
    pub(crate) fn bring(
        &self,
        name: &Name,
        body: Body<'_>,
        by: &Provenance,
        stored_at: Timestamp,
    ) -> Option<Result<Put, StoreError>> {
        Some(self.shared()?.put_entry(name, body, Policy::Keep, by, Source::Beyond(stored_at)))
    }

    /// What was purged here.
    pub(crate) fn purges(&self) -> Vec<Purge> {
        self.beyond().map(|beyond| beyond.purges()).unwrap_or_default()
    }
}
