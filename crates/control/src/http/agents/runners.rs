//! What the agent of a forge's runner asks: the configuration of the runner program, and whether what it took may run.
//!
//! Both wait at the farm. The configuration leaves the farm only here, only to the session of exactly this attempt, and
//! only until that attempt's program begins.

use super::{Agent, principal, superseded};
use crate::app::App;
use crate::effect::{causes, forgejo};
use crate::http::error::{HttpError, invalid, missing};
use axum::Json;
use axum::extract::State;
use forgeyard_api::ApiError;
use forgeyard_api::agent::{RunnerConfig, RunnerConfigRequest, RunnerTook};
use forgeyard_api::error::ErrorKind;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::registration::{Registration, RegistrationState, TakenAnswer, TakenJob};
use std::time::Duration;
use tokio::time::Instant;

/// The longest wait of a call, in seconds.
const LONGEST: u64 = 25;

/// The longest name that is taken over from a runner's environment, in bytes.
const LONGEST_NAME: usize = 300;

fn until(wait_seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(wait_seconds.min(LONGEST))
}

fn conflict(code: &str, text: impl Into<String>, hint: &str) -> HttpError {
    ApiError::new(ErrorKind::Conflict, code, text).hint(hint).into()
}

/// The attempt and its registration as they are now.
fn now(app: &App, attempt: &Attempt, fence: u32) -> Result<(Attempt, Option<Registration>), HttpError> {
    let farm = app.core.read();
    let attempt = farm.attempts.get(&attempt.id).ok_or_else(|| missing("attempt", attempt.id))?;
    if attempt.fence != fence || !attempt.state.live() {
        return Err(superseded(attempt));
    }
    if attempt.owner.demand().is_none() {
        let text = format!("{} is no runner of a forge", attempt.id);
        return Err(conflict(
            "registration.none",
            text,
            "only jobs of the kind `runner` have a configuration",
        ));
    }
    let runner = farm.runners.get(&attempt.runner).ok_or_else(|| missing("runner", attempt.runner))?;
    Ok((attempt.clone(), runner.registration.as_deref().cloned()))
}

fn trouble(error: &std::io::Error) -> HttpError {
    tracing::error!(%error, "a sealed configuration");
    let text = "the configuration of the runner cannot be read or removed now";
    ApiError::new(ErrorKind::Unavailable, "registration.sealed", text).hint("ask again").into()
}

/// Removes the configuration of an attempt's machine.
pub(super) fn unseal(app: &App, attempt: &Attempt) -> Result<(), HttpError> {
    app.sealed.remove(attempt.runner).map_err(|error| trouble(&error))
}

pub(super) async fn config(
    State(app): State<App>,
    Agent(attempt): Agent,
    Json(request): Json<RunnerConfigRequest>,
) -> Result<Json<RunnerConfig>, HttpError> {
    let end = until(request.wait_seconds);
    let mut version = app.core.version();
    loop {
        version.catch_up();
        if let Some(config) = ready(&app, &attempt, request.fence).await? {
            return Ok(Json(config));
        }
        if !app.changed(&mut version, end).await {
            let text = format!("there is no configuration for {} yet", attempt.id);
            return Err(conflict("registration.not_minted", text, "ask again"));
        }
    }
}

