//! *Simulated* providers and devices, and crashes at chosen points. A simulated host outlives the site that uses it.

use forgeyard_model::device::DeviceFacts;
use forgeyard_model::name::ProviderName;
use forgeyard_model::resources::{DeviceKind, Flavor, Image, ImageRoot, Limit};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{DesiredRunner, ReleasingLease};
use forgeyard_model::{AttemptId, DeviceId, Id as _, LeaseId, RunnerId, SiteId};
use forgeyard_providers::{Error, MachineSpec, Provider, ProviderFacts};
use forgeyard_site::inventory::{DeviceError, Devices};
use forgeyard_site::ledger;
use forgeyard_site::probe::Probe;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Counts points down and stops the world at zero.
#[derive(Clone, Default)]
pub(crate) struct Crash(Arc<CrashInner>);

#[derive(Default)]
struct CrashInner {
    left: AtomicI64,
    now: Notify,
}

impl Crash {
    /// Crash at the point of this number; 0 = never.
    pub(crate) fn arm(&self, points: i64) {
        self.0.left.store(if points == 0 { i64::MAX } else { points }, Ordering::SeqCst);
    }

    pub(crate) fn never() -> Self {
        let crash = Self::default();
        crash.arm(0);
        crash
    }

    /// A place where the process may die.
    pub(crate) async fn point(&self) {
        tokio::task::yield_now().await;
        if self.0.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.now.notify_one();
            // Whoever got here goes no further in this life.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the crash.
    pub(crate) async fn happens(&self) {
        self.0.now.notified().await;
    }
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) machines: BTreeMap<RunnerId, (Vec<String>, ObservedState)>,
    /// How often each machine was really made.
    pub(crate) made: BTreeMap<RunnerId, u32>,
    pub(crate) asked: u32,
    pub(crate) resets: BTreeMap<String, u32>,
    /// What the next creations do.
    pub(crate) creations: VecDeque<Fault>,
    /// Every creation fails.
    pub(crate) always_fails: bool,
    pub(crate) destroy_leaves: Option<String>,
    pub(crate) list_fails: bool,
    pub(crate) devices: Vec<DeviceFacts>,
    pub(crate) notes: Vec<String>,
    pub(crate) violations: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// An error, and no machine.
    Fails,
    /// An error, and yet a machine.
    MadeAndFails,
    /// The request can never be met.
    CannotEnforce,
}

#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) crash: Crash,
    pub(crate) state_dir: PathBuf,
}

impl Host {
    pub(crate) fn new(state_dir: PathBuf, devices: u32, crash: Crash) -> Self {
        let world = World { devices: (0..devices).map(facts).collect(), ..World::default() };
        Self { world: Arc::new(Mutex::new(world)), crash, state_dir }
    }

    pub(crate) fn with<T>(&self, see: impl FnOnce(&mut World) -> T) -> T {
        see(&mut self.world.lock().unwrap())
    }

    fn violation(&self, what: String) {
        self.with(|world| world.violations.push(what));
    }

    /// What the journal on the disk says at this moment.
    pub(crate) fn journal(&self) -> ledger::Ledger {
        let bytes = std::fs::read(self.state_dir.join("leases.journal")).unwrap_or_default();
        ledger::read(&bytes).unwrap().ledger
    }

    fn leased(&self, runner: RunnerId, key: &str) -> bool {
        self.journal().leases.values().any(|record| {
            record.runner == runner
                && record.phase == ledger::LeasePhase::Held
                && record.devices.iter().any(|(_, other)| other == key)
        })
    }
}

fn failed(action: &'static str, runner: RunnerId) -> Error {
    Error::Failed { action, object: runner.to_string(), source: std::io::Error::other("simulated") }
}

#[async_trait::async_trait]
impl Provider for Host {
    fn name(&self) -> ProviderName {
        "sandbox".parse().unwrap()
    }

    async fn facts(&self) -> Result<ProviderFacts, Error> {
        Ok(ProviderFacts {
            enforces: BTreeSet::from([Limit::Memory]),
            cannot: vec![(Limit::Disk, "simulated".to_owned())],
        })
    }

