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
/// Between two probes, at most.
const PROBE: Duration = Duration::from_secs(5);
/// Trouble that is older is none of a cache that is only started anew.
const PASSES: Duration = Duration::from_millis(1500);

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Went {
    /// The cache answered with an error of its own.
    Error,
    /// There was no answer.
    Silent,
    /// There was no connection, or it broke.
    Gone,
}

/// The last trouble.
#[derive(Debug)]
struct Trouble {
    went: Went,
    why: String,
    began: Instant,
    ended: Option<Instant>,
    pause: Duration,
}

/// The fuse.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether it ever was well.
    known: AtomicBool,
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

    /// Whether it is worth waiting for: it was well before, the trouble is young, and it does not hang.
    pub(crate) fn passes(&self, now: Instant) -> bool {
        let last = self.last();
        let young = |last: &Trouble| now.saturating_duration_since(last.began) < PASSES;
        let may = last.as_ref().is_some_and(|last| last.went != Went::Silent && young(last));
        may && self.broken() && self.known.load(Ordering::Relaxed)
    }

    /// How long to wait until the next probe, after one that was not answered.
    pub(crate) fn patience(&self, now: Instant) -> Duration {
        let age = self.last().as_ref().map(|last| now.saturating_duration_since(last.began));
        (age.unwrap_or_default() / 2).clamp(SOON, PROBE)
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
        self.known.store(true, Ordering::Relaxed);
        self.errors.store(0, Ordering::Relaxed);
    }

    /// Takes note of trouble. When it broke just now a probe has to be started, after the time that is answered.
    pub(crate) fn note(&self, went: Went, why: &str, now: Instant) -> Option<Duration> {
        let trouble = match went {
            Went::Error => self.errors.fetch_add(1, Ordering::Relaxed) + 1 >= ERRORS,
            Went::Silent | Went::Gone => true,
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
        *last = Some(Trouble { went, why: why.to_owned(), began: now, ended: None, pause });
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
    fn only_young_trouble_of_a_cache_that_was_well_and_does_not_hang_is_worth_waiting_for() {
        let (health, now) = (Health::default(), Instant::now());
        assert!(!health.passes(now), "there is none");
        health.note(Went::Gone, "", now);
        assert!(!health.passes(now), "it never was well");
        health.mend(now);
        health.well();
        health.note(Went::Gone, "", now);
        assert!(health.passes(now) && !health.passes(now + PASSES));
        health.mend(now);
        assert!(!health.passes(now));
        health.note(Went::Silent, "", now);
        assert!(!health.passes(now), "it hangs");
    }

    #[test]
    fn probes_become_rarer_with_the_age_of_the_trouble() {
        let (health, now) = (Health::default(), Instant::now());
        health.note(Went::Gone, "", now);
        assert_eq!(health.patience(now), SOON);
        assert_eq!(health.patience(now + 4 * SOON), 2 * SOON);
        assert_eq!(health.patience(now + LATE), PROBE);
    }
}
