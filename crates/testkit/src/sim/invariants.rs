//! What must always be true, checked after every step.
//!
//! A row can only change by being written, and the store notes what is written. So a step is checked by looking at the
//! rows that it wrote, at what is live, and at what the simulated hardware does; every so often everything is walked
//! through, and memory is compared with what is stored, which finds whatever changed without being written.

use super::control::Control;
use super::site::{Site, device_id};
use super::store::Touched;
use forgeyard_engine::Farm;
use forgeyard_model::RunnerId;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::device::DeviceState;
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::verdict::Outcome;
use std::collections::BTreeMap;

/// How much a check looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What was written since the last check, and what is live.
    Written,
    /// Every row, and whether memory is what is stored.
    Everything,
}

/// Checks what must hold; the text names the broken invariant.
pub fn check(control: &mut Control, site: &Site, depth: Depth) -> Result<(), String> {
    let touched = std::mem::take(&mut control.store.touched);
    let acknowledged = std::mem::take(&mut control.newly_acknowledged);
    if let Some(broken) = &control.broken {
        return Err(broken.clone());
    }
    hardware_agrees(control, site)?;
    pools(control)?;
    let farm = &control.farm;
    one_lease_per_device(farm, farm.index.live_leases.iter().filter_map(|(_, id)| farm.leases.get(id)))?;
    caps_hold(control)?;
    match depth {
        Depth::Written => {
            rows_that_were_written(farm, &touched)?;
            if touched.channels {
                only_trusted_bytes_are_published(control)?;
            }
            acknowledged_is_stored(control, acknowledged.iter())
        }
        Depth::Everything => {
            one_lease_per_device(farm, farm.leases.values().filter(|lease| lease.state.live()))?;
            farm.jobs.values().try_for_each(|job| one_attempt_per_job(farm, job))?;
            farm.attempts.values().try_for_each(attempt)?;
            farm.runners.values().try_for_each(runner)?;
            farm.leases.values().try_for_each(lease)?;
            farm.pipelines.values().try_for_each(pipeline)?;
            only_trusted_bytes_are_published(control)?;
            acknowledged_is_stored(control, control.acknowledged.iter())?;
            memory_equals_store(control)
        }
    }
}

fn rows_that_were_written(farm: &Farm, touched: &Touched) -> Result<(), String> {
    touched
        .jobs
        .iter()
        .filter_map(|id| farm.jobs.get(id))
        .try_for_each(|job| one_attempt_per_job(farm, job))?;
    touched.attempts.iter().filter_map(|id| farm.attempts.get(id)).try_for_each(attempt)?;
    touched.runners.iter().filter_map(|id| farm.runners.get(id)).try_for_each(runner)?;
    touched.leases.iter().filter_map(|id| farm.leases.get(id)).try_for_each(lease)?;
    touched.pipelines.iter().filter_map(|id| farm.pipelines.get(id)).try_for_each(pipeline)
}

fn one_lease_per_device<'a>(farm: &Farm, live: impl Iterator<Item = &'a Lease>) -> Result<(), String> {
    let mut holder = BTreeMap::new();
    for lease in live {
        for device in &lease.devices {
            if let Some(other) = holder.insert(*device, lease.id) {
                return Err(format!("{device} is leased twice: by {other} and by {}", lease.id));
            }
        }
    }
    for device in farm.devices.values() {
        if let DeviceState::Leased { lease } = device.state
            && holder.get(&device.id) != Some(&lease)
        {
            return Err(format!("{} says it is leased by {lease}, which does not hold it", device.id));
        }
        if device.state == DeviceState::Ready
            && let Some(lease) = holder.get(&device.id)
        {
            return Err(format!("{} is free while {lease} holds it", device.id));
        }
    }
    Ok(())
}

