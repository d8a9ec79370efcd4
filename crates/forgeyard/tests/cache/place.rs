//! A configured cache in a folder of its own, and the program with it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forgeyard");

/// A scope that everybody reads, and those of its pull requests.
pub(crate) const SCOPES: &str = "[[cache.scopes]]\npath = \"p/main\"\ntrusted = true\nread = \"public\"\n\n\
                                 [[cache.scopes]]\npath = \"p/pr\"\nfamily = true\nparents = [\"p/main\"]\n";

/// See the module.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// With this in `[cache]`, where `HERE` is the folder.
    pub(crate) fn new(listen: &str, more: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let more = more.replace("HERE", &place.path(""));
        let text = format!("[cache]\nlisten = \"{listen}\"\n{more}\n{SCOPES}");
        fs_err::write(place.path("forgeyard.toml"), text).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A command of the cache with the folder and the configuration of the farm.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.arg("cache").args(arguments);
        command.args(["--data", &self.path("data"), "--config", &self.path("forgeyard.toml")]);
        command
    }

    /// Makes a token for a scope; answers with the file that holds it.
    pub(crate) fn token(&self, scope: &str) -> String {
        let made = good(self.command(&["token", scope]).output().unwrap());
        let path = self.path(&scope.replace('/', "-"));
        fs_err::write(&path, made).unwrap();
        path
    }

    pub(crate) fn start(&self) -> Cache {
        let mut child = self.command(&["run"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut cache = Cache { child, plain: String::new(), secure: String::new() };
        for line in lines {
            let host = |rest: &str| rest.split(['/', ' ']).next().unwrap_or_default().to_owned();
            if let Some((_, rest)) = line.split_once("https://127.0.0.1:") {
                cache.secure = format!("https://localhost:{}", host(rest));
            } else if let Some((_, rest)) = line.split_once("http://") {
                cache.plain = format!("http://{}", host(rest));
                break;
            }
        }
        assert!(!cache.plain.is_empty(), "it does not say where it listens");
        cache
    }
}

/// A cache that runs until this is dropped.
pub(crate) struct Cache {
    child: Child,
    /// Where it is without TLS.
    pub(crate) plain: String,
    /// Where it is by TLS, if it is.
    pub(crate) secure: String,
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, without what a job of this machine may have in its environment.
pub(crate) fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    for name in ["FORGEYARD_CACHE_URL", "FORGEYARD_CACHE_TOKEN", "SSL_CERT_FILE"] {
        command.env_remove(name);
    }
    command
}

/// The relay before this cache, with the token of a file, for a command that is yet to be said.
pub(crate) fn relay(cache: &str, token: &str) -> Command {
    let mut command = program();
    command.args(["cache", "relay", "--cache", cache, "--token-file", token]);
    command
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// What a command that went well wrote to standard output.
pub(crate) fn good(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}
