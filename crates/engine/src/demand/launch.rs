//! Launches: the job of ours that brings a runner to a job of a forge, through the same queue, placement, leases, attempts
//! and verdicts as everything else.
//!
//! A launch belongs to the demand that it was made for, and is *reserved* for one demand, which may be another after a
//! runner took what it was not meant for. A demand that is owed a runner always has a launch that is not over; when one
//! ends without having served, it is tried again after a pause, and after several the demand is parked.

use super::{admit, limits, registration, repeat, time};
use crate::deliveries::blank_job;
use crate::lifecycle::{DemandEvent, JobEvent};
use crate::tx::Tx;
use crate::{ending, people, spec, verdict as verdicts};
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::demand::{Admission, Demand, DemandState};
use forgeyard_model::input::{Refusal, Reply};
use forgeyard_model::job::{ForgeRunner, Hold, Job, JobKind, JobSpec, JobState};
use forgeyard_model::registration::{Registration, RegistrationState, TakenAnswer};
use forgeyard_model::verdict::{ExitFacts, Outcome, RetryPolicy, Verdict};
use forgeyard_model::{DemandId, Explanation, JobId, deadline};
use std::collections::BTreeMap;

/// Launches in a row for one demand, before it pauses.
const LAUNCHES: u32 = 5;

/// How the runner program of GitHub ends when the forge no longer accepts its version.
const TOO_OLD: i32 = 7;

/// The class of verdict that stops an image.
pub(crate) const IMAGE_TOO_OLD: &str = "image.runner_too_old";

/// How long an image is not launched from after its runner program was refused; then one launch tries again, since the
/// program in an image of the host's own folders may have been replaced without the image becoming another.
pub(crate) const IMAGE_RESTS: std::time::Duration = std::time::Duration::from_secs(6 * 3600);

/// How long a runner whose job was refused may take to end by itself, so that the forge hears of the refusal from it.
pub(crate) const REFUSED_LEAVES: std::time::Duration = std::time::Duration::from_secs(60);

/// A demand is allowed, or lost the runner that was made for it: a launch enters the queue, at the demand's own place.
pub(crate) fn want(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    let Some(spec) = demand.admission.as_ref().and_then(|admission| spec_of(tx.config(), &demand, admission))
    else {
        let reason = Explanation::new(
            "demand.no_flavor",
            "the pools that may serve it offer no shape that is configured",
        );
        demand.launch = None;
        return admit::pause(tx, demand, reason);
    };
    if demand.state.owed() && demand.launches > 0 && demand.launches.is_multiple_of(LAUNCHES) {
        let text = format!("{} runners in a row did not take it", demand.launches);
        demand.launch = None;
        let reason = Explanation::new("demand.no_runner_stays", text)
            .fix("other jobs with the same labels take its runners: give the label a suffix, `label--${{ github.run_id }}`");
        admit::pause(tx, demand, reason)?;
        // Or it is over, and nobody said so: whoever is full of work takes any number of runners made for nobody.
        let demand = tx.demand(id)?;
        time::ask(tx, &demand);
        return Ok(());
    }
    demand.launches += 1;
    let mut job =
        blank_job(tx, id, &format!("runner/{}", demand.launches), JobKind::Runner, JobState::Queued);
    job.queued_at = Some(demand.created_at);
    job.spec = Some(spec);
    tx.event("JobCreated", job.id, None, job.state.name(), Some(format!("a runner for {id}")));
    demand.launch = Some(job.id);
    tx.put(job);
    if demand.state == DemandState::Wanted {
        tx.put(demand);
        return Ok(());
    }
    tx.move_demand(demand, DemandEvent::DemandWanted, DemandState::Wanted)
}

fn spec_of(config: &FarmConfig, demand: &Demand, admission: &Admission) -> Option<JobSpec> {
    let offers = admission.pools.iter().filter_map(|name| config.pool(name)?.runners.as_ref());
    let (offer, flavor) = offers.filter_map(|offer| Some((offer, config.flavor(&offer.flavor)?))).next()?;
    Some(JobSpec {
        flavor: flavor.name.clone(),
        gpu: flavor.gpu.clone(),
        needs: spec::needs(flavor.network),
        inputs: Vec::new(),
        files: Vec::new(),
        steps: Vec::new(),
        outputs: Vec::new(),
        env: BTreeMap::new(),
        subject: None,
        pools: admission.pools.clone(),
        // Only what was asked for: with more labels the runner would suit more jobs that it is not for.
        forge_runner: Some(ForgeRunner {
            forge: demand.repository.forge.clone(),
            labels: demand.labels.clone(),
            // That of the first pool; placing it puts that of the pool that gives the machine.
            program: offer.program.clone(),
        }),
    })
}

