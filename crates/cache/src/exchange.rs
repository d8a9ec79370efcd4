//! One request: who asks, what it means, what is answered.
//!
//! The rules that keep clients green: a miss is 404 for everybody, and so is a read that is not allowed and a read that the
//! store failed; a token that does not hold makes a caller anonymous for reads, so an expired one costs hits and no build.
//! A write that is not allowed is 403, or accepted and thrown away where the client would complain about 403.

use crate::action;
use crate::authority::{Caller, token_in};
use crate::checked;
use crate::connection::{Came, Connection, End, Incoming, Thread};
use crate::figures::Counters;
use crate::http::{Head, Method, Wrong, range_of};
use crate::making::is_made;
use crate::name::{Kind, Name, NameHash};
use crate::nix;
use crate::promise::{complete, look};
use crate::readers::Reader;
use crate::scope::{Grant, ScopePath};
use crate::service::Core;
use crate::shape;
use crate::signature::Signer;
use crate::store::log::Durability;
use crate::store::port::Log;
use crate::store::{Body, Facts, Found, Outcome, Place, Policy, Provenance, Store as _, StoreError};
use crate::surface::{self, Denied, Plan, Shape, Surface};
use crate::watch;
use forgeyard_model::{Digest, Timestamp};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Callers that a thread remembers at most.
const MET: usize = 4096;
/// A body that is not wanted is read up to this size; the connection ends otherwise.
const READ_OVER: u64 = 8 << 20;

/// A caller on a surface, decided once and remembered by the thread.
pub(crate) struct Access {
    generation: u64,
    expires_at: Option<Timestamp>,
    pub(crate) grant: Grant,
    pub(crate) provenance: Provenance,
    /// Who reads, for the journal.
    pub(crate) reader: Reader,
    pub(crate) counters: Arc<Counters>,
    /// Keys of the scopes that are read, in their order; empty for all but Nix.
    signers: Vec<Option<Arc<Signer>>>,
}

impl Access {
    /// What this caller may do, decided under the authority of this generation.
    pub(crate) fn of(
        core: &Core,
        caller: &Caller,
        generation: u64,
        scope: Option<&ScopePath>,
        surface: Surface,
    ) -> Self {
        let authority = core.authority();
        let grant = authority.grant(caller, scope);
        let signed = grant.reads.iter().filter(|_| surface == Surface::Nix);
        let signers = signed.map(|scope| authority.signer(scope)).collect();
        let counted = grant.writes.as_ref().or(grant.reads.first());
        let counters = core.figures.of(counted.map_or("(none)", ScopePath::as_str), surface);
        let claims = caller.claims.as_ref();
        Access {
            generation,
            expires_at: claims.map(|claims| claims.expires_at),
            grant,
            provenance: Provenance {
                principal: claims.map_or_else(String::new, |claims| claims.principal.clone()),
                run: claims.and_then(|claims| claims.run.clone()),
                ..Provenance::default()
            },
            reader: Reader {
                principal: claims.map_or_else(String::new, |claims| claims.principal.clone()),
                run: claims.and_then(|claims| claims.run.clone()),
            },
            counters,
            signers,
        }
    }

    /// An entry of a scope that the caller reads, this far up, was found.
    pub(crate) fn found(&self, core: &Core, depth: usize, kind: Kind, key: &str) {
        add(if depth == 0 { &self.counters.hits } else { &self.counters.parent_hits }, 1);
        if is_made(kind) {
            add(&self.counters.spared, 1);
        }
        if let Some(scope) = self.grant.reads.get(depth).filter(|_| kind != Kind::Content) {
            core.readers.read(&self.reader, NameHash::of(scope.as_str(), kind, key), (core.clock)());
        }
    }

    /// Nothing was found.
    pub(crate) fn missed(&self, core: &Core, kind: Kind, key: &str) {
        add(&self.counters.misses, 1);
        if let Some(scope) = self.grant.writes.as_ref().filter(|_| is_made(kind)) {
            core.making.missed(NameHash::of(scope.as_str(), kind, key), (core.clock)());
        }
    }

