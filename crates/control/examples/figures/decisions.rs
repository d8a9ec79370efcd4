//! Decisions with ten thousand machines tracked, beside the same decisions with five hundred.
//!
//! The farm is made by decisions alone, for *simulated* jobs of a *simulated* GitHub at *simulated* sites: 10,000 machines
//! at 20 sites and in four pools, each with a job that runs, and some hundreds of jobs that wait, because two of the pools
//! and all of the hosts are full. Measured is the pure decision, without storing it: what it costs to store it is among
//! the figures of transitions, and does not depend on how many machines there are.
//!
//! The peer is a farm of one site with 500 machines and the same queue, so that the ratio says what the other 9,500 cost.

use crate::{figure, percentile};
use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::access::{EventClass, Grant, GrantRepository};
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::config::{FarmConfig, RepositoryConfig};
use forgeyard_model::demand::{RunFacts, Source};
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::{Meaning, Repository, WorkflowJob};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::pool::LaunchRate;
use forgeyard_model::resources::{Flavor, Isolation, Pool, RunnerOffer, runner_program};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::SiteReport;
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{AttemptId, Digest, EffectId, SiteId, Timestamp};
use forgeyard_testkit::build::{self, name};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const SITES: u64 = 20;
/// Machines of a site: as many as its memory has room for.
const OF_SITE: u64 = 500;
const POOLS: u64 = 4;
const REPOSITORIES: u64 = 50;
const WAITING: u64 = 300;
/// Jobs of a run.
const OF_RUN: u64 = 100;
const ROUNDS: usize = 200;

pub(crate) fn measure() {
    let mut peer = Yard::new(1);
    let of_peer = peer.play();
    let mut yard = Yard::new(SITES);
    for (what, mut times) in yard.play() {
        let floor = of_peer.get(what).map(|times| percentile(&mut times.clone(), 99));
        let text = format!("decision, 10,000 machines tracked, simulated: {what}, p99");
        let (p99, aim) = (percentile(&mut times, 99), Some(("at most", 50.0)));
        figure(&text, p99, "ms", floor.map(|floor| ("500 machines tracked", floor)), aim);
    }
}

/// How long decisions took, by what they were about.
type Times = BTreeMap<&'static str, Vec<Duration>>;

struct Yard {
    farm: Farm,
    config: FarmConfig,
    digest: Digest,
    now: Timestamp,
    seq: u64,
    jobs: u64,
    sites: Vec<SiteId>,
    times: Times,
}

fn shape(number: u64) -> Flavor {
    let base = build::config().flavors.swap_remove(0);
    // One at once as with a day of work before it: nothing that is measured runs out of time.
    Flavor { name: name(&format!("shape-{number}")), time_limit_seconds: 24 * 3600, ..base }
}

fn config(machines: u64) -> FarmConfig {
    let mut config = build::config();
    config.max_running = 1_000_000;
    config.flavors.extend((0..POOLS).map(shape));
    config.pools = (0..POOLS)
        .map(|number| {
            // Half of the pools are full, the others wait for a host.
            let most = if number % 2 == 0 { machines / POOLS } else { machines };
            let mut pool = Pool::new(
                name(&format!("pool-{number}")),
                name("sandbox"),
                [name(&format!("shape-{number}"))].into(),
                name("host"),
                Isolation::SharedKernel,
                u32::try_from(most).unwrap(),
            );
            pool.launches = LaunchRate { burst: 1_000_000, per_minute: 1_000_000 };
            pool.runners = Some(RunnerOffer {
                labels: [format!("label-{number}")].into(),
                exact: false,
                flavor: name(&format!("shape-{number}")),
                program: runner_program(),
            });
            pool
        })
        .collect();
    let base = config.repositories[0].clone();
    config.repositories = (0..REPOSITORIES)
        .map(|number| RepositoryConfig {
            id: repository(number).id,
            name: repository(number).name,
            ..base.clone()
        })
        .collect();
    config.access.grants = (0..REPOSITORIES)
        .map(|number| Grant {
            id: format!("grant-{number}"),
            repository: GrantRepository {
                forge: None,
                id: Some(repository(number).id),
                name: repository(number).name,
            },
            resources: (0..POOLS).map(|number| format!("pool-{number}")).collect(),
            events: [EventClass::Push].into(),
            users: [build::PERSON].into(),
            lists: Default::default(),
            teams: Default::default(),
            roles: Default::default(),
            isolation: Some(Isolation::SharedKernel),
            approvers: Default::default(),
        })
        .collect();
    config
}

/// The repository of a run: of the next one for the next run, whether it has one job or many.
fn of_run(run: u64) -> Repository {
    repository(run / OF_RUN + run)
}