/// A launch found a place.
pub(crate) fn placed(tx: &mut Tx<'_>, launch: JobId) -> Result<(), Refusal> {
    match tx.farm().owed_by(launch).filter(|demand| demand.state == DemandState::Wanted).cloned() {
        Some(demand) => tx.move_demand(demand, DemandEvent::DemandLaunched, DemandState::Launching),
        None => Ok(()),
    }
}

/// Nobody needs a launch any more. What a forge may already have given a job is first forgotten there, and left alone when
/// it is busy.
pub(crate) fn release(tx: &mut Tx<'_>, launch: JobId, why: &Explanation) -> Result<(), Refusal> {
    let job = tx.job(launch)?;
    if job.state.ended() || tx.farm().owed_by(launch).is_some() {
        return Ok(());
    }
    let Some(attempt) = job.state.attempt() else { return people::stop(tx, launch, &why.message) };
    let attempt = tx.attempt(attempt)?;
    let runner = tx.runner(attempt.runner)?;
    match runner.registration.as_deref() {
        Some(Registration { state: RegistrationState::Minted { .. }, taken: None, busy: false, .. }) => {
            registration::leave(tx, runner, why.clone())
        }
        Some(Registration {
            state: RegistrationState::Minted { .. } | RegistrationState::Leaving { .. },
            ..
        }) => Ok(()),
        _ => ending::end(tx, attempt, canceled_verdict(&why.message), None, None),
    }
}

/// The verdict over a machine that nobody needs.
pub(crate) fn canceled_verdict(why: &str) -> Verdict {
    Verdict { outcome: Outcome::Canceled, ..ending::lost("demand.withdrawn", why, RetryPolicy::R0) }
}

/// A person stops a launch.
pub(crate) fn canceled(tx: &mut Tx<'_>, launch: JobId, why: &str) -> Result<Reply, Refusal> {
    match tx.farm().owed_by(launch).cloned() {
        Some(demand) => super::withdraw(tx, demand, Explanation::new("demand.stopped", why))?,
        None => people::stop(tx, launch, why)?,
    }
    Ok(Reply::Done)
}

/// The job of a demand is over at the forge: its runner ends by itself within a while.
pub(crate) fn served(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let Some(launch) = tx.demand(id)?.launch else { return Ok(()) };
    let Some(attempt) = tx.job(launch)?.state.attempt() else { return Ok(()) };
    let mut attempt = tx.attempt(attempt)?;
    if !served_by(&tx.demand(id)?, &attempt) {
        return Ok(());
    }
    let until = tx.now().plus(deadline::RUNNER_LEAVES);
    if attempt.state == AttemptState::Running && attempt.deadline.is_none_or(|deadline| deadline > until) {
        attempt.deadline = Some(until);
        tx.put(attempt);
    }
    Ok(())
}

/// Whether this very attempt brought the runner of a demand. The launch may have been tried again since, because nobody had
/// said yet what its first runner took; then the runner that is there now is at work for somebody else.
fn served_by(demand: &Demand, attempt: &Attempt) -> bool {
    demand.taken_by.as_ref().is_some_and(|taker| taker.runner == Some(attempt.runner))
}

fn refusal(tx: &Tx<'_>, attempt: &Attempt) -> Option<Explanation> {
    let taken = tx.farm().runners.get(&attempt.runner)?.registration.as_ref()?.taken.as_ref()?;
    match &taken.answer {
        TakenAnswer::Refused { reason } => Some(reason.clone()),
        TakenAnswer::Asked | TakenAnswer::Allowed { .. } => None,
    }
}

pub(crate) fn refused_verdict(reason: Explanation) -> Verdict {
    Verdict {
        outcome: Outcome::Failed,
        fix: reason.fix,
        ..ending::lost("gate.refused_at_start", format!("no step ran: {}", reason.message), RetryPolicy::R0)
    }
}

/// What the farm makes of a machine whose supervisor says that the runner program ended. How a job of a forge came out is
/// the forge's affair; what is judged here is the machine.
pub(crate) fn verdict(tx: &Tx<'_>, attempt: &Attempt, facts: &ExitFacts, judged: Verdict) -> Verdict {
    if let Some(reason) = refusal(tx, attempt) {
        return refused_verdict(reason);
    }
    if facts.steps.iter().any(|step| step.exit_code == Some(TOO_OLD)) {
        let text = "the forge no longer accepts the version of the runner program in the image";
        return Verdict {
            outcome: Outcome::Failed,
            fix: Some(
                "build the image again with the newest runner program, and let its alias point there"
                    .to_owned(),
            ),
            ..ending::lost(IMAGE_TOO_OLD, text, RetryPolicy::R0)
        };
    }
    judged
}

