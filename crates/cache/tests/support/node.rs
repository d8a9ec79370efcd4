//! Node with GitHub's official clients, and the small scripts of ours that drive them (`tests/node`).

use super::nix::text;
use super::programs::{clients, look};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// See the module. It ends with its folder, from which the scripts find the clients.
pub struct Node {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Node {
    /// Says visibly that a test is skipped without it.
    pub fn find() -> Option<Self> {
        let program = look("node");
        let modules = clients().join("node/node_modules");
        let (Some(program), true) = (program, modules.join("@actions/artifact").is_dir()) else {
            println!("SKIPPED: node with @actions/cache is not installed (scripts/install-clients.sh)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(modules, folder.path().join("node_modules")).unwrap();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node");
        for script in ["cache.mjs", "artifact.mjs"] {
            fs_err::copy(scripts.join(script), folder.path().join(script)).unwrap();
        }
        Some(Self { program, folder })
    }

    /// A script with its arguments in a workspace, in the environment that a runner makes for an action.
    pub fn action(&self, workspace: &Path, url: &str, token: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(workspace).arg(self.folder.path().join(arguments[0])).args(&arguments[1..]);
        command.env("ACTIONS_RESULTS_URL", url).env("ACTIONS_RUNTIME_TOKEN", token);
        command.env("ACTIONS_CACHE_SERVICE_V2", "true").env("GITHUB_WORKSPACE", workspace);
        command.env("RUNNER_TEMP", self.folder.path());
        command.env_remove("GITHUB_SERVER_URL").env_remove("NODE_OPTIONS");
        command
    }
}

/// The result of a script, and all that it printed.
pub fn result(output: &Output) -> (serde_json::Value, String) {
    let said = text(output);
    let line = said.lines().rev().find_map(|line| line.strip_prefix("RESULT "));
    let line = line.unwrap_or_else(|| panic!("no result: {said}"));
    (serde_json::from_str(line).unwrap(), said)
}
