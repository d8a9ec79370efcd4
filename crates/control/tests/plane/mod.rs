//! A real control plane for tests, started in this process, and what speaks to it over real HTTP.
//!
//! The control plane, its database (SQLite in a temporary folder unless a test asks for the twin), its blob store, git
//! and the repository are real. The site and the agents are *simulated*: small scripts that speak the real contracts
//! with the real clients and make no machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "fixtures are written by hand and known to be well formed"
)]
#![allow(unreachable_pub, reason = "shared by several tests, which are crates of their own")]
#![allow(dead_code, reason = "each test takes its part")]

pub mod agent;
pub mod chain;
pub mod packages;
pub mod repository;
pub mod schema;
pub mod site;

use forgeyard_api::ApiError;
use forgeyard_api::client::{Client, ClientError, HttpOptions};
use forgeyard_blobs::BlobStore;
use forgeyard_blobs::DiskStore;
use forgeyard_control::app::App;
use forgeyard_control::cache_admin::CacheAdmin;
use forgeyard_control::cache_tokens::CacheTokens;
use forgeyard_control::clock::Clock;
use forgeyard_control::forges::Connections;
use forgeyard_control::rules::RuleSource;
use forgeyard_control::serve::{self, Options};
use forgeyard_db::Store;
use forgeyard_formats::webhook::{self, compose::Signed};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::{PipelineId, Secret};
use forgeyard_testkit::build;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What webhook bodies are signed with here.
pub fn webhook_secret() -> Secret {
    Secret::new("a secret of tests")
}

/// What a control plane is started with, and again after it stopped.
pub struct Setup {
    pub folder: TempDir,
    pub config: FarmConfig,
    pub store: Option<Arc<dyn Store>>,
    pub blobs: Option<Arc<dyn BlobStore>>,
    pub address: SocketAddr,
    pub forges: Connections,
    pub clock: Clock,
    pub cache_admin: Option<Arc<dyn CacheAdmin>>,
    pub cache_tokens: Option<Arc<dyn CacheTokens>>,
    pub rules: Option<Arc<dyn RuleSource>>,
}

impl Setup {
    /// SQLite and blobs in a temporary folder, the configuration of the builders.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            config: build::config(),
            store: None,
            blobs: None,
            address: "127.0.0.1:0".parse().unwrap(),
            forges: Connections::default(),
            clock: Clock::system(),
            cache_admin: None,
            cache_tokens: None,
            rules: None,
        }
    }

    /// The same on this database.
    pub fn on(store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..Self::new() }
    }

    /// Takes the source of the repository from this folder.
    pub fn with_source(mut self, source: &Path) -> Self {
        self.config.repositories[0].source = source.to_str().unwrap().to_owned();
        self
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The database. One that was just closed may need a moment to let go of its folder.
    pub async fn open_store(&self) -> Arc<dyn Store> {
        match &self.store {
            Some(store) => Arc::clone(store),
            None => {
                let data = self.data();
                eventually("the database opens", || async { forgeyard_db::open("sqlite:", &data).await.ok() })
                    .await
            }
        }
    }

    async fn open_blobs(&self) -> Arc<dyn BlobStore> {
        match &self.blobs {
            Some(blobs) => Arc::clone(blobs),
            None => {
                let clock = Clock::system();
                let clock: forgeyard_blobs::Clock = Arc::new(move || clock.now());
                let place = self.data().join("blobs");
                let open = || async { DiskStore::open(&place, Arc::clone(&clock)).await.ok() };
                Arc::new(eventually("the blob store opens", open).await)
            }
        }
    }

    /// Starts a control plane; a second one takes the address of the first.
    pub async fn start(&mut self) -> Plane {
        let store = self.open_store().await;
        let blobs = self.open_blobs().await;
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let url = format!("http://{}", self.address);
        let stop = CancellationToken::new();
        let options = Options {
            config: self.config.clone(),
            data: self.data(),
            store: Arc::clone(&store),
            blobs,
            listener,
            public_url: url.clone(),
            tls: None,
            local: None,
            forges: self.forges.clone(),
            webhook_secret: Some(webhook_secret()),
            cache_admin: self.cache_admin.clone(),
            rules: self.rules.clone(),
            started_by: "tests".to_owned(),
            artifact_limit: 8 << 20,
            cache_tokens: self.cache_tokens.clone(),
            clock: self.clock.clone(),
            metrics: metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle(),
        };
        let running = serve::start(options, stop.clone()).await.unwrap();
        let token = std::fs::read_to_string(self.data().join("admin.token")).unwrap();
        let app = running.app.clone();
        let done = tokio::spawn(running.wait());
        let client = Client::new(&url, Some(Secret::new(token.trim())), &HttpOptions::default()).unwrap();
        let join_token = app.keys.join_token().expose().to_owned();
        Plane {
            url,
            token: token.trim().to_owned(),
            join_token,
            client,
            http: reqwest::Client::new(),
            app,
            stop,
            done,
        }
    }
}