    /// An entry that was not there was stored.
    pub(crate) fn stored(&self, core: &Core, name: &Name, size: u64) {
        add(&self.counters.writes, 1);
        add(&self.counters.bytes_in, size);
        if is_made(name.kind)
            && let Some(millis) = core.making.wrote(name.hash(), (core.clock)())
        {
            add(&self.counters.made, 1);
            add(&self.counters.made_millis, millis);
        }
    }

    /// Decides anew.
    pub(crate) fn decide(
        core: &Core,
        authorization: &[u8],
        agent: &str,
        scope: Option<&ScopePath>,
        surface: Surface,
    ) -> Self {
        let (now, generation) = ((core.clock)(), core.generation());
        Self::of(core, &caller_of(core, authorization, agent, now), generation, scope, surface)
    }

    /// Whether what was decided holds still.
    pub(crate) fn holds(&self, core: &Core) -> bool {
        self.generation == core.generation() && self.expires_at.is_none_or(|end| end > (core.clock)())
    }
}

/// Numbers refusals, so that what a client shows is found in the log.
static REFUSALS: AtomicU64 = AtomicU64::new(1);

/// The number of one more refusal.
pub(crate) fn refusal() -> u64 {
    REFUSALS.fetch_add(1, Relaxed)
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}

/// Who holds the token of a request; anonymous when there is none that holds.
pub(crate) fn caller(core: &Core, head: &Head, now: Timestamp) -> Caller {
    caller_of(core, &head.authorization, &head.agent, now)
}

fn caller_of(core: &Core, authorization: &[u8], agent: &str, now: Timestamp) -> Caller {
    if authorization.is_empty() {
        return Caller::ANONYMOUS;
    }
    let Some(token) = token_in(authorization) else { return Caller::ANONYMOUS };
    match core.authority().identify(&token, now) {
        Ok(caller) => caller,
        Err(error) => {
            tracing::info!(client = agent, "a token is not believed: {error}");
            Caller::ANONYMOUS
        }
    }
}

pub(crate) fn access(
    thread: &Thread,
    head: &Head,
    scope: Option<&ScopePath>,
    surface: Surface,
) -> Rc<Access> {
    let core = &thread.core;
    let mut key = head.authorization.clone();
    key.push(0);
    key.push(surface as u8);
    key.extend_from_slice(scope.map(ScopePath::as_str).unwrap_or_default().as_bytes());
    if let Some(access) = thread.met.borrow().get(&key)
        && access.holds(core)
    {
        return Rc::clone(access);
    }
    let access = Rc::new(Access::decide(core, &head.authorization, &head.agent, scope, surface));
    let mut met = thread.met.borrow_mut();
    if met.len() >= MET {
        met.clear();
    }
    met.insert(key, Rc::clone(&access));
    access
}