/// The verdict over a runner whose time is up for a reason of its own.
pub(crate) fn overdue(tx: &Tx<'_>, attempt: &Attempt) -> Option<Verdict> {
    attempt.owner.demand()?;
    if let Some(reason) = refusal(tx, attempt) {
        return Some(refused_verdict(reason));
    }
    let launch = tx.farm().index.launch_for.get(&attempt.job)?;
    let mut served = launch.iter().filter_map(|id| tx.farm().demands.get(id));
    (attempt.state == AttemptState::Running
        && served.any(|demand| demand.state.ended() && served_by(demand, attempt)))
    .then(|| {
        let text = "its job was over at the forge, and the runner did not end";
        ending::lost("runner.did_not_leave", text, RetryPolicy::R0)
    })
}

/// An attempt at a launch ended. Whoever is still owed a runner by it gets another try, or is parked.
pub(crate) fn concluded(
    tx: &mut Tx<'_>,
    mut job: Job,
    verdict: Verdict,
    site: Option<String>,
) -> Result<(), Refusal> {
    job.verdict = Some(verdict.clone());
    let launch = job.id;
    let Some(demand) = tx.farm().owed_by(launch).cloned() else {
        hurry(tx, launch)?;
        let outcome = verdict.outcome;
        tx.move_job(job, JobEvent::JobEnded, JobState::Ended { outcome }, Some(verdict.cause))?;
        // The forge may have called the job failed before its machine was given up.
        let all: Vec<DemandId> =
            tx.farm().index.launch_for.get(&launch).into_iter().flatten().copied().collect();
        return all.into_iter().try_for_each(|id| repeat::consider(tx, id));
    };
    if job.cancel_requested_at.is_none() && verdict.class.as_deref() == Some(limits::LIMITED) {
        let (until, reason) = limits::launch_waits(tx.farm(), &demand, tx.now());
        let note = reason.message.clone();
        job.waiting = Some(reason);
        tx.move_job(job, JobEvent::JobRetried, JobState::Held(Hold::Retry { until }), Some(note))?;
        return match demand.state {
            DemandState::Launching => tx.move_demand(demand, DemandEvent::DemandWanted, DemandState::Wanted),
            _ => Ok(()),
        };
    }
    let again = match (job.cancel_requested_at, &verdict) {
        (Some(_), _) => None,
        // A machine that came and went without taking the job is lost, however well it ended.
        (None, Verdict { outcome: Outcome::Succeeded | Outcome::Failed, class, .. })
            if !named(class.as_deref()) =>
        {
            verdicts::retry(&ending::lost("runner.took_nothing", "", RetryPolicy::RB), job.retries)
        }
        (None, verdict) => verdicts::retry(verdict, job.retries),
    };
    if let Some(backoff) = again {
        job.retries += 1;
        job.avoid.extend(site.filter(|_| backoff.avoid_host || verdict.outcome == Outcome::Lost));
        let until = tx.now().plus(backoff.wait);
        let note = format!("attempt {} ended: {}", job.fence, verdict.cause);
        job.waiting =
            Some(Explanation::new("job.retry", format!("tries again at {until}")).with(note.clone()));
        tx.move_job(job, JobEvent::JobRetried, JobState::Held(Hold::Retry { until }), Some(note))?;
        let id = demand.id;
        if demand.state == DemandState::Launching {
            tx.move_demand(demand, DemandEvent::DemandWanted, DemandState::Wanted)?;
        }
        // A runner came and went. Perhaps the job was served, by it or by another one, and nobody said so: without webhooks
        // a run that is over is in no list, and its jobs would be launched for in vain, for hours.
        let demand = tx.demand(id)?;
        return time::check(tx, demand);
    }
    tx.move_job(
        job,
        JobEvent::JobEnded,
        JobState::Ended { outcome: verdict.outcome },
        Some(verdict.cause.clone()),
    )?;
    let code = verdict.class.clone().unwrap_or_else(|| "demand.no_runner".to_owned());
    let mut reason = Explanation::new(code, format!("no runner came up for it: {}", verdict.cause))
        .with(launch.to_string());
    reason.fix = verdict.fix;
    admit::pause(tx, Demand { launch: None, ..demand }, reason)
}

/// Classes of verdict that trying again at once does not help.
fn named(class: Option<&str>) -> bool {
    class.is_some_and(|class| class == IMAGE_TOO_OLD || class.starts_with("gate."))
}

/// The machine of a running job is gone: the forge is asked soon what became of the job.
pub(crate) fn hurry(tx: &mut Tx<'_>, launch: JobId) -> Result<(), Refusal> {
    let running: Vec<Demand> = tx
        .farm()
        .index
        .launch_for
        .get(&launch)
        .into_iter()
        .flatten()
        .filter_map(|id| tx.farm().demands.get(id))
        .filter(|demand| demand.state == DemandState::Running)
        .cloned()
        .collect();
    for demand in running {
        let soon = tx.now().plus(deadline::RUNNER_LEAVES);
        tx.put(Demand { deadline: Some(soon), ..demand });
    }
    Ok(())
}
