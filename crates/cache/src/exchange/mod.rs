//! One request: who asks, what it means, what is answered.
//!
//! The rules that keep clients green: a miss is 404 for everybody, and so is a read that is not allowed and a read that the
//! store failed; a token that does not hold makes a caller anonymous for reads, so an expired one costs hits and no build.
//! A write that is not allowed is 403, or accepted and thrown away where the client would complain about 403.

mod access;
mod containers;
mod foreign;
pub(crate) mod part;
mod resume;
mod turbo;
mod write;

use access::access_to;
pub(crate) use access::{Access, Met, access, caller};
use foreign::Elsewhere;
use part::Asked;
use write::{Write, fail, put};

use crate::action;
use crate::checked::Whole;
use crate::connection::{Connection, End, Thread};
use crate::http::{Head, Method, Wrong};
use crate::name::{Kind, Name, NameHash};
use crate::promise::{self, complete, look};
use crate::service::Core;
use crate::store::frames::Frames;
use crate::store::port::{Log, Stored};
use crate::store::{Facts, Found, Place, Store as _};
use crate::surface::{self, Plan};
use crate::watch;
use forgeyard_model::Timestamp;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A body that is not wanted is read up to this size; the connection ends otherwise.
const READ_OVER: u64 = 8 << 20;

/// Numbers refusals, so that what a client shows is found in the log.
static REFUSALS: AtomicU64 = AtomicU64::new(1);

/// The number of one more refusal.
pub(crate) fn refusal() -> u64 {
    REFUSALS.fetch_add(1, Relaxed)
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}

/// Answers one request.
pub(crate) async fn exchange(thread: &Thread, conn: &mut Connection, head: &Head) -> Result<(), End> {
    let core = &*thread.core;
    if let Some((scope, surface, rest)) = surface::parts(&head.path)
        && let Some(access) = access_to(thread, head, scope, surface)
    {
        return match surface::plan(surface, head.method, rest) {
            Plan::Read { kind, key, facts } => read(thread, conn, head, &access, kind, &key, facts).await,
            Plan::Write { kind, key, shape, denied, policy } => {
                let write = Write { kind, key, shape, denied, policy, front: Vec::new() };
                put(core, conn, head, &access, write).await
            }
            Plan::Remove { kind, key } => remove(core, conn, head, &access, kind, key).await,
            Plan::Check { writes: false } => say(conn, core, head, 404, "").await,
            Plan::Check { writes: true } if access.grant.writes.is_some() => {
                say(conn, core, head, 201, "").await
            }
            Plan::Check { writes: true } => forbid(core, conn, head, &access).await,
            Plan::Properties { kind, key } => properties(core, conn, head, &access, kind, &key).await,
            Plan::Turbo(call) => turbo::answer(thread, conn, head, &access, call).await,
            Plan::Constant(text) => say(conn, core, head, 200, text).await,
            Plan::Folder => say(conn, core, head, 201, "").await,
            Plan::Refuse { status, reason } => say(conn, core, head, status, reason).await,
        };
    }
    if let Some(answered) = crate::github::answer(thread, conn, head).await {
        return answered;
    }
    if let Some(answered) = containers::answer(thread, conn, head).await {
        return answered;
    }
    match (head.method, head.path.as_str()) {
        (Method::Get | Method::Head, "/healthz") => say(conn, core, head, 200, "ok\n").await,
        (Method::Get, "/metrics") => {
            let (damaged, scrubbed) = (core.store.damaged(), core.store.scrubbed());
            let text = core.figures.prometheus(&core.store.totals(), &core.store.uses(), damaged, scrubbed);
            let text = text + &watch::prometheus(&watch::reports(core, None));
            let tier = core.tier.as_ref().map(|tier| tier.stat().prometheus());
            let warm = core.warm.get().map(|warm| warm.prometheus((core.clock)()));
            let saved = crate::figures::saved(&core.figures.all(), core.price.get().copied());
            let text = text + &saved + &tier.unwrap_or_default() + &core.store.shrunk().prometheus();
            let text = text + &warm.unwrap_or_default();
            say(conn, core, head, 200, &text).await
        }
        (Method::Get, "/-/budget") => budget(core, conn, head).await,
        (_, "/v1/token") => crate::identity::answer(thread, conn, head).await,
        (_, path) if path.starts_with("/-/admin/") => {
            // these may read the whole log, and others share this thread
            let (core, asked) = (Arc::clone(&thread.core), head.clone());
            let answer = tokio::task::spawn_blocking(move || crate::admin::answer(&core, &asked)).await;
            let (status, text) = answer.unwrap_or((503, "this went wrong; see the log\n".to_owned()));
            let core = &*thread.core;
            say(conn, core, head, status, &text).await
        }
        _ => {
            say(
                conn,
                core,
                head,
                404,
                "no such path: /SCOPE/-/(dav|s3|ccache|bazel|nix|turbo|gradle|kv|warm)/KEY\n",
            )
            .await
        }
    }
}

