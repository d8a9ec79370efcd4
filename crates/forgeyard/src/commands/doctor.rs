//! `forgeyard doctor`: what this host can do, asked and not assumed.

use crate::config::FileConfig;
use crate::farm;
use anyhow::Result;
use clap::Args;
use forgeyard_providers::Provider as _;
use forgeyard_providers::sandbox::NoImages;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Options of the doctor.
#[derive(Args, Clone)]
pub struct DoctorArgs {
    /// Configuration of the farm.
    #[arg(long, env = "FORGEYARD_CONFIG")]
    config: Option<PathBuf>,
}

fn check(good: bool, what: &str, detail: &str, fix: &str) -> bool {
    println!("{} {what:<24} {detail}", if good { "ok  " } else { "MISS" });
    if !good {
        println!("     fix: {fix}");
    }
    good
}

fn program(name: &str, argument: &str) -> Option<String> {
    let output = Command::new(name).arg(argument).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
}

/// Looks at everything.
pub async fn run(args: DoctorArgs) -> Result<ExitCode> {
    let file = FileConfig::read(args.config.as_deref())?;
    let mut all = true;
    for (name, argument) in
        [("git", "--version"), ("runc", "--version"), ("conmon", "--version"), ("clinfo", "--version")]
    {
        let found = program(name, argument);
        all &= check(
            found.is_some(),
            name,
            found.as_deref().unwrap_or("not found"),
            &format!("install the package `{name}`"),
        );
    }
    let engine = file.engine();
    all &= check(
        engine.join("bin/python").exists(),
        "conda build engine",
        &engine.display().to_string(),
        "run scripts/install-engine.sh, or set FORGEYARD_ENGINE",
    );
    let state = tempfile::tempdir()?;
    let provider = farm::sandbox(state.path(), Arc::new(NoImages))?;
    match provider.facts().await {
        Ok(facts) => {
            for limit in &facts.enforces {
                println!("ok   limit {limit:?} is enforced");
            }
            for (limit, why) in &facts.cannot {
                all &= check(
                    false,
                    &format!("limit {limit:?}"),
                    why,
                    "jobs that need this limit are refused on this host",
                );
            }
        }
        Err(error) => {
            let explanation = error.explanation();
            all &= check(
                false,
                "sandbox provider",
                &explanation.message,
                explanation.fix.as_deref().unwrap_or("see above"),
            );
        }
    }
    let probe =
        forgeyard_site::probe::devices(forgeyard_site::probe::ProbeOptions { simulated_beside_real: true });
    for note in &probe.notes {
        println!("note {note}");
    }
    for device in &probe.devices {
        println!(
            "ok   device {} — {} ({}, {} MiB)",
            device.model,
            device.kind.label(),
            device.driver,
            device.memory_mib
        );
    }
    all &= check(
        !probe.devices.is_empty(),
        "devices",
        &probe.devices.len().to_string(),
        "install pocl-opencl-icd for a simulated GPU, or a GPU driver",
    );
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
