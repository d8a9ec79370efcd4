//! What sites say: inventory, machines, leases. The function between what is intended and what is observed.

use crate::ending::{self, lost};
use crate::lifecycle::{DeviceEvent, LeaseEvent, RunnerEvent};
use crate::pools::{self, warm};
use crate::tx::Tx;
use forgeyard_model::device::{Device, DeviceFacts, DeviceState};
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::lease::LeaseState;
use forgeyard_model::runner::{ObservedRunner, ObservedState, Runner, RunnerState};
use forgeyard_model::site::{ObservedLease, Site, SiteReport};
use forgeyard_model::verdict::RetryPolicy;
use forgeyard_model::{DeviceId, Digest, Explanation, Id, RunnerId, SiteId, SiteName};
use std::collections::BTreeMap;

/// A site joined, or joined again under its name with a new key.
pub(crate) fn joined(
    tx: &mut Tx<'_>,
    name: SiteName,
    token: Digest,
    public_key: String,
) -> Result<Reply, Refusal> {
    let known = tx.farm().sites.values().find(|site| site.name == name).cloned();
    let joined_at = tx.now();
    let site = match known {
        Some(site) => Site { token, public_key, joined_at, ..site },
        None => Site {
            id: tx.new_id(),
            name,
            token,
            public_key,
            host: None,
            heard_at: None,
            draining_since: None,
            desired_generation: 1,
            joined_at,
            generation: 0,
        },
    };
    let id = site.id;
    tx.event("SiteJoined", id, None, "joined", Some(site.name.to_string()));
    tx.put(site);
    Ok(Reply::Site { site: id })
}

/// A site reports. The report is complete: a machine that is not listed is not there.
pub(crate) fn reported(tx: &mut Tx<'_>, id: SiteId, report: &SiteReport) -> Result<Reply, Refusal> {
    let mut site = tx.site(id)?;
    if report.epoch != tx.farm().epoch {
        return Err(Refusal::new(
            RefusalKind::Superseded,
            "site.old_epoch",
            format!("the report is for epoch {}, the farm is at {}", report.epoch, tx.farm().epoch),
        )
        .fix("fetch the desired set again, then report"));
    }
    site.heard_at = Some(tx.now());
    site.host = Some(report.host.clone());
    tx.put(site);
    inventory(tx, id, &report.devices)?;
    machines(tx, id, report)?;
    for lease in &report.leases {
        lease_seen(tx, id, lease)?;
    }
    Ok(Reply::Done)
}

fn inventory(tx: &mut Tx<'_>, site: SiteId, seen: &[DeviceFacts]) -> Result<(), Refusal> {
    for facts in seen {
        let id = DeviceId::derive(site, &facts.key);
        match tx.farm().devices.get(&id) {
            None => {
                let since = tx.now();
                let state = DeviceState::Ready;
                tx.event("DeviceFound", id, None, state.name(), Some(facts.model.clone()));
                tx.put(Device {
                    id,
                    site,
                    facts: facts.clone(),
                    state,
                    since,
                    deadline: None,
                    generation: 0,
                });
            }
            Some(device) => {
                let back = matches!(&device.state, DeviceState::Quarantined { reason } if reason.code == "device.missing");
                // Nearly every report says of a device what is known: no row is copied for that.
                if device.facts != *facts {
                    let device = device.clone();
                    tx.put(Device { facts: facts.clone(), ..device });
                }
                if back && !leased(tx, id) {
                    let device = tx.device(id)?;
                    tx.move_device(device, DeviceEvent::DeviceReady, DeviceState::Ready)?;
                }
            }
        }
    }
    let keys: Vec<&str> = seen.iter().map(|facts| facts.key.as_str()).collect();
    let gone: Vec<Device> = tx
        .farm()
        .devices
        .values()
        .filter(|device| device.site == site && !keys.contains(&device.facts.key.as_str()))
        .filter(|device| !matches!(device.state, DeviceState::Quarantined { .. }))
        .cloned()
        .collect();
    for device in gone {
        let reason = Explanation::new("device.missing", "the site no longer reports this device")
            .fix("look at the host: bus, driver, power; it returns by itself when it is reported again");
        tx.move_device(device, DeviceEvent::DeviceQuarantined, DeviceState::Quarantined { reason })?;
    }
    Ok(())
}

fn leased(tx: &Tx<'_>, device: DeviceId) -> bool {
    let live = &tx.farm().index.live_leases;
    live.iter().filter_map(|(_, id)| tx.farm().leases.get(id)).any(|lease| lease.devices.contains(&device))
}

