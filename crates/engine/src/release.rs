//! Letting held jobs go once what they wait for is there. Only then is a device leased.

use crate::lifecycle::JobEvent;
use crate::spec;
use crate::tx::Tx;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::input::Refusal;
use forgeyard_model::job::{Hold, Job, JobKind, JobState};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{JobId, Owner, PipelineId};

/// Lets every held job of a pipeline go that can.
pub(crate) fn release_held(tx: &mut Tx<'_>, pipeline: PipelineId) -> Result<(), Refusal> {
    let held: Vec<JobId> = tx
        .farm()
        .jobs_of(pipeline)
        .filter(|job| matches!(job.state, JobState::Held(Hold::Artifacts { .. })))
        .map(|job| job.id)
        .collect();
    for job in held {
        try_release(tx, job)?;
    }
    Ok(())
}

/// Lets one held job go when every build that it needs has succeeded and every package of it was read.
pub(crate) fn try_release(tx: &mut Tx<'_>, id: JobId) -> Result<(), Refusal> {
    let mut job = tx.job(id)?;
    if !matches!(job.state, JobState::Held(Hold::Artifacts { .. })) {
        return Ok(());
    }
    // A test is decided from the package's own list; before that there is nothing to run.
    if job.kind == JobKind::Test && job.test.as_ref().is_none_or(|test| test.selection.is_none()) {
        return Ok(());
    }
    if !job.needs.iter().all(|build| ready(tx, *build)) {
        return Ok(());
    }
    let Owner::Pipeline(owner) = job.owner else { return Ok(()) };
    let pipeline = tx.pipeline(owner)?;
    let packages = packages_of(tx, &job);
    let Some(spec) = (match job.kind {
        JobKind::Build => Some(spec::build(tx.config(), &pipeline, &job, &packages)),
        JobKind::Test => spec::test(tx.config(), &pipeline, &job, &packages),
        JobKind::Plan | JobKind::Runner => None,
    }) else {
        return Ok(());
    };
    job.spec = Some(spec);
    tx.move_job(job, JobEvent::JobQueued, JobState::Queued, None)
}

/// A build is ready for others when it succeeded and each package of its accepted attempt was read.
fn ready(tx: &Tx<'_>, build: JobId) -> bool {
    let Some(job) = tx.farm().jobs.get(&build) else { return false };
    let Owner::Pipeline(owner) = job.owner else { return false };
    let mut packages = tx
        .farm()
        .artifacts_of(owner)
        .filter(|artifact| artifact.job == Some(build) && accepted(tx, artifact))
        .peekable();
    job.state == JobState::Ended { outcome: Outcome::Succeeded }
        && packages.peek().is_some()
        && packages.all(|artifact| artifact.package.is_some())
}

/// Whether an artifact is a package of the attempt that its job accepted last.
fn accepted(tx: &Tx<'_>, artifact: &Artifact) -> bool {
    artifact.kind == ArtifactKind::CondaPackage && crate::completion::accepted(tx.farm(), artifact)
}

/// Packages of all builds that a job needs, and of the builds that those need.
fn packages_of(tx: &Tx<'_>, job: &Job) -> Vec<Artifact> {
    let mut wanted = job.needs.clone();
    let mut open: Vec<JobId> = wanted.iter().copied().collect();
    while let Some(id) = open.pop() {
        for need in tx.farm().jobs.get(&id).into_iter().flat_map(|build| &build.needs) {
            if wanted.insert(*need) {
                open.push(*need);
            }
        }
    }
    let mine = |artifact: &&Artifact| {
        artifact.job.is_some_and(|build| wanted.contains(&build)) && accepted(tx, artifact)
    };
    let Owner::Pipeline(owner) = job.owner else { return Vec::new() };
    tx.farm().artifacts_of(owner).filter(mine).cloned().collect()
}
