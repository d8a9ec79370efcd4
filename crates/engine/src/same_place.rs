//! Whether two versions of a row stand in the same places of the indexes of a [`Farm`](crate::farm::Farm).
//!
//! Most writes change nothing there: an agent gives a sign of life, a job waits for another reason, a demand was seen by one
//! more source. Each function here compares all that the index of its row reads, and may say `false` too often, never `true`
//! too often: the desk of the tests of demand holds the indexes against those that a load makes after every step.

use forgeyard_model::attempt::Attempt;
use forgeyard_model::demand::Demand;
use forgeyard_model::job::{Hold, Job, JobState};

pub(crate) fn attempts(a: &Attempt, b: &Attempt) -> bool {
    let live = a.state.live();
    a.id == b.id
        && a.job == b.job
        && a.owner == b.owner
        && a.placed_at == b.placed_at
        && live == b.state.live()
        && (!live || (a.account == b.account && a.stake == b.stake))
}

pub(crate) fn jobs(a: &Job, b: &Job) -> bool {
    let devices = |job: &Job| job.spec.as_ref().and_then(|spec| spec.gpu.as_ref()).map(|gpu| gpu.count);
    let held = |job: &Job| matches!(job.state, JobState::Held(Hold::Retry { .. }));
    let states = match (&a.state, &b.state) {
        (JobState::Queued, JobState::Queued) => {
            a.queued_at == b.queued_at
                && a.created_at == b.created_at
                && a.account == b.account
                && devices(a) == devices(b)
        }
        (JobState::Queued, _) | (_, JobState::Queued) => false,
        _ => !held(a) && !held(b),
    };
    let cancelling = |job: &Job| job.cancel_requested_at.is_some() && !job.state.ended();
    states && a.id == b.id && a.owner == b.owner && cancelling(a) == cancelling(b)
}

pub(crate) fn demands(a: &Demand, b: &Demand) -> bool {
    let ended = a.state.ended();
    let times = if ended { (a.ended_at, a.since) == (b.ended_at, b.since) } else { a.deadline == b.deadline };
    times
        && ended == b.state.ended()
        && a.id == b.id
        && a.job == b.job
        && a.run == b.run
        && a.launch == b.launch
        && a.scale_set == b.scale_set
        && a.repository.id == b.repository.id
        && a.repository.forge == b.repository.forge
        && a.head_sha == b.head_sha
}
