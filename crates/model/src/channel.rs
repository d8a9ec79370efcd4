//! Channels: published indexes of packages. A channel is a sequence of generations; each is a complete, immutable
//! index, and publishing is one switch from one to the next.

use crate::{ArtifactId, ChannelName, Digest, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

/// One package in a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChannelEntry {
    /// Platform folder.
    pub subdir: String,
    /// File name.
    pub file_name: String,
    /// Digest of the package.
    pub digest: Digest,
    /// Size, in bytes.
    pub size: u64,
    /// The artifact record.
    pub artifact: ArtifactId,
    /// Its record in `repodata.json`.
    pub record: serde_json::Value,
    /// Digest of the signed statement that let it in.
    pub attestation: Digest,
    /// The pipeline that brought it.
    pub pipeline: PipelineId,
    /// When it came.
    pub promoted_at: Timestamp,
}

/// A channel row: the current generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Channel {
    /// Its name.
    pub name: ChannelName,
    /// What it holds now.
    pub entries: Vec<ChannelEntry>,
    /// When it last changed.
    pub changed_at: Timestamp,
    /// Row version; also the number of the index that is served.
    pub generation: u64,
}
