//! What to do next: the function between what should be and what is. Pure.
//!
//! Invariants, each held by a test:
//! - a machine that should be is never destroyed, whatever state it is in;
//! - a machine with our tag that should not be is destroyed, whoever made it;
//! - a lease is not ended while its machine exists or may exist;
//! - a device that a live lease holds is not given to another machine;
//! - a virtual machine gets all devices of an IOMMU group or none, so that no two machines ever share one;
//! - the plan of a settled site is empty, and every plan leads to a settled site.

use crate::ledger::{LeasePhase, Ledger, MachinePhase};
use forgeyard_engine::groups;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::name::ProviderName;
use forgeyard_model::runner::ObservedState;
use forgeyard_model::site::{DesiredRunner, DesiredSet};
use forgeyard_model::{DeviceId, Explanation, LeaseId, RunnerId};
use std::collections::{BTreeMap, BTreeSet};

/// Machines as the providers list them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Each machine with the provider that lists it.
    pub machines: BTreeMap<(RunnerId, ProviderName), ObservedState>,
    /// Providers that did not answer; what `machines` says of theirs is old.
    pub unknown: BTreeSet<ProviderName>,
}

impl Observed {
    fn any(&self, runner: RunnerId) -> bool {
        self.machines.keys().any(|(seen, _)| *seen == runner)
    }
}

/// What must be left alone for now: it is being worked on, or it failed and its pause is not over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Machines.
    pub runners: BTreeSet<RunnerId>,
    /// Leases.
    pub leases: BTreeSet<LeaseId>,
    /// Providers that are not asked to make machines.
    pub providers: BTreeSet<ProviderName>,
}

/// All that a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// What should be.
    pub desired: &'a DesiredSet,
    /// What is.
    pub observed: &'a Observed,
    /// What was claimed and touched.
    pub ledger: &'a Ledger,
    /// Providers of this site.
    pub providers: &'a BTreeSet<ProviderName>,
    /// Those of them that hand devices over to virtual machines.
    pub handing: &'a BTreeSet<ProviderName>,
    /// Devices of this site, as last asked.
    pub devices: &'a [DeviceFacts],
    /// What must be left alone.
    pub waiting: &'a Waiting,
    /// Released leases of which the farm has been told.
    pub told: &'a BTreeSet<LeaseId>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Claim its lease and make the machine.
    Create {
        /// Which.
        runner: RunnerId,
    },
    /// Write down that a machine is there which should be there.
    Adopt {
        /// Which.
        runner: RunnerId,
    },
    /// Write down that a machine is not going to be made.
    Refuse {
        /// Which.
        runner: RunnerId,
        /// Why.
        reason: Explanation,
    },
    /// Remove a machine.
    Destroy {
        /// Which.
        runner: RunnerId,
        /// Whose.
        provider: ProviderName,
    },
    /// Strike out a machine that was refused and is no longer wanted.
    Forget {
        /// Which.
        runner: RunnerId,
    },
    /// Reset the devices of a lease, verify them and set it free.
    End {
        /// Which.
        lease: LeaseId,
        /// Its machine, which is gone.
        runner: RunnerId,
        /// Its devices.
        devices: Vec<(DeviceId, String)>,
    },
    /// Strike out a lease that the farm knows to be free.
    ForgetLease {
        /// Which.
        lease: LeaseId,
    },
}

/// What to do next.
pub fn plan(view: &View<'_>) -> Vec<Action> {
    let wanted: BTreeMap<RunnerId, &DesiredRunner> =
        view.desired.runners.iter().map(|desired| (desired.runner, desired)).collect();
    let mut actions = Vec::new();
    removals(view, &wanted, &mut actions);
    creations(view, &wanted, &mut actions);
    leases(view, &wanted, &mut actions);
    actions
}

type Wanted<'a> = BTreeMap<RunnerId, &'a DesiredRunner>;

fn removals(view: &View<'_>, wanted: &Wanted<'_>, actions: &mut Vec<Action>) {
    let seen = view.observed.machines.keys().cloned();
    // A machine that the provider does not list but that was claimed is removed too: `destroy` also clears what a
    // creation left half done.
    let claimed = view.ledger.machines.iter().map(|(runner, record)| (*runner, record.provider.clone()));
    for (runner, provider) in seen.chain(claimed).collect::<BTreeSet<_>>() {
        let stays = wanted.get(&runner).is_some_and(|desired| desired.provider == provider);
        if stays || view.waiting.runners.contains(&runner) {
            continue;
        }
        let refused = view
            .ledger
            .machines
            .get(&runner)
            .is_some_and(|record| matches!(record.phase, MachinePhase::Refused { .. }));
        if refused && !view.observed.any(runner) {
            // A refused machine that is still wanted keeps its refusal, whatever provider is asked for now.
            if !wanted.contains_key(&runner) {
                actions.push(Action::Forget { runner });
            }
        } else {
            actions.push(Action::Destroy { runner, provider });
        }
    }
}

