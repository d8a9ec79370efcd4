//! Whether and how a job is tried again.

use forgeyard_model::verdict::{Outcome, RetryPolicy, Verdict};
use std::time::Duration;

/// How the next try is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backoff {
    /// How long to wait first.
    pub wait: Duration,
    /// Not on the same host, when there is another.
    pub avoid_host: bool,
    /// Take the devices out of service.
    pub quarantine_device: bool,
    /// With a larger flavor, or fewer parallel jobs.
    pub more_memory: bool,
}

/// Waits of policy `RB`, in seconds; their number is the most tries.
const WAITS: [u64; 5] = [60, 180, 540, 540, 540];
/// Waits after an attempt was lost, in seconds; their number is the most tries.
const LOST_WAITS: [u64; 8] = [1, 2, 5, 15, 60, 180, 300, 300];
/// Tries after a device was found faulty. They count against no package, but a farm of faulty devices must end.
const DEVICE_TRIES: u32 = 3;

/// The next try after `retries` retries so far; `None` = the verdict stands.
pub fn retry(verdict: &Verdict, retries: u32) -> Option<Backoff> {
    match verdict.outcome {
        Outcome::Succeeded | Outcome::Canceled => return None,
        Outcome::Failed | Outcome::TimedOut | Outcome::Lost => {}
    }
    // A loss is our fault and says nothing of the work: a farm that is killed again and again still brings it home.
    if verdict.outcome == Outcome::Lost
        && matches!(verdict.retry, RetryPolicy::R1 | RetryPolicy::R2 | RetryPolicy::RB)
    {
        let seconds = LOST_WAITS.get(usize::try_from(retries).ok()?)?;
        let avoid_host = verdict.retry == RetryPolicy::R2;
        return Some(Backoff { wait: Duration::from_secs(*seconds), avoid_host, ..Backoff::default() });
    }
    let once = |next: Backoff| (retries == 0).then_some(next);
    match verdict.retry {
        // A diagnostic run on another architecture is no retry: it never turns red into green.
        RetryPolicy::R0 | RetryPolicy::R3 => None,
        RetryPolicy::R1 => once(Backoff::default()),
        RetryPolicy::R2 | RetryPolicy::RE => once(Backoff { avoid_host: true, ..Backoff::default() }),
        RetryPolicy::RM => once(Backoff { more_memory: true, ..Backoff::default() }),
        RetryPolicy::RB => {
            let seconds = WAITS.get(usize::try_from(retries).ok()?)?;
            Some(Backoff { wait: Duration::from_secs(*seconds), ..Backoff::default() })
        }
        RetryPolicy::RQ => (retries < DEVICE_TRIES).then_some(Backoff {
            avoid_host: true,
            quarantine_device: true,
            ..Backoff::default()
        }),
    }
}
