//! `forgeyard lease`: claims of attempts on devices.

use super::{FarmArgs, ReadArgs};
use crate::output::{self, at, table_or};
use anyhow::Result;
use clap::Subcommand;
use forgeyard_model::LeaseId;
use forgeyard_model::lease::Lease;
use std::process::ExitCode;

/// What can be asked about leases.
#[derive(Subcommand, Clone)]
pub enum LeaseCommand {
    /// List the leases that hold devices.
    List {
        /// Show those that ended as well, as far as the newest go.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Declare the host of a lease lost; its attempt ends as lost, and its devices stay out until they are cleared.
    WriteOff {
        /// The lease, `lease_…`.
        lease: LeaseId,
        #[command(flatten)]
        farm: FarmArgs,
    },
}

/// Runs a command.
pub async fn run(command: LeaseCommand) -> Result<ExitCode> {
    match command {
        LeaseCommand::List { all, read } => {
            let leases: Vec<Lease> = read
                .farm
                .client()?
                .leases()
                .await?
                .into_iter()
                .filter(|lease| all || lease.state.live())
                .collect();
            output::show(read.json, &leases, |leases| {
                let rows: Vec<Vec<String>> = leases
                    .iter()
                    .map(|lease| {
                        vec![
                            lease.id.to_string(),
                            lease.state.name().to_owned(),
                            lease
                                .attempt
                                .map_or_else(|| format!("none yet, {}", lease.runner), |id| id.to_string()),
                            at(lease.since),
                        ]
                    })
                    .collect();
                table_or("no lease holds a device", &["lease", "state", "attempt", "since"], &rows)
            })
        }
        LeaseCommand::WriteOff { lease, farm } => {
            farm.client()?.write_off(lease).await?;
            output::say(&format!(
                "{lease} is written off; see `forgeyard device list`, and clear its devices when the host is well"
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
