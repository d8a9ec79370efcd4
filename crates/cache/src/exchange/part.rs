//! The answer to a read of an entry: all of it, or the part that was asked for.

use crate::connection::{Connection, End, Thread};
use crate::http::{Head, Method, range_of};
use crate::store::{Facts, Place};
use std::ops::Range;

/// Headers of an answer, at most: those of a caller and the three that are put here.
const HEADERS: usize = 8;

/// What a reader wants of an entry.
pub(crate) enum Asked {
    All,
    Part(Range<u64>),
    /// A part that does not exist; this was said.
    Answered,
}

/// Which part of an entry of this size is asked for.
pub(crate) async fn asked(conn: &mut Connection, head: &Head, size: u64) -> Result<Asked, End> {
    let asked = head.range.as_ref().filter(|_| head.method == Method::Get);
    match asked.and_then(|text| range_of(text, size)) {
        None => Ok(Asked::All),
        Some(Ok((first, last))) => Ok(Asked::Part(first..last + 1)),
        Some(Err(wrong)) => {
            let whole = format!("bytes */{size}");
            conn.begin(wrong.status, 0, head.keep_alive, &[("Content-Range", &whole)]);
            conn.send(None).await?;
            Ok(Asked::Answered)
        }
    }
}

/// Begins the answer. Gives back the part whose bytes are to be sent, or nothing when all was said.
pub(crate) async fn begin(
    conn: &mut Connection,
    head: &Head,
    facts: &Facts,
    headers: &[(&str, &str)],
) -> Result<Option<Range<u64>>, End> {
    let size = facts.size;
    let (status, part) = match asked(conn, head, size).await? {
        Asked::All => (200, 0..size),
        Asked::Part(part) => (206, part),
        Asked::Answered => return Ok(None),
    };
    let tag = format!("\"{}\"", facts.digest.hex());
    let shown = match status {
        206 => format!("bytes {}-{}/{size}", part.start, part.end.saturating_sub(1)),
        _ => String::new(),
    };
    let own = [("ETag", &*tag), ("Accept-Ranges", "bytes"), ("Content-Range", &*shown)];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let (mut all, mut count) = ([("", ""); HEADERS], 0);
    for (place, header) in all.iter_mut().zip(headers.iter().copied().chain(own)) {
        *place = header;
        count += 1;
    }
    conn.begin(status, part.end - part.start, head.keep_alive, all.get(..count).unwrap_or_default());
    if head.method == Method::Head {
        conn.send(None).await?;
        return Ok(None);
    }
    Ok(Some(part))
}

/// Sends a part of an entry of this size, whose bytes are in the buffer of the connection or in a file of their own.
pub(crate) async fn send(
    thread: &Thread,
    conn: &mut Connection,
    place: Place,
    size: u64,
    part: Range<u64>,
) -> Result<(), End> {
    match place {
        Place::Buffer(range) => {
            let from = range.start + part.start as usize;
            conn.send_entry(from..range.start + part.end as usize).await
        }
        Place::Large(_) if size == 0 => conn.send(None).await,
        Place::Large(large) => conn.send_large(thread, &large, part).await,
    }
}
