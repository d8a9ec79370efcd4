//! What code hosts tell us, in one shape. People and repositories are matched by numeric id; names are for display.

use crate::ForgeName;
use serde::{Deserialize, Serialize};

/// A person or a bot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Person {
    /// Numeric id at the forge.
    pub id: u64,
    /// Login, for display only.
    pub login: String,
}

/// A repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Repository {
    /// The forge.
    pub forge: ForgeName,
    /// Numeric id at the forge.
    pub id: u64,
    /// `owner/name`, for display only.
    pub name: String,
}

/// What kind of event started work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "trigger", rename_all = "snake_case")]
pub enum Trigger {
    /// Commits were pushed to a ref.
    Push {
        /// Full name of the ref, `refs/heads/main`.
        git_ref: String,
    },
    /// A pull request was opened, reopened or got new commits.
    PullRequest {
        /// Its number.
        number: u64,
        /// Branch that it wants to change, without `refs/heads/`.
        base: String,
        /// Commit of the base.
        base_sha: String,
        /// Repository that its commits come from.
        head_repository: u64,
        /// Whether that is another repository.
        fork: bool,
    },
    /// A person asked for it (`forgeyard run`).
    Manual,
}

/// An event that asks for native work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgeEvent {
    /// Where.
    pub repository: Repository,
    /// What.
    #[serde(flatten)]
    pub trigger: Trigger,
    /// Commit to build.
    pub head_sha: String,
    /// Who sent the event.
    pub sender: Person,
    /// Who opened the pull request, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Person>,
}

/// A foreign CI job (`workflow_job`): stored, gated and explained; nothing is launched for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowJob {
    /// Where.
    pub repository: Repository,
    /// Numeric id of the job.
    pub job: u64,
    /// Numeric id of its run.
    pub run: u64,
    /// `queued`, `waiting`, `in_progress`, `completed`.
    pub action: String,
    /// Labels that it asks for.
    pub labels: Vec<String>,
    /// Commit.
    pub head_sha: String,
    /// Who sent the event.
    pub sender: Person,
}

/// A webhook body, understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "meaning", rename_all = "snake_case")]
pub enum Meaning {
    /// Asks for native work.
    Work(Box<ForgeEvent>),
    /// A foreign CI job.
    Demand(Box<WorkflowJob>),
    /// A pull request was closed.
    PullRequestClosed {
        /// Where.
        repository: Repository,
        /// Its number.
        number: u64,
    },
    /// Known, and nothing to do.
    Nothing {
        /// Why there is nothing to do.
        reason: String,
    },
}
