//! Two control planes on one PostgreSQL, killed in turns: one leads, the other stands by, nothing is lost.
//!
//! Real: two processes with the whole control plane, PostgreSQL, HTTP, `kill -9`. Simulated: GitHub (over HTTP), the site, its
//! machines, their agents and runner programs. Before both planes stands a small proxy, as it would in front of a farm
//! of two: it asks the one that does not answer 503.
//!
//! `FORGEYARD_SEED` says who is killed and when; the seed is printed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod plane;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use forgeyard_api::agent::{
    FINISH, Finish, HEARTBEAT, Heartbeat, REDEEM, RUNNER_CONFIG, RUNNER_TOOK, Redeem, Redeemed, RunnerConfig,
    RunnerConfigRequest, RunnerTook, VERSION,
};
use forgeyard_api::client::HttpOptions as ClientOptions;
use forgeyard_api::client::site::SiteClient;
use forgeyard_api::site::DesiredQuery;
use forgeyard_blobs::DiskStore;
use forgeyard_control::clock::Clock;
use forgeyard_control::forges::{ConnectionOptions, Connections, Register};
use forgeyard_control::serve::{self, Options};
use forgeyard_db::Keep;
use forgeyard_db::testing::postgres;
use forgeyard_engine::Farm;
use forgeyard_forges::github::{AppIdentity, AppKey, Endpoint, Github, GithubOptions, HttpOptions};
use forgeyard_forges::twin::{
    APP_KEY, Conclusion, JobSpec, JobStatus, RunSpec, Runner as Program, Setup, Twin,
};
use forgeyard_model::access::EventClass;
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::resources::{RunnerOffer, runner_program};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{DesiredRunner, SiteReport};
use forgeyard_model::verdict::{ExitFacts, Outcome, StepFacts};
use forgeyard_model::{RunnerId, Secret, Timestamp};
use forgeyard_testkit::build::{self, name};
use forgeyard_testkit::rng::Rng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// What a process of its own is started with.
#[derive(Serialize, Deserialize)]
struct Start {
    address: SocketAddr,
    database: String,
    data: PathBuf,
    github: String,
    app: u64,
    repository: u64,
    person: u64,
}

const START: &str = "FORGEYARD_TEST_PLANE";

/// A control plane, when this process was started to be one. By itself it claims nothing.
#[test]
fn plane_process() {
    let Ok(text) = std::env::var(START) else { return };
    let start: Start = serde_json::from_str(&text).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(lead(start));
}

async fn lead(start: Start) {
    let mut config = build::config();
    config.repositories[0].id = start.repository;
    config.repositories[0].name = "conda/feedstock".to_owned();
    let grant = &mut config.access.grants[0];
    grant.repository.id = Some(start.repository);
    grant.users = [start.person].into();
    grant.events.insert(EventClass::Rerun);
    config.pools[0].runners = Some(RunnerOffer {
        labels: ["gpu".to_owned()].into(),
        exact: false,
        flavor: name("cpu"),
        program: runner_program(),
    });
    let clock = Clock::system();
    let (stamp, time) = (clock.clone(), clock.clone());
    let github = Github::new(GithubOptions {
        endpoint: Endpoint::at(&start.github, &start.github).unwrap(),
        apps: vec![AppIdentity {
            issuer: start.app.to_string(),
            key: AppKey::from_pem(&Secret::new(APP_KEY)).unwrap(),
        }],
        clock: Arc::new(move || time.now()),
        http: HttpOptions::default(),
    });
    let forges = Connections::new([ConnectionOptions {
        forge: name("github"),
        github: github.unwrap(),
        register: Register::Repository,
        runner_group: 1,
        scale_sets: Vec::new(),
    }]);
    // A folder of blobs belongs to one process; jobs of forges leave nothing in it.
    let blobs = start.data.join(format!("blobs-{}", start.address.port()));
    let blobs = DiskStore::open(blobs, Arc::new(move || stamp.now())).await.unwrap();
    let options = Options {
        config,
        store: forgeyard_db::open(&start.database, &start.data).await.unwrap(),
        data: start.data,
        blobs: Arc::new(blobs),
        listener: serve::bind(start.address).await.unwrap(),
        public_url: format!("http://{}", start.address),
        tls: None,
        local: None,
        forges,
        webhook_secret: Some(plane::webhook_secret()),
        artifact_limit: 1 << 20,
        cache_tokens: None,
        clock,
        metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
        cache_admin: None,
        rules: None,
        started_by: "two planes".to_owned(),
    };
    let ended = match serve::start(options, CancellationToken::new()).await {
        Ok(running) => running.wait().await,
        Err(error) => Err(error),
    };
    println!("the control plane ended: {ended:?}");
}

