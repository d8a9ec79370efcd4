//! A desk for tests of demand: a farm with two pools, a *simulated* site, *simulated* machines and a *simulated* forge that
//! answers as a test says. After every decision the invariants of the ledger are checked.

use crate::decide::decide;
use crate::{Ctx, Farm};
use forgeyard_model::access::{Access, EventClass, Grant, GrantRepository};
use forgeyard_model::config::{FarmConfig, Flavors, RepositoryConfig};
use forgeyard_model::demand::{Demand, DemandState, RunFacts, Source};
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::{Meaning, Person, Repository, WorkflowJob};
use forgeyard_model::input::{Input, Refusal, Reply};
use forgeyard_model::job::{Job, JobKind, JobState};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::registration::{Registration, TakenAnswer, TakenJob};
use forgeyard_model::resources::{Flavor, Image, ImageRoot, Isolation, Limit, Pool, RunnerOffer};
use forgeyard_model::runner::{ObservedRunner, ObservedState, Runner, RunnerState};
use forgeyard_model::site::{HostFacts, SiteReport};
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{AttemptId, Digest, EffectId, Id, PrincipalId, SiteId, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) const REPOSITORY: u64 = 9_000_000_001;
pub(crate) const OTHER: u64 = 9_000_000_002;
pub(crate) const FORK: u64 = 9_000_000_009;
pub(crate) const MAINTAINER: u64 = 7_000_000_001;
pub(crate) const STRANGER: u64 = 7_000_000_002;
pub(crate) const JOB: u64 = 94_396_871_545;
pub(crate) const RUN: u64 = 31_000_000_001;

const LIMITS: [Limit; 6] =
    [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network];

pub(crate) fn person(id: u64) -> Person {
    Person { id, login: format!("person-{id}") }
}

pub(crate) fn repository(id: u64) -> Repository {
    Repository { forge: "github".parse().unwrap(), id, name: format!("octo/r{id}") }
}

fn flavor(name: &str) -> Flavor {
    Flavor {
        name: name.parse().unwrap(),
        cpu_millis: 1000,
        memory_mib: 1024,
        disk_mib: 1024,
        processes: 512,
        time_limit_seconds: 6 * 3600,
        gpu: None,
        network: true,
    }
}

pub(crate) fn pool(name: &str, isolation: Isolation, labels: &[&str], exact: bool, flavor: &str) -> Pool {
    let mut pool = Pool::new(
        name.parse().unwrap(),
        "sandbox".parse().unwrap(),
        [flavor.parse().unwrap()].into(),
        "host".parse().unwrap(),
        isolation,
        8,
    );
    pool.runners = Some(RunnerOffer {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        exact,
        flavor: flavor.parse().unwrap(),
        program: vec![format!("/opt/{name}/run.sh")],
    });
    pool
}

pub(crate) fn config() -> FarmConfig {
    let events = [
        EventClass::Push,
        EventClass::PullRequest,
        EventClass::Schedule,
        EventClass::Dispatch,
        EventClass::Rerun,
    ];
    let repositories = [REPOSITORY, OTHER].map(|id| RepositoryConfig {
        forge: "github".parse().unwrap(),
        id,
        name: format!("octo/r{id}"),
        source: "/nowhere".to_owned(),
        protected: vec!["main".to_owned()],
        channel: "main".parse().unwrap(),
        sites: Default::default(),
    });
    FarmConfig {
        farm: "test".to_owned(),
        pools: vec![
            pool("small", Isolation::SharedKernel, &["self-hosted", "linux", "X64"], false, "small"),
            pool("large", Isolation::Vm, &["self-hosted", "linux", "gpu"], false, "large"),
        ],
        flavors: vec![flavor("small"), flavor("large")],
        images: vec![Image { name: "host".parse().unwrap(), root: ImageRoot::Host { allow: Vec::new() } }],
        use_flavors: Flavors {
            plan: "small".parse().unwrap(),
            build: "small".parse().unwrap(),
            test: "small".parse().unwrap(),
            gpu_test: "large".parse().unwrap(),
        },
        repositories: repositories.into(),
        access: Access {
            grants: vec![Grant {
                id: "demo".to_owned(),
                repository: GrantRepository { forge: None, id: Some(REPOSITORY), name: "octo/r".to_owned() },
                resources: ["small".to_owned(), "large".to_owned()].into(),
                events: events.into(),
                users: [MAINTAINER].into(),
                lists: BTreeSet::new(),
                teams: BTreeSet::new(),
                roles: BTreeSet::new(),
                isolation: None,
                approvers: None,
            }],
            ..Access::default()
        },
        max_running: 64,
        queue: Default::default(),
        folder_channel: "folders".parse().unwrap(),
        engine_path: "/opt/engine".to_owned(),
    }
}

