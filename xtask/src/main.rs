//! Chores of the repository: `cargo xtask graph | size | openapi | bench | replay | fuzz | device-check | dist`.
//!
//! Exit status 0 means that the check holds or the work is done; 1 means that it does not, with one line per reason.
//! `device-check` ends with 3 when the machine has no real GPU.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod bench;
mod cache_clients;
mod cache_trees;
mod cargo;
mod device;
mod dist;
mod fuzz;
mod graph;
mod idle;
mod openapi;
mod replay;
#[cfg(test)]
mod reports;
mod size;
mod soak;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the repository")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the dependencies between the crates, and of heavy libraries, against the table of the design.
    Graph,
    /// Check that no Rust file is too long.
    Size,
    /// Write the document that describes the HTTP API, openapi/forgeyard.json.
    Openapi {
        /// Write nothing; fail when the document is not what the code says.
        #[arg(long)]
        check: bool,
    },
    /// Measure, beside a peer or floor, and print one table: transitions, webhooks, burst, create,
    /// decisions, restart, artifacts, cache, cache-tls, cache-start, cache-find-missing, cache-at-rest, cache-clients, sandbox, tour, server.
    Bench {
        /// Only these parts.
        names: Vec<String>,
    },
    /// Play a real afternoon of job starts through the control plane, in simulated time with faults on every source. Needs
    /// FORGEYARD_CORPUS.
    Replay {
        /// A seed, and how many starts at most.
        arguments: Vec<String>,
    },
    /// Run every fuzz target, or those with these names, for so many seconds each.
    Fuzz {
        /// Seconds for each target.
        #[arg(default_value_t = 30)]
        seconds: u64,
        /// Only these targets.
        names: Vec<String>,
    },
    /// Run clients against a service that is killed again and again, for so many seconds.
    Soak {
        /// What is soaked: `cache`.
        what: String,
        /// For how long: 60 in CI, 1800 before a release.
        #[arg(default_value_t = 1800)]
        seconds: u64,
    },
    /// Look whether this machine has a real GPU and whether the whole chain works on it; print a summary to hand on.
    DeviceCheck,
    /// Build what is released: the program, the static agent and their checksums, in dist/.
    Dist,
}

fn main() -> ExitCode {
    let root = match root() {
        Ok(root) => root,
        Err(error) => return failure(&error),
    };
    let done = match Arguments::parse().chore {
        Chore::Graph => graph::check(&root),
        Chore::Size => size::check(&root),
        Chore::Openapi { check } => openapi::make(&root, check),
        Chore::Bench { names } => bench::run(&root, &names),
        Chore::Replay { arguments } => replay::run(&root, &arguments),
        Chore::Fuzz { seconds, names } => fuzz::run(&root, seconds, &names),
        Chore::Soak { what, seconds } => soak::run(&root, &what, seconds),
        Chore::DeviceCheck => return device::check(&root),
        Chore::Dist => dist::make(&root),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

fn failure(error: &anyhow::Error) -> ExitCode {
    eprintln!("xtask: {error:#}");
    ExitCode::FAILURE
}

/// The root of the repository: the folder above this crate.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).with_context(|| format!("{} has no parent folder", here.display()))
}
