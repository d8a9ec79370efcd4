//! When a pipeline is over, and what its lane allows then.

use crate::farm::Farm;
use crate::lifecycle::JobEvent;
use crate::tx::Tx;
use forgeyard_model::artifact::Artifact;
use forgeyard_model::effect::Effect;
use forgeyard_model::forge::Trigger;
use forgeyard_model::input::Refusal;
use forgeyard_model::job::{Job, JobKind, JobState};
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{Explanation, JobId, Owner, PipelineId};

/// Whether an artifact was made by the attempt that its job accepted last: only those count for anything.
pub fn accepted(farm: &Farm, artifact: &Artifact) -> bool {
    let (Some(job), Some(attempt)) = (artifact.job, artifact.attempt) else { return false };
    let newest =
        farm.attempts_of(job).into_iter().rfind(|attempt| attempt.outcome == Some(Outcome::Succeeded));
    newest.is_some_and(|newest| newest.id == attempt)
}

/// Fails a pipeline: what has not begun is stopped, what runs is asked to stop.
pub(crate) fn fail(tx: &mut Tx<'_>, id: PipelineId, reason: Explanation) -> Result<(), Refusal> {
    let pipeline = tx.pipeline(id)?;
    if pipeline.state.ended() {
        return Ok(());
    }
    let open: Vec<JobId> = tx.farm().jobs_of(id).filter(|job| !job.state.ended()).map(|job| job.id).collect();
    tx.move_pipeline(pipeline, PipelineState::Failed { reason });
    for job in open {
        crate::people::stop(tx, job, "its pipeline failed")?;
    }
    Ok(())
}

/// Looks whether all jobs are over, and takes the step that follows. A demand ends by the word of its forge alone.
pub(crate) fn check(tx: &mut Tx<'_>, owner: Owner) -> Result<(), Refusal> {
    let Owner::Pipeline(id) = owner else { return Ok(()) };
    let pipeline = tx.pipeline(id)?;
    if pipeline.state != PipelineState::Running {
        return Ok(());
    }
    cancel_orphans(tx, id)?;
    let jobs: Vec<Job> = tx.farm().jobs_of(id).cloned().collect();
    if jobs.iter().any(|job| !job.state.ended()) {
        return Ok(());
    }
    // Before the plan is read there are no builds; before a package is read its tests are not decided.
    let planned = !pipeline.outputs.is_empty();
    let plan_failed = jobs.iter().any(|job| job.kind == JobKind::Plan && !succeeded(job));
    if !planned && !plan_failed {
        return Ok(());
    }
    if let Some(job) = jobs.iter().find(|job| !succeeded(job) && !untested(job) && !orphaned(job)) {
        let reason = failure(job);
        let canceled = matches!(job.state, JobState::Ended { outcome: Outcome::Canceled });
        let to = if canceled { PipelineState::Canceled { reason } } else { PipelineState::Failed { reason } };
        tx.move_pipeline(pipeline, to);
        return Ok(());
    }
    settle(tx, pipeline, &jobs);
    Ok(())
}

fn succeeded(job: &Job) -> bool {
    job.state == JobState::Ended { outcome: Outcome::Succeeded }
}

fn class(job: &Job) -> Option<&str> {
    job.verdict.as_ref().and_then(|verdict| verdict.class.as_deref())
}

fn untested(job: &Job) -> bool {
    class(job) == Some("test.none")
}

fn orphaned(job: &Job) -> bool {
    class(job) == Some("job.needs_failed")
}

fn failure(job: &Job) -> Explanation {
    let cause = job.verdict.as_ref().map_or("it was stopped", |verdict| verdict.cause.as_str());
    Explanation::new("pipeline.job_failed", format!("{}: {cause}", job.key))
        .with(job.id.to_string())
        .fix(format!("see `forgeyard why {}`", job.id))
}

/// Everything passed: promote, or say why not.
fn settle(tx: &mut Tx<'_>, mut pipeline: Pipeline, jobs: &[Job]) {
    let lane = pipeline.lane;
    let bare: Vec<&str> = jobs.iter().filter(|job| untested(job)).map(|job| job.key.as_str()).collect();
    let repository = tx.config().repository(&pipeline.event.repository.forge, pipeline.event.repository.id);
    let refusal = if pipeline.event.trigger == Trigger::Manual {
        Some(Explanation::new(
            "promotion.handed_in",
            "not promotable: the recipe was handed in by a person, not taken from a protected ref",
        ))
    } else if !lane.promotable() {
        Some(
            Explanation::new("promotion.lane", format!("not promotable: the lane is a {lane}"))
                .with(format!("lane: {}", lane.as_str()))
                .fix("merge it; the push to the protected branch is built, tested and promoted"),
        )
    } else if !bare.is_empty() {
        Some(
            Explanation::new("promotion.untested", "not promotable: a package carries no tests")
                .with(bare.join(", "))
                .fix("add a `tests:` section to the recipe"),
        )
    } else if repository.is_none() {
        Some(Explanation::new(
            "promotion.no_repository",
            "not promotable: the repository is no longer configured",
        ))
    } else {
        None
    };
    match (refusal, repository) {
        (None, Some(repository)) => {
            // The operator's channel counts; a repository cannot choose another one for itself.
            let channel = repository.channel.clone();
            let id = pipeline.id;
            tx.move_pipeline(pipeline, PipelineState::Promoting);
            tx.effect(id, "promote", Effect::Promote { pipeline: id, channel });
        }
        (refusal, _) => {
            pipeline.not_promoted = refusal;
            tx.move_pipeline(pipeline, PipelineState::Succeeded);
        }
    }
}

/// Ends jobs that wait for builds which will never bring what they need.
fn cancel_orphans(tx: &mut Tx<'_>, id: PipelineId) -> Result<(), Refusal> {
    loop {
        let dead =
            |build: &JobId| tx.farm().jobs.get(build).is_none_or(|job| job.state.ended() && !succeeded(job));
        let orphan = tx
            .farm()
            .jobs_of(id)
            .find(|job| matches!(job.state, JobState::Held(_)) && job.needs.iter().any(dead));
        let Some(mut job) = orphan.cloned() else { return Ok(()) };
        job.verdict = Some(forgeyard_model::verdict::Verdict {
            outcome: Outcome::Canceled,
            class: Some("job.needs_failed".to_owned()),
            cause: "a build that it needs did not succeed".to_owned(),
            rule: None,
            blame: None,
            retry: forgeyard_model::verdict::RetryPolicy::R0,
            lines: Vec::new(),
            fix: None,
        });
        tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome: Outcome::Canceled }, None)?;
    }
}
