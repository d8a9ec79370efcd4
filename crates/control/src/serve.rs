//! Putting the control plane together and running it.

use crate::app::{App, Parts};
use crate::cache_admin::CacheAdmin;
use crate::clock::Clock;
use crate::core::{self, Core};
use crate::forges::Connections;
use crate::http::people;
use crate::keys::Keys;
use crate::rules::{self, RuleSource, Rules};
use crate::sealed::Sealed;
use crate::standby::{self, StandingBy};
use crate::{collector, demand, effect, history, http, reader};
use forgeyard_api::people::TokenRequest;
use forgeyard_blobs::BlobStore;
use forgeyard_db::Store;
use forgeyard_forges::GitSource;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::Input;
use forgeyard_model::principal::Role;
use forgeyard_model::{Digest, Secret};
use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long a control plane holds its epoch without renewing it: so long after it died, another one leads.
const EPOCH: Duration = Duration::from_secs(15);
/// How long requests that are under way may take once the farm is asked to stop.
const LAST_CALL: Duration = Duration::from_secs(5);

/// What a control plane is made of.
pub struct Options {
    /// Configuration that is decided under.
    pub config: FarmConfig,
    /// Folder of keys, sources and blobs.
    pub data: PathBuf,
    /// Database.
    pub store: Arc<dyn Store>,
    /// Bytes.
    pub blobs: Arc<dyn BlobStore>,
    /// Where to listen.
    pub listener: TcpListener,
    /// How people reach the farm.
    pub public_url: String,
    /// TLS by files: certificate chain and key, PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// A second place to listen on, without TLS, for services on the same host: a certificate names the farm as the
    /// world knows it, and never the loopback address.
    pub local: Option<TcpListener>,
    /// Connections to forges.
    pub forges: Connections,
    /// What webhooks of the forge `github` are signed with, unless its connection has secrets of its own.
    pub webhook_secret: Option<Secret>,
    /// Largest artifact, in bytes.
    pub artifact_limit: u64,
    /// The build cache that jobs get, when there is one.
    pub cache_tokens: Option<Arc<dyn crate::cache_tokens::CacheTokens>>,
    /// Where its configuration is read from again when it changes; none where it never does.
    pub rules: Option<Arc<dyn RuleSource>>,
    /// The build cache; none where the farm runs without one.
    pub cache_admin: Option<Arc<dyn CacheAdmin>>,
    /// Who starts it, for the history of the configuration.
    pub started_by: String,
    /// The time.
    pub clock: Clock,
    /// Renders `/metrics`.
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
}

/// Takes an address to listen on.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Bind { address, source })
}

