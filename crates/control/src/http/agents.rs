//! `/agent/v1`: one attempt, one agent. Everything but redeeming needs the session token of exactly this attempt.

mod cache;
mod runners;
mod waiting;

use super::Routes;
use super::error::{self, HttpError, invalid};
use super::{range, upload};
use crate::app::App;
use crate::auth::bearer;
use crate::keys::{self, Keys};
use crate::logs;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::agent::{self, Finish, Heartbeat, HeartbeatAnswer, LogAnswer, Redeem, Redeemed};
use forgeyard_api::error::ErrorKind;
use forgeyard_engine::spec;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::attempt::{Attempt, AttemptState, TokenState};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::{AttemptId, Digest, Id, Owner};
use serde::Deserialize;

/// How often an agent speaks, in seconds.
const HEARTBEAT_SECONDS: u64 = 5;
/// Log bytes that are kept of one attempt.
const LOG_CAP: u64 = 64 << 20;
/// Largest piece of a log in one call.
const LOG_PIECE: usize = 4 << 20;

/// The routes.
pub fn routes() -> Routes {
    Routes::new()
        .route(agent::REDEEM, routing::post(redeem))
        .route(agent::WAIT, routing::post(waiting::wait))
        .route(agent::HEARTBEAT, routing::post(heartbeat))
        .route(agent::LOG, routing::post(log).layer(axum::extract::DefaultBodyLimit::max(LOG_PIECE)))
        .route(agent::BLOB, routing::get(blob))
        .route(agent::ARTIFACT, routing::put(artifact).layer(axum::extract::DefaultBodyLimit::disable()))
        .route(agent::FINISH, routing::post(finish))
        .route(agent::CACHE, routing::get(cache::access))
        .route(agent::RUNNER_CONFIG, routing::post(runners::config))
        .route(agent::RUNNER_TOOK, routing::post(runners::took))
}

fn principal(attempt: &Attempt) -> Principal {
    Principal {
        id: Id::derive(attempt.id, "agent"),
        name: format!("agent of {}", attempt.id),
        kind: PrincipalKind::Agent,
    }
}

/// The attempt that a call is about, proved by its session token and its fence.
struct Agent(Attempt);

impl FromRequestParts<App> for Agent {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        let Path(path) = Path::<std::collections::HashMap<String, String>>::from_request_parts(parts, app)
            .await
            .map_err(|error| invalid("agent.path", error.to_string()))?;
        let sent = bearer(&parts.headers).map(str::to_owned).ok_or_else(|| {
            let text = "an agent must send its session token";
            HttpError(ApiError::new(ErrorKind::Unauthenticated, "agent.no_token", text))
        })?;
        let id: AttemptId = path
            .get("attempt")
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| invalid("agent.path", "the path does not name an attempt"))?;
        let attempt = app.core.read().attempts.get(&id).cloned();
        let attempt = attempt.ok_or_else(|| error::missing("attempt", id))?;
        let nonce = match &attempt.token {
            TokenState::Redeemed { nonce } | TokenState::Closed { nonce } => nonce,
            TokenState::Unused => return Err(wrong_session(id)),
        };
        if !keys::same(&sent, &app.keys.session_token(&attempt, nonce)) {
            return Err(wrong_session(id));
        }
        Ok(Self(attempt))
    }
}

fn wrong_session(id: AttemptId) -> HttpError {
    ApiError::new(
        ErrorKind::Forbidden,
        "agent.wrong_session",
        format!("the session token is not that of {id}"),
    )
    .hint("a token belongs to one attempt; redeem the attempt's own")
    .into()
}

fn superseded(attempt: &Attempt) -> HttpError {
    let text = format!("{} is over; nothing of it is accepted", attempt.id);
    ApiError::new(ErrorKind::Superseded, "attempt.superseded", text).hint("stop").into()
}

async fn redeem(State(app): State<App>, Json(request): Json<Redeem>) -> Result<Json<Redeemed>, HttpError> {
    if request.version != agent::VERSION {
        let text = format!("the agent speaks version {}, the farm {}", request.version, agent::VERSION);
        return Err(invalid("agent.version", text));
    }
    let wrong = || {
        HttpError(ApiError::new(
            ErrorKind::Unauthenticated,
            "token.unknown",
            "the token is not one of this farm",
        ))
    };
    let id = match waiting::runner(&app, &request.token) {
        Some(runner) => waiting::attempt_of(&runner)?,
        None => Keys::read_attempt_token(&request.token).ok_or_else(wrong)?,
    };
    let attempt = app.core.read().attempts.get(&id).cloned().ok_or_else(wrong)?;
    let of_runner = request.token.starts_with(agent::WAITING);
    if !of_runner && !keys::same(&request.token, &app.keys.attempt_token(&attempt)) {
        return Err(wrong());
    }
    if request.nonce.len() < 8 || request.nonce.len() > 128 {
        return Err(invalid("token.nonce", "the nonce must have 8 to 128 characters"));
    }
    let input = Input::TokenRedeemed { attempt: id, nonce: request.nonce.clone() };
    app.core.give(input, principal(&attempt)).await?;
    let farm = app.core.read();
    let attempt = farm.attempts.get(&id).ok_or_else(wrong)?;
    let job = farm.jobs.get(&attempt.job).ok_or_else(wrong)?;
    let runner = farm.runners.get(&attempt.runner).ok_or_else(wrong)?;
    let lane = match attempt.owner {
        Owner::Pipeline(id) => farm.pipelines.get(&id).map(|pipeline| pipeline.lane),
        Owner::Demand(id) => {
            let admission = farm.demands.get(&id).and_then(|demand| demand.admission.as_ref());
            admission.map(|admission| admission.lane)
        }
    }
    .ok_or_else(wrong)?;
    let mut job_spec = job.spec.clone().ok_or_else(wrong)?;
    if job_spec.forge_runner.is_none() {
        job_spec.files.extend(spec::step_files());
    }
    let lease = attempt.lease.and_then(|lease| farm.leases.get(&lease));
    let devices = lease.into_iter().flat_map(|lease| &lease.devices);
    Ok(Json(Redeemed {
        attempt: id,
        fence: attempt.fence,
        session: app.keys.session_token(attempt, &request.nonce),
        lane,
        spec: job_spec,
        flavor: runner.shape.clone(),
        devices: devices.filter_map(|id| farm.devices.get(id)).map(|device| device.facts.clone()).collect(),
        heartbeat_seconds: HEARTBEAT_SECONDS,
        log_cap_bytes: LOG_CAP,
        cache: app.cache_tokens.is_some(),
        mask: vec![request.token],
    }))
}

