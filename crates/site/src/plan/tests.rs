mod properties;

use super::*;
use crate::ledger::{LeaseRecord, MachineRecord};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::{DeviceKind, Flavor, Image, ImageRoot};
use forgeyard_model::site::ReleasingLease;
use forgeyard_model::{AttemptId, Id as _};
use proptest::prelude::*;

pub(super) fn runner(n: u8) -> RunnerId {
    RunnerId::from_bits(n.into())
}

fn lease(n: u8) -> LeaseId {
    LeaseId::from_bits(n.into())
}

pub(super) fn provider(n: u8) -> ProviderName {
    ["sandbox", "qemu"][usize::from(n)].parse().unwrap()
}

fn key(n: u8) -> String {
    format!("opencl:0:{n}")
}

fn ids(devices: &[u8]) -> Vec<(DeviceId, String)> {
    devices.iter().map(|n| (DeviceId::from_bits((*n).into()), key(*n))).collect()
}

pub(super) fn facts(n: u8) -> DeviceFacts {
    DeviceFacts {
        key: key(n),
        kind: DeviceKind::OpenclCpu,
        model: "simulated".to_owned(),
        uuid: None,
        driver: "PoCL 3.1".to_owned(),
        memory_mib: 1,
        compute_capability: 0,
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    }
}

/// Runner `n` with lease `n`, where it has devices.
pub(super) fn wanted(n: u8, of: u8, devices: &[u8]) -> DesiredRunner {
    DesiredRunner {
        runner: runner(n),
        provider: provider(of),
        flavor: Flavor {
            name: "small".parse().unwrap(),
            cpu_millis: 1000,
            memory_mib: 1,
            disk_mib: 1,
            processes: 1,
            time_limit_seconds: 1,
            gpu: None,
            network: false,
        },
        image: Image { name: "host".parse().unwrap(), root: ImageRoot::Host { allow: Vec::new() } },
        attempt: Some(AttemptId::from_bits(n.into())),
        devices: devices.iter().map(|n| facts(*n)).collect(),
        lease: (!devices.is_empty()).then(|| lease(n)),
        needs: BTreeSet::new(),
        token: "t".to_owned(),
        keep: false,
    }
}

fn releasing(n: u8, devices: &[u8]) -> ReleasingLease {
    ReleasingLease { lease: lease(n), runner: runner(n), devices: ids(devices) }
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) desired: DesiredSet,
    observed: Observed,
    pub(super) ledger: Ledger,
    waiting: Waiting,
    pub(super) devices: Vec<DeviceFacts>,
}

impl World {
    pub(super) fn new(runners: Vec<DesiredRunner>) -> Self {
        Self {
            desired: DesiredSet { epoch: 1, generation: 1, runners, releasing: Vec::new() },
            observed: Observed::default(),
            ledger: Ledger::default(),
            waiting: Waiting::default(),
            devices: Vec::new(),
        }
    }

    fn seen(mut self, n: u8, of: u8, state: ObservedState) -> Self {
        self.observed.machines.insert((runner(n), provider(of)), state);
        self
    }

    fn machine(mut self, n: u8, of: u8, phase: MachinePhase) -> Self {
        self.ledger.machines.insert(runner(n), MachineRecord { provider: provider(of), phase });
        self
    }

    fn lease(mut self, n: u8, devices: &[u8], phase: LeasePhase) -> Self {
        self.ledger.leases.insert(lease(n), LeaseRecord { runner: runner(n), devices: ids(devices), phase });
        self
    }

    fn releasing(mut self, n: u8, devices: &[u8]) -> Self {
        self.desired.releasing.push(releasing(n, devices));
        self
    }

    pub(super) fn plan(&self) -> Vec<Action> {
        let released = self
            .ledger
            .leases
            .iter()
            .filter(|(_, record)| matches!(record.phase, LeasePhase::Released { .. }));
        plan(&View {
            desired: &self.desired,
            observed: &self.observed,
            ledger: &self.ledger,
            providers: &BTreeSet::from([provider(0), provider(1)]),
            handing: &BTreeSet::from([provider(1)]),
            devices: &self.devices,
            waiting: &self.waiting,
            told: &released.map(|(lease, _)| *lease).collect(),
        })
    }

