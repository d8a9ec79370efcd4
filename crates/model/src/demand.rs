//! Demand: one foreign CI job (a GitHub `workflow_job`) that wants a runner of this farm.
//!
//! The ledger of demand is fed by several sources that repeat, reorder and lose what they say, so none of them is trusted
//! alone. What the forge says of a job only moves forward ([`ForgeRank`]); what we do about it is a state of our own:
//!
//! `Unread → Wanted → Launching → Running → Ended`, with `Waiting` (the forge itself holds it), `Held` (an approval or a
//! pause), `Refused` (the gate), `Withdrawn` (the forge took it back before it ran).
//!
//! A demand has no recipe and no steps of ours. To get it a runner it is given a **launch**: a job of the kind `Runner`.
//! Forges bind late: the runner that was launched for one job may take another. Then the launches change hands
//! ([`Demand::launch`]), so that nobody who was robbed is forgotten.

use crate::forge::{Person, Repository, WorkflowJob};
use crate::name::PoolName;
use crate::resources::Isolation;
use crate::{DemandId, Digest, Explanation, ForgeName, Id, JobId, Lane, RunnerId, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::collections::BTreeMap;

/// The id of the demand of a job of a forge, first seen at this time. The time part makes ids sort; the remainder is
/// the hash of forge and job, and never depends on who reported first.
pub fn demand_id(forge: &ForgeName, job: u64, first_seen: Timestamp) -> DemandId {
    let mut hash = sha2::Sha256::new();
    hash.update(forge.as_str().as_bytes());
    hash.update([0]);
    hash.update(job.to_be_bytes());
    let sum = hash.finalize();
    let mut low = [0u8; 16];
    low[6..].copy_from_slice(&sum[..10]);
    DemandId::new(first_seen, u128::from_be_bytes(low))
}

/// Who told us of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A webhook, the first time.
    Webhook,
    /// A webhook that the forge sent again because we or it asked.
    Redelivery,
    /// We asked the forge for its queue, or for this job.
    Poll,
    /// A message of a runner scale set.
    ScaleSet,
}

impl Source {
    /// For sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Webhook => "webhook",
            Source::Redelivery => "redelivery",
            Source::Poll => "poll",
            Source::ScaleSet => "scale set",
        }
    }
}

/// When a source spoke of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sighting {
    /// The first time.
    pub first: Timestamp,
    /// How many of its reports told something new.
    pub news: u32,
}

/// How far a job is at the forge. `Waiting` and `Queued` come in both orders; the others only move forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ForgeRank {
    /// A rule of an environment holds it; no runner is wanted yet.
    Waiting,
    /// It waits for a runner.
    Queued,
    /// A runner has it.
    InProgress,
    /// It is over.
    Completed,
}

impl ForgeRank {
    /// What the forge calls it.
    pub const fn name(self) -> &'static str {
        match self {
            ForgeRank::Waiting => "waiting",
            ForgeRank::Queued => "queued",
            ForgeRank::InProgress => "in_progress",
            ForgeRank::Completed => "completed",
        }
    }

    /// Reads the forge's word for it.
    pub fn of(text: &str) -> Option<Self> {
        [Self::Waiting, Self::Queued, Self::InProgress, Self::Completed]
            .into_iter()
            .find(|rank| rank.name() == text)
    }

    /// Whether a report of `new` tells something after `self`. `waiting` and `queued` follow each other either way.
    pub fn allows(self, new: Self) -> bool {
        match (self, new) {
            (Self::Waiting | Self::Queued, _) => self != new,
            (Self::InProgress | Self::Completed, _) => new > self,
        }
    }
}

/// The runner that the forge says has a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Taker {
    /// Its name at the forge.
    pub name: String,
    /// Its numeric id at the forge; another number space than jobs and runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Our runner of that name, when it is one of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerId>,
}

/// The request of a runner scale set that a job came by: yet another number space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScaleSetRequest {
    /// Id of the scale set.
    pub set: u64,
    /// `runnerRequestId` of the message.
    pub request: u64,
}

