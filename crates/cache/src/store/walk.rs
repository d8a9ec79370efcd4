//! Reading a segment from its beginning to its end.

use super::StoreError;
use super::append::Segment;
use super::record::{HEAD, Head, Record, SEGMENT_HEAD};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering::Acquire;

/// How far a segment was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walked {
    /// Up to here records hold.
    pub(super) good: u64,
    /// Where the segment ended when this began. It may have grown since.
    pub(super) end: u64,
}

/// Reads records of a segment file in order, up to its end or to the first that does not hold; answers with how far that
/// was. It does not look for further records behind a damaged one: what lies there may be the content of an entry, and
/// whoever wrote that content could have made it look like a record of any scope.
pub(super) fn walk(
    segment: &Segment,
    from: u64,
    mut see: impl FnMut(u64, &Record<'_>, u64) -> Result<(), StoreError>,
) -> Result<Walked, StoreError> {
    walk_on(segment, from, |at, record, length| see(at, record, length).map(ControlFlow::Continue))
}

/// The same, until it is told to stop; the record at which it was is not counted as read.
pub(super) fn walk_on(
    segment: &Segment,
    from: u64,
    mut see: impl FnMut(u64, &Record<'_>, u64) -> Result<ControlFlow<()>, StoreError>,
) -> Result<Walked, StoreError> {
    let end = segment.size.load(Acquire);
    // bytes of the file from `begin` on; the buffer is filled further where records are small
    let (mut buffer, mut begin, mut ahead) = (Vec::new(), 0u64, 1 << 10);
    let fill = |buffer: &mut Vec<u8>, begin: &mut u64, at: u64, length: u64, ahead: u64| {
        let wanted = length.min(end - at);
        if at < *begin || at + wanted > *begin + buffer.len() as u64 {
            buffer.resize(wanted.max(ahead).min(end - at) as usize, 0);
            *begin = at;
            segment.file.read_exact_at(buffer, at).map_err(StoreError::io("reading", &segment.path))?;
        }
        Ok::<usize, StoreError>((at - *begin) as usize)
    };
    let mut at = from.max(SEGMENT_HEAD);
    while at < end {
        let here = fill(&mut buffer, &mut begin, at, HEAD as u64, ahead)?;
        let Ok(head) = Head::peek(&buffer[here..]) else { break };
        // the last record may be cut off, so its payload is checked; the others' are when they are read
        let last = at + head.len() >= end;
        let wanted = if last { head.len() } else { head.texts_end() as u64 };
        let here = fill(&mut buffer, &mut begin, at, wanted, ahead)?;
        let bytes = &buffer[here..];
        let found = if last { Record::read(bytes) } else { Record::read_head(bytes) };
        let Ok((record, head)) = found else { break };
        if at + head.len() > end {
            break;
        }
        if see(at, &record, head.len())?.is_break() {
            return Ok(Walked { good: at, end });
        }
        ahead = if head.len() < 8 << 10 { 256 << 10 } else { 1 << 10 };
        at += head.len();
    }
    Ok(Walked { good: at.min(end), end })
}
