//! The environment service: asks the farm for work, makes environments one after the other, and posts what came of it.
//!
//! It keeps no state of its own. Work that was asked for and not answered, because this process ended, is given out
//! again by the farm; making it again finds the prefix that is there already.

use crate::explain::because;
use crate::prefixes::Root;
use crate::{Limits, MakeRequest, VirtualPackage, host, make};
use forgeyard_api::client::{Client, ClientError, HttpOptions};
use forgeyard_api::people::EnvironmentResult;
use forgeyard_model::environment::{Environment, EnvironmentState};
use forgeyard_model::{ChannelName, EnvironmentId, Explanation, Secret};
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long one question for work may wait for an answer.
const POLL: Duration = Duration::from_secs(30);

/// Longest pause between attempts to reach the farm.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the service needs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Base URL of the farm.
    pub farm_url: String,
    /// Token that may read environment work and post results.
    pub token: Secret,
    /// Further certificate authority to trust, PEM file.
    pub ca_file: Option<PathBuf>,
    /// Folder of all prefixes.
    pub root_dir: PathBuf,
    /// Folder for packages and indexes.
    pub cache_dir: PathBuf,
    /// Channels beside the farm's own, by URL, in order of trust.
    pub extra_channels: Vec<String>,
    /// Platform and virtual packages; `None` = those of this host.
    pub host: Option<(String, Vec<VirtualPackage>)>,
    /// How long each step may take.
    pub limits: Limits,
}

/// Where the farm serves a channel.
pub fn channel_url(farm_url: &str, channel: &ChannelName) -> String {
    format!("{}/channels/{channel}", farm_url.trim_end_matches('/'))
}

/// Runs until `shutdown`. An error means that the service cannot begin; later trouble is logged and survived.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), Explanation> {
    let client = connect(&options)?;
    let root = Root::open(&options.root_dir)?;
    root.sweep().await?;
    let (platform, virtual_packages) = match options.host.clone() {
        Some(host) => host,
        None => host::detect().await,
    };
    tracing::info!(farm = %options.farm_url, root = %options.root_dir.display(), %platform, "the environment service runs");
    let mut pause = Duration::from_secs(1);
    loop {
        let asked = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            asked = client.environment_work(POLL) => asked,
        };
        let environment = match asked {
            Ok(Some(environment)) => environment,
            Ok(None) => {
                pause = Duration::from_secs(1);
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, ?pause, "the farm did not answer; asking again after a pause");
                if rest(&mut pause, &shutdown).await.is_break() {
                    return Ok(());
                }
                continue;
            }
        };
        pause = Duration::from_secs(1);
        let id = environment.id;
        let request = request(&options, environment, &platform, &virtual_packages);
        // In a task of its own, so that a panic in a library ends this environment and not the service.
        let mut task = tokio::spawn(async move { make(&request).await });
        let made = tokio::select! {
            () = shutdown.cancelled() => {
                task.abort();
                return Ok(());
            }
            made = &mut task => made,
        };
        let state = match made {
            Ok(Ok(made)) => EnvironmentState::from(made),
            Ok(Err(reason)) => EnvironmentState::Failed { reason },
            Err(error) => {
                let message = "making the environment ended unexpectedly";
                let reason = because(Explanation::new("environment.internal", message), &error);
                EnvironmentState::Failed {
                    reason: reason.fix("look at the log of the environment service and report it"),
                }
            }
        };
        tracing::info!(environment = %id, state = state.name(), "the environment is decided");
        if post(&client, id, &EnvironmentResult { state }, &shutdown).await.is_break() {
            return Ok(());
        }
    }
}

fn connect(options: &Options) -> Result<Client, Explanation> {
    let http = HttpOptions { ca_file: options.ca_file.clone(), ..HttpOptions::default() };
    Client::new(&options.farm_url, Some(options.token.clone()), &http).map_err(|error| {
        let message = format!("the client for {} could not be made", options.farm_url);
        because(Explanation::new("environment.client", message), &error)
            .fix("check the URL of the farm and the CA file")
    })
}

fn request(
    options: &Options,
    environment: Environment,
    platform: &str,
    virtual_packages: &[VirtualPackage],
) -> MakeRequest {
    let mut channel_urls = vec![channel_url(&options.farm_url, &environment.channel)];
    channel_urls.extend(options.extra_channels.iter().cloned());
    MakeRequest {
        id: environment.id,
        name: environment.name,
        channel_urls,
        ca_file: options.ca_file.clone(),
        specs: environment.specs,
        run: environment.run,
        root_dir: options.root_dir.clone(),
        cache_dir: options.cache_dir.clone(),
        platform: platform.to_owned(),
        virtual_packages: virtual_packages.to_vec(),
        limits: options.limits,
    }
}

/// Posts a result until the farm has it or refuses it.
async fn post(
    client: &Client,
    id: EnvironmentId,
    result: &EnvironmentResult,
    shutdown: &CancellationToken,
) -> std::ops::ControlFlow<()> {
    let mut pause = Duration::from_secs(1);
    loop {
        match client.post_environment_result(id, result).await {
            Ok(()) => return std::ops::ControlFlow::Continue(()),
            Err(ClientError::Refused { error, .. }) if error.kind.status() < 500 => {
                tracing::warn!(environment = %id, code = %error.code, %error, "the farm does not want the result");
                return std::ops::ControlFlow::Continue(());
            }
            Err(error) => {
                tracing::warn!(environment = %id, %error, "the result could not be posted; trying again")
            }
        }
        rest(&mut pause, shutdown).await?;
    }
}

/// Waits, longer each time. Breaks at shutdown.
async fn rest(pause: &mut Duration, shutdown: &CancellationToken) -> std::ops::ControlFlow<()> {
    tokio::select! {
        () = shutdown.cancelled() => return std::ops::ControlFlow::Break(()),
        () = tokio::time::sleep(*pause) => {}
    }
    *pause = (*pause * 2).min(LONGEST_PAUSE);
    std::ops::ControlFlow::Continue(())
}
