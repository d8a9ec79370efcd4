//! `cargo xtask replay`: a real afternoon of job starts through the whole control plane, in simulated time.
//!
//! The crates of the farm are compiled with optimisation for it.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// Builds and plays it.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let fast = crate::cargo::optimised();
    let mut all = vec!["run", "--quiet"];
    all.extend(fast.iter().map(String::as_str));
    all.extend(["--package", "forgeyard-control", "--example", "replay", "--"]);
    all.extend(arguments.iter().map(String::as_str));
    let status = crate::cargo::command(root, &all).status().context("cannot start cargo")?;
    if status.success() { Ok(()) } else { bail!("the replay ended with {status}") }
}
