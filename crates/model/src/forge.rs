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

/// What a source says of a foreign CI job (a GitHub `workflow_job`): the same shape from webhook, poll and scale set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowJob {
    /// Where.
    pub repository: Repository,
    /// Installation of the app at the forge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<u64>,
    /// Numeric id of the job. A scale set's messages do not carry it; its listener looks it up in the run.
    pub job: u64,
    /// Numeric id of its run.
    pub run: u64,
    /// Number of the attempt of the run, from 1.
    #[serde(default = "first")]
    pub run_attempt: u32,
    /// Name of the job.
    #[serde(default)]
    pub name: String,
    /// Name of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// `queued`, `waiting`, `in_progress`, `completed`.
    pub action: String,
    /// How it ended, when it is completed: `success`, `cancelled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// Labels that it asks for.
    pub labels: Vec<String>,
    /// Commit.
    pub head_sha: String,
    /// Branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_branch: Option<String>,
    /// Name of the runner that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_name: Option<String>,
    /// Numeric id of that runner at the forge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<u64>,
    /// Who sent the event; a poll does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Person>,
    /// The request of a scale set, when it came by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_set: Option<crate::demand::ScaleSetRequest>,
}

const fn first() -> u32 {
    1
}

/// A button of a check run was pressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Press {
    /// Where.
    pub repository: Repository,
    /// Numeric id of the check run.
    pub check: u64,
    /// The commit that the check run is about: what the person saw.
    pub head_sha: String,
    /// Which button: what was put there when the check run was written.
    pub button: String,
    /// Who pressed it. By numeric id; the login is for display.
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
    /// Somebody pressed a button of a check run of ours.
    Pressed(Box<Press>),
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
