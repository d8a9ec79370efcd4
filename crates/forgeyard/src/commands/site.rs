//! `forgeyard site`: the daemon on a GPU box. It dials out; the box needs no inbound port.

use crate::farm::{self, SiteSetup};
use anyhow::{Context as _, Result};
use clap::Args;
use forgeyard_model::Secret;
use forgeyard_providers::sandbox::NoImages;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Options of a site.
#[derive(Args, Clone)]
pub struct SiteArgs {
    /// The farm.
    #[arg(long, env = "FORGEYARD_URL")]
    farm: String,
    /// Name of this site.
    #[arg(long)]
    name: String,
    /// Folder for its key, its journal and its machines.
    #[arg(long, default_value = "/var/lib/forgeyard-site")]
    state: PathBuf,
    /// File with the farm's join token, for the first time; `FORGEYARD_JOIN_TOKEN` is looked at first.
    #[arg(long)]
    join_token_file: Option<PathBuf>,
    /// Further certificate authority to trust, PEM file.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Offer the simulated GPU beside real ones.
    #[arg(long)]
    simulated: bool,
}

/// Runs a site until it is told to stop; its machines go on.
pub async fn run(args: SiteArgs) -> Result<ExitCode> {
    farm::logging("info");
    let join_token = match (std::env::var("FORGEYARD_JOIN_TOKEN"), &args.join_token_file) {
        (Ok(token), _) => Some(Secret::new(token.trim())),
        (Err(_), Some(path)) => Some(Secret::new(fs_err::read_to_string(path)?.trim())),
        (Err(_), None) => None,
    };
    let stop = CancellationToken::new();
    let site = SiteSetup {
        name: args.name,
        farm_url: args.farm,
        join_token,
        state: args.state,
        ca_file: args.ca,
        simulated_beside_real: args.simulated,
        images: Arc::new(NoImages),
    };
    let running = farm::start_site(site, stop.clone())?;
    tokio::spawn(async move {
        farm::wait_for_signal().await;
        stop.cancel();
    });
    running.await.context("the site")?;
    Ok(ExitCode::SUCCESS)
}