    async fn create(&self, spec: &MachineSpec) -> Result<(), Error> {
        let runner = spec.runner;
        let keys: Vec<String> = spec.devices.iter().map(|device| device.key.clone()).collect();
        // Before the first touch, the claim must be on the disk.
        if !self.journal().machines.contains_key(&runner) {
            self.violation(format!("{runner} is touched before its claim is on the disk"));
        }
        for key in &keys {
            if !self.leased(runner, key) {
                self.violation(format!("{key} is touched by {runner} without a lease on the disk"));
            }
        }
        self.crash.point().await;
        let fault = self.with(|world| {
            world.asked += 1;
            if world.always_fails { Some(Fault::Fails) } else { world.creations.pop_front() }
        });
        match fault {
            Some(Fault::Fails) => return Err(failed("create", runner)),
            Some(Fault::CannotEnforce) => {
                return Err(Error::CannotEnforce { limit: Limit::Disk, reason: "simulated".to_owned() });
            }
            Some(Fault::MadeAndFails) | None => {}
        }
        self.with(|world| {
            let taken: Vec<String> = world
                .machines
                .iter()
                .filter(|(other, (theirs, _))| {
                    **other != runner && theirs.iter().any(|key| keys.contains(key))
                })
                .map(|(other, _)| format!("{runner} gets a device that {other} has"))
                .collect();
            world.violations.extend(taken);
            if world.machines.insert(runner, (keys.clone(), ObservedState::Creating)).is_none() {
                *world.made.entry(runner).or_default() += 1;
            }
        });
        self.crash.point().await;
        self.with(|world| {
            if let Some((_, state)) = world.machines.get_mut(&runner) {
                *state = ObservedState::Running;
            }
        });
        self.crash.point().await;
        if matches!(fault, Some(Fault::MadeAndFails)) { Err(failed("create", runner)) } else { Ok(()) }
    }

    async fn list(&self) -> Result<Vec<ObservedRunner>, Error> {
        if self.with(|world| world.list_fails) {
            return Err(Error::Program { program: "simulated".to_owned(), reason: "no answer".to_owned() });
        }
        let row = |(runner, (_, state)): (&RunnerId, &(Vec<String>, ObservedState))| ObservedRunner {
            runner: *runner,
            state: state.clone(),
            enforced: BTreeSet::from([Limit::Memory]),
        };
        Ok(self.with(|world| world.machines.iter().map(row).collect()))
    }

    async fn destroy(&self, runner: RunnerId) -> Result<(), Error> {
        self.crash.point().await;
        if let Some(left) = self.with(|world| world.destroy_leaves.clone()) {
            return Err(Error::Left { runner: runner.to_string(), left });
        }
        self.with(|world| world.machines.remove(&runner));
        self.crash.point().await;
        Ok(())
    }
}

#[async_trait::async_trait]
impl Devices for Host {
    async fn probe(&self) -> Result<Probe, DeviceError> {
        self.crash.point().await;
        Ok(self.with(|world| Probe { devices: world.devices.clone(), notes: world.notes.clone() }))
    }

    async fn reset(&self, device: &DeviceFacts) -> Result<(), DeviceError> {
        self.with(|world| {
            if world.machines.values().any(|(keys, _)| keys.contains(&device.key)) {
                world.violations.push(format!("{} is reset while a machine has it", device.key));
            }
            *world.resets.entry(device.key.clone()).or_default() += 1;
        });
        self.crash.point().await;
        Ok(())
    }
}

pub(crate) fn facts(n: u32) -> DeviceFacts {
    DeviceFacts {
        key: format!("opencl:0:{n}"),
        kind: DeviceKind::OpenclCpu,
        model: "simulated device".to_owned(),
        uuid: Some(format!("uuid-{n}")),
        driver: "PoCL 3.1".to_owned(),
        memory_mib: 1024,
        compute_capability: 0,
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    }
}

pub(crate) fn device(n: u32) -> DeviceId {
    DeviceId::derive(SiteId::from_bits(1), &facts(n).key)
}

pub(crate) fn runner(n: u32) -> RunnerId {
    RunnerId::from_bits(n.into())
}

pub(crate) fn lease(n: u32) -> LeaseId {
    LeaseId::from_bits(n.into())
}

/// Runner `n` with a lease of the same number where it has devices.
pub(crate) fn wanted(n: u32, devices: &[u32]) -> DesiredRunner {
    DesiredRunner {
        runner: runner(n),
        provider: "sandbox".parse().unwrap(),
        flavor: Flavor {
            name: "small".parse().unwrap(),
            cpu_millis: 1000,
            memory_mib: 64,
            disk_mib: 64,
            processes: 8,
            time_limit_seconds: 60,
            gpu: None,
            network: false,
        },
        image: Image { name: "host".parse().unwrap(), root: ImageRoot::Host { allow: Vec::new() } },
        attempt: Some(AttemptId::from_bits(n.into())),
        devices: devices.iter().map(|n| facts(*n)).collect(),
        lease: (!devices.is_empty()).then(|| lease(n)),
        needs: BTreeSet::new(),
        token: "one-shot".to_owned(),
        keep: false,
    }
}

pub(crate) fn releasing(n: u32, devices: &[u32]) -> ReleasingLease {
    let devices = devices.iter().map(|n| (device(*n), facts(*n).key)).collect();
    ReleasingLease { lease: lease(n), runner: runner(n), devices }
}