/// What the budget says of the scope of a token: for the job that holds it.
async fn budget(core: &Core, conn: &mut Connection, head: &Head) -> Result<(), End> {
    let scope = caller(core, head, (core.clock)()).claims.map(|claims| claims.scope);
    let report = scope.and_then(|scope| watch::reports(core, Some(scope.as_str())).into_iter().next());
    match report.and_then(|report| serde_json::to_string(&report).ok()) {
        Some(text) => say(conn, core, head, 200, &(text + "\n")).await,
        None => {
            say(conn, core, head, 404, "the scope of this token has no budget, or this is no token\n").await
        }
    }
}

/// Answers with a text, after reading the body that the client sends anyway.
async fn say(conn: &mut Connection, core: &Core, head: &Head, status: u16, text: &str) -> Result<(), End> {
    drain(conn, core, head).await?;
    conn.begin(status, text.len() as u64, head.keep_alive, &[("Content-Type", "text/plain; charset=utf-8")]);
    let bare = head.method == Method::Head || status == 204;
    conn.send((!bare).then_some(text.as_bytes())).await
}

async fn drain(conn: &mut Connection, core: &Core, head: &Head) -> Result<(), End> {
    if head.framing == crate::http::Framing::Length(0) {
        return Ok(());
    }
    if head.expects || matches!(head.framing, crate::http::Framing::Length(length) if length > READ_OVER) {
        return Err(Wrong { status: 403, reason: "not allowed, so the body is not read" }.into());
    }
    conn.body(core, head, false).await.map(|_| ())
}

async fn forbid(core: &Core, conn: &mut Connection, head: &Head, access: &Access) -> Result<(), End> {
    add(&access.counters.denied, 1);
    let (number, principal) = (refusal(), &access.provenance.principal);
    tracing::info!(number, path = %head.path, client = %head.agent, principal, "a write is refused");
    let text = format!("{}: this token may not write here (refusal {number})\n", head.path);
    say(conn, core, head, 403, &text).await
}

/// What is sent.
enum Sent {
    /// What was found, with what is in the buffer.
    Found(Found),
    /// From this place in a file of the log.
    Log(Facts, Log, u64),
    /// From memory.
    Kept(Facts, Rc<[u8]>),
    /// What is in the buffer, compressed.
    Framed(Facts, Frames, Range<usize>),
}

/// Looks on this disk, nearest scope first.
fn find(
    thread: &Thread,
    conn: &mut Connection,
    access: &Access,
    kind: Kind,
    key: &str,
    facts_only: bool,
) -> Option<(usize, (NameHash, Sent))> {
    let core = &*thread.core;
    let (refers, signed) = (refers(kind, key), is_signed(kind, key));
    let (mut entry, now) = (std::mem::take(&mut conn.entry), (core.clock)());
    let found = look(access, kind, key, |scope, name| {
        if facts_only && !signed {
            let facts = core.store.facts(name)?;
            let sent = |facts| (name, Sent::Found(Found { facts, place: Place::Buffer(0..0) }));
            return Ok(facts.map(sent));
        }
        let whole = thread.checked.borrow().entry(name, now).filter(|_| !signed);
        match whole {
            Some(Whole { facts, placed, bytes: Some(bytes), .. }) if core.store.stands(name, &placed) => {
                return Ok(Some((name, Sent::Kept(facts, bytes))));
            }
            Some(Whole { facts, placed, bytes: None, .. }) => {
                if let Some(log) = core.store.still(name, &placed) {
                    return Ok(Some((name, Sent::Log(facts, log, placed.at))));
                }
            }
            _ => {}
        }
        let found = match signed {
            true => core.store.get(name, &mut entry)?.map(|found| (found, Stored::File)),
            false => core.store.get_stored(name, &mut entry)?,
        };
        if let Some((Found { facts, place: Place::Buffer(range) }, Stored::Plain(placed))) = &found {
            let bytes = entry.get(range.clone()).unwrap_or_default();
            thread.checked.borrow_mut().keep_entry(name, *facts, *placed, bytes, now);
        }
        let found = match found {
            Some((Found { facts, place: Place::Buffer(range) }, Stored::Framed(frames))) => {
                return Ok(Some((name, Sent::Framed(facts, frames, range))));
            }
            found => found.map(|(found, _)| found),
        };
        if refers
            && let Some(Found { place: Place::Buffer(range), .. }) = &found
            && !complete(core, access, kind, entry.get(range.clone()).unwrap_or_default())
        {
            // clients cannot recover from a result without its files (bazel#18696, nix#1340)
            if promise::beyond(core, access, kind, entry.get(range.clone()).unwrap_or_default()) {
                return Ok(None);
            }
            let name = Name { scope: scope.clone(), kind, key: key.to_owned() };
            core.store.remove(&name)?;
            return Ok(None);
        }
        Ok(found.map(|found| (name, Sent::Found(found))))
    });
    conn.entry = entry;
    found
}

