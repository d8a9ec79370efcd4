//! `forgeyard forge`: connections to code hosts. `connect` makes one, `doctor` looks whether it does all that it should.

mod connect;
mod files;
mod page;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// What can be done with forges.
#[derive(Subcommand, Clone)]
pub enum ForgeCommand {
    /// Connect a forge to the farm.
    #[command(subcommand)]
    Connect(ConnectCommand),
}

/// What can be connected.
#[derive(Subcommand, Clone)]
pub enum ConnectCommand {
    /// Make a GitHub App for the farm, in one click, and write its key, its secrets and its section of the configuration.
    Github(connect::ConnectArgs),
}

/// Runs a command.
pub async fn run(command: ForgeCommand) -> Result<ExitCode> {
    match command {
        ForgeCommand::Connect(ConnectCommand::Github(args)) => connect::run(args).await,
    }
}
