//! The one place where the control plane reads the time, and where its loops wait for it.

use forgeyard_model::Timestamp;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A wait that ends by itself.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that can be replaced in tests.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    sleep: Arc<dyn Fn(Duration) -> Rest + Send + Sync>,
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self::new(|| {
            #[allow(clippy::disallowed_methods, reason = "this is the clock that is passed in")]
            let now = std::time::SystemTime::now();
            let micros = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros());
            Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
        })
    }

    /// A clock of the caller's. Loops wait by the time of this machine.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::manual(now, |pause| Box::pin(tokio::time::sleep(pause)))
    }

    /// The same, and loops wait as the caller says: a simulation plays hours in seconds.
    pub fn manual(
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        sleep: impl Fn(Duration) -> Rest + Send + Sync + 'static,
    ) -> Self {
        Self { now: Arc::new(now), sleep: Arc::new(sleep) }
    }

    /// Waits for this long.
    pub fn sleep(&self, pause: Duration) -> Rest {
        (self.sleep)(pause)
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }
}
