//! The devices of this site: asked in a child process with a time limit, reset and asked again between leases.
//!
//! Invariants: a hung driver hangs a child, never the site; at most one hung child exists at a time; a device that is
//! not proven to answer is not called well.
//!
//! Resetting: the simulated GPU has nothing to reset. A real NVIDIA GPU is reset with `nvidia-smi --gpu-reset -i`,
//! only where an option allows it, because the driver resets all GPUs of an NVLink group together. That path has
//! **never run on a real GPU** here.

use crate::probe::Probe;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::DeviceKind;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// The most that a child may print.
const MAX_OUTPUT: u64 = 4 << 20;

/// How long a killed child is waited for. One that hangs in the driver does not end even then.
const REAP: Duration = Duration::from_secs(2);

/// Why the devices could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The child did not answer in time.
    #[error("{command} did not answer in {seconds} s and was killed; a driver hangs")]
    Hung {
        /// What was run.
        command: String,
        /// The time limit.
        seconds: u64,
    },
    /// An earlier child still hangs in the kernel.
    #[error("{command} was killed earlier and still hangs in the kernel; the host needs a restart")]
    StillHung {
        /// What was run.
        command: String,
    },
    /// The child could not be run or failed.
    #[error("{command}: {reason}")]
    Failed {
        /// What was run.
        command: String,
        /// What happened.
        reason: String,
    },
}

/// The devices of a site.
#[async_trait::async_trait]
pub trait Devices: Send + Sync {
    /// Asks all devices.
    async fn probe(&self) -> Result<Probe, DeviceError>;

    /// Brings a device into a clean state, as far as this site may.
    async fn reset(&self, device: &DeviceFacts) -> Result<(), DeviceError>;
}

/// Asks in a child process.
#[derive(Debug)]
pub struct ChildProbe {
    command: Vec<String>,
    timeout: Duration,
    allow_gpu_reset: bool,
    hung: Mutex<Option<Child>>,
    /// One child at a time.
    gate: tokio::sync::Mutex<()>,
}

impl ChildProbe {
    /// `command` is run to ask; it prints JSON as [`crate::probe`] says.
    pub fn new(command: Vec<String>, timeout: Duration) -> Self {
        Self {
            command,
            timeout,
            allow_gpu_reset: false,
            hung: Mutex::new(None),
            gate: tokio::sync::Mutex::new(()),
        }
    }

    /// Lets the site reset real GPUs.
    #[must_use]
    pub fn allow_gpu_reset(mut self, allow: bool) -> Self {
        self.allow_gpu_reset = allow;
        self
    }

    fn hung(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, command: &[String]) -> Result<(Vec<u8>, String), DeviceError> {
        let _gate = self.gate.lock().await;
        let shown = command.join(" ");
        let failed = |reason: String| DeviceError::Failed { command: shown.clone(), reason };
        if let Some(child) = self.hung().as_mut()
            && matches!(child.try_wait(), Ok(None))
        {
            return Err(DeviceError::StillHung { command: shown });
        }
        *self.hung() = None;
        let (program, arguments) =
            command.split_first().ok_or_else(|| failed("no command is set".to_owned()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own: what the child starts is killed with it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let group = child.id();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let answer = async { tokio::join!(drain(out), drain(err), child.wait()) };
        let (out, err, status) = match tokio::time::timeout(self.timeout, answer).await {
            Ok((out, err, status)) => (out, err, status.map_err(|error| failed(error.to_string()))?),
            Err(_) => {
                if let Some(group) = group.and_then(|id| i32::try_from(id).ok()) {
                    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
                }
                if tokio::time::timeout(REAP, child.wait()).await.is_err() {
                    *self.hung() = Some(child);
                }
                return Err(DeviceError::Hung { command: shown, seconds: self.timeout.as_secs() });
            }
        };
        let err = String::from_utf8_lossy(&err).trim().to_owned();
        if status.success() { Ok((out, err)) } else { Err(failed(format!("{status}: {}", last_lines(&err)))) }
    }
}

#[async_trait::async_trait]
impl Devices for ChildProbe {
    async fn probe(&self) -> Result<Probe, DeviceError> {
        let (out, err) = self.run(&self.command).await?;
        let devices = serde_json::from_slice(&out).map_err(|error| DeviceError::Failed {
            command: self.command.join(" "),
            reason: format!("did not print a list of devices: {error}"),
        })?;
        Ok(Probe { devices, notes: err.lines().map(str::to_owned).collect() })
    }

    async fn reset(&self, device: &DeviceFacts) -> Result<(), DeviceError> {
        let address = device.key.strip_prefix("pci:");
        match (device.kind, address) {
            (DeviceKind::Nvidia, Some(address)) if self.allow_gpu_reset => {
                let command = ["nvidia-smi", "--gpu-reset", "-i", address].map(str::to_owned);
                self.run(&command).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

async fn drain<R: AsyncRead + Unpin>(from: Option<R>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What could be read before an error is still worth showing.
        let _ = from.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    bytes
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> ChildProbe {
        ChildProbe::new(["sh", "-c", script].map(str::to_owned).to_vec(), timeout)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_hung_child_is_killed_with_all_it_started_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!("sleep 1000 & echo $! > {0}; echo $$ >> {0}; wait", pids.display());
        let error = shell(&script, Duration::from_millis(500)).probe().await.unwrap_err();
        assert!(matches!(error, DeviceError::Hung { .. }), "{error}");
        for pid in std::fs::read_to_string(&pids).unwrap().lines() {
            // A killed process takes a moment to end, and an orphan may be seen as a zombie until somebody reaps it.
            let stat = format!("/proc/{pid}/stat");
            while std::fs::read_to_string(&stat).is_ok_and(|state| !state.contains(") Z ")) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    #[tokio::test]
    async fn answers_and_failures_of_the_child_are_told() {
        let probe = shell("echo '[]'; echo 'gpu 3 is lost' >&2", LONG).probe().await.unwrap();
        assert_eq!(probe, Probe { devices: Vec::new(), notes: vec!["gpu 3 is lost".to_owned()] });
        let error = shell("echo broken >&2; exit 3", LONG).probe().await.unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains('3'), "{error}");
        let error = shell("echo no", LONG).probe().await.unwrap_err().to_string();
        assert!(error.contains("did not print a list of devices"), "{error}");
    }

    #[tokio::test]
    async fn a_real_gpu_is_not_reset_unless_an_option_allows_it() {
        let device = DeviceFacts {
            key: "pci:0000:9b:00.0".to_owned(),
            kind: DeviceKind::Nvidia,
            model: "X".to_owned(),
            uuid: None,
            driver: "nvidia 1".to_owned(),
            memory_mib: 1,
            compute_capability: 70,
            iommu_group: None,
            moves_with: Vec::new(),
            numa_node: None,
            nodes: Vec::new(),
        };
        // No such program here, so an attempt to run it would be an error.
        assert!(shell("true", LONG).reset(&device).await.is_ok());
    }
}
