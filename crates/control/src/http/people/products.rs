//! `/api/v1`: what work leaves: artifacts, channels, environments; and the work of the environment service.

use super::{Answer, LIST, act};
use crate::app::App;
use crate::auth::Caller;
use crate::http::Routes;
use crate::http::error::{self, HttpError};
use crate::http::range;
use crate::views;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::{Json, routing};
use forgeyard_api::people::*;
use forgeyard_model::input::Input;
use forgeyard_model::principal::Role;
use forgeyard_model::{ArtifactId, Id as _};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The routes.
pub(super) fn routes() -> Routes {
    use routing::{get, post};
    Routes::new()
        .route("/api/v1/artifacts", get(artifacts))
        .route("/api/v1/artifacts/{id}", get(artifact))
        .route("/api/v1/artifacts/{id}/bytes", get(artifact_bytes))
        .route("/api/v1/artifacts/{id}/statements", get(statements))
        .route("/api/v1/channels", get(channels))
        .route("/api/v1/environments", get(environments))
        .route("/api/v1/environment-work", get(environment_work))
        .route("/api/v1/environments/{id}/result", post(environment_result))
}

async fn artifacts(State(app): State<App>, _: Caller) -> Answer<Value> {
    let farm = app.core.read();
    let newest: Vec<_> = farm.artifacts.values().rev().take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn artifact(State(app): State<App>, _: Caller, Path(id): Path<ArtifactId>) -> Answer<Value> {
    let found = app.core.read().artifacts.get(&id).cloned().ok_or_else(|| error::missing("artifact", id))?;
    Ok(Json(json!(found)))
}

async fn artifact_bytes(
    State(app): State<App>,
    _: Caller,
    Path(id): Path<ArtifactId>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let digest = app.core.read().artifacts.get(&id).map(|artifact| artifact.digest);
    let digest = digest.ok_or_else(|| error::missing("artifact", id))?;
    range::serve(&app, digest, &headers, "application/octet-stream").await
}

async fn statements(
    State(app): State<App>,
    _: Caller,
    Path(id): Path<ArtifactId>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let digest = views::statements(&app.core.read(), id);
    match digest {
        Some(digest) => range::serve(&app, digest, &headers, "application/json").await,
        None => Ok(Json(json!([])).into_response()),
    }
}

async fn channels(State(app): State<App>, _: Caller) -> Answer<Value> {
    Ok(Json(json!(app.core.read().channels.values().collect::<Vec<_>>())))
}

async fn environments(State(app): State<App>, _: Caller) -> Answer<Value> {
    let farm = app.core.read();
    let newest: Vec<_> = farm.environments.values().rev().take(LIST).collect();
    Ok(Json(json!(newest)))
}

#[derive(Deserialize)]
struct WaitQuery {
    #[serde(default)]
    wait_seconds: u64,
}

async fn environment_work(
    State(app): State<App>,
    caller: Caller,
    Query(WaitQuery { wait_seconds }): Query<WaitQuery>,
) -> Answer<Value> {
    caller.need(Role::Operator)?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(wait_seconds.min(60));
    let mut version = app.core.version();
    loop {
        version.catch_up();
        let work = {
            let farm = app.core.read();
            let requested =
                |id: &&forgeyard_model::EffectId| farm.effects.get(id).map(|effect| effect.effect.clone());
            farm.index.outbox.iter().filter_map(|id| requested(&id)).find_map(|effect| match effect {
                forgeyard_model::effect::Effect::MakeEnvironment { environment } => {
                    farm.environments.get(&environment).cloned()
                }
                _ => None,
            })
        };
        if work.is_some() || !app.changed(&mut version, deadline).await {
            return Ok(Json(json!(work)));
        }
    }
}

async fn environment_result(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<forgeyard_model::EnvironmentId>,
    Json(result): Json<EnvironmentResult>,
) -> Answer<Value> {
    let effect = forgeyard_model::EffectId::derive(id, "make");
    let result = forgeyard_model::effect::EffectResult::Environment { state: Box::new(result.state) };
    act(&app, &caller, Role::Operator, Input::EffectSettled { effect, result: Box::new(result) }).await
}