    fn claim(&mut self, runner: RunnerId) {
        let desired = self.desired.runners.iter().find(|desired| desired.runner == runner).unwrap().clone();
        if let Some(lease) = desired.lease {
            let devices =
                desired.devices.iter().map(|device| (DeviceId::from_bits(1), device.key.clone())).collect();
            self.ledger.leases.entry(lease).or_insert(LeaseRecord {
                runner,
                devices,
                phase: LeasePhase::Held,
            });
        }
        let record = MachineRecord { provider: desired.provider.clone(), phase: MachinePhase::Up };
        self.ledger.machines.insert(runner, record);
        self.observed.machines.entry((runner, desired.provider)).or_insert(ObservedState::Running);
    }

    /// What happens when an action succeeds.
    pub(super) fn apply(&mut self, action: &Action) {
        match action {
            Action::Create { runner } | Action::Adopt { runner } => {
                self.observed
                    .machines
                    .retain(|(seen, _), state| seen != runner || *state != ObservedState::Creating);
                self.claim(*runner);
            }
            Action::Refuse { runner, reason } => {
                let desired = self.desired.runners.iter().find(|desired| desired.runner == *runner).unwrap();
                let reason = reason.clone();
                let phase = match self.ledger.machines.contains_key(runner) {
                    true => MachinePhase::GaveUp { reason },
                    false => MachinePhase::Refused { reason },
                };
                self.ledger
                    .machines
                    .insert(*runner, MachineRecord { provider: desired.provider.clone(), phase });
            }
            Action::Destroy { runner, provider } => {
                self.observed.machines.remove(&(*runner, provider.clone()));
                if self.ledger.machines.get(runner).is_some_and(|record| record.provider == *provider) {
                    self.ledger.machines.remove(runner);
                }
            }
            Action::Forget { runner } => {
                self.ledger.machines.remove(runner);
            }
            Action::End { lease, runner, devices } => {
                let phase = LeasePhase::Released { sick: Vec::new() };
                self.ledger
                    .leases
                    .insert(*lease, LeaseRecord { runner: *runner, devices: devices.clone(), phase });
            }
            Action::ForgetLease { lease } => {
                self.ledger.leases.remove(lease);
            }
        }
    }

    fn check(&self, actions: &[Action]) -> Result<(), TestCaseError> {
        let (mut runners, mut leases, mut given) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for action in actions {
            match action {
                Action::Create { runner } => {
                    prop_assert!(runners.insert(*runner));
                    let desired =
                        self.desired.runners.iter().find(|desired| desired.runner == *runner).unwrap();
                    prop_assert!(desired.devices.is_empty() || desired.lease.is_some());
                    for device in &desired.devices {
                        prop_assert!(given.insert(device.key.clone()), "a device is given twice in one plan");
                        let other = self.ledger.leases.iter().find(|(lease, record)| {
                            Some(**lease) != desired.lease
                                && !matches!(record.phase, LeasePhase::Released { .. })
                                && record.devices.iter().any(|(_, key)| *key == device.key)
                        });
                        prop_assert!(other.is_none(), "a leased device is given to another machine");
                    }
                    prop_assert!(
                        !self.observed.unknown.contains(&desired.provider),
                        "created without knowing what is there"
                    );
                }
                Action::Adopt { runner } => {
                    prop_assert!(runners.insert(*runner));
                    prop_assert!(self.observed.any(*runner));
                }
                Action::Refuse { runner, .. } | Action::Forget { runner } => {
                    prop_assert!(runners.insert(*runner))
                }
                Action::Destroy { runner, provider } => {
                    runners.insert(*runner);
                    let wanted = self
                        .desired
                        .runners
                        .iter()
                        .any(|desired| desired.runner == *runner && desired.provider == *provider);
                    prop_assert!(!wanted, "a wanted machine is destroyed");
                }
                Action::End { lease, runner, .. } => {
                    prop_assert!(leases.insert(*lease));
                    prop_assert!(!self.observed.any(*runner), "a lease is ended while its machine is seen");
                    prop_assert!(
                        !self.ledger.machines.contains_key(runner),
                        "a lease is ended while its machine may exist"
                    );
                    prop_assert!(!self.desired.runners.iter().any(|desired| desired.runner == *runner));
                }
                Action::ForgetLease { lease } => {
                    prop_assert!(leases.insert(*lease));
                    let free = matches!(self.ledger.leases[lease].phase, LeasePhase::Released { .. });
                    prop_assert!(free, "a lease that is not free is struck out");
                }
            }
        }
        prop_assert!(runners.is_disjoint(&self.waiting.runners) && leases.is_disjoint(&self.waiting.leases));
        Ok(())
    }
}

