//! Runs the `git` program: an argument array, a closed environment, a time limit, bounded output.

use super::GitError;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// What git may say on its error stream before the rest is thrown away.
const MESSAGE_LIMIT: u64 = 64 * 1024;

/// Variables of the farm's own environment that git gets to see.
const PASSED_ON: [&str; 9] = [
    "PATH",
    "SSH_AUTH_SOCK",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "ALL_PROXY",
];

/// Settings that hold whatever a repository's own configuration says.
const SETTINGS: [&str; 10] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "fetch.fsckObjects=true",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
    "tar.umask=0022",
];

#[derive(Debug, Clone)]
pub(super) struct Git {
    program: PathBuf,
}

impl Git {
    pub(super) fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// Begins a call; `step` and `object` are for messages.
    pub(super) fn run(&self, step: &'static str, object: &str, limit: Duration) -> Call {
        let mut command = Command::new(&self.program);
        command.env_clear();
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "/bin/false")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
            // Empty: no protocol at all, until a call says which one.
            .env("GIT_ALLOW_PROTOCOL", "")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        Call {
            program: self.program.clone(),
            command,
            step,
            object: object.to_owned(),
            limit,
            input: None,
            output_limit: MESSAGE_LIMIT,
        }
    }
}

/// A call of git that is being put together.
pub(super) struct Call {
    program: PathBuf,
    command: Command,
    step: &'static str,
    object: String,
    limit: Duration,
    input: Option<Vec<u8>>,
    output_limit: u64,
}

impl Call {
    /// Works in this repository. Before all other arguments.
    pub(super) fn git_dir(mut self, folder: &Path) -> Self {
        let mut argument = OsString::from("--git-dir=");
        argument.push(folder);
        self.command.arg("--literal-pathspecs").arg(argument);
        self
    }

    /// Allows one protocol.
    pub(super) fn protocol(mut self, protocol: &str) -> Self {
        self.command.env("GIT_ALLOW_PROTOCOL", protocol);
        self
    }

    pub(super) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(super) fn args<T: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.command.args(arguments);
        self
    }

    /// What git reads.
    pub(super) fn input(mut self, bytes: Vec<u8>) -> Self {
        self.command.stdin(Stdio::piped());
        self.input = Some(bytes);
        self
    }

    /// How much git may write.
    pub(super) const fn output_limit(mut self, limit: u64) -> Self {
        self.output_limit = limit;
        self
    }

    /// Runs it to its end.
    pub(super) async fn output(mut self) -> Result<Output, GitError> {
        let mut child =
            self.command.spawn().map_err(|error| GitError::Start { program: self.program.clone(), error })?;
        // From here on, whichever way this function is left, the whole group ends: git starts helpers of its own.
        let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = self.input.take();
        let feed = async move {
            if let (Some(mut stdin), Some(bytes)) = (stdin, input) {
                // A reader that stops early is seen in what it answers.
                let _ = stdin.write_all(&bytes).await;
            }
        };
        let all = async {
            let (stdout, stderr, ()) =
                tokio::join!(take(stdout, self.output_limit + 1), take(stderr, MESSAGE_LIMIT), feed);
            let overflow = stdout.len() as u64 > self.output_limit;
            if overflow {
                group.kill();
            }
            (child.wait().await, stdout, stderr, overflow)
        };
        let (step, object) = (self.step, self.object.clone());
        let Ok((status, stdout, stderr, overflow)) = tokio::time::timeout(self.limit, all).await else {
            return Err(GitError::Timeout { step, object, limit: self.limit });
        };
        group.ended();
        if overflow {
            return Err(GitError::TooMuch { step, object, limit: self.output_limit });
        }
        let status = status.map_err(|error| GitError::Start { program: self.program.clone(), error })?;
        Ok(Output { step, object, status, stdout, stderr })
    }
}

/// Reads up to a limit. A stream that breaks ends; the exit status tells the rest.
async fn take(stream: Option<impl AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let _ = stream.take(limit).read_to_end(&mut bytes).await;
    }
    bytes
}

/// A process group that ends with this value.
struct Group(Option<Pid>);

impl Group {
    fn kill(&self) {
        if let Some(group) = self.0 {
            // It may be gone already, which is what is wanted.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// The leader was waited for, so its number may soon be another's.
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a call gave.
pub(super) struct Output {
    step: &'static str,
    object: String,
    status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    pub(super) fn success(&self) -> bool {
        self.status.success()
    }

    pub(super) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Whether git complains that the source lacks this ref.
    pub(super) fn says_missing(&self, git_ref: &str) -> bool {
        let said = String::from_utf8_lossy(&self.stderr);
        said.lines().any(|line| line.strip_prefix("fatal: couldn't find remote ref ") == Some(git_ref))
    }

    /// The output, when git succeeded.
    pub(super) fn ok(self) -> Result<Self, GitError> {
        if self.success() {
            return Ok(self);
        }
        let said = String::from_utf8_lossy(&self.stderr);
        let mut lines: Vec<String> = said.lines().rev().take(5).map(without_passwords).collect();
        lines.reverse();
        let mut message = lines.join("; ");
        if message.is_empty() {
            message = self.status.to_string();
        }
        Err(GitError::Failed { step: self.step, object: self.object, message })
    }

    /// The output as one line of text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

/// Takes `user:password@` out of URLs that git repeats.
fn without_passwords(line: &str) -> String {
    line.split_inclusive(['\'', '"', ' '])
        .map(|word| match (word.split_once("://"), word.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
            _ => word.to_owned(),
        })
        .collect()
}