/// A control plane that runs.
pub struct Plane {
    pub url: String,
    pub token: String,
    pub join_token: String,
    pub client: Client,
    pub http: reqwest::Client,
    pub app: App,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<Result<(), serve::Error>>,
}

/// An answer that was read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub async fn of(request: reqwest::RequestBuilder) -> Self {
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Self { status, headers, body: answer.bytes().await.unwrap().to_vec() }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The error of an answer that is no success.
    pub fn error(&self) -> ApiError {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}: {text}", self.status))
    }
}

impl Plane {
    /// Stops it in order and waits until nothing of it is left.
    pub async fn stop(self) {
        self.stop.cancel();
        drop((self.app, self.client, self.http));
        self.done.await.unwrap().unwrap();
    }

    /// A request with the admin's token.
    pub fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    /// Posts a webhook.
    pub async fn webhook(&self, guid: &str, event: &str, signature: Option<&str>, body: &[u8]) -> Answer {
        let mut request = self
            .http
            .post(format!("{}/webhooks/github", self.url))
            .header("content-type", "application/json")
            .header("x-github-event", event)
            .header("x-github-delivery", guid);
        if let Some(signature) = signature {
            request = request.header("x-hub-signature-256", signature);
        }
        Answer::of(request.body(body.to_vec())).await
    }

    /// Posts any body, rightly signed.
    pub async fn signed(&self, guid: &str, event: &str, body: &[u8]) -> Answer {
        let signature = webhook::sign(&webhook_secret(), body).unwrap();
        self.webhook(guid, event, Some(&signature), body).await
    }

    /// Posts a composed webhook.
    pub async fn deliver(&self, guid: &str, signed: &Signed) -> Answer {
        self.webhook(guid, signed.event, Some(&signed.signature), &signed.body).await
    }

    pub async fn delivery(&self, guid: &str) -> Option<Delivery> {
        let all = self.client.deliveries().await.unwrap();
        all.into_iter().find(|delivery| delivery.guid == guid)
    }

    /// The delivery once it was read.
    pub async fn settled(&self, guid: &str) -> Delivery {
        eventually("the delivery is read", || async {
            self.delivery(guid).await.filter(|delivery| delivery.state != DeliveryState::Stored)
        })
        .await
    }

    /// Delivers a webhook that must start a pipeline.
    pub async fn begin(&self, guid: &str, signed: &Signed) -> PipelineId {
        assert_eq!(self.deliver(guid, signed).await.status, 202);
        match self.settled(guid).await.state {
            DeliveryState::Started { pipeline } => pipeline,
            other => panic!("no pipeline was started: {other:?}"),
        }
    }
}

/// Waits until something is so. The limit is only there so that a broken test ends.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "it never came to be that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What the farm said when it refused.
pub fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> ApiError {
    match answer {
        Err(ClientError::Refused { error, .. }) => *error,
        other => panic!("this is no refusal: {other:?}"),
    }
}
