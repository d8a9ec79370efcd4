//! The lifecycles, each as one table of (state, event) → state. A move that is not in its table is a named conflict.
//!
//! The tables are total over their events and are kept as pictures in the snapshot tests, so that a change of a
//! lifecycle is a change that a reviewer sees.

use forgeyard_model::attempt::AttemptState;
use forgeyard_model::device::DeviceState;
use forgeyard_model::job::JobState;
use forgeyard_model::lease::LeaseState;
use forgeyard_model::runner::RunnerState;

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),* }
        impl $name {
            /// Every event, for tables.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// Name in past tense, as in event rows.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => stringify!($variant)),* }
            }
        }
    )*};
}

events! {
    /// What can happen to a job.
    JobEvent {
        /// What it waited for is there, or its waiting changed.
        JobHeld,
        /// It waits for capacity.
        JobQueued,
        /// An attempt was made for it.
        JobPlaced,
        /// The agent has it.
        JobStarted,
        /// A step runs.
        JobRan,
        /// The attempt failed and another one follows after a pause.
        JobRetried,
        /// It is over.
        JobEnded,
        /// A person asked for it again.
        JobRerun,
        /// A build that it needs was run again and brought other bytes.
        JobReopened,
    }
    /// What can happen to an attempt.
    AttemptEvent {
        /// Its agent redeemed the token.
        AttemptStarted,
        /// A step runs.
        AttemptRan,
        /// It is over.
        AttemptEnded,
    }
    /// What can happen to a runner.
    RunnerEvent {
        /// The site began to make it.
        RunnerCreating,
        /// The site says that it exists.
        RunnerBooted,
        /// Its agent called; it waits for work.
        RunnerReady,
        /// Its agent redeemed the token.
        RunnerRegistered,
        /// A step runs.
        RunnerBusy,
        /// Its attempt is over; the forge is asked to forget it.
        RunnerLeaving,
        /// Its attempt is over.
        RunnerDrained,
        /// The site was seen to remove it.
        RunnerDeleting,
        /// The site says that nothing is left.
        RunnerDeleted,
        /// It broke.
        RunnerFailed,
        /// Somebody wants it left standing.
        RunnerKept,
    }
    /// What can happen to a lease.
    LeaseEvent {
        /// The site gave the devices to the machine.
        LeaseHeld,
        /// The attempt is over.
        LeaseReleasing,
        /// The site confirmed that the devices are free.
        LeaseEnded,
        /// An operator declared the host lost.
        LeaseWrittenOff,
    }
    /// What can happen to a demand.
    DemandEvent {
        /// Its run is looked up.
        DemandUnread,
        /// The forge itself holds it.
        DemandWaits,
        /// It waits for an approval or for the end of a pause.
        DemandHeld,
        /// The gate said no.
        DemandRefused,
        /// It was allowed, or its runner was taken from it.
        DemandWanted,
        /// A machine is being made for it.
        DemandLaunched,
        /// A runner has it.
        DemandTaken,
        /// The forge says that it is over.
        DemandEnded,
        /// It went away before a runner had it.
        DemandWithdrawn,
    }
    /// What can happen to a registration.
    RegistrationEvent {
        /// The forge is asked for a configuration, under another name.
        RegistrationAsked,
        /// The configuration is there.
        RegistrationMinted,
        /// The forge is asked to forget it.
        RegistrationLeaving,
        /// The forge did not forget it, because it is busy.
        RegistrationKept,
        /// The forge does not know it.
        RegistrationGone,
    }
    /// What can happen to a device.
    DeviceEvent {
        /// A lease claimed it.
        DeviceLeased,
        /// The site resets it.
        DeviceResetting,
        /// The site verifies it.
        DeviceVerifying,
        /// It is free.
        DeviceReady,
        /// It is taken out.
        DeviceQuarantined,
    }
}

/// Where this event takes a job; `None` = not from here. States by their stage: an ended job is `ended`.
pub fn job(from: &str, event: JobEvent) -> Option<&'static str> {
    use JobEvent::*;
    Some(match (from, event) {
        ("held", JobHeld) => "held",
        ("held", JobQueued) => "queued",
        ("held" | "queued", JobEnded) => "ended",
        ("queued", JobPlaced) => "placed",
        ("placed", JobStarted) => "starting",
        ("starting", JobRan) => "running",
        ("placed" | "starting" | "running", JobRetried) => "held",
        ("placed" | "starting" | "running", JobEnded) => "ended",
        ("ended", JobRerun) => "queued",
        ("ended", JobReopened) => "held",
        _ => return None,
    })
}

