//! What the passing of time does. A timer that runs out is an event, not a surprise; no lease ends by it.

use crate::completion;
use crate::demand;
use crate::ending::{self, lost};
use crate::farm;
use crate::lifecycle::{JobEvent, RunnerEvent};
use crate::pools;
use crate::tx::Tx;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::environment::{Environment, EnvironmentState};
use forgeyard_model::input::{Refusal, Reply};
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::lease::Lease;
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use forgeyard_model::{AttemptId, Explanation, JobId, LeaseId, PipelineId, RunnerId, Timestamp, deadline};
use std::time::Duration;

/// How long an alarm stays quiet before it is raised again.
const ALARM_AGAIN: Duration = Duration::from_secs(600);

/// How long a job that was asked to stop may take before the farm ends it without its agent.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_secs(60);

/// Looks at every deadline.
pub(crate) fn ticked(tx: &mut Tx<'_>) -> Result<Reply, Refusal> {
    paused_jobs(tx)?;
    attempts(tx)?;
    runners(tx)?;
    leases(tx);
    held_jobs(tx)?;
    pipelines(tx)?;
    environments(tx)?;
    demand::time::ticked(tx)?;
    pools::ticked(tx)?;
    Ok(Reply::Done)
}

fn over(deadline: Option<Timestamp>, now: Timestamp) -> bool {
    deadline.is_some_and(|deadline| deadline <= now)
}

/// The same for what sites and agents do while the farm is away: a time that ran out meanwhile counts only after they
/// had the time to say what became of it. A job that ended well during an outage has not overrun anything.
fn over_and_heard_out(tx: &Tx<'_>, deadline: Option<Timestamp>) -> bool {
    let now = tx.now();
    over(deadline, now) && now.since(tx.farm().resumed_at) > deadline::AGENT_SILENCE
}

fn paused_jobs(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let due: Vec<JobId> =
        tx.farm().index.paused.iter().take_while(|(until, _)| *until <= now).map(|(_, id)| *id).collect();
    for id in due {
        let job = tx.job(id)?;
        tx.move_job(job, JobEvent::JobQueued, JobState::Queued, None)?;
    }
    Ok(())
}

fn attempts(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    // Rows are large, and most are not due: they are looked at where they lie, and their jobs only where some were canceled.
    let farm = tx.farm();
    let asked = !farm.index.cancelling.is_empty();
    let live = farm.index.live_attempts.iter().filter_map(|id| farm.attempts.get(id));
    let near = live.filter(|attempt| {
        silent(tx, attempt).is_some()
            || over_and_heard_out(tx, attempt.deadline)
            || (asked && farm.index.cancelling.contains(&attempt.job))
    });
    let due: Vec<AttemptId> =
        near.filter(|attempt| attempt_verdict(tx, attempt).is_some()).map(|attempt| attempt.id).collect();
    for id in due {
        // One that is over by now, or not due any more, because of another one of this list.
        let attempt = tx.attempt(id)?;
        if attempt.state.live()
            && let Some(verdict) = attempt_verdict(tx, &attempt)
        {
            ending::end(tx, attempt, verdict, None, None)?;
        }
    }
    Ok(())
}

/// When the agent of an attempt was last heard, if that is too long ago.
fn silent(tx: &Tx<'_>, attempt: &Attempt) -> Option<Timestamp> {
    // Silence before this control plane was up is our own.
    let heard = attempt.heard_at.unwrap_or(attempt.placed_at).max(tx.farm().resumed_at);
    let silent = attempt.state != AttemptState::Placed && tx.now().since(heard) > deadline::AGENT_SILENCE;
    silent.then_some(heard)
}

/// The verdict over an attempt whose time is up or whose agent is silent.
fn attempt_verdict(tx: &Tx<'_>, attempt: &Attempt) -> Option<Verdict> {
    let now = tx.now();
    let job = tx.farm().jobs.get(&attempt.job)?;
    if job.cancel_requested_at.is_some_and(|asked| now.since(asked) > CANCEL_GRACE) {
        return Some(lost("job.canceled", "it did not stop when asked, and was ended", RetryPolicy::R0));
    }
    if let Some(heard) = silent(tx, attempt) {
        let text = format!("its agent was last heard at {heard}");
        return Some(lost("infra.agent-lost", text, RetryPolicy::R1));
    }
    if !over_and_heard_out(tx, attempt.deadline) {
        return None;
    }
    if let Some(verdict) = demand::launch::overdue(tx, attempt) {
        return Some(verdict);
    }
    Some(match attempt.state {
        AttemptState::Running => Verdict {
            outcome: Outcome::TimedOut,
            class: Some("limit.wall".to_owned()),
            cause: "it ran past its time limit and its supervisor did not end it".to_owned(),
            rule: None,
            blame: None,
            retry: RetryPolicy::R0,
            lines: Vec::new(),
            fix: Some("make the job shorter, or give its flavor more time".to_owned()),
        },
        AttemptState::Placed => {
            lost("infra.not-started", "its machine did not call in time", RetryPolicy::RB)
        }
        _ => lost("infra.not-prepared", "its agent did not begin a step in time", RetryPolicy::R1),
    })
}

