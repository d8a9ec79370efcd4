//! `forgeyard runner`: ephemeral machines, each for at most one attempt.

use super::{FarmArgs, ReadArgs};
use crate::output::{self, at, table_or};
use anyhow::Result;
use clap::Subcommand;
use forgeyard_model::RunnerId;
use forgeyard_model::runner::{Runner, RunnerState};
use std::process::ExitCode;

/// What can be asked about runners.
#[derive(Subcommand, Clone)]
pub enum RunnerCommand {
    /// List the runners that exist.
    List {
        /// Show those that are gone as well, as far as the newest go.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Leave a runner standing for an autopsy, whatever becomes of its attempt.
    Keep {
        /// The runner, `rnr_…`.
        runner: RunnerId,
        /// Why; it is written into the audit trail.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        farm: FarmArgs,
    },
}

/// Runs a command.
pub async fn run(command: RunnerCommand) -> Result<ExitCode> {
    match command {
        RunnerCommand::List { all, read } => {
            let runners: Vec<Runner> = read
                .farm
                .client()?
                .runners()
                .await?
                .into_iter()
                .filter(|runner| all || runner.state.live())
                .collect();
            output::show(read.json, &runners, |runners| list(runners))
        }
        RunnerCommand::Keep { runner, reason, farm } => {
            farm.client()?.keep(runner, &reason).await?;
            output::say(&format!("{runner} is kept"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(runners: &[Runner]) -> String {
    let rows: Vec<Vec<String>> = runners
        .iter()
        .map(|runner| {
            let what = match &runner.state {
                RunnerState::Failed { reason } | RunnerState::Kept { reason } => {
                    format!("{}: {}", runner.pool, reason.message)
                }
                _ => format!("{}, {}", runner.pool, runner.flavor),
            };
            let attempt = runner.work.attempt().map_or_else(|| "none yet".to_owned(), |id| id.to_string());
            vec![runner.id.to_string(), runner.state.name().to_owned(), at(runner.since), attempt, what]
        })
        .map(|mut row| {
            // Two ids and a time leave little: the time goes first when the line is narrow.
            if output::width() < 120 {
                row.remove(2);
            }
            row
        })
        .collect();
    let headings = ["runner", "state", "since", "attempt", "pool"];
    let narrow = ["runner", "state", "attempt", "pool"];
    table_or("no runner exists", if output::width() < 120 { &narrow } else { &headings }, &rows)
}
