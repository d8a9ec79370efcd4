//! Storing an entry: whether the caller may, whether the bytes are what they should be, what is answered.

use super::access::Access;
use super::{add, forbid, foreign, refusal, resume, say};
use crate::connection::{Came, Connection, End, Incoming};
use crate::http::{Head, Wrong};
use crate::name::{Kind, Name, NameHash};
use crate::promise::complete;
use crate::realisation::Realisation;
use crate::service::Core;
use crate::shape;
use crate::store::log::Durability;
use crate::store::{Body, Found, Outcome, Place, Policy, Provenance, Store as _, StoreError};
use crate::surface::{Denied, Shape};
use crate::{nar, nix};
use forgeyard_model::Digest;

/// What is to be stored.
pub(super) struct Write {
    pub(super) kind: Kind,
    pub(super) key: String,
    pub(super) shape: Shape,
    pub(super) denied: Denied,
    pub(super) policy: Policy,
    /// Kept in front of the body; empty for nearly all.
    pub(super) front: Vec<u8>,
}

pub(super) async fn put(
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
    let name = Name { scope, kind: write.kind, key: write.key };
    let incoming = match &head.content_range {
        None if write.front.is_empty() => conn.body_in_place(core, head, true).await,
        None => conn.body_behind(core, head, write.front).await.map(Came::Read),
        Some(text) => match resume::receive(core, conn, head, access, &name, text).await {
            Ok(Some(whole)) => Ok(Came::Read(whole)),
            Ok(None) => return Ok(()),
            Err(end) => Err(end),
        },
    };
    let incoming = match incoming {
        Err(End::Store(error)) => return fail(head, access, write.kind, &error),
        other => other?,
    };
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
    let told = small.filter(|_| write.shape == Shape::NarInfo).and_then(nix::narinfo);
    let realised = small.and_then(|bytes| Realisation::read(&name.key, bytes));
    let told_wrong = match &told {
        Some(info) => match nar::verify(core, access, info).await {
            Ok(measured) => {
                if let Some(of) = measured {
                    foreign::note(core, access, &name, &by, info, of);
                }
                None
            }
            Err(wrong) => Some(wrong),
        },
        None => None,
    };
    let checked = small.map(|bytes| match shape::check(write.shape, &name.key, bytes) {
        // cachix#251: what was cut off on its way must not be announced
        Ok(()) if write.shape == Shape::NarInfo && !complete(core, access, Kind::Nix, bytes) => {
            Err(shape::ShapeError::NoFile)
        }
        Ok(()) if told_wrong.is_some() => Err(told_wrong.unwrap_or(shape::ShapeError::Nar)),
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
            let Wrong { status, reason } = failed(head, access, name.kind, &error);
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
        Outcome::Kept
            if told
                .as_ref()
                .is_some_and(|told| agrees(core, &name, nix::narinfo, |one| one.agrees(told)))
                || realised.as_ref().is_some_and(|told| {
                    agrees(core, &name, |bytes| Realisation::read(&name.key, bytes), |one| one.agrees(told))
                }) =>
        {
            (&counters.repeats, 200, "kept: the same path is here already\n")
        }
        // an archive of Turborepo has the log of its task, with times, and one of Gradle says when and where it was made: two runs
        // hardly ever have the same bytes
        Outcome::Kept if matches!(write.shape, Shape::Turbo | Shape::Gradle) => (&counters.repeats, 200, ""),
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

/// Whether what is here, once read, says the same.
fn agrees<T>(core: &Core, name: &Name, read: impl Fn(&[u8]) -> Option<T>, same: impl Fn(&T) -> bool) -> bool {
    let mut buffer = Vec::new();
    let found = core.store.get(NameHash::of(name.scope.as_str(), name.kind, &name.key), &mut buffer);
    let Ok(Some(Found { place: Place::Buffer(range), .. })) = found else { return false };
    buffer.get(range).and_then(read).is_some_and(|first| same(&first))
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

pub(super) fn fail(head: &Head, access: &Access, kind: Kind, error: &StoreError) -> Result<(), End> {
    // what may be left of the body is not read
    Err(failed(head, access, kind, error).into())
}

fn failed(head: &Head, access: &Access, kind: Kind, error: &StoreError) -> Wrong {
    add(&access.counters.failures, 1);
    tracing::error!(client = %head.agent, "storing an entry: {error}");
    let status = match (error, kind) {
        (StoreError::TooLong(_), _) => 400,
        // nix#15023: it tries again after any 5xx, but sends no body then: 2.26 fails four times more, 2.8 waits for 300 s each time
        (StoreError::Full(_), Kind::Nix) => 413,
        (_, Kind::Nix) => 424,
        (StoreError::Full(_), _) => 507,
        _ => 503,
    };
    Wrong { status, reason: "the entry was not stored" }
}
