//! Whether the cache can be asked: open or closed like a fuse. Pure but for its atomics.
//!
//! One answer that does not come in time, or no connection, and nobody is asked any more; three errors in a row of the cache
//! itself do the same. Then it is asked by nobody but a probe, until that is answered. So a cache that hangs costs a build the
//! time of one answer, and not that of one for each file.
//!
//! The first probe comes soon, for a cache that was only started anew. A cache that is used again and fails again is left alone four
//! times as long each time, so that one which answers probes and nothing else does not slow a build.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Errors in a row that count as trouble.
const ERRORS: u32 = 3;
/// Until the first probe, at least.
const SOON: Duration = Duration::from_millis(500);
/// Until the first probe, at most.
const LATE: Duration = Duration::from_secs(60);
/// A cache that was well for so many times the last pause starts anew with a short one.
const TRUST: u32 = 10;
/// Trouble that is older is none of a cache that is only started anew.
const PASSES: Duration = Duration::from_secs(5);

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Went {
    /// The cache answered with an error of its own.
    Error,
    /// There was no answer.
    Silent,
}

/// The last trouble.
#[derive(Debug)]
struct Trouble {
    why: String,
    began: Instant,
    ended: Option<Instant>,
    pause: Duration,
}

/// The fuse.
#[derive(Debug, Default)]
pub(crate) struct Health {
    broken: AtomicBool,
    errors: AtomicU32,
    breaks: AtomicU64,
    last: Mutex<Option<Trouble>>,
}

impl Health {
    fn last(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cache is to be left alone.
    pub(crate) fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Whether it has been in trouble for so long that it is not worth waiting for.
    pub(crate) fn lasts(&self, now: Instant) -> bool {
        let last = self.last();
        self.broken() && last.as_ref().is_some_and(|last| now.saturating_duration_since(last.began) > PASSES)
    }

    /// How often there was trouble.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// What the last trouble was.
    pub(crate) fn why(&self) -> Option<String> {
        self.last().as_ref().map(|last| last.why.clone())
    }

    /// There was an answer, whatever it says.
    pub(crate) fn well(&self) {
        self.errors.store(0, Ordering::Relaxed);
    }

    /// Takes note of trouble. When it broke just now a probe has to be started, after the time that is answered.
    pub(crate) fn note(&self, went: Went, why: &str, now: Instant) -> Option<Duration> {
        let trouble = match went {
            Went::Error => self.errors.fetch_add(1, Ordering::Relaxed) + 1 >= ERRORS,
            Went::Silent => true,
        };
        if !trouble {
            return None;
        }
        let mut last = self.last();
        if self.broken.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.breaks.fetch_add(1, Ordering::Relaxed);
        let pause = match &*last {
            Some(Trouble { ended: Some(ended), pause, .. })
                if now.saturating_duration_since(*ended) < *pause * TRUST =>
            {
                LATE.min(*pause * 4)
            }
            _ => SOON,
        };
        *last = Some(Trouble { why: why.to_owned(), began: now, ended: None, pause });
        Some(pause)
    }

    /// The probe was answered.
    pub(crate) fn mend(&self, now: Instant) {
        let mut last = self.last();
        if let Some(last) = &mut *last {
            last.ended = Some(now);
        }
        self.errors.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_breaks_at_once_errors_only_in_a_row_and_one_probe_is_started() {
        let (health, now) = (Health::default(), Instant::now());
        let note = |went| health.note(went, "it says 500", now).is_some();
        assert!(!note(Went::Error) && !note(Went::Error));
        health.well();
        assert!(!note(Went::Error) && !note(Went::Error) && !health.broken());
        assert!(note(Went::Error) && health.broken());
        assert!(!note(Went::Silent), "it is broken already");
        health.mend(now);
        assert!(!health.broken() && note(Went::Silent));
        assert_eq!(health.breaks(), 2);
        assert_eq!(health.why().as_deref(), Some("it says 500"));
    }

    #[test]
    fn cache_that_fails_again_soon_is_left_alone_for_longer_and_longer() {
        let health = Health::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let pause = health.note(Went::Silent, "", now).unwrap();
            pauses.push(pause.as_millis());
            now += pause;
            health.mend(now);
            now += Duration::from_secs(2);
        }
        assert_eq!(pauses, [500, 2000, 8000, 32_000, 60_000, 60_000]);
        now += LATE * TRUST;
        assert_eq!(health.note(Went::Silent, "", now), Some(SOON), "it was well for long");
    }

    #[test]
    fn trouble_that_may_pass_is_told_from_one_that_lasts() {
        let (health, now) = (Health::default(), Instant::now());
        assert!(!health.lasts(now + LATE), "there is none");
        health.note(Went::Silent, "", now);
        assert!(!health.lasts(now + PASSES) && health.lasts(now + PASSES + SOON));
        health.mend(now + LATE);
        assert!(!health.lasts(now + LATE));
    }
}
