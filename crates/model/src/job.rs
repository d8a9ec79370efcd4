//! Jobs: units of native work.
//!
//! `Held → Queued → Placed → Starting → Running → Succeeded | Failed | TimedOut | Canceled | Lost`.

use crate::artifact::ArtifactKind;
use crate::package::TestSelection;
use crate::resources::{GpuRequest, Limit};
use crate::verdict::{Outcome, Verdict};
use crate::{
    Account, ArtifactId, AttemptId, Digest, Explanation, FlavorName, ForgeName, JobId, Owner, PoolName,
    Timestamp,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Renders the recipe.
    Plan,
    /// Makes packages; no tests, no device.
    Build,
    /// Tests one package.
    Test,
    /// Runs the program of a forge, which takes one job of that forge. It has no steps of ours.
    Runner,
}

impl JobKind {
    /// The persisted spelling.
    pub const fn name(self) -> &'static str {
        match self {
            JobKind::Plan => "plan",
            JobKind::Build => "build",
            JobKind::Test => "test",
            JobKind::Runner => "runner",
        }
    }
}

/// What a held job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "waits_for", rename_all = "snake_case")]
pub enum Hold {
    /// The source is being fetched.
    Source,
    /// Artifacts of these jobs.
    Artifacts {
        /// The jobs that make them.
        of: BTreeSet<JobId>,
    },
    /// The package is there; its test list is being read.
    Inspection,
    /// An authorised maintainer must approve this head.
    Approval {
        /// What is missing.
        reason: Explanation,
    },
    /// Back-off before the next attempt.
    Retry {
        /// When it returns to the queue.
        until: Timestamp,
    },
}

/// Where a job is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobState {
    /// Waits for something that is not capacity.
    Held(Hold),
    /// Waits for capacity.
    Queued,
    /// An attempt exists; its machine is being made.
    Placed {
        /// Which.
        attempt: AttemptId,
    },
    /// The agent has the job and prepares it.
    Starting {
        /// Which.
        attempt: AttemptId,
    },
    /// Steps run.
    Running {
        /// Which.
        attempt: AttemptId,
    },
    /// Over.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

impl JobState {
    /// The persisted spelling; an ended job is named by its outcome.
    pub const fn name(&self) -> &'static str {
        match self {
            JobState::Held(_) => "held",
            JobState::Queued => "queued",
            JobState::Placed { .. } => "placed",
            JobState::Starting { .. } => "starting",
            JobState::Running { .. } => "running",
            JobState::Ended { outcome } => outcome.name(),
        }
    }

    /// The attempt at work, when there is one.
    pub const fn attempt(&self) -> Option<AttemptId> {
        match self {
            JobState::Placed { attempt } | JobState::Starting { attempt } | JobState::Running { attempt } => {
                Some(*attempt)
            }
            _ => None,
        }
    }

    /// Whether it is over.
    pub const fn ended(&self) -> bool {
        matches!(self, JobState::Ended { .. })
    }
}

/// One command inside the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Step {
    /// Name for people; unique in the job.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Further environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// Bytes that the agent puts into the machine before the first step, verified by digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobInput {
    /// Digest of the bytes.
    pub digest: Digest,
    /// Path below the machine's `/in`.
    pub path: String,
    /// Unpack as a tar archive into a folder of that path.
    #[serde(default)]
    pub unpack: bool,
}

/// A small text file that the farm itself puts into the machine, below `/in`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobFile {
    /// Path below `/in`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Files that the agent uploads after the last step, from the machine's `/out`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutputRule {
    /// Folder below `/out`; empty = `/out` itself.
    pub folder: String,
    /// Ending of the file names.
    pub ending: String,
    /// What they are.
    pub kind: ArtifactKind,
    /// Whether finding none fails the job.
    pub required: bool,
}

/// All that an agent needs to run a job. Built by the engine, carried by digest and value, never by reference to a
/// mutable place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    /// Shape of the machine.
    pub flavor: FlavorName,
    /// Devices, when it needs some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequest>,
    /// Limits that must hold; a machine that cannot enforce one refuses the job.
    #[serde(default)]
    pub needs: BTreeSet<Limit>,
    /// What is put in.
    #[serde(default)]
    pub inputs: Vec<JobInput>,
    /// Small files that are put in.
    #[serde(default)]
    pub files: Vec<JobFile>,
    /// What is run, in order; the first failure ends the job.
    pub steps: Vec<Step>,
    /// What is taken out.
    #[serde(default)]
    pub outputs: Vec<OutputRule>,
    /// Environment variables of all steps.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Package whose digest must be found installed afterwards: file name and digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// Pools that it may use, in order; empty = each that offers the flavor. A pool gives a runner the flavor that it
    /// offers runners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolName>,
    /// The forge's runner that the machine is, instead of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge_runner: Option<ForgeRunner>,
}

/// A machine that is a runner of a forge. Its configuration is a secret, made when the machine is up, and fetched by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgeRunner {
    /// The forge.
    pub forge: ForgeName,
    /// Labels that it registers with.
    pub labels: Vec<String>,
    /// The runner program of the image, with its arguments; the pool that gives the machine says which.
    #[serde(default = "crate::resources::runner_program")]
    pub program: Vec<String>,
}

/// The package that a test is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subject {
    /// File name of the package.
    pub file_name: String,
    /// Its digest.
    pub digest: Digest,
}

/// What a test job is about, kept beside the spec so that decisions can be explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TestDetail {
    /// The output whose package is tested.
    pub output: String,
    /// The package, once it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<ArtifactId>,
    /// Which tests of the package, and why there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<TestSelection>,
}

/// A job row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// Its id, derived from its owner and the key.
    pub id: JobId,
    /// What it belongs to.
    #[serde(flatten)]
    pub owner: Owner,
    /// On whose account it runs; absent in rows of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// Key, unique for its owner: `plan`, `build/fy-bandwidth`, `test/fy-bandwidth/gpu`, `runner/1`.
    pub key: String,
    /// What it is for.
    pub kind: JobKind,
    /// What is run; absent until its inputs are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<JobSpec>,
    /// Outputs of the recipe that it builds, for a build.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// What it tests, for a test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TestDetail>,
    /// Builds whose artifacts it takes.
    #[serde(default)]
    pub needs: BTreeSet<JobId>,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: JobState,
    /// Why it waits, when it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Explanation>,
    /// Number of the last attempt; the next one is this plus one.
    pub fence: u32,
    /// Attempts that count against the retry budget, by policy.
    #[serde(default)]
    pub retries: u32,
    /// Sites and devices to avoid next time, by text for people.
    #[serde(default)]
    pub avoid: BTreeSet<String>,
    /// What the farm makes of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Somebody asked to stop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last entered the queue; the order of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When the state runs out, unless it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
