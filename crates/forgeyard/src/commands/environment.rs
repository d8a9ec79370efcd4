//! `forgeyard env`: locked sets of packages, built once. `env serve` is the service that makes them, alone.

use super::ReadArgs;
#[cfg(feature = "envs")]
use crate::farm;
use crate::output::{self, Wrong, at, indented, table, table_or};
use anyhow::Result;
use clap::{Args, Subcommand};
use forgeyard_model::environment::{Environment, EnvironmentState};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be done with environments.
#[derive(Subcommand, Clone)]
pub enum EnvCommand {
    /// List the newest environments.
    List(ReadArgs),
    /// Show an environment: its lock, its prefix, what its program printed.
    Show {
        /// The environment, as `env_…`, or by its name: the newest of that name.
        environment: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Run the environment service alone: it asks the farm what to make, and makes it on this host.
    Serve(ServeArgs),
}

/// Options of the environment service.
#[derive(Args, Clone)]
pub struct ServeArgs {
    /// Folder for prefixes and downloaded packages.
    #[arg(long, default_value = "/var/lib/forgeyard-env", value_name = "FOLDER")]
    state: PathBuf,
    /// Further channel to solve from, by address, after the farm's own; may be given more than once.
    #[arg(long = "channel", value_name = "URL")]
    channels: Vec<String>,
    #[command(flatten)]
    farm: super::FarmArgs,
}

/// Runs a command.
pub async fn run(command: EnvCommand) -> Result<ExitCode> {
    match command {
        EnvCommand::List(read) => {
            let environments = read.farm.client()?.environments().await?;
            output::show(read.json, &environments, |environments| {
                let rows: Vec<Vec<String>> = environments
                    .iter()
                    .map(|row| {
                        vec![
                            row.id.to_string(),
                            row.state.name().to_owned(),
                            at(row.since),
                            format!("{}: {}", row.name, row.specs.join(", ")),
                        ]
                    })
                    .collect();
                table_or(
                    "no environment was asked for yet",
                    &["environment", "state", "since", "what"],
                    &rows,
                )
            })
        }
        EnvCommand::Show { environment, read } => {
            let all = read.farm.client()?.environments().await?;
            // Newest first, so a name finds the newest of that name.
            let found = all
                .into_iter()
                .find(|row| row.id.to_string() == environment || row.name.to_string() == environment);
            let found = found.ok_or_else(|| {
                Wrong::new(format!("the farm has no environment `{environment}`"))
                    .fix("see `forgeyard env list`")
            })?;
            output::show(read.json, &found, show)
        }
        EnvCommand::Serve(args) => serve(args).await,
    }
}

fn show(row: &Environment) -> String {
    let mut text = format!(
        "{} ({})\nstate:    {} since {}\nchannel:  {}\nasked:    {}\npipeline: {}\n",
        row.id,
        row.name,
        row.state.name(),
        at(row.since),
        row.channel,
        row.specs.join(", "),
        row.pipeline,
    );
    match &row.state {
        EnvironmentState::Requested => {
            text.push_str(
                "next:     an environment service makes it: `forgeyard env serve`, or `forgeyard up`\n",
            );
        }
        EnvironmentState::Failed { reason } => {
            let _ = writeln!(text, "failed:   {}", indented(reason, 10));
        }
        EnvironmentState::Ready { lock, lock_digest, prefix, proof } => {
            let _ = writeln!(text, "prefix:   {prefix}\nlock:     {lock_digest}");
            if let Some(proof) = proof {
                let took =
                    proof.took_ms.map(|ms| format!(", {:.1} s", ms as f64 / 1000.0)).unwrap_or_default();
                let _ = writeln!(text, "program:  {} (exit {}{took})", proof.argv.join(" "), proof.exit_code);
                for line in proof.stdout.lines() {
                    let _ = writeln!(text, "  | {line}");
                }
            }
            let rows: Vec<Vec<String>> = lock
                .iter()
                .map(|package| {
                    vec![package.digest.hex(), format!("{}/{}", package.subdir, package.file_name)]
                })
                .collect();
            let _ = write!(text, "\n{}", table(&["sha256", "package"], &rows));
        }
    }
    text
}

#[cfg(feature = "envs")]
async fn serve(args: ServeArgs) -> Result<ExitCode> {
    use tokio_util::sync::CancellationToken;
    farm::logging("info");
    let state = farm::folder(&args.state)?;
    let options = forgeyard_envs::service::Options {
        farm_url: args.farm.farm.clone(),
        token: args.farm.token()?,
        ca_file: args.farm.ca.clone(),
        root_dir: state.join("envs"),
        cache_dir: state.join("env-cache"),
        extra_channels: args.channels,
        host: None,
        limits: forgeyard_envs::Limits::default(),
    };
    let stop = CancellationToken::new();
    let signal = stop.clone();
    tokio::spawn(async move {
        farm::wait_for_signal().await;
        signal.cancel();
    });
    match forgeyard_envs::service::run(options, stop).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(reason) => anyhow::bail!("the environment service cannot begin: {reason}"),
    }
}

#[cfg(not(feature = "envs"))]
async fn serve(args: ServeArgs) -> Result<ExitCode> {
    let _ = (args.state, args.channels, args.farm);
    Err(Wrong::new("this program was built without environments")
        .fix("use one that was built with the feature `envs`")
        .into())
}
