//! The artifact service: artifacts of a run, seen by the jobs of that run.
//!
//! The client names its run and job with ids that it takes from its token; they are checked against the token, so that an
//! id of another run opens nothing. A job writes under its own id; it reads and removes what any job of its run made.

use super::archive;
use super::caches::{lease, object, settle};
use super::catalog::Artifact;
use super::messages::{
    ArtifactRequest, ArtifactResponse, CreateArtifactRequest, CreateArtifactResponse,
    FinalizeArtifactRequest, GetSignedArtifactUrlResponse, ListArtifactsRequest, ListArtifactsResponse,
    ListedArtifact, Time,
};
use super::signed::Right;
use super::twirp::{Code, TwirpError};
use super::uploads::{Content, Purpose, UploadError};
use super::{Asked, Backend, random_id, refused, unavailable};
use crate::name::{Kind, Name};
use crate::scope::ScopePath;
use crate::store::{Facts, Outcome, Store as _};
use forgeyard_model::{Digest, Timestamp};
use std::sync::atomic::Ordering::Relaxed;

/// Type of a ZIP.
pub(super) const ZIP: &str = "application/zip";
const LONGEST_NAME: usize = 256;

fn name(scope: &ScopePath, run: &str, artifact: &str) -> Name {
    Name { scope: scope.clone(), kind: Kind::Artifact, key: format!("{run}/{artifact}") }
}

/// The scope and ids of a caller, when the ids in its message are its own.
fn own<'a>(asked: &'a Asked, run: &str, job: Option<&str>) -> Result<(&'a ScopePath, Backend), TwirpError> {
    let grant = &asked.access.grant;
    let none = || TwirpError::new(Code::Unauthenticated, "artifacts need a token of a job");
    let scope = grant.reads.first().filter(|_| !asked.by.principal.is_empty()).ok_or_else(none)?;
    let ours = || Backend::new(scope, &asked.by.principal, asked.by.run.as_deref());
    let ids = asked.ids.clone().unwrap_or_else(ours);
    if ids.run != run || job.is_some_and(|job| ids.job != job) {
        tracing::warn!(%scope, principal = %asked.by.principal, "a job asked for artifacts of another run or job");
        return Err(TwirpError::new(Code::PermissionDenied, "the run or job is not the one of this token"));
    }
    Ok((scope, ids))
}

fn writer(asked: &Asked) -> Result<(), TwirpError> {
    if asked.access.grant.writes.is_none() {
        asked.access.counters.denied.fetch_add(1, Relaxed);
        return Err(TwirpError::new(Code::PermissionDenied, "this token may read and not write"));
    }
    Ok(())
}

/// The same characters that the official client refuses: they are no file name on some system.
fn check(artifact: &str) -> Result<(), TwirpError> {
    let bad = |c: char| c.is_control() || matches!(c, '"' | ':' | '<' | '>' | '|' | '*' | '?' | '\\' | '/');
    let dots = matches!(artifact, "." | "..");
    if artifact.is_empty() || artifact.len() > LONGEST_NAME || artifact.contains(bad) || dots {
        return Err(TwirpError::new(Code::InvalidArgument, "that is no name of an artifact"));
    }
    Ok(())
}

/// An artifact that is there: in the catalog, in the store, and not past its end.
fn there(asked: &Asked, artifact: &Artifact) -> Option<(Name, Facts)> {
    if artifact.expires_at.is_some_and(|end| end <= asked.now) {
        return None;
    }
    let name = name(&artifact.scope, &artifact.run, &artifact.name);
    let facts = asked.core.store.facts(name.hash()).ok().flatten()?;
    (facts.digest == artifact.digest).then_some((name, facts))
}

