//! Running the program, and a farm of it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The program with these arguments, untouched by the settings of whoever runs the tests.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forgeyard"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("FORGEYARD_") || text == "COLUMNS" {
            command.env_remove(&name);
        }
    }
    command
}

/// What came of a call.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it ended by itself"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    /// Holds the exit code against what it should be.
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Holds standard error against what it should name.
    #[track_caller]
    pub fn names(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.err.contains(part), "`{part}` is not in: {}", self.err);
        }
        self
    }
}

/// Calls the program without a farm.
pub fn alone(arguments: &[&str]) -> Said {
    program(arguments).output().unwrap().into()
}

/// A farm without a site: everything is accepted and nothing runs.
pub struct Farm {
    pub folder: TempDir,
    pub url: String,
    process: Child,
}

impl Farm {
    pub fn start() -> Self {
        Self::with("")
    }

    /// A farm with more in its configuration.
    pub fn with(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("forgeyard.toml");
        fs_err::write(&config, format!("farm = \"cli\"\nlisten = \"127.0.0.1:0\"\n{more}")).unwrap();
        let data = folder.path().join("data");
        let mut process = program(&[
            "serve",
            "--config",
            &config.display().to_string(),
            "--data",
            &data.display().to_string(),
        ])
        .env("FORGEYARD_LOG", "error")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says where it listens").unwrap();
        let url = line.strip_prefix("farm:").expect("the address").trim().to_owned();
        // Nobody reads the rest; the pipe stays open until the farm ends.
        std::thread::spawn(move || lines.for_each(drop));
        Self { folder, url, process }
    }

    /// Where its configuration is.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("forgeyard.toml")
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("data/admin.token")
    }

    /// A call that knows the farm and its admin token.
    pub fn call(&self, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("FORGEYARD_URL", &self.url).env("FORGEYARD_TOKEN_FILE", self.token_file());
        command
    }

    pub fn ask(&self, arguments: &[&str]) -> Said {
        self.call(arguments).output().unwrap().into()
    }

    /// A read as JSON.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let said = self.ask(&[arguments, &["--json"]].concat()).ends(0);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", said.out))
    }

    /// Hands in a recipe folder and does not wait. Answers the pipeline.
    pub fn hand_in(&self) -> String {
        let recipe = recipe(self.folder.path());
        self.ask(&["run", "--detach", &recipe.display().to_string()]).ends(0).out.trim().to_owned()
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a recipe folder.
pub fn recipe(into: &Path) -> PathBuf {
    let folder = into.join("widget");
    fs_err::create_dir_all(folder.join("recipe")).unwrap();
    let text = "package:\n  name: widget\n  version: \"1\"\nbuild:\n  noarch: generic\n  script: \"true\"\n";
    fs_err::write(folder.join("recipe/recipe.yaml"), text).unwrap();
    folder
}
