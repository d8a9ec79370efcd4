//! What agents say. A superseded attempt is refused whatever it brings.

use crate::demand;
use crate::ending;
use crate::lifecycle::{AttemptEvent, JobEvent, RunnerEvent};
use crate::pools;
use crate::tx::Tx;
use crate::verdict::{self, Ending};
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::{Attempt, AttemptState, TokenState};
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::job::{JobKind, JobState};
use forgeyard_model::runner::{RunnerState, RunnerWork};
use forgeyard_model::verdict::{ExitFacts, Hit, LogLine};
use forgeyard_model::{ArtifactId, AttemptId, Digest, Id};
use std::time::Duration;

/// An attempt that may still speak with this fence.
pub(crate) fn live(tx: &Tx<'_>, id: AttemptId, fence: Option<u32>) -> Result<Attempt, Refusal> {
    let attempt = tx.attempt(id)?;
    let job = tx.job(attempt.job)?;
    let superseded = |why: String| {
        Refusal::new(RefusalKind::Superseded, "attempt.superseded", why)
            .fix("stop; nothing of this attempt is accepted")
    };
    if let Some(fence) = fence
        && fence != attempt.fence
    {
        return Err(superseded(format!("{id} is attempt {}, not {fence}", attempt.fence)));
    }
    if !attempt.state.live() || job.fence != attempt.fence {
        return Err(superseded(format!("{id} is over; its job is at attempt {}", job.fence)));
    }
    Ok(attempt)
}

/// A one-shot token is redeemed: again for the same nonce until the first heartbeat, never for another.
pub(crate) fn redeemed(tx: &mut Tx<'_>, id: AttemptId, nonce: String) -> Result<Reply, Refusal> {
    let mut attempt = live(tx, id, None)?;
    let machine = tx.runner(attempt.runner)?;
    // A machine that waited for the attempt has an agent already.
    let other = matches!(&machine.work, RunnerWork::Handed { nonce: known, .. } if *known != nonce);
    match &attempt.token {
        TokenState::Unused if !other => {}
        TokenState::Redeemed { nonce: known } if *known == nonce => return Ok(Reply::Unchanged),
        TokenState::Unused | TokenState::Redeemed { .. } | TokenState::Closed { .. } => {
            return Err(Refusal::new(
                RefusalKind::Forbidden,
                "token.replayed",
                format!("the token of {id} was already redeemed"),
            )
            .fix("a token serves one agent once; if this was not you, look at the host"));
        }
    }
    attempt.token = TokenState::Redeemed { nonce };
    attempt.heard_at = Some(tx.now());
    let runner_id = attempt.runner;
    let (job, runner) = (tx.job(attempt.job)?, tx.runner(runner_id)?);
    tx.move_attempt(attempt, AttemptEvent::AttemptStarted, std::time::Duration::ZERO)?;
    if runner.state.being_made() {
        pools::launch::came_up(tx, &runner.pool, runner_id);
    }
    if !matches!(runner.state, RunnerState::Kept { .. }) {
        tx.move_runner(runner, RunnerEvent::RunnerRegistered, RunnerState::Registered)?;
    }
    let (kind, runner) = (job.kind, runner_id);
    tx.move_job(job, JobEvent::JobStarted, JobState::Starting { attempt: id }, None)?;
    if kind == JobKind::Runner {
        demand::registration::up(tx, id, runner)?;
    }
    Ok(Reply::Done)
}

/// A sign of life so soon after the last one is not written, unless it says something new: agents speak every five seconds, and
/// each write is one of the database. Silence is counted from what is written, so it is noticed at most this much earlier.
const HEARD_AGAIN: Duration = Duration::from_secs(8);

