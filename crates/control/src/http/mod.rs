//! The HTTP face: routes, limits, headers.

pub mod agents;
pub mod channel;
pub mod error;
pub mod live;
pub mod operate;
pub mod people;
pub mod range;
pub mod refusals;
pub mod sites;
pub mod upload;
pub mod webhook;

use crate::app::App;
use axum::Router;
use axum::http::{HeaderValue, header};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::trace::TraceLayer;

/// All routes of the farm.
pub fn router(app: App) -> Router {
    let header = |name, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    Router::new()
        .merge(agents::routes())
        .merge(sites::routes())
        .merge(people::routes())
        .merge(live::routes())
        .merge(webhook::routes())
        .merge(channel::routes())
        .merge(operate::routes())
        .layer(header(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(header(header::REFERRER_POLICY, "same-origin"))
        .layer(header(header::X_FRAME_OPTIONS, "DENY"))
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(axum::middleware::from_fn(refusals::explain))
        .with_state(app)
}
