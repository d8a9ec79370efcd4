//! A yard for tests of the queue: one *simulated* site, *simulated* machines that end when a test says so, and jobs of
//! several repositories that are put into the queue as they are. What is decided is decided by the engine.

use crate::decide::decide;
use crate::queue::reserve::{Look, Reservation};
use crate::{Ctx, Farm};
use forgeyard_model::account::{RepositoryKey, WorkClass};
use forgeyard_model::commit::{Commit, UsageFact};
use forgeyard_model::config::{FarmConfig, Flavors, RepositoryConfig};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::job::{Job, JobKind, JobSpec, JobState};
use forgeyard_model::ledger::{Entry, LedgerRow, RunTimes};
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::resources::{DeviceKind, Flavor, GpuRequest, Image, ImageRoot, Isolation, Limit, Pool};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{HostFacts, ObservedLease, SiteReport};
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{Digest, Id, JobId, Lane, Owner, PipelineId, PrincipalId, SiteId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A job of the yard.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) repository: u64,
    pub(super) owner: &'static str,
    pub(super) person: u64,
    pub(super) class: WorkClass,
    pub(super) key: String,
    pub(super) flavor: &'static str,
    pub(super) gpus: u32,
}

impl Wish {
    /// A job of a repository that needs no device.
    pub(super) fn of(repository: u64) -> Self {
        Self {
            repository,
            owner: "octo",
            person: 100 + repository,
            class: WorkClass::Postsubmit,
            key: "work".to_owned(),
            flavor: "small",
            gpus: 0,
        }
    }

    /// One that needs devices.
    pub(super) fn gpus(repository: u64, gpus: u32) -> Self {
        Self { gpus, flavor: "gpu", ..Self::of(repository) }
    }
}

pub(super) struct Yard {
    pub(super) farm: Farm,
    pub(super) config: FarmConfig,
    pub(super) now: Timestamp,
    pub(super) usage: Vec<UsageFact>,
    /// IOMMU groups of the devices, where they are to have some: then they are real GPUs for the engine, still *simulated*.
    groups: Vec<u32>,
    site: SiteId,
    devices: u32,
    seq: u64,
    jobs: u64,
}

fn flavor(name: &str, gpu: bool) -> Flavor {
    Flavor {
        name: name.parse().unwrap(),
        cpu_millis: 1000,
        memory_mib: 1024,
        disk_mib: 1024,
        processes: 512,
        time_limit_seconds: 3600,
        gpu: gpu.then_some(gpus(1)),
        network: false,
    }
}

fn gpus(count: u32) -> GpuRequest {
    GpuRequest { count, kind: None, min_memory_mib: 0, min_compute_capability: 0 }
}

/// A pool that starts as many machines at once as it may have.
fn pool() -> Pool {
    let name = |text: &str| text.parse().unwrap();
    let mut pool = Pool::new(
        "pool".parse().unwrap(),
        "sandbox".parse().unwrap(),
        [name("small"), name("gpu")].into(),
        "host".parse().unwrap(),
        Isolation::SharedKernel,
        1000,
    );
    pool.launches.burst = 1000;
    pool
}

pub(super) fn config() -> FarmConfig {
    let name = |text: &str| text.parse().unwrap();
    FarmConfig {
        farm: "yard".to_owned(),
        pools: vec![pool()],
        flavors: vec![flavor("small", false), flavor("gpu", true)],
        images: vec![Image { name: "host".parse().unwrap(), root: ImageRoot::Host { allow: Vec::new() } }],
        use_flavors: Flavors {
            plan: name("small"),
            build: name("small"),
            test: name("small"),
            gpu_test: name("gpu"),
        },
        repositories: (1..10)
            .map(|id| RepositoryConfig {
                forge: "github".parse().unwrap(),
                id,
                name: format!("octo/r{id}"),
                source: "/nowhere".to_owned(),
                protected: vec!["main".to_owned()],
                channel: "main".parse().unwrap(),
                sites: BTreeSet::new(),
            })
            .collect(),
        access: Default::default(),
        max_running: 1000,
        queue: Default::default(),
        folder_channel: "folders".parse().unwrap(),
        engine_path: "/opt/engine".to_owned(),
    }
}

const LIMITS: [Limit; 6] =
    [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network];

impl Yard {
    /// A yard with so many devices.
    pub(super) fn new(config: FarmConfig, devices: u32) -> Self {
        Self::with(config, devices, Vec::new())
    }

    /// A yard with a GPU for each of these IOMMU groups.
    pub(super) fn grouped(config: FarmConfig, groups: Vec<u32>) -> Self {
        Self::with(config, u32::try_from(groups.len()).unwrap(), groups)
    }

