//! `/api/v1`: what people say once: whether a head may run, and that they accept the terms of service.
//!
//! Whether somebody may approve is decided by the engine, under the access files; here it is only seen to that a caller
//! says it about what it may see, and about the commit that it looked at.

use super::Routes;
use super::error::{self, HttpError, invalid};
use crate::app::App;
use crate::auth::{Caller, Member};
use axum::extract::{Path, State};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::{JudgeRequest, TermsRequest, TermsView};
use forgeyard_engine::approvals::with_acceptances;
use forgeyard_model::approval::{HeadApproval, Way};
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::input::Input;
use forgeyard_model::principal::{PrincipalKind, Role};
use forgeyard_model::{DemandId, PipelineId};
use serde_json::{Value, json};

/// Longest reason, in characters.
const REASON: usize = 500;

/// The routes.
pub fn routes() -> Routes {
    use routing::{get, post};
    Routes::new()
        .route("/api/v1/approvals", get(approvals))
        .route("/api/v1/demands/{id}/approve", post(approve_demand))
        .route("/api/v1/demands/{id}/refuse", post(refuse_demand))
        .route("/api/v1/pipelines/{id}/approve", post(approve_pipeline))
        .route("/api/v1/pipelines/{id}/refuse", post(refuse_pipeline))
        .route("/api/v1/terms", get(terms).post(accept))
}

type Done = Result<Json<Value>, HttpError>;

async fn approvals(State(app): State<App>, Member(caller): Member) -> Json<Vec<HeadApproval>> {
    let farm = app.core.read();
    let mut rows: Vec<HeadApproval> =
        farm.approvals.values().filter(|row| caller.sees(&row.repository)).cloned().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.at));
    Json(rows)
}

/// What is judged: a repository and the head that is there.
pub(super) struct Head {
    pub(super) repository: Repository,
    pub(super) sha: String,
}

pub(super) fn of_demand(app: &App, id: DemandId) -> Result<Head, HttpError> {
    let farm = app.core.read();
    let demand = farm.demands.get(&id).ok_or_else(|| error::missing("demand", id))?;
    Ok(Head { repository: demand.repository.clone(), sha: demand.head().to_owned() })
}

pub(super) fn of_pipeline(app: &App, id: PipelineId) -> Result<Head, HttpError> {
    let farm = app.core.read();
    let pipeline = farm.pipelines.get(&id).ok_or_else(|| error::missing("pipeline", id))?;
    Ok(Head { repository: pipeline.event.repository.clone(), sha: pipeline.event.head_sha.clone() })
}

/// Gives a judgement. Tokens need the role maintainer; of people the access files are asked.
pub(super) async fn judge(
    app: &App,
    caller: &Caller,
    head: impl FnOnce() -> Result<Head, HttpError>,
    request: JudgeRequest,
    approve: bool,
) -> Result<(), HttpError> {
    // Before anything is looked up, so that whoever may nothing learns nothing.
    if !matches!(caller.principal.kind, PrincipalKind::Person { .. }) {
        let highest = caller.standing.highest();
        if highest < Some(Role::Maintainer) {
            caller.need(Role::Maintainer)?;
        }
    }
    let Head { repository, sha } = head()?;
    caller.need_in(&repository, Role::Viewer)?;
    if !request.head_sha.is_empty() && request.head_sha != sha {
        let text = format!("the head is {sha}, not {}", request.head_sha);
        return Err(ApiError::new(ErrorKind::Conflict, "approval.other_head", text)
            .hint("look at the head that is there now; an approval counts for one commit alone")
            .into());
    }
    let reason = request.reason.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if reason.as_ref().is_some_and(|text| text.chars().count() > REASON) {
        return Err(invalid("approval.reason", format!("a reason has at most {REASON} characters")));
    }
    // What came through the check run is said by its webhook alone.
    let how = if request.how == Way::CheckRun { Way::Api } else { request.how };
    let approver = caller.approver(app, &repository);
    let input = Input::HeadJudged { repository, head_sha: sha, approve, reason, approver, how };
    app.core.give(input, caller.principal.clone()).await?;
    Ok(())
}

