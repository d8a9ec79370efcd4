//! Attempts: numbered tries at a job. The number is the fence: results of a superseded attempt are refused.

use crate::ledger::Stake;
use crate::verdict::{ExitFacts, Outcome, Verdict};
use crate::{Account, ArtifactId, AttemptId, JobId, LeaseId, Owner, RunnerId, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

/// Where an attempt is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptState {
    /// A machine is being made for it.
    Placed,
    /// Its agent has the job and prepares it.
    Starting,
    /// Steps run.
    Running,
    /// It ended with an accepted result or a verdict of the farm.
    Ended,
}

impl AttemptState {
    /// Every state, for tables.
    pub const ALL: [AttemptState; 4] =
        [AttemptState::Placed, AttemptState::Starting, AttemptState::Running, AttemptState::Ended];

    /// The persisted spelling.
    pub const fn name(self) -> &'static str {
        match self {
            AttemptState::Placed => "placed",
            AttemptState::Starting => "starting",
            AttemptState::Running => "running",
            AttemptState::Ended => "ended",
        }
    }

    /// Whether it may still produce a result.
    pub const fn live(self) -> bool {
        !matches!(self, AttemptState::Ended)
    }
}

/// The one-shot token of an attempt: what is stored of it, and how far it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "token", rename_all = "snake_case")]
pub enum TokenState {
    /// Not redeemed.
    Unused,
    /// Redeemed by the client with this nonce; the same nonce may redeem again until the first heartbeat.
    Redeemed {
        /// The client's nonce.
        nonce: String,
    },
    /// The first heartbeat has been seen: closed.
    Closed {
        /// The client's nonce.
        nonce: String,
    },
}

/// An attempt row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// The job that it tries.
    pub job: JobId,
    /// The job's owner.
    #[serde(flatten)]
    pub owner: Owner,
    /// On whose account it runs, as its job said when it was placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// What it has in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stake: Option<Box<Stake>>,
    /// Its number, from 1.
    pub fence: u32,
    /// Its machine.
    pub runner: RunnerId,
    /// Where.
    pub site: SiteId,
    /// Its claim on devices, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// How far its token is used.
    #[serde(flatten)]
    pub token: TokenState,
    /// Where it is in its life.
    pub state: AttemptState,
    /// When it was placed.
    pub placed_at: Timestamp,
    /// When its first step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Last word of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
    /// The step that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// What was observed at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<ExitFacts>,
    /// What the farm makes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What it uploaded.
    #[serde(default)]
    pub artifacts: Vec<ArtifactId>,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When the state runs out, unless it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
