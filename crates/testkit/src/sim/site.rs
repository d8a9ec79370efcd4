//! A *simulated* site with *simulated* hardware. What the hardware does is the truth that invariants look at.

use super::Bug;
use super::agent::Agent;
use super::control::Control;
use crate::build;
use crate::rng::Rng;
use forgeyard_engine::desired::{TokenOf, desired};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::resources::{DeviceKind, Limit};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{DesiredSet, HostFacts, ObservedLease, SiteReport};
use forgeyard_model::{AttemptId, Digest, Explanation, Id, LeaseId, RunnerId, SiteId};
use std::collections::{BTreeMap, BTreeSet};

/// A *simulated* machine: it exists whatever anybody believes.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The attempt that it was made for; absent when it was made before there was work.
    pub attempt: Option<AttemptId>,
    /// Keys of devices that it uses.
    pub devices: Vec<String>,
    /// The lease that gave it the devices.
    pub lease: Option<LeaseId>,
    /// Its agent; absent when it died.
    pub agent: Option<Agent>,
}

/// The site and its hardware.
#[derive(Debug)]
pub struct Site {
    /// Its id, once joined.
    pub id: Option<SiteId>,
    desired: Option<DesiredSet>,
    /// Wishes that were replaced; looked at only under a planted bug.
    replaced: Vec<DesiredSet>,
    /// Machines that exist.
    pub machines: BTreeMap<RunnerId, Machine>,
    /// Machines that the site knows of; differs from what exists only under a planted bug.
    known: BTreeSet<RunnerId>,
    /// The site's journal: leases that it touched.
    leases: BTreeMap<LeaseId, Phase>,
    /// Devices that a machine used and that were not reset since.
    dirty: BTreeMap<String, LeaseId>,
    /// Something that must never happen to hardware.
    harm: Option<String>,
    devices: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    Resetting,
    Verifying,
    Released,
}

impl Site {
    /// A site with this many devices.
    pub fn new(devices: u32) -> Self {
        let (machines, known, leases, dirty) = Default::default();
        let (id, desired, replaced) = Default::default();
        Self { id, desired, replaced, machines, known, leases, dirty, harm: None, devices }
    }

    /// Joins once.
    pub fn join(&mut self, control: &mut Control, rng: &mut Rng) {
        if self.id.is_none() {
            let input = Input::SiteJoined {
                name: build::name("box"),
                token: Digest::of(b"simulated"),
                public_key: "simulated".to_owned(),
            };
            if let Ok(Reply::Site { site }) = control.give(input, rng) {
                self.id = Some(site);
            }
        }
    }

    /// Fetches the desired set. An older epoch than the one that it has is refused.
    pub fn fetch(&mut self, control: &Control) {
        let Some(id) = self.id else { return };
        let fetched = desired(&control.farm, id, |of| match of {
            TokenOf::Attempt(attempt) => attempt.id.to_string(),
            TokenOf::Runner(runner) => runner.id.to_string(),
        });
        let newer = |set: &DesiredSet| self.desired.as_ref().is_none_or(|known| set.epoch >= known.epoch);
        if let Some(set) = fetched.filter(newer) {
            self.replaced.clear();
            self.replaced.extend(self.desired.replace(set));
        }
    }

    /// Takes one step towards the desired set.
    pub fn act(&mut self, bug: Option<Bug>, rng: &mut Rng) {
        // The planted bug.
        if bug == Some(Bug::ObeyOldWishes)
            && rng.chance(30)
            && let Some(old) = self.replaced.pop()
        {
            self.approach(&old, bug, rng);
            return self.replaced.push(old);
        }
        let Some(set) = self.desired.take() else { return };
        self.approach(&set, bug, rng);
        self.desired = Some(set);
    }