/// Stage of a job state, as the table names it.
pub const fn job_stage(state: &JobState) -> &'static str {
    match state {
        JobState::Ended { .. } => "ended",
        other => other.name(),
    }
}

/// Where this event takes an attempt; `None` = not from here.
pub fn attempt(from: AttemptState, event: AttemptEvent) -> Option<AttemptState> {
    use AttemptEvent::*;
    use AttemptState::*;
    Some(match (from, event) {
        (Placed, AttemptStarted) => Starting,
        (Starting, AttemptRan) => Running,
        (Placed | Starting | Running, AttemptEnded) => Ended,
        _ => return None,
    })
}

/// Where this event takes a runner; `None` = not from here.
///
/// The agent may call before the site's report arrives, so registering is allowed from every state of making.
pub fn runner(from: &str, event: RunnerEvent) -> Option<&'static str> {
    use RunnerEvent::*;
    Some(match (from, event) {
        ("requested", RunnerCreating) => "creating",
        ("requested" | "creating", RunnerBooted) => "booting",
        ("requested" | "creating" | "booting", RunnerReady) => "ready",
        ("requested" | "creating" | "booting" | "ready", RunnerRegistered) => "registered",
        ("registered", RunnerBusy) => "busy",
        ("ready" | "registered" | "busy", RunnerLeaving) => "leaving",
        (
            "requested" | "creating" | "booting" | "ready" | "registered" | "busy" | "leaving",
            RunnerDrained,
        ) => "draining",
        ("draining" | "failed", RunnerDeleting) => "deleting",
        ("draining" | "deleting" | "failed" | "kept", RunnerDeleted) => "deleted",
        (
            "requested" | "creating" | "booting" | "ready" | "registered" | "busy" | "leaving" | "draining"
            | "deleting" | "kept",
            RunnerFailed,
        ) => "failed",
        (
            "requested" | "creating" | "booting" | "ready" | "registered" | "busy" | "leaving" | "draining",
            RunnerKept,
        ) => "kept",
        ("kept", RunnerDrained) => "draining",
        _ => return None,
    })
}

/// Names of all runner states, for tables.
pub const RUNNER_STATES: [&str; 12] = [
    "requested",
    "creating",
    "booting",
    "ready",
    "registered",
    "busy",
    "leaving",
    "draining",
    "deleting",
    "deleted",
    "failed",
    "kept",
];

/// Where this event takes a lease; `None` = not from here. No event of time ends a lease.
pub fn lease(from: LeaseState, event: LeaseEvent) -> Option<LeaseState> {
    use LeaseEvent::*;
    use LeaseState::*;
    Some(match (from, event) {
        (Claimed, LeaseHeld) => Held,
        (Claimed | Held, LeaseReleasing) => Releasing,
        (Releasing, LeaseEnded) => Ended,
        (Claimed | Held | Releasing, LeaseWrittenOff) => WrittenOff,
        _ => return None,
    })
}

/// Where this event takes a device; `None` = not from here.
pub fn device(from: &str, event: DeviceEvent) -> Option<&'static str> {
    use DeviceEvent::*;
    Some(match (from, event) {
        ("ready", DeviceLeased) => "leased",
        ("leased", DeviceResetting) => "resetting",
        ("resetting" | "leased", DeviceVerifying) => "verifying",
        ("leased" | "resetting" | "verifying" | "quarantined", DeviceReady) => "ready",
        ("ready" | "leased" | "resetting" | "verifying", DeviceQuarantined) => "quarantined",
        _ => return None,
    })
}

/// Where this event takes a demand; `None` = not from here.
///
/// The forge has the last word: whatever we decided, a job that some runner has is running, and one that is over is over.
pub fn demand(from: &str, event: DemandEvent) -> Option<&'static str> {
    use DemandEvent::*;
    Some(match (from, event) {
        ("waiting" | "held" | "refused", DemandUnread) => "unread",
        ("unread" | "held" | "refused" | "wanted", DemandWaits) => "waiting",
        ("unread" | "held" | "refused" | "wanted" | "launching" | "running", DemandHeld) => "held",
        // From wanted and launching: a grant or an approval was taken back.
        ("unread" | "held" | "refused" | "wanted" | "launching", DemandRefused) => "refused",
        // From running: the forge named another job as the one that its runner has.
        ("unread" | "held" | "refused" | "launching" | "running", DemandWanted) => "wanted",
        ("wanted", DemandLaunched) => "launching",
        ("unread" | "waiting" | "held" | "refused" | "wanted" | "launching", DemandTaken) => "running",
        ("running", DemandEnded) => "ended",
        ("unread" | "waiting" | "held" | "refused" | "wanted" | "launching" | "running", DemandWithdrawn) => {
            "withdrawn"
        }
        _ => return None,
    })
}

