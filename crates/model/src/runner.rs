//! Runners: ephemeral machines, each for at most one attempt.
//!
//! Two truths, two types. [`RunnerState`] is what the farm intends and has concluded; [`ObservedState`] is what a
//! site reports of the machine. Reconciling them is the engine's work.
//!
//! `Requested → Creating → Booting → Ready → Registered → Busy → Draining → Deleting → Deleted`; `Failed` from any
//! live state; `Kept` for an autopsy; `Leaving` before `Draining` while a forge is asked to forget it.

use crate::name::{FlavorName, ImageName, PoolName, ProviderName};
use crate::registration::Registration;
use crate::resources::{Flavor, Image, Limit};
use crate::{AttemptId, Explanation, RunnerId, SiteId, Timestamp};
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
    /// The attempt that it is reserved for.
    pub attempt: AttemptId,
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