pub(super) fn create(
    asked: &Asked,
    request: CreateArtifactRequest,
) -> Result<CreateArtifactResponse, TwirpError> {
    let (run, job) = (&request.workflow_run_backend_id, &request.workflow_job_run_backend_id);
    let (scope, ids) = own(asked, run, Some(job))?;
    writer(asked)?;
    check(&request.name)?;
    if !(4..=9).contains(&request.version) {
        return Err(TwirpError::new(
            Code::InvalidArgument,
            "this service speaks version 4 to 7 of artifacts",
        ));
    }
    let github = &asked.core.github;
    if let Some(before) = github.catalog.artifact(scope, &ids.run, &request.name)
        && there(asked, &before).is_some()
    {
        let text = "an artifact with this name already exists in this run";
        return Err(TwirpError::new(Code::AlreadyExists, text));
    }
    let name = name(scope, &ids.run, &request.name);
    let mime = request.mime_type.filter(|mime| plain(mime)).unwrap_or_else(|| ZIP.to_owned());
    let expires_at =
        request.expires_at.map(|time| Timestamp::from_micros(time.seconds.saturating_mul(1_000_000)));
    let (run, job) = (ids.run, ids.job);
    let purpose = Purpose::Artifact { run, job, name: request.name, mime, expires_at };
    let id = random_id()?;
    github.uploads.reserve(id.clone(), name, &asked.writer(), purpose, asked.now).map_err(refused)?;
    Ok(CreateArtifactResponse { ok: true, signed_upload_url: asked.url(Right::Upload, id, scope, None) })
}

/// A type that can stand in a header.
fn plain(mime: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-' | b'_'))
    };
    mime.len() < 128 && mime.split_once('/').is_some_and(|(kind, sub)| part(kind) && part(sub))
}

pub(super) async fn finalize(
    asked: &Asked,
    request: FinalizeArtifactRequest,
) -> Result<ArtifactResponse, TwirpError> {
    let (run, job) = (&request.workflow_run_backend_id, &request.workflow_job_run_backend_id);
    let (scope, ids) = own(asked, run, Some(job))?;
    writer(asked)?;
    check(&request.name)?;
    let github = &asked.core.github;
    let name = name(scope, &ids.run, &request.name);
    let ready = match github.uploads.take(name.hash(), &asked.writer()) {
        Ok(ready) => ready,
        Err(UploadError::Unknown) => {
            // the answer to the first call may have been lost
            return match github.catalog.artifact(scope, &ids.run, &request.name) {
                Some(done) if there(asked, &done).is_some() && done.size == request.size as u64 => {
                    Ok(ArtifactResponse { ok: true, artifact_id: done.id })
                }
                _ => Err(refused(UploadError::Unknown)),
            };
        }
        Err(error) => return Err(refused(error)),
    };
    let Purpose::Artifact { mime, expires_at, .. } = ready.purpose else {
        return Err(refused(UploadError::Unknown));
    };
    let (size, hash, zip) = (request.size, request.hash.clone(), mime == ZIP);
    let settled = settle(&asked.core, &ready.name, ready.content, &asked.by, move |content| {
        sound(content, size, hash.as_deref(), zip)
    });
    let (outcome, facts) = settled.await.map_err(|error| error.answer(asked, &name))?;
    if outcome == Outcome::Kept {
        return Err(TwirpError::new(Code::AlreadyExists, "an artifact with this name already exists"));
    }
    asked.access.counters.writes.fetch_add(1, Relaxed);
    asked.access.counters.bytes_in.fetch_add(facts.size, Relaxed);
    let id = github.catalog.number();
    let artifact = Artifact {
        scope: scope.clone(),
        run: ids.run,
        job: ids.job,
        name: request.name,
        id,
        size: facts.size,
        digest: facts.digest,
        mime,
        at: asked.now,
        expires_at,
    };
    github.catalog.add(artifact).map_err(|error| unavailable(&error))?;
    Ok(ArtifactResponse { ok: true, artifact_id: id })
}

