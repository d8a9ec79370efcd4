//! Whether the cache can be asked: open or closed like a fuse. Pure but for its atomics.
//!
//! One answer that does not come in time, or no connection, and nobody is asked any more; three errors in a row of the cache
//! itself do the same. Then it is asked by nobody but a probe, until that is answered. So a cache that hangs costs a build the
//! time of one answer, and not that of one for each file.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Errors in a row that count as trouble.
const ERRORS: u32 = 3;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Went {
    /// An answer, whatever it says.
    Well,
    /// The cache answered with an error of its own.
    Error,
    /// There was no answer.
    Silent,
}

/// The fuse.
#[derive(Debug, Default)]
pub(crate) struct Health {
    broken: AtomicBool,
    errors: AtomicU32,
    breaks: AtomicU64,
}

impl Health {
    /// Whether the cache is to be left alone.
    pub(crate) fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// How often there was trouble.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// Takes note; `true` when it broke just now, and a probe has to be started.
    pub(crate) fn note(&self, went: Went) -> bool {
        let trouble = match went {
            Went::Well => {
                self.errors.store(0, Ordering::Relaxed);
                false
            }
            Went::Error => self.errors.fetch_add(1, Ordering::Relaxed) + 1 >= ERRORS,
            Went::Silent => true,
        };
        let broke = trouble && !self.broken.swap(true, Ordering::AcqRel);
        if broke {
            self.breaks.fetch_add(1, Ordering::Relaxed);
        }
        broke
    }

    /// The probe was answered.
    pub(crate) fn mend(&self) {
        self.errors.store(0, Ordering::Relaxed);
        self.broken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_breaks_at_once_errors_only_in_a_row_and_one_probe_is_started() {
        let health = Health::default();
        assert!(!health.note(Went::Error) && !health.note(Went::Error) && !health.note(Went::Well));
        assert!(!health.note(Went::Error) && !health.note(Went::Error) && !health.broken());
        assert!(health.note(Went::Error) && health.broken());
        assert!(!health.note(Went::Silent), "it is broken already");
        health.mend();
        assert!(!health.broken() && health.note(Went::Silent));
        assert_eq!(health.breaks(), 2);
    }
}
