//! A simulated GitHub with an organisation, a repository and an installed App, and a farm that serves it.

use crate::plane::agent::Agent;
use crate::plane::site::Site;
use crate::plane::{Plane, Setup, eventually, webhook_secret};
use crate::rules::Files;
use forgeyard_api::agent::RunnerTook;
use forgeyard_api::client::ClientError;
use forgeyard_control::clock::Clock;
use forgeyard_control::forges::{ConnectionOptions, Connections, Register, ScaleSetWish};
use forgeyard_forges::github::{AppIdentity, AppKey, Endpoint, Github, GithubOptions, HttpOptions, LoginApp};
use forgeyard_forges::twin::{APP_KEY, Conclusion, GivenJob, JobSpec, RunSpec, Runner as Program, Twin};
use forgeyard_model::access::{EventClass, Member};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::demand::Demand;
use forgeyard_model::forge::Person;
use forgeyard_model::registration::{Registration, TakenAnswer};
use forgeyard_model::resources::RunnerOffer;
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::site::DesiredRunner;
use forgeyard_model::verdict::{CacheClient, CacheCold, CacheFacts, ExitFacts, StepFacts};
use forgeyard_model::{ForgeName, RunnerId, Secret, Timestamp};
use forgeyard_testkit::build::name;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Labels of the farm's pool.
pub(crate) const LABELS: [&str; 3] = ["self-hosted", "linux", "gpu"];

/// How a world is made.
#[derive(Default)]
pub(crate) struct Plan {
    /// Nothing is connected.
    pub(crate) unconnected: bool,
    /// The App sends no webhooks.
    pub(crate) silent: bool,
    pub(crate) register: Register,
    pub(crate) scale_sets: Vec<ScaleSetWish>,
    /// Labels of the pool, when they are others than [`LABELS`].
    pub(crate) labels: Vec<String>,
    /// Version of the terms of service; 0 = none.
    pub(crate) terms: u32,
    /// Further forges that people sign in with.
    pub(crate) logins: Vec<(ForgeName, LoginApp)>,
    /// Further repositories of the organisation, and how many of them have a grant.
    pub(crate) further: (usize, usize),
    /// Rules on what people may do in the farm, given the ids of the person and of the repository.
    pub(crate) members: Option<Members>,
}

/// Makes rules on what people may do. The id 0 stands for the reader.
pub(crate) type Members = Box<dyn Fn(u64, u64) -> Vec<Member> + Send + Sync>;

