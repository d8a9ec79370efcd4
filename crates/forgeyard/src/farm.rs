//! A farm on this machine: control plane, site and environments in one process, speaking HTTP over loopback. There is
//! no second path: an embedded site says exactly what a distant one says.

use crate::args::UpArgs;
use crate::cache_admin::AdminPort;
use crate::config::{ADDRESS, HostSize};
use crate::connect;
use crate::output::Wrong;
use crate::rules::FileRules;
use anyhow::{Context as _, Result};
use forgeyard_blobs::{BlobStore, DiskStore};
use forgeyard_control::cache_admin::CacheAdmin;
use forgeyard_control::cache_tokens::CacheTokens;
use forgeyard_control::clock::Clock;
use forgeyard_control::core;
use forgeyard_control::forges::Connections;
use forgeyard_control::rules::{self, RuleSource};
use forgeyard_control::serve::{self, Running};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::{Digest, Secret};
use forgeyard_providers::sandbox::{ImageSource, SandboxConfig, SandboxProvider};
use forgeyard_site::ChildProbe;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Largest artifact when nothing else is said, in MiB.
const ARTIFACT_LIMIT_MIB: u64 = 16 << 10;

/// What a farm is started with.
pub struct FarmOptions {
    /// Folder of everything.
    pub data: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// How people reach it; by the address that it listens on when absent.
    pub public_url: Option<String>,
    /// Database.
    pub database: String,
    /// TLS: certificate chain and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// With TLS: where the services of this host reach the farm, without it.
    pub local: Option<SocketAddr>,
    /// What is decided under.
    pub config: FarmConfig,
    /// The files that it was read from, which are read again when they change.
    pub rules: Option<Arc<dyn RuleSource>>,
    /// The build cache.
    pub cache_admin: Option<Arc<dyn CacheAdmin>>,
    /// Connections to forges.
    pub forges: Connections,
    /// Secret of webhooks.
    pub webhook_secret: Option<Secret>,
    /// Largest artifact, in bytes.
    pub artifact_limit: u64,
    /// The build cache of jobs.
    pub cache_tokens: Option<Arc<dyn CacheTokens>>,
    /// Offer the simulated GPU beside real ones.
    pub simulated_beside_real: bool,
    /// Run a site and the environment service as well.
    pub whole: bool,
}

/// A farm that runs.
pub struct Farm {
    /// The control plane.
    pub control: Running,
    /// Its base URL on this machine.
    pub url: String,
    /// The admin token.
    pub admin: Secret,
    stop: CancellationToken,
    services: Vec<JoinHandle<()>>,
}

impl Farm {
    /// Stops everything; machines that run go on and are adopted at the next start.
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        for service in self.services {
            let _ = service.await;
        }
        self.control.wait().await.context("the control plane")
    }
}