fn repository(number: u64) -> Repository {
    let number = number % REPOSITORIES;
    Repository { forge: name("github"), id: 9_000_000_001 + number, name: format!("octo/project-{number}") }
}

fn facts(run: u64) -> RunFacts {
    RunFacts {
        event: "push".to_owned(),
        actor: Some(build::person()),
        triggering_actor: Some(build::person()),
        head_repository: Some(of_run(run).id),
        head_sha: "a".repeat(40),
        head_branch: Some("main".to_owned()),
        pull_request: None,
        author: None,
        pusher: None,
        run_attempt: 1,
    }
}

impl Yard {
    /// A farm that is full, with a queue.
    fn new(sites: u64) -> Self {
        let machines = sites * OF_SITE;
        let config = config(machines);
        let mut yard = Self {
            farm: Farm::default(),
            digest: config.digest(),
            config,
            now: Timestamp::from_micros(1_800_000_000_000_000),
            seq: 0,
            jobs: 0,
            sites: Vec::new(),
            times: Times::new(),
        };
        yard.give("start", Input::FarmStarted { epoch: 1 });
        for number in 0..sites {
            let token = Digest::of(&number.to_be_bytes());
            let joined = Input::SiteJoined {
                name: name(&format!("site-{number}")),
                token,
                public_key: "simulated".to_owned(),
            };
            let Reply::Site { site } = yard.give("start", joined) else { panic!("a site did not join") };
            yard.sites.push(site);
            yard.report(site, "start");
        }
        while (yard.farm.index.live_attempts.len() as u64) < machines {
            yard.run("start", OF_RUN);
        }
        while (yard.farm.index.queue.len() as u64) < WAITING {
            yard.run("start", OF_RUN);
        }
        let live: Vec<AttemptId> = yard.farm.index.live_attempts.iter().copied().collect();
        for attempt in live {
            yard.begin(attempt);
        }
        for site in yard.sites.clone() {
            yard.report(site, "start");
        }
        assert_eq!(yard.farm.index.live_runners.len() as u64, machines);
        let running = yard.farm.attempts.values().filter(|attempt| attempt.state == AttemptState::Running);
        assert_eq!(running.count() as u64, machines);
        yard.times.clear();
        yard
    }

    /// Decides, and notes how long that took. Time passes slowly here, so that nothing is over.
    fn give(&mut self, what: &'static str, input: Input) -> Reply {
        self.seq += 1;
        self.now = self.now.plus(Duration::from_micros(100));
        let mut entropy = [0; 16];
        entropy[..8].copy_from_slice(&self.seq.to_be_bytes());
        let ctx = Ctx {
            seq: self.seq,
            now: self.now,
            entropy,
            by: build::farm_principal(),
            config: &self.config,
            config_digest: self.digest,
        };
        let begin = Instant::now();
        let decided = decide(&mut self.farm, &ctx, input).unwrap();
        self.times.entry(what).or_default().push(begin.elapsed());
        decided.reply
    }

    /// A webhook tells of a queued job, and the forge of its run.
    fn run(&mut self, what: &'static str, jobs: u64) {
        let run = self.jobs;
        let all: Vec<WorkflowJob> = (0..jobs)
            .map(|number| WorkflowJob {
                repository: of_run(run),
                installation: Some(11),
                job: run + number + 1,
                run,
                run_attempt: 1,
                name: format!("build ({number})"),
                workflow: Some("ci".to_owned()),
                action: "queued".to_owned(),
                conclusion: None,
                labels: vec![format!("label-{}", (run + number) % POOLS)],
                head_sha: "a".repeat(40),
                head_branch: Some("main".to_owned()),
                runner_name: None,
                runner_id: None,
                sender: Some(build::person()),
                scale_set: None,
            })
            .collect();
        self.jobs += jobs;
        if jobs == 1 {
            let guid = format!("github/guid-{run}");
            let body = Digest::of(guid.as_bytes());
            let event = "workflow_job".to_owned();
            self.give("webhook stored", Input::DeliveryReceived { guid: guid.clone(), event, body });
            let meaning = Ok(Meaning::Demand(Box::new(all.into_iter().next().unwrap())));
            self.give("webhook read", Input::DeliveryRead { guid, meaning, asked: false });
        } else {
            self.give(what, Input::DemandReported { source: Source::Poll, jobs: all });
        }
        let looks = self.waiting(|effect| matches!(effect, Effect::LookUpRun { .. }));
        for effect in looks {
            let result = Box::new(EffectResult::Run { facts: Box::new(facts(run)) });
            self.give(what, Input::EffectSettled { effect, result });
        }
    }