fn why() -> Explanation {
    Explanation::new("x", "y")
}

fn exited() -> ObservedState {
    ObservedState::Exited { reason: why() }
}

fn create(n: u8) -> Action {
    Action::Create { runner: runner(n) }
}

fn destroy(n: u8, of: u8) -> Action {
    Action::Destroy { runner: runner(n), provider: provider(of) }
}

fn end(n: u8, devices: &[u8]) -> Action {
    Action::End { lease: lease(n), runner: runner(n), devices: ids(devices) }
}

#[test]
fn table_of_situations() {
    use LeasePhase::{Held, Resetting, Verifying};
    use MachinePhase::{Claimed, GaveUp, Refused, Up};
    use ObservedState::{Creating, Running};
    let none = || World::new(Vec::new());
    let one = || World::new(vec![wanted(1, 0, &[])]);
    let gpu = || World::new(vec![wanted(1, 0, &[7])]);
    let released = || LeasePhase::Released { sick: Vec::new() };
    let cases: Vec<(&str, World, Vec<Action>)> = vec![
        ("nothing is asked, nothing is there", none(), vec![]),
        ("a wanted machine is made", one(), vec![create(1)]),
        ("a wanted machine with a device is made", gpu(), vec![create(1)]),
        (
            "a claimed machine that no list shows is asked for again",
            one().machine(1, 0, Claimed),
            vec![create(1)],
        ),
        (
            "a machine whose making was cut short is asked for again",
            one().machine(1, 0, Claimed).seen(1, 0, Creating),
            vec![create(1)],
        ),
        (
            "a machine that was made by an answer that got lost is adopted",
            one().machine(1, 0, Claimed).seen(1, 0, Running),
            vec![Action::Adopt { runner: runner(1) }],
        ),
        (
            "a wanted machine that the journal does not know is adopted",
            one().seen(1, 0, Running),
            vec![Action::Adopt { runner: runner(1) }],
        ),
        (
            "a machine that is as it should be is left alone",
            one().machine(1, 0, Up).seen(1, 0, Running),
            vec![],
        ),
        (
            "a wanted machine that ended stays: the farm decides",
            one().machine(1, 0, Up).seen(1, 0, exited()),
            vec![],
        ),
        ("a machine that vanished is not made a second time", one().machine(1, 0, Up), vec![]),
        (
            "a machine that was given up is not tried again",
            one().machine(1, 0, GaveUp { reason: why() }),
            vec![],
        ),
        (
            "a machine with our tag that nobody wants is destroyed",
            none().seen(2, 0, Running),
            vec![destroy(2, 0)],
        ),
        (
            "a machine that ended and that nobody wants is destroyed",
            none().seen(2, 0, exited()),
            vec![destroy(2, 0)],
        ),
        (
            "a claim that nobody wants is cleared though no list shows it",
            none().machine(2, 0, Claimed),
            vec![destroy(2, 0)],
        ),
        (
            "a refused machine that nobody wants is struck out untouched",
            none().machine(2, 0, Refused { reason: why() }),
            vec![Action::Forget { runner: runner(2) }],
        ),
        ("a machine of another provider goes first", one().seen(1, 1, Running), vec![destroy(1, 1)]),
        (
            "a lease is not ended while its machine is listed",
            none().lease(1, &[7], Held).releasing(1, &[7]).seen(1, 0, exited()),
            vec![destroy(1, 0)],
        ),
        (
            "a lease is not ended while its machine may be there",
            none().lease(1, &[7], Held).releasing(1, &[7]).machine(1, 0, Up),
            vec![destroy(1, 0)],
        ),
        (
            "a lease whose machine is gone is ended",
            none().lease(1, &[7], Held).releasing(1, &[7]),
            vec![end(1, &[7])],
        ),
        (
            "a lease that the farm no longer names is ended too",
            none().lease(1, &[7], Held),
            vec![end(1, &[7])],
        ),
        (
            "an ending that was cut short goes on",
            none().lease(1, &[7], Resetting).releasing(1, &[7]),
            vec![end(1, &[7])],
        ),
        (
            "a verifying that was cut short goes on",
            none().lease(1, &[7], Verifying).releasing(1, &[7]),
            vec![end(1, &[7])],
        ),
        (
            "a released lease is kept while the farm names it",
            none().lease(1, &[7], released()).releasing(1, &[7]),
            vec![],
        ),
        (
            "a released lease of which the farm was told is struck out",
            none().lease(1, &[7], released()),
            vec![Action::ForgetLease { lease: lease(1) }],
        ),
        (
            "a lease that the journal does not know is ended when asked",
            none().releasing(3, &[7]),
            vec![end(3, &[7])],
        ),
        (
            "a lease is not ended while the farm wants its machine",
            gpu().lease(1, &[7], Held).releasing(1, &[7]).machine(1, 0, Up).seen(1, 0, Running),
            vec![],
        ),
        (
            "a device that is still leased is not given away",
            gpu().lease(2, &[7], Resetting),
            vec![end(2, &[7])],
        ),
        (
            "two machines do not get one device",
            World::new(vec![wanted(1, 0, &[7]), wanted(2, 0, &[7])]),
            vec![create(1)],
        ),
    ];
    for (claim, world, expected) in cases {
        assert_eq!(world.plan(), expected, "{claim}");
    }
}

