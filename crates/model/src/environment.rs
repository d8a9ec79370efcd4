//! Environments: locked sets of packages, built once under a prefix that is derived from the lock.

use crate::{ChannelName, Digest, EnvironmentId, Explanation, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

/// One package of a lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockedPackage {
    /// Platform folder.
    pub subdir: String,
    /// File name.
    pub file_name: String,
    /// Digest of the package.
    pub digest: Digest,
    /// Where it was taken from.
    pub url: String,
}

/// Output of the program that was run in the environment as proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProofRun {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Exit status.
    pub exit_code: i32,
    /// Standard output, cut to 16 KiB.
    pub stdout: String,
    /// How long it ran, in milliseconds; `None` in records of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
}

/// Where an environment is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EnvironmentState {
    /// Asked for.
    Requested,
    /// Solved, linked, activated; the program ran.
    Ready {
        /// What it holds, sorted.
        lock: Vec<LockedPackage>,
        /// Digest of the canonical lock; the prefix is derived from it.
        lock_digest: Digest,
        /// Where it is on the host that made it.
        prefix: String,
        /// The proof, when one was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proof: Option<ProofRun>,
    },
    /// Could not be made.
    Failed {
        /// Why.
        reason: Explanation,
    },
}

impl EnvironmentState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            EnvironmentState::Requested => "requested",
            EnvironmentState::Ready { .. } => "ready",
            EnvironmentState::Failed { .. } => "failed",
        }
    }
}

/// An environment row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Environment {
    /// Its id.
    pub id: EnvironmentId,
    /// Its name.
    pub name: ChannelName,
    /// The pipeline that asked for it.
    pub pipeline: PipelineId,
    /// The channel that it is solved from.
    pub channel: ChannelName,
    /// What was asked for, as conda match specs.
    pub specs: Vec<String>,
    /// Program to run as proof.
    #[serde(default)]
    pub run: Vec<String>,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: EnvironmentState,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When the state runs out, unless it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
