//! Registrations: what a machine is at the forge, and what it took there.
//!
//! A machine registers only after it is up, under a name that no other attempt ever has, with a configuration that is
//! good for one job. The configuration itself is a secret: it is never in a row, an input or an effect; the control plane
//! keeps it sealed until the machine fetches it.
//!
//! `Asked → Minted → Leaving → Gone`. A machine whose registration is minted is not destroyed before the forge has
//! forgotten it: while the forge still knows a runner it may hand it a job.

use crate::demand::RunFacts;
use crate::forge::{Person, Repository};
use crate::{DemandId, Explanation, Timestamp};
use serde::{Deserialize, Serialize};

/// Where a registration is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "registration", rename_all = "snake_case")]
pub enum RegistrationState {
    /// The forge was asked for a configuration.
    Asked,
    /// The configuration is there; the machine may have it.
    Minted {
        /// Numeric id of the runner at the forge.
        runner: u64,
    },
    /// The forge is being asked to forget it.
    Leaving {
        /// Numeric id of the runner at the forge, when it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runner: Option<u64>,
        /// Why.
        reason: Explanation,
    },
    /// The forge does not know it (any more).
    Gone,
}

/// Names of all states, for tables.
pub const REGISTRATION_STATES: [&str; 4] = ["asked", "minted", "leaving", "gone"];

impl RegistrationState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            RegistrationState::Asked => "asked",
            RegistrationState::Minted { .. } => "minted",
            RegistrationState::Leaving { .. } => "leaving",
            RegistrationState::Gone => "gone",
        }
    }
}

/// What the job-started hook of a runner says that it took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TakenJob {
    /// Where, by numeric id.
    pub repository: Repository,
    /// Numeric id of the run.
    pub run: u64,
    /// Number of the attempt of the run.
    pub run_attempt: u32,
    /// Key of the job in its workflow; hooks do not know the numeric id.
    pub key: String,
    /// Who started this attempt of the run, as the runner was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Person>,
}

/// What was decided about the job that a runner took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum TakenAnswer {
    /// Its run is being looked up; no step runs meanwhile.
    Asked,
    /// It may run.
    Allowed {
        /// Rules that allowed it.
        by: Vec<String>,
    },
    /// No step of it runs, and the machine is destroyed.
    Refused {
        /// Why.
        reason: Explanation,
    },
}

/// A job that a runner took, with what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Taken {
    /// What the hook said.
    pub job: TakenJob,
    /// What the forge says of its run, once read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<RunFacts>,
    /// What was decided.
    pub answer: TakenAnswer,
    /// When the hook spoke.
    pub at: Timestamp,
}

/// What a machine is at the forge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Registration {
    /// The demand that it was made for; what it takes may be another.
    pub demand: DemandId,
    /// Where it registers.
    pub repository: Repository,
    /// Installation of the app at the forge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<u64>,
    /// The scale set that it registers at; absent = by the REST interface. What its demand became since does not matter:
    /// who registered it is asked to forget it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_set: Option<u64>,
    /// Its name at the forge; no other attempt ever has it.
    pub name: String,
    /// Labels that it registers with.
    pub labels: Vec<String>,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: RegistrationState,
    /// Names that were asked for so far; each asks anew.
    pub asks: u32,
    /// How often the forge was asked to forget it.
    #[serde(default)]
    pub leaves: u32,
    /// When the configuration came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minted_at: Option<Timestamp>,
    /// When the machine fetched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<Timestamp>,
    /// The forge called it busy although nobody said what it took.
    #[serde(default)]
    pub busy: bool,
    /// The forge says that the job which it took is over. It is good for one, so the forge has forgotten it by then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// When it is asked whether it still waits for a job; moved on while it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_until: Option<Timestamp>,
    /// The job that it took, by its own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Taken>,
}
