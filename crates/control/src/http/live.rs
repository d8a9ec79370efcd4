//! `GET /api/v1/live`: server-sent events for live views. Each names what changed; the page fetches the fragment.
//!
//! A stream ends by itself: with `end` when its pipeline is over, after a while so that a session which is over is
//! noticed when the browser connects again, and when the control plane stops.

use super::Routes;
use super::error::HttpError;
use crate::app::App;
use crate::auth::Caller;
use axum::extract::{Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing;
use forgeyard_model::PipelineId;
use futures::StreamExt as _;
use futures::stream::{self, Stream};
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// How long one stream lasts.
const STREAM: Duration = Duration::from_secs(15 * 60);

/// The routes.
pub fn routes() -> Routes {
    Routes::new().route("/api/v1/live", routing::get(live))
}

#[derive(Deserialize)]
struct LiveQuery {
    pipeline: Option<PipelineId>,
}

struct Follower {
    app: App,
    changes: Receiver<crate::core::Change>,
    wanted: Option<PipelineId>,
    ended: bool,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        loop {
            let data = match self.changes.recv().await {
                Ok(change) if self.wanted.is_none() || change.pipeline == self.wanted => {
                    format!("{} {}", change.kind, change.key)
                }
                Ok(_) => continue,
                // The reader was too slow: it reads the page anew, so one event stands for all that were missed.
                Err(RecvError::Lagged(_)) => "several".to_owned(),
                Err(RecvError::Closed) => return None,
            };
            self.ended = self.over();
            let name = if self.ended { "end" } else { "change" };
            return Some((Ok(Event::default().event(name).data(data)), self));
        }
    }

    fn over(&self) -> bool {
        let Some(wanted) = self.wanted else { return false };
        self.app.core.read().pipelines.get(&wanted).is_some_and(|pipeline| pipeline.state.ended())
    }
}

async fn live(
    State(app): State<App>,
    _: Caller,
    Query(query): Query<LiveQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, HttpError> {
    let stop = app.stop.clone();
    let follower = Follower { changes: app.core.changes(), app, wanted: query.pipeline, ended: false };
    let until = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(STREAM) => {}
        }
    };
    let stream = stream::unfold(follower, Follower::next).take_until(until);
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}
