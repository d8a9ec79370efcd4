//! `/api/v1/cache`: what the build cache holds and how it is hit; its entries; removal.

use super::Routes;
use super::error::{HttpError, invalid};
use crate::app::App;
use crate::auth::Caller;
use crate::cache_admin::none;
use axum::extract::{Query, State};
use axum::{Json, routing};
use forgeyard_api::cache::{CacheEntries, CacheRemoval, CacheRemoved, CacheView};
use forgeyard_model::principal::Role;
use serde::Deserialize;

/// Entries of one answer at most.
pub const MOST: usize = 1000;

/// The routes.
pub fn routes() -> Routes {
    use routing::{get, post};
    Routes::new()
        .route("/api/v1/cache", get(look))
        .route("/api/v1/cache/entries", get(entries))
        .route("/api/v1/cache/remove", post(remove))
}

async fn look(State(app): State<App>, _: Caller) -> Result<Json<CacheView>, HttpError> {
    app.cache_admin.look().await?.map(Json).ok_or_else(none)
}

#[derive(Deserialize)]
struct Asked {
    scope: String,
    #[serde(default)]
    prefix: String,
}

async fn entries(
    State(app): State<App>,
    caller: Caller,
    Query(Asked { scope, prefix }): Query<Asked>,
) -> Result<Json<CacheEntries>, HttpError> {
    caller.need(Role::Operator)?;
    app.cache_admin.entries(&scope, &prefix, MOST).await.map(Json)
}

async fn remove(
    State(app): State<App>,
    caller: Caller,
    Json(which): Json<CacheRemoval>,
) -> Result<Json<CacheRemoved>, HttpError> {
    caller.need(Role::Operator)?;
    removed(&app, &caller, &which).await.map(Json)
}

/// Removes what somebody wants removed. The name of the scope or the writer is never left out by mistake.
pub(super) async fn removed(
    app: &App,
    caller: &Caller,
    which: &CacheRemoval,
) -> Result<CacheRemoved, HttpError> {
    let (CacheRemoval::Scope { scope: name, .. } | CacheRemoval::Writer { writer: name }) = which;
    if name.trim().is_empty() {
        return Err(invalid("cache.which", "say a scope or a writer"));
    }
    let removed = app.cache_admin.remove(&caller.principal.name, which).await?;
    tracing::warn!(by = %caller.principal.name, removed, ?which, "entries of the cache were removed");
    Ok(CacheRemoved { removed })
}