async fn approve_demand(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<DemandId>,
    Json(request): Json<JudgeRequest>,
) -> Done {
    judge(&app, &caller, || of_demand(&app, id), request, true).await?;
    Ok(Json(json!({})))
}

async fn refuse_demand(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<DemandId>,
    Json(request): Json<JudgeRequest>,
) -> Done {
    judge(&app, &caller, || of_demand(&app, id), request, false).await?;
    Ok(Json(json!({})))
}

async fn approve_pipeline(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<PipelineId>,
    Json(request): Json<JudgeRequest>,
) -> Done {
    judge(&app, &caller, || of_pipeline(&app, id), request, true).await?;
    Ok(Json(json!({})))
}

async fn refuse_pipeline(
    State(app): State<App>,
    Member(caller): Member,
    Path(id): Path<PipelineId>,
    Json(request): Json<JudgeRequest>,
) -> Done {
    judge(&app, &caller, || of_pipeline(&app, id), request, false).await?;
    Ok(Json(json!({})))
}

/// What terms there are, and what the caller accepted.
pub(crate) fn terms_of(app: &App, caller: &Caller) -> TermsView {
    let config = app.config();
    let access = &config.access;
    let person = match caller.principal.kind {
        PrincipalKind::Person { id, ref forge } => access
            .forge_of(forge.as_ref())
            .map(|forge| (forge, Person { id, login: caller.principal.name.clone() })),
        _ => None,
    };
    let accepted = person
        .as_ref()
        .map_or(0, |(forge, person)| with_acceptances(access, &app.core.read()).accepted(forge, person.id));
    let (forge, person) = person.unzip();
    TermsView { version: access.terms_version, url: access.terms_url.clone(), person, forge, accepted }
}

async fn terms(State(app): State<App>, Member(caller): Member) -> Json<TermsView> {
    Json(terms_of(&app, &caller))
}

async fn accept(State(app): State<App>, Member(caller): Member, Json(request): Json<TermsRequest>) -> Done {
    accept_terms(&app, &caller, request).await?;
    Ok(Json(json!({})))
}

/// Records that terms were accepted: by the person itself, or by an admin who holds their word in writing.
pub(super) async fn accept_terms(app: &App, caller: &Caller, request: TermsRequest) -> Result<(), HttpError> {
    let config = app.config();
    let asked = request.person.zip(config.access.forge_of(request.forge.as_ref()));
    let own = match &caller.principal.kind {
        PrincipalKind::Person { id, forge } => Some(*id).zip(config.access.forge_of(forge.as_ref())),
        _ => None,
    };
    let (forge, person) = match (own, asked) {
        // A number that is the caller's own at another forge is somebody else.
        (Some((id, forge)), None) => (forge, Person { id, login: caller.principal.name.clone() }),
        (own, Some((id, forge))) if own.as_ref() == Some(&(id, forge.clone())) => {
            (forge, Person { id, login: caller.principal.name.clone() })
        }
        (_, Some((id, forge))) => {
            caller.need(Role::Admin)?;
            let login = config.access.login(&forge, id).cloned();
            (forge, Person { id, login: login.unwrap_or_else(|| "unknown".to_owned()) })
        }
        (None, None) => {
            let text = format!(
                "the token `{}` speaks for nobody at a forge, so it cannot accept terms",
                caller.principal.name
            );
            let error = ApiError::new(ErrorKind::Forbidden, "terms.nobody", text);
            return Err(error
                .hint("sign in to the console with the forge; an admin names somebody with `--person ID`")
                .into());
        }
    };
    let how = if request.how == Way::CheckRun { Way::Api } else { request.how };
    let input = Input::TermsAccepted { person, forge: Some(forge), version: request.version, how };
    app.core.give(input, caller.principal.clone()).await?;
    Ok(())
}
