//! Which queued job goes where. Claim before touch: attempt, runner and lease are rows before a site hears of them.
//!
//! In the order of [`queue`]. A job that finds no place keeps the reason, and stops the jobs behind it only from what is
//! kept for it.

pub(crate) mod devices;
mod search;

use search::find;
pub(crate) use search::{Wants, combine, fits};

use crate::demand;
use crate::farm::Farm;
use crate::lifecycle::JobEvent;
use crate::pools::{self, canary, launch, schedule, warm};
use crate::queue::{self, reserve::Look};
use crate::tx::Tx;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::attempt::{Attempt, AttemptState, TokenState};
use forgeyard_model::commit::Row;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::Refusal;
use forgeyard_model::job::{Job, JobSpec, JobState};
use forgeyard_model::ledger::Stake;
use forgeyard_model::resources::{Flavor, GpuRequest, Image, Isolation, Limit, Pool};
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::site::Site;
use forgeyard_model::{
    AttemptId, DeviceId, Explanation, FlavorName, Id, LeaseId, Owner, PoolName, RunnerId, SiteId, SiteName,
    Timestamp, deadline,
};
use std::collections::BTreeSet;

/// A place for a job.
struct Place<'a> {
    site: SiteId,
    pool: &'a Pool,
    flavor: &'a Flavor,
    machine: Machine,
    stake: Stake,
}

/// The machine of a place.
enum Machine {
    /// One that is made for the job.
    New {
        /// Devices that it gets.
        devices: Vec<DeviceId>,
    },
    /// One that was made before, and waits.
    Waiting(RunnerId),
}

/// What a search for a place depends on, besides the farm: two jobs that agree in it find the same place or none.
#[derive(PartialEq)]
struct Wish {
    flavor: FlavorName,
    gpu: Option<GpuRequest>,
    needs: BTreeSet<Limit>,
    isolation: Isolation,
    avoid: BTreeSet<String>,
    pools: Vec<PoolName>,
    /// Where there are budgets.
    repository: Option<RepositoryKey>,
    /// Pools that may serve it, where canaries make that a matter of the job itself.
    candidates: Vec<PoolName>,
}

impl Wish {
    fn of(tx: &Tx<'_>, job: &Job) -> Option<Self> {
        let farm = tx.farm();
        let spec = job.spec.as_ref()?;
        Some(Self {
            flavor: spec.flavor.clone(),
            gpu: spec.gpu.clone(),
            needs: spec.needs.clone(),
            isolation: isolation(farm, job),
            avoid: job.avoid.clone(),
            pools: spec.pools.clone(),
            repository: payer(tx.config(), job).cloned(),
            candidates: candidates(tx, job),
        })
    }

    fn is_of(&self, tx: &Tx<'_>, job: &Job) -> bool {
        let farm = tx.farm();
        job.spec.as_ref().is_some_and(|spec| {
            self.flavor == spec.flavor
                && self.gpu == spec.gpu
                && self.needs == spec.needs
                && self.avoid == job.avoid
                && self.pools == spec.pools
                && self.repository.as_ref() == payer(tx.config(), job)
                && self.isolation == isolation(farm, job)
                && self.candidates == candidates(tx, job)
        })
    }
}

fn payer<'a>(config: &FarmConfig, job: &'a Job) -> Option<&'a RepositoryKey> {
    let account = job.account.as_ref().filter(|_| !config.queue.budgets.is_empty());
    account.map(|account| &account.repository)
}

fn candidates(tx: &Tx<'_>, job: &Job) -> Vec<PoolName> {
    let config = tx.config();
    let named = job.spec.as_ref().and_then(|spec| Some((spec, config.flavor(&spec.flavor)?)));
    let Some((spec, flavor)) = named.filter(|_| canary::any(config)) else { return Vec::new() };
    let pools = canary::candidates(tx.farm(), config, job, flavor, spec, tx.now());
    pools.into_iter().map(|(pool, _)| pool.name.clone()).collect()
}

fn isolation(farm: &Farm, job: &Job) -> Isolation {
    match job.owner {
        Owner::Pipeline(id) => farm.pipelines.get(&id).map(|pipeline| pipeline.isolation),
        Owner::Demand(_) => {
            let demand = demand::limits::owner(farm, job);
            demand.and_then(|demand| demand.admission.as_ref()).map(|admission| admission.isolation)
        }
    }
    .unwrap_or(Isolation::Vm)
}

