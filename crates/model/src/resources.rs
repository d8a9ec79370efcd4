//! What machines offer and jobs ask for: limits, flavors, images, pools, GPU requests.

use crate::Digest;
use crate::name::{FlavorName, ImageName, PoolName, ProviderName};
use crate::pool::{BreakerRule, Canary, Keep, LaunchRate, Schedule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What kind of device a GPU request or a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A real NVIDIA GPU.
    Nvidia,
    /// A real AMD GPU.
    Amd,
    /// The CPU through an OpenCL driver, standing in for a GPU. Always labelled *simulated GPU*.
    OpenclCpu,
}

impl DeviceKind {
    /// Whether the device only stands in for a GPU.
    pub const fn simulated(self) -> bool {
        matches!(self, DeviceKind::OpenclCpu)
    }

    /// What people read; a simulated device always says so.
    pub const fn label(self) -> &'static str {
        match self {
            DeviceKind::Nvidia => "NVIDIA GPU",
            DeviceKind::Amd => "AMD GPU",
            DeviceKind::OpenclCpu => "opencl-cpu (simulated GPU)",
        }
    }
}

/// A limit that a machine can enforce. Which of them hold is a fact of the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Memory of all processes together.
    Memory,
    /// CPU time per second.
    Cpu,
    /// Number of processes and threads.
    Processes,
    /// Time on the wall clock.
    Wall,
    /// Bytes written to the job's own folders.
    Disk,
    /// No network but loopback.
    Network,
}

/// How well a pool keeps jobs apart, from weakest to strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Namespaces on a kernel that is shared with other jobs.
    SharedKernel,
    /// A virtual machine of its own.
    Vm,
}

/// Devices that a job wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuRequest {
    /// How many devices.
    pub count: u32,
    /// Only this kind, when given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,
    /// Least memory of each device, in MiB.
    #[serde(default)]
    pub min_memory_mib: u64,
    /// Least compute capability times ten (`90` = 9.0); 0 = any.
    #[serde(default)]
    pub min_compute_capability: u32,
}

/// A shape of machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Flavor {
    /// Its name.
    pub name: FlavorName,
    /// CPUs, in thousandths.
    pub cpu_millis: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Disk that the job may fill, in MiB.
    pub disk_mib: u64,
    /// Processes and threads at once.
    #[serde(default = "default_processes")]
    pub processes: u32,
    /// Time on the wall clock for a whole attempt, in seconds.
    pub time_limit_seconds: u64,
    /// Devices of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequest>,
    /// Whether jobs may use the network.
    #[serde(default)]
    pub network: bool,
}

const fn default_processes() -> u32 {
    2048
}

/// What the root of a machine is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "root", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ImageRoot {
    /// An allow-list of the host's own system folders, read-only.
    Host {
        /// Further folders or files of the host to show read-only, beside the built-in allow-list.
        #[serde(default)]
        allow: Vec<String>,
    },
    /// A tree given as a tar archive by digest.
    Rootfs {
        /// Digest of the archive.
        digest: Digest,
    },
}

/// What a runner boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub struct Image {
    /// Its name.
    pub name: ImageName,
    /// What the root is made of.
    #[serde(flatten)]
    pub root: ImageRoot,
}

/// Runners that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// What makes its machines.
    pub provider: ProviderName,
    /// Shapes that it offers.
    pub flavors: BTreeSet<FlavorName>,
    /// What its machines boot.
    pub image: ImageName,
    /// How well it keeps jobs apart.
    pub isolation: Isolation,
    /// Machines at once, at most.
    pub max: u32,
    /// Machines at least, busy ones included.
    #[serde(default, skip_serializing_if = "none")]
    pub min: u32,
    /// Machines that wait for work, beside those that have some.
    #[serde(default, skip_serializing_if = "none")]
    pub warm: u32,
    /// Machines that wait for a while after the pool was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// Shape of the machines that wait; needed where the pool offers several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_flavor: Option<FlavorName>,
    /// Other numbers for parts of the week.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<Schedule>,
    /// The pool of which it takes a share of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// How fast it starts machines.
    #[serde(default)]
    pub launches: LaunchRate,
    /// When it stops starting machines.
    #[serde(default)]
    pub breaker: BreakerRule,
    /// What it offers to jobs of forges; absent = nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runners: Option<RunnerOffer>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn none(count: &u32) -> bool {
    *count == 0
}

impl Pool {
    /// A pool with everything that is not said here at its default.
    pub fn new(
        name: PoolName,
        provider: ProviderName,
        flavors: BTreeSet<FlavorName>,
        image: ImageName,
        isolation: Isolation,
        max: u32,
    ) -> Self {
        Self {
            name,
            provider,
            flavors,
            image,
            isolation,
            max,
            min: 0,
            warm: 0,
            keep: None,
            warm_flavor: None,
            schedule: Vec::new(),
            canary: None,
            launches: LaunchRate::default(),
            breaker: BreakerRule::default(),
            runners: None,
        }
    }

    /// Shape of the machines that are made before there is a job: the one that is named, the one that runners get, or the
    /// only one that there is.
    pub fn shape_of_warm(&self) -> Option<&FlavorName> {
        let only = || self.flavors.first().filter(|_| self.flavors.len() == 1);
        let offered = || self.runners.as_ref().map(|offer| &offer.flavor);
        self.warm_flavor.as_ref().or_else(offered).or_else(only)
    }

    /// Whether it ever has machines that wait.
    pub fn ever_warm(&self) -> bool {
        let scheduled = |entry: &Schedule| entry.min.unwrap_or(0) > 0 || entry.warm.unwrap_or(0) > 0;
        self.min > 0
            || self.warm > 0
            || self.keep.is_some_and(|keep| keep.count > 0)
            || self.schedule.iter().any(scheduled)
    }
}

/// What a pool offers to jobs of forges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RunnerOffer {
    /// Labels of its runners. Case does not matter.
    pub labels: BTreeSet<String>,
    /// Only jobs that ask for exactly these labels; otherwise any that asks for some of them and for no other.
    #[serde(default)]
    pub exact: bool,
    /// Shape of its runners.
    pub flavor: FlavorName,
    /// The runner program of the image, with its arguments.
    #[serde(default = "runner_program")]
    pub program: Vec<String>,
}

/// Where `scripts/install-runner.sh` puts the runner program of GitHub.
pub fn runner_program() -> Vec<String> {
    vec!["/opt/actions-runner/run.sh".to_owned()]
}
