//! A simulated Forgejo with one repository, and a farm that serves it: what [`crate::world`] is for a GitHub.

use crate::plane::agent::Agent;
use crate::plane::site::Site;
use crate::plane::{Plane, Setup, eventually};
use forgeyard_api::client::ClientError;
use forgeyard_control::app::App;
use forgeyard_control::demand::forgejo::Poll;
use forgeyard_control::forges::Connections;
use forgeyard_forges::forgejo::{Forgejo, OneJob};
use forgeyard_forges::github::HttpOptions;
use forgeyard_forges::twin::{ForgejoState, ForgejoTwin};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::demand::Demand;
use forgeyard_model::forge::Person;
use forgeyard_model::resources::RunnerOffer;
use forgeyard_model::{ForgeName, RunnerId};
use forgeyard_testkit::build::name;
use std::collections::BTreeSet;

/// Numeric id of the repository.
pub(crate) const REPOSITORY: u64 = 4711;

pub(crate) struct Lab {
    pub(crate) twin: ForgejoTwin,
    pub(crate) client: Forgejo,
    pub(crate) forge: ForgeName,
    /// Whom the grant names.
    pub(crate) ada: Person,
    /// Whom no grant names.
    pub(crate) eve: Person,
    pub(crate) plane: Plane,
    /// Holds the data folder: without it the plane has nowhere to seal a configuration.
    _setup: Setup,
    pub(crate) site: Site,
    pub(crate) poll: Poll,
    served: BTreeSet<RunnerId>,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    /// The same; a test changes what the farm is started with.
    pub(crate) async fn with(change: impl FnOnce(&mut FarmConfig)) -> Self {
        let twin = ForgejoTwin::start(ForgejoState::new("lab/solver", REPOSITORY)).await.unwrap();
        let client = Forgejo::new(twin.base(), twin.token(), &HttpOptions::default()).unwrap();
        let forge: ForgeName = name("lab");
        let person = |id, login: &str| Person { id, login: login.to_owned() };
        let (ada, eve) = (person(2, "ada"), person(9, "eve"));
        let mut setup = Setup::new();
        let config = &mut setup.config;
        config.repositories[0].forge = forge.clone();
        config.repositories[0].id = REPOSITORY;
        config.repositories[0].name = "lab/solver".to_owned();
        config.access.forge = Some(forge.clone());
        let grant = &mut config.access.grants[0];
        grant.repository.id = Some(REPOSITORY);
        grant.users = [ada.id].into();
        config.pools[0].runners = Some(RunnerOffer {
            labels: ["linux", "gpu"].map(str::to_owned).into(),
            exact: false,
            flavor: name("cpu"),
            program: vec!["/opt/forgejo-runner/run.sh".to_owned()],
        });
        change(config);
        setup.forges = Connections::default().with_forgejo(forge.clone(), client.clone());
        let plane = setup.start().await;
        let site = Site::join(&plane).await;
        Self {
            twin,
            client,
            forge,
            ada,
            eve,
            plane,
            _setup: setup,
            site,
            poll: Poll::default(),
            served: BTreeSet::new(),
        }
    }

    /// The farm asks for the list of jobs.
    pub(crate) async fn round(&mut self) {
        self.poll.round(&self.plane.app, &self.forge, &self.client).await;
    }

    pub(crate) fn demand(&self, job: u64) -> Option<Demand> {
        self.plane.app.core.read().demand_of(&self.forge, job).cloned()
    }

    pub(crate) fn state(&self, job: u64) -> Option<&'static str> {
        self.demand(job).map(|demand| demand.state.name())
    }

    /// Lists are asked for until a job is in one of these states.
    pub(crate) async fn until(&mut self, job: u64, states: &[&str]) -> Demand {
        for _ in 0..600 {
            self.round().await;
            if let Some(demand) = self.demand(job).filter(|demand| states.contains(&demand.state.name())) {
                return demand;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("job {job} is never {states:?}: {:#?}", self.demand(job));
    }

    /// The next machine that the site is to make and that nobody serves yet is up, with its supervisor.
    pub(crate) async fn boot(&mut self) -> LabMachine {
        for _ in 0..3000 {
            let wanted = self.site.turn().await.runners;
            if let Some(desired) = wanted.into_iter().find(|one| !self.served.contains(&one.runner)) {
                self.served.insert(desired.runner);
                let agent = Agent::redeem(&self.plane.url, &desired, "a nonce of tests").await;
                agent.client.heartbeat(&agent.session, None).await.unwrap();
                return LabMachine { runner: desired.runner, agent, app: self.plane.app.clone() };
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no machine was asked for");
    }
}

/// A *simulated* machine: its agent is a script over the real client.
pub(crate) struct LabMachine {
    pub(crate) runner: RunnerId,
    pub(crate) agent: Agent,
    app: App,
}

impl LabMachine {
    /// The configuration as it is handed over. "Ask again" is an answer: the registration is an effect, and comes when it
    /// comes. Any other refusal ends the test with its reason.
    pub(crate) async fn word(&self) -> String {
        let session = &self.agent.session;
        eventually("the machine has its configuration", || async {
            match self.agent.client.runner_config(session, 5).await {
                Ok(answer) => Some(answer.config),
                Err(ClientError::Refused { error, .. }) if error.code == "registration.not_minted" => None,
                Err(error) => {
                    let farm = self.app.core.read();
                    let open: Vec<_> =
                        farm.effects.values().filter(|one| one.effect.demand().is_some()).collect();
                    let attempt = farm.attempts.get(&session.attempt).and_then(|one| one.verdict.as_ref());
                    panic!("no configuration: {error}: {attempt:#?} {open:#?}")
                }
            }
        })
        .await
    }

    pub(crate) async fn handover(&self) -> OneJob {
        OneJob::decode(&self.word().await).unwrap()
    }

    /// The runner program starts.
    pub(crate) async fn begins(&self) {
        self.agent.client.heartbeat(&self.agent.session, Some("runner")).await.unwrap();
    }
}