/// Whether a queued job may find a place after a decision that wrote these rows, which it did not find before: a job
/// entered the queue, or something was given back. The queue is long when the farm is full, and most of what is written
/// then (a machine boots, a runner registers, a delivery is read) gives nothing back. What this overlooks, because only time
/// or a fact of somewhere else changed, waits for the next tick.
pub(crate) fn may_open(rows: &[Row]) -> bool {
    rows.iter().any(|row| match row {
        Row::Job(job) => job.state == JobState::Queued,
        Row::Attempt(attempt) => !attempt.state.live(),
        Row::Runner(runner) => !runner.state.takes_a_place() || runner.work.is_warm(),
        Row::Lease(lease) => !lease.state.live(),
        Row::Device(_) | Row::Pool(_) | Row::Ledger(_) | Row::Config(_) => true,
        Row::Site(_)
        | Row::Demand(_)
        | Row::Pipeline(_)
        | Row::Delivery(_)
        | Row::Artifact(_)
        | Row::Channel(_)
        | Row::Environment(_)
        | Row::Effect(_)
        | Row::Token(_)
        | Row::Approval(_)
        | Row::Acceptance(_) => false,
    })
}

/// Places every queued job that finds a place, in the order of the queue.
///
/// The queue may be long and is looked at after most inputs, so a job that stays where it is costs a comparison and no
/// copy: a refusal holds for every later job with the same wish, since placing jobs only makes the farm fuller.
pub(crate) fn place_queued(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    if tx.farm().index.queue.is_empty() {
        return Ok(());
    }
    let mut look = Look::default();
    let mut lanes = demand::limits::Lanes::default();
    // What is kept for another is refused to work that ends too late; a shorter job with the same wish may find a place.
    let mut refused: Vec<(Wish, Explanation, Option<Timestamp>)> = Vec::new();
    for queue::order::Placed { job: id, .. } in queue::order::order(tx.farm(), tx.config(), tx.now()) {
        let farm = tx.farm();
        let Some(job) = farm.jobs.get(&id) else { continue };
        if let Some(cap) = queue::caps::reached(farm, tx.config(), job.account.as_ref()) {
            if job.waiting.as_ref().is_none_or(|known| known.code != cap.code()) {
                let (job, reason) = (job.clone(), cap.explain(farm, tx.config(), job.account.as_ref()));
                wait(tx, job, reason);
            }
            continue;
        }
        if let Err(reason) = lanes.lets(farm, tx.config(), job, tx.now()) {
            if !waits_for(job, reason) {
                let (job, reason) = (job.clone(), reason.clone());
                wait(tx, job, reason);
            }
            continue;
        }
        let holds = |(wish, _, late): &&(Wish, Explanation, Option<Timestamp>)| {
            wish.is_of(tx, job)
                && late.is_none_or(|late| queue::ledger::would_end(farm, tx.config(), job, tx.now()) >= late)
        };
        if let Some((_, reason, _)) = refused.iter().find(holds) {
            if !waits_for(job, reason) {
                let (job, reason) = (job.clone(), reason.clone());
                wait(tx, job, reason);
            }
            continue;
        }
        let Some(spec) = &job.spec else { continue };
        let mut found = find(tx, job, spec, &mut look);
        if found.is_ok() && look.keep(tx) {
            found = find(tx, job, spec, &mut look);
        }
        match found {
            Ok(place) => {
                let job = job.clone();
                look.took(place.site, place.flavor.memory_mib, look.ends);
                lanes.took(farm, tx.config(), &job, tx.now());
                claim(tx, job, place)?;
            }
            Err(reason) => {
                look.refused(job.id, &reason);
                let wish = Wish::of(tx, job);
                let kept = reason.code == "queue.reserved";
                let late = kept.then(|| queue::ledger::would_end(farm, tx.config(), job, tx.now()));
                if !waits_for(job, &reason) {
                    let (job, reason) = (job.clone(), reason.clone());
                    wait(tx, job, reason);
                }
                refused.extend(wish.map(|wish| (wish, reason, late)));
            }
        }
    }
    Ok(())
}

fn waits_for(job: &Job, reason: &Explanation) -> bool {
    // Where the text says until when, another time is another reason.
    let timed = matches!(
        reason.code.as_str(),
        "queue.breaker_open" | "queue.launch_pace" | demand::limits::WAITS | demand::limits::PACE
    );
    job.waiting
        .as_ref()
        .is_some_and(|known| known.code == reason.code && (!timed || known.message == reason.message))
}