    fn with(config: FarmConfig, devices: u32, groups: Vec<u32>) -> Self {
        let mut yard = Self {
            farm: Farm::default(),
            config,
            // 2023-11-14, in the middle of a month.
            now: Timestamp::from_micros(1_700_000_000_000_000),
            usage: Vec::new(),
            groups,
            site: SiteId::from_bits(0),
            devices,
            seq: 0,
            jobs: 0,
        };
        yard.give(Input::FarmStarted { epoch: 1 });
        let (name, token) = ("box".parse().unwrap(), Digest::of(b"token"));
        let joined = Input::SiteJoined { name, token, public_key: "00".to_owned() };
        let Reply::Site { site } = yard.give(joined) else { panic!("a site joins") };
        yard.site = site;
        yard.report();
        yard
    }

    pub(super) fn give(&mut self, input: Input) -> Reply {
        self.decide(input).0
    }

    pub(super) fn decide(&mut self, input: Input) -> (Reply, Option<Commit>) {
        self.seq += 1;
        let config = self.config.clone();
        let ctx = Ctx {
            seq: self.seq,
            now: self.now,
            entropy: [u8::try_from(self.seq % 251).unwrap(); 16],
            by: Principal {
                id: PrincipalId::from_bits(1),
                name: "farm".to_owned(),
                kind: PrincipalKind::Farm,
            },
            config: &config,
            // Not looked at by what is tested here, and dear.
            config_digest: Digest::of(b"config"),
        };
        let decided = decide(&mut self.farm, &ctx, input).unwrap();
        if let Some(commit) = &decided.commit {
            self.usage.extend(commit.usage.iter().cloned());
        }
        (decided.reply, decided.commit)
    }

    /// Puts a job into the queue; it is looked at with the next report.
    pub(super) fn submit(&mut self, wish: &Wish) -> JobId {
        self.jobs += 1;
        // One after the other.
        self.now = self.now.plus(Duration::from_micros(1));
        let id = PipelineId::new(self.now, u128::from(self.jobs));
        let forge = "github".parse().unwrap();
        let person = Person { id: wish.person, login: format!("person-{}", wish.person) };
        let name = format!("{}/r{}", wish.owner, wish.repository);
        let trigger = match wish.class {
            WorkClass::Presubmit => Trigger::PullRequest {
                number: self.jobs,
                base: "main".to_owned(),
                base_sha: "0".repeat(40),
                head_repository: wish.repository,
                fork: false,
            },
            _ => Trigger::Push { git_ref: "refs/heads/main".to_owned() },
        };
        let event = ForgeEvent {
            repository: Repository { forge, id: wish.repository, name },
            trigger,
            head_sha: "a".repeat(40),
            sender: person,
            author: None,
        };
        let mut account = forgeyard_model::Account::of_event(&event);
        account.class = wish.class;
        let (at, isolation) = (self.now, Isolation::SharedKernel);
        self.farm.set(
            Pipeline {
                id,
                delivery: format!("guid-{}", self.jobs),
                event,
                lane: Lane::SameRepoPr,
                isolation,
                allowed_by: Vec::new(),
                file: None,
                source: None,
                outputs: BTreeMap::new(),
                state: PipelineState::Running,
                not_promoted: None,
                channel: None,
                environment: None,
                created_at: at,
                ended_at: None,
                since: at,
                deadline: Some(at.plus(Duration::from_secs(7 * 86_400))),
                generation: 1,
            }
            .into(),
        );
        let job = JobId::derive(id, &wish.key);
        let spec = JobSpec {
            flavor: wish.flavor.parse().unwrap(),
            gpu: (wish.gpus > 0).then(|| gpus(wish.gpus)),
            needs: BTreeSet::new(),
            inputs: Vec::new(),
            files: Vec::new(),
            steps: Vec::new(),
            outputs: Vec::new(),
            env: BTreeMap::new(),
            subject: None,
            pools: Vec::new(),
            forge_runner: None,
        };
        self.farm.set(
            Job {
                id: job,
                owner: Owner::Pipeline(id),
                account: Some(account),
                key: wish.key.clone(),
                kind: JobKind::Plan,
                spec: Some(spec),
                outputs: Vec::new(),
                test: None,
                needs: BTreeSet::new(),
                state: JobState::Queued,
                waiting: None,
                fence: 0,
                retries: 0,
                avoid: BTreeSet::new(),
                verdict: None,
                cancel_requested_at: None,
                created_at: at,
                queued_at: Some(at),
                ended_at: None,
                since: at,
                deadline: None,
                generation: 1,
            }
            .into(),
        );
        job
    }

    /// Time passes, the site reports, and the queue is looked at.
    pub(super) fn pass(&mut self, seconds: u64) {
        self.now = self.now.plus(Duration::from_secs(seconds));
        self.report();
    }

