//! How often something failed and how long it is left alone. Pure: time is the span since the site started.
//!
//! Invariants: a machine that cannot be made is tried [`CREATE_TRIES`] times and then given up; a provider that fails
//! is asked ever more rarely, whichever machine the asking is for; a removal is never given up.

use crate::plan::Waiting;
use forgeyard_model::name::ProviderName;
use forgeyard_model::{Explanation, LeaseId, RunnerId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often the making of one machine is tried.
pub const CREATE_TRIES: u32 = 3;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Failures in a row of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failures {
    count: u32,
    until: Duration,
    last: Explanation,
}

/// The pause after this many failures in a row.
pub fn pause(failures: u32) -> Duration {
    let doubled = failures.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doubled).min(LONGEST_PAUSE)
}

/// All failures that are not over.
#[derive(Debug, Clone, Default)]
pub struct Tries {
    creating: BTreeMap<RunnerId, Failures>,
    removing: BTreeMap<RunnerId, Failures>,
    leases: BTreeMap<LeaseId, Failures>,
    providers: BTreeMap<ProviderName, Failures>,
}

fn add<K: Ord>(to: &mut BTreeMap<K, Failures>, key: K, why: Explanation, now: Duration) -> u32 {
    let count = to.get(&key).map_or(0, |failures| failures.count).saturating_add(1);
    to.insert(key, Failures { count, until: now.saturating_add(pause(count)), last: why });
    count
}

impl Tries {
    /// A machine was not made. Answers whether to give up.
    pub fn not_made(&mut self, runner: RunnerId, provider: ProviderName, why: Explanation, now: Duration) -> bool {
        add(&mut self.providers, provider, why.clone(), now);
        let give_up = add(&mut self.creating, runner, why, now) >= CREATE_TRIES;
        if give_up {
            self.creating.remove(&runner);
        }
        give_up
    }

    /// A machine was made.
    pub fn made(&mut self, runner: RunnerId, provider: &ProviderName) {
        self.creating.remove(&runner);
        self.providers.remove(provider);
    }

    /// A machine was not removed.
    pub fn not_removed(&mut self, runner: RunnerId, why: Explanation, now: Duration) {
        add(&mut self.removing, runner, why, now);
    }

    /// A machine is gone or needs no more work.
    pub fn settled(&mut self, runner: RunnerId) {
        self.creating.remove(&runner);
        self.removing.remove(&runner);
    }

    /// A step of ending a lease failed.
    pub fn not_ended(&mut self, lease: LeaseId, why: Explanation, now: Duration) {
        add(&mut self.leases, lease, why, now);
    }

    /// A lease needs no more work.
    pub fn ended(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
    }

    /// Why the last removal of a machine failed.
    pub fn removal_failure(&self, runner: RunnerId) -> Option<&Explanation> {
        self.removing.get(&runner).map(|failures| &failures.last)
    }

    /// What is left alone now.
    pub fn waiting(&self, now: Duration) -> Waiting {
        fn paused<K: Ord + Clone>(of: &BTreeMap<K, Failures>, now: Duration) -> impl Iterator<Item = K> {
            of.iter().filter(move |(_, failures)| failures.until > now).map(|(key, _)| key.clone())
        }
        Waiting {
            runners: paused(&self.removing, now).collect(),
            leases: paused(&self.leases, now).collect(),
            // A machine's own pause is never longer than its provider's.
            providers: paused(&self.providers, now).collect(),
        }
    }

    /// When the next pause is over.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        let removing = self.removing.values();
        let all = removing.chain(self.leases.values()).chain(self.providers.values());
        all.map(|failures| failures.until).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::Id as _;

    fn why() -> Explanation {
        Explanation::new("x", "y")
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds: Vec<u64> = [1, 2, 3, 4, 7, 40].map(|count| pause(count).as_secs()).to_vec();
        assert_eq!(seconds, [1, 2, 4, 8, 60, 60]);
    }

    /// Public report: a runner controller asked for the same instance 3,071 times in a day.
    #[test]
    fn a_provider_that_fails_for_a_day_is_asked_at_most_once_a_minute() {
        let (mut tries, provider): (_, ProviderName) = (Tries::default(), "sandbox".parse().unwrap());
        let (mut now, mut asked, mut given_up) = (Duration::ZERO, 0, 0);
        while now < Duration::from_secs(86_400) {
            if tries.waiting(now).providers.is_empty() {
                asked += 1;
                given_up += u32::from(tries.not_made(RunnerId::from_bits(given_up.into()), provider.clone(), why(), now));
            }
            now = tries.next(now).unwrap_or(now + Duration::from_secs(1));
        }
        assert!(asked < 1_450, "{asked}");
        assert!(given_up * CREATE_TRIES <= asked);
    }

    #[test]
    fn success_ends_the_pause_and_removal_is_never_given_up() {
        let (mut tries, provider): (_, ProviderName) = (Tries::default(), "sandbox".parse().unwrap());
        let runner = RunnerId::from_bits(1);
        assert!(!tries.not_made(runner, provider.clone(), why(), Duration::ZERO));
        tries.made(runner, &provider);
        assert_eq!(tries.waiting(Duration::ZERO), Waiting::default());
        for _ in 0..100 {
            tries.not_removed(runner, why(), Duration::ZERO);
        }
        assert_eq!(tries.next(Duration::ZERO), Some(LONGEST_PAUSE));
        assert!(tries.waiting(LONGEST_PAUSE).runners.is_empty());
    }
}
