//! `/api/v1`: jobs: what they are, why they wait, their logs; stop one and run one again.

use super::{Answer, LIST};
use crate::app::App;
use crate::auth::{Caller, Member};
use crate::http::Routes;
use crate::http::error::{self, HttpError};
use crate::{logs, past, views};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::*;
use forgeyard_model::JobId;
use forgeyard_model::input::Input;
use forgeyard_model::job::JobKind;
use forgeyard_model::principal::Role;
use serde::Deserialize;
use serde_json::{Value, json};

/// Bytes of a log in one piece.
const PIECE: u64 = 256 << 10;

/// The routes.
pub(super) fn routes() -> Routes {
    use routing::{get, post};
    Routes::new()
        .route("/api/v1/jobs", get(jobs))
        .route("/api/v1/jobs/{id}", get(job))
        .route("/api/v1/jobs/{id}/why", get(why))
        .route("/api/v1/jobs/{id}/log", get(log))
        .route("/api/v1/jobs/{id}/cancel", post(cancel))
        .route("/api/v1/jobs/{id}/rerun", post(rerun))
}

/// Refuses callers below this role in the repository that a job works for.
pub(crate) fn need_of_job(app: &App, caller: &Caller, id: JobId, role: Role) -> Result<(), HttpError> {
    let repository = {
        let farm = app.core.read();
        farm.jobs.get(&id).and_then(|job| farm.repository_of(job.owner)).cloned()
    };
    match repository {
        Some(repository) => caller.need_in(&repository, role),
        // Whoever may nothing anywhere learns nothing of what there is.
        None if caller.standing.highest() < Some(role) => caller.need(role),
        None => Err(error::missing("job", id)),
    }
}

/// The same for whoever only looks, at a job that may be older than memory.
pub(crate) fn need_to_see_job(
    app: &App,
    caller: &Caller,
    id: JobId,
    past: Option<&forgeyard_engine::Farm>,
) -> Result<(), HttpError> {
    let repository = past.and_then(|farm| farm.repository_of(farm.jobs.get(&id)?.owner));
    match repository {
        Some(repository) => caller.need_in(repository, Role::Viewer),
        None => need_of_job(app, caller, id, Role::Viewer),
    }
}

async fn jobs(State(app): State<App>, Member(caller): Member) -> Answer<Value> {
    let farm = app.core.read();
    let seen = farm
        .jobs
        .values()
        .rev()
        .filter(|row| farm.repository_of(row.owner).is_some_and(|of| caller.sees(of)));
    let newest: Vec<_> = seen.take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn job(State(app): State<App>, Member(caller): Member, Path(id): Path<JobId>) -> Answer<JobView> {
    let past = past::of_job(&app, id).await?;
    need_to_see_job(&app, &caller, id, past.as_ref())?;
    Ok(Json(views::job(&app, id).await?))
}

async fn why(State(app): State<App>, Member(caller): Member, Path(id): Path<JobId>) -> Answer<Why> {
    let past = past::of_job(&app, id).await?;
    need_to_see_job(&app, &caller, id, past.as_ref())?;
    let config = app.config();
    let live = app.core.read();
    let farm = past.as_ref().unwrap_or(&live);
    Ok(Json(views::why(&views::foresee(&app, &config, farm), id)?))
}

#[derive(Deserialize)]
struct LogQuery {
    #[serde(default)]
    offset: u64,
    end: Option<u64>,
    raw: Option<u8>,
}

async fn log(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<JobId>,
    Query(query): Query<LogQuery>,
) -> Result<Response, HttpError> {
    need_of_job(&app, &caller, id, Role::Viewer)?;
    let (attempt, live) = {
        let farm = app.core.read();
        if !farm.jobs.contains_key(&id) {
            return Err(error::missing("job", id));
        }
        let last = farm.attempts_of(id).last().map(|attempt| (attempt.id, attempt.state.live()));
        last.map_or((None, false), |(id, live)| (Some(id), live))
    };
    if query.raw.is_some() {
        let bytes = match attempt {
            Some(attempt) => logs::read(&app, attempt, 0, u64::MAX).await?,
            None => Vec::new(),
        };
        return Ok(String::from_utf8_lossy(&bytes).into_owned().into_response());
    }
    let Some(attempt) = attempt else {
        let (text, next) = (String::new(), query.offset);
        let empty = LogPiece { offset: query.offset, text, next, complete: false, attempt };
        return Ok(Json(empty).into_response());
    };
    let limit = query.end.map_or(PIECE, |end| end.saturating_sub(query.offset).min(PIECE));
    let bytes = logs::read(&app, attempt, query.offset, limit).await?;
    let state = app.store.log_state(attempt).await.map_err(|error| error::database(&error))?;
    let cut = whole_characters(&bytes);
    let next = query.offset + cut as u64;
    let over = state.complete || !live;
    let at_end = next >= state.durable || (over && query.offset + bytes.len() as u64 >= state.durable);
    let text = String::from_utf8_lossy(bytes.get(..cut).unwrap_or_default()).into_owned();
    let complete = over && at_end;
    let piece = LogPiece { offset: query.offset, text, next, complete, attempt: Some(attempt) };
    Ok(Json(piece).into_response())
}

/// Length of the longest beginning that does not end inside a character.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        Err(_) => bytes.len(),
    }
}

async fn cancel(State(app): State<App>, Member(caller): Member, Path(job): Path<JobId>) -> Answer<Value> {
    act_on_job(&app, &caller, job, Input::CancelJob { job }).await
}

/// The same for what a maintainer of the job's repository may do.
pub(crate) async fn act_on_job(app: &App, caller: &Caller, job: JobId, input: Input) -> Answer<Value> {
    need_of_job(app, caller, job, Role::Maintainer)?;
    app.core.give(input, caller.principal.clone()).await?;
    Ok(Json(json!({})))
}

async fn rerun(
    State(app): State<App>,
    Member(caller): Member,
    Path(job): Path<JobId>,
    Json(request): Json<RerunRequest>,
) -> Answer<Value> {
    need_of_job(&app, &caller, job, Role::Maintainer)?;
    check_rerun(&app, job, request.test_only)?;
    act_on_job(&app, &caller, job, Input::RerunJob { job }).await
}

/// `--test-only` refuses anything but a test.
pub(crate) fn check_rerun(app: &App, job: JobId, test_only: bool) -> Result<(), HttpError> {
    let kind = app.core.read().jobs.get(&job).map(|job| job.kind);
    let kind = kind.ok_or_else(|| error::missing("job", job))?;
    if test_only && kind != JobKind::Test {
        let text = format!("{job} is a {} job; only a test runs on a kept artifact", kind.name());
        return Err(ApiError::new(ErrorKind::Conflict, "job.not_a_test", text)
            .hint("leave out --test-only")
            .into());
    }
    Ok(())
}
