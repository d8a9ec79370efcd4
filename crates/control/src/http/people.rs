//! `/api/v1`: for people and programs. Jobs, the gate's answers, and what work leaves have files of their own.

mod access;
mod jobs;
mod products;

pub use access::{answer, ask, ask_about, ask_gate};
pub(crate) use jobs::{act_on_job, check_rerun, need_of_job};

use super::Routes;
use super::error::{self, HttpError, invalid};
use super::upload;
use crate::app::App;
use crate::auth::{Caller, Member};
use crate::{keys, past, views};
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::*;
use forgeyard_api::usage::MonthUsage;
use forgeyard_db::EventQuery;
use forgeyard_model::input::{Input, Reply, StoredSource};
use forgeyard_model::principal::{ApiToken, Principal, PrincipalKind, Role};
use forgeyard_model::who::ForgeId;
use forgeyard_model::{DeviceId, Digest, Id, LeaseId, PipelineId, PrincipalId, RunnerId, SiteId, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows in one list.
const LIST: usize = 200;

type Answer<T> = Result<Json<T>, HttpError>;

/// The routes.
pub fn routes() -> Routes {
    use routing::{get, post, put};
    Routes::new()
        .merge(access::routes())
        .merge(jobs::routes())
        .merge(products::routes())
        .route("/api/v1/status", get(status))
        .route("/api/v1/public-key", get(public_key))
        .route("/api/v1/pipelines", get(pipelines))
        .route("/api/v1/pipelines/{id}", get(pipeline))
        .route("/api/v1/runners", get(runners))
        .route("/api/v1/runners/{id}/keep", post(keep))
        .route("/api/v1/devices", get(devices))
        .route("/api/v1/devices/{id}/clear", post(clear_device))
        .route("/api/v1/devices/{id}/quarantine", post(quarantine_device))
        .route("/api/v1/leases", get(leases))
        .route("/api/v1/leases/{id}/write-off", post(write_off))
        .route("/api/v1/sites/{id}/drain", post(drain))
        .route("/api/v1/queue", get(queue))
        .route("/api/v1/demands", get(demands))
        .route("/api/v1/demands/{id}", get(demand))
        .route("/api/v1/deliveries", get(deliveries))
        .route("/api/v1/events", get(events))
        .route("/api/v1/usage", get(usage))
        .route("/api/v1/usage/month", get(month_usage))
        .route("/api/v1/sources/{digest}", put(source).layer(axum::extract::DefaultBodyLimit::disable()))
        .route("/api/v1/runs", post(run))
        .route("/api/v1/tokens", post(issue_token))
}

async fn status(State(app): State<App>, _: Caller) -> Answer<Status> {
    Ok(Json(views::status(&app)))
}

async fn public_key(State(app): State<App>) -> Answer<PublicKey> {
    let key = app.keys.signing.verifying_key();
    Ok(Json(PublicKey { key_id: forgeyard_formats::statement::key_id(&key), pem: app.keys.public_pem() }))
}

async fn pipelines(State(app): State<App>, Member(caller): Member) -> Answer<Value> {
    let farm = app.core.read();
    let seen = farm.pipelines.values().rev().filter(|row| caller.sees(&row.event.repository));
    let newest: Vec<_> = seen.take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn pipeline(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<PipelineId>,
) -> Answer<PipelineView> {
    let view = views::pipeline(&app, id)?;
    caller.need_in(&view.pipeline.event.repository, Role::Viewer)?;
    Ok(Json(view))
}

/// Gives an input as this caller, when its role allows that.
pub(super) async fn act(app: &App, caller: &Caller, role: Role, input: Input) -> Answer<Value> {
    caller.need(role)?;
    app.core.give(input, caller.principal.clone()).await?;
    Ok(Json(json!({})))
}

async fn runners(State(app): State<App>, _: Caller) -> Answer<Value> {
    let farm = app.core.read();
    let newest: Vec<_> = farm.runners.values().rev().take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn keep(
    State(app): State<App>,
    caller: Caller,
    Path(runner): Path<RunnerId>,
    Json(ReasonRequest { reason }): Json<ReasonRequest>,
) -> Answer<Value> {
    act(&app, &caller, Role::Operator, Input::KeepRunner { runner, reason }).await
}

async fn devices(State(app): State<App>, _: Caller) -> Answer<Value> {
    Ok(Json(json!(app.core.read().devices.values().collect::<Vec<_>>())))
}

async fn clear_device(State(app): State<App>, caller: Caller, Path(device): Path<DeviceId>) -> Answer<Value> {
    act(&app, &caller, Role::Operator, Input::ClearDevice { device }).await
}

async fn quarantine_device(
    State(app): State<App>,
    caller: Caller,
    Path(device): Path<DeviceId>,
    Json(ReasonRequest { reason }): Json<ReasonRequest>,
) -> Answer<Value> {
    act(&app, &caller, Role::Operator, Input::QuarantineDevice { device, reason }).await
}

async fn leases(State(app): State<App>, _: Caller) -> Answer<Value> {
    let farm = app.core.read();
    let newest: Vec<_> = farm.leases.values().rev().take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn write_off(State(app): State<App>, caller: Caller, Path(lease): Path<LeaseId>) -> Answer<Value> {
    act(&app, &caller, Role::Operator, Input::WriteOffLease { lease }).await
}

async fn drain(
    State(app): State<App>,
    caller: Caller,
    Path(site): Path<SiteId>,
    Json(DrainRequest { drain }): Json<DrainRequest>,
) -> Answer<Value> {
    act(&app, &caller, Role::Operator, Input::DrainSite { site, drain }).await
}

async fn queue(State(app): State<App>, Member(caller): Member) -> Answer<Value> {
    let farm = app.core.read();
    let mut rows = views::queue(&views::foresee(&app, &app.config(), &farm), LIST);
    rows.retain(|row| caller.sees(row));
    Ok(Json(json!(rows)))
}

#[derive(Deserialize)]
struct DemandsQuery {
    /// Only those of the job of this number at its forge, however old.
    job: Option<u64>,
}

async fn demands(
    State(app): State<App>,
    Member(caller): Member,
    Query(query): Query<DemandsQuery>,
) -> Answer<Value> {
    if let Some(job) = query.job {
        let mut found = past::numbered(&app, job).await?;
        found.retain(|row| caller.sees(&row.repository));
        return Ok(Json(json!(found)));
    }
    let farm = app.core.read();
    let seen = farm.demands.values().rev().filter(|row| caller.sees(&row.repository));
    let newest: Vec<_> = seen.take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn demand(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<forgeyard_model::DemandId>,
) -> Answer<DemandView> {
    let past = past::of_demand(&app, id).await?;
    let config = app.config();
    let live = app.core.read();
    let farm = past.as_ref().unwrap_or(&live);
    let view = views::demand(&views::foresee(&app, &config, farm), id)?;
    caller.need_in(&view.demand.repository, Role::Viewer)?;
    Ok(Json(view))
}

async fn deliveries(State(app): State<App>, _: Caller) -> Answer<Value> {
    let mut all: Vec<_> = app.core.read().deliveries.values().cloned().collect();
    all.sort_by_key(|delivery| std::cmp::Reverse(delivery.received_at));
    all.truncate(LIST);
    Ok(Json(json!(all)))
}

#[derive(Deserialize)]
struct EventsQuery {
    subject: Option<String>,
    before: Option<forgeyard_model::EventId>,
}

async fn events(State(app): State<App>, _: Caller, Query(query): Query<EventsQuery>) -> Answer<Value> {
    let query = EventQuery { subject: query.subject, before: query.before, limit: LIST as u32 };
    let events = app.store.events(query).await.map_err(|error| error::database(&error))?;
    Ok(Json(json!(events)))
}

#[derive(Deserialize)]
struct UsageQuery {
    since: Option<i64>,
    until: Option<i64>,
}

async fn usage(State(app): State<App>, _: Caller, Query(query): Query<UsageQuery>) -> Answer<Value> {
    let since = Timestamp::from_micros(query.since.unwrap_or(0));
    let until = query.until.map_or_else(|| app.clock.now(), Timestamp::from_micros);
    let usage = app.store.usage(since, until).await.map_err(|error| error::database(&error))?;
    Ok(Json(json!(usage)))
}

async fn month_usage(State(app): State<App>, _: Caller) -> Answer<MonthUsage> {
    Ok(Json(crate::usage::month(&app.core.read(), &app.config(), app.clock.now())))
}

async fn source(
    State(app): State<App>,
    caller: Caller,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Value> {
    let allowed = caller.need(Role::Maintainer);
    upload::store(&app, "the source", digest, &headers, body, allowed).await?;
    Ok(Json(json!({})))
}

async fn run(State(app): State<App>, caller: Caller, Json(request): Json<RunRequest>) -> Answer<RunAnswer> {
    caller.need(Role::Maintainer)?;
    let known = app.blobs.touch(request.digest).await.map_err(|error| error::blobs(&error))?;
    if !known {
        let text = format!("{} is not stored", request.digest);
        return Err(ApiError::new(ErrorKind::NotFound, "run.no_source", text)
            .hint("upload the source first")
            .into());
    }
    if request.guid.is_empty() || request.guid.len() > 100 {
        return Err(invalid("run.guid", "the guid must have 1 to 100 characters"));
    }
    let source = StoredSource { name: request.name, digest: request.digest, size: request.size };
    let input = Input::RunRequested { guid: request.guid, source, file: Box::new(request.file) };
    match app.core.give(input, caller.principal.clone()).await? {
        Reply::Pipeline { pipeline } => Ok(Json(RunAnswer { pipeline })),
        _ => Err(HttpError(ApiError::new(ErrorKind::Internal, "run.reply", "the core gave no pipeline"))),
    }
}

async fn issue_token(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<TokenRequest>,
) -> Answer<TokenAnswer> {
    caller.need(Role::Admin)?;
    let token = keys::new_token();
    issue(&app, caller.principal.clone(), &token, &request).await?;
    Ok(Json(TokenAnswer { token }))
}

/// Makes a token known. Only its digest is stored.
pub async fn issue(app: &App, by: Principal, token: &str, request: &TokenRequest) -> Result<(), HttpError> {
    let digest = Digest::of(token.as_bytes());
    let now = app.clock.now();
    let mut bits = [0u8; 16];
    bits.copy_from_slice(&digest.as_bytes()[..16]);
    let principal = Principal {
        id: PrincipalId::new(now, u128::from_be_bytes(bits)),
        name: request.name.clone(),
        kind: PrincipalKind::Token { role: request.role },
    };
    let access = &app.config().access;
    let expires_at = request.expires_in_seconds.map(|seconds| now.plus(Duration::from_secs(seconds)));
    let token = ApiToken {
        principal,
        digest,
        created_at: now,
        expires_at,
        revoked_at: None,
        // A number that stands alone is of the home forge that there is now, whatever that will be.
        repositories: request
            .repositories
            .iter()
            .map(|known| ForgeId { forge: access.forge_of(known.forge.as_ref()), id: known.id })
            .collect(),
        forge_roles: BTreeMap::new(),
        generation: 0,
    };
    app.core.give(Input::TokenIssued { token }, by).await?;
    Ok(())
}
