//! The end of the log: segments, and records written one behind the other.
//!
//! Whoever writes holds the writer. A write that failed does not move the end, so the next one is written over it. With
//! group commit one thread syncs what was written, as often as somebody waits for it.

use super::StoreError;
use super::index::LAST_SEGMENT;
use super::log::{Durability, Shared, locked};
use super::record::{self, Record, SEGMENT_HEAD};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Arc, PoisonError};

/// Payloads from this size on are written from where they lie.
const GATHERED: usize = 4 << 10;

/// Writes parts one behind the other.
fn write_gathered(file: &File, at: u64, parts: &[&[u8]]) -> std::io::Result<()> {
    let slices: Vec<std::io::IoSlice<'_>> = parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
    let mut done = loop {
        match nix::sys::uio::pwritev(file, &slices, at as i64) {
            Err(nix::errno::Errno::EINTR) => {}
            written => break written?,
        }
    };
    // what a short write left, one part after the other
    let mut at = at;
    for part in parts {
        let here = done.min(part.len());
        file.write_all_at(&part[here..], at + here as u64)?;
        at += part.len() as u64;
        done -= here;
    }
    Ok(())
}

/// One file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// Bytes written.
    pub(super) size: AtomicU64,
    /// Bytes of records that names stand for, once for each name.
    pub(super) live: AtomicI64,
    /// Bytes of large contents that its records name.
    pub(super) large: AtomicU64,
    /// Minute of the last write.
    pub(super) written: AtomicU32,
    /// Whether it shrinks, and by how much it was shrunk.
    pub(super) shrunk: super::shrink::Shrunk,
}

/// What holds the end of the log.
pub(super) struct Writer {
    pub(super) active: Arc<Segment>,
    pub(super) buffer: Vec<u8>,
    pub(super) sequence: u64,
    /// Segments that were sealed since the last snapshot.
    pub(super) unsynced: Vec<Arc<Segment>>,
    /// Records since the last snapshot: what a start has to read.
    pub(super) behind: u64,
}

impl Shared {
    /// Writes a record at the end of the log. The place does not move when the write fails, so what a failed write left
    /// is written over.
    pub(super) fn append(&self, writer: &mut Writer, record: &Record<'_>) -> Result<(u32, u64), StoreError> {
        if self.broken.load(Relaxed) {
            return Err(StoreError::Broken);
        }
        let length = record.len();
        // large contents go with the segment that names them, so it must not name too many
        let names_much = writer.active.large.load(Relaxed) > self.config.capacity / 8;
        let size = writer.active.size.load(Relaxed);
        if names_much || size + length > self.config.segment.max(SEGMENT_HEAD + length) {
            self.roll(writer)?;
        }
        let mut buffer = std::mem::take(&mut writer.buffer);
        buffer.clear();
        record.write_head(&mut buffer);
        let padding = length as usize - buffer.len() - record.payload.len();
        let segment = &writer.active;
        let at = segment.size.load(Relaxed);
        // small ones are cheaper to copy than to gather
        let written = if record.payload.len() < GATHERED {
            buffer.extend_from_slice(record.payload);
            buffer.resize(length as usize, 0);
            segment.file.write_all_at(&buffer, at)
        } else {
            write_gathered(&segment.file, at, &[&buffer, record.payload, &[0; 64][..padding]])
        };
        writer.buffer = buffer;
        written.map_err(StoreError::io("writing to", &segment.path))?;
        segment.size.store(at + length, Release);
        segment.written.store(self.minute(), Relaxed);
        segment.shrunk.count(record);
        self.log_bytes.fetch_add(length, Relaxed);
        writer.sequence += 1;
        writer.behind += 1;
        Ok((segment.number, at))
    }

    /// Starts a new segment.
    pub(super) fn roll(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let number = writer.active.number + 1;
        if number >= LAST_SEGMENT {
            return Err(StoreError::Full("numbers of segments"));
        }
        if self.config.durability == Durability::Group {
            let sealed = &writer.active;
            sealed.file.sync_data().map_err(StoreError::io("syncing", &sealed.path))?;
        }
        let segment = Arc::new(Segment::create(&self.config.folder, number, self.minute())?);
        self.log_bytes.fetch_add(SEGMENT_HEAD, Relaxed);
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        segments.insert(number, Arc::clone(&segment));
        drop(segments);
        let sealed = std::mem::replace(&mut writer.active, segment);
        writer.unsynced.push(sealed);
        Ok(())
    }

    pub(super) fn sync_loop(&self) {
        let mut done = 0;
        loop {
            let mut wanted = locked(&self.wanted);
            while wanted.ticket <= done && !wanted.stop {
                wanted = self.wake.wait(wanted).unwrap_or_else(PoisonError::into_inner);
            }
            if wanted.ticket <= done {
                return;
            }
            drop(wanted);
            let (sequence, segment) = {
                let writer = locked(&self.writer);
                (writer.sequence, Arc::clone(&writer.active))
            };
            let beyond = self.beyond.as_ref().map_or(Ok(()), |beyond| beyond.sync());
            // earlier segments were synced when they were sealed
            if let Err(error) = beyond.and_then(|()| segment.file.sync_data()) {
                tracing::error!(
                    "syncing {} failed: {error}; no put is acknowledged any more",
                    segment.path.display()
                );
                self.broken.store(true, Relaxed);
                self.synced.send_modify(|_| {});
                return;
            }
            done = sequence;
            self.synced.send_replace(done);
        }
    }
}

impl Segment {
    pub(super) fn create(folder: &std::path::Path, number: u32, minute: u32) -> Result<Self, StoreError> {
        let path = folder.join("seg").join(format!("{number:08}.fyl"));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(StoreError::io("making", &path))?;
        let head = record::segment_head(number);
        file.write_all_at(&head, 0).map_err(StoreError::io("writing to", &path))?;
        Ok(Self::over(number, path, file, SEGMENT_HEAD, minute))
    }

    pub(super) const fn over(number: u32, path: PathBuf, file: File, size: u64, minute: u32) -> Self {
        let shrunk = super::shrink::Shrunk::new(size);
        let (size, live, written) = (AtomicU64::new(size), AtomicI64::new(0), AtomicU32::new(minute));
        Self { number, path, file, size, live, large: AtomicU64::new(0), written, shrunk }
    }
}