fn machines(tx: &mut Tx<'_>, site: SiteId, report: &SiteReport) -> Result<(), Refusal> {
    let seen: BTreeMap<RunnerId, &ObservedRunner> =
        report.runners.iter().map(|observed| (observed.runner, observed)).collect();
    let here = tx.farm().index.live_runners.range((site, RunnerId::from_bits(0))..);
    let live: Vec<RunnerId> = here.take_while(|(owner, _)| *owner == site).map(|(_, id)| *id).collect();
    for id in live {
        let state = seen.get(&id).map_or(&ObservedState::Absent, |observed| &observed.state);
        machine_seen(tx, id, state, report.generation)?;
    }
    Ok(())
}

/// Brings one machine and what the site sees of it together.
fn machine_seen(tx: &mut Tx<'_>, id: RunnerId, seen: &ObservedState, generation: u64) -> Result<(), Refusal> {
    // Nearly every line of a report says that a machine runs that is known to run: no row is copied for that.
    let settled = tx.farm().runners.get(&id).is_some_and(|runner| {
        runner.seen_at.is_some()
            && !matches!(
                runner.state,
                RunnerState::Requested
                    | RunnerState::Creating
                    | RunnerState::Draining
                    | RunnerState::Failed { .. }
            )
    });
    if settled && *seen == ObservedState::Running {
        return Ok(());
    }
    let mut runner = tx.runner(id)?;
    if runner.seen_at.is_none() && *seen != ObservedState::Absent {
        runner.seen_at = Some(tx.now());
        tx.put(runner.clone());
    }
    match (&runner.state, seen) {
        (RunnerState::Requested, ObservedState::Creating) => {
            tx.move_runner(runner, RunnerEvent::RunnerCreating, RunnerState::Creating)
        }
        (RunnerState::Requested | RunnerState::Creating, ObservedState::Running) => {
            tx.move_runner(runner, RunnerEvent::RunnerBooted, RunnerState::Booting)
        }
        // Not made yet: the site may not have seen the request. The attempt's deadline bounds this.
        (_, ObservedState::Absent) if runner.state.wanted() && runner.seen_at.is_none() => Ok(()),
        (RunnerState::Draining | RunnerState::Failed { .. }, ObservedState::Absent)
            if generation < runner.unwanted_from =>
        {
            Ok(())
        }
        (
            RunnerState::Draining
            | RunnerState::Deleting
            | RunnerState::Failed { .. }
            | RunnerState::Kept { .. },
            ObservedState::Absent,
        ) => {
            let kept = matches!(runner.state, RunnerState::Kept { .. });
            if kept {
                lose_attempt(tx, &runner, "runner.vanished", "its machine vanished", RetryPolicy::R1)?;
            }
            let runner = tx.runner(id)?;
            tx.move_runner(runner, RunnerEvent::RunnerDeleted, RunnerState::Deleted)?;
            let runner = tx.runner(id)?;
            pools::launch::given_back(tx, &runner);
            Ok(())
        }
        (RunnerState::Draining | RunnerState::Failed { .. }, _) => {
            tx.move_runner(runner, RunnerEvent::RunnerDeleting, RunnerState::Deleting)
        }
        (_, ObservedState::Failed { reason }) if runner.state.wanted() => {
            let text = format!("its machine could not be made: {}", reason.message);
            break_machine(tx, &runner, "runner.not_made", &text, RetryPolicy::RB, reason.clone())
        }
        (_, ObservedState::Exited { reason }) if runner.state.wanted() => {
            let text = format!("its machine ended early: {}", reason.message);
            break_machine(tx, &runner, "runner.exited", &text, RetryPolicy::R1, reason.clone())
        }
        (_, ObservedState::Absent) if runner.state.wanted() => {
            let reason = Explanation::new("runner.vanished", "the site no longer sees the machine");
            break_machine(tx, &runner, "runner.vanished", "its machine vanished", RetryPolicy::R1, reason)
        }
        _ => Ok(()),
    }
}

fn break_machine(
    tx: &mut Tx<'_>,
    runner: &Runner,
    class: &str,
    cause: &str,
    retry: RetryPolicy,
    reason: Explanation,
) -> Result<(), Refusal> {
    if runner.work.is_warm() && !matches!(runner.state, RunnerState::Kept { .. }) {
        return warm::retire(tx, runner.id, reason, true);
    }
    let attempt = runner.work.attempt().map(|id| tx.attempt(id)).transpose()?;
    if let Some(attempt) = attempt.filter(|attempt| attempt.state.live()) {
        return ending::end(tx, attempt, lost(class, cause, retry), None, Some(reason));
    }
    let runner = tx.runner(runner.id)?;
    tx.move_runner(runner, RunnerEvent::RunnerFailed, RunnerState::Failed { reason })
}