/// Asks whichever plane leads.
async fn proxy(State(planes): State<Arc<Vec<SocketAddr>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let client = reqwest::Client::new();
    for address in planes.iter() {
        let mut headers = parts.headers.clone();
        headers.remove("host");
        let call = client
            .request(parts.method.clone(), format!("http://{address}{}", parts.uri))
            .headers(headers)
            .body(body.clone());
        let Ok(answer) = call.send().await else { continue };
        if answer.status() == 503 {
            continue;
        }
        let status = answer.status();
        if let Ok(bytes) = answer.bytes().await {
            return Response::builder().status(status).body(Body::from(bytes)).unwrap();
        }
    }
    Response::builder().status(503).body(Body::from(Bytes::new())).unwrap()
}

/// The farm from outside.
struct World {
    twin: Twin,
    url: String,
    http: reqwest::Client,
    repository: u64,
    person: forgeyard_model::forge::Person,
    served: Mutex<BTreeMap<RunnerId, Arc<Mutex<bool>>>>,
    trouble: Mutex<Vec<String>>,
}

impl World {
    /// A call that is repeated until a plane answers.
    async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        session: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, String> {
        loop {
            let mut request = self.http.post(format!("{}{path}", self.url)).json(body);
            if let Some(session) = session {
                request = request.bearer_auth(session);
            }
            if let Ok(answer) = request.send().await {
                let status = answer.status();
                let text = answer.text().await.unwrap_or_default();
                if status.is_success() {
                    return Ok(serde_json::from_str(&text).unwrap());
                }
                if status != 503 {
                    return Err(text);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The site: follows what is desired, says of every machine that it runs.
    async fn site(self: Arc<Self>, client: SiteClient) {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let query = DesiredQuery { after: 0, epoch: 0, wait_seconds: 0 };
            let Ok(set) = client.desired(&query).await else { continue };
            for wanted in &set.runners {
                let mut served = self.served.lock().unwrap();
                if served.contains_key(&wanted.runner) {
                    continue;
                }
                let at_work = Arc::new(Mutex::new(false));
                served.insert(wanted.runner, Arc::clone(&at_work));
                tokio::spawn(Arc::clone(&self).agent(wanted.clone(), at_work));
            }
            let wanted: BTreeSet<RunnerId> = set.runners.iter().map(|one| one.runner).collect();
            for (runner, at_work) in self.served.lock().unwrap().iter() {
                if !wanted.contains(runner) && *at_work.lock().unwrap() {
                    self.trouble.lock().unwrap().push(format!("{runner} is unwanted while it works"));
                }
            }
            let runners = set.runners.iter().map(|one| ObservedRunner {
                runner: one.runner,
                state: ObservedState::Running,
                enforced: plane::site::limits(),
            });
            let report = SiteReport {
                epoch: set.epoch,
                generation: set.generation,
                host: plane::site::host(),
                devices: Vec::new(),
                runners: runners.collect(),
                leases: Vec::new(),
            };
            let _ = client.report(&report).await;
        }
    }

    async fn agent(self: Arc<Self>, wanted: DesiredRunner, at_work: Arc<Mutex<bool>>) {
        let ended = self.work(&wanted, &at_work).await;
        // One that has no job may be let go: another runner may have got the job that it was made for.
        if let (Err(error), true) = (ended, *at_work.lock().unwrap()) {
            self.trouble.lock().unwrap().push(format!("{}: {error}", wanted.runner));
        }
        *at_work.lock().unwrap() = false;
    }

    /// The life of one agent with its runner program.
    async fn work(&self, wanted: &DesiredRunner, at_work: &Mutex<bool>) -> Result<(), String> {
        let redeem = Redeem {
            version: VERSION,
            token: wanted.token.clone(),
            nonce: format!("nonce of {}", wanted.runner),
        };
        let redeemed: Redeemed = self.call(REDEEM, None, &redeem).await?;
        let path = |template: &str| template.replace("{attempt}", &redeemed.attempt.to_string());
        let (session, fence) = (Some(redeemed.session.as_str()), redeemed.fence);
        let beat =
            |step: Option<&str>| Heartbeat { fence, step: step.map(str::to_owned), quiet_seconds: None };
        let _: serde_json::Value = self.call(&path(HEARTBEAT), session, &beat(None)).await?;
        let config: RunnerConfig = loop {
            let request = RunnerConfigRequest { fence, wait_seconds: 5 };
            match self.call(&path(RUNNER_CONFIG), session, &request).await {
                Ok(config) => break config,
                Err(error) if error.contains("registration.not_minted") => {}
                Err(error) => return Err(error),
            }
        };
        let _: serde_json::Value = self.call(&path(HEARTBEAT), session, &beat(Some("runner"))).await?;
        let program = Program::connect(&config.config).await.map_err(|error| error.to_string())?;
        let given = loop {
            match program.job().await.map_err(|error| error.to_string())? {
                Some(given) => break given,
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        *at_work.lock().unwrap() = true;
        let took = RunnerTook {
            fence,
            wait_seconds: 5,
            repository_id: self.repository,
            repository: given.repository.clone(),
            run: given.run,
            run_attempt: 1,
            job: "build".to_owned(),
            actor_id: Some(self.person.id),
            actor: Some(self.person.login.clone()),
        };
        loop {
            match self.call(&path(RUNNER_TOOK), session, &took).await? {
                TakenAnswer::Allowed { .. } => break,
                TakenAnswer::Asked => {}
                TakenAnswer::Refused { reason } => return Err(reason.to_string()),
            }
        }
        program.begin().await.map_err(|error| error.to_string())?;
        // It works through the death of whoever leads.
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _: serde_json::Value = self.call(&path(HEARTBEAT), session, &beat(Some("runner"))).await?;
        }
        program.end("success").await.map_err(|error| error.to_string())?;
        *at_work.lock().unwrap() = false;
        let at = Timestamp::from_micros(1_767_600_000_000_000);
        let step = StepFacts {
            name: "runner".to_owned(),
            started_at: at,
            ended_at: at,
            exit_code: Some(0),
            signal: None,
        };
        let finish = Finish { fence, facts: ExitFacts { steps: vec![step], ..ExitFacts::default() } };
        // An answer that was lost with its plane: the second try finds the attempt over.
        match self.call::<serde_json::Value>(&path(FINISH), session, &finish).await {
            Err(error) if !error.contains("superseded") => Err(error),
            _ => Ok(()),
        }
    }
}

fn spawn(start: &Start, said: &Path) -> Child {
    let output = std::fs::File::options().create(true).append(true).open(said).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "plane_process", "--nocapture"])
        .env(START, serde_json::to_string(start).unwrap())
        .stdin(Stdio::null())
        .stderr(output.try_clone().unwrap())
        .stdout(output)
        .spawn()
        .unwrap()
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Who leads, once somebody does: the one that does not say that it stands by.
async fn leader(http: &reqwest::Client, planes: &[SocketAddr]) -> usize {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        for (place, address) in planes.iter().enumerate() {
            let call = http.get(format!("http://{address}/api/v1/jobs")).send().await;
            if call.is_ok_and(|answer| answer.status() == 401) {
                return place;
            }
        }
        assert!(Instant::now() < end, "nobody leads after a minute");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn either_of_two_control_planes_is_killed_at_any_moment_and_nothing_is_lost() {
    let Some(schema) = postgres::schema().await else { return };
    let seed = std::env::var("FORGEYARD_SEED").map_or(5, |text| text.parse().unwrap());
    println!("FORGEYARD_SEED={seed}");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut rng = Rng::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { now: Clock::system().now(), ..Setup::default() };
    let mut twin = Twin::start(setup).await.unwrap();
    let (repository, app, person) = twin.with(|state| {
        let org = state.add_organization("conda");
        let repository = state.add_repository("conda/feedstock");
        let app = state.add_app(org, "forgeyard", None, plane::webhook_secret());
        state.install(app, org, None);
        (repository, app, state.add_user("maintainer"))
    });
    twin.run_freely(1);
    let planes = Arc::new(vec![free_address(), free_address()]);
    let said = folder.path().join("said");
    let starts: Vec<Start> = planes
        .iter()
        .map(|address| Start {
            address: *address,
            database: schema.url.clone(),
            data: folder.path().join("data"),
            github: twin.base().to_owned(),
            app,
            repository,
            person: person.id,
        })
        .collect();
    let mut children: Vec<Child> = starts.iter().map(|start| spawn(start, &said)).collect();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(proxy).with_state(Arc::clone(&planes));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let http = reqwest::Client::new();

    let first = leader(&http, &planes).await;
    let other = planes[1 - first];
    let end = Instant::now() + Duration::from_secs(30);
    let refusal = loop {
        let answer = http.get(format!("http://{other}/api/v1/jobs")).send().await;
        match answer {
            Ok(answer) if answer.status() == 503 => break answer.text().await.unwrap(),
            other => {
                let log = std::fs::read_to_string(&said).unwrap_or_default();
                assert!(
                    Instant::now() < end,
                    "the other one does not say that it stands by: {other:?}; {log}"
                );
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(refusal.contains("farm.standby") && refusal.contains("leads"), "{refusal}");

    twin.with(|state| {
        let hook = state.app(app).unwrap().hook;
        state.hook_mut(hook).unwrap().url = Some(format!("{url}/webhooks/github"));
    });
    let token = std::fs::read_to_string(folder.path().join("data/join.token")).unwrap();
    let client = SiteClient::new(&url, &ClientOptions::default()).unwrap();
    let joined = client.join(&plane::site::join_request(token.trim())).await.unwrap();
    let (served, trouble) = Default::default();
    let world = Arc::new(World { twin, url, http, repository, person, served, trouble });
    tokio::spawn(Arc::clone(&world).site(client.with_token(Secret::new(joined.token))));

    let mut longest = Duration::ZERO;
    for round in 0..6 {
        world.twin.with(|state| {
            let jobs =
                (0..2).map(|number| JobSpec::new(&format!("job {round} {number}"), &["gpu"])).collect();
            state.start_run(RunSpec::push(repository, &world.person, jobs))
        });
        tokio::time::sleep(Duration::from_millis(200 + rng.below(4000) as u64)).await;
        let leads = leader(&world.http, &planes).await;
        let victim = if rng.chance(65) { leads } else { 1 - leads };
        children[victim].kill().unwrap();
        children[victim].wait().unwrap();
        let killed = Instant::now();
        leader(&world.http, &planes).await;
        longest = longest.max(killed.elapsed());
        children[victim] = spawn(&starts[victim], &said);
    }
    println!("a leader was there again after {:.1} s at most", longest.as_secs_f64());

    let end = Instant::now() + Duration::from_secs(150);
    loop {
        let open =
            world.twin.with(|state| state.jobs().filter(|job| job.status() != JobStatus::Completed).count());
        if open == 0 {
            break;
        }
        let log = || std::fs::read_to_string(&said).unwrap_or_default();
        assert!(Instant::now() < end, "{open} jobs are open; {:?}; {}", world.trouble.lock().unwrap(), log());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // The last machines go.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for mut child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_eq!(*world.trouble.lock().unwrap(), Vec::<String>::new());
    world.twin.with(|state| {
        assert_eq!(state.jobs().count(), 12);
        assert!(state.jobs().all(|job| job.view().conclusion == Some(Conclusion::Success)));
    });
    let store = forgeyard_db::open(&schema.url, &folder.path().join("data")).await.unwrap();
    let farm = Farm::load(store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap().rows);
    assert_eq!(farm.demands.len(), 12);
    for job in farm.jobs.keys() {
        let attempts = farm.attempts_of(*job);
        let fences: Vec<u32> = attempts.iter().map(|attempt| attempt.fence).collect();
        assert!(fences.windows(2).all(|two| two[0] < two[1]), "{job}: {fences:?}");
        assert!(attempts.iter().filter(|attempt| attempt.state.live()).count() <= 1, "{job}");
    }
    let good = farm.attempts.values().filter(|attempt| attempt.outcome == Some(Outcome::Succeeded)).count();
    assert_eq!(good, 12, "each job was done by one machine");
    store.close().await;
}