fn creations(view: &View<'_>, wanted: &Wanted<'_>, actions: &mut Vec<Action>) {
    let mut taken: BTreeSet<(&str, LeaseId)> = BTreeSet::new();
    for (lease, record) in &view.ledger.leases {
        if !matches!(record.phase, LeasePhase::Released { .. }) {
            taken.extend(record.devices.iter().map(|(_, key)| (key.as_str(), *lease)));
        }
    }
    for (runner, desired) in wanted {
        if view.waiting.runners.contains(runner) {
            continue;
        }
        let record = view.ledger.machines.get(runner);
        let elsewhere = record.is_some_and(|record| record.provider != desired.provider)
            || view
                .observed
                .machines
                .keys()
                .any(|(seen, provider)| seen == runner && *provider != desired.provider);
        if elsewhere {
            // Another provider has it; that one goes first.
            continue;
        }
        let seen = view.observed.machines.get(&(*runner, desired.provider.clone()));
        match (record.map(|record| &record.phase), seen) {
            (Some(MachinePhase::Up | MachinePhase::GaveUp { .. } | MachinePhase::Refused { .. }), _) => {}
            // The making was cut short by a crash; asking again is how it goes on.
            (Some(MachinePhase::Claimed), None | Some(ObservedState::Creating)) | (None, None) => {
                if let Some(action) = creation(view, desired, &taken) {
                    if matches!(action, Action::Create { .. })
                        && let Some(lease) = desired.lease
                    {
                        taken.extend(desired.devices.iter().map(|device| (device.key.as_str(), lease)));
                    }
                    actions.push(action);
                }
            }
            (Some(MachinePhase::Claimed) | None, Some(_)) => actions.push(Action::Adopt { runner: *runner }),
        }
    }
}

fn creation(view: &View<'_>, desired: &DesiredRunner, taken: &BTreeSet<(&str, LeaseId)>) -> Option<Action> {
    let runner = desired.runner;
    let refuse = |code: &str, message: String| {
        Some(Action::Refuse { runner, reason: Explanation::new(code, message) })
    };
    if !view.providers.contains(&desired.provider) {
        let message = format!("this site has no provider {}", desired.provider);
        return refuse("site.no_provider", message);
    }
    match desired.lease {
        None if !desired.devices.is_empty() => {
            return refuse("site.no_lease", "devices are asked for without a lease".to_owned());
        }
        Some(lease) => match view.ledger.leases.get(&lease) {
            Some(record) if matches!(record.phase, LeasePhase::Released { .. }) => {
                return refuse("site.lease_ended", format!("{lease} has ended here"));
            }
            Some(record) if record.runner != runner || record.phase != LeasePhase::Held => return None,
            _ => {}
        },
        None => {}
    }
    if view.handing.contains(&desired.provider)
        && let Some(message) = half(view.devices, &desired.devices)
    {
        return refuse("site.half_group", message);
    }
    let conflict = taken.iter().any(|(key, lease)| {
        Some(*lease) != desired.lease && desired.devices.iter().any(|device| device.key == *key)
    });
    let held_back = conflict
        || view.waiting.providers.contains(&desired.provider)
        // Whether the machine is there already cannot be known now.
        || view.observed.unknown.contains(&desired.provider);
    (!held_back).then_some(Action::Create { runner })
}

/// What keeps devices from being handed over to a virtual machine: the farm asks for a part of a group, because it does not know
/// yet how the groups are now, or a group cannot be handed over.
fn half(here: &[DeviceFacts], asked: &[DeviceFacts]) -> Option<String> {
    let known: Vec<&DeviceFacts> = here.iter().collect();
    let wanted = |facts: &DeviceFacts| asked.iter().any(|other| other.key == facts.key);
    groups::units(&known).into_iter().find_map(|unit| {
        let of: Vec<&&DeviceFacts> = unit.devices.iter().filter_map(|place| known.get(*place)).collect();
        let asked = of.iter().filter(|facts| wanted(facts)).count();
        match (asked, unit.trouble.as_ref()) {
            (0, _) => None,
            (_, Some(trouble)) => Some(trouble.clone()),
            (all, None) if all == of.len() => None,
            (some, None) => Some(format!(
                "{some} of {} devices are asked for that move together: {}",
                of.len(),
                groups::members(&unit, &known)
            )),
        }
    })
}

fn leases(view: &View<'_>, wanted: &Wanted<'_>, actions: &mut Vec<Action>) {
    let machine_may_exist = |runner: RunnerId| {
        wanted.contains_key(&runner)
            || view.observed.any(runner)
            || view.ledger.machines.contains_key(&runner)
    };
    for (lease, record) in &view.ledger.leases {
        if view.waiting.leases.contains(lease) {
            continue;
        }
        let asked = view.desired.releasing.iter().any(|releasing| releasing.lease == *lease)
            || view.desired.runners.iter().any(|desired| desired.lease == Some(*lease));
        if matches!(record.phase, LeasePhase::Released { .. }) {
            if view.told.contains(lease) && !asked {
                actions.push(Action::ForgetLease { lease: *lease });
            }
        } else if !machine_may_exist(record.runner) && !view.waiting.runners.contains(&record.runner) {
            actions.push(Action::End {
                lease: *lease,
                runner: record.runner,
                devices: record.devices.clone(),
            });
        }
    }
    for releasing in &view.desired.releasing {
        let lease = releasing.lease;
        if view.ledger.leases.contains_key(&lease) || view.waiting.leases.contains(&lease) {
            continue;
        }
        // The journal does not know this lease: either it was never claimed here, or the journal is a new one. Then
        // only complete lists prove that no machine has the devices.
        let held = view.ledger.leases.values().any(|record| {
            !matches!(record.phase, LeasePhase::Released { .. })
                && record
                    .devices
                    .iter()
                    .any(|(_, key)| releasing.devices.iter().any(|(_, other)| key == other))
        });
        if view.observed.unknown.is_empty()
            && !held
            && !machine_may_exist(releasing.runner)
            && !view.waiting.runners.contains(&releasing.runner)
        {
            actions.push(Action::End { lease, runner: releasing.runner, devices: releasing.devices.clone() });
        }
    }
}

#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod tests;