/// Answers one request.
pub(crate) async fn exchange(thread: &Thread, conn: &mut Connection, head: &Head) -> Result<(), End> {
    let core = &*thread.core;
    if let Some(answered) = crate::github::answer(thread, conn, head).await {
        return answered;
    }
    if let Some((scope, surface, rest)) = surface::split(&head.path) {
        let access = access(thread, head, scope.as_ref(), surface);
        return match surface::plan(surface, head.method, rest) {
            Plan::Read { kind, key, facts } => read(thread, conn, head, &access, kind, &key, facts).await,
            Plan::Write { kind, key, shape, denied, policy } => {
                let write = Write { kind, key, shape, denied, policy };
                put(core, conn, head, &access, write).await
            }
            Plan::Remove { kind, key } => remove(core, conn, head, &access, kind, key).await,
            Plan::Check { writes: false } => say(conn, core, head, 404, "").await,
            Plan::Check { writes: true } if access.grant.writes.is_some() => {
                say(conn, core, head, 201, "").await
            }
            Plan::Check { writes: true } => forbid(core, conn, head, &access).await,
            Plan::Properties { kind, key } => properties(core, conn, head, &access, kind, &key).await,
            Plan::Constant(text) => say(conn, core, head, 200, text).await,
            Plan::Folder => say(conn, core, head, 201, "").await,
            Plan::Refuse { status, reason } => say(conn, core, head, status, reason).await,
        };
    }
    match (head.method, head.path.as_str()) {
        (Method::Get | Method::Head, "/healthz") => say(conn, core, head, 200, "ok\n").await,
        (Method::Get, "/metrics") => {
            let (damaged, scrubbed) = (core.store.damaged(), core.store.scrubbed());
            let text = core.figures.prometheus(&core.store.totals(), &core.store.uses(), damaged, scrubbed);
            let text = text + &watch::prometheus(&watch::reports(core, None));
            say(conn, core, head, 200, &text).await
        }
        (_, "/v1/token") => crate::identity::answer(thread, conn, head).await,
        (_, path) if path.starts_with("/-/admin/") => {
            // these may read the whole log, and others share this thread
            let (core, asked) = (Arc::clone(&thread.core), head.clone());
            let answer = tokio::task::spawn_blocking(move || crate::admin::answer(&core, &asked)).await;
            let (status, text) = answer.unwrap_or((503, "this went wrong; see the log\n".to_owned()));
            let core = &*thread.core;
            say(conn, core, head, status, &text).await
        }
        _ => say(conn, core, head, 404, "no such path: /SCOPE/-/(dav|s3|ccache|bazel|nix|kv)/KEY\n").await,
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
    let refers = kind == Kind::Action || (kind == Kind::Nix && surface::is_narinfo(key));
    let (mut entry, now) = (std::mem::take(&mut conn.entry), (core.clock)());
    let found = look(access, kind, key, |scope, name| {
        if facts_only && !refers {
            let facts = core.store.facts(name)?;
            return Ok(facts.map(|facts| Sent::Found(Found { facts, place: Place::Buffer(0..0) })));
        }
        let whole = thread.checked.borrow().entry(name, now).filter(|_| !refers);
        if let Some(whole) = whole
            && let Some(log) = core.store.still(name, &whole.placed)
        {
            return Ok(Some(Sent::Log(whole.facts, log, whole.placed.at)));
        }
        let found = core.store.get_placed(name, &mut entry)?;
        if let Some((Found { facts, .. }, Some(placed))) = &found
            && facts.size >= checked::LEAST
        {
            thread.checked.borrow_mut().keep_entry(name, *facts, *placed, now);
        }
        let found = found.map(|(found, _)| found);
        if refers
            && let Some(Found { place: Place::Buffer(range), .. }) = &found
            && !complete(core, access, kind, entry.get(range.clone()).unwrap_or_default())
        {
            // clients cannot recover from a result without its files (bazel#18696, nix#1340)
            let name = Name { scope: scope.clone(), kind, key: key.to_owned() };
            core.store.remove(&name)?;
            return Ok(None);
        }
        Ok(found.map(Sent::Found))
    });
    conn.entry = entry;
    let Some((depth, sent)) = found else {
        access.missed(core, kind, key);
        conn.begin(404, 0, head.keep_alive, &[]);
        return conn.send(None).await;
    };
    let sent = match (sent, access.signers.get(depth)) {
        (Sent::Found(found), Some(Some(signer))) if refers => {
            Sent::Found(signer.sign(key, found, &mut conn.entry))
        }
        (sent, _) => sent,
    };
    let counters = &access.counters;
    access.found(core, depth, kind, key);
    let (Sent::Found(Found { facts, .. }) | Sent::Log(facts, ..)) = &sent;
    let Facts { digest, size, .. } = *facts;
    let tag = format!("\"{}\"", digest.hex());
    let range =
        head.range.as_ref().filter(|_| head.method == Method::Get).and_then(|text| range_of(text, size));
    let (status, part) = match range {
        None => (200, 0..size),
        Some(Ok((first, last))) => (206, first..last + 1),
        Some(Err(wrong)) => {
            let whole = format!("bytes */{size}");
            conn.begin(wrong.status, 0, head.keep_alive, &[("Content-Range", &whole)]);
            return conn.send(None).await;
        }
    };
    let plain = [("Content-Type", "application/octet-stream"), ("ETag", &*tag), ("Accept-Ranges", "bytes")];
    if status == 206 {
        let shown = format!("bytes {}-{}/{size}", part.start, part.end.saturating_sub(1));
        let headers = [&plain[..], &[("Content-Range", &*shown)]].concat();
        conn.begin(status, part.end - part.start, head.keep_alive, &headers);
    } else {
        conn.begin(status, size, head.keep_alive, &plain);
    }
    if head.method == Method::Head {
        return conn.send(None).await;
    }
    add(&counters.bytes_out, part.end - part.start);
    let found = match sent {
        Sent::Found(found) => found,
        Sent::Log(_, log, at) => return conn.send_file(log.file(), at + part.start..at + part.end).await,
    };
    match found.place {
        Place::Buffer(range) => {
            let from = range.start + part.start as usize;
            conn.send_entry(from..range.start + part.end as usize).await
        }
        Place::Large(_) if size == 0 => conn.send(None).await,
        Place::Large(large) => conn.send_large(thread, &large, part).await,
    }
}

struct Write {
    kind: Kind,
    key: String,
    shape: Shape,
    denied: Denied,
    policy: Policy,
}

async fn put(
    core: &Core,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    write: Write,
) -> Result<(), End> {
    let counters = &access.counters;
    let Some(scope) = access.grant.writes.clone() else {
        if write.denied == Denied::Forbidden {
            return forbid(core, conn, head, access).await;
        }
        add(&counters.denied, 1);
        conn.body(core, head, false).await?;
        return say_after_body(conn, head, 200, "discarded: this caller may not write here\n").await;
    };
    if head.encoded {
        return say(conn, core, head, 415, "entries are stored as they are, without a content coding\n")
            .await;
    }
    let incoming = match conn.body_in_place(core, head, true).await {
        Err(End::Store(error)) => return fail(head, access, &error),
        other => other?,
    };
    let name = Name { scope, kind: write.kind, key: write.key };
    let by = Provenance {
        client: head.agent.clone(),
        address: conn.peer.ip().to_string(),
        ..access.provenance.clone()
    };
    // in a scope of its own a job may rewrite what it likes
    let policy = if access.grant.trusted { write.policy } else { Policy::Replace };
    // what came with the head is stored from where it lies
    let held = matches!(incoming, Came::Here(_)).then(|| std::mem::take(&mut conn.buffer));
    let small = match (&incoming, &held) {
        (Came::Read(Incoming::Memory(bytes)), _) => Some(&bytes[..]),
        (Came::Here(range), Some(held)) => held.get(range.clone()),
        _ => None,
    };
    let checked = small.map(|bytes| match shape::check(write.shape, &name.key, bytes) {
        // cachix#251: what was cut off on its way must not be announced
        Ok(()) if write.shape == Shape::NarInfo && !complete(core, access, Kind::Nix, bytes) => {
            Err(shape::ShapeError::NoFile)
        }
        Ok(()) => {
            let body = match Digest::from_hex(&name.key) {
                // it was just found to be theirs
                Ok(digest) if write.shape == Shape::Content => Body::Checked(bytes, digest),
                _ => Body::Inline(bytes),
            };
            Ok(core.store.put(&name, body, policy, &by).map(|put| (put, bytes.len() as u64)))
        }
        Err(wrong) => Err(wrong),
    });
    let told = small.filter(|_| write.shape == Shape::NarInfo).and_then(nix::narinfo);
    if let Some(held) = held {
        conn.buffer = held;
    }
    let stored = match incoming {
        Came::Here(_) | Came::Read(Incoming::Memory(_)) => match checked {
            Some(Ok(stored)) => stored,
            Some(Err(wrong)) => return malformed(conn, head, access, &name, wrong).await,
            None => Err(StoreError::TooLong("content")),
        },
        Came::Read(Incoming::File(spool)) => {
            let size = spool.size();
            // a sync may take long, and others share this thread
            let sync = core.store.durability() == Durability::Group;
            let finished = tokio::task::spawn_blocking(move || spool.finish(sync)).await;
            match finished.unwrap_or(Err(StoreError::Broken)) {
                Ok(large) => match shape::check_large(write.shape, &name.key, large.digest) {
                    Ok(()) => core.store.put(&name, Body::Large(large), policy, &by).map(|put| (put, size)),
                    Err(wrong) => return malformed(conn, head, access, &name, wrong).await,
                },
                Err(error) => Err(error),
            }
        }
        Came::Read(Incoming::Discarded) => return say_after_body(conn, head, 200, "").await,
    };
    let settled = match stored {
        Ok((put, size)) => core.store.settled(put.ticket).await.map(|()| (put.outcome, size)),
        Err(error) => Err(error),
    };
    let (outcome, size) = match settled {
        Ok(settled) => settled,
        Err(error) => {
            let Wrong { status, reason } = failed(head, access, &error);
            return say_after_body(conn, head, status, &format!("{reason}\n")).await;
        }
    };
    let (counter, status, text) = match outcome {
        Outcome::New | Outcome::Replaced => {
            access.stored(core, &name, size);
            return say_after_body(conn, head, 201, "").await;
        }
        Outcome::Same => (&counters.repeats, 200, ""),
        // nix#7882, and the same path compressed or signed in another way: nothing is wrong, and the first stays
        Outcome::Kept if told.as_ref().is_some_and(|told| agrees(core, &name, told)) => {
            (&counters.repeats, 200, "kept: the same path is here already\n")
        }
        Outcome::Kept => {
            tracing::warn!(
                entry = %name, writer = %by.principal, run = by.run.as_deref().unwrap_or_default(),
                "another content for a key of a trusted scope: a build that is not reproducible, or poison; the first stays"
            );
            match told {
                // nix#1885: readers keep the first for 30 days, so a second would be a hash mismatch for each of them
                Some(_) => (&counters.mismatches, 409, CONTRADICTION),
                None => (&counters.mismatches, 200, "kept: the key has another content already\n"),
            }
        }
    };
    add(counter, 1);
    say_after_body(conn, head, status, text).await
}

/// What somebody is told whose store path has another content than the same path here.
const CONTRADICTION: &str = "this path is here with another NarHash, which stays: it was built twice and is not reproducible. \
     Take the one that is here (`nix copy --from`), or have the entry removed (`forgeyard cache rm SCOPE --prefix KEY`)\n";

/// Whether the `narinfo` that is here says the same of the path.
fn agrees(core: &Core, name: &Name, told: &nix::NarInfo) -> bool {
    let mut buffer = Vec::new();
    let found = core.store.get(NameHash::of(name.scope.as_str(), name.kind, &name.key), &mut buffer);
    let Ok(Some(Found { place: Place::Buffer(range), .. })) = found else { return false };
    buffer.get(range).and_then(nix::narinfo).is_some_and(|first| first.agrees(told))
}

async fn say_after_body(conn: &mut Connection, head: &Head, status: u16, text: &str) -> Result<(), End> {
    conn.begin(status, text.len() as u64, head.keep_alive, &[]);
    conn.send(Some(text.as_bytes())).await
}

async fn malformed(
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    name: &Name,
    wrong: shape::ShapeError,
) -> Result<(), End> {
    add(&access.counters.malformed, 1);
    let number = refusal();
    tracing::warn!(number, entry = %name, client = %head.agent, "an entry is refused: {wrong}");
    // a client that shows this names digest and reason, and the log is found by the number (bazel#16454)
    say_after_body(conn, head, 422, &format!("{}: {wrong} (refusal {number})\n", name.key)).await
}

fn fail(head: &Head, access: &Access, error: &StoreError) -> Result<(), End> {
    // what may be left of the body is not read
    Err(failed(head, access, error).into())
}

fn failed(head: &Head, access: &Access, error: &StoreError) -> Wrong {
    add(&access.counters.failures, 1);
    tracing::error!(client = %head.agent, "storing an entry: {error}");
    let status = match error {
        StoreError::Full(_) => 507,
        StoreError::TooLong(_) => 400,
        _ => 503,
    };
    Wrong { status, reason: "the entry was not stored" }
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
        Err(error) => fail(head, access, &error),
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
