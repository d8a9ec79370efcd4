//! One container, for one step, by `conmon` and `runc`.
//!
//! Files in the bundle folder: `config.json`, `log` (written by the monitor), `pid` (process 1), `conmon.pid`,
//! `exit/ID` (exit code, written by the monitor), `status/exit` (record of process 1), `runc.log`, `conmon.log`.

use crate::error::Error;
use crate::inside;
use crate::state::{read_json, write_json};
use forgeyard_model::machine::MachineFile;
use serde_json::Value;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;

/// Time in which a container must be made.
const MAKING: Duration = Duration::from_secs(60);

/// What the runtime says of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It does not know it.
    Absent,
    /// Made and not started.
    Created,
    /// Its process 1 lives.
    Running,
    /// Its process 1 is gone.
    Stopped,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
}

/// A container of this machine.
pub(crate) struct Container<'a> {
    machine: &'a MachineFile,
    id: String,
    bundle: PathBuf,
}

impl<'a> Container<'a> {
    pub(crate) fn new(machine: &'a MachineFile, bundle: PathBuf, step: usize) -> Self {
        Self { machine, id: format!("{}-{step}", machine.runner), bundle }
    }

    /// Where the monitor writes the output.
    pub(crate) fn spool(&self) -> PathBuf {
        self.bundle.join("log")
    }

    /// Folder for the record of process 1.
    pub(crate) fn status_folder(&self) -> PathBuf {
        self.bundle.join("status")
    }

    /// Makes the bundle folder new.
    pub(crate) fn prepare(&self, config: &Value) -> Result<(), Error> {
        let make = || {
            match std::fs::remove_dir_all(&self.bundle) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::fs::create_dir_all(self.bundle.join("exit"))?;
            std::fs::create_dir(self.status_folder())?;
            let job = Some(self.machine.ids.host_job());
            chown(self.status_folder(), job, job)?;
            private(&self.bundle.join("config.json"), config)
        };
        make().map_err(|source| Error::file("make", &self.bundle, source))
    }

    /// Takes a variable out of the configuration on disk. The runtime has read it when the container is made.
    pub(crate) fn forget(&self, variable: &str) -> Result<(), Error> {
        let path = self.bundle.join("config.json");
        let Some(mut config) = read_json::<Value>(&path)? else { return Ok(()) };
        let beginning = format!("{variable}=");
        let mut found = false;
        if let Some(pairs) = config.pointer_mut("/process/env").and_then(Value::as_array_mut) {
            let before = pairs.len();
            pairs.retain(|pair| !pair.as_str().is_some_and(|pair| pair.starts_with(&beginning)));
            found = pairs.len() < before;
        }
        if found {
            write_json(&path, &config)?;
        }
        Ok(())
    }

    /// Makes the container, with its monitor, and waits until the runtime has made it. Runs nothing of the job.
    pub(crate) async fn create(&self) -> Result<(), Error> {
        let runtime = &self.machine.runtime;
        let failed =
            |reason: String| Error::Runtime { program: "conmon", action: "make the container", reason };
        let log = File::create(self.bundle.join("conmon.log"))
            .map_err(|source| Error::file("make", &self.bundle, source))?;
        let errors = log.try_clone().map_err(|source| Error::file("make", &self.bundle, source))?;
        let mut command = Command::new(&runtime.conmon);
        command
            .args([
                "--api-version",
                "1",
                "--full-attach",
                "--log-level",
                "error",
                "-c",
                &self.id,
                "-n",
                &self.id,
                "-u",
            ])
            .arg(&self.id)
            .arg("-r")
            .arg(&runtime.runc)
            .arg("-b")
            .arg(&self.bundle)
            .arg("-p")
            .arg(self.bundle.join("pid"))
            .arg("-P")
            .arg(self.bundle.join("conmon.pid"))
            .arg("--exit-dir")
            .arg(self.bundle.join("exit"))
            .arg("-l")
            .arg(format!("k8s-file:{}", self.spool().display()));
        for argument in ["--root".into(), runtime.state.clone(), "--log".into(), self.bundle.join("runc.log")]
        {
            command.arg("--runtime-arg").arg(argument);
        }
        let status = command
            .current_dir(&self.bundle)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .status()
            .await
            .map_err(|error| failed(format!("cannot start {}: {error}", runtime.conmon.display())))?;
        if !status.success() {
            return Err(failed(self.reason()));
        }
        let mut wait = Duration::from_millis(2);
        let mut waited = Duration::ZERO;
        loop {
            if self.number("pid").is_some() {
                return Ok(());
            }
            if waited > MAKING || (self.number("conmon.pid").is_some() && !self.monitored()) {
                // The pid may have been written just before the monitor was looked at.
                return if self.number("pid").is_some() { Ok(()) } else { Err(failed(self.reason())) };
            }
            tokio::time::sleep(wait).await;
            waited += wait;
            wait = (wait * 2).min(Duration::from_millis(50));
        }
    }

    /// Lets process 1 begin.
    pub(crate) async fn start(&self) -> Result<(), Error> {
        let output = self.runc("start the container", &["start", &self.id]).await?;
        if output.status.success() {
            return Ok(());
        }
        // Somebody was faster: an earlier life of this agent, whose command was still at work.
        if matches!(self.status().await?, Status::Running | Status::Stopped) {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Runtime { program: "runc", action: "start the container", reason })
    }

