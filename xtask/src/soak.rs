//! `cargo xtask soak cache [SECONDS]`: the long form of a test that is not run with the others.

use anyhow::{Result, bail};
use std::path::Path;

/// Runs the soak of this part for so long. What it does stands in the test.
pub(crate) fn run(root: &Path, what: &str, seconds: u64) -> Result<()> {
    let package = match what {
        "cache" => "forgeyard-cache",
        _ => bail!("there is no soak of `{what}`: the only one is cache"),
    };
    let arguments = ["test", "--quiet", "--package", package, "--test", "soak", "--"];
    let rest = ["--ignored", "--exact", "soak", "--nocapture"];
    let mut command = crate::cargo::command(root, &[&arguments[..], &rest].concat());
    let status = command.env("FORGEYARD_SOAK_SECONDS", seconds.to_string()).status()?;
    if !status.success() {
        bail!("the soak found something, or could not run: see above");
    }
    Ok(())
}
