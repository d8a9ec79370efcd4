//! Pools as people see them.

use forgeyard_model::pool::{Breaker, Canary, LaunchError, LaunchRate, PoolDrain, Schedule, Terms};
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Explanation, FlavorName, ImageName, PoolName, ProviderName, SiteName, Timestamp};
use serde::{Deserialize, Serialize};

/// A pool: what it is, what it has, and what it should have.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolView {
    /// Its name.
    pub name: PoolName,
    /// What makes its machines.
    pub provider: ProviderName,
    /// How well it keeps jobs apart.
    pub isolation: Isolation,
    /// What its machines boot.
    pub image: ImageName,
    /// Shapes that it offers.
    pub flavors: Vec<FlavorName>,
    /// Labels that it offers to jobs of forges.
    pub labels: Vec<String>,
    /// Machines that have an attempt.
    pub busy: u32,
    /// Machines that wait for work.
    pub ready: u32,
    /// Machines that are being made to wait for work.
    pub coming: u32,
    /// Machines that serve nobody any more: failed, being removed, kept for an autopsy.
    pub leaving: u32,
    /// Jobs that wait and might get a place there.
    pub waiting: u32,
    /// What it should have now.
    pub now: Terms,
    /// Machines that should wait for work now, with what is kept after use and what is missing to the minimum.
    pub warm_wanted: u32,
    /// Why fewer machines wait for work than should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_trouble: Option<Explanation>,
    /// When the schedule next changes something, and to what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<PoolChange>,
    /// The schedule.
    #[serde(default)]
    pub schedule: Vec<Schedule>,
    /// The pool of which it takes a share of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Whether it starts machines.
    #[serde(flatten)]
    pub breaker: Breaker,
    /// Launches that it may make at once now.
    pub launches: u32,
    /// How fast it starts machines.
    pub rate: LaunchRate,
    /// Somebody stopped giving work to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<PoolDrain>,
    /// Why it gets no work or starts no machine now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Explanation>,
    /// Sites at which it starts no machine, while others serve it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped_at: Vec<StoppedSite>,
    /// The last launch that did not come up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LaunchError>,
    /// The last day, one moment each quarter of an hour, oldest first. Only of one pool, not in the list.
    #[serde(default)]
    pub history: Vec<PoolMoment>,
}

/// A site at which a pool starts no machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoppedSite {
    /// The site.
    pub site: SiteName,
    /// Whether it tries one.
    #[serde(flatten)]
    pub breaker: Breaker,
    /// The last launch there that did not come up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LaunchError>,
}

/// A change of a schedule.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolChange {
    /// When.
    pub at: Timestamp,
    /// What the pool should have then.
    pub then: Terms,
}

/// Machines and jobs of a pool at one moment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolMoment {
    /// When.
    pub at: Timestamp,
    /// Machines that had an attempt.
    pub busy: u32,
    /// Machines that waited for one, or were being made to.
    pub warm: u32,
    /// Jobs that waited for a place and might have got one there.
    pub waiting: u32,
}
