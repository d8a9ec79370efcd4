//! `/agent/v1`, for the agent of a machine that is a runner of a forge. Sessions and fences as in [`crate::agent`].

use forgeyard_model::Secret;
use forgeyard_model::registration::TakenJob;
use serde::{Deserialize, Serialize};

/// `POST` of [`FetchConfig`], answers [`FetchedConfig`]; the farm holds the call for a while when there is none yet. The same session may fetch again until its first sign of life with a step; then it is refused for good.
pub const CONFIG: &str = "/agent/v1/attempts/{attempt}/runner/config";
/// `POST` of [`Took`], answers [`forgeyard_model::registration::TakenAnswer`]. Asked again until it is told.
pub const TOOK: &str = "/agent/v1/attempts/{attempt}/runner/took";

/// Asks for the configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FetchConfig {
    /// The fence.
    pub fence: u32,
}

/// The configuration of the runner: good for one job, secret until it is consumed.
#[derive(Debug, Clone, Deserialize)]
pub struct FetchedConfig {
    /// As the forge encoded it; absent when there is none yet.
    #[serde(default)]
    pub config: Option<Secret>,
}

/// What the job-started hook of the runner says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Took {
    /// The fence.
    pub fence: u32,
    /// The job.
    pub job: TakenJob,
}
