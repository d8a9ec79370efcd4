//! Bytes by signed URL: written as Azure's blob storage takes them, read with ranges.
//!
//! `PUT <url>` is a whole blob; `PUT <url>&comp=block&blockid=<id>` a block; `PUT <url>&comp=blocklist` puts the blocks of
//! its list together, in its order. Answers carry `ETag`, `Last-Modified` and `x-ms-request-id`: some clients end with an
//! error without the last one (caches.md §3.8).

use super::block_list;
use super::signed::{PREFIX, Right};
use super::uploads::{Content, UploadError, assemble};
use crate::admin::parameter;
use crate::connection::{Connection, End, Incoming, Thread};
use crate::exchange::part;
use crate::http::{Framing, Head, Wrong};
use crate::name::NameHash;
use crate::service::Core;
use crate::store::log::Durability;
use crate::store::{Found, Store as _, StoreError};
use crate::surface::Surface;
use forgeyard_model::Digest;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) async fn answer(thread: &Thread, conn: &mut Connection, head: &Head) -> Result<(), End> {
    let core = &thread.core;
    let now = (core.clock)();
    let allowed = match core.github.signer.check(head.method, &head.path, &head.query, now) {
        Ok(allowed) => allowed,
        Err(error) => {
            // never the query: it may hold a signature that is good for something else
            tracing::warn!(path = %head.path, client = %head.agent, peer = %conn.peer.ip(), "{error}");
            let reason = "the signed URL does not hold for this request";
            return Err(Wrong { status: 403, reason }.into());
        }
    };
    match allowed.right {
        Right::Upload => put(core, conn, head, &allowed.object, allowed.longest).await,
        Right::Download => get(thread, conn, head, &allowed.object, allowed.scope.as_str()).await,
    }
}

async fn put(
    core: &Arc<Core>,
    conn: &mut Connection,
    head: &Head,
    id: &str,
    longest: u64,
) -> Result<(), End> {
    let now = (core.clock)();
    let uploads = &core.github.uploads;
    let comp = parameter(&head.query, "comp");
    let size = if let Framing::Length(size) = head.framing { size } else { 0 };
    if comp.as_deref() != Some("blocklist")
        && let Err(error) = uploads.admit(id, size, longest, now)
    {
        return refuse(error);
    }
    // `+` in a query is a space for some and itself for others; no id has a space
    let block = parameter(&head.query, "blockid").map(|block| block.replace(' ', "+"));
    match (comp.as_deref(), block) {
        (None, _) => {
            let sync = core.store.durability() == Durability::Group;
            let content = take(core, conn, head, sync, true).await?;
            let tag = content.digest();
            match uploads.whole(id, content, None, now) {
                Ok(()) => created(conn, head, id, Some(tag)).await,
                Err(error) => refuse(error),
            }
        }
        (Some("block"), Some(block)) if block_list::is_id(&block) => {
            let content = take(core, conn, head, false, uploads.room(size)).await?;
            match uploads.block(id, block, content, longest, now) {
                Ok(()) => created(conn, head, id, None).await,
                Err(error) => refuse(error),
            }
        }
        (Some("blocklist"), _) => {
            let Incoming::Memory(list) = conn.body(core, head, true).await? else {
                return Err(Wrong { status: 413, reason: "the block list is longer than 1 MiB" }.into());
            };
            commit(core, conn, head, id, &list).await
        }
        _ => Err(Wrong { status: 400, reason: "no such operation on a blob, or no block id" }.into()),
    }
}

async fn commit(
    core: &Arc<Core>,
    conn: &mut Connection,
    head: &Head,
    id: &str,
    list: &[u8],
) -> Result<(), End> {
    let ids = match block_list::read(list) {
        Ok(ids) => ids,
        Err(error) => {
            tracing::warn!(client = %head.agent, "an upload is refused: {error}");
            return Err(Wrong { status: 400, reason: "the block list is not one" }.into());
        }
    };
    let uploads = &core.github.uploads;
    let digest = Digest::of(ids.join("\n").as_bytes());
    let blocks = match uploads.listed(id, &ids, digest) {
        Ok(Some(blocks)) => blocks,
        Ok(None) => return created(conn, head, id, None).await,
        Err(error) => return refuse(error),
    };
    let shared = Arc::clone(core);
    let sync = core.store.durability() == Durability::Group;
    let assembled =
        tokio::task::spawn_blocking(move || assemble(blocks, || shared.store.spool(), sync)).await;
    match assembled.unwrap_or(Err(StoreError::Broken)) {
        Ok(content) => {
            let tag = content.digest();
            match uploads.whole(id, content, Some(digest), (core.clock)()) {
                Ok(()) => created(conn, head, id, Some(tag)).await,
                Err(error) => {
                    uploads.abandon(id);
                    refuse(error)
                }
            }
        }
        Err(error) => {
            uploads.abandon(id);
            tracing::error!("putting blocks together: {error}");
            Err(Wrong { status: 503, reason: "the blocks could not be put together" }.into())
        }
    }
}