pub(crate) struct World {
    pub(crate) twin: Twin,
    pub(crate) org: u64,
    pub(crate) repository: u64,
    pub(crate) app: u64,
    pub(crate) person: Person,
    /// Somebody whom no grant names.
    pub(crate) reader: Person,
    pub(crate) plane: Plane,
    pub(crate) setup: Setup,
    pub(crate) site: Site,
    /// What the files of the farm say, where a test changes them.
    pub(crate) rules: Arc<Files>,
    served: BTreeSet<RunnerId>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Plan::default()).await
    }

    pub(crate) async fn with(plan: Plan) -> Self {
        let twin = Twin::start(forgeyard_forges::twin::Setup::default()).await.unwrap();
        let (org, repository, app, person, reader) = twin.with(|state| {
            let org = state.add_organization("conda");
            let repository = state.add_repository("conda/feedstock");
            let app = state.add_app(org, "forgeyard", None, webhook_secret());
            state.install(app, org, None);
            (org, repository, app, state.add_user("maintainer"), state.add_user("reader"))
        });
        let further: Vec<(u64, String)> = twin.with(|state| {
            let names = (0..plan.further.0).map(|number| format!("conda/further-{number}"));
            names.map(|name| (state.add_repository(&name), name)).collect()
        });
        let mut setup = Setup::new();
        let clock = twin.clock();
        setup.clock = Clock::new(move || clock.now());
        let config = &mut setup.config;
        config.repositories[0].id = repository;
        config.repositories[0].name = "conda/feedstock".to_owned();
        config.access.terms_version = plan.terms;
        if let Some(rules) = &plan.members {
            config.access.members = rules(person.id, repository);
            for rule in &mut config.access.members {
                if rule.users.remove(0) {
                    rule.users.insert(reader.id);
                }
            }
        }
        let grant = &mut config.access.grants[0];
        grant.repository.id = Some(repository);
        grant.users = [person.id].into();
        grant.events.insert(EventClass::Rerun);
        for (id, full_name) in further.into_iter().take(plan.further.1) {
            let mut grant = config.access.grants[0].clone();
            grant.id = format!("further-{id}");
            (grant.repository.id, grant.repository.name) = (Some(id), full_name.clone());
            config.access.grants.push(grant);
            let first = config.repositories[0].clone();
            config.repositories.push(RepositoryConfig { id, name: full_name, ..first });
        }
        config.pools[0].runners = Some(RunnerOffer {
            labels: if plan.labels.is_empty() {
                LABELS.map(str::to_owned).into()
            } else {
                plan.labels.into_iter().collect()
            },
            exact: false,
            flavor: name("cpu"),
            program: forgeyard_model::resources::runner_program(),
        });
        if !plan.unconnected {
            setup.forges = Connections::new([ConnectionOptions {
                forge: name("github"),
                github: github(&twin, app),
                register: plan.register,
                runner_group: 1,
                scale_sets: plan.scale_sets,
            }])
            .with_logins([(name("github"), login(&twin, app))].into_iter().chain(plan.logins));
        }
        let rules = Files::new(setup.config.clone());
        setup.rules = Some(Arc::clone(&rules) as _);
        let plane = setup.start().await;
        if !plan.silent {
            let url = format!("{}/webhooks/github", plane.url);
            twin.with(|state| {
                let hook = state.app(app).unwrap().hook;
                state.hook_mut(hook).unwrap().url = Some(url);
            });
        }
        let site = Site::join(&plane).await;
        let world = Self {
            twin,
            org,
            repository,
            app,
            person,
            reader,
            plane,
            setup,
            site,
            rules,
            served: BTreeSet::new(),
        };
        if !plan.unconnected {
            // The first poll is none of what tests count.
            eventually("the first poll is over", || async {
                (world.calls_about("/actions/runs") >= 2 * (1 + plan.further.1)).then_some(())
            })
            .await;
            world.twin.with(|state| state.forget_calls());
        }
        world
    }

    /// Stops and starts the control plane.
    pub(crate) async fn restart(self) -> Self {
        self.restart_after(|_| ()).await
    }

    /// The same; something happens at GitHub meanwhile.
    pub(crate) async fn restart_after(self, between: impl FnOnce(&Twin)) -> Self {
        let Self { twin, org, repository, app, person, reader, plane, mut setup, mut site, rules, served } =
            self;
        plane.stop().await;
        between(&twin);
        let plane = setup.start().await;
        site.turn().await;
        Self { twin, org, repository, app, person, reader, plane, setup, site, rules, served }
    }

    /// The same; something is done to what is stored meanwhile.
    pub(crate) async fn restart_with(self, between: impl AsyncFnOnce(&Setup)) -> Self {
        let Self { twin, org, repository, app, person, reader, plane, mut setup, mut site, rules, served } =
            self;
        plane.stop().await;
        between(&setup).await;
        let plane = setup.start().await;
        site.turn().await;
        Self { twin, org, repository, app, person, reader, plane, setup, site, rules, served }
    }

    pub(crate) fn job(&self, name: &str) -> JobSpec {
        JobSpec::new(name, &["self-hosted", "gpu"])
    }

    /// Starts a run of a push with these jobs, and lets its webhooks come.
    pub(crate) async fn push(&self, jobs: Vec<JobSpec>) -> (u64, Vec<u64>) {
        let started = self.push_quietly(jobs);
        self.twin.advance(Duration::from_secs(2)).await;
        started
    }

    /// The same; its webhooks are not due yet.
    pub(crate) fn push_quietly(&self, jobs: Vec<JobSpec>) -> (u64, Vec<u64>) {
        self.twin.with(|state| {
            let run = state.start_run(RunSpec::push(self.repository, &self.person, jobs));
            (run, state.current_jobs(run).iter().map(|job| job.id).collect())
        })
    }

    /// Starts a run of one job that GitHub gives to the runner of this name.
    pub(crate) async fn push_steered(&self, runner: &str) -> (u64, Vec<u64>) {
        let started = self.push_quietly(vec![self.job("build")]);
        self.twin.with(|state| state.steer(started.1[0], runner));
        self.twin.advance(Duration::from_secs(2)).await;
        started
    }

    /// Time passes, and the site goes on reporting.
    pub(crate) async fn advance(&mut self, seconds: u64) {
        let mut left = seconds;
        while left > 0 {
            let step = left.min(20);
            self.twin.advance(Duration::from_secs(step)).await;
            self.site.turn().await;
            left -= step;
        }
    }

    pub(crate) fn demand(&self, job: u64) -> Option<Demand> {
        self.plane.app.core.read().demand_of(&name("github"), job).cloned()
    }

    /// The demand of a job once it is in this state.
    pub(crate) async fn until(&self, job: u64, state: &str) -> Demand {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let demand = self.demand(job);
            if let Some(demand) = demand.clone().filter(|demand| demand.state.name() == state) {
                return demand;
            }
            assert!(std::time::Instant::now() < end, "job {job} is never {state}: {demand:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The next machine that the site is to make and that nobody serves yet.
    pub(crate) async fn machine(&mut self) -> DesiredRunner {
        for _ in 0..3000 {
            let set = self.site.turn().await;
            if let Some(found) = set.runners.into_iter().find(|one| !self.served.contains(&one.runner)) {
                self.served.insert(found.runner);
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no machine was asked for");
    }

    pub(crate) fn runner(&self, id: RunnerId) -> Runner {
        self.plane.app.core.read().runners.get(&id).cloned().unwrap()
    }

    pub(crate) fn registration(&self, id: RunnerId) -> Registration {
        *self.runner(id).registration.unwrap()
    }

    /// Waits until a machine is gone: the site follows what is desired.
    pub(crate) async fn gone(&mut self, id: RunnerId) {
        // The forge says by a webhook that the job is over, or else it is asked after a moment.
        self.twin.advance(Duration::from_secs(12)).await;
        for _ in 0..3000 {
            self.site.turn().await;
            if self.runner(id).state == RunnerState::Deleted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the machine stays: {:?}", self.runner(id));
    }

    /// A machine that is up, with its supervisor.
    pub(crate) async fn boot(&mut self) -> Machine {
        let desired = self.machine().await;
        let agent = Agent::redeem(&self.plane.url, &desired, "a nonce of tests").await;
        agent.client.heartbeat(&agent.session, None).await.unwrap();
        Machine { runner: desired.runner, agent, repository: self.repository, person: self.person.clone() }
    }

    /// A machine whose runner program is connected.
    pub(crate) async fn listen(&mut self) -> (Machine, Program) {
        let machine = self.boot().await;
        let config = machine.config().await.unwrap();
        machine.begins().await;
        let program = Program::connect(&config).await.unwrap();
        (machine, program)
    }

    /// GitHub hands a job only to the runner of this name.
    pub(crate) fn steer(&self, job: u64, runner: &str) {
        self.twin.with(|state| state.steer(job, runner));
    }

    /// A machine whose runner program is connected, and to which GitHub may hand a job that was kept from all others.
    pub(crate) async fn listen_for(&mut self, job: u64) -> (Machine, Program) {
        let machine = self.boot().await;
        let config = machine.config().await.unwrap();
        self.steer(job, &self.registration(machine.runner).name);
        machine.begins().await;
        (machine, Program::connect(&config).await.unwrap())
    }

    /// How many calls of this method went to paths that end so.
    pub(crate) fn calls(&self, method: &str, end: &str) -> usize {
        self.twin.with(|state| {
            let calls = state.calls();
            calls.filter(|call| call.request.method == method && call.request.path.ends_with(end)).count()
        })
    }

    /// How many calls were made whose path contains this.
    pub(crate) fn calls_about(&self, part: &str) -> usize {
        self.twin.with(|state| state.calls().filter(|call| call.request.path.contains(part)).count())
    }

    /// Runners that are registered.
    pub(crate) fn registered(&self) -> Vec<String> {
        self.twin.with(|state| state.runners().map(|runner| runner.name.clone()).collect())
    }

    pub(crate) fn conclusion(&self, job: u64) -> Option<Conclusion> {
        self.twin.with(|state| state.job(job).unwrap().view().conclusion)
    }
}

/// The App as people sign in with it.
pub(crate) fn login(twin: &Twin, app: u64) -> LoginApp {
    let (client_id, client_secret) =
        twin.with(|state| (state.app(app).unwrap().client_id.clone(), state.client_secret(app)));
    let endpoint = Endpoint::at(twin.base(), &twin.api_url()).unwrap();
    LoginApp { kind: Default::default(), endpoint, client_id, client_secret, http: HttpOptions::default() }
}

fn github(twin: &Twin, app: u64) -> Github {
    let clock = twin.clock();
    Github::new(GithubOptions {
        endpoint: Endpoint::at(twin.base(), &twin.api_url()).unwrap(),
        apps: vec![AppIdentity {
            issuer: app.to_string(),
            key: AppKey::from_pem(&Secret::new(APP_KEY)).unwrap(),
        }],
        clock: Arc::new(move || clock.now()),
        http: HttpOptions::default(),
    })
    .unwrap()
}

/// A *simulated* machine: its agent is a script over the real client, its runner program is the twin's.
pub(crate) struct Machine {
    pub(crate) runner: RunnerId,
    pub(crate) agent: Agent,
    repository: u64,
    person: Person,
}

impl Machine {
    pub(crate) async fn config(&self) -> Result<String, ClientError> {
        let config = self.agent.client.runner_config(&self.agent.session, 20).await?;
        Ok(config.config)
    }

    /// The runner program starts.
    pub(crate) async fn begins(&self) {
        self.agent.client.heartbeat(&self.agent.session, Some("runner")).await.unwrap();
    }

    /// The job that the program was given, once it was.
    pub(crate) async fn given(&self, program: &Program) -> GivenJob {
        eventually("the runner is given a job", || async { program.job().await.unwrap() }).await
    }

    /// What the job-started hook finds in its environment.
    pub(crate) fn environment(&self, job: &GivenJob) -> RunnerTook {
        RunnerTook {
            fence: 0,
            wait_seconds: 20,
            repository_id: self.repository,
            repository: job.repository.clone(),
            run: job.run,
            run_attempt: u32::try_from(job.attempt).unwrap(),
            job: "build".to_owned(),
            actor_id: Some(self.person.id),
            actor: Some(self.person.login.clone()),
        }
    }

    pub(crate) async fn took(&self, job: &GivenJob) -> TakenAnswer {
        self.agent.client.runner_took(&self.agent.session, &self.environment(job)).await.unwrap()
    }

    /// The runner program ended with this code.
    pub(crate) async fn finish(&self, exit_code: i32) -> Result<(), ClientError> {
        let at = Timestamp::from_micros(1_767_600_000_000_000);
        let step = StepFacts {
            name: "runner".to_owned(),
            started_at: at,
            ended_at: at,
            exit_code: Some(exit_code),
            signal: None,
        };
        let client =
            CacheClient { client: "ccache".to_owned(), hits: 8, misses: 2, ..CacheClient::default() };
        let cold = CacheCold { cause: "denied".to_owned(), text: "writes are denied".to_owned() };
        let cache = CacheFacts {
            scope: "github/1/main".to_owned(),
            hits: 8,
            misses: 2,
            clients: vec![client],
            cold: Some(cold),
            ..CacheFacts::default()
        };
        let facts = ExitFacts { steps: vec![step], cache: Some(cache), ..ExitFacts::default() };
        self.agent.client.finish(&self.agent.session, &facts).await
    }

    /// The whole life of a runner program.
    pub(crate) async fn work(&self, program: &Program) -> GivenJob {
        let job = self.given(program).await;
        let answer = self.took(&job).await;
        assert!(matches!(answer, TakenAnswer::Allowed { .. }), "{answer:?}");
        program.begin().await.unwrap();
        program.end("success").await.unwrap();
        self.finish(0).await.unwrap();
        job
    }
}
