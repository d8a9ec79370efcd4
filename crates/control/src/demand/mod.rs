//! Where demand comes from, beside webhooks: deliveries that failed are asked for again ([`redelivery`]), queues are polled
//! ([`poll`]), and scale sets are listened to ([`listener`]). None of them is trusted alone; all of them end in the same
//! input. What the farm knows is shown at the forge by [`checks`].
//!
//! Each is a *round* that does what is due and a thin loop around it, so that tests call rounds. The loops run in the one
//! control plane that holds the epoch; there is no second listener. Silence of one forge does not hold up another.

pub mod checks;
pub mod forgejo;
pub mod listener;
pub mod poll;
pub mod redelivery;
pub(crate) mod report;
mod sources;

pub use sources::Sources;

use crate::app::App;
use crate::effect::causes;
use forgeyard_forges::github::{Again, GithubError};
use forgeyard_model::Timestamp;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often failed deliveries are looked for. A job whose webhook failed is to be known two minutes later, and asking for
/// it again takes a while as well.
const REDELIVERY: Duration = Duration::from_secs(80);
/// How soon it is looked again when a look did not come out.
const REDELIVERY_AGAIN: Duration = Duration::from_secs(10);
/// How often it is looked whether a repository is to be polled.
const POLL: Duration = Duration::from_secs(5);
/// How often check runs may change: what happens meanwhile is told together.
const CHECKS: Duration = Duration::from_secs(10);

/// Starts the loops of every connection.
pub fn start(app: &App, stop: &CancellationToken) {
    for (forge, client) in app.forges.forgejos() {
        let (told, name, desk, ending) = (app.clone(), forge.clone(), client.clone(), stop.clone());
        tokio::spawn(async move {
            let mut checks = checks::Checks::default();
            let mut version = told.core.version();
            while rest(&told, &ending, CHECKS).await {
                if checks.owes() || version.has_changed().unwrap_or(false) {
                    version.catch_up();
                    checks.round(&told, checks::Board::Statuses(&name, &desk)).await;
                }
            }
        });
        let (app, forge, client, stop) = (app.clone(), forge.clone(), client.clone(), stop.clone());
        tokio::spawn(async move {
            let mut poll = forgejo::Poll::default();
            loop {
                poll.round(&app, &forge, &client).await;
                // However many webhooks come, so much lies between two lists.
                if !rest(&app, &stop, forgejo::LEAST).await {
                    return;
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = app.sources.hurried(&forge) => {}
                    () = app.clock.sleep(forgejo::EVERY - forgejo::LEAST) => {}
                }
            }
        });
    }
    for connection in app.forges.iter() {
        for place in 0..connection.github().apps() {
            let (app, connection, stop) = (app.clone(), connection.clone(), stop.clone());
            tokio::spawn(async move {
                // At once: while the farm was away, every delivery failed.
                loop {
                    let pause = match redelivery::round(&app, &connection, place).await {
                        Ok(_) => REDELIVERY,
                        Err(error) => {
                            tracing::warn!(forge = %connection.forge(), error = causes(&error), "failed deliveries could not be looked for");
                            again(&app, &error)
                        }
                    };
                    if !rest(&app, &stop, pause).await {
                        return;
                    }
                }
            });
        }
        for wish in connection.scale_sets() {
            tokio::spawn(listener::run(app.clone(), connection.clone(), wish.clone(), stop.clone()));
        }
        let (polled, known, ending) = (app.clone(), connection.clone(), stop.clone());
        tokio::spawn(async move {
            let poll = polled.sources.poll(known.forge());
            loop {
                poll.lock().await.round(&polled, &known).await;
                if !rest(&polled, &ending, POLL).await {
                    return;
                }
            }
        });
        let (app, connection, stop) = (app.clone(), connection.clone(), stop.clone());
        tokio::spawn(async move {
            let mut checks = checks::Checks::default();
            let mut version = app.core.version();
            while rest(&app, &stop, CHECKS).await {
                // Nothing is asked of the forge, or even looked at, while nothing changes.
                if checks.owes() || version.has_changed().unwrap_or(false) {
                    version.catch_up();
                    checks.round(&app, checks::Board::Checks(&connection)).await;
                }
            }
        });
    }
}

/// When a look that did not come out is tried again: soon, or when a limit allows it.
fn again(app: &App, error: &RoundError) -> Duration {
    match error {
        RoundError::Forge(GithubError::Limited { until, .. }) => {
            until.since(app.clock.now()).max(REDELIVERY_AGAIN)
        }
        RoundError::Forge(error)
            if error.cause().is_some_and(|cause| cause.again() == Again::AfterChange) =>
        {
            REDELIVERY
        }
        _ => REDELIVERY_AGAIN,
    }
}

/// Until when a limit of the forge holds up what went wrong, if that was all.
fn limited(error: &RoundError) -> Option<Timestamp> {
    match error {
        RoundError::Forge(GithubError::Limited { until, .. }) => Some(*until),
        _ => None,
    }
}

/// Waits; `false` when the control plane stops.
async fn rest(app: &App, stop: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = app.clock.sleep(pause) => true,
    }
}

/// What goes wrong in a round.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// The forge.
    #[error("the forge")]
    Forge(#[from] forgeyard_forges::github::GithubError),
    /// The database.
    #[error("the database")]
    Database(#[from] forgeyard_db::Error),
    /// What was found was not taken.
    #[error("what was found was not taken")]
    Core(#[from] forgeyard_api::ApiError),
    /// The forge lacks something that a person must make.
    #[error("{0}")]
    Missing(String),
}
