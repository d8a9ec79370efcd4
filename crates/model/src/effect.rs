//! Effects: local things that the control plane does after a decision is durable. At least once, so each is
//! idempotent by its id. Machines are not effects: they are desired state.

use crate::plan::{PipelineFile, RenderedPlan};
use crate::artifact::Artifact;
use crate::channel::ChannelEntry;
use crate::environment::EnvironmentState;
use crate::package::PackageFacts;
use crate::{ArtifactId, ChannelName, EffectId, EnvironmentId, Explanation, JobId, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// Fetch the source of a pipeline at its head and its pipeline file at its base.
    FetchSource {
        /// Which.
        pipeline: PipelineId,
    },
    /// Read the engine's rendering.
    ReadPlan {
        /// The plan job.
        job: JobId,
        /// The rendering.
        artifact: ArtifactId,
    },
    /// Read the metadata of a package.
    InspectPackage {
        /// The build job.
        job: JobId,
        /// The package.
        artifact: ArtifactId,
    },
    /// Sign statements and prepare the channel entries of a pipeline.
    Promote {
        /// Which.
        pipeline: PipelineId,
        /// Where to.
        channel: ChannelName,
    },
    /// Solve, link and try an environment.
    MakeEnvironment {
        /// Which.
        environment: EnvironmentId,
    },
}

/// How an effect came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum EffectResult {
    /// The source is stored.
    Source {
        /// The stored tree.
        artifact: Artifact,
        /// Commit.
        commit: String,
        /// The pipeline file.
        file: Box<PipelineFile>,
        /// Commit that the pipeline file was read from.
        file_commit: String,
    },
    /// The rendering was read.
    Plan {
        /// What it says.
        plan: RenderedPlan,
    },
    /// The package was read.
    Package {
        /// What it says.
        facts: Box<PackageFacts>,
    },
    /// Statements are signed; the entries are ready to be switched in.
    Promotion {
        /// The entries.
        entries: Vec<ChannelEntry>,
    },
    /// The environment is made.
    Environment {
        /// Ready or failed.
        state: Box<EnvironmentState>,
    },
    /// It cannot be done, and trying again will not help.
    Refused {
        /// Why.
        reason: Explanation,
    },
}

/// An outbox row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEffect {
    /// Its id, derived from what caused it.
    pub id: EffectId,
    /// What to do.
    #[serde(flatten)]
    pub effect: Effect,
    /// How often it was tried and did not come out.
    pub tries: u32,
    /// Not before.
    pub not_before: Timestamp,
    /// Last trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Done: kept for the record, no longer in the outbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_at: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}