/// Who starts the farm: what FORGEYARD_CHANGED_BY says, for example the commit that a deployment rolled out, else the user
/// of this host.
fn started_by() -> String {
    let said = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    let by = said("FORGEYARD_CHANGED_BY").or_else(|| said("USER")).or_else(|| said("LOGNAME"));
    let by = by.unwrap_or_else(|| "an unknown user of this host".to_owned());
    by.trim().chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// Installs the recorder of metrics. Once per process.
pub fn recorder() -> Result<metrics_exporter_prometheus::PrometheusHandle> {
    metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder().context("metrics")
}

/// Makes a folder, or says which one cannot be made and what to do.
pub fn folder(path: &Path) -> Result<PathBuf> {
    let wrong = |what: &str| {
        Wrong::new(format!("the folder {} cannot be {what}", path.display()))
            .fix("choose another, or give this user the right to it")
    };
    fs_err::create_dir_all(path).with_context(|| wrong("made"))?;
    // Asked and not assumed: rights, a read-only file system and a full quota look alike only in a real attempt.
    tempfile::tempfile_in(path).with_context(|| wrong("written to"))?;
    Ok(path.canonicalize()?)
}

/// Starts a farm.
pub async fn start(
    options: FarmOptions,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
) -> Result<Farm> {
    let data = folder(&options.data)?;
    let store = forgeyard_db::open(&options.database, &data).await.context("the database")?;
    let clock = Clock::system();
    let stamp = clock.clone();
    let blobs: Arc<dyn BlobStore> = Arc::new(
        DiskStore::open(data.join("blobs"), Arc::new(move || stamp.now()))
            .await
            .context("the blob folder")?,
    );
    let listener = bind(options.listen, "listen").await?;
    let address = listener.local_addr()?;
    let local = if options.tls.is_some() && (options.whole || options.local.is_some()) {
        Some(bind(beside(options.local, address)?, "local-listen").await?)
    } else {
        None
    };
    // What runs on this host speaks to the loopback address, which no certificate names.
    let url = match &local {
        None if options.tls.is_some() => format!("https://{}", loopback(address)),
        None => format!("http://{}", loopback(address)),
        Some(local) => format!("http://{}", local.local_addr()?),
    };
    let public_url = match (options.public_url, &options.tls) {
        (Some(url), _) => url,
        (None, Some(_)) => format!("https://{}", loopback(address)),
        (None, None) => url.clone(),
    };
    let stop = CancellationToken::new();
    let control = serve::start(
        serve::Options {
            config: options.config,
            data: data.clone(),
            store,
            blobs: Arc::clone(&blobs),
            listener,
            public_url,
            tls: options.tls,
            local,
            forges: options.forges,
            webhook_secret: options.webhook_secret,
            artifact_limit: options.artifact_limit,
            cache_admin: options.cache_admin,
            cache_tokens: options.cache_tokens,
            rules: options.rules,
            started_by: started_by(),
            clock,
            metrics,
        },
        stop.clone(),
    )
    .await
    .context("the control plane")?;
    let (admin, _) = control.app.keys.admin_token()?;
    let mut services = Vec::new();
    if options.whole {
        let site = SiteSetup {
            name: "local".to_owned(),
            farm_url: url.clone(),
            join_token: Some(control.app.keys.join_token().clone()),
            state: data.join("site"),
            ca_file: None,
            simulated_beside_real: options.simulated_beside_real,
            images: Arc::new(LocalImages(blobs)),
        };
        services.push(start_site(site, stop.clone())?);
        services.extend(start_environments(&url, &admin, &data, stop.clone()));
    }
    Ok(Farm { control, url, admin, stop, services })
}

/// Listens, or says what stands in the way and which setting to change.
async fn bind(address: SocketAddr, setting: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        Wrong::new(format!("cannot listen on {address}")).fix(format!(
            "see whether another farm runs there, or choose another address with `{setting}` in forgeyard.toml"
        ))
    })
}

/// Where programs of this host reach a farm, or a cache, that speaks TLS: as configured, else one port further.
///
/// The port must be the same after a restart, because agents of machines that run go on calling it.
pub fn beside(configured: Option<SocketAddr>, listen: SocketAddr) -> Result<SocketAddr> {
    if let Some(local) = configured {
        if !local.ip().is_loopback() {
            return Err(Wrong::new(format!(
                "`local-listen` is {local}, which others can reach, and has no TLS"
            ))
            .fix("choose an address of 127.0.0.0/8 or ::1")
            .into());
        }
        return Ok(local);
    }
    let Some(port) = listen.port().checked_add(1) else {
        return Err(Wrong::new(format!("there is no port after {}", listen.port()))
            .fix("set `local-listen` in forgeyard.toml, for example \"127.0.0.1:8418\"")
            .into());
    };
    Ok(SocketAddr::from(([127, 0, 0, 1], port)))
}

/// How the farm is reached from this machine.
pub fn loopback(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], address.port())) } else { address }
}

/// Images from the farm's own blobs, for a site in the same process.
struct LocalImages(Arc<dyn BlobStore>);

