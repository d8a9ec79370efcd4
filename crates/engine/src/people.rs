//! What people ask for: stop, run again, clear, take out, write off, keep, drain; and their tokens.

use crate::lifecycle::{DeviceEvent, JobEvent, LeaseEvent, RunnerEvent};
use crate::tx::Tx;
use crate::{completion, demand, ending, pools};
use forgeyard_model::device::DeviceState;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::job::{Job, JobKind, JobState};
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::principal::{ApiToken, PrincipalKind};
use forgeyard_model::runner::{RunnerState, RunnerWork};
use forgeyard_model::site::Site;
use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use forgeyard_model::{DeviceId, Digest, Explanation, JobId, LeaseId, RunnerId, SiteId};

fn conflict(code: &str, text: String) -> Refusal {
    Refusal::new(RefusalKind::Conflict, code, text)
}

/// Stops a job for a reason: at once when it has not begun, through its agent when it has.
pub(crate) fn stop(tx: &mut Tx<'_>, id: JobId, why: &str) -> Result<(), Refusal> {
    let mut job = tx.job(id)?;
    if job.state.ended() || job.cancel_requested_at.is_some() {
        return Ok(());
    }
    if job.state.attempt().is_some() {
        job.cancel_requested_at = Some(tx.now());
        tx.event("JobCancelRequested", id, Some(job.state.name()), job.state.name(), Some(why.to_owned()));
        tx.put(job);
        return Ok(());
    }
    job.verdict = Some(Verdict {
        outcome: Outcome::Canceled,
        class: Some("job.canceled".to_owned()),
        cause: why.to_owned(),
        rule: None,
        blame: None,
        retry: RetryPolicy::R0,
        lines: Vec::new(),
        fix: None,
    });
    let owner = job.owner;
    tx.move_job(
        job,
        JobEvent::JobEnded,
        JobState::Ended { outcome: Outcome::Canceled },
        Some(why.to_owned()),
    )?;
    completion::check(tx, owner)
}

/// A person asks to stop a job.
pub(crate) fn cancel(tx: &mut Tx<'_>, id: JobId) -> Result<Reply, Refusal> {
    let job = tx.job(id)?;
    if job.state.ended() {
        return Err(conflict("job.already_over", format!("{id} is already {}", job.state.name())));
    }
    let why = format!("stopped by {}", tx.ctx.by.name);
    if job.kind == JobKind::Runner {
        return demand::launch::canceled(tx, id, &why);
    }
    stop(tx, id, &why)?;
    Ok(Reply::Done)
}

/// A person asks for an ended job again, on the same inputs by digest.
pub(crate) fn rerun(tx: &mut Tx<'_>, id: JobId) -> Result<Reply, Refusal> {
    let mut job: Job = tx.job(id)?;
    if !job.state.ended() {
        return Err(conflict("job.not_over", format!("{id} is {}; it has not ended", job.state.name())));
    }
    if job.spec.is_none() {
        return Err(conflict(
            "job.never_ready",
            format!("{id} never had its inputs; there is nothing to run again"),
        )
        .fix("run the job that it needs"));
    }
    let Some(owner) = job.owner.pipeline() else {
        let text = format!("{id} served a job of a forge");
        return Err(conflict("job.of_a_forge", text).fix("run the job again at the forge"));
    };
    let pipeline = tx.pipeline(owner)?;
    if matches!(pipeline.state, PipelineState::Promoting | PipelineState::Environment) {
        return Err(conflict("job.promoting", format!("{} is being promoted", pipeline.id)));
    }
    let dependent =
        tx.farm().jobs_of(owner).find(|other| other.needs.contains(&id) && other.state.attempt().is_some());
    if let Some(other) = dependent {
        return Err(conflict(
            "job.in_use",
            format!("{} ({}) works with what {id} made", other.id, other.key),
        )
        .fix("wait for it to end, or stop it"));
    }
    job.retries = 0;
    job.cancel_requested_at = None;
    job.verdict = None;
    let note = format!("asked by {}", tx.ctx.by.name);
    // A pipeline that was promoted stays as it is: the run is for information, nothing is published twice.
    if pipeline.channel.is_none() {
        let mut pipeline = pipeline;
        pipeline.not_promoted = None;
        tx.move_pipeline(pipeline, PipelineState::Running);
    }
    tx.move_job(job, JobEvent::JobRerun, JobState::Queued, Some(note))?;
    Ok(Reply::Done)
}

/// An operator lifts a quarantine.
pub(crate) fn clear_device(tx: &mut Tx<'_>, id: DeviceId) -> Result<Reply, Refusal> {
    let device = tx.device(id)?;
    if !matches!(device.state, DeviceState::Quarantined { .. }) {
        return Err(conflict("device.not_quarantined", format!("{id} is {}", device.state.name())));
    }
    let live = tx.farm().index.live_leases.iter().filter_map(|(_, lease)| tx.farm().leases.get(lease));
    if let Some(lease) = live.into_iter().find(|lease| lease.devices.contains(&id)) {
        return Err(conflict("device.still_leased", format!("{id} still belongs to {}", lease.id))
            .fix("wait for the site to confirm the end of the lease, or write the lease off"));
    }
    tx.move_device(device, DeviceEvent::DeviceReady, DeviceState::Ready)?;
    Ok(Reply::Done)
}