    /// Waits until commands that an earlier life of this agent gave are carried out: they outlive it, and making the
    /// container anew beside one of them would break both.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        let mut waited = Duration::ZERO;
        while self.in_the_making() {
            if waited > MAKING {
                let reason = "an earlier command is still at work".to_owned();
                return Err(Error::Runtime { program: "runc", action: "make the container", reason });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            waited += Duration::from_millis(10);
        }
        Ok(())
    }

    /// Whether a runtime command works on this container, or a monitor has not made it yet.
    fn in_the_making(&self) -> bool {
        let is = |argument: &[u8], program: &Path| argument == program.as_os_str().as_encoded_bytes();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut arguments = line.split(|byte| *byte == 0);
            let Some(program) = arguments.next() else { continue };
            if !arguments.any(|argument| argument == self.id.as_bytes()) {
                continue;
            }
            let monitor = is(program, &self.machine.runtime.conmon);
            if is(program, &self.machine.runtime.runc) || (monitor && !self.was_made()) {
                return true;
            }
        }
        false
    }

    /// Asks the runtime.
    pub(crate) async fn status(&self) -> Result<Status, Error> {
        let output = self.runc("look at the container", &["state", &self.id]).await?;
        if !output.status.success() {
            return Ok(Status::Absent);
        }
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok(match answer["status"].as_str() {
            Some("created") => Status::Created,
            Some("running" | "paused") => Status::Running,
            _ => Status::Stopped,
        })
    }

    /// Sends a signal to process 1; one that is gone already is no error.
    pub(crate) async fn kill(&self, signal: &str) {
        if let Err(error) = self.runc("signal the container", &["kill", &self.id, signal]).await {
            tracing::warn!(error = error.line(), "cannot send a signal");
        }
    }

    /// Removes the container and its cgroup; one that is gone already is no error.
    pub(crate) async fn delete(&self) {
        match self.runc("remove the container", &["delete", "--force", &self.id]).await {
            Ok(output) if !output.status.success() => {
                tracing::warn!(reason = %String::from_utf8_lossy(&output.stderr).trim(), "cannot remove the container");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(error = error.line(), "cannot remove the container"),
        }
    }

    /// How it ended, once the monitor has written it. All output is in the spool by then.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let text = std::fs::read_to_string(self.bundle.join("exit").join(&self.id)).ok()?;
        let code = text.trim().parse().ok()?;
        let record = inside::read(&self.status_folder(), Path::new("exit"), 64).unwrap_or_default();
        Some(interpret(code, &String::from_utf8_lossy(&record)))
    }

    /// Whether the runtime has made it in this or an earlier life.
    pub(crate) fn was_made(&self) -> bool {
        self.number("pid").is_some()
    }

    /// Whether the monitor lives.
    pub(crate) fn monitored(&self) -> bool {
        let Some(pid) = self.number("conmon.pid") else { return false };
        // The command line tells it from a later process with its number, and a dead one has none.
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|argument| argument == self.id.as_bytes()))
    }

    /// Process 1 of the container, as the host numbers it.
    pub(crate) fn process(&self) -> Option<u32> {
        self.number("pid")
    }

    fn number(&self, file: &str) -> Option<u32> {
        std::fs::read_to_string(self.bundle.join(file)).ok()?.trim().parse().ok()
    }

    /// What the programs said, for an error.
    fn reason(&self) -> String {
        let mut said: Vec<String> = Vec::new();
        for file in ["runc.log", "conmon.log"] {
            let text = std::fs::read_to_string(self.bundle.join(file)).unwrap_or_default();
            said.extend(text.lines().rev().take(5).map(|line| line.chars().take(400).collect()));
        }
        if said.is_empty() { "no reason given".to_owned() } else { said.join("; ") }
    }

    async fn runc(&self, action: &'static str, arguments: &[&str]) -> Result<Output, Error> {
        Command::new(&self.machine.runtime.runc)
            .arg("--root")
            .arg(&self.machine.runtime.state)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(|error| Error::Runtime { program: "runc", action, reason: error.to_string() })
    }
}

/// Writes a configuration, which may hold secrets of the job, for root only.
fn private(path: &Path, config: &Value) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(config.to_string().as_bytes())
}

/// Joins the monitor's exit code and the record of process 1. The record only counts where it fits the code; without
/// one, process 1 itself was killed.
fn interpret(code: i32, record: &str) -> Exit {
    let signal = code.checked_sub(128).filter(|signal| (1..=64).contains(signal));
    let signal = match record.trim().split_once(' ') {
        Some(("signal", number)) => signal.filter(|signal| number.parse() == Ok(*signal)),
        Some(("code", number)) if number.parse() == Ok(code) => None,
        _ => signal,
    };
    Exit { code, signal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_above_128_is_told_from_a_signal() {
        assert_eq!(interpret(137, "code 137"), Exit { code: 137, signal: None });
        assert_eq!(interpret(137, "signal 9"), Exit { code: 137, signal: Some(9) });
        assert_eq!(interpret(137, ""), Exit { code: 137, signal: Some(9) });
        assert_eq!(interpret(0, "signal 9"), Exit { code: 0, signal: None });
        assert_eq!(interpret(3, "code 0"), Exit { code: 3, signal: None });
        assert_eq!(interpret(137, "code 0"), Exit { code: 137, signal: Some(9) });
        assert_eq!(interpret(255, "code 255"), Exit { code: 255, signal: None });
    }
}