fn lose_attempt(
    tx: &mut Tx<'_>,
    runner: &Runner,
    class: &str,
    cause: &str,
    retry: RetryPolicy,
) -> Result<(), Refusal> {
    let attempt = runner.work.attempt().map(|id| tx.attempt(id)).transpose()?;
    match attempt.filter(|attempt| attempt.state.live()) {
        Some(attempt) => ending::end(tx, attempt, lost(class, cause, retry), None, None),
        None => Ok(()),
    }
}

fn lease_seen(tx: &mut Tx<'_>, site: SiteId, seen: &ObservedLease) -> Result<(), Refusal> {
    let id = match seen {
        ObservedLease::Held { lease }
        | ObservedLease::Resetting { lease }
        | ObservedLease::Verifying { lease }
        | ObservedLease::Released { lease, .. } => *lease,
    };
    // A lease that we do not know, or that is not this site's, is none of our doing: say nothing about it.
    // So is one whose state is what the site sees.
    let known = tx.farm().leases.get(&id).filter(|lease| lease.site == site);
    let known = known.filter(|lease| matches!(lease.state, LeaseState::Claimed | LeaseState::Releasing));
    let Some(lease) = known.cloned() else { return Ok(()) };
    match (lease.state, seen) {
        (LeaseState::Claimed, ObservedLease::Held { .. }) => tx.move_lease(lease, LeaseEvent::LeaseHeld),
        (LeaseState::Releasing, ObservedLease::Resetting { .. }) => {
            for device in lease.devices {
                let device = tx.device(device)?;
                if matches!(device.state, DeviceState::Leased { .. }) {
                    tx.move_device(
                        device,
                        DeviceEvent::DeviceResetting,
                        DeviceState::Resetting { lease: id },
                    )?;
                }
            }
            Ok(())
        }
        (LeaseState::Releasing, ObservedLease::Verifying { .. }) => {
            for device in lease.devices {
                let device = tx.device(device)?;
                if matches!(device.state, DeviceState::Leased { .. } | DeviceState::Resetting { .. }) {
                    tx.move_device(
                        device,
                        DeviceEvent::DeviceVerifying,
                        DeviceState::Verifying { lease: id },
                    )?;
                }
            }
            Ok(())
        }
        (LeaseState::Releasing, ObservedLease::Released { sick, .. }) => end_lease(tx, lease, sick),
        _ => Ok(()),
    }
}

/// The site confirmed: only now are the devices free, and only when the machine is gone.
fn end_lease(
    tx: &mut Tx<'_>,
    lease: forgeyard_model::lease::Lease,
    sick: &[(DeviceId, String)],
) -> Result<(), Refusal> {
    let runner = tx.runner(lease.runner)?;
    if runner.state.live() {
        // The machine's own absence has not been reported: the confirmation is early and will come again.
        return Ok(());
    }
    // What a machine held while it waited, and got no work, is nobody's use but the farm's. The rest is counted where an
    // attempt ends.
    if lease.attempt.is_none() {
        let held = tx.now().since(lease.claimed_at);
        let micros =
            u64::try_from(held.as_micros()).unwrap_or(u64::MAX).saturating_mul(lease.devices.len() as u64);
        tx.usage("gpu_micros", micros, lease.runner, 0);
    }
    for id in lease.devices.clone() {
        let device = tx.device(id)?;
        let trouble = sick.iter().find(|(sick, _)| *sick == id).map(|(_, text)| text.clone());
        match (&device.state, trouble) {
            (DeviceState::Quarantined { .. }, _) => {}
            (_, Some(text)) => {
                let reason =
                    Explanation::new("device.did_not_return", "the device did not answer after its reset")
                        .with(text)
                        .fix("look at the host, then `forgeyard device clear`");
                tx.move_device(device, DeviceEvent::DeviceQuarantined, DeviceState::Quarantined { reason })?;
            }
            (_, None) => tx.move_device(device, DeviceEvent::DeviceReady, DeviceState::Ready)?,
        }
    }
    tx.move_lease(lease, LeaseEvent::LeaseEnded)
}
