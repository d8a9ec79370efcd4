//! Why a job is being stopped. The first reason counts, except that a superseded attempt is over at once.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// A reason to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// The farm asked.
    Canceled,
    /// The time on the wall clock is over.
    Wall,
    /// The job wrote more than its machine allows.
    Disk,
    /// The farm wants nothing more of this attempt.
    Superseded,
}

/// The place where a stop is asked for and waited for.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    cause: watch::Sender<Option<Cause>>,
}

impl Stop {
    pub(crate) fn new(cause: Option<Cause>) -> Self {
        Self { cause: watch::Sender::new(cause) }
    }

    pub(crate) fn ask(&self, cause: Cause) {
        self.cause.send_if_modified(|held| {
            let counts = match held {
                None => true,
                Some(before) => cause == Cause::Superseded && *before != Cause::Superseded,
            };
            if counts {
                tracing::info!(?cause, "stopping");
                *held = Some(cause);
            }
            counts
        });
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        *self.cause.borrow()
    }

    pub(crate) fn superseded(&self) -> bool {
        self.cause() == Some(Cause::Superseded)
    }

    /// Returns when a stop has been asked for.
    pub(crate) async fn asked(&self) {
        // The sender lives as long as `self`, so this cannot end early.
        let _ = self.cause.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns when the attempt is superseded.
    pub(crate) async fn asked_superseded(&self) {
        let _ = self.cause.subscribe().wait_for(|cause| *cause == Some(Cause::Superseded)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_cause_counts_but_superseded_overrides() {
        let stop = Stop::new(None);
        stop.ask(Cause::Wall);
        stop.ask(Cause::Canceled);
        assert_eq!(stop.cause(), Some(Cause::Wall));
        stop.ask(Cause::Superseded);
        stop.ask(Cause::Disk);
        assert_eq!(stop.cause(), Some(Cause::Superseded));
    }
}
