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
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 9] = [
        Bug::AcknowledgeBeforePersist,
        Bug::TouchBeforeLease,
        Bug::ReleaseBeforeGone,
        Bug::AcceptSuperseded,
        Bug::ForgetRow,
        Bug::TimeEndsLease,
        Bug::LaunderLane,
        Bug::LoseDelivery,
        Bug::ForgetMachines,
    ];
}