fn runners(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let due: Vec<RunnerId> = farm::due(&tx.farm().index.runner_deadlines, now);
    for id in due {
        let runner = tx.runner(id)?;
        if !over_and_heard_out(tx, runner.deadline) {
            continue;
        }
        match &runner.state {
            RunnerState::Draining => {
                tx.move_runner(runner, RunnerEvent::RunnerDeleting, RunnerState::Deleting)?
            }
            // Never drained by time: the forge may still hand it a job.
            RunnerState::Leaving => {
                let text =
                    "the forge has not forgotten it; it is kept and the forge is asked again".to_owned();
                tx.event("RunnerOverdue", id, Some("leaving"), "leaving", Some(text));
                tx.put(Runner { deadline: Some(now.plus(ALARM_AGAIN)), ..runner });
            }
            RunnerState::Kept { .. } => {
                tx.move_runner(runner, RunnerEvent::RunnerDrained, RunnerState::Draining)?
            }
            RunnerState::Deleting | RunnerState::Failed { .. } => {
                let text = format!("it is still {} after its deadline", runner.state.name());
                tx.event("RunnerOverdue", id, Some(runner.state.name()), runner.state.name(), Some(text));
                tx.put(Runner { deadline: Some(now.plus(ALARM_AGAIN)), ..runner });
            }
            RunnerState::Ready if runner.work.is_warm() => {
                let text = format!("it waited for work since {}; a fresh one takes its place", runner.since);
                pools::warm::retire(tx, id, Explanation::new("pool.waited_long", text), false)?;
            }
            state if runner.work.is_warm() => {
                let text = format!("it was {} for too long", state.name());
                pools::warm::retire(tx, id, Explanation::new("infra.machine-overdue", text), true)?;
            }
            _ => {
                let attempt = tx.attempt_of(&runner)?;
                if attempt.state.live() {
                    let text = format!("its machine was {} for too long", runner.state.name());
                    let verdict = lost("infra.machine-overdue", text, RetryPolicy::RB);
                    ending::end(tx, attempt, verdict, None, None)?;
                } else {
                    tx.move_runner(runner, RunnerEvent::RunnerDrained, RunnerState::Draining)?;
                }
            }
        }
    }
    Ok(())
}

/// A lease that is overdue raises an alarm and keeps its devices.
fn leases(tx: &mut Tx<'_>) {
    let now = tx.now();
    let live: Vec<LeaseId> = tx.farm().index.live_leases.iter().map(|(_, id)| *id).collect();
    for id in live {
        let Some(lease) = tx.farm().leases.get(&id).filter(|lease| over(lease.deadline, now)).cloned() else {
            continue;
        };
        let name = lease.state.name();
        let text = format!(
            "it is still {name} after its deadline; the devices stay with it until the site confirms"
        );
        tx.event("LeaseOverdue", id, Some(name), name, Some(text));
        tx.put(Lease { deadline: Some(now.plus(ALARM_AGAIN)), ..lease });
    }
}

fn held_jobs(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let live: Vec<PipelineId> = tx.farm().index.live_pipelines.iter().copied().collect();
    for pipeline in live {
        let due = tx.farm().jobs_of(pipeline).filter(|job| over(job.deadline, now));
        let due: Vec<JobId> = due.map(|job| job.id).collect();
        for id in due {
            let mut job = tx.job(id)?;
            if !matches!(
                job.state,
                JobState::Held(Hold::Source | Hold::Inspection | Hold::Approval { .. }) | JobState::Queued
            ) {
                continue;
            }
            let cause = format!("it waited in `{}` longer than allowed", job.state.name());
            let mut verdict = lost("job.waited_too_long", cause, RetryPolicy::R0);
            verdict.outcome = Outcome::TimedOut;
            job.verdict = Some(verdict);
            tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome: Outcome::TimedOut }, None)?;
            completion::check(tx, pipeline.into())?;
        }
    }
    Ok(())
}

fn pipelines(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let live = tx.farm().index.live_pipelines.iter().filter_map(|id| tx.farm().pipelines.get(id));
    let due: Vec<PipelineId> =
        live.filter(|pipeline| over(pipeline.deadline, now)).map(|pipeline| pipeline.id).collect();
    for id in due {
        let name = tx.pipeline(id)?.state.name();
        let reason = Explanation::new("pipeline.overdue", format!("it was `{name}` longer than allowed"));
        completion::fail(tx, id, reason)?;
    }
    Ok(())
}

fn environments(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let due: Vec<Environment> = tx
        .farm()
        .environments
        .values()
        .filter(|environment| over(environment.deadline, now))
        .cloned()
        .collect();
    for environment in due {
        let reason = Explanation::new("environment.overdue", "no environment service made it in time")
            .fix("start one: `forgeyard env serve`, or `forgeyard up`");
        let id = environment.pipeline;
        tx.event(
            "EnvironmentMade",
            environment.id,
            Some("requested"),
            "failed",
            Some(reason.message.clone()),
        );
        let state = EnvironmentState::Failed { reason: reason.clone() };
        tx.put(Environment { state, since: now, deadline: None, ..environment });
        let pipeline = tx.pipeline(id)?;
        if !pipeline.state.ended() {
            tx.move_pipeline(pipeline, PipelineState::Failed { reason });
        }
    }
    Ok(())
}
