//! Whether it is worth asking. Pure.

use std::time::{Duration, Instant};

/// So many failures in a row open it.
const FAILURES: u32 = 3;
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);

/// Closed while requests succeed; open for a while after a few failures in a row, and for longer if it goes on.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    until: Option<Instant>,
    wait: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 0, until: None, wait: FIRST }
    }
}

impl Breaker {
    /// Whether clients may ask.
    pub(super) fn closed(&self) -> bool {
        self.until.is_none()
    }

    /// Whether the background may look.
    pub(super) fn may_look(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// It answered.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// It did not.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        // what was under way when it opened says nothing new
        if self.failures >= FAILURES && self.may_look(now) {
            self.until = Some(now + self.wait);
            self.wait = (self.wait * 2).min(LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_three_failures_waits_longer_each_time_and_closes_with_an_answer() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        breaker.failed(now);
        breaker.failed(now);
        assert!(breaker.closed());
        for seconds in [5, 10, 20, 40, 60, 60] {
            breaker.failed(now);
            breaker.failed(now);
            assert!(!breaker.closed() && !breaker.may_look(now + Duration::from_secs(seconds - 1)));
            now += Duration::from_secs(seconds);
            assert!(breaker.may_look(now) && !breaker.closed());
        }
        breaker.answered();
        breaker.failed(now);
        assert!(breaker.closed());
    }
}
