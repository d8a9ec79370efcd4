//! `GET /api/v1/live`: server-sent events for live views. Each names what changed; the page fetches the fragment.

use super::Routes;
use super::error::HttpError;
use crate::app::App;
use crate::auth::Caller;
use axum::extract::{Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing;
use forgeyard_model::PipelineId;
use futures::stream::{self, Stream};
use serde::Deserialize;
use std::convert::Infallible;
use tokio::sync::broadcast::error::RecvError;

/// The routes.
pub fn routes() -> Routes {
    Routes::new().route("/api/v1/live", routing::get(live))
}

#[derive(Deserialize)]
struct LiveQuery {
    pipeline: Option<PipelineId>,
}

async fn live(
    State(app): State<App>,
    _: Caller,
    Query(query): Query<LiveQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, HttpError> {
    let changes = app.core.changes();
    let stream = stream::unfold((changes, query.pipeline), |(mut changes, wanted)| async move {
        loop {
            match changes.recv().await {
                Ok(change) if wanted.is_none() || change.pipeline == wanted => {
                    let event =
                        Event::default().event("change").data(format!("{} {}", change.kind, change.key));
                    return Some((Ok(event), (changes, wanted)));
                }
                Ok(_) => {}
                // The reader was too slow: it reads the page anew, so one event stands for all that were missed.
                Err(RecvError::Lagged(_)) => {
                    return Some((Ok(Event::default().event("change").data("several")), (changes, wanted)));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}
