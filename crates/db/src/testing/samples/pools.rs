//! Sample rows of pools and of machines that wait for work.

use super::{AWKWARD, Samples, parsed, pick, reason};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::ledger::Sums;
use forgeyard_model::pool::{Breaker, Bucket, LaunchError, PoolDrain, PoolRecord, PoolSample, SiteLaunches};
use forgeyard_model::runner::{Runner, RunnerWork};
use forgeyard_model::site::Site;
use forgeyard_model::{AttemptId, Explanation, SiteId};
use std::collections::BTreeMap;

impl Samples {
    /// A machine that waits for work, with a lease of a device that it once held.
    pub(super) fn waits(&mut self, site: &Site, turn: u64) -> (Runner, Lease) {
        let id: AttemptId = self.id();
        let mut runner = self.runner(site, id);
        let lease = Lease {
            id: self.id(),
            site: site.id,
            attempt: None,
            runner: runner.id,
            devices: Vec::new(),
            state: LeaseState::Claimed,
            claimed_at: self.at(),
            held_at: None,
            ended_at: None,
            since: self.at(),
            deadline: Some(self.at()),
            generation: 1,
        };
        let nonce = pick(turn, vec![None, Some(AWKWARD.to_owned())]);
        runner.work = RunnerWork::Warm { nonce, lease: Some(lease.id) };
        (runner, lease)
    }

    /// What is remembered of a pool.
    pub fn pool(&mut self, turn: u64) -> PoolRecord {
        let (until, trips, runner) = (self.at(), 3, self.id());
        let number = self.number();
        PoolRecord {
            drain: number.is_multiple_of(2).then(|| PoolDrain { since: until, by: AWKWARD.to_owned() }),
            bucket: number.is_multiple_of(3).then_some(Bucket { millis: 1500, at: until }),
            breaker: pick(
                turn,
                vec![
                    Breaker::Closed { failures: 2 },
                    Breaker::Open { until, trips },
                    Breaker::HalfOpen { trips },
                    Breaker::Probing { runner, until, trips },
                ],
            ),
            last_error: Some(LaunchError { at: until, runner, reason: reason("runner.not_made") }),
            sites: BTreeMap::from([(
                self.id::<SiteId>(),
                SiteLaunches { breaker: Breaker::HalfOpen { trips: u32::MAX }, last_error: None },
            )]),
            warm_lacks: Some(Explanation::new("queue.host_full", AWKWARD)),
            warm_use: BTreeMap::from([(
                "2026-11".to_owned(),
                Sums { jobs: 1, runner_micros: u64::MAX, gpu_micros: 0, money: 7 },
            )]),
            used_at: Some(until),
            samples: vec![PoolSample { at: until, busy: 1, warm: 2, waiting: 3 }],
            generation: 1,
            ..PoolRecord::new(parsed(&format!("pool-{number:x}-{turn}")))
        }
    }
}
