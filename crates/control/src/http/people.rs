//! `/api/v1`: for people and programs.

use super::Routes;
use super::error::{self, HttpError, invalid};
use super::{range, upload};
use crate::app::App;
use crate::auth::{Caller, Member};
use crate::{keys, logs, views};
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::*;
use forgeyard_api::usage::MonthUsage;
use forgeyard_db::EventQuery;
use forgeyard_engine::approvals::with_acceptances;
use forgeyard_engine::gate;
use forgeyard_model::access::EventClass;
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::input::{Input, Reply, StoredSource};
use forgeyard_model::job::JobKind;
use forgeyard_model::principal::{ApiToken, Principal, PrincipalKind, Role};
use forgeyard_model::{
    ArtifactId, DeviceId, Digest, Id, JobId, LeaseId, PipelineId, PrincipalId, RunnerId, SiteId, Timestamp,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows in one list.
const LIST: usize = 200;
/// Bytes of a log in one piece.
const PIECE: u64 = 256 << 10;

type Answer<T> = Result<Json<T>, HttpError>;

/// The routes.
pub fn routes() -> Routes {
    use routing::{get, post, put};
    Routes::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/public-key", get(public_key))
        .route("/api/v1/pipelines", get(pipelines))
        .route("/api/v1/pipelines/{id}", get(pipeline))
        .route("/api/v1/jobs", get(jobs))
        .route("/api/v1/jobs/{id}", get(job))
        .route("/api/v1/jobs/{id}/why", get(why))
        .route("/api/v1/jobs/{id}/log", get(log))
        .route("/api/v1/jobs/{id}/cancel", post(cancel))
        .route("/api/v1/jobs/{id}/rerun", post(rerun))
        .route("/api/v1/runners", get(runners))
        .route("/api/v1/runners/{id}/keep", post(keep))
        .route("/api/v1/devices", get(devices))
        .route("/api/v1/devices/{id}/clear", post(clear_device))
        .route("/api/v1/devices/{id}/quarantine", post(quarantine_device))
        .route("/api/v1/leases", get(leases))
        .route("/api/v1/leases/{id}/write-off", post(write_off))
        .route("/api/v1/sites/{id}/drain", post(drain))
        .route("/api/v1/artifacts", get(artifacts))
        .route("/api/v1/artifacts/{id}", get(artifact))
        .route("/api/v1/artifacts/{id}/bytes", get(artifact_bytes))
        .route("/api/v1/artifacts/{id}/statements", get(statements))
        .route("/api/v1/channels", get(channels))
        .route("/api/v1/environments", get(environments))
        .route("/api/v1/environment-work", get(environment_work))
        .route("/api/v1/environments/{id}/result", post(environment_result))
        .route("/api/v1/queue", get(queue))
        .route("/api/v1/demands", get(demands))
        .route("/api/v1/demands/{id}", get(demand))
        .route("/api/v1/deliveries", get(deliveries))
        .route("/api/v1/events", get(events))
        .route("/api/v1/usage", get(usage))
        .route("/api/v1/usage/month", get(month_usage))
        .route("/api/v1/access/explain", post(explain_access))
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
    let seen = farm.pipelines.values().rev().filter(|row| caller.sees(row.event.repository.id));
    let newest: Vec<_> = seen.take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn pipeline(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<PipelineId>,
) -> Answer<PipelineView> {
    let view = views::pipeline(&app, id)?;
    caller.need_in(view.pipeline.event.repository.id, Role::Viewer)?;
    Ok(Json(view))
}

/// Refuses callers below this role in the repository that a job works for.
pub(super) fn need_of_job(app: &App, caller: &Caller, id: JobId, role: Role) -> Result<(), HttpError> {
    let repository = {
        let farm = app.core.read();
        farm.jobs.get(&id).map(|job| farm.repository_of(job.owner))
    };
    match repository {
        Some(repository) => caller.need_in(repository, role),
        // Whoever may nothing anywhere learns nothing of what there is.
        None if caller.standing.highest() < Some(role) => caller.need(role),
        None => Err(error::missing("job", id)),
    }
}

async fn jobs(State(app): State<App>, Member(caller): Member) -> Answer<Value> {
    let farm = app.core.read();
    let seen = farm.jobs.values().rev().filter(|row| caller.sees(farm.repository_of(row.owner)));
    let newest: Vec<_> = seen.take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn job(State(app): State<App>, Member(caller): Member, Path(id): Path<JobId>) -> Answer<JobView> {
    need_of_job(&app, &caller, id, Role::Viewer)?;
    Ok(Json(views::job(&app, id).await?))
}

async fn why(State(app): State<App>, Member(caller): Member, Path(id): Path<JobId>) -> Answer<Why> {
    need_of_job(&app, &caller, id, Role::Viewer)?;
    let farm = app.core.read();
    Ok(Json(views::why(&views::foresee(&app, &app.config(), &farm), id)?))
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

/// Gives an input as this caller, when its role allows that.
pub(super) async fn act(app: &App, caller: &Caller, role: Role, input: Input) -> Answer<Value> {
    caller.need(role)?;
    app.core.give(input, caller.principal.clone()).await?;
    Ok(Json(json!({})))
}

async fn cancel(State(app): State<App>, Member(caller): Member, Path(job): Path<JobId>) -> Answer<Value> {
    act_on_job(&app, &caller, job, Input::CancelJob { job }).await
}

/// The same for what a maintainer of the job's repository may do.
pub(super) async fn act_on_job(app: &App, caller: &Caller, job: JobId, input: Input) -> Answer<Value> {
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
pub fn check_rerun(app: &App, job: JobId, test_only: bool) -> Result<(), HttpError> {
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
        version.borrow_and_update();
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

async fn queue(State(app): State<App>, Member(caller): Member) -> Answer<Value> {
    let farm = app.core.read();
    let mut rows = views::queue(&views::foresee(&app, &app.config(), &farm), LIST);
    rows.retain(|row| caller.sees(row.repository_id));
    Ok(Json(json!(rows)))
}

async fn demands(State(app): State<App>, Member(caller): Member) -> Answer<Value> {
    let farm = app.core.read();
    let seen = farm.demands.values().rev().filter(|row| caller.sees(row.repository.id));
    let newest: Vec<_> = seen.take(LIST).collect();
    Ok(Json(json!(newest)))
}

async fn demand(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<forgeyard_model::DemandId>,
) -> Answer<DemandView> {
    let farm = app.core.read();
    let view = views::demand(&views::foresee(&app, &app.config(), &farm), id)?;
    caller.need_in(view.demand.repository.id, Role::Viewer)?;
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

async fn explain_access(
    State(app): State<App>,
    Member(caller): Member,
    Json(question): Json<AccessQuestion>,
) -> Answer<AccessAnswer> {
    caller.need_in(question.repository, Role::Viewer)?;
    Ok(Json(ask_gate(&app, &question)))
}

/// What the gate would say, with the terms that were accepted at the farm itself.
pub fn ask_gate(app: &App, question: &AccessQuestion) -> AccessAnswer {
    let farm = app.core.read();
    let config = app.config();
    match with_acceptances(&config.access, &farm) {
        std::borrow::Cow::Borrowed(_) => answer(&config, question),
        std::borrow::Cow::Owned(access) => {
            drop(farm);
            let config = forgeyard_model::config::FarmConfig { access, ..(*config).clone() };
            answer(&config, question)
        }
    }
}

/// Everything that the gate would say under this configuration: the same for API, console and command line.
pub fn answer(config: &forgeyard_model::config::FarmConfig, question: &AccessQuestion) -> AccessAnswer {
    let known = config.repositories.iter().find(|repository| repository.id == question.repository);
    let access = &config.access;
    // The question is about somebody of the forge of the repository.
    let login = known.and_then(|known| access.login(&known.forge, question.person)).cloned();
    let person = Person { id: question.person, login: login.unwrap_or_else(|| "unknown".to_owned()) };
    let role = known.and_then(|known| {
        gate::standing::in_repository(access, known, &known.forge, person.id, &BTreeMap::new())
    });
    let approval = match known {
        None => ApprovalAnswer {
            may: false,
            evidence: vec![format!("repository {} is not one of this farm", question.repository)],
            fix: None,
        },
        Some(known) => {
            let repository =
                Repository { forge: known.forge.clone(), id: known.id, name: known.name.clone() };
            let asked = (&person, &known.forge);
            match gate::may_approve(&repository, Some(known), &question.resource, access, asked, None) {
                Ok(rules) => ApprovalAnswer {
                    may: true,
                    evidence: rules
                        .into_iter()
                        .map(|(grant, how)| {
                            format!("grant `{grant}`: {} (id {}) {how}", person.login, person.id)
                        })
                        .collect(),
                    fix: None,
                },
                Err(reason) => ApprovalAnswer {
                    may: false,
                    evidence: if reason.evidence.is_empty() { vec![reason.message] } else { reason.evidence },
                    fix: reason.fix,
                },
            }
        }
    };
    AccessAnswer {
        decision: ask(config, question),
        approval,
        role: role.map(|(role, rule)| format!("{role}, by {rule}")),
    }
}

/// What the gate would say under this configuration.
pub fn ask(
    config: &forgeyard_model::config::FarmConfig,
    question: &AccessQuestion,
) -> forgeyard_model::access::Decision {
    let repository = config.repositories.iter().find(|repository| repository.id == question.repository);
    let protected =
        repository.and_then(|repository| repository.protected.first()).map_or("main", String::as_str);
    let trigger = match question.event {
        EventClass::Push => Trigger::Push { git_ref: format!("refs/heads/{protected}") },
        EventClass::PullRequest | EventClass::ForkPullRequest => {
            let fork = question.event == EventClass::ForkPullRequest;
            Trigger::PullRequest {
                number: 1,
                base: protected.to_owned(),
                base_sha: "0".repeat(40),
                head_repository: if fork { 0 } else { question.repository },
                fork,
            }
        }
        EventClass::Schedule | EventClass::Dispatch | EventClass::Rerun => Trigger::Manual,
    };
    let person = Person {
        id: question.person,
        login: repository
            .and_then(|known| config.access.login(&known.forge, question.person))
            .cloned()
            .unwrap_or_else(|| "unknown".to_owned()),
    };
    let name = repository.map_or_else(|| "unknown".to_owned(), |repository| repository.name.clone());
    let forge = repository.map(|repository| repository.forge.clone());
    let Some(forge) = forge.or_else(|| "github".parse().ok()) else {
        let reason = forgeyard_model::Explanation::new("gate.no_forge", "no forge is configured");
        return forgeyard_model::access::Decision::Deny { reason };
    };
    let event = ForgeEvent {
        repository: Repository { forge, id: question.repository, name },
        trigger,
        head_sha: "0".repeat(40),
        sender: person.clone(),
        author: Some(person),
    };
    ask_about(config, &event, &question.resource)
}

/// What the gate would say to an event under this configuration.
pub fn ask_about(
    config: &forgeyard_model::config::FarmConfig,
    event: &ForgeEvent,
    resource: &str,
) -> forgeyard_model::access::Decision {
    let repository = config.repository(&event.repository.forge, event.repository.id);
    gate::decide(event, repository, resource, &config.access, None)
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
    let expires_at = request.expires_in_seconds.map(|seconds| now.plus(Duration::from_secs(seconds)));
    let token = ApiToken {
        principal,
        digest,
        created_at: now,
        expires_at,
        revoked_at: None,
        repositories: request.repositories.clone(),
        forge_roles: BTreeMap::new(),
        generation: 0,
    };
    app.core.give(Input::TokenIssued { token }, by).await?;
    Ok(())
}
