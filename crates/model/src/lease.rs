//! Leases: the claim of an attempt, or of a machine that waits for one, on devices. Authoritative in the database, written before hardware is touched,
//! ended only by the site's confirmation or by an operator who writes the host off. Never by time alone.
//!
//! `Claimed → Held → Releasing → Ended | WrittenOff`.

use crate::{AttemptId, DeviceId, LeaseId, RunnerId, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

/// Where a lease is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Written; the site has not confirmed it.
    Claimed,
    /// The site has given the devices to the runner.
    Held,
    /// The attempt is over; the site is to reset, verify and confirm.
    Releasing,
    /// The site confirmed that the devices are free.
    Ended,
    /// An operator declared the host lost.
    WrittenOff,
}

impl LeaseState {
    /// Every state, for tables.
    pub const ALL: [LeaseState; 5] = [
        LeaseState::Claimed,
        LeaseState::Held,
        LeaseState::Releasing,
        LeaseState::Ended,
        LeaseState::WrittenOff,
    ];

    /// The persisted spelling.
    pub const fn name(self) -> &'static str {
        match self {
            LeaseState::Claimed => "claimed",
            LeaseState::Held => "held",
            LeaseState::Releasing => "releasing",
            LeaseState::Ended => "ended",
            LeaseState::WrittenOff => "written_off",
        }
    }

    /// Whether the devices still belong to it.
    pub const fn live(self) -> bool {
        !matches!(self, LeaseState::Ended | LeaseState::WrittenOff)
    }
}

/// A lease row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// Where the devices are.
    pub site: SiteId,
    /// The attempt that holds it; absent while its machine waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// The machine that gets the devices.
    pub runner: RunnerId,
    /// The devices.
    pub devices: Vec<DeviceId>,
    /// Where it is in its life.
    pub state: LeaseState,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When the site confirmed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Since when the state holds.
    pub since: Timestamp,
    /// When the state runs out, unless it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