/// A sign of life. The first one closes the token; the first step makes everything run.
pub(crate) fn heard(
    tx: &mut Tx<'_>,
    id: AttemptId,
    fence: u32,
    step: Option<String>,
) -> Result<Reply, Refusal> {
    let mut attempt = live(tx, id, Some(fence))?;
    let job = tx.job(attempt.job)?;
    let cancel = job.cancel_requested_at.is_some();
    let lately = attempt.heard_at.is_some_and(|at| tx.now().since(at) < HEARD_AGAIN);
    let known = attempt.step == step && !matches!(attempt.token, TokenState::Redeemed { .. });
    if lately && known && attempt.state == AttemptState::Running {
        return Ok(Reply::Agent { cancel });
    }
    if let TokenState::Redeemed { nonce } = &attempt.token {
        attempt.token = TokenState::Closed { nonce: nonce.clone() };
    }
    attempt.heard_at = Some(tx.now());
    let begins = step.is_some() && attempt.state == AttemptState::Starting;
    attempt.step = step;
    if begins {
        attempt.started_at = Some(tx.now());
        let runner = tx.runner(attempt.runner)?;
        let limit = tx.time_limit(&runner.flavor);
        tx.move_attempt(attempt, AttemptEvent::AttemptRan, limit)?;
        if runner.state == RunnerState::Registered {
            tx.move_runner(runner, RunnerEvent::RunnerBusy, RunnerState::Busy)?;
        }
        tx.move_job(job, JobEvent::JobRan, JobState::Running { attempt: id }, None)?;
    } else {
        tx.put(attempt);
    }
    Ok(Reply::Agent { cancel })
}

/// An output whose bytes are durable and verified.
pub(crate) struct Stored {
    pub(crate) kind: ArtifactKind,
    pub(crate) name: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// An output is recorded. The same name with the same bytes again changes nothing; with other bytes it is refused.
pub(crate) fn stored(tx: &mut Tx<'_>, id: AttemptId, fence: u32, output: Stored) -> Result<Reply, Refusal> {
    let mut attempt = live(tx, id, Some(fence))?;
    let artifact_id = ArtifactId::derive(id, &output.name);
    if let Some(known) = tx.farm().artifacts.get(&artifact_id) {
        if known.digest == output.digest {
            return Ok(Reply::Artifact { artifact: Box::new(known.clone()) });
        }
        return Err(Refusal::new(
            RefusalKind::Conflict,
            "artifact.changed",
            format!("{} was already stored as {}, not {}", output.name, known.digest, output.digest),
        ));
    }
    let Some(owner) = attempt.owner.pipeline() else {
        return Err(Refusal::new(
            RefusalKind::Invalid,
            "artifact.of_a_runner",
            format!("{id} is a runner of a forge; what its job makes goes to that forge"),
        ));
    };
    let pipeline = tx.pipeline(owner)?;
    let artifact = Artifact {
        id: artifact_id,
        kind: output.kind,
        name: output.name,
        digest: output.digest,
        size: output.size,
        pipeline: owner,
        job: Some(attempt.job),
        attempt: Some(id),
        lane: pipeline.lane,
        package: None,
        stored_at: tx.now(),
        generation: 0,
    };
    tx.event("ArtifactStored", artifact_id, None, "stored", Some(artifact.digest.to_string()));
    tx.usage(
        "artifact_bytes",
        artifact.size,
        artifact_id,
        Some(&RepositoryKey::of(&pipeline.event.repository)),
    );
    tx.put(artifact.clone());
    attempt.artifacts.push(artifact_id);
    attempt.heard_at = Some(tx.now());
    tx.put(attempt);
    let stored = tx.farm().artifacts.get(&artifact_id).cloned().unwrap_or(artifact);
    Ok(Reply::Artifact { artifact: Box::new(stored) })
}

/// The supervisor says that the attempt is over. Saying it again, with the same fence, changes nothing.
pub(crate) fn finished(
    tx: &mut Tx<'_>,
    id: AttemptId,
    fence: u32,
    facts: ExitFacts,
    hits: &[Hit],
    tail: &[LogLine],
) -> Result<Reply, Refusal> {
    let known = tx.attempt(id)?;
    if !known.state.live() && known.fence == fence && known.facts.is_some() {
        return Ok(Reply::Unchanged);
    }
    let attempt = live(tx, id, Some(fence))?;
    let job = tx.job(attempt.job)?;
    let spec = job.spec.as_ref();
    let judged = verdict::judge(&Ending {
        facts: &facts,
        hits,
        tail,
        job: job.kind,
        subject: spec.and_then(|spec| spec.subject.as_ref()),
        // Whether a job of a forge used its device is the affair of that job.
        wanted_device: job.kind != JobKind::Runner && spec.is_some_and(|spec| spec.gpu.is_some()),
    });
    let verdict = match job.kind {
        JobKind::Runner => demand::launch::verdict(tx, &attempt, &facts, judged),
        _ => judged,
    };
    ending::end(tx, attempt, verdict, Some(facts), None)?;
    Ok(Reply::Done)
}
