//! Machines that are made before there is work, so that a job takes one at once.
//!
//! How many should wait: `warm`, or `keep.count` for `keep.minutes` after the pool was used, or what is missing to `min`,
//! whichever is most, and never more than `max` leaves. Counted are machines that wait or are being made to, within their
//! deadlines; one that failed or is being removed is no capacity (ARC 4168, 4602).
//!
//! Rules:
//! - Work first. While a job waits for room, for a launch or for a device, no machine is made to wait, and those that wait
//!   in its way are given up, one at a time.
//! - A machine takes exactly one job and is destroyed after it. It is given only to a job for which it would be made the same
//!   now: shape, image, provider and devices are compared with what the configuration says (buildbot 4413).
//! - What is too much ends idle machines only: first those that are still being made, then the oldest, which would be
//!   replaced soonest anyway. A machine that has an attempt is never touched here (gitlab-runner 37643).
//! - A machine holds its lease of devices from the beginning, by the same rows as any other.

use super::{drained, launch, machines, schedule};
use crate::farm::Farm;
use crate::lifecycle::{DeviceEvent, LeaseEvent, RunnerEvent};
use crate::placement::{self, Wants};
use crate::queue::reserve::Look;
use crate::spec;
use crate::tx::{Tx, missing};
use forgeyard_model::device::DeviceState;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::job::Job;
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::ledger::Stake;
use forgeyard_model::pool::{PoolRecord, Terms};
use forgeyard_model::resources::{Flavor, GpuRequest, Image, Pool};
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::{
    AttemptId, DeviceId, Explanation, Id as _, JobId, LeaseId, RunnerId, SiteId, SiteName, Timestamp,
    deadline,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// Machines that should wait for work now.
pub(crate) fn wanted(farm: &Farm, pool: &Pool, terms: Terms, now: Timestamp) -> u32 {
    let kept = pool.keep.filter(|keep| {
        let used = farm.pools.get(&pool.name).and_then(|record| record.used_at);
        used.is_some_and(|used| now.since(used) < Duration::from_secs(u64::from(keep.minutes) * 60))
    });
    let count = |of: fn(&Runner) -> bool| {
        let found = machines(farm, &pool.name).filter(|runner| !waits(runner) && of(runner)).count();
        u32::try_from(found).unwrap_or(u32::MAX)
    };
    if terms.warm == 0 && terms.min == 0 && kept.is_none_or(|keep| keep.count == 0) {
        return 0;
    }
    let most = terms.max.saturating_sub(count(|runner| runner.state.takes_a_place()));
    let least = terms.min.saturating_sub(count(|runner| runner.state.serves()));
    terms.warm.max(kept.map_or(0, |keep| keep.count)).max(least).min(most)
}

/// Whether a machine waits for work, or is being made to.
fn waits(runner: &Runner) -> bool {
    runner.work.is_warm() && runner.state.serves()
}

/// Whether a machine is what would be made for a pool now.
fn alike(runner: &Runner, pool: &Pool, flavor: &Flavor, image: &Image) -> bool {
    runner.provider == pool.provider && runner.shape == *flavor && runner.boots == *image
}

/// A machine that waits and that a job may have: the one that has waited longest.
pub(crate) fn suiting(
    tx: &Tx<'_>,
    pool: &Pool,
    wants: &Wants<'_>,
    job: &Job,
    counted: Option<&BTreeSet<SiteName>>,
    look: &Look,
) -> Option<RunnerId> {
    let image = tx.config().image(&pool.image)?;
    let suits = |runner: &&Runner| {
        let called = matches!(runner.work, RunnerWork::Warm { nonce: Some(_), .. });
        called
            && runner.state == RunnerState::Ready
            && alike(runner, pool, wants.flavor, image)
            && there(tx, runner, wants, job, counted)
            && devices_suit(tx, runner, wants.gpu, look)
            && memory_is_free(tx, runner, look)
    };
    let waiting = tx.farm().index.warm.iter().filter_map(|id| tx.farm().runners.get(id));
    waiting
        .filter(|runner| runner.pool == pool.name)
        .filter(suits)
        .min_by_key(|runner| (runner.since, runner.id))
        .map(|it| it.id)
}

fn there(
    tx: &Tx<'_>,
    runner: &Runner,
    wants: &Wants<'_>,
    job: &Job,
    counted: Option<&BTreeSet<SiteName>>,
) -> bool {
    tx.farm().sites.get(&runner.site).is_some_and(|site| {
        let heard = site.heard_at.is_some_and(|heard| tx.now().since(heard) <= deadline::SITE_SILENCE);
        let enforced = site.host.as_ref().is_some_and(|host| wants.needs.is_subset(&host.enforces));
        let wished =
            !job.avoid.contains(site.name.as_str()) && counted.is_none_or(|named| named.contains(&site.name));
        heard && enforced && wished && site.draining_since.is_none()
    })
}

/// The machine's memory is not kept for a job that comes first: for that job the machine would be given up.
fn memory_is_free(tx: &Tx<'_>, runner: &Runner, look: &Look) -> bool {
    let site = tx.farm().sites.get(&runner.site);
    site.is_some_and(|site| look.memory(site, runner.shape.memory_mib).is_ok())
}

/// The machine holds exactly the devices that are asked for, and they are still good.
fn devices_suit(tx: &Tx<'_>, runner: &Runner, gpu: Option<&GpuRequest>, look: &Look) -> bool {
    let lease = match &runner.work {
        RunnerWork::Warm { lease, .. } => lease.and_then(|id| tx.farm().leases.get(&id)),
        RunnerWork::Attempt(_) | RunnerWork::Handed { .. } => return false,
    };
    match (gpu, lease) {
        (None, None) => true,
        (Some(request), Some(lease)) => {
            lease.devices.len() == request.count as usize
                && lease.devices.iter().filter_map(|id| tx.farm().devices.get(id)).all(|device| {
                    device.state == DeviceState::Leased { lease: lease.id }
                        && placement::devices::suits(device, request)
                        && look.allows(device)
                })
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Gives a machine that waits to an attempt; answers its lease.
pub(crate) fn hand_over(
    tx: &mut Tx<'_>,
    id: RunnerId,
    attempt: AttemptId,
) -> Result<Option<LeaseId>, Refusal> {
    let mut runner = tx.runner(id)?;
    let now = tx.now();
    waited(tx, &runner);
    let RunnerWork::Warm { nonce: Some(nonce), lease } = runner.work else {
        return Err(missing("machine that waits for work", id));
    };
    let limit = Duration::from_secs(runner.shape.time_limit_seconds);
    if let Some(lease) = lease {
        let mut lease = tx.lease(lease)?;
        lease.attempt = Some(attempt);
        lease.deadline = deadline::lease(lease.state, limit).map(|limit| now.plus(limit));
        tx.put(lease);
    }
    runner.work = RunnerWork::Handed { attempt, nonce, at: now };
    runner.deadline = deadline::runner(&runner.state, limit).map(|limit| now.plus(limit));
    let name = runner.state.name();
    tx.event("RunnerHandedOver", id, Some(name), name, Some(attempt.to_string()));
    let pool = runner.pool.clone();
    tx.put(runner);
    super::used(tx, &pool);
    Ok(lease)
}

/// The agent of a machine that waits called. It has the machine from now on; nobody with another nonce gets anything.
pub(crate) fn called(tx: &mut Tx<'_>, id: RunnerId, nonce: String) -> Result<Reply, Refusal> {
    let runner = tx.runner(id)?;
    let replayed = || {
        let text = format!("the token of {id} was already used by another agent");
        Refusal::new(RefusalKind::Forbidden, "token.replayed", text)
            .fix("a token serves one agent once; if this was not you, look at the host")
    };
    if !runner.state.wanted() {
        let text = format!("{id} is {}; it gets no work", runner.state.name());
        return Err(Refusal::new(RefusalKind::Superseded, "runner.superseded", text).fix("stop"));
    }
    match &runner.work {
        RunnerWork::Handed { nonce: known, .. } | RunnerWork::Warm { nonce: Some(known), .. } => {
            if *known == nonce { Ok(Reply::Unchanged) } else { Err(replayed()) }
        }
        RunnerWork::Attempt(attempt) => {
            let text = format!("{id} was made for {attempt}");
            Err(Refusal::new(RefusalKind::Invalid, "runner.not_warm", text))
        }
        RunnerWork::Warm { nonce: None, lease } => {
            let lease = *lease;
            if !runner.state.being_made() {
                return Err(Refusal::new(
                    RefusalKind::Superseded,
                    "runner.superseded",
                    format!("{id} is {}; it gets no work", runner.state.name()),
                ));
            }
            let pool = runner.pool.clone();
            let work = RunnerWork::Warm { nonce: Some(nonce), lease };
            tx.move_runner(Runner { work, ..runner }, RunnerEvent::RunnerReady, RunnerState::Ready)?;
            launch::came_up(tx, &pool, id);
            Ok(Reply::Done)
        }
    }
}

/// Ends a machine that waits: because it broke, or because nobody needs it.
pub(crate) fn retire(tx: &mut Tx<'_>, id: RunnerId, why: Explanation, broken: bool) -> Result<(), Refusal> {
    let runner = tx.runner(id)?;
    let RunnerWork::Warm { lease, .. } = runner.work else { return Ok(()) };
    waited(tx, &runner);
    if runner.state.being_made() {
        if broken {
            launch::did_not_come_up(tx, &runner, why.clone());
        } else {
            launch::given_up(tx, &runner);
        }
    }
    if broken {
        tx.move_runner(runner, RunnerEvent::RunnerFailed, RunnerState::Failed { reason: why })?;
    } else if runner.state.wanted() {
        let name = runner.state.name();
        tx.event("RunnerRetired", id, Some(name), "draining", Some(why.message));
        tx.move_runner(runner, RunnerEvent::RunnerDrained, RunnerState::Draining)?;
    }
    release(tx, lease)
}

/// Begins to give the devices of a machine that waited back.
pub(crate) fn release(tx: &mut Tx<'_>, lease: Option<LeaseId>) -> Result<(), Refusal> {
    let Some(lease) = lease else { return Ok(()) };
    let lease = tx.lease(lease)?;
    if matches!(lease.state, LeaseState::Claimed | LeaseState::Held) {
        tx.move_lease(lease, LeaseEvent::LeaseReleasing)?;
    }
    Ok(())
}

/// Sees to it that each pool has the machines that it should have.
pub(crate) fn ticked(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let config = tx.config();
    let hungry = hungry(tx.farm());
    if let Some(job) = hungry {
        make_room(tx, job)?;
    }
    for pool in &config.pools {
        outdated(tx, pool)?;
        let terms = schedule::terms(pool, tx.now());
        let want = wanted(tx.farm(), pool, terms, tx.now()) as usize;
        let mut have = idle(tx.farm(), |runner| runner.pool == pool.name);
        while have.len() > want {
            let Some((_, id)) = have.pop() else { break };
            let text = format!("pool {} should have {want} machines that wait", pool.name);
            retire(tx, id, Explanation::new("pool.too_many", text), false)?;
        }
        let mut lacks = None;
        if have.len() < want && drained(tx.farm(), pool).is_none() {
            if let Some(job) = hungry {
                let text = format!("{job} waits for room, and work goes before machines that wait for some");
                lacks = Some(Explanation::new("pool.work_first", text));
            } else {
                for _ in have.len()..want {
                    if let Err(reason) = make(tx, pool)? {
                        lacks = Some(reason);
                        break;
                    }
                }
            }
        }
        note_lack(tx, pool, want, lacks);
    }
    // A pool that is no longer configured has nobody who wants its machines.
    for (_, id) in idle(tx.farm(), |runner| config.pool(&runner.pool).is_none()) {
        retire(tx, id, Explanation::new("pool.gone", "its pool is no longer configured"), false)?;
    }
    Ok(())
}

/// Notes why fewer machines wait than should; written only when the reason is another one than before.
fn note_lack(tx: &mut Tx<'_>, pool: &Pool, want: usize, lacks: Option<Explanation>) {
    let record = super::record(tx.farm(), &pool.name);
    let known = record.warm_lacks.as_ref().map(|reason| &reason.code);
    if known == lacks.as_ref().map(|reason| &reason.code) {
        return;
    }
    let warm_lacks = lacks.map(|reason| {
        let text = format!("fewer than {want} machines wait for work: {}", reason.message);
        Explanation { message: text, ..reason }
    });
    match &warm_lacks {
        Some(reason) => {
            tx.event("PoolLacksWarm", &pool.name, None, "lacking", Some(reason.message.clone()));
        }
        None => tx.event("PoolHasWarm", &pool.name, Some("lacking"), "served", None),
    }
    tx.put(PoolRecord { warm_lacks, ..record });
}

/// A machine waits no longer: what it used meanwhile is nobody's, and is kept with its pool.
pub(crate) fn waited(tx: &mut Tx<'_>, runner: &Runner) {
    if !waits(runner) {
        return;
    }
    let RunnerWork::Warm { lease, .. } = runner.work else { return };
    let devices = lease.and_then(|id| tx.farm().leases.get(&id)).map_or(0, |lease| lease.devices.len());
    let stake = Stake {
        pool: runner.pool.clone(),
        flavor: runner.flavor.clone(),
        devices: u32::try_from(devices).unwrap_or(u32::MAX),
        seconds: 0,
        expected: None,
        per_hour: tx.config().queue.per_hour(&runner.pool, &runner.flavor),
    };
    let micros = tx.now().since(runner.requested_at).as_micros();
    let used = stake.used(u64::try_from(micros).unwrap_or(u64::MAX));
    tx.usage("warm_runner_micros", used.runner_micros, runner.id, 0);
    if used.gpu_micros > 0 {
        tx.usage("warm_gpu_micros", used.gpu_micros, runner.id, 0);
    }
    let mut record = super::record(tx.farm(), &runner.pool);
    record.charge_warm(tx.now(), &used);
    tx.put(record);
}

/// Machines that wait, the one that is given up first at the end.
fn idle(farm: &Farm, of: impl Fn(&Runner) -> bool) -> Vec<((bool, std::cmp::Reverse<Timestamp>), RunnerId)> {
    let live = farm.index.warm.iter().filter_map(|id| farm.runners.get(id));
    let mut found: Vec<_> = live
        .filter(|runner| waits(runner) && of(runner))
        .map(|runner| ((runner.state.being_made(), std::cmp::Reverse(runner.requested_at)), runner.id))
        .collect();
    found.sort();
    found
}

/// Ends machines that no job would be given any more.
fn outdated(tx: &mut Tx<'_>, pool: &Pool) -> Result<(), Refusal> {
    let flavor = pool.shape_of_warm().and_then(|name| tx.config().flavor(name));
    let image = tx.config().image(&pool.image);
    let stopped = drained(tx.farm(), pool);
    for (_, id) in idle(tx.farm(), |runner| runner.pool == pool.name) {
        let runner = tx.runner(id)?;
        let site = tx.farm().sites.get(&runner.site);
        let why = if let Some(stopped) = &stopped {
            Some(stopped.clone())
        } else if site.is_none_or(|site| site.draining_since.is_some()) {
            Some(Explanation::new("queue.site_draining", "its site is being drained"))
        } else if !flavor.zip(image).is_some_and(|(flavor, image)| alike(&runner, pool, flavor, image)) {
            Some(Explanation::new("pool.changed", "its pool now has another shape, image or provider"))
        } else {
            sick(tx, &runner)
        };
        if let Some(why) = why {
            retire(tx, id, why, false)?;
        }
    }
    Ok(())
}

/// A device of the machine was taken out.
fn sick(tx: &Tx<'_>, runner: &Runner) -> Option<Explanation> {
    let RunnerWork::Warm { lease: Some(lease), .. } = runner.work else { return None };
    let lease = tx.farm().leases.get(&lease)?;
    let out = lease.devices.iter().find(|id| {
        let device = tx.farm().devices.get(id);
        device.is_none_or(|device| device.state != DeviceState::Leased { lease: lease.id })
    })?;
    Some(Explanation::new("device.taken_out", format!("{out}, which it holds, was taken out")))
}

/// The first job that waits for something that a machine in waiting may hold, or that one would take from it.
fn hungry(farm: &Farm) -> Option<JobId> {
    let codes = [
        "queue.pool_full",
        "queue.host_full",
        "queue.device_busy",
        "queue.farm_full",
        "queue.launch_pace",
        "queue.breaker_probing",
    ];
    let queued = farm.index.queue.iter().filter_map(|(_, id)| farm.jobs.get(id));
    let waits = |job: &&Job| job.waiting.as_ref().is_some_and(|reason| codes.contains(&reason.code.as_str()));
    queued.into_iter().find(waits).map(|job| job.id)
}

/// Gives up one machine that waits in the way of a job. One at a time: while something is being removed, that is awaited.
fn make_room(tx: &mut Tx<'_>, job: JobId) -> Result<(), Refusal> {
    let job = tx.job(job)?;
    let (Some(reason), Some(spec)) = (&job.waiting, &job.spec) else { return Ok(()) };
    let farm = tx.farm();
    let mut waited = farm.index.warm.iter().filter_map(|id| farm.runners.get(id));
    if waited.any(|runner| matches!(runner.state, RunnerState::Draining | RunnerState::Deleting)) {
        return Ok(());
    }
    let Some(flavor) = tx.config().flavor(&spec.flavor) else { return Ok(()) };
    let serving = super::canary::candidates(farm, tx.config(), &job, flavor, spec, tx.now());
    let serves = |runner: &Runner| serving.iter().any(|(pool, _)| pool.name == runner.pool);
    let near = |runner: &Runner| serving.iter().any(|(pool, _)| pool.provider == runner.provider);
    let holds = |runner: &Runner| matches!(runner.work, RunnerWork::Warm { lease: Some(_), .. });
    let spare = match reason.code.as_str() {
        "queue.pool_full" => idle(farm, serves).pop(),
        "queue.host_full" => idle(farm, near).pop(),
        "queue.device_busy" => idle(farm, |runner| near(runner) && holds(runner)).pop(),
        _ => None,
    };
    let Some((_, id)) = spare else { return Ok(()) };
    let text = format!("{} waits for the room that it takes", job.id);
    retire(tx, id, Explanation::new("pool.makes_room", text), false)
}

/// Makes a machine that waits, or says why it cannot.
fn make(tx: &mut Tx<'_>, pool: &Pool) -> Result<Result<(), Explanation>, Refusal> {
    let config = tx.config();
    let now = tx.now();
    let shape = pool.shape_of_warm().and_then(|name| config.flavor(name));
    let Some((flavor, image)) = shape.zip(config.image(&pool.image)) else {
        let text = "its shape or image is not configured";
        return Ok(Err(Explanation::new("pool.no_shape", text).fix("declare both in forgeyard.toml")));
    };
    if let Err(reason) = launch::lets(tx.farm().pools.get(&pool.name), pool, now) {
        return Ok(Err(reason));
    }
    let needs = spec::needs(flavor.network);
    let wants = Wants { flavor, needs: &needs, gpu: flavor.gpu.as_ref() };
    let (mut found, mut reasons) = (None, Vec::new());
    for site in tx.farm().sites.values() {
        let open = launch::site_lets(tx.farm().pools.get(&pool.name), site, now);
        match open.and_then(|()| placement::fits(tx, site, pool, &wants, &Look::default())) {
            Ok(devices) => {
                found = Some((site.id, devices));
                break;
            }
            Err(reason) => reasons.push(reason),
        }
    }
    let Some((site, devices)) = found else { return Ok(Err(placement::combine(flavor, reasons))) };
    let id: RunnerId = tx.new_id();
    let limit = Duration::from_secs(flavor.time_limit_seconds);
    let lease = claim_devices(tx, id, None, site, &devices, limit)?;
    let state = RunnerState::Requested;
    tx.event("RunnerRequested", id, None, state.name(), Some(format!("{}, before there is work", pool.name)));
    tx.put(Runner {
        outdated_at: None,
        id,
        site,
        pool: pool.name.clone(),
        provider: pool.provider.clone(),
        flavor: flavor.name.clone(),
        image: pool.image.clone(),
        shape: flavor.clone(),
        boots: image.clone(),
        work: RunnerWork::Warm { nonce: None, lease },
        registration: None,
        deadline: deadline::warm_runner(&state, limit).map(|limit| now.plus(limit)),
        state,
        requested_at: now,
        seen_at: None,
        unwanted_from: 0,
        ready_at: None,
        since: now,
        generation: 0,
    });
    tx.touch_site(site);
    // Not a use: otherwise machines that are kept after use would keep each other.
    launch::launched(tx, pool, id, site, false);
    Ok(Ok(()))
}

/// Writes the lease of devices for a machine, and takes them.
pub(crate) fn claim_devices(
    tx: &mut Tx<'_>,
    runner: RunnerId,
    attempt: Option<AttemptId>,
    site: SiteId,
    devices: &[DeviceId],
    limit: Duration,
) -> Result<Option<LeaseId>, Refusal> {
    if devices.is_empty() {
        return Ok(None);
    }
    let now = tx.now();
    let lease = attempt.map_or_else(|| LeaseId::derive(runner, "lease"), |id| LeaseId::derive(id, "lease"));
    for id in devices {
        let device = tx.device(*id)?;
        tx.move_device(device, DeviceEvent::DeviceLeased, DeviceState::Leased { lease })?;
    }
    let state = LeaseState::Claimed;
    tx.event("LeaseClaimed", lease, None, state.name(), None);
    tx.put(Lease {
        id: lease,
        site,
        attempt,
        runner,
        devices: devices.to_vec(),
        state,
        claimed_at: now,
        held_at: None,
        ended_at: None,
        since: now,
        deadline: deadline::lease(state, limit).map(|limit| now.plus(limit)),
        generation: 0,
    });
    Ok(Some(lease))
}
