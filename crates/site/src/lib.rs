//! The daemon on a GPU box. It dials out, makes the desired set so, and reports what it sees. It never grants: which
//! attempt gets which device is the farm's decision.
//!
//! - [`plan`] decides what to do next, out of what should be, what is, and what was claimed. Pure.
//! - [`execute`] does it; [`journal`] keeps, across crashes, what was claimed and touched.
//! - [`inventory`] asks the devices in a child process that runs [`probe`].
//! - [`report`] says what the farm is told. Pure.
//!
//! Invariants:
//! - a lease is on the disk before its machine is touched, and is free only after the machine is gone, the devices
//!   are reset and asked again;
//! - a site that ends, gracefully or not, leaves its machines running, and its successor adopts them;
//! - a desired set of an older epoch than one seen before is refused.

pub mod error;
pub mod execute;
pub mod folder;
pub mod host;
pub mod identity;
pub mod inventory;
pub mod journal;
pub mod ledger;
pub mod plan;
pub mod probe;
pub mod report;
mod session;
pub mod tries;

pub use error::Error;
pub use inventory::{ChildProbe, Devices};
pub use tokio_util::sync::CancellationToken;

use forgeyard_api::client::http::HttpOptions;
use forgeyard_api::client::site::SiteClient;
use forgeyard_api::client::{ClientError, http};
use forgeyard_api::error::ErrorKind;
use forgeyard_model::name::{ProviderName, SiteName};
use forgeyard_model::Secret;
use forgeyard_providers::Provider;
use identity::Identity;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a site is set up.
#[derive(Clone)]
pub struct Options {
    /// Its name.
    pub name: SiteName,
    /// Base address of the farm.
    pub farm_url: String,
    /// Base address of the farm as agents see it, where that is another one.
    pub agent_url: Option<String>,
    /// The farm's join token; needed once.
    pub join_token: Option<Secret>,
    /// Folder for its key, its identity and its journal.
    pub state_dir: PathBuf,
    /// What makes its machines.
    pub providers: Vec<Arc<dyn Provider>>,
    /// What asks its devices.
    pub devices: Arc<dyn Devices>,
    /// Further certificate authority to trust, PEM file.
    pub ca_file: Option<PathBuf>,
    /// How long the farm is asked to hold a poll.
    pub poll_wait: Duration,
    /// How often machines are listed when nothing happens.
    pub observe_every: Duration,
    /// How often devices are asked when nothing happens.
    pub probe_every: Duration,
    /// How long the making or the removal of one machine may take.
    pub action_timeout: Duration,
    /// Actions at once.
    pub concurrency: usize,
    /// How long a graceful stop waits for actions that have begun.
    pub stop_grace: Duration,
}

impl Options {
    /// Options with defaults for all that has one.
    pub fn new(
        name: SiteName,
        farm_url: impl Into<String>,
        state_dir: impl Into<PathBuf>,
        providers: Vec<Arc<dyn Provider>>,
        devices: Arc<dyn Devices>,
    ) -> Self {
        Self {
            name,
            farm_url: farm_url.into(),
            agent_url: None,
            join_token: None,
            state_dir: state_dir.into(),
            providers,
            devices,
            ca_file: None,
            poll_wait: Duration::from_secs(30),
            observe_every: Duration::from_secs(5),
            probe_every: Duration::from_secs(300),
            action_timeout: Duration::from_secs(300),
            concurrency: 4,
            stop_grace: Duration::from_secs(10),
        }
    }
}

/// Runs the site until `shutdown`, or until something breaks that waiting does not mend. Dropping the future is like
/// a crash: machines go on, and the next run adopts them.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), Error> {
    let folder = Arc::new(folder::Folder::open(&options.state_dir).await?);
    let journal = journal::Journal::open(Arc::clone(&folder))?;
    identity::key(&folder)?;
    let http = HttpOptions { ca_file: options.ca_file.clone(), ..HttpOptions::default() };
    let client = SiteClient::new(&options.farm_url, &http)?;
    let providers: BTreeMap<ProviderName, Arc<dyn Provider>> =
        options.providers.iter().map(|provider| (provider.name(), Arc::clone(provider))).collect();
    let mut identity = identity::stored(&folder, &options.farm_url, &options.name)?;
    let mut refusals = 0;
    loop {
        let known = match identity.take() {
            Some(known) => known,
            None => match join(&options, &folder, &client, &journal, &shutdown).await? {
                Some(joined) => joined,
                None => return Ok(()),
            },
        };
        let tools = execute::Tools {
            site: known.site,
            providers: providers.clone(),
            devices: Arc::clone(&options.devices),
            asked: Mutex::default(),
            journal: journal.clone(),
            agent_url: options.agent_url.clone().unwrap_or_else(|| options.farm_url.clone()),
            ca_file: options.ca_file.clone(),
            action_timeout: options.action_timeout,
            changed: tokio::sync::Notify::new(),
        };
        let client = client.clone().with_token(known.token);
        match session::run(Arc::new(tools), client, &options, &shutdown).await? {
            session::End::Stopped => return Ok(()),
            session::End::NotKnown => {
                refusals += 1;
                tracing::warn!(name = %options.name, "the farm does not know this site's token; joining again");
                if pause(tries::pause(refusals), &shutdown).await {
                    return Ok(());
                }
            }
        }
    }
}

/// Joins, again and again while the farm cannot be reached. Nothing when the site is to stop.
async fn join(
    options: &Options,
    folder: &folder::Folder,
    client: &SiteClient,
    journal: &journal::Journal,
    shutdown: &CancellationToken,
) -> Result<Option<Identity>, Error> {
    let Some(token) = &options.join_token else {
        return Err(Error::NotJoined { name: options.name.to_string(), farm_url: options.farm_url.clone() });
    };
    let mut failures = 0;
    loop {
        let joining = identity::join(folder, client, &options.farm_url, &options.name, token);
        let joined = tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            joined = joining => joined,
        };
        match joined {
            Ok(identity) => {
                journal.append(vec![ledger::Entry::Joined]).await?;
                return Ok(Some(identity));
            }
            Err(Error::JoinRefused { source, .. }) if passing(&source) => {
                failures += 1;
                tracing::warn!(error = %http::causes(&source), "cannot join the farm yet");
                if pause(tries::pause(failures), shutdown).await {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether waiting may mend it.
fn passing(error: &ClientError) -> bool {
    match error {
        ClientError::Transport { .. } | ClientError::Answer { .. } => true,
        ClientError::Refused { error, .. } => {
            matches!(error.kind, ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::NoSpace)
        }
        ClientError::Setup { .. } => false,
    }
}

/// Waits; answers whether the site is to stop.
async fn pause(span: Duration, shutdown: &CancellationToken) -> bool {
    tokio::select! {
        () = shutdown.cancelled() => true,
        () = tokio::time::sleep(span) => false,
    }
}
