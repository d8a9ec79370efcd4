//! The program as its users run it, in a data folder of its own: starting it, killing it, and what is looked at
//! afterwards ([`rows`]: the database; [`traces`]: this host).

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that fails is a test that fails")]

pub(crate) mod rows;
pub(crate) mod traces;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forgeyard");
/// Longest time for one life of a tour. Far above what it takes: this is no timed test.
const PATIENCE: Duration = Duration::from_secs(900);

/// Where the conda build engine is.
pub(crate) fn engine() -> PathBuf {
    std::env::var_os("FORGEYARD_ENGINE").map_or_else(|| "/opt/forgeyard/engine".into(), PathBuf::from)
}

/// Whether this host can run a whole farm. Says what is missing; with `FORGEYARD_REQUIRE_SANDBOX=1` that is a failure.
pub(crate) fn possible() -> bool {
    let answers = |program: &str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let mut missing: Vec<String> = ["git", "runc", "conmon"]
        .into_iter()
        .filter(|program| !answers(program))
        .map(|program| format!("{program} is not installed"))
        .collect();
    if !engine().join("bin/python").exists() {
        missing.push(format!("the conda build engine is not in {}", engine().display()));
    }
    if !nix::unistd::geteuid().is_root() {
        missing.push("sandboxes are made by root only".to_owned());
    }
    if missing.is_empty() {
        return true;
    }
    let missing = missing.join("; ");
    let required = std::env::var("FORGEYARD_REQUIRE_SANDBOX").is_ok_and(|value| value == "1");
    assert!(!required, "FORGEYARD_REQUIRE_SANDBOX=1, and {missing}");
    println!("SKIPPED: {missing}");
    false
}

/// A data folder and what ran in it. Removed at the end, unless the test failed.
pub(crate) struct Place {
    folder: Option<tempfile::TempDir>,
    pub(crate) data: PathBuf,
    output: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("forgeyard-test-").tempdir_in("/var/tmp").unwrap();
        let root = folder.path().canonicalize().unwrap();
        Self { data: root.join("data"), output: root.join("output"), folder: Some(folder) }
    }

    /// Starts the program with these arguments; what it says goes to a file.
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Life {
        let output = File::options().create(true).append(true).open(&self.output).unwrap();
        let errors = output.try_clone().unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(errors);
        command.env_remove("FORGEYARD_CONFIG").env_remove("FORGEYARD_TOKEN").env_remove("FORGEYARD_DATA");
        if std::env::var_os("FORGEYARD_LOG").is_none() {
            command.env("FORGEYARD_LOG", "warn");
        }
        Life { child: command.spawn().unwrap(), started: Instant::now() }
    }

    /// Starts a tour, or goes on with the one that is here.
    pub(crate) fn tour(&self, further: &[&str]) -> Life {
        let data = self.data.display().to_string();
        let mut arguments = vec!["tour", "--data", &data];
        if self.data.exists() {
            arguments.push("--resume");
        }
        arguments.extend(further);
        self.start(&arguments)
    }

    /// All that the program said in this folder.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// The address of the farm here, once it answers.
    pub(crate) fn farm_url(&self, life: &mut Life) -> String {
        let port = self.data.join("tour/port");
        loop {
            if let Ok(text) = std::fs::read_to_string(&port) {
                let address = format!("127.0.0.1:{}", text.trim());
                if std::net::TcpStream::connect(&address).is_ok() {
                    return format!("http://{address}");
                }
            }
            assert!(life.over().is_none(), "the farm ended before it answered:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills what runs here with all its helpers, as a power cut would.
    pub(crate) fn kill_all(&self, mut life: Life) {
        life.kill();
        loop {
            let found = traces::helpers(&self.data);
            if found.is_empty() {
                return;
            }
            for process in found {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(process),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("kept for reading: {}", folder.keep().display());
        }
    }
}

/// One life of the program.
pub(crate) struct Life {
    child: Child,
    pub(crate) started: Instant,
}

impl Life {
    /// How it ended, if it has.
    pub(crate) fn over(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end, or until this much time has passed.
    pub(crate) fn over_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            let over = self.over();
            if over.is_some() || begin.elapsed() >= time {
                return over;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    pub(crate) fn end(mut self, place: &Place) -> ExitStatus {
        let over = self.over_within(PATIENCE);
        if over.is_none() {
            self.kill();
            panic!("it did not end in {} s:\n{}", PATIENCE.as_secs(), place.said());
        }
        over.unwrap()
    }

    /// Ends it without asking.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits.
    pub(crate) fn stop(self, place: &Place) -> ExitStatus {
        let process = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.end(place)
    }
}

impl Drop for Life {
    /// A test that failed leaves no program behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Machines that exist in a data folder, by the names of their folders.
pub(crate) fn machines(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("site/sandbox/runners"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("rnr_")).collect()
}

/// Attempts whose agents have received them and not finished, as their folders say.
pub(crate) fn attempts_at_work(data: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for machine in machines(data) {
        let agent = data.join("site/sandbox/runners").join(&machine).join("agent");
        let Ok(text) = std::fs::read(agent.join("state.json")) else { continue };
        let Ok(state) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
        let runs =
            state["steps"].as_array().is_some_and(|steps| steps.iter().any(|step| step["ended"] == false));
        if runs && let Some(attempt) = state["redeemed"]["attempt"].as_str() {
            let step = state["steps"].as_array().and_then(|steps| steps.last()?["facts"]["name"].as_str());
            found.push((attempt.to_owned(), step.unwrap_or_default().to_owned()));
        }
    }
    found
}
