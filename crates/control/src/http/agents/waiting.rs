//! Machines that were made before there was work: their agents ask for some, and wait.
//!
//! The token of such a machine names the machine. It opens nothing until the machine was given an attempt; then it is
//! redeemed for that attempt, by the agent whose nonce was the first.

use crate::app::App;
use crate::http::error::{HttpError, invalid};
use crate::keys::{self, Keys};
use axum::Json;
use axum::extract::State;
use forgeyard_api::ApiError;
use forgeyard_api::agent::{VERSION, Wait, Waited};
use forgeyard_api::error::ErrorKind;
use forgeyard_model::input::Input;
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::runner::{Runner, RunnerWork};
use forgeyard_model::{AttemptId, Id};
use std::time::Duration;
use tokio::time::Instant;

/// The longest wait of a call, in seconds.
const LONGEST: u64 = 25;

/// The machine whose token this is; `None` when it is no token of a machine.
pub(super) fn runner(app: &App, token: &str) -> Option<Runner> {
    let id = Keys::read_runner_token(token)?;
    let runner = app.core.read().runners.get(&id).cloned()?;
    // The token of one that was made for an attempt was never given out.
    let waited = !matches!(runner.work, RunnerWork::Attempt(_));
    (waited && keys::same(token, &app.keys.runner_token(&runner))).then_some(runner)
}

/// The attempt that a machine was given.
pub(super) fn attempt_of(runner: &Runner) -> Result<AttemptId, HttpError> {
    runner.work.attempt().ok_or_else(|| {
        let text = format!("{} has not been given an attempt yet", runner.id);
        ApiError::new(ErrorKind::Conflict, "token.no_work", text).hint("ask for work first").into()
    })
}

fn gone(id: impl std::fmt::Display) -> HttpError {
    let text = format!("{id} gets no work any more");
    ApiError::new(ErrorKind::Superseded, "runner.superseded", text).hint("stop").into()
}

/// Says that the agent is there, and waits for work.
pub(super) async fn wait(
    State(app): State<App>,
    Json(request): Json<Wait>,
) -> Result<Json<Waited>, HttpError> {
    if request.version != VERSION {
        let text = format!("the agent speaks version {}, the farm {VERSION}", request.version);
        return Err(invalid("agent.version", text));
    }
    if request.nonce.len() < 8 || request.nonce.len() > 128 {
        return Err(invalid("token.nonce", "the nonce must have 8 to 128 characters"));
    }
    let known = runner(&app, &request.token).ok_or_else(|| {
        HttpError(ApiError::new(
            ErrorKind::Unauthenticated,
            "token.unknown",
            "the token is not one of this farm",
        ))
    })?;
    let principal = Principal {
        id: Id::derive(known.id, "agent"),
        name: format!("agent of {}", known.id),
        kind: PrincipalKind::Agent,
    };
    app.core.give(Input::WarmCalled { runner: known.id, nonce: request.nonce }, principal).await?;
    let end = Instant::now() + Duration::from_secs(request.wait_seconds.min(LONGEST));
    let mut version = app.core.version();
    loop {
        version.catch_up();
        let runner = app.core.read().runners.get(&known.id).cloned();
        let runner = runner.filter(|runner| runner.state.wanted()).ok_or_else(|| gone(known.id))?;
        if runner.work.attempt().is_some() {
            return Ok(Json(Waited::Work));
        }
        if !app.changed(&mut version, end).await {
            return Ok(Json(Waited::Nothing));
        }
    }
}
