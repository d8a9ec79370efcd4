//! Requests of Turborepo ([`crate::turbo`]).
//!
//! Whoever may not write is told so in JSON: `turbo` sends no more for the rest of its run then and goes on reading. A 403 in plain text
//! is a warning for each task, and 200 lets it send everything for nothing.

use super::access::Access;
use super::write::{Write, put};
use super::{add, part, refusal, remove, say};
use crate::connection::{Connection, End, Thread};
use crate::http::{Head, Wrong};
use crate::name::Kind;
use crate::promise::{self, look};
use crate::store::{Facts, Place, Policy, Store as _};
use crate::surface::{Denied, Shape};
use crate::turbo::{self, Call};

const JSON: (&str, &str) = ("Content-Type", "application/json");

pub(super) async fn answer(
    thread: &Thread,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    call: Call,
) -> Result<(), End> {
    let core = &*thread.core;
    match call {
        Call::Status => json(conn, head, 200, "{\"status\":\"enabled\"}\n").await,
        Call::Events => {
            conn.body(core, head, false).await?;
            json(conn, head, 200, "{}\n").await
        }
        Call::Preflight => {
            let allowed = [
                ("Access-Control-Allow-Methods", "GET, HEAD, PUT, POST, OPTIONS"),
                (
                    "Access-Control-Allow-Headers",
                    "Authorization, Content-Type, User-Agent, x-artifact-duration, x-artifact-tag",
                ),
            ];
            conn.body(core, head, false).await?;
            conn.begin(200, 0, head.keep_alive, &allowed);
            conn.send(None).await
        }
        Call::Read(key) => read(thread, conn, head, access, &key).await,
        Call::Remove(key) => remove(core, conn, head, access, Kind::Turbo, key).await,
        Call::Write(_) if access.grant.writes.is_none() => {
            add(&access.counters.denied, 1);
            let (number, principal) = (refusal(), &access.provenance.principal);
            tracing::info!(number, path = %head.path, client = %head.agent, principal, "a write is refused");
            conn.body(core, head, false).await?;
            let text = format!(
                "{{\"error\":{{\"code\":\"forbidden\",\"message\":\"this token may not write here (refusal {number})\"}}}}\n"
            );
            json(conn, head, 403, &text).await
        }
        Call::Write(_) if head.content_range.is_some() => {
            say(conn, core, head, 400, "an archive of Turborepo comes as a whole\n").await
        }
        Call::Write(key) => {
            let reason = "x-artifact-duration or x-artifact-tag is longer than it can be, or no plain text";
            let front = turbo::front(&head.artifact).ok_or(Wrong { status: 400, reason })?;
            let write = Write {
                kind: Kind::Turbo,
                key,
                shape: Shape::Turbo,
                denied: Denied::Forbidden,
                policy: Policy::Keep,
                front,
            };
            put(core, conn, head, access, write).await
        }
    }
}

async fn json(conn: &mut Connection, head: &Head, status: u16, text: &str) -> Result<(), End> {
    conn.begin(status, text.len() as u64, head.keep_alive, &[JSON]);
    let bare = head.method == crate::http::Method::Head;
    conn.send((!bare).then_some(text.as_bytes())).await
}

async fn read(
    thread: &Thread,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    key: &str,
) -> Result<(), End> {
    let core = &*thread.core;
    let mut entry = std::mem::take(&mut conn.entry);
    let mut find = || look(access, Kind::Turbo, key, |_, name| core.store.get(name, &mut entry));
    let mut found = find();
    if found.is_none() && promise::bring(core, access, Kind::Turbo, key).await {
        found = find();
    }
    let front = found.as_ref().and_then(|(_, found)| match &found.place {
        Place::Buffer(range) => entry.get(range.clone()).and_then(turbo::read),
        Place::Large(large) => {
            let mut piece = Vec::new();
            large.piece(0, &mut piece).ok()?;
            turbo::read(&piece)
        }
    });
    conn.entry = entry;
    let (Some((depth, found)), Some((said, front))) = (found, front) else {
        access.missed(core, Kind::Turbo, key);
        conn.begin(404, 0, head.keep_alive, &[]);
        return conn.send(None).await;
    };
    access.found(core, depth, Kind::Turbo, key);
    let facts = Facts { size: found.facts.size.saturating_sub(front as u64), ..found.facts };
    let headers = [
        ("Content-Type", "application/octet-stream"),
        ("x-artifact-duration", said.duration.as_str()),
        ("x-artifact-tag", said.tag.as_str()),
    ];
    let headers: Vec<_> = headers.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let Some(part) = part::begin(conn, head, &facts, &headers).await? else { return Ok(()) };
    add(&access.counters.bytes_out, part.end - part.start);
    part::send(thread, conn, found.place, found.facts.size, turbo::behind(front, &part)).await
}
