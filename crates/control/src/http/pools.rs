//! `/api/v1/pools`: what pools have and should have; stop, resume, start again.

use super::Routes;
use super::error::{self, HttpError};
use crate::app::App;
use crate::auth::Caller;
use crate::views;
use axum::extract::{Path, State};
use axum::{Json, routing};
use forgeyard_api::people::DrainRequest;
use forgeyard_api::pools::PoolView;
use forgeyard_model::PoolName;
use forgeyard_model::input::Input;
use forgeyard_model::principal::Role;
use serde_json::{Value, json};

/// The routes.
pub fn routes() -> Routes {
    use routing::{get, post};
    Routes::new()
        .route("/api/v1/pools", get(pools))
        .route("/api/v1/pools/{name}", get(pool))
        .route("/api/v1/pools/{name}/drain", post(drain))
        .route("/api/v1/pools/{name}/reset", post(reset))
}

async fn pools(State(app): State<App>, _: Caller) -> Json<Vec<PoolView>> {
    let (config, now) = (app.config(), app.clock.now());
    let farm = app.core.read();
    let mut all: Vec<PoolView> =
        config.pools.iter().map(|pool| views::pools::pool(&farm, &config, pool, now)).collect();
    all.iter_mut().for_each(|pool| pool.history.clear());
    Json(all)
}

async fn pool(
    State(app): State<App>,
    _: Caller,
    Path(name): Path<PoolName>,
) -> Result<Json<PoolView>, HttpError> {
    let config = app.config();
    let pool = config.pool(&name).ok_or_else(|| error::missing("pool", &name))?;
    Ok(Json(views::pools::pool(&app.core.read(), &config, pool, app.clock.now())))
}

async fn drain(
    State(app): State<App>,
    caller: Caller,
    Path(pool): Path<PoolName>,
    Json(DrainRequest { drain }): Json<DrainRequest>,
) -> Result<Json<Value>, HttpError> {
    caller.need(Role::Operator)?;
    app.core.give(Input::DrainPool { pool, drain }, caller.principal).await?;
    Ok(Json(json!({})))
}

async fn reset(
    State(app): State<App>,
    caller: Caller,
    Path(pool): Path<PoolName>,
) -> Result<Json<Value>, HttpError> {
    caller.need(Role::Operator)?;
    app.core.give(Input::ResetPool { pool }, caller.principal).await?;
    Ok(Json(json!({})))
}
