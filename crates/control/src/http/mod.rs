//! The HTTP face: routes, limits, headers.
//!
//! Whoever calls is known by [`Caller`](crate::auth::Caller) (token or session), by a site's token, or by the token of
//! one attempt; handlers ask for it first, so that a stranger learns nothing from how a request is refused. What needs
//! no caller is on the list of the test `no_route_is_open_by_accident`.

pub mod agents;
pub mod cache;
pub mod channel;
pub mod console;
pub mod error;
pub mod judging;
pub mod live;
pub mod operate;
pub mod people;
pub mod pools;
pub mod range;
mod refusals;
mod routes;
pub mod settings;
pub mod sites;
pub mod upload;
pub mod webhook;

pub use routes::Routes;

use crate::app::App;
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::trace::TraceLayer;

/// All routes of the farm.
pub fn routes() -> Routes {
    Routes::new()
        .merge(agents::routes())
        .merge(sites::routes())
        .merge(people::routes())
        .merge(judging::routes())
        .merge(pools::routes())
        .merge(cache::routes())
        .merge(settings::routes())
        .merge(live::routes())
        .merge(webhook::routes())
        .merge(channel::routes())
        .merge(operate::routes())
        .merge(console::routes())
}

/// All routes of the farm, ready to serve.
pub fn router(app: App) -> Router {
    let header = |name, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    routes()
        .into_router()
        .fallback(console::unknown)
        .layer(CatchPanicLayer::new())
        .layer(middleware::from_fn_with_state(app.clone(), console::dress))
        .layer(header(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(header(header::REFERRER_POLICY, "same-origin"))
        .layer(header(header::X_FRAME_OPTIONS, "DENY"))
        .layer(TraceLayer::new_for_http())
        .with_state(app)
}