/// Notes why a job waits; written only when the reason is another one than before.
fn wait(tx: &mut Tx<'_>, mut job: Job, reason: Explanation) {
    if !waits_for(&job, &reason) {
        tx.event("JobWaits", job.id, Some("queued"), "queued", Some(reason.message.clone()));
        job.waiting = Some(reason);
        tx.put(job);
    }
}

/// Writes a new machine for an attempt, and its lease when it has devices.
fn make(
    tx: &mut Tx<'_>,
    attempt: AttemptId,
    place: &Place<'_>,
    devices: &[DeviceId],
    boots: Image,
) -> Result<(RunnerId, Option<LeaseId>), Refusal> {
    let now = tx.now();
    let id = RunnerId::derive(attempt, "runner");
    let limit = std::time::Duration::from_secs(place.flavor.time_limit_seconds);
    let lease = warm::claim_devices(tx, id, Some(attempt), place.site, devices, limit)?;
    let state = RunnerState::Requested;
    tx.event("RunnerRequested", id, None, state.name(), Some(place.pool.name.to_string()));
    tx.put(Runner {
        id,
        site: place.site,
        pool: place.pool.name.clone(),
        provider: place.pool.provider.clone(),
        flavor: place.flavor.name.clone(),
        image: place.pool.image.clone(),
        shape: place.flavor.clone(),
        boots,
        work: RunnerWork::Attempt(attempt),
        registration: None,
        deadline: deadline::runner(&state, limit).map(|limit| now.plus(limit)),
        state,
        requested_at: now,
        seen_at: None,
        unwanted_from: 0,
        outdated_at: None,
        ready_at: None,
        since: now,
        generation: 0,
    });
    launch::launched(tx, place.pool, id, place.site, true);
    Ok((id, lease))
}

/// Writes attempt, runner and lease, and takes the devices. A machine that waits has the last two already.
fn claim(tx: &mut Tx<'_>, mut job: Job, place: Place<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let fence = job.fence + 1;
    let attempt_id = AttemptId::derive(job.id, &fence.to_string());
    let limit = std::time::Duration::from_secs(place.flavor.time_limit_seconds);
    let asks = job.spec.as_mut().and_then(|spec| spec.forge_runner.as_mut());
    if let (Some(runner), Some(offer)) = (asks, &place.pool.runners) {
        // The image is that of the pool, and so is the program in it.
        runner.program.clone_from(&offer.program);
    }
    let (runner_id, lease_id) = match &place.machine {
        Machine::Waiting(runner) => (*runner, warm::hand_over(tx, *runner, attempt_id)?),
        Machine::New { devices } => {
            let image = tx.config().image(&place.pool.image).cloned();
            let Some(boots) = image else {
                let text = format!("image {} is not configured", place.pool.image);
                let reason = Explanation::new("queue.no_image", text).fix("declare it in forgeyard.toml");
                wait(tx, job, reason);
                return Ok(());
            };
            make(tx, attempt_id, &place, devices, boots)?
        }
    };
    tx.touch_site(place.site);
    let state = AttemptState::Placed;
    tx.event("AttemptPlaced", attempt_id, None, state.name(), Some(format!("attempt {fence} of {}", job.id)));
    tx.put(Attempt {
        id: attempt_id,
        job: job.id,
        owner: job.owner,
        stake: Some(Box::new(place.stake)),
        account: job.account.clone().or_else(|| queue::account_of(tx.farm(), job.owner)),
        fence,
        runner: runner_id,
        site: place.site,
        lease: lease_id,
        token: TokenState::Unused,
        state,
        placed_at: now,
        started_at: None,
        ended_at: None,
        heard_at: None,
        step: None,
        outcome: None,
        facts: None,
        verdict: None,
        artifacts: Vec::new(),
        since: now,
        deadline: match job.owner {
            Owner::Pipeline(_) => deadline::attempt(state, limit),
            Owner::Demand(_) => deadline::forge_attempt(state, limit),
        }
        .map(|limit| now.plus(limit)),
        generation: 0,
    });
    job.fence = fence;
    job.waiting = None;
    let id = job.id;
    tx.move_job(job, JobEvent::JobPlaced, JobState::Placed { attempt: attempt_id }, None)?;
    demand::launch::placed(tx, id)
}