#[async_trait::async_trait]
impl ImageSource for LocalImages {
    async fn fetch(&self, digest: Digest, to: &Path) -> std::io::Result<()> {
        let mut blob = self.0.get(digest, None).await.map_err(std::io::Error::other)?;
        let mut file = tokio::fs::File::create(to).await?;
        tokio::io::copy(&mut blob.reader, &mut file).await?;
        file.sync_all().await
    }
}

/// What a site is started with.
pub struct SiteSetup {
    /// Its name.
    pub name: String,
    /// The farm.
    pub farm_url: String,
    /// The farm's join token, for the first time.
    pub join_token: Option<Secret>,
    /// Its folder.
    pub state: PathBuf,
    /// Further certificate authority to trust.
    pub ca_file: Option<PathBuf>,
    /// Offer the simulated GPU beside real ones.
    pub simulated_beside_real: bool,
    /// Where images come from.
    pub images: Arc<dyn ImageSource>,
}

/// The agent beside this program, or this program as agent.
pub fn agent_command() -> Result<Vec<String>> {
    let program = std::env::current_exe().context("the path of this program")?;
    let beside = program.with_file_name("forgeyard-agent");
    if beside.is_file() {
        return Ok(vec![beside.display().to_string()]);
    }
    Ok(vec![program.display().to_string(), "agent".to_owned()])
}

/// The sandbox provider of this host.
pub fn sandbox(state: &Path, images: Arc<dyn ImageSource>) -> Result<SandboxProvider> {
    let name = "sandbox".parse().context("the provider's name")?;
    Ok(SandboxProvider::new(SandboxConfig::new(name, state.join("sandbox"), agent_command()?), images))
}

/// Starts a site in this process.
pub fn start_site(setup: SiteSetup, stop: CancellationToken) -> Result<JoinHandle<()>> {
    let state = folder(&setup.state)?;
    let provider = Arc::new(sandbox(&state, setup.images)?);
    let program = std::env::current_exe().context("the path of this program")?;
    let mut probe = vec![program.display().to_string(), "probe-devices".to_owned()];
    if setup.simulated_beside_real {
        probe.push("--simulated".to_owned());
    }
    let devices = Arc::new(ChildProbe::new(probe, Duration::from_secs(60)));
    let name = setup.name.parse().with_context(|| format!("the site's name `{}`", setup.name))?;
    let mut options = forgeyard_site::Options::new(name, setup.farm_url, state, vec![provider], devices);
    options.join_token = setup.join_token;
    options.ca_file = setup.ca_file;
    Ok(tokio::spawn(async move {
        if let Err(error) = forgeyard_site::run(options, stop).await {
            let error = anyhow::Error::new(error);
            tracing::error!("the site ended: {error:#}");
        }
    }))
}

#[cfg(feature = "envs")]
fn start_environments(
    url: &str,
    admin: &Secret,
    data: &Path,
    stop: CancellationToken,
) -> Option<JoinHandle<()>> {
    let options = forgeyard_envs::service::Options {
        farm_url: url.to_owned(),
        token: admin.clone(),
        ca_file: None,
        root_dir: data.join("envs"),
        cache_dir: data.join("env-cache"),
        extra_channels: Vec::new(),
        host: None,
        limits: forgeyard_envs::Limits::default(),
    };
    Some(tokio::spawn(async move {
        if let Err(reason) = forgeyard_envs::service::run(options, stop).await {
            tracing::error!("the environment service ended: {reason}");
        }
    }))
}

#[cfg(not(feature = "envs"))]
fn start_environments(_: &str, _: &Secret, _: &Path, _: CancellationToken) -> Option<JoinHandle<()>> {
    tracing::warn!("this program was built without environments");
    None
}

