//! `/metrics` and `/healthz`, for machines that watch; `/openapi.json`, for programs that want to know the routes.

use super::Routes;
use super::error::{self, HttpError};
use crate::app::App;
use crate::auth::Caller;
use crate::views;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing;

/// The document that describes the HTTP API, made from the code and checked against it (`cargo xtask openapi`).
pub const OPENAPI: &str = include_str!("../../../../openapi/forgeyard.json");

/// The routes.
pub fn routes() -> Routes {
    Routes::new()
        .route("/metrics", routing::get(metrics))
        .route("/healthz", routing::get(health))
        .route("/openapi.json", routing::get(openapi))
}

async fn metrics(State(app): State<App>, _: Caller) -> String {
    let status = views::status(&app);
    for (state, count) in &status.jobs {
        metrics::gauge!("forgeyard_jobs", "state" => state.clone()).set(*count as f64);
    }
    for (state, count) in &status.runners {
        metrics::gauge!("forgeyard_runners", "state" => state.clone()).set(*count as f64);
    }
    for state in ["ready", "leased", "resetting", "verifying", "quarantined"] {
        let count = status.devices.iter().filter(|device| device.state.name() == state).count();
        metrics::gauge!("forgeyard_devices", "state" => state).set(count as f64);
    }
    metrics::gauge!("forgeyard_alarms").set(status.alarms.len() as f64);
    app.metrics.render()
}

/// Answers when the database does.
async fn health(State(app): State<App>) -> Result<&'static str, HttpError> {
    app.store.ping().await.map_err(|error| error::database(&error))?;
    Ok("ok\n")
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}
