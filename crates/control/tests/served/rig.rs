//! A control plane in this process, on a database and a blob store in memory, with a *simulated* site and agent that
//! speak to the core directly.

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, header};
use forgeyard_api::people::TokenRequest;
use forgeyard_blobs::MemoryStore;
use forgeyard_control::app::App;
use forgeyard_control::cache_admin::CacheAdmin;
use forgeyard_control::clock::Clock;
use forgeyard_control::serve::{self, Options, Running};
use forgeyard_control::{auth, core, http, keys, logs};
use forgeyard_db::twin::Twin;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::input::{Input, Reply, StoredSource};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::principal::Role;
use forgeyard_model::resources::{DeviceKind, Limit};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::{HostFacts, SiteReport};
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{AttemptId, Digest, JobId, PipelineId, SiteId, Timestamp};
use forgeyard_testkit::build;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// The farm with what tests need of it.
pub(crate) struct Rig {
    pub(crate) app: App,
    pub(crate) address: String,
    pub(crate) admin: String,
    /// Seconds that the farm's clock is ahead.
    pub(crate) ahead: Arc<AtomicI64>,
    stop: CancellationToken,
    running: Running,
    _folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::beside(None).await
    }

    /// A farm with this build cache.
    pub(crate) async fn with_cache(cache: Arc<dyn CacheAdmin>) -> Self {
        Self::beside(Some(cache)).await
    }

    async fn beside(cache: Option<Arc<dyn CacheAdmin>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let ahead = Arc::new(AtomicI64::new(0));
        let (system, seconds) = (Clock::system(), Arc::clone(&ahead));
        let clock = Clock::new(move || {
            let extra = seconds.load(Ordering::Relaxed) * 1_000_000;
            Timestamp::from_micros(system.now().as_micros() + extra)
        });
        let stop = CancellationToken::new();
        let blob_clock = clock.clone();
        let options = Options {
            config: build::config(),
            data: folder.path().to_owned(),
            store: Arc::new(Twin::new()),
            blobs: Arc::new(MemoryStore::new(Arc::new(move || blob_clock.now()))),
            listener,
            public_url: address.clone(),
            tls: None,
            local: None,
            forges: Default::default(),
            webhook_secret: None,
            cache_admin: cache,
            rules: None,
            started_by: "tests".to_owned(),
            artifact_limit: 1 << 20,
            cache_tokens: None,
            clock,
            metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
        };
        let running = serve::start(options, stop.clone()).await.unwrap();
        let app = running.app.clone();
        let (admin, _) = app.keys.admin_token().unwrap();
        Self { app, address, admin: admin.expose().to_owned(), ahead, stop, running, _folder: folder }
    }

    /// Ends the farm; it must end although browsers still listen.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(20), self.running.wait()).await;
        ended.expect("the control plane ends in good time").expect("it ends well");
    }

    /// A token with this role.
    pub(crate) async fn token(&self, name: &str, role: Role) -> String {
        let token = keys::new_token();
        let request = TokenRequest {
            name: name.to_owned(),
            role,
            expires_in_seconds: None,
            repositories: Default::default(),
        };
        http::people::issue(&self.app, core::farm(), &token, &request).await.unwrap();
        token
    }

    /// A session of this token, as the sign-in would make it.
    pub(crate) fn session(&self, token: &str) -> String {
        let end = self.app.clock.now().plus(Duration::from_secs(3600));
        self.app.keys.cookie(&Digest::of(token.as_bytes()), end.as_micros())
    }

    /// Asks the router, without a network between.
    pub(crate) async fn ask(&self, request: Request<Body>) -> Answer {
        Answer::of(http::router(self.app.clone()).oneshot(request).await.unwrap()).await
    }

    /// Gives an input as the farm.
    pub(crate) async fn give(&self, input: Input) -> Reply {
        self.app.core.give(input, core::farm()).await.unwrap()
    }

    pub(crate) async fn join(&self) -> SiteId {
        let input = Input::SiteJoined {
            name: build::name("box"),
            token: Digest::of(b"simulated"),
            public_key: "ab".repeat(32),
        };
        match self.give(input).await {
            Reply::Site { site } => site,
            other => panic!("{other:?}"),
        }
    }

    /// Reports a host with one *simulated* GPU, on which every machine that should exist runs.
    pub(crate) async fn report(&self, site: SiteId) {
        let report = {
            let farm = self.app.core.read();
            let wanted = farm.runners.values().filter(|runner| runner.state.wanted());
            let limits: std::collections::BTreeSet<Limit> =
                [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network]
                    .into();
            let runners = wanted.map(|runner| ObservedRunner {
                runner: runner.id,
                state: ObservedState::Running,
                enforced: limits.clone(),
            });
            SiteReport {
                epoch: farm.epoch,
                generation: farm.sites.get(&site).map_or(0, |site| site.desired_generation),
                host: HostFacts {
                    host: "box".to_owned(),
                    cpu_millis: 8000,
                    memory_mib: 32 << 10,
                    kernel: "6.1.0".to_owned(),
                    providers: [build::name("sandbox")].into(),
                    enforces: limits.clone(),
                    cannot: Vec::new(),
                },
                devices: vec![DeviceFacts {
                    key: "opencl:0:0".to_owned(),
                    kind: DeviceKind::OpenclCpu,
                    model: "pthread-haswell".to_owned(),
                    uuid: None,
                    driver: "pocl 6.0".to_owned(),
                    memory_mib: 2048,
                    compute_capability: 0,
                    iommu_group: None,
                    moves_with: Vec::new(),
                    numa_node: None,
                    nodes: Vec::new(),
                }],
                runners: runners.collect(),
                leases: Vec::new(),
            }
        };
        self.give(Input::SiteReported { site, report: Box::new(report) }).await;
    }

    /// Hands in a recipe folder.
    pub(crate) async fn run(&self, name: &str) -> PipelineId {
        let digest = self.app.blobs.put_bytes(name.as_bytes()).await.unwrap().digest;
        let source = StoredSource { name: name.to_owned(), digest, size: name.len() as u64 };
        let input = Input::RunRequested { guid: format!("run-{name}"), source, file: Box::default() };
        match self.give(input).await {
            Reply::Pipeline { pipeline } => pipeline,
            other => panic!("{other:?}"),
        }
    }

    /// The only job of a pipeline that has just begun.
    pub(crate) fn plan_of(&self, pipeline: PipelineId) -> JobId {
        self.app.core.read().jobs_of(pipeline).next().unwrap().id
    }

    pub(crate) fn job(&self, id: JobId) -> Job {
        self.app.core.read().jobs.get(&id).cloned().unwrap()
    }

    /// Waits until the job is placed, and lets a simulated agent start it.
    pub(crate) async fn begin(&self, site: SiteId, job: JobId) -> AttemptId {
        let mut version = self.app.core.version();
        let attempt = loop {
            version.catch_up();
            if let JobState::Placed { attempt } = self.job(job).state {
                break attempt;
            }
            let changed = tokio::time::timeout(Duration::from_secs(10), version.changed()).await;
            changed.unwrap_or_else(|_| panic!("not placed: {:?}", self.job(job))).unwrap();
        };
        self.report(site).await;
        self.give(Input::TokenRedeemed { attempt, nonce: "0123456789".to_owned() }).await;
        attempt
    }

    pub(crate) async fn step(&self, attempt: AttemptId, step: &str) {
        let fence = self.app.core.read().attempts[&attempt].fence;
        self.give(Input::AgentHeard { attempt, fence, step: Some(step.to_owned()) }).await;
    }

    pub(crate) async fn write(&self, attempt: AttemptId, text: &str) {
        let at = self.app.store.log_state(attempt).await.unwrap().durable;
        logs::append(&self.app, attempt, at, text.as_bytes()).await.unwrap();
    }

    /// Ends an attempt whose one step ended with this status.
    pub(crate) async fn finish(&self, attempt: AttemptId, step: &str, exit: i32, canceled: bool) {
        let now = self.app.clock.now();
        let steps = vec![StepFacts {
            name: step.to_owned(),
            started_at: now,
            ended_at: now,
            exit_code: (!canceled).then_some(exit),
            signal: canceled.then_some(15),
        }];
        let facts = ExitFacts { steps, canceled, ..ExitFacts::default() };
        let fence = self.app.core.read().attempts[&attempt].fence;
        let reading = logs::read_for_verdict(&self.app, attempt, &[]).await.unwrap();
        let (hits, tail) = (reading.hits, reading.tail);
        self.give(Input::AttemptFinished { attempt, fence, facts: Box::new(facts), hits, tail }).await;
        self.app.store.log_complete(attempt).await.unwrap();
    }
}

/// A request without a body.
pub(crate) fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header(header::HOST, "farm.test")
}

/// With the cookie of a session.
pub(crate) fn cookie(value: &str) -> String {
    format!("other=1; {}={value}", auth::COOKIE)
}

/// An answer that was read.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        // Streams of events have no end.
        let read = to_bytes(body, 1 << 20);
        let bytes = tokio::time::timeout(Duration::from_secs(2), read).await;
        let bytes = bytes.map(Result::unwrap_or_default).unwrap_or_default();
        let body = String::from_utf8_lossy(&bytes).into_owned();
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}
