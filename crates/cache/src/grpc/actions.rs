//! Capabilities and action results.

use super::wire::{self, Raw};
use super::{Caller, Calling, LARGEST_BATCH, shown, valid};
use crate::exchange::{Access, add};
use crate::name::{Kind, Name};
use crate::promise::{beyond, bring, complete, look};
use crate::service::Core;
use crate::store::{Body, INLINE, Outcome, Place, Policy, Store as _};
use crate::{action, shape};
use bytes::Bytes;
use tonic::{Code, Request, Response, Status};

/// What this cache speaks.
pub(super) async fn capabilities(
    calling: Calling,
    request: Request<wire::GetCapabilitiesRequest>,
) -> Result<Response<wire::ServerCapabilities>, Status> {
    let caller = calling.caller(request.metadata(), &request.get_ref().instance_name);
    let update_enabled = caller.access.grant.writes.is_some() || caller.tool.reader_is_told_updates();
    let cache = wire::CacheCapabilities {
        digest_functions: vec![wire::SHA256],
        action_cache_update_capabilities: Some(wire::ActionCacheUpdateCapabilities { update_enabled }),
        cache_priority_capabilities: Some(wire::PriorityCapabilities {
            priorities: vec![wire::PriorityRange { min_priority: 0, max_priority: 0 }],
        }),
        max_batch_total_size_bytes: LARGEST_BATCH as i64,
        symlink_absolute_path_strategy: 2,
        supported_compressors: vec![wire::ZSTD],
        supported_batch_update_compressors: vec![wire::ZSTD],
        max_cas_blob_size_bytes: i64::try_from(caller.core.largest).unwrap_or(i64::MAX),
    };
    Ok(Response::new(wire::ServerCapabilities {
        cache_capabilities: Some(cache),
        low_api_version: Some(wire::SemVer { major: 2, minor: 0 }),
        high_api_version: Some(wire::SemVer { major: 2, minor: 3 }),
    }))
}

fn key<'a>(caller: &Caller, digest: Option<&'a wire::Digest>) -> Result<&'a str, Status> {
    let wrong = || {
        caller.refuse(
            Code::InvalidArgument,
            &shown(digest),
            "the digest of the action is not a SHA-256 and a size",
        )
    };
    digest.and_then(valid).ok_or_else(wrong)
}

/// Looks on this disk.
fn find(core: &Core, access: &Access, key: &str) -> Option<(usize, Bytes)> {
    let mut buffer = Vec::new();
    look(access, Kind::Action, key, |scope, name| {
        let Some(found) = core.store.get(name, &mut buffer)? else { return Ok(None) };
        let Place::Buffer(range) = found.place else { return Ok(None) };
        let result = buffer.get(range).unwrap_or_default();
        if shape::is_ccache(result) {
            return Ok(None);
        }
        if !complete(core, access, Kind::Action, result) {
            if beyond(core, access, Kind::Action, result) {
                return Ok(None);
            }
            core.store.remove(&Name { scope: scope.clone(), kind: Kind::Action, key: key.to_owned() })?;
            return Ok(None);
        }
        Ok(Some(Bytes::copy_from_slice(result)))
    })
}

/// An action result whose contents are all here; they are leased. One without them is dropped (bazel#18696).
pub(super) async fn get(
    calling: Calling,
    request: Request<wire::GetActionResultRequest>,
) -> Result<Response<Raw>, Status> {
    let message = request.get_ref();
    let caller = calling.caller(request.metadata(), &message.instance_name);
    caller.function(message.digest_function)?;
    let key = key(&caller, message.action_digest.as_ref())?;
    let (core, access) = (&*caller.core, &*caller.access);
    let mut found = find(core, access, key);
    if found.is_none() && bring(core, access, Kind::Action, key).await {
        found = find(core, access, key);
    }
    let Some((depth, result)) = found else {
        access.missed(core, Kind::Action, key);
        // a miss is the usual case and no refusal
        return Err(Status::not_found(format!("{key}: no such action result")));
    };
    access.found(core, depth, Kind::Action, key);
    add(&access.counters.bytes_out, result.len() as u64);
    Ok(Response::new(Raw(result)))
}

/// Stores an action result whose contents are all here.
pub(super) async fn update(
    calling: Calling,
    request: Request<wire::UpdateActionResultRequest>,
) -> Result<Response<Raw>, Status> {
    let message = request.get_ref();
    let caller = calling.caller(request.metadata(), &message.instance_name);
    caller.function(message.digest_function)?;
    let key = key(&caller, message.action_digest.as_ref())?;
    let (core, access, result) = (&*caller.core, &*caller.access, &message.action_result);
    let Some(scope) = access.grant.writes.clone() else {
        return Ok(caller.discard(Raw(result.clone())));
    };
    let about = format!("result of action {key}");
    if result.len() as u64 > INLINE || shape::is_ccache(result) || action::references(result).is_none() {
        add(&access.counters.malformed, 1);
        return Err(caller.refuse(
            Code::InvalidArgument,
            &about,
            "it is no action result, or a larger one than this cache takes",
        ));
    }
    if !complete(core, access, Kind::Action, result) {
        add(&access.counters.malformed, 1);
        return Err(caller.refuse(
            Code::FailedPrecondition,
            &about,
            "a content that it refers to is not here",
        ));
    }
    let name = Name { scope, kind: Kind::Action, key: key.to_owned() };
    let by = caller.provenance();
    // in a scope of its own a job may rewrite what it likes
    let policy = if access.grant.trusted { Policy::Keep } else { Policy::Replace };
    let put = |policy| core.store.put(&name, Body::Inline(result), policy, &by);
    let mut stored = put(policy).map_err(|error| caller.failed(&about, &error))?;
    if stored.outcome == Outcome::Kept && !stays(&caller, &name) {
        stored = put(Policy::Replace).map_err(|error| caller.failed(&about, &error))?;
    }
    super::upload::settle(&caller, &about, stored.ticket).await?;
    match stored.outcome {
        Outcome::New | Outcome::Replaced => {
            access.stored(core, &name, result.len() as u64);
        }
        Outcome::Same => add(&access.counters.repeats, 1),
        Outcome::Kept => {
            add(&access.counters.mismatches, 1);
            tracing::warn!(
                entry = %name, writer = %by.principal, run = by.run.as_deref().unwrap_or_default(),
                "another result for an action of a trusted scope: a build that is not reproducible, or poison; the first stays"
            );
        }
    }
    Ok(Response::new(Raw(result.clone())))
}

/// Whether the result that holds a name in a trusted scope is one that can be served.
fn stays(caller: &Caller, name: &Name) -> bool {
    let mut buffer = Vec::new();
    let found = caller.core.store.get(name.hash(), &mut buffer);
    let Ok(Some(found)) = found else { return false };
    let Place::Buffer(range) = found.place else { return false };
    complete(&caller.core, &caller.access, Kind::Action, buffer.get(range).unwrap_or_default())
}
