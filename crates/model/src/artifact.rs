//! Artifacts: records of immutable bytes. Trust is on the record, never on the bytes.

use crate::package::PackageFacts;
use crate::{ArtifactId, AttemptId, Digest, JobId, Lane, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// Source tree at one commit, as a tar archive.
    Source,
    /// The engine's rendering of a recipe, as JSON.
    Plan,
    /// A conda package.
    CondaPackage,
    /// Lock of the environment that a test ran in, as JSON.
    EnvironmentLock,
    /// Metrics or reports for people.
    Report,
}

/// An artifact row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Artifact {
    /// Its id, derived from the attempt (or pipeline) and the name.
    pub id: ArtifactId,
    /// What it is.
    pub kind: ArtifactKind,
    /// File name.
    pub name: String,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Size, in bytes.
    pub size: u64,
    /// The pipeline that it belongs to.
    pub pipeline: PipelineId,
    /// The job that made it; absent for a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The attempt that made it; absent for a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// Lane of the event that it came from.
    pub lane: Lane,
    /// What the farm read from it, when it is a package and was inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Box<PackageFacts>>,
    /// When its bytes were durable.
    pub stored_at: Timestamp,
    /// Row version.
    pub generation: u64,
}
