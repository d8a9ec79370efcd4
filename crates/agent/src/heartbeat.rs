//! Signs of life, sent at the pace that the farm asked for and whenever the step changes.

use crate::stop::{Cause, Stop};
use forgeyard_api::client::agent::{AgentClient, Session, superseded};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// For how many seconds a runner program must have been alone before it is said.
const QUIET: u64 = 60;

/// Sends for ever; hands a cancellation and the end of the attempt to `stop`.
pub(crate) async fn beat(
    client: AgentClient,
    session: Session,
    every: Duration,
    mut step: watch::Receiver<Option<String>>,
    quiet: watch::Receiver<Option<Instant>>,
    stop: Stop,
) {
    loop {
        let name = step.borrow_and_update().clone();
        // Less is of no interest to anybody, and the farm is told nothing then.
        let alone = quiet.borrow().map(|since| since.elapsed().as_secs()).filter(|seconds| *seconds >= QUIET);
        let wait = match client.heartbeat_of_quiet(&session, name.as_deref(), alone).await {
            Ok(answer) => {
                if answer.cancel {
                    stop.ask(Cause::Canceled);
                }
                every
            }
            Err(error) if superseded(&error) => return stop.ask(Cause::Superseded),
            Err(error) => {
                tracing::warn!(error = forgeyard_api::client::http::causes(&error), "no sign of life given");
                every.min(Duration::from_secs(2))
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = step.changed() => if changed.is_err() {
                return;
            },
        }
    }
}