/// The body of a request; in a file when it is large or `memory` does not allow it otherwise.
async fn take(
    core: &Arc<Core>,
    conn: &mut Connection,
    head: &Head,
    sync: bool,
    memory: bool,
) -> Result<Content, End> {
    let spool = match conn.body(core, head, true).await? {
        Incoming::Memory(bytes) if memory => return Ok(Content::Memory(bytes)),
        Incoming::Memory(bytes) => {
            let mut spool = core.store.spool()?;
            spool.write(&bytes)?;
            spool
        }
        Incoming::File(spool) => spool,
        Incoming::Discarded => return Ok(Content::Memory(Vec::new())),
    };
    let finished = tokio::task::spawn_blocking(move || spool.finish(sync)).await;
    Ok(Content::File(finished.unwrap_or(Err(StoreError::Broken))?))
}

fn refuse(error: UploadError) -> Result<(), End> {
    let (status, reason) = match error {
        UploadError::Unknown => (404, "the upload is not known: it was finalized, or it expired"),
        UploadError::Large => (413, "the upload is larger than it may be"),
        UploadError::Space => (507, "too much is being uploaded at once"),
        UploadError::NoBlock => (400, "the block list names a block that was not uploaded, or one twice"),
        UploadError::Blocks => (409, "the upload has too many blocks"),
        _ => (409, "the upload was committed already"),
    };
    tracing::info!("an upload is refused: {error}");
    // what is left of the body is not read
    Err(Wrong { status, reason }.into())
}

async fn created(conn: &mut Connection, head: &Head, id: &str, tag: Option<Digest>) -> Result<(), End> {
    let tag = format!("\"{}\"", tag.map_or_else(|| id.to_owned(), |digest| digest.hex()));
    let headers = [
        ("ETag", &*tag),
        ("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("x-ms-request-id", id),
        ("x-ms-version", "2024-11-04"),
        ("x-ms-request-server-encrypted", "false"),
    ];
    conn.begin(201, 0, head.keep_alive, &headers);
    conn.send(None).await
}

/// An object of a URL for reading, taken apart: name, digest, type of the content.
fn object_parts(object: &str) -> Option<(NameHash, Digest, String)> {
    let mut parts = object.splitn(3, '.');
    let name = parts.next().filter(|name| name.len() == 32)?;
    let name = NameHash(u128::from_str_radix(name, 16).ok()?);
    let digest = Digest::from_hex(parts.next()?).ok()?;
    let mime =
        parts.next().map_or_else(|| "application/octet-stream".to_owned(), |mime| mime.replace('~', "/"));
    Some((name, digest, mime))
}

async fn get(
    thread: &Thread,
    conn: &mut Connection,
    head: &Head,
    object: &str,
    scope: &str,
) -> Result<(), End> {
    let core = &*thread.core;
    conn.body(core, head, false).await?;
    let mut entry = std::mem::take(&mut conn.entry);
    let found = object_parts(object).and_then(|(name, digest, mime)| {
        let found = core.store.get(name, &mut entry).unwrap_or_else(|error| {
            tracing::error!("reading an entry: {error}");
            None
        });
        // the name may have another content by now
        found.filter(|found| found.facts.digest == digest).map(|found| (found, mime))
    });
    conn.entry = entry;
    let Some((Found { facts, place }, mime)) = found else {
        conn.begin(404, 0, head.keep_alive, &[]);
        return conn.send(None).await;
    };
    let file = disposition(&head.path);
    let mut headers = vec![("Content-Type", mime.as_str()), ("x-ms-blob-type", "BlockBlob")];
    headers.extend(file.as_deref().map(|file| ("Content-Disposition", file)));
    let Some(part) = part::begin(conn, head, &facts, &headers).await? else { return Ok(()) };
    core.figures.of(scope, Surface::Github).bytes_out.fetch_add(part.end - part.start, Relaxed);
    part::send(thread, conn, place, facts.size, part).await
}

/// The name of the file, for clients that save it under it.
fn disposition(path: &str) -> Option<String> {
    let (_, file) = path.strip_prefix(PREFIX)?.split_once('/')?;
    let mut text = "attachment; filename*=UTF-8''".to_owned();
    for byte in file.bytes().take(512) {
        match byte {
            b'.' | b'-' | b'_' => text.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_object_is_read_or_refused_and_no_file_name_breaks_a_header(object in "\\PC{0,110}", file: String) {
            let _ = object_parts(&object);
            let said = disposition(&format!("{PREFIX}a/{file}")).unwrap();
            prop_assert!(said.bytes().all(|b| b.is_ascii_graphic() || b == b' ') && !said.contains('"'));
        }
    }
}
