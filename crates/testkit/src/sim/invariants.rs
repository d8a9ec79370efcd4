//! What must always be true, checked after every step.

use super::control::Control;
use super::site::{Site, device_id};
use forgeyard_engine::Farm;
use forgeyard_model::commit::Row;
use forgeyard_model::device::DeviceState;
use forgeyard_model::job::JobState;
use std::collections::BTreeMap;

/// Checks everything; the text names the broken invariant.
pub fn check(control: &Control, site: &Site, deep: bool) -> Result<(), String> {
    if let Some(broken) = &control.broken {
        return Err(format!("the store refused a commit: {broken}"));
    }
    one_lease_per_device(&control.farm)?;
    one_attempt_per_job(&control.farm)?;
    results_belong_to_their_machine(&control.farm)?;
    hardware_agrees(control, site)?;
    only_trusted_bytes_are_published(control)?;
    acknowledged_is_stored(control)?;
    everything_that_moves_has_a_deadline(&control.farm)?;
    if deep {
        memory_equals_store(control)?;
    }
    Ok(())
}

fn one_lease_per_device(farm: &Farm) -> Result<(), String> {
    let mut holder = BTreeMap::new();
    for lease in farm.leases.values().filter(|lease| lease.state.live()) {
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

fn one_attempt_per_job(farm: &Farm) -> Result<(), String> {
    let mut live = BTreeMap::new();
    for attempt in farm.attempts.values().filter(|attempt| attempt.state.live()) {
        if let Some(other) = live.insert(attempt.job, attempt.id) {
            return Err(format!("{} has two live attempts: {other} and {}", attempt.job, attempt.id));
        }
    }
    for job in farm.jobs.values() {
        match (job.state.attempt(), live.get(&job.id)) {
            (Some(named), Some(found)) if named == *found => {}
            (None, None) => {}
            (named, found) => {
                return Err(format!("{} is {}: names {named:?}, has {found:?}", job.id, job.state.name()));
            }
        }
    }
    Ok(())
}

fn results_belong_to_their_machine(farm: &Farm) -> Result<(), String> {
    for attempt in farm.attempts.values() {
        let Some(machine) = attempt.facts.as_ref().and_then(|facts| facts.metrics.get("machine")) else { continue };
        if machine.value != attempt.runner.to_string() {
            return Err(format!("{} took the result of {}, another machine", attempt.id, machine.value));
        }
    }
    Ok(())
}

fn hardware_agrees(control: &Control, site: &Site) -> Result<(), String> {
    if let Some(device) = site.doubly_used() {
        return Err(format!("two machines use {device}"));
    }
    let Some(id) = site.id else { return Ok(()) };
    for (runner, machine) in &site.machines {
        for key in &machine.devices {
            let device = device_id(id, key);
            let row = machine.lease.and_then(|lease| control.store.rows.get(&("lease", lease.to_string())));
            let stored = matches!(row, Some(Row::Lease(lease)) if lease.runner == *runner
                && lease.devices.contains(&device) && lease.state.live());
            if !stored {
                return Err(format!("{runner} uses {key} without a live lease in the store"));
            }
        }
    }
    Ok(())
}

fn only_trusted_bytes_are_published(control: &Control) -> Result<(), String> {
    for channel in control.farm.channels.values() {
        for entry in &channel.entries {
            let Some(pipeline) = control.farm.pipelines.get(&entry.pipeline) else {
                return Err(format!("{} is published by an unknown pipeline", entry.file_name));
            };
            if control.untrusted.contains(&pipeline.delivery) {
                return Err(format!("{} is published from an untrusted event", entry.file_name));
            }
        }
    }
    Ok(())
}

fn acknowledged_is_stored(control: &Control) -> Result<(), String> {
    let lost = control
        .acknowledged
        .iter()
        .find(|guid| !control.store.rows.contains_key(&("delivery", (*guid).clone())));
    lost.map_or(Ok(()), |guid| Err(format!("delivery {guid} was acknowledged and is not stored")))
}

fn everything_that_moves_has_a_deadline(farm: &Farm) -> Result<(), String> {
    let attempt = farm.attempts.values().find(|row| row.state.live() && row.deadline.is_none());
    let runner = farm.runners.values().find(|row| row.state.live() && row.deadline.is_none());
    let lease = farm.leases.values().find(|row| row.state.live() && row.deadline.is_none());
    let pipeline = farm.pipelines.values().find(|row| !row.state.ended() && row.deadline.is_none());
    let found = attempt.map(|row| row.id.to_string());
    let found = found.or(runner.map(|row| row.id.to_string()));
    let found = found.or(lease.map(|row| row.id.to_string()));
    let found = found.or(pipeline.map(|row| row.id.to_string()));
    found.map_or(Ok(()), |id| Err(format!("{id} moves and has no deadline")))
}

/// What is stored, read back, is what is in memory.
fn memory_equals_store(control: &Control) -> Result<(), String> {
    let mut loaded = Farm::load(control.store.rows.values().cloned());
    loaded.epoch = control.farm.epoch;
    loaded.resumed_at = control.farm.resumed_at;
    if loaded == control.farm { Ok(()) } else { Err("what is stored differs from what is in memory".to_owned()) }
}

/// What must be true when nothing happens any more.
pub fn at_rest(control: &Control, site: &Site) -> Result<(), String> {
    let farm = &control.farm;
    if let Some(guid) = farm.index.unread.iter().next() {
        return Err(format!("delivery {guid} was stored and never read"));
    }
    if let Some(job) = farm.jobs.values().find(|job| !matches!(job.state, JobState::Ended { .. })) {
        return Err(format!("{} ({}) is lost: still {}", job.id, job.key, job.state.name()));
    }
    if let Some(id) = farm.index.live_pipelines.iter().next() {
        return Err(format!("{id} never ended"));
    }
    if let Some((_, id)) = farm.index.live_runners.iter().next() {
        return Err(format!("{id} was never removed"));
    }
    if let Some((_, id)) = farm.index.live_leases.iter().next() {
        return Err(format!("{id} never ended"));
    }
    if let Some(id) = site.machines.keys().next() {
        return Err(format!("the machine of {id} is left behind"));
    }
    Ok(())
}