/// An operator takes a device out.
pub(crate) fn quarantine_device(tx: &mut Tx<'_>, id: DeviceId, why: String) -> Result<Reply, Refusal> {
    let device = tx.device(id)?;
    let reason = Explanation::new("device.taken_out", why).with(format!("by {}", tx.ctx.by.name));
    tx.move_device(device, DeviceEvent::DeviceQuarantined, DeviceState::Quarantined { reason })?;
    Ok(Reply::Done)
}

/// An operator declares the host of a lease lost. The devices stay out until they are cleared.
pub(crate) fn write_off(tx: &mut Tx<'_>, id: LeaseId) -> Result<Reply, Refusal> {
    let lease = tx.lease(id)?;
    if !lease.state.live() {
        return Err(conflict("lease.over", format!("{id} is already {}", lease.state.name())));
    }
    let attempt = lease.attempt.map(|id| tx.attempt(id)).transpose()?;
    if lease.attempt.is_none() {
        let reason = Explanation::new("host.written-off", "its host was written off by an operator");
        pools::warm::retire(tx, lease.runner, reason, false)?;
    }
    if let Some(attempt) = attempt.filter(|attempt| attempt.state.live()) {
        let text = "its host was written off by an operator";
        ending::end(tx, attempt, ending::lost("host.written-off", text, RetryPolicy::R2), None, None)?;
    }
    for device in lease.devices {
        let device = tx.device(device)?;
        if !matches!(device.state, DeviceState::Quarantined { .. }) {
            let reason = Explanation::new("device.host_written_off", "its host was written off")
                .with(id.to_string())
                .fix("check that no machine of the lease is left, then `forgeyard device clear`");
            tx.move_device(device, DeviceEvent::DeviceQuarantined, DeviceState::Quarantined { reason })?;
        }
    }
    let lease = tx.lease(id)?;
    tx.move_lease(lease, LeaseEvent::LeaseWrittenOff)?;
    Ok(Reply::Done)
}

/// An operator wants a machine left standing.
pub(crate) fn keep(tx: &mut Tx<'_>, id: RunnerId, why: String) -> Result<Reply, Refusal> {
    let runner = tx.runner(id)?;
    let reason = Explanation::new("runner.kept", why).with(format!("by {}", tx.ctx.by.name));
    let waits = match runner.work {
        RunnerWork::Warm { lease, .. } => lease,
        RunnerWork::Attempt(_) | RunnerWork::Handed { .. } => None,
    };
    pools::warm::waited(tx, &runner);
    if runner.work.is_warm() && runner.state.being_made() {
        pools::launch::given_up(tx, &runner);
    }
    tx.move_runner(runner, RunnerEvent::RunnerKept, RunnerState::Kept { reason })?;
    pools::warm::release(tx, waits)?;
    Ok(Reply::Done)
}

/// An operator stops or resumes giving work to a site.
pub(crate) fn drain(tx: &mut Tx<'_>, id: SiteId, drain: bool) -> Result<Reply, Refusal> {
    let site = tx.site(id)?;
    if site.draining_since.is_some() == drain {
        return Ok(Reply::Unchanged);
    }
    let (name, to) = if drain { ("SiteDrained", "draining") } else { ("SiteResumed", "joined") };
    let draining_since = drain.then_some(tx.now());
    tx.event(name, id, None, to, None);
    tx.put(Site { draining_since, ..site });
    Ok(Reply::Done)
}

/// A token was made.
pub(crate) fn token_issued(tx: &mut Tx<'_>, token: ApiToken) -> Result<Reply, Refusal> {
    let person = matches!(token.principal.kind, PrincipalKind::Person { .. });
    let name = if person { "SignedIn" } else { "TokenIssued" };
    tx.event(name, token.principal.id, None, "valid", Some(token.principal.name.clone()));
    tx.put(token);
    Ok(Reply::Done)
}

/// A token was revoked.
pub(crate) fn token_revoked(tx: &mut Tx<'_>, digest: Digest) -> Result<Reply, Refusal> {
    let token =
        tx.farm().tokens.get(&digest).cloned().ok_or_else(|| crate::tx::missing("token", digest.short()))?;
    if token.revoked_at.is_some() {
        return Ok(Reply::Unchanged);
    }
    let revoked_at = Some(tx.now());
    let person = matches!(token.principal.kind, PrincipalKind::Person { .. });
    let name = if person { "SignedOut" } else { "TokenRevoked" };
    tx.event(name, token.principal.id, Some("valid"), "revoked", None);
    tx.put(ApiToken { revoked_at, ..token });
    Ok(Reply::Done)
}