/// Where this event takes a registration; `None` = not from here.
pub fn registration(from: &str, event: RegistrationEvent) -> Option<&'static str> {
    use RegistrationEvent::*;
    Some(match (from, event) {
        ("asked" | "minted", RegistrationAsked) => "asked",
        ("asked", RegistrationMinted) => "minted",
        ("asked" | "minted", RegistrationLeaving) => "leaving",
        ("leaving", RegistrationKept) => "minted",
        // From minted: the forge says that its one job is over.
        ("asked" | "minted" | "leaving", RegistrationGone) => "gone",
        _ => return None,
    })
}

/// Stage of a device state, as the table names it.
pub const fn device_stage(state: &DeviceState) -> &'static str {
    state.name()
}

/// Stage of a runner state, as the table names it.
pub const fn runner_stage(state: &RunnerState) -> &'static str {
    state.name()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(states: &[&str], events: &[&str], next: impl Fn(&str, usize) -> Option<String>) -> String {
        let width = events.iter().map(|event| event.len()).max().unwrap_or(0);
        let mut text = format!("{:width$} ", "");
        for state in states {
            text.push_str(&format!("| {state:10} "));
        }
        text.push('\n');
        for (index, event) in events.iter().enumerate() {
            text.push_str(&format!("{event:width$} "));
            for state in states {
                let cell = next(state, index).unwrap_or_else(|| "-".to_owned());
                text.push_str(&format!("| {cell:10} "));
            }
            text.push('\n');
        }
        text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    fn names<E: Copy>(all: &[E], name: fn(E) -> &'static str) -> Vec<&'static str> {
        all.iter().map(|event| name(*event)).collect()
    }

    #[test]
    fn job_table() {
        let states = ["held", "queued", "placed", "starting", "running", "ended"];
        insta::assert_snapshot!(table(&states, &names(JobEvent::ALL, JobEvent::name), |state, event| {
            job(state, JobEvent::ALL[event]).map(str::to_owned)
        }));
    }

    #[test]
    fn attempt_table() {
        let states = AttemptState::ALL.map(AttemptState::name);
        insta::assert_snapshot!(table(
            &states,
            &names(AttemptEvent::ALL, AttemptEvent::name),
            |state, event| {
                let from = AttemptState::ALL.into_iter().find(|s| s.name() == state)?;
                attempt(from, AttemptEvent::ALL[event]).map(|to| to.name().to_owned())
            }
        ));
    }

    #[test]
    fn runner_table() {
        insta::assert_snapshot!(table(
            &RUNNER_STATES,
            &names(RunnerEvent::ALL, RunnerEvent::name),
            |state, event| { runner(state, RunnerEvent::ALL[event]).map(str::to_owned) }
        ));
    }

    #[test]
    fn demand_table() {
        insta::assert_snapshot!(table(
            &forgeyard_model::demand::DEMAND_STATES,
            &names(DemandEvent::ALL, DemandEvent::name),
            |state, event| { demand(state, DemandEvent::ALL[event]).map(str::to_owned) }
        ));
    }

    #[test]
    fn registration_table() {
        insta::assert_snapshot!(table(
            &forgeyard_model::registration::REGISTRATION_STATES,
            &names(RegistrationEvent::ALL, RegistrationEvent::name),
            |state, event| { registration(state, RegistrationEvent::ALL[event]).map(str::to_owned) }
        ));
    }

    #[test]
    fn lease_table() {
        let states = LeaseState::ALL.map(LeaseState::name);
        insta::assert_snapshot!(table(&states, &names(LeaseEvent::ALL, LeaseEvent::name), |state, event| {
            let from = LeaseState::ALL.into_iter().find(|s| s.name() == state)?;
            lease(from, LeaseEvent::ALL[event]).map(|to| to.name().to_owned())
        }));
    }

    #[test]
    fn device_table() {
        let states = ["ready", "leased", "resetting", "verifying", "quarantined"];
        insta::assert_snapshot!(table(
            &states,
            &names(DeviceEvent::ALL, DeviceEvent::name),
            |state, event| { device(state, DeviceEvent::ALL[event]).map(str::to_owned) }
        ));
    }
}
