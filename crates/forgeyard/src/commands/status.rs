//! `forgeyard status` and `forgeyard public-key`: the farm as a whole.

use super::{ReadArgs, device, site};
use crate::output::{self, at, indented};
use anyhow::Result;
use forgeyard_api::people::Status;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Shows the state of the farm.
pub async fn run(read: ReadArgs) -> Result<ExitCode> {
    let status = read.farm.client()?.status().await?;
    output::show(read.json, &status, text)
}

/// Prints the public key of the farm.
pub async fn public_key(read: ReadArgs) -> Result<ExitCode> {
    let key = read.farm.open_client()?.public_key().await?;
    output::show(read.json, &key, |key| key.pem.clone())
}

fn text(status: &Status) -> String {
    let counts = |counts: &BTreeMap<String, u64>| {
        let all: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    let mut text = format!("farm:    {} {} at {}\n", status.farm, status.version, at(status.at));
    let _ = writeln!(text, "jobs:    {}", counts(&status.jobs));
    let _ = writeln!(text, "runners: {}", counts(&status.runners));
    for alarm in &status.alarms {
        let _ = writeln!(text, "alarm:   {}", indented(alarm, 9));
    }
    let _ = write!(text, "\n{}\n{}", site::list(status), device::list(&status.devices));
    text
}
