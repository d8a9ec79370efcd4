//! A *simulated* GitHub in this process that answers at once, and webhooks in GitHub's shape, signed.

use crate::plane::SECRET;
use bytes::Bytes;
use forgeyard_control::clock::Clock;
use forgeyard_control::forges::{ConnectionOptions, Connections, Register};
use forgeyard_forges::github::{AppIdentity, AppKey, Endpoint, Github, GithubOptions, HttpOptions};
use forgeyard_forges::twin::{APP_KEY, Direct, JobSpec, Outcome, RunSpec, Setup, State};
use forgeyard_model::Secret;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::forge::Person;
use forgeyard_model::pool::LaunchRate;
use forgeyard_model::resources::{RunnerOffer, runner_program};
use forgeyard_testkit::build::name;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const REPOSITORY: &str = "octo/demo";
const LABELS: [&str; 2] = ["self-hosted", "linux"];

/// The forge.
pub(crate) struct Hub {
    state: Mutex<State>,
    clock: Clock,
    app: u64,
    repository: u64,
    person: Person,
}

/// A webhook that tells of a queued job.
pub(crate) struct Hook {
    /// The forge's id of the job.
    pub(crate) job: u64,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

/// How a webhook fared.
pub(crate) struct Sent {
    /// The forge's id of the job.
    pub(crate) job: u64,
    /// When it was due.
    pub(crate) due: Instant,
    /// From then to the answer.
    pub(crate) answered: Duration,
}

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        let clock = Clock::system();
        let mut state = State::new(Setup {
            now: clock.now(),
            // What is measured is the farm; with limits, its budget would be.
            rate_limits: false,
            delivery_delay: Duration::ZERO,
            keep_accepted_bodies: false,
            calls_kept: 0,
            ..Setup::default()
        });
        state.set_base("http://127.0.0.1");
        let organisation = state.add_organization("octo");
        let repository = state.add_repository(REPOSITORY);
        let person = state.add_user("octocat");
        let url = Some("http://127.0.0.1/webhooks/github");
        let app = state.add_app(organisation, "forgeyard", url, Secret::new(SECRET));
        state.install(app, organisation, None);
        Arc::new(Self { state: Mutex::new(state), clock, app, repository, person })
    }

    /// The configuration of a farm, so that it serves this forge.
    pub(crate) fn served_by(&self, mut config: FarmConfig) -> FarmConfig {
        config.repositories[0].id = self.repository;
        config.repositories[0].name = REPOSITORY.to_owned();
        let grant = &mut config.access.grants[0];
        grant.repository.id = Some(self.repository);
        grant.repository.name = REPOSITORY.to_owned();
        grant.users = [self.person.id].into();
        let pool = &mut config.pools[0];
        pool.launches = LaunchRate { burst: 100_000, per_minute: 100_000 };
        pool.runners = Some(RunnerOffer {
            labels: LABELS.map(str::to_owned).into(),
            exact: false,
            flavor: name("cpu"),
            program: runner_program(),
        });
        config
    }

    /// The connection to it: no socket, and no time.
    pub(crate) fn connections(self: &Arc<Self>) -> Connections {
        let hub = Arc::clone(self);
        let direct: Direct = Arc::new(move |request| {
            let served = {
                let mut state = hub.state.lock().unwrap();
                state.advance_to(hub.clock.now());
                state.serve(&request)
            };
            Box::pin(async move {
                match served.outcome {
                    Outcome::Answer(reply) if !served.closes => Some(reply),
                    Outcome::Answer(_) | Outcome::Hold(_) => None,
                }
            })
        });
        let clock = self.clock.clone();
        let options = GithubOptions {
            endpoint: Endpoint::at("http://127.0.0.1", "http://127.0.0.1").unwrap(),
            apps: vec![AppIdentity {
                issuer: self.app.to_string(),
                key: AppKey::from_pem(&Secret::new(APP_KEY)).unwrap(),
            }],
            clock: Arc::new(move || clock.now()),
            http: HttpOptions::default(),
        };
        Connections::new([ConnectionOptions {
            forge: name("github"),
            github: Github::direct(options, direct).unwrap(),
            register: Register::Repository,
            runner_group: 1,
            scale_sets: Vec::new(),
        }])
    }

    /// Starts runs of so many jobs each, and answers the webhooks that tell that the jobs are queued.
    pub(crate) fn queue(&self, runs: u64, of_run: u64) -> Vec<Hook> {
        let mut state = self.state.lock().unwrap();
        state.advance_to(self.clock.now());
        state.take_due_deliveries();
        let mut hooks = Vec::new();
        for _ in 0..runs {
            let jobs =
                (0..of_run).map(|number| JobSpec::new(&format!("build ({number})"), &LABELS)).collect();
            state.start_run(RunSpec::push(self.repository, &self.person, jobs));
            state.advance_to(self.clock.now());
            for one in state.take_due_deliveries() {
                state.delivery_answered(one.delivery, Ok(202));
                let told: serde_json::Value = serde_json::from_slice(&one.body).unwrap();
                if told["action"] == "queued"
                    && let Some(job) = told["workflow_job"]["id"].as_u64()
                {
                    hooks.push(Hook { job, headers: one.headers, body: Bytes::copy_from_slice(&one.body) });
                }
            }
        }
        assert_eq!(hooks.len() as u64, runs * of_run, "a webhook tells of each queued job");
        hooks
    }
}

/// Sends webhooks at a rate, whether or not earlier ones were answered: the next one is due when it is due. Times count
/// from then, so that a sender that falls behind is no excuse.
pub(crate) async fn send_all(url: &str, rate: u64, hooks: Vec<Hook>) -> Vec<Sent> {
    let http = reqwest::Client::new();
    let begin = Instant::now() + Duration::from_millis(200);
    let mut calls = Vec::with_capacity(hooks.len());
    for (n, hook) in (0..).zip(hooks) {
        let due = begin + Duration::from_micros(1_000_000 / rate) * n;
        let (http, url) = (http.clone(), url.to_owned());
        calls.push(tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            let request = hook
                .headers
                .iter()
                .fold(http.post(&url), |request, (name, value)| request.header(*name, value));
            let answer = request.body(hook.body).send().await.unwrap();
            let answered = due.elapsed();
            assert!(answer.status().is_success(), "a webhook was answered {}", answer.status());
            Sent { job: hook.job, due, answered }
        }));
    }
    futures::future::join_all(calls).await.into_iter().map(Result::unwrap).collect()
}