#[test]
fn what_cannot_be_made_is_refused_with_its_reason() {
    let mut stranger = wanted(1, 0, &[]);
    stranger.provider = "openstack".parse().unwrap();
    let mut unleased = wanted(1, 0, &[7]);
    unleased.lease = None;
    let ended =
        World::new(vec![wanted(1, 0, &[7])]).lease(1, &[7], LeasePhase::Released { sick: Vec::new() });
    for (world, code) in [
        (World::new(vec![stranger]), "site.no_provider"),
        (World::new(vec![unleased]), "site.no_lease"),
        (ended, "site.lease_ended"),
    ] {
        let plan = world.plan();
        assert!(
            matches!(plan.as_slice(), [Action::Refuse { reason, .. }] if reason.code == code),
            "{code}: {plan:?}"
        );
    }
}

#[test]
fn a_kept_machine_stays_after_its_end() {
    let mut kept = wanted(1, 0, &[7]);
    kept.keep = true;
    let world = World::new(vec![kept]).machine(1, 0, MachinePhase::Up).lease(1, &[7], LeasePhase::Held).seen(
        1,
        0,
        exited(),
    );
    assert_eq!(world.plan(), []);
}

#[test]
fn while_a_provider_does_not_answer_nothing_is_made_there_and_unknown_leases_stay() {
    let mut world = World::new(vec![wanted(1, 0, &[])]).releasing(3, &[7]);
    world.observed.unknown.insert(provider(0));
    assert_eq!(world.plan(), []);
}