/// What a source says of the job of this number.
pub(crate) fn report(job: u64, action: &str) -> WorkflowJob {
    WorkflowJob {
        repository: repository(REPOSITORY),
        installation: Some(11),
        job,
        run: RUN,
        run_attempt: 1,
        name: "build".to_owned(),
        workflow: Some("ci".to_owned()),
        action: action.to_owned(),
        conclusion: None,
        labels: vec!["self-hosted".to_owned(), "Linux".to_owned(), "x64".to_owned()],
        head_sha: "a".repeat(40),
        head_branch: Some("main".to_owned()),
        runner_name: None,
        runner_id: None,
        sender: Some(person(MAINTAINER)),
        scale_set: None,
    }
}

/// A push by the maintainer.
pub(crate) fn facts() -> RunFacts {
    RunFacts {
        event: "push".to_owned(),
        actor: Some(person(MAINTAINER)),
        triggering_actor: Some(person(MAINTAINER)),
        head_repository: Some(REPOSITORY),
        head_sha: "a".repeat(40),
        head_branch: Some("main".to_owned()),
        pull_request: None,
        author: None,
        pusher: None,
        run_attempt: 1,
    }
}

pub(crate) fn taken(repository_id: u64, run: u64, actor: u64) -> TakenJob {
    TakenJob {
        repository: repository(repository_id),
        run,
        run_attempt: 1,
        key: "build".to_owned(),
        actor: Some(person(actor)),
    }
}

