//! Sample rows of sites, their devices and machines, and of attempts on them.

use super::{AWKWARD, Samples, parsed, pick, reason, stake, verdict};
use forgeyard_model::attempt::{Attempt, AttemptState, TokenState};
use forgeyard_model::device::{Device, DeviceFacts, DeviceState};
use forgeyard_model::job::Job;
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::resources::{DeviceKind, Flavor, Image, ImageRoot};
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::site::{HostFacts, Site};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{AttemptId, DeviceId, Digest};
use std::collections::BTreeSet;

impl Samples {
    /// A site.
    pub fn site(&mut self) -> Site {
        let number = self.number();
        let host = HostFacts {
            host: "box".to_owned(),
            cpu_millis: 14_000,
            memory_mib: 65_536,
            kernel: "6.1".to_owned(),
            providers: BTreeSet::from([parsed("sandbox")]),
            enforces: BTreeSet::new(),
            cannot: Vec::new(),
        };
        Site {
            id: self.id(),
            name: parsed(&format!("site-{number}")),
            token: Digest::of(&number.to_be_bytes()),
            public_key: "00ff".to_owned(),
            host: number.is_multiple_of(2).then_some(host),
            heard_at: Some(self.at()),
            draining_since: None,
            desired_generation: number,
            joined_at: self.at(),
            generation: 1,
        }
    }

    /// A device of a site.
    pub fn device(&mut self, site: &Site) -> Device {
        let number = self.number();
        let lease = self.id();
        Device {
            id: self.id(),
            site: site.id,
            facts: DeviceFacts {
                key: format!("pci:{number:04x}:00:00.0"),
                kind: pick(number, vec![DeviceKind::Nvidia, DeviceKind::Amd, DeviceKind::OpenclCpu]),
                model: AWKWARD.to_owned(),
                uuid: None,
                driver: "550.1".to_owned(),
                memory_mib: 20_480,
                compute_capability: 89,
                iommu_group: Some(12),
                moves_with: Vec::new(),
                numa_node: Some(0),
                nodes: vec!["/dev/nvidia0".to_owned()],
            },
            state: pick(
                number,
                vec![
                    DeviceState::Ready,
                    DeviceState::Leased { lease },
                    DeviceState::Resetting { lease },
                    DeviceState::Verifying { lease },
                    DeviceState::Quarantined { reason: reason("device.sick") },
                ],
            ),
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A runner for an attempt that is made with [`Samples::attempt`].
    pub fn runner(&mut self, site: &Site, attempt: AttemptId) -> Runner {
        Runner {
            id: self.id(),
            site: site.id,
            pool: parsed("pool"),
            provider: parsed("sandbox"),
            flavor: parsed("small"),
            image: parsed("host"),
            shape: Flavor {
                name: parsed("small"),
                cpu_millis: 1000,
                memory_mib: 512,
                disk_mib: 512,
                processes: 64,
                time_limit_seconds: 60,
                gpu: None,
                network: false,
            },
            boots: Image { name: parsed("host"), root: ImageRoot::Host { allow: vec!["/opt/x".to_owned()] } },
            work: RunnerWork::Attempt(attempt),
            registration: None,
            state: RunnerState::Requested,
            requested_at: self.at(),
            seen_at: None,
            unwanted_from: 7,
            outdated_at: None,
            ready_at: None,
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A placed attempt at a job on a runner.
    pub fn attempt(&mut self, job: &Job, runner: &Runner, fence: u32) -> Attempt {
        let number = self.number();
        let nonce = "n".to_owned();
        Attempt {
            id: runner.work.attempt().expect("a runner of an attempt"),
            job: job.id,
            owner: job.owner,
            account: job.account.clone(),
            stake: number.is_multiple_of(2).then(|| Box::new(stake())),
            fence,
            runner: runner.id,
            site: runner.site,
            lease: None,
            token: pick(
                number,
                vec![
                    TokenState::Unused,
                    TokenState::Redeemed { nonce: nonce.clone() },
                    TokenState::Closed { nonce },
                ],
            ),
            state: AttemptState::Placed,
            placed_at: self.at(),
            started_at: None,
            ended_at: None,
            heard_at: None,
            step: None,
            outcome: None,
            facts: number.is_multiple_of(2).then(Default::default),
            verdict: number.is_multiple_of(3).then(|| verdict(Outcome::Lost)),
            artifacts: Vec::new(),
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }

    /// A claimed lease of an attempt.
    pub fn lease(&mut self, attempt: &Attempt, devices: Vec<DeviceId>) -> Lease {
        Lease {
            id: self.id(),
            site: attempt.site,
            attempt: Some(attempt.id),
            runner: attempt.runner,
            devices,
            state: LeaseState::Claimed,
            claimed_at: self.at(),
            held_at: None,
            ended_at: None,
            since: self.at(),
            deadline: None,
            generation: 1,
        }
    }
}
