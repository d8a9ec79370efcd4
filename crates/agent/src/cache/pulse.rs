//! Signs of life of the cache: any bytes that it sent, took, or answered to a small question.
//!
//! One slow answer says little: an entry may come from far away, or be large. A cache that for a while neither sent nor took anything,
//! for nobody, is asked something small, and one that does not answer that in the same while hangs. The while is eight times
//! what an answer took lately (a timeout of TCP is made so too), between a quarter and half a second: on the same network a cache that hangs is
//! known in half a second, from the other end of the world in one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// Without a sign of life for so long at least the cache is not asked. A machine that is busy with a build delays answers, too.
const SHORTEST: Duration = Duration::from_millis(250);
/// After so long it is asked in any case.
const LONGEST: Duration = Duration::from_millis(500);
/// How many times the usual time of an answer makes a silence.
const TIMES: u32 = 8;

/// When the cache last showed a sign of life.
#[derive(Debug)]
pub(super) struct Pulse {
    start: Instant,
    /// Milliseconds since the start.
    last: AtomicU64,
    /// Microseconds that answers took, the slowest of late; none was answered when it is 0.
    usual: AtomicU64,
    asks: Mutex<()>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            usual: AtomicU64::new(0),
            asks: Mutex::default(),
        }
    }
}

impl Pulse {
    /// There was one.
    pub(super) fn beat(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// An answer began after this time.
    pub(super) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        // what was slow once is forgotten over some dozen answers
        let slowest = |usual: u64| Some(time.max(usual - usual / 16));
        let _ = self.usual.fetch_update(Ordering::Relaxed, Ordering::Relaxed, slowest);
        self.beat();
    }

    /// How long it has to be quiet, and how long a small question may take.
    pub(super) fn patience(&self) -> Duration {
        match self.usual.load(Ordering::Relaxed) {
            0 => LONGEST,
            usual => (Duration::from_micros(usual) * TIMES).clamp(SHORTEST, LONGEST),
        }
    }

    /// Whether there was one just now.
    pub(super) fn felt(&self) -> bool {
        self.last.load(Ordering::Relaxed) > 0 && self.quiet(self.start).is_some()
    }

    /// How long it may still be quiet, for who waits since then; none when it was quiet for too long.
    pub(super) fn quiet(&self, begun: Instant) -> Option<Duration> {
        let last = self.start + Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.patience().checked_sub(last.max(begun).elapsed()).filter(|left| !left.is_zero())
    }

    /// Waits until it was quiet for too long.
    pub(super) async fn silence(&self, begun: Instant) {
        while let Some(left) = self.quiet(begun) {
            tokio::time::sleep(left).await;
        }
    }

    /// Waits until nobody else asks the cache.
    pub(super) async fn asks(&self) -> MutexGuard<'_, ()> {
        self.asks.lock().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_as_long_as_answers_usually_take_times_eight_within_bounds() {
        let pulse = Pulse::default();
        assert_eq!(pulse.patience(), LONGEST, "nothing is known");
        pulse.took(Duration::from_millis(1));
        assert_eq!(pulse.patience(), SHORTEST);
        pulse.took(Duration::from_millis(40));
        assert_eq!(pulse.patience(), Duration::from_millis(320));
        pulse.took(Duration::MAX);
        assert_eq!(pulse.patience(), LONGEST);
        let near = (1..2000).find(|_| {
            pulse.took(Duration::from_millis(1));
            pulse.patience() == SHORTEST
        });
        assert!(near.is_some(), "it is never forgotten");
    }
}