pub(crate) struct Desk {
    pub(crate) farm: Farm,
    pub(crate) config: FarmConfig,
    pub(crate) now: Timestamp,
    pub(crate) site: SiteId,
    seq: u64,
    guids: u64,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let mut desk = Self {
            farm: Farm::default(),
            config: config(),
            now: Timestamp::from_micros(1_700_000_000_000_000),
            site: SiteId::from_bits(0),
            seq: 0,
            guids: 0,
        };
        desk.give(Input::FarmStarted { epoch: 1 });
        let joined = Input::SiteJoined {
            name: "box".parse().unwrap(),
            token: Digest::of(b"token"),
            public_key: "00".to_owned(),
        };
        let Reply::Site { site } = desk.give(joined) else { panic!("a site joins") };
        desk.site = site;
        desk.report_site();
        desk
    }

    pub(super) fn foresight(&self) -> crate::queue::predict::Foresight<'_> {
        crate::queue::predict::Foresight::new(&self.farm, &self.config, self.now)
    }

    pub(crate) fn offer(&mut self, input: Input) -> Result<Reply, Refusal> {
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
            config_digest: config.digest(),
        };
        let before = self.farm.clone();
        let shown = format!("{input:?}");
        match decide(&mut self.farm, &ctx, input) {
            Ok(decided) => {
                self.check(&shown);
                Ok(decided.reply)
            }
            Err(refusal) => {
                assert!(self.farm == before, "a refusal changes nothing: {shown}");
                Err(refusal)
            }
        }
    }

    #[track_caller]
    pub(crate) fn give(&mut self, input: Input) -> Reply {
        self.offer(input).unwrap()
    }

    /// What must hold whatever happened.
    fn check(&self, input: &str) {
        let farm = &self.farm;
        for demand in farm.demands.values() {
            if demand.state.owed() {
                let launch =
                    demand.launch.unwrap_or_else(|| panic!("{} has no launch after {input}", demand.id));
                let job = &farm.jobs[&launch];
                assert!(!job.state.ended(), "the launch of {} is over after {input}", demand.id);
                assert!(
                    job.cancel_requested_at.is_none(),
                    "the launch of {} is being stopped after {input}",
                    demand.id
                );
                assert_eq!(farm.owed_by(launch).map(|owed| owed.id), Some(demand.id), "after {input}");
                let placed = job.state.attempt().is_some();
                assert_eq!(
                    placed,
                    demand.state == DemandState::Launching,
                    "{demand:?} {job:?} after {input}"
                );
            }
            let rests = demand.state.ended() || matches!(demand.state, DemandState::Refused { .. });
            assert_eq!(demand.deadline.is_none(), rests, "{demand:?} after {input}");
        }
        for job in farm.jobs.values() {
            if matches!(job.state, JobState::Queued) {
                assert!(farm.owed_by(job.id).is_some(), "nobody needs {job:?} after {input}");
            }
        }
        for runner in farm.runners.values() {
            let known = runner
                .registration
                .as_deref()
                .is_some_and(|registration| matches!(registration.state.name(), "minted" | "leaving"));
            // A machine that the forge may give a job is never destroyed on purpose.
            if known && registered(runner).fetched_at.is_some() {
                assert!(
                    runner.state.wanted()
                        || matches!(
                            runner.state,
                            RunnerState::Failed { .. } | RunnerState::Deleting | RunnerState::Deleted
                        ),
                    "{runner:?} goes although the forge knows it, after {input}"
                );
            }
        }
        let mut loaded = Farm::load(farm.rows());
        (loaded.epoch, loaded.resumed_at) = (farm.epoch, farm.resumed_at);
        loaded.ended = farm.ended.clone();
        assert!(loaded == *farm, "indexes differ from those that loading makes, after {input}");
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now = self.now.plus(Duration::from_secs(seconds));
        self.report_site();
        let live: Vec<AttemptId> = self.farm.index.live_attempts.iter().copied().collect();
        for id in live {
            let attempt = &self.farm.attempts[&id];
            if attempt.state != forgeyard_model::attempt::AttemptState::Placed {
                let (fence, step) = (attempt.fence, attempt.step.clone());
                let _ = self.offer(Input::AgentHeard { attempt: id, fence, step });
            }
        }
        self.give(Input::Ticked);
    }

    /// What the site would say: every machine that should be there is.
    pub(crate) fn report(&self) -> SiteReport {
        let wanted = self.farm.runners.values().filter(|runner| runner.state.wanted());
        let runners = wanted.map(|runner| ObservedRunner {
            runner: runner.id,
            state: ObservedState::Running,
            enforced: LIMITS.into(),
        });
        SiteReport {
            epoch: self.farm.epoch,
            generation: self.farm.sites[&self.site].desired_generation,
            host: HostFacts {
                host: "simulated".to_owned(),
                cpu_millis: 64_000,
                memory_mib: 128 << 10,
                kernel: "simulated".to_owned(),
                providers: ["sandbox".parse().unwrap()].into(),
                enforces: LIMITS.into(),
                cannot: Vec::new(),
            },
            devices: Vec::new(),
            runners: runners.collect(),
            leases: Vec::new(),
        }
    }

    pub(crate) fn report_site(&mut self) {
        let report = Box::new(self.report());
        self.give(Input::SiteReported { site: self.site, report });
    }

    /// A queued job that the maintainer pushed: allowed, and placed if there is room.
    #[track_caller]
    pub(crate) fn wanted(&mut self, job: u64) -> forgeyard_model::DemandId {
        self.webhook(report(job, "queued"));
        if !self.waiting("look").is_empty() {
            self.found(facts());
        }
        self.demand(job).id
    }

    /// A webhook arrives and is read.
    #[track_caller]
    pub(crate) fn webhook(&mut self, job: WorkflowJob) {
        self.guids += 1;
        let guid = format!("guid-{}", self.guids);
        let body = Digest::of(guid.as_bytes());
        self.give(Input::DeliveryReceived { guid: guid.clone(), event: "workflow_job".to_owned(), body });
        self.give(Input::DeliveryRead { guid, meaning: Ok(Meaning::Demand(Box::new(job))), asked: false });
    }

    pub(crate) fn poll(&mut self, job: WorkflowJob) -> Reply {
        self.give(Input::DemandReported {
            source: Source::Poll,
            jobs: vec![WorkflowJob { sender: None, ..job }],
        })
    }

    #[track_caller]
    pub(crate) fn demand(&self, job: u64) -> &Demand {
        self.farm.demand_of(&"github".parse().unwrap(), job).unwrap()
    }

    #[track_caller]
    pub(crate) fn state(&self, job: u64) -> &'static str {
        self.demand(job).state.name()
    }

    /// Effects in the outbox.
    pub(crate) fn outbox(&self) -> Vec<(EffectId, Effect)> {
        let pending = self.farm.index.outbox.iter().map(|id| &self.farm.effects[id]);
        pending.map(|pending| (pending.id, pending.effect.clone())).collect()
    }

    /// Effects in the outbox of a kind.
    pub(crate) fn waiting(&self, kind: &str) -> Vec<EffectId> {
        let is = |effect: &Effect| match effect {
            Effect::LookUpRun { .. } => "look",
            Effect::ReadJob { .. } => "read",
            Effect::MintRunner { .. } => "mint",
            Effect::Deregister { .. } => "forget",
            _ => "other",
        };
        self.outbox().into_iter().filter(|(_, effect)| is(effect) == kind).map(|(id, _)| id).collect()
    }

    /// The only effect of a kind comes out like this.
    #[track_caller]
    pub(crate) fn settle(&mut self, kind: &str, result: EffectResult) {
        let waiting = self.waiting(kind);
        assert_eq!(waiting.len(), 1, "{kind} in {:?}", self.outbox());
        self.give(Input::EffectSettled { effect: waiting[0], result: Box::new(result) });
    }

    /// Every effect of a kind does not come out.
    pub(crate) fn trouble(&mut self, kind: &str) {
        for effect in self.waiting(kind) {
            self.give(Input::EffectTroubled { effect, trouble: "503".to_owned() });
        }
    }

    /// The run is looked up.
    #[track_caller]
    pub(crate) fn found(&mut self, facts: RunFacts) {
        self.settle("look", EffectResult::Run { facts: Box::new(facts) });
    }

    /// A queued job that the maintainer pushed: allowed and placed.
    #[track_caller]
    pub(crate) fn launched(&mut self, job: u64) {
        self.webhook(report(job, "queued"));
        if !self.waiting("look").is_empty() {
            self.found(facts());
        }
        assert_eq!(self.state(job), "launching", "{:?}", self.demand(job));
    }

    #[track_caller]
    pub(crate) fn launch(&self, job: u64) -> &Job {
        &self.farm.jobs[&self.demand(job).launch.unwrap()]
    }

    #[track_caller]
    pub(crate) fn attempt(&self, job: u64) -> AttemptId {
        self.launch(job).state.attempt().unwrap()
    }

    #[track_caller]
    pub(crate) fn runner(&self, job: u64) -> &Runner {
        self.runner_of(self.attempt(job))
    }

    #[track_caller]
    pub(crate) fn runner_of(&self, attempt: AttemptId) -> &Runner {
        &self.farm.runners[&self.farm.attempts[&attempt].runner]
    }

    /// The machine of a launched job comes up and asks for its configuration.
    #[track_caller]
    pub(crate) fn up(&mut self, job: u64) -> AttemptId {
        let attempt = self.attempt(job);
        self.give(Input::TokenRedeemed { attempt, nonce: format!("nonce-{attempt}") });
        attempt
    }

    /// The machine of a launched job comes up and registers.
    #[track_caller]
    pub(crate) fn registered(&mut self, job: u64, at_forge: u64) -> AttemptId {
        let attempt = self.up(job);
        let runner = self.farm.attempts[&attempt].runner;
        let mint = self
            .outbox()
            .into_iter()
            .find(|(_, effect)| matches!(effect, Effect::MintRunner { runner: of, .. } if *of == runner));
        let (effect, _) = mint.unwrap();
        let result = Box::new(EffectResult::Minted { runner: at_forge });
        self.give(Input::EffectSettled { effect, result });
        let fence = self.farm.attempts[&attempt].fence;
        self.give(Input::RunnerConfigFetched { attempt, fence });
        self.give(Input::AgentHeard { attempt, fence, step: Some("runner".to_owned()) });
        attempt
    }

    /// The name of an attempt's runner at the forge.
    #[track_caller]
    pub(crate) fn name(&self, attempt: AttemptId) -> String {
        registered(self.runner_of(attempt)).name.clone()
    }

    /// The forge says that a runner has a job.
    #[track_caller]
    pub(crate) fn in_progress(&mut self, job: u64, attempt: AttemptId) {
        let runner_name = Some(self.name(attempt));
        self.webhook(WorkflowJob { runner_name, runner_id: Some(5), ..report(job, "in_progress") });
    }

    #[track_caller]
    pub(crate) fn completed(&mut self, job: u64, conclusion: &str) {
        self.webhook(WorkflowJob { conclusion: Some(conclusion.to_owned()), ..report(job, "completed") });
    }

    #[track_caller]
    pub(crate) fn hook(&mut self, attempt: AttemptId, job: TakenJob) -> TakenAnswer {
        let fence = self.farm.attempts[&attempt].fence;
        match self.give(Input::RunnerTook { attempt, fence, job }) {
            Reply::Taken { answer } => answer,
            other => panic!("{other:?}"),
        }
    }

    /// The runner program of an attempt ends.
    #[track_caller]
    pub(crate) fn finished(&mut self, attempt: AttemptId, exit_code: i32) {
        let fence = self.farm.attempts[&attempt].fence;
        let step = StepFacts {
            name: "runner".to_owned(),
            started_at: self.now,
            ended_at: self.now,
            exit_code: Some(exit_code),
            signal: None,
        };
        let facts = Box::new(ExitFacts { steps: vec![step], ..ExitFacts::default() });
        self.give(Input::AttemptFinished { attempt, fence, facts, hits: Vec::new(), tail: Vec::new() });
    }

    /// Jobs of ours that bring runners.
    pub(crate) fn launches(&self) -> usize {
        self.farm.jobs.values().filter(|job| job.kind == JobKind::Runner).count()
    }

    pub(crate) fn machines(&self) -> usize {
        self.farm.runners.values().filter(|runner| runner.state.wanted()).count()
    }
}

#[track_caller]
pub(crate) fn registered(runner: &Runner) -> &Registration {
    runner.registration.as_deref().unwrap()
}
