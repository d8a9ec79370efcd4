//! Removing a machine so that nothing is left, from whatever state it is in.
//!
//! Order: agent (or it would start the next container), containers, processes, mounts, control groups, folders. Each step
//! can be done again; the last one looks whether it is true.

use crate::Error;
use crate::sandbox::cgroup::Groups;
use crate::sandbox::process::{kill_agent, naming};
use forgeyard_formats::linux::mounts;
use forgeyard_model::RunnerId;
use forgeyard_model::machine::MachineFolder;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time in which monitors must be gone after their containers.
const GONE: Duration = Duration::from_secs(10);

/// What is to be removed.
#[derive(Debug, Clone)]
pub(crate) struct Remains {
    pub(crate) runner: RunnerId,
    pub(crate) folder: MachineFolder,
    /// Folder of the machine's root.
    pub(crate) run: PathBuf,
    /// State of the runtime.
    pub(crate) runc_state: PathBuf,
    pub(crate) runc: PathBuf,
    pub(crate) groups: Groups,
}

impl Remains {
    /// Removes everything; `Ok` only when nothing is left. Blocks.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        kill_agent(&self.folder)?;
        self.containers()?;
        self.groups.kill_all(self.runner)?;
        self.monitors()?;
        for folder in [&self.run, self.folder.dir()] {
            unmount_below(folder)?;
        }
        self.groups.remove(self.runner)?;
        for folder in [&self.run, self.folder.dir()] {
            match std::fs::remove_dir_all(folder) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(failed("remove", folder, source));
                }
                _ => {}
            }
        }
        match self.left() {
            None => Ok(()),
            Some(left) => Err(Error::Left { runner: self.runner.to_string(), left }),
        }
    }

    /// Containers of the machine that the runtime knows, by their folder in its state.
    fn containers(&self) -> Result<(), Error> {
        for id in self.container_ids() {
            let output = Command::new(&self.runc)
                .arg("--root")
                .arg(&self.runc_state)
                .args(["delete", "--force", &id])
                .output()
                .map_err(|source| failed("start", &self.runc, source))?;
            if !output.status.success() {
                // A container that was half made cannot be deleted by the runtime; its processes are killed by group
                // below, and its state goes by hand.
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                tracing::warn!(id, reason, "the runtime cannot delete the container");
                self.groups.kill_all(self.runner)?;
                let state = self.runc_state.join(&id);
                match std::fs::remove_dir_all(&state) {
                    Err(source) if source.kind() != ErrorKind::NotFound => {
                        return Err(failed("remove", &state, source));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn container_ids(&self) -> Vec<String> {
        let prefix = format!("{}-", self.runner);
        std::fs::read_dir(&self.runc_state)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(&prefix))
            .collect()
    }

    /// Agents and monitors outside the groups. A monitor ends by itself when its container does.
    fn monitors(&self) -> Result<(), Error> {
        let begin = Instant::now();
        loop {
            let found = naming(self.folder.dir());
            if found.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > GONE {
                return Err(Error::Left {
                    runner: self.runner.to_string(),
                    left: format!("process {found:?}"),
                });
            }
            for process in found {
                let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The first thing that is still there.
    fn left(&self) -> Option<String> {
        let mount = mounts_below(&[&self.run, self.folder.dir()])
            .pop()
            .map(|path| format!("mount {}", path.display()));
        let group = || self.groups.left(self.runner).pop().map(|path| format!("group {}", path.display()));
        let process = || naming(self.folder.dir()).pop().map(|pid| format!("process {pid}"));
        let container = || self.container_ids().pop().map(|id| format!("container {id}"));
        let folder = || {
            [self.run.as_path(), self.folder.dir()]
                .into_iter()
                .find(|folder| folder.exists())
                .map(|folder| format!("folder {}", folder.display()))
        };
        mount.or_else(group).or_else(process).or_else(container).or_else(folder)
    }
}

/// Mounts at or below these folders, in the order of mounting.
fn mounts_below(folders: &[&Path]) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts(&text)
        .into_iter()
        .map(|mount| mount.target)
        .filter(|target| folders.iter().any(|folder| target.starts_with(folder)))
        .collect()
}

/// Undoes all mounts at or below a folder, the last one first.
pub(crate) fn unmount_below(folder: &Path) -> Result<(), Error> {
    for target in mounts_below(&[folder]).iter().rev() {
        if umount2(target, MntFlags::UMOUNT_NOFOLLOW).is_err() {
            // Busy: taken out of sight now, undone by the kernel when its last user is gone.
            umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
                .map_err(|errno| failed("unmount", target, errno.into()))?;
        }
    }
    Ok(())
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Failed { action, object: path.display().to_string(), source }
}
