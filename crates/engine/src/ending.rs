//! The end of an attempt: its verdict, its machine, its claim, and what becomes of the job.

use crate::lifecycle::{AttemptEvent, DeviceEvent, JobEvent, LeaseEvent, RunnerEvent};
use crate::tx::Tx;
use crate::{advice, completion, demand, pools, queue, release, verdict};
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::device::DeviceState;
use forgeyard_model::effect::Effect;
use forgeyard_model::input::Refusal;
use forgeyard_model::job::{Hold, Job, JobKind, JobState};
use forgeyard_model::runner::RunnerState;
use forgeyard_model::verdict::{ExitFacts, Outcome, RetryPolicy, Verdict};
use forgeyard_model::{ArtifactId, Explanation, LeaseId, Owner};

/// A verdict of the farm itself, when there is no word of the agent.
pub(crate) fn lost(class: &str, cause: impl Into<String>, retry: RetryPolicy) -> Verdict {
    Verdict {
        outcome: Outcome::Lost,
        class: Some(class.to_owned()),
        cause: cause.into(),
        rule: None,
        blame: None,
        retry,
        lines: Vec::new(),
        fix: None,
    }
}

/// Ends a live attempt with this verdict. `broken` is set when the machine itself broke.
pub(crate) fn end(
    tx: &mut Tx<'_>,
    attempt: Attempt,
    verdict: Verdict,
    facts: Option<ExitFacts>,
    broken: Option<Explanation>,
) -> Result<(), Refusal> {
    let mut attempt = attempt;
    let job = tx.job(attempt.job)?;
    let verdict = if job.cancel_requested_at.is_some() && verdict.outcome != Outcome::Succeeded {
        Verdict {
            outcome: Outcome::Canceled,
            class: Some("job.canceled".to_owned()),
            cause: "somebody asked to stop it".to_owned(),
            retry: RetryPolicy::R0,
            ..verdict
        }
    } else {
        verdict
    };
    let mut verdict = verdict;
    advice::add(tx.config(), &job, &attempt, facts.as_ref(), &mut verdict);
    attempt.outcome = Some(verdict.outcome);
    attempt.verdict = Some(verdict.clone());
    attempt.facts = facts;
    let (runner, lease) = (attempt.runner, attempt.lease);
    let site = tx.farm().sites.get(&attempt.site).map(|site| site.name.to_string());
    let used = tx.now().since(attempt.placed_at);
    queue::ledger::settle(tx, &attempt, &job, verdict.outcome, used);
    tx.move_attempt(attempt, AttemptEvent::AttemptEnded, used)?;
    demand::registration::spent(tx, runner)?;
    let mut machine = tx.runner(runner)?;
    if verdict.class.as_deref() == Some(demand::launch::IMAGE_TOO_OLD) {
        machine.outdated_at = Some(tx.now());
        tx.put(machine);
        machine = tx.runner(runner)?;
    }
    if machine.state.being_made() {
        if verdict.outcome == Outcome::Lost {
            let said = || Explanation::new(verdict.class.clone().unwrap_or_default(), verdict.cause.clone());
            pools::launch::did_not_come_up(tx, &machine, broken.clone().unwrap_or_else(said));
        } else {
            pools::launch::given_up(tx, &machine);
        }
    }
    pools::used(tx, &machine.pool);
    match broken {
        Some(reason) if machine.state.live() => {
            tx.move_runner(machine, RunnerEvent::RunnerFailed, RunnerState::Failed { reason })?;
        }
        _ if !machine.state.wanted() || matches!(machine.state, RunnerState::Kept { .. }) => {}
        // A machine that a forge may still hand a job stands until the forge has forgotten it.
        _ if demand::registration::stands(&machine) => {
            tx.move_runner(machine, RunnerEvent::RunnerLeaving, RunnerState::Leaving)?;
        }
        _ => {
            tx.move_runner(machine, RunnerEvent::RunnerDrained, RunnerState::Draining)?;
        }
    }
    demand::registration::attempt_over(tx, runner, &verdict)?;
    if let Some(lease) = lease {
        release_lease(tx, lease, &verdict)?;
    }
    conclude(tx, job, verdict, site)
}

