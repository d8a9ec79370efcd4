//! How long to wait before asking again: twice as long each time, up to a limit.

use std::time::Duration;

/// Waiting times of a series of tries.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Begins with `first` and never waits longer than `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// The next waiting time.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = self.next.saturating_mul(2).min(self.most);
        wait
    }

    /// Begins again after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Sleeps for the next waiting time.
    pub async fn sleep(&mut self) {
        let wait = self.next_wait();
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_doubles_up_to_the_limit_and_begins_again_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let waits: Vec<_> = (0..4).map(|_| backoff.next_wait().as_millis()).collect();
        assert_eq!(waits, [100, 200, 350, 350]);
        backoff.reset();
        assert_eq!(backoff.next_wait().as_millis(), 100);
    }
}
