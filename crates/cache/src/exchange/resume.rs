//! `PUT` in parts: `Content-Range: bytes FIRST-LAST/SIZE`, over as many requests and connections as it takes.
//!
//! ```text
//! PUT  Content-Range: bytes 0-99/250          308  Range: bytes=0-99        the part is in
//! PUT  Content-Range: bytes */250             308  Range: bytes=0-99        how far it got; without Range: nothing yet
//! PUT  Content-Range: bytes 100-249/250       201                           the last part: an entry like any other
//! PUT  Content-Range: bytes 200-249/250       409  Range: bytes=0-99        not where it stands
//! ```
//!
//! 308 as Google's resumable uploads have it. A part whose connection broke counts as far as it came. Whoever begins at 0
//! begins anew. An upload belongs to the principal, the scope and the key that began it, and is no entry before its last
//! byte is in and its digest or shape was looked at.

use super::Access;
use crate::connection::{Connection, End, Incoming, TOO_LARGE};
use crate::http::{Framing, Head, Wrong};
use crate::name::Name;
use crate::parked::Ticket;
use crate::service::Core;

/// A part, or the question how far an upload got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// First and last byte; nothing for the question.
    range: Option<(u64, u64)>,
    /// Size of the whole.
    size: u64,
}

/// Reads `Content-Range` of a request.
pub(super) fn part(text: &str) -> Option<Part> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let size = number(size)?;
    if range == "*" {
        return Some(Part { range: None, size });
    }
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last < size).then_some(Part { range: Some((first, last)), size })
}

async fn stands(conn: &mut Connection, head: &Head, status: u16, at: u64) -> Result<Option<Incoming>, End> {
    let range = format!("bytes=0-{}", at.saturating_sub(1));
    let headers = [("Range", range.as_str())];
    conn.begin(status, 0, head.keep_alive, if at == 0 { &[] } else { &headers });
    conn.send(None).await.map(|()| None)
}

/// Takes a part. Answers with the whole once it is in; everything else was answered.
pub(super) async fn receive(
    core: &Core,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    name: &Name,
    text: &str,
) -> Result<Option<Incoming>, End> {
    let Some(part) = part(text) else {
        return Err(Wrong {
            status: 400,
            reason: "Content-Range is not bytes FIRST-LAST/SIZE or bytes */SIZE",
        }
        .into());
    };
    if part.size > core.largest {
        return Err(TOO_LARGE.into());
    }
    let principal = &access.provenance.principal;
    let ticket = Ticket::of(&["http", name.scope.as_str(), name.kind.as_str(), &name.key, principal]);
    let at = core.parked.bytes(ticket).unwrap_or(0);
    let Some((first, last)) = part.range else {
        super::drain(conn, core, head).await?;
        return stands(conn, head, 308, at).await;
    };
    if head.framing != Framing::Length(last + 1 - first) {
        return Err(
            Wrong { status: 400, reason: "the length of the part is not that of its Content-Range" }.into()
        );
    }
    let before = core.parked.take(ticket);
    let mut upload = match before {
        _ if first == 0 => Incoming::Memory(Vec::new()),
        Some(upload) if upload.size() == first => upload,
        other => {
            if let Some(upload) = other {
                core.parked.park(ticket, upload, at, (core.clock)());
            }
            super::drain(conn, core, head).await?;
            return stands(conn, head, 409, at).await;
        }
    };
    conn.proceed(head).await?;
    let poured = conn.pour(core, head, &mut upload).await;
    let size = upload.size();
    match poured {
        Ok(()) if size == part.size => return Ok(Some(upload)),
        Ok(()) => {}
        // a full disk is no reason to keep what is on it
        Err(End::Io(error)) => {
            core.parked.park(ticket, upload, size, (core.clock)());
            return Err(End::Io(error));
        }
        Err(end) => return Err(end),
    }
    core.parked.park(ticket, upload, size, (core.clock)());
    stands(conn, head, 308, size).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_read_as_the_standard_writes_them() {
        assert_eq!(part("bytes 0-9/10"), Some(Part { range: Some((0, 9)), size: 10 }));
        assert_eq!(part("bytes */10"), Some(Part { range: None, size: 10 }));
        for wrong in
            ["bytes 0-10/10", "bytes 5-4/10", "bytes 0-9/*", "bytes=0-9/10", "0-9/10", "bytes +0-9/10", ""]
        {
            assert_eq!(part(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_part_or_refused(text in "(bytes )?[0-9*/-]{0,40}") {
            if let Some(Part { range: Some((first, last)), size }) = part(&text) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
