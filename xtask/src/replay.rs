//! `cargo xtask replay`: a real afternoon of job starts through the whole control plane, in simulated time.
//!
//! The crates of the farm are compiled with optimisation for it. That is told on the command line and changes nothing for
//! other builds, which keep their outputs.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// Crates that the replay spends its time in.
const FAST: [&str; 8] = ["api", "control", "db", "engine", "forges", "formats", "model", "testkit"];

/// Builds and plays it.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let fast: Vec<String> = FAST
        .iter()
        .map(|name| format!("--config=profile.dev.package.forgeyard-{name}.opt-level=1"))
        .collect();
    let mut all = vec!["run", "--quiet"];
    all.extend(fast.iter().map(String::as_str));
    all.extend(["--package", "forgeyard-control", "--example", "replay", "--"]);
    all.extend(arguments.iter().map(String::as_str));
    let status = crate::cargo::command(root, &all).status().context("cannot start cargo")?;
    if status.success() { Ok(()) } else { bail!("the replay ended with {status}") }
}
