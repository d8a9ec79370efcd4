//! What is counted: entries and bytes of each scope, live bytes of each segment, names of each large content.

use super::StoreError;
use super::index::{LAST_SCOPE, Slot};
use super::log::{Shared, locked};
use super::record::LARGE;
use forgeyard_model::Digest;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, PoisonError};

/// Count of a scope.
#[derive(Debug)]
pub(super) struct ScopeCount {
    pub(super) path: Box<str>,
    pub(super) entries: AtomicI64,
    pub(super) bytes: AtomicI64,
    /// Over its quota, and leases keep what could go.
    pub(super) full: AtomicBool,
}

/// Scopes by name and by number.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    pub(super) numbers: HashMap<Box<str>, u32>,
    pub(super) counts: Vec<Arc<ScopeCount>>,
}

impl Shared {
    /// Number of a scope; makes one for a new scope, that of an empty one when there are too many.
    pub(super) fn scope(&self, path: &str) -> Result<(u32, Arc<ScopeCount>), StoreError> {
        let scopes = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = scopes.numbers.get(path) {
            return Ok((*number, Arc::clone(&scopes.counts[*number as usize])));
        }
        drop(scopes);
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = scopes.numbers.get(path) {
            return Ok((*number, Arc::clone(&scopes.counts[*number as usize])));
        }
        let (entries, bytes) = (AtomicI64::new(0), AtomicI64::new(0));
        let count = Arc::new(ScopeCount { path: path.into(), entries, bytes, full: AtomicBool::new(false) });
        let number = if scopes.counts.len() as u32 <= LAST_SCOPE {
            scopes.counts.push(Arc::clone(&count));
            scopes.counts.len() as u32 - 1
        } else {
            let empty = scopes.counts.iter().position(|count| count.entries.load(Relaxed) <= 0);
            let number = empty.ok_or(StoreError::Full("numbers of scopes"))?;
            let before = std::mem::replace(&mut scopes.counts[number], Arc::clone(&count));
            scopes.numbers.remove(&before.path);
            number as u32
        };
        scopes.numbers.insert(path.into(), number);
        Ok((number, count))
    }

    pub(super) fn count(&self, number: u32) -> Option<Arc<ScopeCount>> {
        self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.get(number as usize).cloned()
    }

    /// Counts a name out: its scope, its segment, its large file. The writer is locked.
    pub(super) fn uncount(&self, slot: Slot) {
        if let Some(segment) = self.segment(slot.segment()) {
            segment.live.fetch_sub(slot.len() as i64, Relaxed);
        }
        let seen = self.head(slot.segment(), slot.at(), |record| {
            (record.size, record.flags & LARGE != 0, record.digest)
        });
        let (size, large) = match seen {
            Ok(Some((size, large, digest))) => (size, large.then_some(digest)),
            // its size is not known any more: at least the record was there
            _ => (slot.len(), None),
        };
        if let Some(count) = self.count(slot.scope()) {
            count.entries.fetch_sub(1, Relaxed);
            count.bytes.fetch_sub(size as i64, Relaxed);
        }
        if let Some(digest) = large {
            self.release_large(digest);
        }
    }

    pub(super) fn count_in(&self, slot: Slot, size: u64) {
        if let Some(segment) = self.segment(slot.segment()) {
            segment.live.fetch_add(slot.len() as i64, Relaxed);
        }
        if let Some(count) = self.count(slot.scope()) {
            count.entries.fetch_add(1, Relaxed);
            count.bytes.fetch_add(size as i64, Relaxed);
        }
    }

    /// One more name for a large content.
    pub(super) fn name_large(&self, digest: Digest, size: u64) {
        let mut large = locked(&self.large);
        let entry = large.entry(digest).or_insert_with(|| {
            self.large_bytes.fetch_add(size as i64, Relaxed);
            (0, size)
        });
        entry.0 += 1;
    }

    /// One name less for a large content. The last one takes the file with it, but not while the log is being read: it may
    /// give the content a name again further on.
    pub(super) fn release_large(&self, digest: Digest) {
        let mut large = locked(&self.large);
        let Some((names, size)) = large.get_mut(&digest) else { return };
        *names = names.saturating_sub(1);
        if *names == 0 && !self.recovering.load(Acquire) {
            let size = *size;
            large.remove(&digest);
            self.large_bytes.fetch_sub(size as i64, Relaxed);
            self.discard(digest);
        }
    }

    /// Takes the file of a large content away. It gets a name of its own first: the same content may be written again
    /// before the file is removed, and must not be removed with it (nativelink#2715). Removing may take long, so it is left
    /// to whoever keeps the limits (bazel-remote#838).
    pub(super) fn discard(&self, digest: Digest) {
        self.shrinking.forget(digest);
        let number = self.next_part.fetch_add(1, Relaxed);
        let gone = self.config.folder.join("incoming").join(format!("{number}.gone"));
        match fs_err::rename(self.large_path(digest), &gone) {
            Ok(()) => locked(&self.trash).push(gone),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("removing a large content: {error}"),
        }
    }

    /// Removes what was taken away.
    pub(super) fn empty_trash(&self) {
        for path in std::mem::take(&mut *locked(&self.trash)) {
            if let Err(error) = fs_err::remove_file(&path) {
                tracing::warn!("removing a large content: {error}");
            }
        }
    }
}
