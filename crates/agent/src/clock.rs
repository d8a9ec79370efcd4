//! The one place of the agent that reads clocks.

use forgeyard_model::Timestamp;

/// The time now.
#[allow(clippy::disallowed_methods, reason = "the agent's only clock")]
pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Microseconds since boot, as the kernel's log counts them; 0 when they cannot be read.
pub(crate) fn uptime_micros() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: f64 = text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default();
    (seconds * 1e6) as u64
}
