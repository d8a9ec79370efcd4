//! Chores of the repository: `cargo xtask graph | size | openapi | dist`.
//!
//! Exit status 0 means that the check holds or the work is done; 1 means that it does not, with one line per reason.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod dist;
mod graph;
mod openapi;
mod size;

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
    /// Build what is released: the program, the static agent and their checksums, in dist/.
    Dist,
}

fn main() -> ExitCode {
    let done = root().and_then(|root| match Arguments::parse().chore {
        Chore::Graph => graph::check(&root),
        Chore::Size => size::check(&root),
        Chore::Openapi { check } => openapi::make(&root, check),
        Chore::Dist => dist::make(&root),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository: the folder above this crate.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).with_context(|| format!("{} has no parent folder", here.display()))
}
