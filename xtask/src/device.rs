//! `cargo xtask device-check`: the one thing to run on a machine with a real GPU.
//!
//! It installs what is missing, builds, asks drivers and the farm's own probe what is there, runs `forgeyard doctor` and
//! the tour, and ends with a summary to hand on. Every step is run, also after one that failed. Exit code 0: all of it
//! works on a real GPU; 1: a step failed; 3: all works, and no real GPU was found.

use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Exit code when everything works and there is no real GPU.
const NO_REAL_GPU: u8 = 3;

/// What was done, in the order of the summary.
#[derive(Default)]
struct Summary {
    text: String,
    failed: Vec<String>,
}

impl Summary {
    fn say(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.text, "{}", text.as_ref());
    }

    fn step(&mut self, name: &str, outcome: Result<f64>) {
        match outcome {
            Ok(seconds) => self.say(format!("ok      {name} ({seconds:.0} s)")),
            Err(error) => {
                self.say(format!("FAILED  {name}: {error:#}"));
                self.failed.push(name.to_owned());
            }
        }
    }
}

/// Runs the check.
pub(crate) fn check(root: &Path) -> ExitCode {
    let mut summary = Summary::default();
    summary.say(crate::bench::machine());
    summary.say(format!("kernel: {}", said(root, "uname", &["-sr"])));
    let commit = said(root, "git", &["rev-parse", "--short", "HEAD"]);
    let changed = !said(root, "git", &["status", "--porcelain"]).is_empty();
    summary.say(format!("commit: {commit}{}", if changed { ", with changes" } else { "" }));
    drivers(root, &mut summary);
    for script in ["scripts/install.sh", "scripts/install-engine.sh"] {
        let outcome = shown(Command::new(root.join(script)).current_dir(root), &mut |_| {});
        summary.step(script, outcome);
    }
    let begin = Instant::now();
    let binary = crate::idle::built(root);
    let outcome = binary.as_ref().map(|_| begin.elapsed().as_secs_f64());
    summary.step("build", outcome.map_err(|error| anyhow::anyhow!("{error:#}")));
    let real = match &binary {
        Ok(binary) => farm(root, binary, &mut summary),
        Err(_) => 0,
    };
    finish(root, summary, real)
}

fn finish(root: &Path, mut summary: Summary, real: usize) -> ExitCode {
    let (word, code) = match (summary.failed.is_empty(), real) {
        (false, _) => ("a step FAILED; the lines above say which".to_owned(), ExitCode::FAILURE),
        (true, 0) => (
            "all steps work, and NO REAL GPU was found: what ran used a simulated one".to_owned(),
            ExitCode::from(NO_REAL_GPU),
        ),
        (true, count) => {
            (format!("all steps work on this machine, with {count} real GPU(s)"), ExitCode::SUCCESS)
        }
    };
    summary.say(format!("result: {word}"));
    println!("\n===== device-check: summary to hand on =====\n{}=====", summary.text);
    let file = root.join("target/device-check.txt");
    if std::fs::write(&file, &summary.text).is_ok() {
        println!("also in {}", file.display());
    }
    code
}

/// What the drivers' own programs say.
fn drivers(root: &Path, summary: &mut Summary) {
    let query =
        ["--query-gpu=name,uuid,driver_version,memory.total,compute_cap,mig.mode.current", "--format=csv"];
    for (program, arguments) in [
        ("nvidia-smi", &query[..]),
        ("rocm-smi", &["--showproductname", "--showdriverversion"][..]),
        ("clinfo", &["-l"][..]),
    ] {
        let text = said(root, program, arguments);
        if text.is_empty() {
            summary.say(format!("{program}: not found, or says nothing"));
        }
        for line in text.lines().filter(|line| !line.trim().is_empty()).take(24) {
            summary.say(format!("{program}: {line}"));
        }
    }
}

/// Probe, doctor and tour of the built program. Answers how many real GPUs the probe sees.
fn farm(root: &Path, binary: &Path, summary: &mut Summary) -> usize {
    let probed = said(root, &binary.display().to_string(), &["probe-devices", "--simulated"]);
    let devices = serde_json::from_str::<Value>(&probed).unwrap_or_default();
    let devices = devices.as_array().cloned().unwrap_or_default();
    for device in &devices {
        let text = |key: &str| device[key].as_str().unwrap_or("?").to_owned();
        let real = if simulated(device) { "simulated GPU" } else { "real GPU" };
        let memory = &device["memory_mib"];
        summary.say(format!("probe: {real}: {} ({}, {memory} MiB)", text("model"), text("driver")));
    }
    let real = devices.iter().filter(|device| !simulated(device)).count();
    summary.say(format!("probe: {} devices, {real} of them real", devices.len()));

    let mut missing = Vec::new();
    let mut note = |line: &str| {
        if line.starts_with("MISS") {
            missing.push(line.to_owned());
        }
    };
    let outcome = shown(Command::new(binary).arg("doctor").current_dir(root), &mut note);
    // A host that cannot enforce a limit is told, and jobs that need it are refused; the tour shows what that means.
    for line in &missing {
        summary.say(format!("doctor: {line}"));
    }
    let only_limits = !missing.is_empty() && missing.iter().all(|line| line.contains(" limit "));
    summary.step("doctor", if only_limits { Ok(0.0) } else { outcome });

    let mut lines = Vec::new();
    let mut note = |line: &str| {
        let telling = ["Device", "Metric", "GPU held", "BROKEN", "held  ", "Time", "Program"];
        if telling.iter().any(|begin| line.starts_with(begin)) {
            lines.push(line.to_owned());
        }
    };
    let outcome = shown(Command::new(binary).arg("tour").current_dir(root), &mut note);
    summary.step("tour", outcome);
    for line in lines {
        summary.say(format!("tour: {line}"));
    }
    real
}

/// A CPU that stands in for a GPU.
fn simulated(device: &Value) -> bool {
    device["kind"].as_str().is_none_or(|kind| kind.ends_with("-cpu"))
}

/// What a program says on its standard output; nothing when it is missing or fails.
fn said(root: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root).stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => String::new(),
    }
}

/// Runs a command, shows what it says as it says it, and hands each line to `note`. Answers its seconds.
fn shown(command: &mut Command, note: &mut dyn FnMut(&str)) -> Result<f64> {
    let begin = Instant::now();
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {name}"))?;
    let out = child.stdout.take().context("no output")?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        println!("{line}");
        let _ = std::io::stdout().flush();
        note(&line);
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "it ended with {status}");
    Ok(begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn processor_that_stands_in_for_a_gpu_is_not_a_real_one() {
        assert!(simulated(&json!({ "kind": "opencl-cpu" })));
        assert!(!simulated(&json!({ "kind": "nvidia" })));
        assert!(simulated(&json!({})), "what is not known is not called real");
    }

    #[test]
    fn output_of_a_command_is_noted_line_by_line_and_a_failure_is_told() {
        let mut seen = Vec::new();
        let done = shown(Command::new("/bin/sh").args(["-c", "echo a; echo b"]), &mut |line| {
            seen.push(line.to_owned());
        });
        assert!(done.is_ok());
        assert_eq!(seen, ["a", "b"]);
        assert!(shown(Command::new("/bin/sh").args(["-c", "exit 3"]), &mut |_| {}).is_err());
    }
}
