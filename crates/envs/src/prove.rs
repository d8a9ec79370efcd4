//! Running a program in an environment as proof that it works.
//!
//! The program is looked for in the environment and nowhere else: a program of the host with the same name would prove
//! nothing. It sees the variables of activation and no others, an empty folder as home and as current folder, and no
//! input. It runs in a process group of its own, which is killed when the program ends or takes too long.

use crate::explain::because;
use forgeyard_model::Explanation;
use forgeyard_model::environment::ProofRun;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Most bytes of output that are kept.
pub const OUTPUT_CAP: usize = 16 * 1024;

/// How long output may still come after the program ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// An empty folder for the time of a proof.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes the folder.
    pub fn new() -> Result<Self, Explanation> {
        let made = tempfile::Builder::new().prefix("forgeyard-proof-").tempdir();
        made.map(Self)
            .map_err(|error| crate::explain::at("making a folder in", &std::env::temp_dir(), &error))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Runs the program. An exit status other than zero is a failure.
pub async fn run(
    argv: &[String],
    prefix: &Path,
    variables: &BTreeMap<OsString, OsString>,
    scratch: &Scratch,
    limit: Duration,
) -> Result<ProofRun, Explanation> {
    let Some((name, arguments)) = argv.split_first() else {
        return Err(Explanation::new("environment.request_invalid", "the program to run has no name"));
    };
    let program = find(name, prefix, variables)?;
    let mut command = tokio::process::Command::new(&program);
    command.args(arguments).env_clear().envs(variables).current_dir(scratch.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    let started = Instant::now();
    let mut child = command.spawn().map_err(|error| {
        let message = format!("{} of the environment could not be started", program.display());
        let explanation = because(Explanation::new("environment.program_failed", message), &error);
        explanation.fix("check that the package is built for this platform and that its interpreter is in the environment")
    })?;
    let group = Group(child.id());
    let out = tokio::spawn(keep(child.stdout.take(), Keep::First));
    let err = tokio::spawn(keep(child.stderr.take(), Keep::Last));

    let ended = tokio::time::timeout(limit, child.wait()).await;
    let took = started.elapsed();
    // Whatever the program left running goes with it, and so do the other ends of the pipes.
    drop(group);
    let said = async |reader: tokio::task::JoinHandle<Vec<u8>>| {
        let bytes =
            tokio::time::timeout(LAST_WORDS, reader).await.ok().and_then(Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (said(out).await, said(err).await);
    let failed = |code: &str, message: String| {
        let mut explanation = Explanation::new(code, message).with(format!("argv: {argv:?}"));
        for (stream, text) in [("stdout", &stdout), ("stderr", &stderr)] {
            if !text.trim().is_empty() {
                explanation = explanation.with(format!("{stream}: {}", text.trim_end()));
            }
        }
        explanation
    };
    let status = match ended {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            return Err(because(failed("environment.program_failed", format!("`{name}` was lost")), &error));
        }
        Err(_) => {
            let message = format!("`{name}` did not end within {limit:?} and was killed");
            return Err(failed("environment.program_timeout", message)
                .fix("run a shorter program, or raise the limit"));
        }
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => {
            let took_ms = u64::try_from(took.as_millis()).ok();
            Ok(ProofRun { argv: argv.to_vec(), exit_code: 0, stdout, took_ms })
        }
        (Some(code), _) => {
            let message = format!("`{name}` ended with exit status {code} in the new environment");
            Err(failed("environment.program_failed", message)
                .fix("read what it said; the packages are installed as locked"))
        }
        (None, signal) => {
            let signal =
                signal.and_then(|number| Signal::try_from(number).ok()).map_or("a signal", Signal::as_str);
            Err(failed("environment.program_failed", format!("`{name}` was killed by {signal}")))
        }
    }
}

/// The file of a program of the environment.
fn find(name: &str, prefix: &Path, variables: &BTreeMap<OsString, OsString>) -> Result<PathBuf, Explanation> {
    let path = variables.get(&OsString::from("PATH")).cloned().unwrap_or_default();
    let executable = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    let candidates: Vec<PathBuf> = if name.contains('/') {
        // An absolute path is taken as it is, so that `/bin/sh -c …` can be asked for on purpose.
        vec![prefix.join(name)]
    } else {
        std::env::split_paths(&path)
            .filter(|folder| folder.starts_with(prefix))
            .map(|folder| folder.join(name))
            .collect()
    };
    if let Some(found) = candidates.into_iter().find(|file| executable(file)) {
        return Ok(found);
    }
    let message = format!("the environment has no program `{name}`");
    let mut explanation = Explanation::new("environment.program_missing", message);
    let on_host = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| executable(file));
    if let Some(on_host) = on_host.filter(|_| !name.contains('/')) {
        explanation =
            explanation.with(format!("the host has {}, which would prove nothing", on_host.display()));
    }
    let mut programs: Vec<_> = std::fs::read_dir(prefix.join("bin"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    programs.sort();
    let shown = programs.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
    explanation = explanation.with(match programs.len() {
        0 => "the environment has no programs at all".to_owned(),
        count if count > 20 => format!("its programs: {shown} and {} more", count - 20),
        _ => format!("its programs: {shown}"),
    });
    Err(explanation.fix("add the package that has the program to the specs, or run another program"))
}

/// A process group; killed when dropped. The leader has been waited for only a moment ago, so its number is not taken
/// by another group yet.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0.and_then(|id| i32::try_from(id).ok()) {
            // An error means that nobody is left.
            let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
        }
    }
}

#[derive(Clone, Copy)]
enum Keep {
    First,
    Last,
}

/// Reads to the end and keeps the first or last bytes. Reading goes on, so that the program is never blocked.
async fn keep(stream: Option<impl AsyncRead + Unpin>, which: Keep) -> Vec<u8> {
    let mut kept = VecDeque::new();
    let Some(mut stream) = stream else { return Vec::new() };
    let mut piece = [0; 8192];
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        match which {
            Keep::First => kept.extend(piece[..count].iter().take(OUTPUT_CAP - kept.len())),
            Keep::Last => {
                kept.extend(&piece[..count]);
                kept.drain(..kept.len().saturating_sub(OUTPUT_CAP));
            }
        }
    }
    kept.into()
}

#[cfg(test)]
#[path = "prove_tests.rs"]
mod tests;