async fn heartbeat(
    State(app): State<App>,
    Agent(attempt): Agent,
    Json(beat): Json<Heartbeat>,
) -> Result<Json<HeartbeatAnswer>, HttpError> {
    // The runner program is about to use its configuration, which is good for nothing else then.
    if beat.step.is_some() && attempt.state != AttemptState::Running && attempt.owner.demand().is_some() {
        runners::unseal(&app, &attempt)?;
    }
    let input = Input::AgentHeard { attempt: attempt.id, fence: beat.fence, step: beat.step };
    let answer = app.core.give(input, principal(&attempt)).await?;
    if let Some(seconds) = beat.quiet_seconds.filter(|_| attempt.owner.demand().is_some()) {
        let input = Input::RunnerQuiet { attempt: attempt.id, fence: beat.fence, seconds };
        app.core.give(input, principal(&attempt)).await?;
    }
    match answer {
        Reply::Agent { cancel } => Ok(Json(HeartbeatAnswer { cancel })),
        _ => Ok(Json(HeartbeatAnswer { cancel: false })),
    }
}

#[derive(Deserialize)]
struct Offset {
    offset: u64,
}

async fn log(
    State(app): State<App>,
    Agent(attempt): Agent,
    Query(Offset { offset }): Query<Offset>,
    bytes: Bytes,
) -> Result<Json<LogAnswer>, HttpError> {
    if !attempt.state.live() {
        return Err(superseded(&attempt));
    }
    if offset.saturating_add(bytes.len() as u64) > LOG_CAP + (1 << 20) {
        return Err(ApiError::new(
            ErrorKind::TooLarge,
            "log.cap",
            format!("a log has at most {LOG_CAP} bytes"),
        )
        .into());
    }
    let durable = logs::append(&app, attempt.id, offset, &bytes).await?;
    Ok(Json(LogAnswer { durable }))
}

async fn blob(
    State(app): State<App>,
    Agent(attempt): Agent,
    Path((_, digest)): Path<(String, Digest)>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let allowed = {
        let farm = app.core.read();
        let spec = farm.jobs.get(&attempt.job).and_then(|job| job.spec.as_ref());
        let image = farm.runners.get(&attempt.runner).map(|runner| &runner.boots.root);
        let rootfs = matches!(image, Some(forgeyard_model::resources::ImageRoot::Rootfs { digest: root }) if *root == digest);
        rootfs || spec.is_some_and(|spec| spec.inputs.iter().any(|input| input.digest == digest))
    };
    if !allowed {
        let text = format!("{digest} is not an input of {}", attempt.job);
        return Err(ApiError::new(ErrorKind::Forbidden, "blob.not_an_input", text).into());
    }
    range::serve(&app, digest, &headers, "application/octet-stream").await
}

#[derive(Deserialize)]
struct Expected {
    digest: Digest,
}

async fn artifact(
    State(app): State<App>,
    Agent(attempt): Agent,
    Path((_, kind, name)): Path<(String, ArtifactKind, String)>,
    Query(Expected { digest }): Query<Expected>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Artifact>, HttpError> {
    let allowed = if attempt.state.live() { plain(&name) } else { Err(superseded(&attempt)) };
    let stored = upload::store(&app, &name, digest, &headers, body, allowed).await?;
    let fence = attempt.fence;
    let input = Input::ArtifactStored { attempt: attempt.id, fence, kind, name, digest, size: stored.size };
    match app.core.give(input, principal(&attempt)).await? {
        Reply::Artifact { artifact } => Ok(Json(*artifact)),
        _ => Err(HttpError(ApiError::new(ErrorKind::Internal, "artifact.reply", "the core gave no record"))),
    }
}

/// A name that is a plain file name everywhere that it may go.
fn plain(name: &str) -> Result<(), HttpError> {
    let plain =
        !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && !name.contains(['/', '\0', '\\']);
    if plain {
        return Ok(());
    }
    Err(invalid("artifact.name", format!("`{}` is not a plain file name", name.escape_default())))
}

async fn finish(
    State(app): State<App>,
    Agent(attempt): Agent,
    Json(finish): Json<Finish>,
) -> Result<Response, HttpError> {
    // Text is read once, here, so that the core only decides.
    let reading = logs::read_for_verdict(&app, attempt.id, &finish.facts.kernel_lines).await?;
    let input = Input::AttemptFinished {
        attempt: attempt.id,
        fence: finish.fence,
        facts: Box::new(finish.facts),
        hits: reading.hits,
        tail: reading.tail,
    };
    app.core.give(input, principal(&attempt)).await?;
    app.store.log_complete(attempt.id).await.map_err(|error| error::database(&error))?;
    Ok((StatusCode::OK, Json(serde_json::json!({}))).into_response())
}