/// Who runs is counted from the events that the work is for, not from what the engine keeps.
fn caps_hold(control: &Control) -> Result<(), String> {
    let (farm, caps) = (&control.farm, &control.config.queue.caps);
    let mut running: BTreeMap<String, (usize, Option<u32>)> = BTreeMap::new();
    for attempt in farm.index.live_attempts.iter().filter_map(|id| farm.attempts.get(id)) {
        let Some(event) =
            attempt.owner.pipeline().and_then(|id| farm.pipelines.get(&id)).map(|pipeline| &pipeline.event)
        else {
            continue;
        };
        let owner = event.repository.name.split('/').next().unwrap_or_default();
        let person = event.author.as_ref().unwrap_or(&event.sender).id;
        for (who, cap) in [
            (format!("organisation {owner}"), caps.organisation),
            (format!("repository {}", event.repository.id), caps.repository),
            (format!("person {person}"), caps.person),
        ] {
            running.entry(who).or_insert((0, cap)).0 += 1;
        }
    }
    let over = running.iter().find(|(_, (count, cap))| cap.is_some_and(|cap| *count > cap as usize));
    over.map_or(Ok(()), |(who, (count, cap))| {
        Err(format!("{who} runs {count} attempts, over its cap of {}", cap.unwrap_or_default()))
    })
}

fn one_attempt_per_job(farm: &Farm, job: &Job) -> Result<(), String> {
    let of = farm.index.attempts_of.get(&job.id).into_iter().flatten();
    let mut live = of.filter_map(|id| farm.attempts.get(id)).filter(|row| row.state.live()).map(|row| row.id);
    let (first, second) = (live.next(), live.next());
    if let (Some(first), Some(second)) = (first, second) {
        return Err(format!("{} has two live attempts: {first} and {second}", job.id));
    }
    let named = job.state.attempt();
    if named != first {
        return Err(format!("{} is {}: names {named:?}, has {first:?}", job.id, job.state.name()));
    }
    Ok(())
}

/// A result belongs to its machine, and what moves has a deadline.
fn attempt(row: &Attempt) -> Result<(), String> {
    let machine = row.facts.as_ref().and_then(|facts| facts.metrics.get("machine"));
    if let Some(machine) = machine.filter(|machine| machine.value != row.runner.to_string()) {
        return Err(format!("{} took the result of {}, another machine", row.id, machine.value));
    }
    moves(row.state.live(), row.deadline.is_some(), row.id)
}

fn runner(row: &Runner) -> Result<(), String> {
    moves(row.state.live(), row.deadline.is_some(), row.id)
}

fn lease(row: &Lease) -> Result<(), String> {
    moves(row.state.live(), row.deadline.is_some(), row.id)
}

fn pipeline(row: &Pipeline) -> Result<(), String> {
    moves(!row.state.ended(), row.deadline.is_some(), row.id)
}

fn moves(moves: bool, has_deadline: bool, id: impl std::fmt::Display) -> Result<(), String> {
    if moves && !has_deadline { Err(format!("{id} moves and has no deadline")) } else { Ok(()) }
}

/// No pool has more machines than it may, and what waits has no attempt and holds its own lease.
fn pools(control: &Control) -> Result<(), String> {
    let farm = &control.farm;
    for pool in &control.config.pools {
        let live = farm.index.live_runners.iter().filter_map(|(_, id)| farm.runners.get(id));
        let taken = live.filter(|runner| runner.pool == pool.name && runner.state.takes_a_place()).count();
        if taken > pool.max as usize {
            return Err(format!("pool {} has {taken} machines, and may have {}", pool.name, pool.max));
        }
    }
    for lease in farm.index.live_leases.iter().filter_map(|(_, id)| farm.leases.get(id)) {
        let Some(runner) = farm.runners.get(&lease.runner) else {
            return Err(format!("{} is held by {}, which nobody knows", lease.id, lease.runner));
        };
        let agrees = match &runner.work {
            RunnerWork::Warm { lease: held, .. } => *held == Some(lease.id) && lease.attempt.is_none(),
            RunnerWork::Attempt(id) | RunnerWork::Handed { attempt: id, .. } => lease.attempt == Some(*id),
        };
        if !agrees {
            return Err(format!("{} and its machine {} say different things", lease.id, runner.id));
        }
        let left = runner.work.is_warm() && !runner.state.wanted() && lease.state != LeaseState::Releasing;
        if left {
            return Err(format!("{} is {}, and keeps its devices", runner.id, runner.state.name()));
        }
    }
    Ok(())
}

