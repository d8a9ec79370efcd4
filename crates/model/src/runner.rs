//! Runners: ephemeral machines, each for at most one attempt.
//!
//! Two truths, two types. [`RunnerState`] is what the farm intends and has concluded; [`ObservedState`] is what a
//! site reports of the machine. Reconciling them is the engine's work.
//!
//! `Requested → Creating → Booting → Ready → Registered → Busy → Draining → Deleting → Deleted`; `Failed` from any
//! live state; `Kept` for an autopsy; `Leaving` before `Draining` while a forge is asked to forget it. `Ready` is the state
//! of a machine that was made before there was work: its agent has called and waits.

use crate::name::{FlavorName, ImageName, PoolName, ProviderName};
use crate::registration::Registration;
use crate::resources::{Flavor, Image, Limit};
use crate::{AttemptId, Explanation, LeaseId, RunnerId, SiteId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the farm intends with a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RunnerState {
    /// Written; no site has answered.
    Requested,
    /// The site is making it.
    Creating,
    /// It exists; its agent has not called.
    Booting,
    /// Its agent has called.
    Ready,
    /// Its agent has redeemed the token of the attempt.
    Registered,
    /// A step runs or has run.
    Busy,
    /// The attempt is over; the machine stands until the forge has forgotten the runner, lest it hands it a job.
    Leaving,
    /// The attempt is over; nothing new may start.
    Draining,
    /// The site is to remove it.
    Deleting,
    /// The site confirmed that nothing of it is left.
    Deleted,
    /// It broke; the site is to remove it.
    Failed {
        /// How.
        reason: Explanation,
    },
    /// Left standing for an autopsy.
    Kept {
        /// Who asked and why.
        reason: Explanation,
    },
}

impl RunnerState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            RunnerState::Requested => "requested",
            RunnerState::Creating => "creating",
            RunnerState::Booting => "booting",
            RunnerState::Ready => "ready",
            RunnerState::Registered => "registered",
            RunnerState::Busy => "busy",
            RunnerState::Leaving => "leaving",
            RunnerState::Draining => "draining",
            RunnerState::Deleting => "deleting",
            RunnerState::Deleted => "deleted",
            RunnerState::Failed { .. } => "failed",
            RunnerState::Kept { .. } => "kept",
        }
    }

    /// Whether a machine should exist.
    pub const fn wanted(&self) -> bool {
        matches!(
            self,
            RunnerState::Requested
                | RunnerState::Creating
                | RunnerState::Booting
                | RunnerState::Ready
                | RunnerState::Registered
                | RunnerState::Busy
                | RunnerState::Leaving
                | RunnerState::Kept { .. }
        )
    }

    /// Whether nobody has heard of its agent yet.
    pub const fn being_made(&self) -> bool {
        matches!(self, RunnerState::Requested | RunnerState::Creating | RunnerState::Booting)
    }

    /// Whether it has work, may get some, or is to have some: it is capacity. One that failed, is being removed or is kept
    /// for an autopsy is none.
    pub const fn serves(&self) -> bool {
        self.wanted() && !matches!(self, RunnerState::Kept { .. })
    }

    /// Whether it takes a place of its pool: it may exist. One that is kept for an autopsy takes none, so that keeping it
    /// costs nobody a machine (ARC 4168); the memory of its host it takes until it is gone.
    pub const fn takes_a_place(&self) -> bool {
        self.live() && !matches!(self, RunnerState::Kept { .. })
    }

    /// Whether a machine may still exist.
    pub const fn live(&self) -> bool {
        !matches!(self, RunnerState::Deleted)
    }
}

/// What a site sees of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "observed", rename_all = "snake_case")]
pub enum ObservedState {
    /// Being made.
    Creating,
    /// Exists, its supervisor runs.
    Running,
    /// Exists, its supervisor is gone and the site will not bring it back.
    Exited {
        /// What the site knows of the end.
        reason: Explanation,
    },
    /// Could not be made.
    Failed {
        /// Why.
        reason: Explanation,
    },
    /// Nothing of it is left.
    Absent,
}

/// What a site reports of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ObservedRunner {
    /// Which.
    pub runner: RunnerId,
    /// What is seen.
    #[serde(flatten)]
    pub state: ObservedState,
    /// Limits that hold for this machine.
    #[serde(default)]
    pub enforced: BTreeSet<Limit>,
}

/// What a machine is for. In a row it is one field: `attempt`, `warm` or `handed`.
///
/// `Warm → Handed`; `Attempt` from the beginning. A machine has one attempt in its life, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunnerWork {
    /// It was made for this attempt.
    Attempt(AttemptId),
    /// It was made before there was work, and waits for an attempt.
    Warm {
        /// Chosen by its agent; nobody else gets its attempt. Absent until the agent has called.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nonce: Option<String>,
        /// The lease of its devices, when it has some.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
    },
    /// It waited and was given this attempt.
    Handed {
        /// Which.
        attempt: AttemptId,
        /// Chosen by its agent; nobody else redeems the attempt.
        nonce: String,
        /// When it was given.
        at: Timestamp,
    },
}

impl RunnerWork {
    /// The attempt, once there is one.
    pub const fn attempt(&self) -> Option<AttemptId> {
        match self {
            RunnerWork::Attempt(attempt) | RunnerWork::Handed { attempt, .. } => Some(*attempt),
            RunnerWork::Warm { .. } => None,
        }
    }

    /// Whether it waits for an attempt.
    pub const fn is_warm(&self) -> bool {
        matches!(self, RunnerWork::Warm { .. })
    }
}

/// A runner row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Runner {
    /// Its id; also the tag that the provider puts on what it makes.
    pub id: RunnerId,
    /// Where it is.
    pub site: SiteId,
    /// Its pool.
    pub pool: PoolName,
    /// What makes it.
    pub provider: ProviderName,
    /// Its shape.
    pub flavor: FlavorName,
    /// What it boots.
    pub image: ImageName,
    /// Its shape as it was when the machine was asked for: a later configuration must not change a living machine.
    pub shape: Flavor,
    /// Its image as it was then.
    pub boots: Image,
    /// What it is for.
    #[serde(flatten)]
    pub work: RunnerWork,
    /// What it is at a forge, when it is a runner of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<Box<Registration>>,
    /// What the farm intends.
    #[serde(flatten)]
    pub state: RunnerState,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When the site first reported it. Before that its absence means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<Timestamp>,
    /// Generation of the site's desired set from which it is no longer wanted; 0 = wanted. An older report that
    /// does not list it proves nothing.
    #[serde(default)]
    pub unwanted_from: u64,
    /// When its program ended because the forge no longer accepts its version: nothing more is launched from its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outdated_at: Option<Timestamp>,
    /// When its agent first called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When the state runs out, unless it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
