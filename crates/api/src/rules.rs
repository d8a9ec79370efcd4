//! What becomes of the operator's files while the farm runs.

use forgeyard_model::{Digest, Explanation, Timestamp};
use serde::{Deserialize, Serialize};

/// Which configuration counts, and what became of the files when they were read last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RulesView {
    /// The version that counts.
    pub version: u64,
    /// Its digest.
    pub digest: Digest,
    /// Whether the farm was started from files, which it reads again when they change.
    pub reads_files: bool,
    /// When they were read last while the farm ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Timestamp>,
    /// Why what they say now does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Explanation>,
    /// Keys that differ from what the farm was started with, and count from the next start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart: Vec<String>,
}

/// The files were read again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reloaded {
    /// Whether anything is different.
    pub changed: bool,
    /// The version that counts now.
    pub version: u64,
    /// What is different from before, a line for each thing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Keys that differ from what the farm was started with, and count from the next start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart: Vec<String>,
}
