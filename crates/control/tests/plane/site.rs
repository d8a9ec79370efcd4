//! A *simulated* site: it speaks `/site/v1` with the real client, says of every machine that it runs, and makes none.

use super::Plane;
use forgeyard_api::client::site::SiteClient;
use forgeyard_api::client::{ClientError, HttpOptions};
use forgeyard_api::site::{DesiredQuery, DesiredSet, Join, Reported, SiteReport, VERSION};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::{DeviceKind, Limit};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{HostFacts, ObservedLease};
use forgeyard_model::{Explanation, LeaseId, RunnerId, Secret};
use forgeyard_testkit::build::name;
use std::collections::{BTreeMap, BTreeSet};

/// The site.
pub struct Site {
    pub client: SiteClient,
    machines: BTreeSet<RunnerId>,
    exited: BTreeSet<RunnerId>,
    leases: BTreeMap<LeaseId, ObservedLease>,
}

pub fn limits() -> BTreeSet<Limit> {
    [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network].into()
}

pub fn host() -> HostFacts {
    HostFacts {
        host: "simulated".to_owned(),
        cpu_millis: 64_000,
        memory_mib: 65_536,
        kernel: "simulated".to_owned(),
        providers: [name("sandbox")].into(),
        enforces: limits(),
        cannot: Vec::new(),
    }
}

pub fn device() -> DeviceFacts {
    DeviceFacts {
        key: "simulated:0".to_owned(),
        kind: DeviceKind::OpenclCpu,
        model: "simulated".to_owned(),
        uuid: None,
        driver: "simulated".to_owned(),
        memory_mib: 4096,
        compute_capability: 0,
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    }
}

pub fn join_request(join_token: &str) -> Join {
    Join {
        version: VERSION,
        name: name("box"),
        join_token: join_token.to_owned(),
        public_key: "ab".repeat(32),
    }
}

impl Site {
    /// Joins and reports for the first time.
    pub async fn join(plane: &Plane) -> Self {
        let client = SiteClient::new(&plane.url, &HttpOptions::default()).unwrap();
        let joined = client.join(&join_request(&plane.join_token)).await.unwrap();
        let client = client.with_token(Secret::new(joined.token));
        let mut site =
            Self { client, machines: BTreeSet::new(), exited: BTreeSet::new(), leases: BTreeMap::new() };
        site.turn().await;
        site
    }

    pub async fn desired(&self) -> Result<DesiredSet, ClientError> {
        self.client.desired(&DesiredQuery { after: 0, epoch: 0, wait_seconds: 0 }).await
    }

    /// Lets a machine end by itself.
    pub fn exit(&mut self, runner: RunnerId) {
        self.exited.insert(runner);
    }

    /// What it would report, working from this set.
    pub fn report_for(&self, set: &DesiredSet) -> SiteReport {
        let state = |runner| match self.exited.contains(runner) {
            true => ObservedState::Exited { reason: Explanation::new("simulated.exited", "simulated") },
            false => ObservedState::Running,
        };
        let runners = self.machines.iter().map(|runner| ObservedRunner {
            runner: *runner,
            state: state(runner),
            enforced: limits(),
        });
        SiteReport {
            epoch: set.epoch,
            generation: set.generation,
            host: host(),
            devices: vec![device()],
            runners: runners.collect(),
            leases: self.leases.values().cloned().collect(),
        }
    }

    /// Does as if it made the desired set so. Gives the set and the report that belongs to it.
    pub async fn follow(&mut self) -> Result<(DesiredSet, SiteReport), ClientError> {
        let set = self.desired().await?;
        self.machines = set.runners.iter().map(|runner| runner.runner).collect();
        for lease in set.runners.iter().filter_map(|runner| runner.lease) {
            self.leases.insert(lease, ObservedLease::Held { lease });
        }
        for lease in &set.releasing {
            let lease = lease.lease;
            self.leases.insert(lease, ObservedLease::Released { lease, sick: Vec::new() });
        }
        let report = self.report_for(&set);
        Ok((set, report))
    }

    pub async fn report(&self, report: &SiteReport) -> Result<Reported, ClientError> {
        self.client.report(report).await
    }

    /// One turn: fetch, follow, report.
    pub async fn turn(&mut self) -> DesiredSet {
        let (set, report) = self.follow().await.unwrap();
        self.report(&report).await.unwrap();
        set
    }
}
