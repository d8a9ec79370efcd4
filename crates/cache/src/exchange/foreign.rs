//! Reads at addresses of another server's files of Nix ([`crate::foreign`]): which file has what is asked for, and a NAR that is
//! unpacked while it is sent.
//!
//! Bounded: at most [`AT_ONCE`](crate::foreign::AT_ONCE) NARs are unpacked at a time, for all callers; one more waits [`PATIENCE`] and is a miss then.
//! A decoder takes 128 MiB at most, is not further ahead of its reader than [`AHEAD`] pieces, and stops when the reader is gone
//! or at the size that was measured. An answer that cannot be finished breaks off (nix#4533).

use super::access::Access;
use super::{add, part};
use crate::connection::{Connection, End};
use crate::foreign::{Asked, Whereabouts, asked};
use crate::http::Head;
use crate::name::{Kind, Name};
use crate::nar::{Coding, unpack_found};
use crate::nix::NarInfo;
use crate::promise::{self, look};
use crate::service::Core;
use crate::store::{Body, Place, Policy, Provenance, Store as _};
use forgeyard_model::Digest;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a reader waits for a turn. The relay beside a job takes a cache that is silent for two seconds for a dead one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that a decoder hands over at once.
const PIECE: usize = 256 << 10;
/// Pieces that a decoder is ahead of its reader.
const AHEAD: usize = 2;

/// Where the bytes are that are asked for at an address of another server.
pub(super) enum Elsewhere {
    /// In the file with this key, as they are.
    Same(String),
    /// They are what this file unpacks to.
    Packed(Asked, Whereabouts),
}

/// The nearest entry for a NAR whose file can be read, and how far up it was.
fn known(core: &Core, access: &Access, nar: Digest) -> Option<(usize, Whereabouts)> {
    let mut buffer = Vec::new();
    look(access, Kind::Nar, &nar.hex(), |_, name| {
        let Some(found) = core.store.get(name, &mut buffer)? else { return Ok(None) };
        let Place::Buffer(range) = found.place else { return Ok(None) };
        let here = buffer.get(range).and_then(Whereabouts::read);
        Ok(here.filter(|here| look(access, Kind::Nix, &here.url, |_, name| core.store.facts(name)).is_some()))
    })
}

/// Looks for what another server calls so.
pub(super) async fn elsewhere(core: &Core, access: &Access, key: &str) -> Option<Elsewhere> {
    let asked = asked(key)?;
    let mut found = known(core, access, asked.nar);
    if found.is_none() && core.tier.is_some() {
        promise::bring(core, access, Kind::Nar, &asked.nar.hex()).await;
        let mut buffer = Vec::new();
        let (_, entry) =
            look(access, Kind::Nar, &asked.nar.hex(), |_, name| core.store.get(name, &mut buffer))?;
        let Place::Buffer(range) = entry.place else { return None };
        let here = buffer.get(range).and_then(Whereabouts::read)?;
        promise::bring(core, access, Kind::Nix, &here.url).await;
        found = known(core, access, asked.nar);
    }
    let (_, here) = found?;
    match (asked.coding, here.coding) {
        (wanted, stored) if wanted == stored => (here.url != key).then_some(Elsewhere::Same(here.url)),
        (Coding::None, _) => Some(Elsewhere::Packed(asked, here)),
        _ => None,
    }
}

/// Notes which file unpacks to a NAR, before the `narinfo` that says so is stored. One that is known and readable stays.
pub(super) fn note(
    core: &Core,
    access: &Access,
    name: &Name,
    by: &Provenance,
    info: &NarInfo,
    of: (Coding, Digest),
) {
    let (coding, nar) = of;
    if known(core, access, nar).is_some_and(|(depth, _)| depth == 0) {
        return;
    }
    let here = Whereabouts { coding, size: info.nar_size, url: info.url.clone() };
    let entry = Name { scope: name.scope.clone(), kind: Kind::Nar, key: nar.hex() };
    if let Err(error) = core.store.put(&entry, Body::Inline(here.text().as_bytes()), Policy::Replace, by) {
        tracing::warn!(%entry, "the file of a NAR is not noted, so it is not found at addresses of other servers: {error}");
    }
}

/// Sends what a file unpacks to. Whether it could be: nothing was said otherwise.
pub(super) async fn send_unpacked(
    core: &Core,
    conn: &mut Connection,
    head: &Head,
    access: &Access,
    asked: Asked,
    here: &Whereabouts,
) -> Result<bool, End> {
    let Ok(Ok(turn)) = tokio::time::timeout(PATIENCE, Arc::clone(&core.unpacking).acquire_owned()).await
    else {
        tracing::info!(nar = %asked.nar.hex(), "a NAR is not unpacked for a reader: too many others are");
        return Ok(false);
    };
    let mut buffer = Vec::new();
    let found = look(access, Kind::Nix, &here.url, |_, name| core.store.get(name, &mut buffer));
    let Some((depth, found)) = found else { return Ok(false) };
    let part = match part::asked(conn, head, here.size).await? {
        part::Asked::All => None,
        part::Asked::Part(part) => Some(part),
        part::Asked::Answered => return Ok(true),
    };
    access.found(core, depth, Kind::Nix, &here.url);
    conn.begin_entry(asked.nar, here.size, part.as_ref(), head.keep_alive);
    let part = part.unwrap_or(0..here.size);
    add(&access.counters.bytes_out, part.end - part.start);
    let (sender, mut pieces) = mpsc::channel(AHEAD);
    let (coding, wanted) = (here.coding, part.clone());
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let Some(mut unpacked) = unpack_found(found.place, buffer, coding) else { return };
        let skipped = std::io::copy(&mut unpacked.by_ref().take(wanted.start), &mut std::io::sink());
        let mut left =
            if skipped.is_ok_and(|skipped| skipped == wanted.start) { wanted.end - wanted.start } else { 0 };
        while left > 0 {
            let mut piece = Vec::with_capacity(PIECE.min(left as usize));
            let read = unpacked.by_ref().take(left.min(PIECE as u64)).read_to_end(&mut piece);
            // what ends early is noticed by who counts
            if !read.is_ok_and(|read| read > 0) {
                return;
            }
            left -= piece.len() as u64;
            if sender.blocking_send(piece).is_err() {
                return;
            }
        }
    });
    let mut left = part.end - part.start;
    conn.send(None).await?;
    while let Some(piece) = pieces.recv().await {
        left -= piece.len() as u64;
        conn.send_more(&piece).await?;
    }
    if left > 0 {
        tracing::error!(nar = %asked.nar.hex(), file = %here.url, "a file does not unpack to what it did when it came");
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidData).into());
    }
    Ok(true)
}
