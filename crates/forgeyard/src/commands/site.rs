//! `forgeyard site`: places with hosts. `site run` is the daemon on a GPU box; it dials out, so the box needs no
//! inbound port. The other verbs ask the farm.

use super::{FarmArgs, ReadArgs};
use crate::farm::{self, SiteSetup};
use crate::output::{self, Wrong, at, table_or};
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use forgeyard_api::client::Client;
use forgeyard_api::people::{SiteStatus, Status};
use forgeyard_model::{Secret, SiteId};
use forgeyard_providers::sandbox::NoImages;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What can be done with sites.
#[derive(Subcommand, Clone)]
pub enum SiteCommand {
    /// Run a site on this host, dialling out to a farm.
    Run(SiteArgs),
    /// List the sites of the farm.
    List(ReadArgs),
    /// Give no new work to a site; what runs there goes on.
    Drain(OneSite),
    /// Give work to a site again.
    Resume(OneSite),
}

/// One site.
#[derive(Args, Clone)]
pub struct OneSite {
    /// The site, by its name or as `site_…`.
    site: String,
    #[command(flatten)]
    farm: FarmArgs,
}

/// Options of a site.
#[derive(Args, Clone)]
pub struct SiteArgs {
    /// Address of the farm.
    #[arg(long, env = "FORGEYARD_URL", value_name = "URL")]
    farm: String,
    /// Name of this site.
    #[arg(long)]
    name: String,
    /// Folder for its key, its journal and its machines.
    #[arg(long, default_value = "/var/lib/forgeyard-site", value_name = "FOLDER")]
    state: PathBuf,
    /// File with the farm's join token, for the first time; the variable FORGEYARD_JOIN_TOKEN is looked at first. On
    /// the farm it is `join.token` in the data folder.
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
    /// Further certificate authority to trust, PEM.
    #[arg(long, env = "FORGEYARD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Offer the simulated GPU beside real ones.
    #[arg(long)]
    simulated: bool,
}

/// Runs a command.
pub async fn run(command: SiteCommand) -> Result<ExitCode> {
    match command {
        SiteCommand::Run(args) => serve(args).await,
        SiteCommand::List(read) => {
            let status = read.farm.client()?.status().await?;
            output::show(read.json, &status.sites, |_| list(&status))
        }
        SiteCommand::Drain(args) => drain(args, true).await,
        SiteCommand::Resume(args) => drain(args, false).await,
    }
}

/// Runs a site until it is told to stop; its machines go on.
async fn serve(args: SiteArgs) -> Result<ExitCode> {
    farm::logging("info");
    let join_token = match (std::env::var("FORGEYARD_JOIN_TOKEN"), &args.join_token_file) {
        (Ok(token), _) => Some(Secret::new(token.trim())),
        (Err(_), Some(path)) => Some(Secret::new(super::named_text(path)?.trim())),
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

/// Sites as text.
pub fn list(status: &Status) -> String {
    let rows: Vec<Vec<String>> = status
        .sites
        .iter()
        .map(|site| {
            let heard = site.heard_at.map_or_else(|| "never".to_owned(), at);
            let state = if site.draining { "draining" } else { "open" };
            let offers = site.host.as_ref().map_or_else(
                || "not reported".to_owned(),
                |host| format!("{} CPUs, {}", host.cpu_millis / 1000, output::bytes(host.memory_mib << 20)),
            );
            vec![site.id.to_string(), site.name.clone(), state.to_owned(), heard, offers]
        })
        .collect();
    let none = "no site has joined; start one with `forgeyard site run`, or a whole farm with `forgeyard up`";
    table_or(none, &["site", "name", "state", "heard", "offers"], &rows)
}

async fn drain(OneSite { site, farm }: OneSite, drain: bool) -> Result<ExitCode> {
    let client = farm.client()?;
    let id = find(&client, &site).await?;
    client.drain(id, drain).await?;
    output::say(&format!("{site} {}", if drain { "gets no new work" } else { "gets work again" }))?;
    Ok(ExitCode::SUCCESS)
}

async fn find(client: &Client, text: &str) -> Result<SiteId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let sites = client.status().await?.sites;
    let found = sites.iter().find(|site: &&SiteStatus| site.name == text).map(|site| site.id);
    found.ok_or_else(|| {
        Wrong::new(format!("the farm has no site `{text}`")).fix("see `forgeyard site list`").into()
    })
}