/// Begins to give devices back; those that the verdict suspects are not handed out again.
fn release_lease(tx: &mut Tx<'_>, id: LeaseId, verdict: &Verdict) -> Result<(), Refusal> {
    let lease = tx.lease(id)?;
    if verdict.retry == RetryPolicy::RQ {
        for device in lease.devices.clone() {
            let device = tx.device(device)?;
            if matches!(device.state, DeviceState::Leased { .. }) {
                let reason = Explanation::new("device.suspect", verdict.cause.clone())
                    .with(verdict.class.clone().unwrap_or_default())
                    .fix("look at the host, then `forgeyard device clear`");
                tx.move_device(device, DeviceEvent::DeviceQuarantined, DeviceState::Quarantined { reason })?;
            }
        }
    }
    if lease.state.live() && lease.state != forgeyard_model::lease::LeaseState::Releasing {
        tx.move_lease(lease, LeaseEvent::LeaseReleasing)?;
    }
    Ok(())
}

/// What becomes of the job.
fn conclude(tx: &mut Tx<'_>, mut job: Job, verdict: Verdict, site: Option<String>) -> Result<(), Refusal> {
    let owner = job.owner;
    if job.kind == JobKind::Runner {
        return demand::launch::concluded(tx, job, verdict, site);
    }
    job.verdict = Some(verdict.clone());
    let again = if job.cancel_requested_at.is_some() { None } else { verdict::retry(&verdict, job.retries) };
    // There is no larger flavor to choose from yet: the same memory would only be filled again.
    let again = again.filter(|backoff| !backoff.more_memory);
    match (verdict.outcome, again) {
        (Outcome::Succeeded, _) => {
            let id = job.id;
            let kind = job.kind;
            tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome: Outcome::Succeeded }, None)?;
            succeeded(tx, id, kind)?;
        }
        (_, Some(backoff)) => {
            job.retries += 1;
            if backoff.avoid_host {
                job.avoid.extend(site);
            }
            let until = tx.now().plus(backoff.wait);
            let note = format!("attempt {} ended: {}", job.fence, verdict.cause);
            job.waiting =
                Some(Explanation::new("job.retry", format!("tries again at {until}")).with(note.clone()));
            tx.move_job(job, JobEvent::JobRetried, JobState::Held(Hold::Retry { until }), Some(note))?;
            return Ok(());
        }
        (outcome, None) => {
            tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome }, Some(verdict.cause))?;
        }
    }
    if let Owner::Pipeline(pipeline) = owner {
        release::release_held(tx, pipeline)?;
    }
    completion::check(tx, owner)
}

/// What follows from a success.
fn succeeded(tx: &mut Tx<'_>, job: forgeyard_model::JobId, kind: JobKind) -> Result<(), Refusal> {
    let row = tx.job(job)?;
    let accepted: Vec<(ArtifactId, ArtifactKind)> = tx
        .farm()
        .attempts_of(job)
        .last()
        .into_iter()
        .flat_map(|attempt| &attempt.artifacts)
        .filter_map(|id| tx.farm().artifacts.get(id).map(|artifact| (*id, artifact.kind)))
        .collect();
    let Owner::Pipeline(pipeline) = row.owner else { return Ok(()) };
    if tx.pipeline(pipeline)?.state.ended() {
        return Ok(());
    }
    for (artifact, artifact_kind) in accepted {
        match (kind, artifact_kind) {
            (JobKind::Plan, ArtifactKind::Plan) => {
                tx.effect(artifact, "read-plan", Effect::ReadPlan { job, artifact });
            }
            (JobKind::Build, ArtifactKind::CondaPackage) => {
                tx.effect(artifact, "inspect", Effect::InspectPackage { job, artifact });
            }
            _ => {}
        }
    }
    Ok(())
}