/// Whether an artifact is what its client says. Blocks.
fn sound(content: &Content, size: i64, hash: Option<&str>, zip: bool) -> Result<(), String> {
    if content.size() != size as u64 {
        return Err(format!("{size} bytes were promised and {} were uploaded", content.size()));
    }
    if let Some(hash) = hash {
        let said: Digest = hash.parse().map_err(|_| "the hash is no SHA-256".to_owned())?;
        if said != content.digest() {
            return Err("the bytes do not have the digest that the client says".to_owned());
        }
    }
    if zip {
        let mut tail = Vec::new();
        let from = content.size().saturating_sub(archive::ZIP_TAIL);
        content.read(from, |bytes| tail.extend_from_slice(bytes)).map_err(|error| error.to_string())?;
        if !archive::zip_ends(&tail, content.size()) {
            return Err("the archive is cut off: its ZIP has no end".to_owned());
        }
    }
    Ok(())
}

pub(super) fn list(
    asked: &Asked,
    request: &ListArtifactsRequest,
) -> Result<ListArtifactsResponse, TwirpError> {
    let (scope, ids) = own(asked, &request.workflow_run_backend_id, None)?;
    let all = asked.core.github.catalog.artifacts(scope, &ids.run);
    let wanted = all.into_iter().filter(|artifact| {
        request.name_filter.as_ref().is_none_or(|name| *name == artifact.name)
            && request.id_filter.is_none_or(|id| id == artifact.id)
            && there(asked, artifact).is_some()
    });
    let artifacts = wanted.map(|artifact| ListedArtifact {
        workflow_run_backend_id: artifact.run,
        workflow_job_run_backend_id: artifact.job,
        database_id: artifact.id,
        name: artifact.name,
        size: artifact.size as i64,
        created_at: Some(Time { seconds: artifact.at.as_micros().div_euclid(1_000_000), nanos: 0 }),
        digest: Some(artifact.digest.to_string()),
    });
    Ok(ListArtifactsResponse { artifacts: artifacts.collect() })
}

fn named(asked: &Asked, request: &ArtifactRequest) -> Result<Artifact, TwirpError> {
    let (scope, ids) = own(asked, &request.workflow_run_backend_id, None)?;
    let artifact = asked.core.github.catalog.artifact(scope, &ids.run, &request.name);
    let none = || TwirpError::new(Code::NotFound, "no such artifact in this run");
    artifact.filter(|artifact| there(asked, artifact).is_some()).ok_or_else(none)
}

pub(super) fn url(
    asked: &Asked,
    request: &ArtifactRequest,
) -> Result<GetSignedArtifactUrlResponse, TwirpError> {
    let artifact = named(asked, request)?;
    let Some((name, facts)) = there(asked, &artifact) else {
        return Err(TwirpError::new(Code::NotFound, "no such artifact in this run"));
    };
    asked.access.counters.hits.fetch_add(1, Relaxed);
    lease(asked, &name);
    let zip = artifact.mime == ZIP;
    let file = if zip { format!("{}.zip", artifact.name) } else { artifact.name.clone() };
    let object = format!("{}.{}", object(&name, &facts), artifact.mime.replace('/', "~"));
    Ok(GetSignedArtifactUrlResponse {
        signed_url: asked.url(Right::Download, object, &artifact.scope, Some(&file)),
    })
}

pub(super) fn delete(asked: &Asked, request: &ArtifactRequest) -> Result<ArtifactResponse, TwirpError> {
    let artifact = named(asked, request)?;
    writer(asked)?;
    let name = name(&artifact.scope, &artifact.run, &artifact.name);
    asked.core.store.remove(&name).map_err(|error| unavailable(&error))?;
    asked.core.github.catalog.drop_artifact(&artifact).map_err(|error| unavailable(&error))?;
    Ok(ArtifactResponse { ok: true, artifact_id: artifact.id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_types_that_could_climb_or_break_a_header_are_refused() {
        for wrong in ["", ".", "..", "a/b", "a\\b", "a\nb", "a:b", "a\"b", &"x".repeat(257)] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        assert!(check("test results (linux).txt").is_ok());
        assert!(plain("application/zip") && plain("text/plain"));
        for wrong in ["text", "text/pla in", "text/html; charset=utf-8", "a/b\r\nX: y", "/"] {
            assert!(!plain(wrong), "{wrong}");
        }
    }
}