/// What goes wrong in a control plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database.
    #[error("the database")]
    Database(#[from] forgeyard_db::Error),
    /// The key files.
    #[error("the keys")]
    Keys(#[from] crate::keys::KeyError),
    /// The folder of sealed configurations.
    #[error("the folder of runner configurations")]
    Sealed(#[source] std::io::Error),
    /// TLS files.
    #[error("TLS files {certificate} and {key}")]
    Tls {
        /// Certificate chain.
        certificate: String,
        /// Key.
        key: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; end what listens there, or choose another address")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// Serving.
    #[error("serving HTTP")]
    Http(#[source] std::io::Error),
    /// The configuration could not be written into its history.
    #[error("the history of the configuration: {0}")]
    Adopt(String),
    /// The first admin token could not be made known.
    #[error("the admin token: {0}")]
    Admin(String),
}

/// A control plane that runs.
pub struct Running {
    /// The shared parts.
    pub app: App,
    /// Where it listens.
    pub address: SocketAddr,
    /// The admin token is new: tell people where it is.
    pub first_start: bool,
    done: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Running {
    /// Waits until it is stopped, or fails.
    pub async fn wait(self) -> Result<(), Error> {
        self.done.await.unwrap_or_else(|error| Err(Error::Http(std::io::Error::other(error))))
    }
}

/// Starts a control plane. It runs until `stop` is cancelled.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running, Error> {
    let address = options.listener.local_addr().map_err(Error::Http)?;
    let keys = Arc::new(Keys::open(&options.data)?);
    let sealed = Sealed::open(&options.data).map_err(Error::Sealed)?;
    let holder = format!("{address} pid {}", std::process::id());
    let mut standing_by = None;
    let epoch = take_epoch(&options, &holder, &stop, &mut standing_by).await?;
    if let Some(standing_by) = standing_by {
        standing_by.end().await;
    }
    let (core, decided) =
        Core::start(Arc::clone(&options.store), Arc::new(options.config), options.clock.clone(), epoch)
            .await?;
    // Behind a proxy that speaks TLS the browser sees TLS as well.
    let https = options.public_url.starts_with("https://");
    let app = App::new(Parts {
        core,
        store: Arc::clone(&options.store),
        blobs: options.blobs,
        git: GitSource::new(options.data.join("sources")),
        forges: options.forges,
        sealed,
        logins: Arc::default(),
        sources: Arc::default(),
        cache_admin: options.cache_admin.into(),
        rules: Arc::new(Rules::new(options.rules)),
        keys,
        clock: options.clock,
        webhook_secret: options.webhook_secret,
        public_url: options.public_url,
        secure: options.tls.is_some() || https,
        metrics: options.metrics,
        artifact_limit: options.artifact_limit,
        cache_tokens: options.cache_tokens.map(|cache| Arc::new(crate::cache_tokens::Tokens::new(cache))),
        stop: stop.clone(),
    });
    let first_start = admin(&app).await?;
    adopt(&app, options.started_by).await?;
    work(&app, &stop);
    tokio::spawn(rules::watch(app.clone(), stop.clone()));
    tokio::spawn(collector::run(app.clone(), stop.clone()));
    let lost = tokio::spawn(renew(Arc::clone(&options.store), epoch, stop.clone()));
    if let Some(local) = options.local {
        tokio::spawn(plain(http::router(app.clone()), local, stop.clone()));
    }
    let serving = listen(app.clone(), options.listener, options.tls, stop.clone()).await?;
    let store = options.store;
    let done = tokio::spawn(async move {
        let result = tokio::select! {
            served = serving => served.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(Error::Http),
            ended = decided => Err(Error::Database(ended.unwrap_or_else(|error| forgeyard_db::Error::Invalid {
                what: format!("the core ended: {error}"),
            }))),
            Ok(Some(error)) = lost => Err(Error::Database(error)),
        };
        stop.cancel();
        let _ = store.release_epoch(epoch).await;
        store.close().await;
        result
    });
    Ok(Running { app, address, first_start, done })
}

/// Starts what a control plane does by itself, beside answering: effects, reading deliveries, sources of demand, time.
pub fn work(app: &App, stop: &CancellationToken) {
    effect::sweep_sealed(app);
    tokio::spawn(effect::run(app.clone(), stop.clone()));
    tokio::spawn(reader::run(app.clone(), stop.clone()));
    demand::start(app, stop);
    tokio::spawn(crate::cache_tokens::run(app.clone(), stop.clone()));
    tokio::spawn(tick(app.clone(), stop.clone()));
}

/// Waits for its turn when another control plane holds the epoch.
async fn take_epoch(
    options: &Options,
    holder: &str,
    stop: &CancellationToken,
    standing_by: &mut Option<StandingBy>,
) -> Result<u64, Error> {
    loop {
        match options.store.take_epoch(holder, EPOCH).await {
            Ok(epoch) => return Ok(epoch),
            Err(forgeyard_db::Error::Held { holder, remaining }) => {
                let known = standing_by.take();
                let meanwhile = match known {
                    Some(known) => known,
                    None => {
                        tracing::info!(%holder, ?remaining, "another control plane leads; this one stands by");
                        standby::serve(&options.listener, options.local.as_ref(), options.tls.as_ref())?
                    }
                };
                meanwhile.led_by(&holder);
                *standing_by = Some(meanwhile);
            }
            Err(error) if error.transient() => tracing::warn!(%error, "the database does not answer yet"),
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Error::Http(std::io::Error::other("stopped while waiting"))),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

async fn renew(store: Arc<dyn Store>, epoch: u64, stop: CancellationToken) -> Option<forgeyard_db::Error> {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(EPOCH / 3) => {}
        }
        match store.renew_epoch(epoch, EPOCH).await {
            Ok(()) => {}
            Err(error) if error.transient() => tracing::warn!(%error, "the epoch could not be renewed"),
            Err(error) => return Some(error),
        }
    }
}

/// Says under which configuration the farm runs from now on, and ends what it no longer allows.
async fn adopt(app: &App, by: String) -> Result<(), Error> {
    let config = app.config();
    let wrong = |error: String| Error::Adopt(error);
    let text = history::kept(&config).map_err(|error| wrong(error.to_string()))?;
    let repeats = history::repeats(app, config.digest()).await?;
    let input = Input::ConfigAdopted { text, started_by: by, repeats, changes: Vec::new() };
    app.core.give(input, core::farm()).await.map_err(|error| wrong(error.to_string()))?;
    Ok(())
}

/// Makes the admin token known, so that there is a first way in.
async fn admin(app: &App) -> Result<bool, Error> {
    let (token, new) = app.keys.admin_token()?;
    let digest = Digest::of(token.expose().as_bytes());
    if app.core.read().tokens.contains_key(&digest) {
        return Ok(new);
    }
    let request = TokenRequest {
        name: "admin".to_owned(),
        role: Role::Admin,
        expires_in_seconds: None,
        repositories: Default::default(),
    };
    let issued = people::issue(app, core::farm(), token.expose(), &request).await;
    issued.map_err(|error| Error::Admin(error.0.to_string()))?;
    Ok(new)
}

/// Time passes.
async fn tick(app: App, stop: CancellationToken) {
    loop {
        if let Err(error) = app.core.give(Input::Ticked, core::farm()).await {
            tracing::warn!(%error, "a tick was not taken");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = app.clock.sleep(Duration::from_secs(1)) => {}
        }
    }
}

/// Serves without TLS until it is asked to stop.
async fn plain(router: axum::Router, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
    let asked = stop.clone().cancelled_owned();
    // Live views never end by themselves, so waiting for open connections has an end.
    let patience = async move {
        stop.cancelled().await;
        tokio::time::sleep(LAST_CALL).await;
    };
    tokio::select! {
        served = axum::serve(listener, router).with_graceful_shutdown(asked).into_future() => served,
        () = patience => Ok(()),
    }
}

type Serving = tokio::task::JoinHandle<std::io::Result<()>>;

async fn listen(
    app: App,
    listener: TcpListener,
    tls: Option<(PathBuf, PathBuf)>,
    stop: CancellationToken,
) -> Result<Serving, Error> {
    let router = http::router(app);
    let Some((certificate, key)) = tls else {
        return Ok(tokio::spawn(plain(router, listener, stop)));
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = axum_server::tls_rustls::RustlsConfig::from_pem_file(&certificate, &key).await;
    let config = config.map_err(|source| Error::Tls {
        certificate: certificate.display().to_string(),
        key: key.display().to_string(),
        source,
    })?;
    let listener = listener.into_std().map_err(Error::Http)?;
    let handle = axum_server::Handle::new();
    let watcher = handle.clone();
    tokio::spawn(async move {
        stop.cancelled().await;
        watcher.graceful_shutdown(Some(LAST_CALL));
    });
    let server = axum_server::from_tcp_rustls(listener, config).map_err(Error::Http)?;
    Ok(tokio::spawn(async move { server.handle(handle).serve(router.into_make_service()).await }))
}
