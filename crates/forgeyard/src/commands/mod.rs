//! The command line, one file for each noun. Nothing is decided here: a command asks the farm, or reads files, and
//! prints what it learnt.

pub mod access;
pub mod approve;
pub mod artifact;
pub mod audit;
pub mod cache;
pub mod channel;
pub mod demand;
pub mod device;
pub mod doctor;
pub mod environment;
pub mod forge;
pub mod history;
pub mod image;
pub mod job;
pub mod lease;
pub mod pool;
pub mod prewarm;
pub mod relay;
pub mod run;
pub mod runner;
pub mod site;
pub mod status;
pub mod terms;
pub mod token;
pub mod usage;
pub mod verify;

use crate::output::Wrong;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_model::Secret;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How a farm is reached.
#[derive(Args, Clone)]
#[command(next_help_heading = "The farm")]
pub struct FarmArgs {
    /// Address of the farm.
    #[arg(long, env = "FORGEYARD_URL", default_value = "http://127.0.0.1:8417", value_name = "URL")]
    pub farm: String,
    /// File with a token; the variable FORGEYARD_TOKEN is looked at first.
    #[arg(
        long,
        env = "FORGEYARD_TOKEN_FILE",
        default_value = "forgeyard-data/admin.token",
        value_name = "FILE"
    )]
    token_file: PathBuf,
    /// Further certificate authority to trust, PEM.
    #[arg(long, env = "FORGEYARD_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl FarmArgs {
    /// The token to speak with.
    pub fn token(&self) -> Result<Secret> {
        let text = match std::env::var("FORGEYARD_TOKEN") {
            Ok(token) => token,
            Err(_) => fs_err::read_to_string(&self.token_file).context(
                Wrong::new("no token").fix("set FORGEYARD_TOKEN, or name a file with --token-file"),
            )?,
        };
        Ok(Secret::new(text.trim()))
    }

    /// A client that speaks with the token.
    pub fn client(&self) -> Result<Client> {
        self.client_with(Some(self.token()?))
    }

    /// A client without a token, for what is open to everybody.
    pub fn open_client(&self) -> Result<Client> {
        self.client_with(None)
    }

    fn client_with(&self, token: Option<Secret>) -> Result<Client> {
        let options = HttpOptions { ca_file: self.ca.clone(), ..HttpOptions::default() };
        Ok(Client::new(&self.farm, token, &options)?)
    }
}

/// How a farm is reached, and how its answer is printed.
#[derive(Args, Clone)]
pub struct ReadArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub farm: FarmArgs,
}

/// Requests to a farm.
#[derive(Subcommand)]
pub enum ClientCommand {
    /// Run a recipe folder through build and test.
    Run(run::RunArgs),
    /// Say why a job waits, was refused or failed.
    Why(demand::WhyArgs),
    /// Show who waits, since when and why.
    Queue(ReadArgs),
    /// Jobs of forges that want a runner: list, show.
    #[command(subcommand)]
    Demand(demand::DemandCommand),
    /// Let exactly the commit of a held job or pipeline run.
    Approve(approve::JudgeArgs),
    /// Refuse the commit of a held job or pipeline; what runs of it is stopped.
    Refuse(approve::RefuseArgs),
    /// What was approved and refused, by whom, and whether it counts.
    Approvals(ReadArgs),
    /// Terms of service: show, accept.
    #[command(subcommand)]
    Terms(terms::TermsCommand),
    /// Show the state of the farm.
    Status(ReadArgs),
    /// Jobs: list, show, read the log, cancel, run again.
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Runners, the machines of attempts: list, keep one for an autopsy.
    #[command(subcommand)]
    Runner(runner::RunnerCommand),
    /// Devices: list, quarantine, clear.
    #[command(subcommand)]
    Device(device::DeviceCommand),
    /// Leases, the claims of attempts on devices: list, write off.
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Pools of runners that are alike.
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// Images that runners boot.
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Access: check a file, explain a decision, import the files of another farm.
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Artifacts: list, show, download, verify without the farm.
    #[command(subcommand)]
    Artifact(artifact::ArtifactCommand),
    /// Channels, the published indexes of packages.
    #[command(subcommand)]
    Channel(channel::ChannelCommand),
    /// Environments: list, show, make them.
    #[command(subcommand)]
    Env(environment::EnvCommand),
    /// What was used, for each repository.
    Usage(usage::UsageArgs),
    /// The configurations that the farm ran with: history, reload, diff, revert.
    #[command(subcommand)]
    Config(history::ConfigCommand),
    /// The audit trail: who changed what, when.
    Audit(audit::AuditArgs),
    /// API tokens: make, list, revoke.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Print the public key of the farm, which signs its statements.
    PublicKey(ReadArgs),
}

/// Runs a request.
pub async fn run(command: ClientCommand) -> Result<ExitCode> {
    match command {
        ClientCommand::Run(args) => run::run(args).await,
        ClientCommand::Why(args) => demand::why(args).await,
        ClientCommand::Approve(args) => approve::approve(args).await,
        ClientCommand::Refuse(args) => approve::refuse(args).await,
        ClientCommand::Approvals(read) => approve::list(read).await,
        ClientCommand::Terms(command) => terms::run(command).await,
        ClientCommand::Status(args) => status::run(args).await,
        ClientCommand::Job(command) => job::run(command).await,
        ClientCommand::Runner(command) => runner::run(command).await,
        ClientCommand::Device(command) => device::run(command).await,
        ClientCommand::Queue(read) => demand::queue(read).await,
        ClientCommand::Demand(command) => demand::run(command).await,
        ClientCommand::Lease(command) => lease::run(command).await,
        ClientCommand::Pool(command) => pool::run(command).await,
        ClientCommand::Image(command) => image::run(command).await,
        ClientCommand::Access(command) => access::run(command).await,
        ClientCommand::Artifact(command) => artifact::run(command).await,
        ClientCommand::Channel(command) => channel::run(command).await,
        ClientCommand::Env(command) => environment::run(command).await,
        ClientCommand::Usage(args) => usage::run(args).await,
        ClientCommand::Config(command) => history::run(command).await,
        ClientCommand::Audit(args) => audit::run(args).await,
        ClientCommand::Token(command) => token::run(command).await,
        ClientCommand::PublicKey(args) => status::public_key(args).await,
    }
}

/// Reads a file that was named on the command line.
pub fn named(path: &Path) -> Result<Vec<u8>> {
    fs_err::read(path).context(Wrong::new(format!("cannot read {}", path.display())))
}

/// Reads a text file that was named on the command line.
pub fn named_text(path: &Path) -> Result<String> {
    fs_err::read_to_string(path).context(Wrong::new(format!("cannot read {}", path.display())))
}

/// Persisted spelling of a value that is written as one word.
pub fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Prints the devices of this host.
pub fn probe(simulated: bool) -> Result<ExitCode> {
    let options = forgeyard_site::probe::ProbeOptions { simulated_beside_real: simulated };
    forgeyard_site::probe::print(options, &mut std::io::stdout(), &mut std::io::stderr())?;
    Ok(ExitCode::SUCCESS)
}