/// Logs to standard error: for people on a terminal, as JSON with `FORGEYARD_LOG_JSON=1`.
pub fn logging(default: &str) {
    use std::io::IsTerminal as _;
    let filter = tracing_subscriber::EnvFilter::try_from_env("FORGEYARD_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::env::var_os("FORGEYARD_LOG_JSON").is_some() {
        let _ = builder.json().try_init();
    } else {
        let _ = builder.with_ansi(std::io::stderr().is_terminal()).try_init();
    }
}

/// `forgeyard up` and `forgeyard serve`.
pub async fn up(args: UpArgs, whole: bool) -> Result<ExitCode> {
    logging("info,tower_http=warn,sqlx=warn,hyper=warn");
    // From here on the signal asks to read the files again; without that it would end the program.
    let mut hang_up = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let host = HostSize::here();
    let (file, rules) = FileRules::open(args.config.as_deref(), host)?;
    let listen = match file.listen {
        Some(listen) => listen,
        None => ADDRESS.parse()?,
    };
    if !listen.ip().is_loopback() && file.tls.is_none() && file.public_url.is_none() {
        return Err(Wrong::new(format!("{listen} can be reached from outside without TLS"))
            .fix("add [tls], or `public-url` when a proxy speaks TLS")
            .into());
    }
    let cache_tokens = match &file.cache {
        Some(config) => crate::cache_tokens::FarmTokens::open(&folder(&args.data)?, config)?,
        None => None,
    };
    let cache_tokens = cache_tokens.map(|tokens| Arc::new(tokens) as Arc<dyn CacheTokens>);
    let options = FarmOptions {
        data: args.data.clone(),
        listen,
        public_url: file.public_url.clone(),
        database: file.database.clone().unwrap_or_else(|| "sqlite:".to_owned()),
        tls: file.tls.clone().map(|tls| (tls.certificate, tls.key)),
        local: file.local_listen,
        config: file.farm(host)?,
        cache_admin: file
            .cache
            .as_ref()
            .map(|config| AdminPort::new(args.data.clone(), config))
            .transpose()?
            .map(|port| Arc::new(port) as Arc<dyn CacheAdmin>),
        rules: rules.map(|rules| Arc::new(rules) as Arc<dyn RuleSource>),
        forges: connect::connections(&file.forges, &Clock::system())?,
        webhook_secret: file.webhook_secret()?,
        artifact_limit: file.artifact_limit_mib.unwrap_or(ARTIFACT_LIMIT_MIB) << 20,
        cache_tokens,
        simulated_beside_real: file.simulated_beside_real,
        whole,
    };
    for overlap in forgeyard_control::views::overlaps(&options.config) {
        eprintln!("warning: {overlap}");
    }
    let price = file.price_per_cpu_hour(&options.config);
    let farm = start(options, recorder()?).await?;
    let cache = match file.cache.clone().filter(|_| whole) {
        Some(config) => {
            let (data, repositories) = (args.data.clone(), file.repositories.clone());
            let begin = move || crate::cache_place::start(&data, &config, &repositories, price);
            Some(tokio::task::spawn_blocking(begin).await??)
        }
        None => None,
    };
    println!("farm:    {}", farm.control.app.public_url);
    println!("console: {}/", farm.control.app.public_url);
    println!("token:   {}", args.data.join("admin.token").display());
    if farm.control.first_start {
        println!("         (made now; it is the first admin's way in)");
    }
    let stop = farm.stop.clone();
    tokio::spawn(async move {
        wait_for_signal().await;
        stop.cancel();
    });
    let stopped = farm.stop.clone();
    loop {
        tokio::select! {
            biased;
            () = stopped.cancelled() => break,
            Some(()) = hang_up.recv() => {
                let app = farm.control.app.clone();
                // What went wrong is logged and shown as an alarm; a signal has nobody to answer to.
                tokio::spawn(async move { rules::reload(&app, core::farm(), "the signal SIGHUP").await.map(drop) });
            }
        }
    }
    farm.stop().await?;
    if let Some(cache) = cache {
        tokio::task::spawn_blocking(move || cache.stop()).await??;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for Ctrl-C or a polite kill.
pub async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