    fn approach(&mut self, set: &DesiredSet, bug: Option<Bug>, rng: &mut Rng) {
        let mut steps: Vec<Step> = Vec::new();
        for runner in &set.runners {
            if !self.known.contains(&runner.runner) {
                steps.push(Step::Create(runner.runner));
            }
        }
        for known in &self.known {
            if !set.runners.iter().any(|runner| runner.runner == *known) {
                steps.push(Step::Destroy(*known));
            }
        }
        for lease in &set.releasing {
            let gone = !self.known.contains(&lease.runner) || bug == Some(Bug::ReleaseBeforeGone);
            if gone && self.leases.get(&lease.lease) != Some(&Phase::Released) {
                steps.push(Step::Release(lease.lease));
            }
        }
        match rng.pick(&steps) {
            Some(Step::Create(id)) => {
                let Some(wanted) = set.runners.iter().find(|runner| runner.runner == *id) else { return };
                if let Some(lease) = wanted.lease {
                    self.leases.insert(lease, Phase::Held);
                }
                let agent = Agent::new(wanted.attempt, *id, rng);
                let devices: Vec<String> = wanted.devices.iter().map(|facts| facts.key.clone()).collect();
                for key in &devices {
                    let before = wanted.lease.and_then(|lease| self.dirty.insert(key.clone(), lease));
                    if let Some(before) = before.filter(|before| Some(*before) != wanted.lease) {
                        self.harm = Some(format!("{key} is used again without a reset after {before}"));
                    }
                }
                let machine =
                    Machine { attempt: wanted.attempt, devices, lease: wanted.lease, agent: Some(agent) };
                self.machines.insert(*id, machine);
                self.known.insert(*id);
            }
            Some(Step::Destroy(id)) => {
                self.machines.remove(id);
                self.known.remove(id);
            }
            Some(Step::Release(lease)) => {
                let user = self.machines.iter().find(|(_, machine)| machine.lease == Some(*lease));
                if let Some((runner, _)) = user {
                    self.harm = Some(format!("the devices of {lease} are reset while {runner} uses them"));
                }
                let next = match self.leases.get(lease) {
                    // The planted bug.
                    Some(_) if bug == Some(Bug::SkipReset) => Phase::Released,
                    Some(Phase::Held) => Phase::Resetting,
                    Some(Phase::Resetting) => Phase::Verifying,
                    // A lease that it never touched has nothing to reset.
                    Some(Phase::Verifying | Phase::Released) | None => Phase::Released,
                };
                if next == Phase::Released && bug != Some(Bug::SkipReset) {
                    self.dirty.retain(|_, by| by != lease);
                }
                self.leases.insert(*lease, next);
            }
            None => {}
        }
    }

    /// What it would report now.
    pub fn report(&self) -> Option<Input> {
        let set = self.desired.as_ref()?;
        let sick = Vec::new;
        let leases = self.leases.iter().map(|(lease, phase)| match phase {
            Phase::Held => ObservedLease::Held { lease: *lease },
            Phase::Resetting => ObservedLease::Resetting { lease: *lease },
            Phase::Verifying => ObservedLease::Verifying { lease: *lease },
            Phase::Released => ObservedLease::Released { lease: *lease, sick: sick() },
        });
        let runners = self.known.iter().map(|id| {
            let alive = self.machines.get(id).is_some_and(|machine| machine.agent.is_some());
            let reason = || Explanation::new("simulated.agent_gone", "the agent died");
            let state =
                if alive { ObservedState::Running } else { ObservedState::Exited { reason: reason() } };
            ObservedRunner { runner: *id, state, enforced: BTreeSet::new() }
        });
        Some(Input::SiteReported {
            site: self.id?,
            report: Box::new(SiteReport {
                epoch: set.epoch,
                generation: set.generation,
                host: host(),
                devices: (0..self.devices).map(device).collect(),
                runners: runners.collect(),
                leases: leases.collect(),
            }),
        })
    }

    /// Dies and comes back: machines live on, the desired set is fetched anew.
    pub fn restart(&mut self, bug: Option<Bug>) {
        self.desired = None;
        // The planted bugs.
        let adopts = |machine: &Machine| match bug {
            Some(Bug::ForgetMachines) => false,
            Some(Bug::ForgetWarm) => machine.attempt.is_some(),
            _ => true,
        };
        self.known = self.machines.iter().filter(|(_, machine)| adopts(machine)).map(|(id, _)| *id).collect();
    }

    /// What the hardware does that it must not do.
    pub fn trouble(&self) -> Option<String> {
        let mut seen = BTreeSet::new();
        let mut used = self.machines.values().flat_map(|machine| &machine.devices);
        let twice = used.find(|key| !seen.insert(key.as_str()));
        twice.map(|key| format!("two machines use {key}")).or_else(|| self.harm.clone())
    }
}

enum Step {
    Create(RunnerId),
    Destroy(RunnerId),
    Release(LeaseId),
}

fn device(index: u32) -> DeviceFacts {
    DeviceFacts {
        key: format!("simulated:{index}"),
        kind: DeviceKind::OpenclCpu,
        model: "simulated".to_owned(),
        uuid: None,
        driver: "simulated".to_owned(),
        memory_mib: 1024,
        compute_capability: 0,
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    }
}

fn host() -> HostFacts {
    HostFacts {
        host: "box".to_owned(),
        cpu_millis: 8000,
        memory_mib: 8192,
        kernel: "simulated".to_owned(),
        providers: [build::name("sandbox")].into(),
        enforces: [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network]
            .into(),
        cannot: Vec::new(),
    }
}

/// The key of a device as the farm names it.
pub(super) fn device_id(site: SiteId, key: &str) -> forgeyard_model::DeviceId {
    forgeyard_model::DeviceId::derive(site, key)
}
