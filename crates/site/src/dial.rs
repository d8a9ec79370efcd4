//! The two loops that dial out: the *poller* holds the long poll, the *sender* sends reports.
//!
//! Invariants: a desired set of an older epoch than the journal has seen is refused; a newer epoch is in the journal
//! before its set counts; a report that the farm did not take is sent again.

use crate::error::Error;
use crate::execute::Tools;
use crate::ledger::Entry;
use crate::session::End;
use crate::tries;
use forgeyard_api::client::http::causes;
use forgeyard_api::client::site::SiteClient;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::site::{DesiredQuery, DesiredSet, SiteReport};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// What should be, once it is known.
pub(crate) type Desired = Option<Arc<DesiredSet>>;
/// What the farm is to be told, once there is something.
pub(crate) type Report = Option<Arc<SiteReport>>;

/// The longest pause between two calls that fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Holds the long poll.
pub(crate) async fn poll(
    client: SiteClient,
    tools: Arc<Tools>,
    desired: watch::Sender<Desired>,
    wait: Duration,
) -> Result<End, Error> {
    let mut failures = 0;
    loop {
        let have = desired.borrow().clone();
        let (epoch, after) = have.as_ref().map_or((0, 0), |set| (set.epoch, set.generation));
        let asked = Instant::now();
        match client.desired(&DesiredQuery { after, epoch, wait_seconds: wait.as_secs() }).await {
            Ok(set) => {
                let seen = tools.journal.ledger().epoch;
                let older = set.epoch < seen || (set.epoch == epoch && set.generation < after);
                if older {
                    tracing::error!(
                        epoch = set.epoch,
                        seen,
                        generation = set.generation,
                        after,
                        "refused an older desired set"
                    );
                } else if have.is_none() || (set.epoch, set.generation) != (epoch, after) {
                    let noted = if set.epoch > seen {
                        tools.journal.append(vec![Entry::Epoch { epoch: set.epoch }]).await
                    } else {
                        Ok(())
                    };
                    if let Err(error) = noted {
                        tracing::error!(%error, "cannot take the desired set");
                    } else {
                        failures = 0;
                        desired.send_replace(Some(Arc::new(set)));
                        continue;
                    }
                } else {
                    failures = 0;
                    // A farm that does not hold the poll is not asked in a tight loop.
                    tokio::time::sleep_until(asked + Duration::from_secs(1)).await;
                    continue;
                }
            }
            Err(error) if error.refusal() == Some(ErrorKind::Unauthenticated) => return Ok(End::NotKnown),
            Err(error) => tracing::warn!(error = %causes(&error), "cannot get the desired set"),
        }
        failures += 1;
        tokio::time::sleep(tries::pause(failures).min(LONGEST_PAUSE)).await;
    }
}

/// Sends reports: each change, and the last one again when the farm wants to hear.
pub(crate) async fn send(
    client: SiteClient,
    mut reports: watch::Receiver<Report>,
    acks: mpsc::Sender<Arc<SiteReport>>,
) -> Result<End, Error> {
    let mut wait = Duration::from_secs(10);
    let mut failures = 0;
    loop {
        // A sender that is gone ends the whole session with it.
        if let Ok(Err(_)) = tokio::time::timeout(wait, reports.changed()).await {
            return Ok(End::Stopped);
        }
        let Some(report) = reports.borrow_and_update().clone() else { continue };
        match client.report(&report).await {
            Ok(answer) => {
                failures = 0;
                wait = Duration::from_secs(answer.report_seconds.clamp(1, 300));
                let _ = acks.send(report).await;
            }
            Err(error) if error.refusal() == Some(ErrorKind::Unauthenticated) => return Ok(End::NotKnown),
            Err(error) => {
                tracing::warn!(error = %causes(&error), "cannot report");
                failures += 1;
                wait = tries::pause(failures).min(LONGEST_PAUSE);
            }
        }
    }
}