/// The configuration, when it is there.
async fn ready(app: &App, attempt: &Attempt, fence: u32) -> Result<Option<RunnerConfig>, HttpError> {
    let (attempt, registration) = now(app, attempt, fence)?;
    let consumed = || {
        let text = format!("the configuration of {} was given out, and its runner has begun", attempt.id);
        conflict("registration.consumed", text, "it is good for one start; end this machine")
    };
    if attempt.state == AttemptState::Running {
        return Err(consumed());
    }
    let Some(registration) = registration else { return Ok(None) };
    match registration.state {
        RegistrationState::Asked => return Ok(None),
        RegistrationState::Minted { .. } => {}
        RegistrationState::Leaving { .. } | RegistrationState::Gone => {
            let text = format!("the forge is to forget {}, or has", registration.name);
            return Err(conflict("registration.over", text, "end this machine"));
        }
    }
    let (id, by) = (attempt.id, principal(&attempt));
    match app.sealed.read(attempt.runner, &registration.name).map_err(|error| trouble(&error))? {
        Some(kept) => {
            if registration.fetched_at.is_none() && !may_begin(app, &attempt, fence, &registration).await? {
                return Ok(None);
            }
            app.core.give(Input::RunnerConfigFetched { attempt: id, fence }, by).await?;
            Ok(Some(RunnerConfig { name: kept.name, config: kept.secret.expose().to_owned() }))
        }
        None if registration.fetched_at.is_some() => Err(consumed()),
        None => {
            tracing::warn!(attempt = %id, "the sealed configuration of a runner is gone; another one is asked for");
            app.core.give(Input::RunnerConfigLost { attempt: id, fence }, by).await?;
            Ok(None)
        }
    }
}

/// The second gate of a runner whose program calls no hook: the forge is asked for the job once more, and the gate about what
/// it says. `false` while that cannot be said; the supervisor asks again, for as long as it waits for its configuration.
async fn may_begin(
    app: &App,
    attempt: &Attempt,
    fence: u32,
    registration: &Registration,
) -> Result<bool, HttpError> {
    let Some(client) = app.forges.forgejo(&registration.repository.forge) else { return Ok(true) };
    let demand = app.core.read().demands.get(&registration.demand).cloned();
    let Some(demand) = demand else { return Ok(false) };
    let (job, facts) = match forgejo::about_to_run(client, &demand).await {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(false),
        Err(error) => {
            tracing::warn!(attempt = %attempt.id, error = causes(&error), "whose job a machine is to run could not be asked");
            return Ok(false);
        }
    };
    let input = Input::RunnerHandover { attempt: attempt.id, fence, job, facts: Box::new(facts) };
    match app.core.give(input, principal(attempt)).await? {
        Reply::Taken { answer: TakenAnswer::Refused { reason } } => {
            let text = format!("the job may not run, and no step of it does: {}", reason.message);
            Err(conflict("registration.refused", text, "end this machine"))
        }
        _ => Ok(true),
    }
}

pub(super) async fn took(
    State(app): State<App>,
    Agent(attempt): Agent,
    Json(took): Json<RunnerTook>,
) -> Result<Json<TakenAnswer>, HttpError> {
    let end = until(took.wait_seconds);
    let named = |text: &str| text.len() <= LONGEST_NAME && !text.chars().any(char::is_control);
    if !named(&took.repository) || !named(&took.job) || !took.actor.as_deref().is_none_or(named) {
        return Err(invalid("registration.took", "a name of what was taken is too long, or is none"));
    }
    let (_, registration) = now(&app, &attempt, took.fence)?;
    let Some(registration) = registration else {
        let text = format!("{} has no registration that could have taken a job", attempt.id);
        return Err(conflict("registration.none", text, "end this machine"));
    };
    let forge = registration.repository.forge;
    let job = TakenJob {
        repository: Repository { forge, id: took.repository_id, name: took.repository },
        run: took.run,
        run_attempt: took.run_attempt,
        key: took.job,
        actor: took.actor_id.map(|id| Person { id, login: took.actor.unwrap_or_default() }),
    };
    let input = Input::RunnerTook { attempt: attempt.id, fence: took.fence, job };
    let mut version = app.core.version();
    version.catch_up();
    let mut answer = match app.core.give(input, principal(&attempt)).await? {
        Reply::Taken { answer } => answer,
        _ => TakenAnswer::Asked,
    };
    while answer == TakenAnswer::Asked && app.changed(&mut version, end).await {
        version.catch_up();
        let (_, registration) = now(&app, &attempt, took.fence)?;
        let taken = registration.and_then(|registration| registration.taken);
        answer = taken.map_or(TakenAnswer::Asked, |taken| taken.answer);
    }
    Ok(Json(answer))
}
