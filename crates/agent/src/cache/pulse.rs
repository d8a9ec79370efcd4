//! Signs of life of the cache: any bytes that it sent, took, or answered to a small question.
//!
//! One slow answer says little: an entry may come from far away, or be large. A cache that for half a second neither sent nor took
//! anything, for nobody, is asked something small, and one that does not answer that either hangs. So a cache that hangs is known
//! within a second, and one that is slow has the time of an answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// Without a sign of life for so long, the cache is asked.
const SILENCE: Duration = Duration::from_millis(500);

/// When the cache last showed a sign of life.
#[derive(Debug)]
pub(super) struct Pulse {
    start: Instant,
    /// Milliseconds since the start.
    last: AtomicU64,
    asks: Mutex<()>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0), asks: Mutex::default() }
    }
}

impl Pulse {
    /// There was one.
    pub(super) fn beat(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Whether there was one just now.
    pub(super) fn felt(&self) -> bool {
        self.last.load(Ordering::Relaxed) > 0 && self.quiet(self.start).is_some()
    }

    /// How long it may still be quiet, for who waits since then; none when it was quiet for too long.
    pub(super) fn quiet(&self, begun: Instant) -> Option<Duration> {
        let last = self.start + Duration::from_millis(self.last.load(Ordering::Relaxed));
        SILENCE.checked_sub(last.max(begun).elapsed()).filter(|left| !left.is_zero())
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