    /// The machine of an attempt comes up, registers and works.
    fn begin(&mut self, attempt: AttemptId) {
        self.give("start", Input::TokenRedeemed { attempt, nonce: "a nonce".to_owned() });
        for effect in self.waiting(|effect| matches!(effect, Effect::MintRunner { .. })) {
            let result = Box::new(EffectResult::Minted { runner: self.seq });
            self.give("start", Input::EffectSettled { effect, result });
        }
        self.give("start", Input::RunnerConfigFetched { attempt, fence: 1 });
        self.beat("start", attempt);
        let row = &self.farm.attempts[&attempt];
        let demand = row.owner.demand().map(|id| self.farm.demands[&id].clone()).unwrap();
        let registration = self.farm.runners[&row.runner].registration.as_deref().unwrap();
        let job = WorkflowJob {
            repository: demand.repository,
            installation: demand.installation,
            job: demand.job,
            run: demand.run,
            run_attempt: 1,
            name: demand.name,
            workflow: demand.workflow,
            action: "in_progress".to_owned(),
            conclusion: None,
            labels: demand.labels,
            head_sha: demand.head_sha,
            head_branch: demand.head_branch,
            runner_name: Some(registration.name.clone()),
            runner_id: Some(self.seq),
            sender: None,
            scale_set: None,
        };
        self.give("start", Input::DemandReported { source: Source::Poll, jobs: vec![job] });
    }

    fn beat(&mut self, what: &'static str, attempt: AttemptId) {
        self.give(what, Input::AgentHeard { attempt, fence: 1, step: Some("runner".to_owned()) });
    }

    fn waiting(&self, of: impl Fn(&Effect) -> bool) -> Vec<EffectId> {
        let pending = self.farm.index.outbox.iter().filter_map(|id| self.farm.effects.get(id));
        pending.filter(|pending| of(&pending.effect)).map(|pending| pending.id).collect()
    }

    /// A site reports that what it should have runs, and that the rest is gone.
    fn report(&mut self, site: SiteId, what: &'static str) {
        let here = self.farm.index.live_runners.iter().filter(|(of, _)| *of == site);
        let wanted = here
            .filter_map(|(_, id)| self.farm.runners.get(id))
            .filter(|runner| runner.state.wanted())
            .map(|runner| ObservedRunner {
                runner: runner.id,
                state: ObservedState::Running,
                enforced: Default::default(),
            });
        let mut host = crate::site::host();
        host.memory_mib = OF_SITE * 1024;
        let report = SiteReport {
            epoch: self.farm.epoch,
            generation: self.farm.sites[&site].desired_generation,
            host,
            runners: wanted.collect(),
            devices: Vec::new(),
            leases: Vec::new(),
        };
        self.give(what, Input::SiteReported { site, report: Box::new(report) });
    }

    /// The runner program of an attempt ends.
    fn end(&mut self, attempt: AttemptId) {
        let step = StepFacts {
            name: "runner".to_owned(),
            started_at: self.now,
            ended_at: self.now,
            exit_code: Some(0),
            signal: None,
        };
        let facts = Box::new(ExitFacts { steps: vec![step], ..ExitFacts::default() });
        let (hits, tail) = (Vec::new(), Vec::new());
        self.give("attempt ended", Input::AttemptFinished { attempt, fence: 1, facts, hits, tail });
        for effect in self.waiting(|effect| matches!(effect, Effect::Deregister { .. })) {
            let result = Box::new(EffectResult::Deregistered);
            self.give("runner forgotten", Input::EffectSettled { effect, result });
        }
    }

    /// Rounds of what happens all the time.
    fn play(&mut self) -> Times {
        let mut placed = 0;
        for round in 0..ROUNDS {
            let live: Vec<AttemptId> = self.farm.index.live_attempts.iter().copied().collect();
            let running = |at: usize| {
                let from = live.iter().cycle().skip(at * 37 % live.len()).take(live.len());
                let mut all = from.filter(|id| self.farm.attempts[*id].state == AttemptState::Running);
                all.next().copied().unwrap()
            };
            let (beats, ends) = (running(round), running(round + ROUNDS));
            self.beat("heartbeat", beats);
            self.run("run looked up", 1);
            let site = self.sites[round % self.sites.len()];
            self.report(site, "report of a site with 500 machines");
            let site = self.farm.attempts[&ends].site;
            let before = self.farm.attempts.len();
            self.end(ends);
            self.report(site, "report that a machine is gone, and the next job placed");
            placed += self.farm.attempts.len() - before;
            self.give("tick", Input::Ticked);
        }
        assert!(placed >= ROUNDS / 2, "only {placed} of {ROUNDS} places that became free were given away");
        std::mem::take(&mut self.times)
    }
}