    /// The site reports: every wanted machine is there, no other is, and devices are free once their machine is gone.
    pub(super) fn report(&mut self) {
        let live = |farm: &Farm| farm.index.live_runners.iter().map(|(_, id)| *id).collect::<Vec<_>>();
        let wanted = live(&self.farm).into_iter().filter(|id| self.farm.runners[id].state.wanted());
        let runners = wanted.map(|runner| ObservedRunner {
            runner,
            state: ObservedState::Running,
            enforced: LIMITS.into(),
        });
        let runners = runners.collect();
        let leases = self.farm.index.live_leases.iter().map(|(_, id)| &self.farm.leases[id]);
        let leases = leases.map(|lease| match self.farm.runners[&lease.runner].state.wanted() {
            true => ObservedLease::Held { lease: lease.id },
            false => ObservedLease::Released { lease: lease.id, sick: Vec::new() },
        });
        let leases = leases.collect();
        let devices = (0..self.devices).map(|number| DeviceFacts {
            key: match self.groups.is_empty() {
                true => format!("simulated:{number}"),
                false => format!("pci:0000:{number:02x}:00.0"),
            },
            kind: if self.groups.is_empty() { DeviceKind::OpenclCpu } else { DeviceKind::Nvidia },
            model: "simulated".to_owned(),
            uuid: None,
            driver: "none".to_owned(),
            memory_mib: 1024,
            compute_capability: 0,
            iommu_group: self.groups.get(number as usize).copied(),
            moves_with: Vec::new(),
            numa_node: None,
            nodes: Vec::new(),
        });
        let report = SiteReport {
            epoch: self.farm.epoch,
            generation: self.farm.sites[&self.site].desired_generation,
            host: HostFacts {
                host: "simulated".to_owned(),
                cpu_millis: 1_000_000,
                memory_mib: 1 << 30,
                // Another one each time: a report with news is one after which the whole queue is looked at, without the
                // deadlines that a tick would look at as well.
                kernel: format!("simulated {}", self.seq),
                providers: ["sandbox".parse().unwrap()].into(),
                enforces: LIMITS.into(),
                cannot: Vec::new(),
            },
            devices: devices.collect(),
            runners,
            leases,
        };
        self.give(Input::SiteReported { site: self.site, report: Box::new(report) });
    }

    /// Gives a work of a repository a history: it always took so long.
    pub(super) fn teach(&mut self, repository: u64, work: &str, seconds: u32) {
        let repository = RepositoryKey { forge: "github".parse().unwrap(), id: repository };
        for flavor in ["small", "gpu"] {
            let flavor = flavor.parse().unwrap();
            let key = LedgerRow::times_key(&repository, work, &flavor);
            let (repository, work) = (repository.clone(), work.to_owned());
            let times = RunTimes { repository, work, flavor, seconds: vec![seconds; 5] };
            self.farm.set(LedgerRow { key, entry: Entry::Times(times), generation: 1 }.into());
        }
    }

    pub(super) fn foresight(&self) -> crate::queue::predict::Foresight<'_> {
        crate::queue::predict::Foresight::new(&self.farm, &self.config, self.now)
    }

    /// What would be kept for a job now.
    pub(super) fn reservation(&self, job: JobId) -> Option<Reservation> {
        let mut farm = self.farm.clone();
        let ctx = Ctx {
            seq: 1,
            now: self.now,
            entropy: [0; 16],
            by: Principal {
                id: PrincipalId::from_bits(1),
                name: "farm".to_owned(),
                kind: PrincipalKind::Farm,
            },
            config: &self.config,
            config_digest: Digest::of(b"config"),
        };
        let tx = crate::tx::Tx::new(&mut farm, &ctx);
        let mut look = Look::default();
        look.refused(job, &forgeyard_model::Explanation::new("queue.device_busy", ""));
        look.keep(&tx);
        look.reservation
    }

    /// The job's attempt ends well, and its machine goes.
    pub(super) fn end(&mut self, job: JobId) {
        self.finish(job);
        self.report();
        self.report();
    }

    /// The job's attempt ends well.
    pub(super) fn finish(&mut self, job: JobId) {
        let attempt = self.farm.jobs[&job].state.attempt().expect("it runs");
        let fence = self.farm.attempts[&attempt].fence;
        if self.farm.attempts[&attempt].state == forgeyard_model::attempt::AttemptState::Placed {
            self.give(Input::TokenRedeemed { attempt, nonce: "nonce".to_owned() });
            self.give(Input::AgentHeard { attempt, fence, step: Some("work".to_owned()) });
        }
        let step = StepFacts {
            name: "work".to_owned(),
            started_at: self.now,
            ended_at: self.now,
            exit_code: Some(0),
            signal: None,
        };
        let facts = Box::new(ExitFacts { steps: vec![step], ..ExitFacts::default() });
        self.give(Input::AttemptFinished { attempt, fence, facts, hits: Vec::new(), tail: Vec::new() });
    }

    pub(super) fn job(&self, id: JobId) -> &Job {
        &self.farm.jobs[&id]
    }

    /// Whether a job has a machine now.
    pub(super) fn runs(&self, id: JobId) -> bool {
        self.job(id).state.attempt().is_some()
    }

    /// Code of the reason that a job waits for.
    #[track_caller]
    pub(super) fn waits(&self, id: JobId) -> &str {
        assert_eq!(self.job(id).state, JobState::Queued);
        self.job(id).waiting.as_ref().map_or("", |reason| reason.code.as_str())
    }
}
