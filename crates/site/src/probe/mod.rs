//! Which devices this machine has. Runs in a child process, because a hung driver hangs whoever asks it.
//!
//! The child prints a JSON array of [`DeviceFacts`] on its standard output, and what was left out and why on its
//! standard error. Invariants: a device that does not answer is left out, never guessed; the CPU stands in for a GPU
//! (*simulated*) only where no real one was found, or where an option asks for it.

pub mod nvidia;
pub mod opencl;
pub mod sysfs;

use forgeyard_model::device::DeviceFacts;
use std::process::Command;

/// What to look for.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeOptions {
    /// Offer the simulated GPU even where a real one was found.
    pub simulated_beside_real: bool,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probe {
    /// Devices that answer.
    pub devices: Vec<DeviceFacts>,
    /// What was left out, one line each.
    pub notes: Vec<String>,
}

/// Asks the drivers. May hang: call it only in a child process that somebody watches.
pub fn devices(options: ProbeOptions) -> Probe {
    let mut probe = Probe::default();
    match run("nvidia-smi", &nvidia::ARGUMENTS) {
        Ok(Some(text)) => {
            let rows = nvidia::parse(&text);
            probe.notes.extend(rows.notes);
            for facts in rows.devices {
                match sysfs::complete(std::path::Path::new("/"), facts) {
                    Ok(facts) => probe.devices.push(facts),
                    Err(note) => probe.notes.push(note),
                }
            }
        }
        Ok(None) => {}
        Err(note) => probe.notes.push(note),
    }
    if probe.devices.is_empty() || options.simulated_beside_real {
        match run("clinfo", &["--json"]).map(|text| text.map(|text| opencl::parse(&text))) {
            Ok(Some(Ok(devices))) => probe.devices.extend(devices),
            Ok(Some(Err(error))) => probe.notes.push(format!("clinfo: {error}")),
            Ok(None) => {}
            Err(note) => probe.notes.push(note),
        }
    }
    probe
}

/// Standard output of a program; nothing when the program is not installed.
fn run(program: &str, arguments: &[&str]) -> Result<Option<String>, String> {
    let output = match Command::new(program).args(arguments).env("LC_ALL", "C").output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{program}: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(Some(text));
    }
    // nvidia-smi explains itself on its standard output.
    let said: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(3).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed ({}): {} {}", output.status, said.join("; "), error.trim()).trim_end().to_owned())
}
