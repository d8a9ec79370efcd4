//! Requests of a registry of containers ([`crate::warm::registry`]).

use super::{access, add, read, say};
use crate::connection::{Connection, End, Thread};
use crate::http::{Head, Method};
use crate::name::Kind;
use crate::promise::look;
use crate::scope::ScopePath;
use crate::store::{Place, Store as _};
use crate::surface::Surface;
use crate::warm::registry::{Asked, asked, media_type};

/// Said first, so that a client knows what it speaks to.
const VERSION: (&str, &str) = ("Docker-Distribution-Api-Version", "registry/2.0");
/// How a client is asked for a token.
const CHALLENGE: (&str, &str) = ("WWW-Authenticate", "Basic realm=\"forgeyard cache\"");

/// Answers one; nothing when the path is none of a registry.
pub(super) async fn answer(thread: &Thread, conn: &mut Connection, head: &Head) -> Option<Result<(), End>> {
    let what = asked(&head.path)?;
    if !matches!(head.method, Method::Get | Method::Head) {
        let text = "what is fetched beforehand is written by the cache alone\n";
        return Some(say(conn, &thread.core, head, 405, text).await);
    }
    Some(match what {
        // clients learn here how to say who they are; those without a token go on without
        Asked::Ping if head.authorization.is_empty() => short(conn, head, 401, &[VERSION, CHALLENGE]).await,
        Asked::Ping => short(conn, head, 200, &[VERSION]).await,
        Asked::Other => short(conn, head, 404, &[VERSION]).await,
        Asked::Blob(scope, key) => match challenged(thread, head, &scope) {
            true => short(conn, head, 401, &[VERSION, CHALLENGE]).await,
            false => {
                let access = access(thread, head, Some(&scope), Surface::Warm);
                read(thread, conn, head, &access, Kind::Warm, &key, head.method == Method::Head).await
            }
        },
        Asked::Manifest(scope, key) => manifest(thread, conn, head, &scope, &key).await,
    })
}

async fn short(conn: &mut Connection, head: &Head, status: u16, headers: &[(&str, &str)]) -> Result<(), End> {
    conn.begin(status, 0, head.keep_alive, headers);
    conn.send(None).await
}

/// Whether this caller reads nothing there, and has no token that holds. Clients without one send an empty password.
fn challenged(thread: &Thread, head: &Head, scope: &ScopePath) -> bool {
    let access = access(thread, head, Some(scope), Surface::Warm);
    access.grant.reads.is_empty() && access.provenance.principal.is_empty()
}

async fn manifest(
    thread: &Thread,
    conn: &mut Connection,
    head: &Head,
    scope: &ScopePath,
    key: &str,
) -> Result<(), End> {
    if challenged(thread, head, scope) {
        return short(conn, head, 401, &[VERSION, CHALLENGE]).await;
    }
    let (core, access) = (&thread.core, access(thread, head, Some(scope), Surface::Warm));
    let mut buffer = Vec::new();
    let found = look(&access, Kind::Warm, key, |_, name| core.store.get(name, &mut buffer));
    let Some((depth, found)) = found else {
        access.missed(core, Kind::Warm, key);
        return short(conn, head, 404, &[VERSION]).await;
    };
    // a manifest of more than a MiB was not fetched
    let bytes = match &found.place {
        Place::Buffer(range) => buffer.get(range.clone()).unwrap_or_default(),
        Place::Large(_) => return short(conn, head, 404, &[VERSION]).await,
    };
    access.found(core, depth, Kind::Warm, key);
    let digest = format!("sha256:{}", found.facts.digest.hex());
    let kind = media_type(bytes);
    let headers = [VERSION, ("Content-Type", kind.as_str()), ("Docker-Content-Digest", &digest)];
    conn.begin(200, bytes.len() as u64, head.keep_alive, &headers);
    if head.method == Method::Head {
        return conn.send(None).await;
    }
    add(&access.counters.bytes_out, bytes.len() as u64);
    conn.send(Some(bytes)).await
}
