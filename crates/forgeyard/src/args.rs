//! The command line: its words, and which service or request each of them is.
//!
//! Exit codes are those of [`crate::output`]; the help text names them.

use crate::{commands, farm, tour};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it did not succeed: a job failed, a statement does not hold, something is missing
  2  the command line, a file that it names or the configuration is wrong
  3  the farm refused
  4  no answer from the farm";

/// A self-hosted CI farm for GPU software: from pull request to tested package to running environment.
#[derive(Parser)]
#[command(name = "forgeyard", version, about, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the whole chain on this machine, on real input, from webhook to running environment.
    Tour(tour::TourArgs),
    /// Run a farm on this machine: control plane, site and environments in one process.
    Up(UpArgs),
    /// Run the control plane alone.
    Serve(UpArgs),
    /// Sites, places with hosts: run one on this host, list, drain, resume.
    #[command(subcommand)]
    Site(commands::site::SiteCommand),
    /// Forges: connect one, look whether a connection does all that it should.
    #[command(subcommand)]
    Forge(commands::forge::ForgeCommand),
    /// The build cache: run it, make its tokens, look at its entries, remove them.
    #[command(subcommand)]
    Cache(commands::cache::CacheCommand),
    #[command(flatten)]
    Client(commands::ClientCommand),
    /// Look whether this host can do what a farm needs.
    Doctor(commands::doctor::DoctorArgs),
    /// Print the devices of this host as JSON; the site runs this in a child process.
    #[command(name = "probe-devices", hide = true)]
    ProbeDevices {
        /// Show the simulated GPU beside real ones.
        #[arg(long)]
        simulated: bool,
    },
}

/// Options of a farm on this machine.
#[derive(Args, Clone)]
pub struct UpArgs {
    /// Folder of the farm: database, blobs, keys.
    #[arg(long, env = "FORGEYARD_DATA", default_value = "forgeyard-data", value_name = "FOLDER")]
    pub data: PathBuf,
    /// Configuration; everything in it has a default.
    #[arg(long, env = "FORGEYARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Whether the program takes this command line; for tests.
#[cfg(test)]
pub fn parse(words: &[&str]) -> Result<(), clap::Error> {
    Cli::try_parse_from(words).map(drop)
}

/// Parses and runs.
pub fn main(arguments: Vec<std::ffi::OsString>) -> ExitCode {
    let cli = Cli::parse_from(arguments);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Tour(args) => tour::run(args).await,
            Command::Up(args) => farm::up(args, true).await,
            Command::Serve(args) => farm::up(args, false).await,
            Command::Site(command) => commands::site::run(command).await,
            Command::Forge(command) => commands::forge::run(command).await,
            Command::Cache(command) => commands::cache::run(command).await,
            Command::Client(command) => commands::run(command).await,
            Command::Doctor(args) => commands::doctor::run(args).await,
            Command::ProbeDevices { simulated } => commands::probe(simulated),
        }
    });
    match result {
        Ok(code) => code,
        Err(error) => crate::output::failure(&error),
    }
}
