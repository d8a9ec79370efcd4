//! A control plane in this process.

use forgeyard_blobs::{BlobStore, DiskStore};
use forgeyard_control::app::{App, Parts};
use forgeyard_control::clock::Clock;
use forgeyard_control::core::{self, Core};
use forgeyard_control::forges::Connections;
use forgeyard_control::keys::Keys;
use forgeyard_control::sealed::Sealed;
use forgeyard_control::{http, reader, serve};
use forgeyard_db::Store;
use forgeyard_forges::GitSource;
use forgeyard_formats::webhook::compose::{ComposedPullRequest, ComposedRepository, Signed};
use forgeyard_model::Secret;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::pool::LaunchRate;
use forgeyard_testkit::build;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) const SECRET: &str = "a secret of this run";

/// A control plane that runs.
pub(crate) struct Plane {
    pub(crate) app: App,
    pub(crate) url: String,
    stop: CancellationToken,
    running: Option<serve::Running>,
}

/// The configuration of all figures: room for as many jobs as they make.
pub(crate) fn config(source: &Path, max_running: u32) -> FarmConfig {
    let mut config = build::config();
    config.max_running = max_running;
    config.pools[0].max = 100_000;
    // What is measured is the farm, not how fast a pool may start machines.
    config.pools[0].launches = LaunchRate { burst: 100_000, per_minute: 100_000 };
    config.repositories[0].source = source.display().to_string();
    config
}

pub(crate) async fn sqlite(data: &Path) -> Arc<dyn Store> {
    forgeyard_db::open("sqlite:", data).await.unwrap()
}

async fn blobs(data: &Path) -> Arc<dyn BlobStore> {
    let clock = Clock::system();
    Arc::new(DiskStore::open(data.join("blobs"), Arc::new(move || clock.now())).await.unwrap())
}

impl Plane {
    /// All of it, as `forgeyard serve` starts it.
    pub(crate) async fn start(data: &Path, store: Arc<dyn Store>, config: FarmConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let options = serve::Options {
            config,
            data: data.to_owned(),
            store,
            blobs: blobs(data).await,
            listener,
            public_url: url.clone(),
            tls: None,
            local: None,
            forges: Default::default(),
            webhook_secret: Some(Secret::new(SECRET)),
            cache_admin: None,
            rules: None,
            started_by: "figures".to_owned(),
            artifact_limit: 4 << 30,
            cache_tokens: None,
            clock: Clock::system(),
            metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
        };
        let running = serve::start(options, stop.clone()).await.unwrap();
        Self { app: running.app.clone(), url, stop, running: Some(running) }
    }

    /// All of it but the fetching of sources, which the caller simulates.
    pub(crate) async fn without_sources(data: &Path, store: Arc<dyn Store>, config: FarmConfig) -> Self {
        let plane = Self::listening(data, store, config, Connections::default()).await;
        tokio::spawn(reader::run(plane.app.clone(), plane.stop.clone()));
        plane
    }

    /// All of it, connected to forges.
    pub(crate) async fn connected(
        data: &Path,
        store: Arc<dyn Store>,
        config: FarmConfig,
        forges: Connections,
    ) -> Self {
        let plane = Self::listening(data, store, config, forges).await;
        serve::work(&plane.app, &plane.stop);
        plane
    }

    /// What answers, and nothing that works by itself.
    async fn listening(data: &Path, store: Arc<dyn Store>, config: FarmConfig, forges: Connections) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let clock = Clock::system();
        let epoch = store.take_epoch("figures", std::time::Duration::from_secs(600)).await.unwrap();
        let (core, _) =
            Core::start(Arc::clone(&store), Arc::new(config), clock.clone(), epoch).await.unwrap();
        let app = App::new(Parts {
            core,
            store,
            blobs: blobs(data).await,
            git: GitSource::new(data.join("sources")),
            keys: Arc::new(Keys::open(data).unwrap()),
            clock,
            forges,
            sealed: Sealed::open(data).unwrap(),
            webhook_secret: Some(Secret::new(SECRET)),
            public_url: url.clone(),
            secure: false,
            metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
            artifact_limit: 4 << 30,
            cache_admin: Default::default(),
            cache_tokens: None,
            stop: stop.clone(),
            logins: Arc::default(),
            sources: Arc::default(),
            rules: Arc::new(forgeyard_control::rules::Rules::new(None)),
        });
        let router = http::router(app.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { app, url, stop, running: None }
    }

    /// Gives an input that must be taken.
    pub(crate) async fn give(&self, input: Input) -> Reply {
        self.app.core.give(input, core::farm()).await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        match self.running {
            Some(running) => running.wait().await.unwrap(),
            None => self.app.store.close().await,
        }
    }
}

/// A signed webhook: pull request `number` has a new head.
pub(crate) fn pull_request(number: u64, head_sha: &str) -> Signed {
    let repository = ComposedRepository {
        id: build::REPOSITORY,
        full_name: "octo/demo".to_owned(),
        owner: build::person(),
        default_branch: "main".to_owned(),
        fork: false,
    };
    let composed = ComposedPullRequest {
        action: "synchronize".to_owned(),
        repository: repository.clone(),
        number,
        title: "A change".to_owned(),
        base: "main".to_owned(),
        base_sha: head_sha.to_owned(),
        head_repository: repository,
        head: format!("change-{number}"),
        head_sha: head_sha.to_owned(),
        before: "0".repeat(40),
        author: build::person(),
        sender: build::person(),
        installation: 1,
        at: "2026-01-01T00:00:00Z".to_owned(),
    };
    composed.signed(&Secret::new(SECRET)).unwrap()
}

/// Sends a webhook; answers once the farm has acknowledged it.
pub(crate) async fn send(http: &reqwest::Client, url: &str, guid: &str, signed: &Signed) {
    let request = http
        .post(url)
        .header("content-type", "application/json")
        .header("x-github-event", signed.event)
        .header("x-github-delivery", guid)
        .header("x-hub-signature-256", &signed.signature)
        .body(signed.body.clone());
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success(), "{guid}: {}", answer.status());
}