fn hardware_agrees(control: &Control, site: &Site) -> Result<(), String> {
    if let Some(trouble) = site.trouble() {
        return Err(trouble);
    }
    let Some(id) = site.id else { return Ok(()) };
    for (runner, machine) in &site.machines {
        for key in &machine.devices {
            let device = device_id(id, key);
            let row = machine.lease.and_then(|lease| control.store.rows.leases.get(&lease));
            let stored = row.is_some_and(|lease| {
                lease.runner == *runner && lease.devices.contains(&device) && lease.state.live()
            });
            if !stored {
                return Err(format!("{runner} uses {key} without a live lease in the store"));
            }
        }
    }
    Ok(())
}

fn only_trusted_bytes_are_published(control: &Control) -> Result<(), String> {
    let farm = &control.farm;
    for entry in farm.channels.values().flat_map(|channel| &channel.entries) {
        let name = &entry.file_name;
        let Some(pipeline) = farm.pipelines.get(&entry.pipeline) else {
            return Err(format!("{name} is published by an unknown pipeline"));
        };
        if control.untrusted.contains(&pipeline.delivery) {
            return Err(format!("{name} is published from an untrusted event"));
        }
        let artifact = farm.artifacts.get(&entry.artifact).filter(|row| row.digest == entry.digest);
        let maker = artifact.and_then(|row| row.attempt).and_then(|id| farm.attempts.get(&id));
        if maker.is_none_or(|attempt| attempt.outcome != Some(Outcome::Succeeded)) {
            return Err(format!("{name} is published, and no attempt that succeeded made it"));
        }
    }
    Ok(())
}

fn acknowledged_is_stored<'a>(
    control: &Control,
    mut guids: impl Iterator<Item = &'a String>,
) -> Result<(), String> {
    let lost = guids.find(|guid| !control.store.rows.deliveries.contains_key(*guid));
    lost.map_or(Ok(()), |guid| Err(format!("delivery {guid} was acknowledged and is not stored")))
}

/// What is stored is what is in memory.
fn memory_equals_store(control: &Control) -> Result<(), String> {
    if control.store.rows == control.farm {
        Ok(())
    } else {
        Err("what is stored differs from what is in memory".to_owned())
    }
}

/// What must be true when nothing happens any more.
pub fn at_rest(control: &Control, site: &Site) -> Result<(), String> {
    let farm = &control.farm;
    if let Some(guid) = farm.index.unread.iter().next() {
        return Err(format!("delivery {guid} was stored and never read"));
    }
    if let Some(id) = farm.index.live_pipelines.iter().next() {
        return Err(format!("{id} never ended"));
    }
    let waits = |id: &RunnerId| {
        let runner = farm.runners.get(id);
        runner.is_some_and(|runner| runner.work.is_warm() && runner.state == RunnerState::Ready)
    };
    if let Some((_, id)) = farm.index.live_runners.iter().find(|(_, id)| !waits(id)) {
        return Err(format!("{id} was never removed"));
    }
    let mut leases = farm.index.live_leases.iter().filter_map(|(_, id)| farm.leases.get(id));
    if let Some(lease) = leases.find(|lease| !waits(&lease.runner)) {
        return Err(format!("{} never ended", lease.id));
    }
    if let Some(job) = farm.jobs.values().find(|job| !matches!(job.state, JobState::Ended { .. })) {
        return Err(format!("{} ({}) is lost: still {}", job.id, job.key, job.state.name()));
    }
    if let Some(id) = site.machines.keys().find(|id| !waits(id)) {
        return Err(format!("the machine of {id} is left behind"));
    }
    Ok(())
}
