//! The deterministic farm: the real engine between *simulated* forges, stores, sites, machines and agents.
//!
//! One seed is one run. Each step picks one thing that can happen, lets messages be lost before or after they had their
//! effect, repeats and reorders them, and crashes the control plane or a site between any two steps. After each step
//! the [`invariants`] are checked against what is stored and against what the simulated hardware really does.
//!
//! [`Bug`]s can be planted into the *surroundings* of the engine; a run with a planted bug must end with a broken
//! invariant, which proves that the net catches.

mod agent;
mod control;
pub mod invariants;
mod run;
mod site;
mod store;

pub use run::{Report, Settings, run};

/// Mistakes that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A webhook is acknowledged before it is stored.
    AcknowledgeBeforePersist,
    /// A site hears of a machine before the claim is stored.
    TouchBeforeLease,
    /// A site confirms the end of a lease while the machine still runs.
    ReleaseBeforeGone,
    /// Whoever takes results ignores the fence.
    AcceptSuperseded,
    /// A row of a commit is not stored.
    ForgetRow,
    /// A lease is ended because its time is over.
    TimeEndsLease,
    /// Work of a pull request is taken for work of a protected ref.
    LaunderLane,
    /// A stored delivery is never read.
    LoseDelivery,
    /// A site that restarts forgets its machines instead of adopting them.
    ForgetMachines,
    /// A one-shot token serves whoever brings it, as often as it is brought.
    ShareToken,
    /// A report about an earlier control plane's wishes is taken as one about today's.
    AcceptOldEpoch,
    /// A site gives devices back without resetting them.
    SkipReset,
    /// A site acts on wishes that were replaced by later ones.
    ObeyOldWishes,
    /// The control plane decides under a configuration without caps.
    ForgetCaps,
    /// A site that restarts adopts only machines that were made for an attempt.
    ForgetWarm,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 15] = [
        Bug::AcknowledgeBeforePersist,
        Bug::TouchBeforeLease,
        Bug::ReleaseBeforeGone,
        Bug::AcceptSuperseded,
        Bug::ForgetRow,
        Bug::TimeEndsLease,
        Bug::LaunderLane,
        Bug::LoseDelivery,
        Bug::ForgetMachines,
        Bug::ShareToken,
        Bug::AcceptOldEpoch,
        Bug::SkipReset,
        Bug::ObeyOldWishes,
        Bug::ForgetCaps,
        Bug::ForgetWarm,
    ];
}
