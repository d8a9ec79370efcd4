//! The folder of one sandbox machine: the contract between the provider that makes it and the agent that runs in it.
//!
//! The provider writes everything here before it starts the agent; the agent writes only below `agent/`, `work/`,
//! `out/`, `in/`, `tmp/` and `bundles/`. Paths are the same over restarts of both. The job sees only the contents of
//! `work`, `out`, `in` and `tmp`; a runner of a forge also those of `bundles/runner/hook` and `bundles/runner/taken`.

use crate::device::DeviceFacts;
use crate::resources::{Flavor, Limit};
use crate::{Digest, RunnerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Version of [`MachineFile`] that provider and agent must share.
pub const VERSION: u32 = 1;

/// `machine.json`: what a provider tells the agent about the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFile {
    /// Version of this file.
    pub version: u32,
    /// The runner.
    pub runner: RunnerId,
    /// Its shape; the limits come from here.
    pub flavor: Flavor,
    /// Devices that it got.
    #[serde(default)]
    pub devices: Vec<DeviceFacts>,
    /// Limits that hold. Those that the agent itself keeps (wall, disk) are among them.
    #[serde(default)]
    pub enforced: BTreeSet<Limit>,
    /// Digest of the image's tree; absent = the host's own system folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Digest>,
    /// Base URL of the farm.
    pub farm_url: String,
    /// Further certificate authority to trust, PEM file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Programs that run containers.
    pub runtime: RuntimeFile,
    /// Where its processes are accounted and limited.
    pub cgroup: CgroupFile,
    /// Ids of the host that its users are mapped to.
    pub ids: IdRange,
}

/// Programs that run containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeFile {
    /// The OCI runtime.
    pub runc: PathBuf,
    /// The monitor of one container.
    pub conmon: PathBuf,
    /// Folder of the runtime's own state.
    pub state: PathBuf,
    /// Command, as seen inside the container, that starts a program as process 1 and reports exactly how it ended.
    pub init: Vec<String>,
}

/// Where the processes of a machine are accounted and limited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupFile {
    /// Path of the job's group from the top of each hierarchy; containers are made below it.
    pub path: String,
    /// Which interface counts memory and processes here.
    pub version: CgroupVersion,
    /// Folder of the job's group by controller (`memory`, `pids`, `cpu`, `cpuacct`); all the same in version 2.
    pub job: BTreeMap<String, PathBuf>,
    /// Folders of the group of agent and monitors; no limit is set there.
    pub supervisor: Vec<PathBuf>,
}

/// Which cgroup interface is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy for all.
    V2,
}

/// Users and groups of a container: ids from 0 are mapped to ids of the host from `base`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// First id of the host.
    pub base: u32,
    /// How many.
    pub count: u32,
    /// User and group of the job, inside.
    pub job: u32,
}

impl IdRange {
    /// The job's user and group as the host sees it.
    pub const fn host_job(&self) -> u32 {
        self.base.saturating_add(self.job)
    }
}

/// Paths in the folder of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFolder {
    dir: PathBuf,
}

impl MachineFolder {
    /// The folder at this path.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// [`MachineFile`], written by the provider when all else is ready.
    pub fn machine_file(&self) -> PathBuf {
        self.dir.join("machine.json")
    }

    /// The one-shot token; never shown to the job.
    pub fn token(&self) -> PathBuf {
        self.dir.join("token")
    }

    /// OCI configuration of a container, complete but for command, environment and cgroup.
    pub fn bundle_template(&self) -> PathBuf {
        self.dir.join("bundle.json")
    }

    /// Folders of the containers, one for each step, by number.
    pub fn bundle(&self, step: usize) -> PathBuf {
        self.bundles().join(step.to_string())
    }

    /// Parent of the folders of the containers.
    pub fn bundles(&self) -> PathBuf {
        self.dir.join("bundles")
    }

    /// The hook of a runner of a forge and what it is answered; the job cannot write there.
    pub fn hook(&self) -> PathBuf {
        self.bundles().join("runner/hook")
    }

    /// Where the hook of a runner of a forge says what it took; the job can write there.
    pub fn taken(&self) -> PathBuf {
        self.bundles().join("runner/taken")
    }

    /// The agent's own state.
    pub fn agent(&self) -> PathBuf {
        self.dir.join("agent")
    }

    /// Locked by the agent as long as it lives.
    pub fn agent_lock(&self) -> PathBuf {
        self.agent().join("lock")
    }

    /// The agent's process id and start time.
    pub fn agent_pid(&self) -> PathBuf {
        self.agent().join("pid")
    }

    /// Written by the agent as its last act, with one line that says how it ended.
    pub fn finished(&self) -> PathBuf {
        self.agent().join("finished")
    }

    /// `/work` of the job.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// `/out` of the job.
    pub fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// `/in` of the job, which it cannot write.
    pub fn input(&self) -> PathBuf {
        self.dir.join("in")
    }

    /// `/tmp` of the job.
    pub fn tmp(&self) -> PathBuf {
        self.dir.join("tmp")
    }
}

/// Where the container's process 1 is found, inside.
pub const INSIDE_INIT: &str = "/.forgeyard/init";
/// Folder for the record of process 1, inside.
pub const INSIDE_STATUS: &str = "/.forgeyard/status";
/// Folder of [`MachineFolder::hook`], inside; the job cannot write there.
pub const INSIDE_HOOK: &str = "/.forgeyard/hook";
/// Folder of [`MachineFolder::taken`], inside.
pub const INSIDE_TAKEN: &str = "/.forgeyard/taken";