/// What the forge says of the run that a job belongs to. A job's own payload has none of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunFacts {
    /// Name of the event, as the forge spells it: `push`, `pull_request`.
    pub event: String,
    /// Who caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Person>,
    /// Who started this attempt of the run; another one than the actor after a re-run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggering_actor: Option<Person>,
    /// Numeric id of the repository that the head commit comes from; absent when it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_repository: Option<u64>,
    /// Commit.
    pub head_sha: String,
    /// Branch, without `refs/heads/`. Only one of which the forge vouched that the head is on it may be that of a protected
    /// branch: names of tags look alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_branch: Option<String>,
    /// Number of the pull request, where it could be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<u64>,
    /// Who opened the pull request, where it could be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Person>,
    /// Who pushed the head commit, where it could be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pusher: Option<Person>,
    /// Number of the attempt of the run that this was read for.
    pub run_attempt: u32,
}

/// What the gate allowed a demand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Admission {
    /// Pools that it may use, in order of preference.
    pub pools: Vec<PoolName>,
    /// Rules that allowed it.
    pub by: Vec<String>,
    /// How far its event is trusted.
    pub lane: Lane,
    /// Least isolation that any of the pools must give.
    pub isolation: Isolation,
}

/// What we do about a job of a forge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum DemandState {
    /// Its run is being looked up; without that nobody knows whose work it is.
    Unread,
    /// The forge itself holds it.
    Waiting,
    /// Allowed once something is there: an approval, or the end of a pause.
    Held {
        /// What is missing.
        reason: Explanation,
        /// End of the pause; absent = until somebody acts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// The gate says no. It is asked again when the configuration changes.
    Refused {
        /// Why.
        reason: Explanation,
    },
    /// Allowed; its launch waits for capacity.
    Wanted,
    /// A machine is being made for it, or a registered runner waits for it.
    Launching,
    /// A runner has it.
    Running,
    /// The forge says that it is over, and it had a runner; how, is in [`Demand::conclusion`].
    Ended,
    /// It went away before a runner had it.
    Withdrawn {
        /// Why.
        reason: Explanation,
    },
}

/// Names of all states, for tables.
pub const DEMAND_STATES: [&str; 9] =
    ["unread", "waiting", "held", "refused", "wanted", "launching", "running", "ended", "withdrawn"];

impl DemandState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            DemandState::Unread => "unread",
            DemandState::Waiting => "waiting",
            DemandState::Held { .. } => "held",
            DemandState::Refused { .. } => "refused",
            DemandState::Wanted => "wanted",
            DemandState::Launching => "launching",
            DemandState::Running => "running",
            DemandState::Ended => "ended",
            DemandState::Withdrawn { .. } => "withdrawn",
        }
    }

    /// Whether it is over.
    pub const fn ended(&self) -> bool {
        matches!(self, DemandState::Ended | DemandState::Withdrawn { .. })
    }

    /// Whether a runner is owed to it.
    pub const fn owed(&self) -> bool {
        matches!(self, DemandState::Wanted | DemandState::Launching)
    }
}

/// The intent to have a job run again at its forge, because it was lost with its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "intent", rename_all = "snake_case")]
pub enum Repeat {
    /// The forge is asked when the run is over.
    Wanted {
        /// How it was lost.
        cause: String,
    },
    /// The forge makes new jobs.
    Done {
        /// When it was asked.
        at: Timestamp,
    },
    /// It is not run again.
    Dropped {
        /// Why.
        reason: Explanation,
    },
}

impl Repeat {
    /// For sentences.
    pub fn text(&self) -> String {
        match self {
            Repeat::Wanted { cause } => {
                format!("it was lost with its machine ({cause}), and is run again when its run is over")
            }
            Repeat::Done { at } => {
                format!("it was lost with its machine; the forge was asked at {at} to run it again")
            }
            Repeat::Dropped { reason } => {
                format!("it was lost with its machine, and is not run again: {}", reason.message)
            }
        }
    }
}

