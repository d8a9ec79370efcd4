//! `forgeyard doctor`: what this host can do, asked and not assumed.

use crate::config::{FileConfig, HostSize};
use crate::{farm, output};
use anyhow::Result;
use clap::Args;
use forgeyard_providers::Provider as _;
use forgeyard_providers::sandbox::NoImages;
use serde::Serialize;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Options of the doctor.
#[derive(Args, Clone)]
pub struct DoctorArgs {
    /// Configuration of the farm.
    #[arg(long, env = "FORGEYARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    good: bool,
    what: String,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

#[derive(Serialize, Default)]
struct Report {
    good: bool,
    findings: Vec<Finding>,
    notes: Vec<String>,
}

impl Report {
    fn check(&mut self, good: bool, what: impl Into<String>, detail: impl Into<String>, fix: &str) {
        let fix = (!good).then(|| fix.to_owned());
        self.findings.push(Finding { good, what: what.into(), detail: detail.into(), fix });
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { good, what, detail, fix } in &self.findings {
            text.push_str(&format!("{} {what:<24} {detail}\n", if *good { "ok  " } else { "MISS" }));
            if let Some(fix) = fix {
                text.push_str(&format!("     fix: {fix}\n"));
            }
        }
        for note in &self.notes {
            text.push_str(&format!("note {note}\n"));
        }
        text
    }
}

fn program(name: &str, argument: &str) -> Option<String> {
    let output = Command::new(name).arg(argument).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
}

/// Looks at everything. Exit code 1 when something is missing.
pub async fn run(args: DoctorArgs) -> Result<ExitCode> {
    let file = FileConfig::read(args.config.as_deref())?;
    let mut report = Report::default();
    if let Some(path) = &args.config {
        // The same reading as at a start and at a change: what is wrong here would not count.
        let wrong = file.farm(HostSize::here()).err();
        let detail = wrong.as_ref().map_or_else(|| path.display().to_string(), |error| format!("{error:#}"));
        let fix = wrong.as_ref().and_then(|error| error.downcast_ref::<output::Wrong>()?.how());
        report.check(wrong.is_none(), "rules", detail, fix.unwrap_or("correct the file"));
    }
    for (name, argument) in
        [("git", "--version"), ("runc", "--version"), ("conmon", "--version"), ("clinfo", "--version")]
    {
        let found = program(name, argument);
        let detail = found.clone().unwrap_or_else(|| "not found".to_owned());
        report.check(found.is_some(), name, detail, &format!("install the package `{name}`"));
    }
    let engine = file.engine();
    report.check(
        engine.join("bin/python").exists(),
        "conda build engine",
        engine.display().to_string(),
        "run scripts/install-engine.sh, or set FORGEYARD_ENGINE",
    );
    provider(&mut report).await?;
    let probe =
        forgeyard_site::probe::devices(forgeyard_site::probe::ProbeOptions { simulated_beside_real: true });
    report.notes = probe.notes;
    for device in &probe.devices {
        let detail = format!("{} ({}, {} MiB)", device.model, device.driver, device.memory_mib);
        report.check(true, device.kind.label(), detail, "");
    }
    report.check(
        !probe.devices.is_empty(),
        "devices",
        probe.devices.len().to_string(),
        "install pocl-opencl-icd for a simulated GPU, or a GPU driver",
    );
    report.good = report.findings.iter().all(|finding| finding.good);
    output::show(args.json, &report, Report::text)?;
    Ok(if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn provider(report: &mut Report) -> Result<()> {
    let state = tempfile::tempdir()?;
    let provider = farm::sandbox(state.path(), Arc::new(NoImages))?;
    match provider.facts().await {
        Ok(facts) => {
            for limit in &facts.enforces {
                report.check(true, format!("limit {}", super::word(limit)), "is enforced", "");
            }
            for (limit, why) in &facts.cannot {
                let what = format!("limit {}", super::word(limit));
                report.check(false, what, why, "jobs that need this limit are refused on this host");
            }
        }
        Err(error) => {
            let explanation = error.explanation();
            let fix = explanation.fix.as_deref().unwrap_or("see above");
            report.check(false, "sandbox provider", &explanation.message, fix);
        }
    }
    Ok(())
}
