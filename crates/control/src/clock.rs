//! The one place where the control plane reads the time.

use forgeyard_model::Timestamp;
use std::sync::Arc;

/// A clock that can be replaced in tests.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self(Arc::new(|| {
            #[allow(clippy::disallowed_methods, reason = "this is the clock that is passed in")]
            let now = std::time::SystemTime::now();
            let micros = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros());
            Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
        }))
    }

    /// A clock of the caller's.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}