/// A demand row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Demand {
    /// Its id.
    pub id: DemandId,
    /// Where.
    pub repository: Repository,
    /// Installation of the app at the forge, when the source said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<u64>,
    /// Numeric id of the job at the forge; with the forge, unique.
    pub job: u64,
    /// Numeric id of its run.
    pub run: u64,
    /// Number of the attempt of the run; a re-run is a new job of the same run with the next number.
    pub run_attempt: u32,
    /// Name of the job.
    pub name: String,
    /// Name of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// Labels that it asks for, as they were written.
    pub labels: Vec<String>,
    /// Commit.
    pub head_sha: String,
    /// Branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_branch: Option<String>,
    /// Who sent the webhook; polls do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Person>,
    /// The request of a scale set that it came by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_set: Option<ScaleSetRequest>,
    /// How far it is at the forge.
    pub rank: ForgeRank,
    /// How it ended, in the forge's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// Who told us, and when.
    pub seen: BTreeMap<Source, Sighting>,
    /// What the forge says of its run, once read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<RunFacts>,
    /// How often the run was asked for.
    #[serde(default)]
    pub lookups: u32,
    /// What the gate allowed, once it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Configuration under which the gate last decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_under: Option<Digest>,
    /// The launch that is reserved for it, or that brought the runner that has it. Not always one that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<JobId>,
    /// Launches that were made for it so far.
    #[serde(default)]
    pub launches: u32,
    /// The runner that really has or had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<Taker>,
    /// Whether it is run again, when it was lost with its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
    /// What we do about it.
    #[serde(flatten)]
    pub state: DemandState,
    /// Pauses in a row after something that did not work.
    #[serde(default)]
    pub pauses: u32,
    /// How often the forge was asked what became of it, since the state last changed.
    #[serde(default)]
    pub checks: u32,
    /// When it was first seen.
    pub created_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When the state runs out, unless it rests. For a pause, its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}

impl Demand {
    /// The reason of a state that has one.
    pub const fn reason(&self) -> Option<&Explanation> {
        match &self.state {
            DemandState::Held { reason, .. }
            | DemandState::Refused { reason }
            | DemandState::Withdrawn { reason } => Some(reason),
            _ => None,
        }
    }

    /// The commit that is run: what the forge says of the run, else what the report of the job said.
    pub fn head(&self) -> &str {
        self.facts.as_ref().map_or(&self.head_sha, |facts| &facts.head_sha)
    }

    /// Whether a report is of this job.
    pub fn is(&self, report: &WorkflowJob) -> bool {
        self.job == report.job && self.repository.forge == report.repository.forge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_demand_is_of_forge_and_job_and_sorts_by_time() {
        let github: ForgeName = "github".parse().unwrap();
        let other: ForgeName = "forgejo".parse().unwrap();
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let later = at.plus(std::time::Duration::from_secs(1));
        let id = demand_id(&github, 94_396_871_545, at);
        assert_eq!(id, demand_id(&github, 94_396_871_545, at));
        assert_ne!(id, demand_id(&other, 94_396_871_545, at));
        assert_ne!(id, demand_id(&github, 94_396_871_546, at));
        assert!(id < demand_id(&github, 1, later));
    }

    #[test]
    fn ranks_only_move_forward_but_waiting_and_queued_alternate() {
        use ForgeRank::*;
        let all = [Waiting, Queued, InProgress, Completed];
        let allowed: Vec<(ForgeRank, ForgeRank)> = all
            .iter()
            .flat_map(|from| all.iter().map(|to| (*from, *to)))
            .filter(|(from, to)| from.allows(*to))
            .collect();
        assert_eq!(
            allowed,
            [
                (Waiting, Queued),
                (Waiting, InProgress),
                (Waiting, Completed),
                (Queued, Waiting),
                (Queued, InProgress),
                (Queued, Completed),
                (InProgress, Completed),
            ]
        );
    }
}
