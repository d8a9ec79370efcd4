//! Pipelines: native work from one event and one plan.

use crate::forge::ForgeEvent;
use crate::plan::PipelineFile;
use crate::resources::Isolation;
use crate::{
    ArtifactId, ChannelName, Digest, EnvironmentId, Explanation, JobId, Lane, PipelineId, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a pipeline is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PipelineState {
    /// Jobs are at work.
    Running,
    /// All jobs succeeded; packages go to the channel.
    Promoting,
    /// The environment is being made.
    Environment,
    /// Everything that its lane allows is done.
    Succeeded,
    /// Something failed.
    Failed {
        /// What.
        reason: Explanation,
    },
    /// Somebody stopped it, or a newer head replaced it.
    Canceled {
        /// Why.
        reason: Explanation,
    },
}

impl PipelineState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            PipelineState::Running => "running",
            PipelineState::Promoting => "promoting",
            PipelineState::Environment => "environment",
            PipelineState::Succeeded => "succeeded",
            PipelineState::Failed { .. } => "failed",
            PipelineState::Canceled { .. } => "canceled",
        }
    }

    /// Whether it is over.
    pub const fn ended(&self) -> bool {
        matches!(
            self,
            PipelineState::Succeeded | PipelineState::Failed { .. } | PipelineState::Canceled { .. }
        )
    }
}

/// Where the source of a pipeline came from and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceRecord {
    /// The artifact with the tree.
    pub artifact: ArtifactId,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Commit.
    pub commit: String,
    /// Commit that the pipeline file was read from.
    pub pipeline_file_commit: String,
}

/// A pipeline row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pipeline {
    /// Its id.
    pub id: PipelineId,
    /// The delivery that started it.
    pub delivery: String,
    /// The event.
    pub event: ForgeEvent,
    /// How far the event is trusted.
    pub lane: Lane,
    /// Least isolation that its work needs.
    pub isolation: Isolation,
    /// Rules that allowed it.
    pub allowed_by: Vec<String>,
    /// The repository's pipeline file, once read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PipelineFile>,
    /// The source, once fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceRecord>,
    /// The build job of each output of the recipe, once planned.
    #[serde(default)]
    pub outputs: BTreeMap<String, JobId>,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: PipelineState,
    /// Why it is not promoted, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_promoted: Option<Explanation>,
    /// Where it was promoted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<ChannelName>,
    /// The environment made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentId>,
    /// When it was made.
    pub created_at: Timestamp,
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
