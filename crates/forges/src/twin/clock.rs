//! The clock of the twin: it stands still until somebody moves it.

use forgeyard_model::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A clock that tests move by hand. Copies of it show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<watch::Sender<Timestamp>>,
}

impl ManualClock {
    /// A clock that shows this time.
    pub fn new(now: Timestamp) -> Self {
        Self { now: Arc::new(watch::Sender::new(now)) }
    }

    /// What it shows.
    pub fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    /// Moves it forward and wakes those who wait for it.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = now.plus(by));
    }

    /// Moves it to this time; it never goes back.
    pub fn advance_to(&self, to: Timestamp) {
        self.now.send_modify(|now| *now = to.max(*now));
    }

    /// A receiver that hears of each move.
    pub fn changes(&self) -> watch::Receiver<Timestamp> {
        self.now.subscribe()
    }
}

/// An instant as GitHub writes it: `2026-01-31T12:00:00Z`.
pub fn iso(at: Timestamp) -> String {
    let text = at.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shows_the_same_time_and_it_never_goes_back() {
        let clock = ManualClock::new(Timestamp::from_micros(1_000_000));
        let copy = clock.clone();
        clock.advance(Duration::from_secs(2));
        assert_eq!(copy.now(), Timestamp::from_micros(3_000_000));
        copy.advance_to(Timestamp::from_micros(5));
        assert_eq!(clock.now(), Timestamp::from_micros(3_000_000));
        assert_eq!(iso(clock.now()), "1970-01-01T00:00:03Z");
    }
}
