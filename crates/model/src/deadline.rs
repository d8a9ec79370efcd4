//! Every state that is not a resting state has a deadline, and all of them are in this one table. A breach is an
//! input like any other.

use crate::attempt::AttemptState;
use crate::demand::DemandState;
use crate::device::DeviceState;
use crate::environment::EnvironmentState;
use crate::job::{Hold, JobState};
use crate::lease::LeaseState;
use crate::pipeline::PipelineState;
use crate::runner::RunnerState;
use std::time::Duration;

const SECOND: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// The time that an attempt's time limit is exceeded before the farm itself steps in; the supervisor is first.
pub const GRACE: Duration = Duration::from_secs(90);

/// An agent that has not spoken for this long is lost.
pub const AGENT_SILENCE: Duration = Duration::from_secs(45);

/// A site that has not spoken for this long gets no new work.
pub const SITE_SILENCE: Duration = Duration::from_secs(60);

fn seconds(count: u64) -> Option<Duration> {
    Some(Duration::from_secs(count))
}

/// How long a job may stay in this state. A running job is bounded by its attempt.
pub fn job(state: &JobState) -> Option<Duration> {
    match state {
        JobState::Held(Hold::Source) => seconds(30 * MINUTE),
        JobState::Held(Hold::Inspection) => seconds(10 * MINUTE),
        JobState::Held(Hold::Approval { .. }) => seconds(14 * DAY),
        // Bounded by the builds that it waits for.
        JobState::Held(Hold::Artifacts { .. }) => None,
        // Its own `until` is the deadline.
        JobState::Held(Hold::Retry { .. }) => None,
        JobState::Queued => seconds(7 * DAY),
        // Bounded by the attempt.
        JobState::Placed { .. } | JobState::Starting { .. } | JobState::Running { .. } => None,
        JobState::Ended { .. } => None,
    }
}

/// How long an attempt may stay in this state; `limit` is its flavor's time limit.
pub fn attempt(state: AttemptState, limit: Duration) -> Option<Duration> {
    match state {
        AttemptState::Placed => seconds(5 * MINUTE),
        AttemptState::Starting => seconds(15 * MINUTE),
        AttemptState::Running => Some(limit.saturating_add(GRACE)),
        AttemptState::Ended => None,
    }
}

/// The same for an attempt that is a runner of a forge. A forge takes a job away from a runner that it waits for in vain
/// after five minutes (ARC 4602), so making the machine and registering it must together take less.
pub fn forge_attempt(state: AttemptState, limit: Duration) -> Option<Duration> {
    match state {
        AttemptState::Placed => seconds(3 * MINUTE),
        AttemptState::Starting => seconds(90),
        AttemptState::Running | AttemptState::Ended => attempt(state, limit),
    }
}

/// A registered runner that has taken nothing for this long is asked whether it is busy, and if not, forgotten. Its
/// configuration is good for five minutes.
pub const RUNNER_IDLE: Duration = Duration::from_secs(310);

/// A runner whose job the forge calls completed ends by itself within this time, or is ended.
pub const RUNNER_LEAVES: Duration = Duration::from_secs(5 * MINUTE);

/// How long a demand may stay in this state before the forge is asked what became of its job. A breach moves nothing by
/// itself, but for a pause, which ends by it.
pub fn demand(state: &DemandState) -> Option<Duration> {
    match state {
        DemandState::Unread => seconds(30 * MINUTE),
        DemandState::Waiting => seconds(10 * MINUTE),
        DemandState::Held { .. } => seconds(6 * HOUR),
        DemandState::Wanted | DemandState::Launching => seconds(HOUR),
        DemandState::Running => seconds(6 * HOUR),
        DemandState::Refused { .. } | DemandState::Ended | DemandState::Withdrawn { .. } => None,
    }
}

/// Longest time between two such questions.
pub const DEMAND_ASKED_AGAIN: Duration = Duration::from_secs(DAY);

/// How long a runner may stay in this state; `limit` is its flavor's time limit.
pub fn runner(state: &RunnerState, limit: Duration) -> Option<Duration> {
    match state {
        RunnerState::Requested => seconds(2 * MINUTE),
        RunnerState::Creating | RunnerState::Booting => seconds(5 * MINUTE),
        RunnerState::Ready | RunnerState::Registered => seconds(15 * MINUTE),
        RunnerState::Busy => {
            Some(limit.saturating_add(GRACE).saturating_add(Duration::from_secs(20 * MINUTE)))
        }
        // A breach raises an alarm and keeps the machine: the forge may still hand it a job.
        RunnerState::Leaving => seconds(10 * MINUTE),
        RunnerState::Draining => seconds(30 * SECOND),
        RunnerState::Deleting | RunnerState::Failed { .. } => seconds(5 * MINUTE),
        RunnerState::Kept { .. } => seconds(2 * DAY),
        RunnerState::Deleted => None,
    }
}

/// How long a machine waits for work before a fresh one takes its place.
pub const WARM_LASTS: Duration = Duration::from_secs(6 * HOUR);

/// The same for a machine that waits for work.
pub fn warm_runner(state: &RunnerState, limit: Duration) -> Option<Duration> {
    match state {
        RunnerState::Ready => Some(WARM_LASTS),
        other => runner(other, limit),
    }
}

/// How long a pool starts no machine, after its breaker opened this often in a row.
pub fn breaker_pause(trips: u32) -> Duration {
    Duration::from_secs((MINUTE << trips.saturating_sub(1).min(8)).min(30 * MINUTE))
}

/// A machine that is started to see whether a pool works again counts as failed after this time.
pub const BREAKER_PROBE: Duration = Duration::from_secs(8 * MINUTE);

/// How long a lease may stay in this state. A breach never ends it: it raises an alarm and keeps the devices.
pub fn lease(state: LeaseState, limit: Duration) -> Option<Duration> {
    match state {
        LeaseState::Claimed => seconds(5 * MINUTE),
        LeaseState::Held => Some(limit.saturating_add(Duration::from_secs(30 * MINUTE))),
        LeaseState::Releasing => seconds(5 * MINUTE),
        LeaseState::Ended | LeaseState::WrittenOff => None,
    }
}

/// How long a device may stay in this state.
pub fn device(state: &DeviceState) -> Option<Duration> {
    match state {
        DeviceState::Resetting { .. } | DeviceState::Verifying { .. } => seconds(5 * MINUTE),
        // Bounded by the lease.
        DeviceState::Leased { .. } => None,
        DeviceState::Ready | DeviceState::Quarantined { .. } => None,
    }
}

/// How long a pipeline may stay in this state.
pub fn pipeline(state: &PipelineState) -> Option<Duration> {
    match state {
        PipelineState::Running => seconds(7 * DAY),
        PipelineState::Promoting => seconds(30 * MINUTE),
        PipelineState::Environment => seconds(2 * HOUR),
        PipelineState::Succeeded | PipelineState::Failed { .. } | PipelineState::Canceled { .. } => None,
    }
}

/// How long an environment may stay in this state.
pub fn environment(state: &EnvironmentState) -> Option<Duration> {
    match state {
        EnvironmentState::Requested => seconds(2 * HOUR),
        EnvironmentState::Ready { .. } | EnvironmentState::Failed { .. } => None,
    }
}
