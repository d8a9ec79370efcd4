//! What this host can do, found by asking it.

use crate::sandbox::cgroup::Groups;
use crate::{Error, ProviderFacts};
use forgeyard_model::resources::Limit;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// Finds a program in the usual places.
pub(crate) fn find(name: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin"];
    std::env::split_paths(&path)
        .chain(usual.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Error::Program {
            program: name.to_owned(),
            reason: format!("not installed; install the package `{name}`"),
        })
}

/// Whether the program answers when it is asked for its version.
pub(crate) async fn answers(program: &Path) -> Result<(), Error> {
    let failed = |reason: String| Error::Program { program: program.display().to_string(), reason };
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(format!("`--version` ended with {}", output.status)))
    }
}

/// Limits that hold here, and those that cannot.
pub(crate) fn facts(groups: &Groups) -> ProviderFacts {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    // The first line is the heading.
    let (mut enforces, mut cannot) = groups.facts(swaps.lines().count() > 1);
    // Both are kept by the agent, from outside of the job.
    enforces.extend([Limit::Wall, Limit::Disk]);
    if Path::new("/proc/self/ns/net").exists() {
        enforces.insert(Limit::Network);
    } else {
        cannot.push((Limit::Network, "the kernel has no network namespaces".to_owned()));
    }
    ProviderFacts { enforces, cannot }
}

/// Whether containers with users of their own can be made at all.
pub(crate) fn possible() -> Result<(), Error> {
    let failed =
        |reason: &str| Err(Error::Program { program: "kernel".to_owned(), reason: reason.to_owned() });
    if !nix::unistd::geteuid().is_root() {
        return failed("the sandbox provider must run as root");
    }
    let most = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    if most.trim() == "0" {
        return failed("user namespaces are switched off (user.max_user_namespaces is 0)");
    }
    Ok(())
}