/// Whether an entry stands for others, which have to be here too.
fn refers(kind: Kind, key: &str) -> bool {
    kind == Kind::Action || (kind == Kind::Nix && surface::is_narinfo(key))
}

/// Whether an entry may be signed when it is served, or [`refers`]: it is read as a whole then.
fn is_signed(kind: Kind, key: &str) -> bool {
    refers(kind, key) || (kind == Kind::Nix && crate::realisation::is_realisation(key))
}

async fn read(
    thread: &Thread,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    kind: Kind,
    key: &str,
    facts_only: bool,
) -> Result<(), End> {
    let core = &*thread.core;
    if kind == Kind::Content && key == action::EMPTY {
        // nobody uploads nothing (bazel#11063)
        add(&access.counters.hits, 1);
        conn.begin(200, 0, head.keep_alive, &[("Content-Type", "application/octet-stream")]);
        return conn.send(None).await;
    }
    let mut found = find(thread, conn, access, kind, key, facts_only);
    if found.is_none() && promise::bring(core, access, kind, key).await {
        found = find(thread, conn, access, kind, key, facts_only);
    }
    // HEAD asks whether a file has to be sent here, and that is known by its own name alone
    if found.is_none() && kind == Kind::Nix && !facts_only {
        match foreign::elsewhere(core, access, key).await {
            Some(Elsewhere::Same(file)) => found = find(thread, conn, access, kind, &file, false),
            Some(Elsewhere::Packed(asked, here))
                if foreign::send_unpacked(core, conn, head, access, asked, &here).await? =>
            {
                return Ok(());
            }
            _ => {}
        }
    }
    let Some((depth, (name, sent))) = found else {
        access.missed(core, kind, key);
        conn.begin(404, 0, head.keep_alive, &[]);
        return conn.send(None).await;
    };
    let sent = match (sent, access.signers.get(depth)) {
        (Sent::Found(found), Some(Some(signer))) if is_signed(kind, key) => {
            Sent::Found(signer.sign(key, found, &mut conn.entry))
        }
        (sent, _) => sent,
    };
    let counters = &access.counters;
    access.found_as(core, depth, kind, Some(name));
    let (Sent::Found(Found { facts, .. })
    | Sent::Log(facts, ..)
    | Sent::Kept(facts, _)
    | Sent::Framed(facts, ..)) = &sent;
    let Facts { digest, size, .. } = *facts;
    let part = match part::asked(conn, head, size).await? {
        Asked::All => None,
        Asked::Part(part) => Some(part),
        Asked::Answered => return Ok(()),
    };
    conn.begin_entry(digest, size, part.as_ref(), head.keep_alive);
    let part = part.unwrap_or(0..size);
    if head.method == Method::Head {
        return conn.send(None).await;
    }
    add(&counters.bytes_out, part.end - part.start);
    match sent {
        Sent::Found(Found { place, .. }) => part::send(thread, conn, place, size, part).await,
        Sent::Framed(_, frames, range) => conn.send_frames(&frames, range, part).await,
        Sent::Log(_, log, at) => conn.send_file(log.file(), at + part.start..at + part.end).await,
        Sent::Kept(_, bytes) => conn.send(bytes.get(part.start as usize..part.end as usize)).await,
    }
}

async fn remove(
    core: &Core,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    kind: Kind,
    key: String,
) -> Result<(), End> {
    let Some(scope) = access.grant.writes.clone() else { return forbid(core, conn, head, access).await };
    match core.store.remove(&Name { scope, kind, key }) {
        Ok(true) => say(conn, core, head, 204, "").await,
        Ok(false) => say(conn, core, head, 404, "").await,
        Err(error) => fail(head, access, kind, &error),
    }
}

async fn properties(
    core: &Core,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    kind: Kind,
    key: &str,
) -> Result<(), End> {
    let found = look(access, kind, key, |_, name| core.store.facts(name)).map(|(_, facts)| facts);
    let modified = found.map(|facts| http_date(facts.stored_at)).unwrap_or_default();
    let xml = surface::properties(&head.path, found.map(|facts| (facts.size, modified.as_str())));
    drain(conn, core, head).await?;
    conn.begin(207, xml.len() as u64, head.keep_alive, &[("Content-Type", "application/xml; charset=utf-8")]);
    conn.send(Some(xml.as_bytes())).await
}

/// A time as HTTP writes it, made from its RFC 3339 form.
fn http_date(time: Timestamp) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = time.to_string();
    let day = DAYS[time.as_micros().div_euclid(86_400_000_000).rem_euclid(7) as usize];
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    format!("{day}, {} {} {} {} GMT", part(8, 10), month.copied().unwrap_or("Jan"), part(0, 4), part(11, 19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_written_as_http_writes_it() {
        assert_eq!(http_date(Timestamp::from_micros(784_111_777_000_000)), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
