//! Pages that read: view data in, markup out. The farm is locked only while rows are copied.

use super::job::Part;
use super::{Named, Page, html, names, shell, shell_of};
use crate::app::App;
use crate::auth::{self, Caller, Member};
use crate::console::blocks::Pager;
use crate::console::devices::DevicesView;
use crate::console::pipelines::Filter;
use crate::console::{self, assets, routes};
use crate::http::error::{self, HttpError, missing};
use crate::http::people::ask_gate;
use crate::http::settings;
use crate::views;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use forgeyard_api::people::{AccessQuestion, Status};
use forgeyard_db::EventQuery;
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use forgeyard_model::principal::Role;
use forgeyard_model::{ArtifactId, ChannelName, EnvironmentId, EventId, PipelineId};
use serde::Deserialize;

/// Rows of one page.
const ROWS: usize = 50;
/// Events that are looked through for the past of one device.
const PAST: u32 = 50;

/// The front page is the list of pipelines.
pub(super) async fn front(_: Member) -> Redirect {
    Redirect::to(routes::PIPELINES)
}

#[derive(Deserialize)]
pub(super) struct PipelinesQuery {
    #[serde(default)]
    state: String,
    before: Option<PipelineId>,
    fragment: Option<String>,
}

fn listed(filter: Filter, state: &PipelineState) -> bool {
    match filter {
        Filter::All => true,
        Filter::Active => !state.ended(),
        Filter::Succeeded => matches!(state, PipelineState::Succeeded),
        Filter::Failed => matches!(state, PipelineState::Failed { .. }),
        Filter::Canceled => matches!(state, PipelineState::Canceled { .. }),
    }
}

/// One page of rows, newest first, out of at most one more than fit; the link to older ones when there are some.
fn one_page<T>(mut rows: Vec<T>, first: bool, here: &str, key: impl Fn(&T) -> String) -> (Vec<T>, Pager) {
    let more = rows.len() > ROWS;
    rows.truncate(ROWS);
    let joint = if here.contains('?') { '&' } else { '?' };
    let older =
        rows.last().filter(|_| more).map(|row| format!("{here}{joint}before={}", routes::query(&key(row))));
    (rows, Pager { newer: (!first).then(|| here.to_owned()), older })
}

/// The list of pipelines.
pub(super) async fn pipelines(
    State(app): State<App>,
    Member(caller): Member,
    Query(query): Query<PipelinesQuery>,
) -> Page {
    let filter = Filter::parse(&query.state);
    let rows: Vec<Pipeline> = {
        let farm = app.core.read();
        let older =
            farm.pipelines.values().rev().filter(|row| query.before.is_none_or(|before| row.id < before));
        older
            .filter(|row| listed(filter, &row.state) && caller.sees(&row.event.repository))
            .take(ROWS + 1)
            .cloned()
            .collect()
    };
    let here = match filter {
        Filter::All => routes::PIPELINES.to_owned(),
        _ => format!("{}?state={}", routes::PIPELINES, filter.name()),
    };
    let (rows, pager) = one_page(rows, query.before.is_none(), &here, |row| row.id.to_string());
    let shell = shell(&app, Some(&caller));
    match query.fragment {
        Some(_) => html(console::pipelines::table(&shell, &rows)),
        None => html(console::pipelines::pipelines(&shell, &rows, filter, &pager)),
    }
}

/// Who waits, and why.
pub(super) async fn queue(State(app): State<App>, Member(caller): Member) -> Page {
    let mut rows = {
        let farm = app.core.read();
        views::queue(&views::foresee(&app, &app.config(), &farm), 4 * ROWS)
    };
    rows.retain(|row| caller.sees(row));
    html(console::queue::queue(&shell(&app, Some(&caller)), &rows))
}

/// A pipeline, or its live part.
pub(super) async fn pipeline(
    State(app): State<App>,
    Member(caller): Member,
    Named(id): Named<PipelineId>,
    Query(Part { fragment }): Query<Part>,
) -> Page {
    let view = views::pipeline(&app, id)?;
    let repository = &view.pipeline.event.repository;
    caller.need_in(repository, Role::Viewer)?;
    let (shell, names) = (shell_of(&app, &caller, repository), names(&app));
    match fragment {
        Some(_) => html(console::pipeline::fragment(&shell, &view, &names)),
        None => html(console::pipeline::pipeline(&shell, &view, &names)),
    }
}

/// Devices, who holds them, and their past.
pub(super) async fn devices(State(app): State<App>, caller: Caller) -> Page {
    let mut view = {
        let farm = app.core.read();
        let live = farm.index.live_leases.iter().filter_map(|(_, id)| farm.leases.get(id));
        let leases = live.map(|lease| {
            let attempt = lease.attempt.and_then(|id| farm.attempts.get(&id));
            let job = attempt.and_then(|attempt| farm.jobs.get(&attempt.job));
            (lease.id, (lease.clone(), job.map(|job| (job.id, job.key.clone()))))
        });
        DevicesView {
            devices: farm.devices.values().cloned().collect(),
            leases: leases.collect(),
            history: Default::default(),
        }
    };
    for device in &view.devices {
        let query = EventQuery { subject: Some(device.id.to_string()), before: None, limit: PAST };
        let mut events = app.store.events(query).await.map_err(|error| error::database(&error))?;
        events.retain(|event| event.to == "quarantined" || event.from.as_deref() == Some("quarantined"));
        view.history.insert(device.id, events);
    }
    html(console::devices::devices(&shell(&app, Some(&caller)), &view, &names(&app)))
}

/// Sites.
pub(super) async fn sites(State(app): State<App>, caller: Caller) -> Page {
    let rows: Vec<_> = app.core.read().sites.values().cloned().collect();
    html(console::sites::sites(&shell(&app, Some(&caller)), &rows))
}

/// Pools, with their last day.
pub(super) async fn pools(State(app): State<App>, caller: Caller) -> Page {
    let (config, now) = (app.config(), app.clock.now());
    let rows: Vec<_> = {
        let farm = app.core.read();
        config.pools.iter().map(|pool| views::pools::pool(&farm, &config, pool, now)).collect()
    };
    html(console::pools::pools(&shell(&app, Some(&caller)), &rows))
}

#[derive(Deserialize)]
pub(super) struct Before<T> {
    before: Option<T>,
}

/// Artifacts, newest first. Their ids do not sort by time, so the place in the list is a time and an id.
pub(super) async fn artifacts(
    State(app): State<App>,
    caller: Caller,
    Query(Before { before }): Query<Before<ArtifactId>>,
) -> Page {
    let mut rows: Vec<_> = {
        let farm = app.core.read();
        let before = before.and_then(|id| farm.artifacts.get(&id)).map(|row| (row.stored_at, row.id));
        let older =
            farm.artifacts.values().filter(|row| before.is_none_or(|it| (row.stored_at, row.id) < it));
        older.cloned().collect()
    };
    rows.sort_by_key(|row| std::cmp::Reverse((row.stored_at, row.id)));
    rows.truncate(ROWS + 1);
    let (rows, pager) = one_page(rows, before.is_none(), routes::ARTIFACTS, |row| row.id.to_string());
    html(console::artifacts::artifacts(&shell(&app, Some(&caller)), &rows, &pager))
}

/// One artifact with where it comes from.
pub(super) async fn artifact(State(app): State<App>, caller: Caller, Named(id): Named<ArtifactId>) -> Page {
    let (artifact, pipeline, job, attempt, tests, promoted) = {
        let farm = app.core.read();
        let artifact = farm.artifacts.get(&id).cloned().ok_or_else(|| missing("artifact", id))?;
        let pipeline = farm.pipelines.get(&artifact.pipeline).cloned();
        let pipeline = pipeline.ok_or_else(|| missing("pipeline", artifact.pipeline))?;
        let job = artifact.job.and_then(|id| farm.jobs.get(&id)).cloned();
        let attempt = artifact.attempt.and_then(|id| farm.attempts.get(&id)).cloned();
        let takes = |job: &&forgeyard_model::job::Job| {
            job.test.as_ref().and_then(|test| test.package) == Some(id)
                || job
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.subject.as_ref())
                    .is_some_and(|subject| subject.digest == artifact.digest)
        };
        let tests: Vec<_> = farm.jobs_of(artifact.pipeline).filter(takes).cloned().collect();
        let entries = farm
            .channels
            .values()
            .flat_map(|channel| channel.entries.iter().map(|entry| (channel.name.clone(), entry.clone())));
        let promoted: Vec<_> = entries.filter(|(_, entry)| entry.artifact == id).collect();
        (artifact, pipeline, job, attempt, tests, promoted)
    };
    let view = console::artifacts::ArtifactView {
        artifact: &artifact,
        pipeline: &pipeline,
        job: job.as_ref(),
        attempt: attempt.as_ref(),
        tests: &tests,
        promoted: &promoted,
    };
    html(console::artifacts::artifact(&shell(&app, Some(&caller)), &view, &names(&app)))
}

/// Channels.
pub(super) async fn channels(State(app): State<App>, caller: Caller) -> Page {
    let rows: Vec<_> = app.core.read().channels.values().cloned().collect();
    html(console::channels::channels(&shell(&app, Some(&caller)), &rows))
}

/// One channel.
pub(super) async fn channel(State(app): State<App>, caller: Caller, Named(name): Named<ChannelName>) -> Page {
    let row = app.core.read().channels.get(&name).cloned().ok_or_else(|| missing("channel", &name))?;
    html(console::channels::channel(&shell(&app, Some(&caller)), &row))
}

/// Environments.
pub(super) async fn environments(State(app): State<App>, caller: Caller) -> Page {
    let mut rows: Vec<_> = app.core.read().environments.values().cloned().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.requested_at, row.id)));
    rows.truncate(ROWS);
    html(console::environments::environments(&shell(&app, Some(&caller)), &rows))
}

/// One environment.
pub(super) async fn environment(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EnvironmentId>,
) -> Page {
    let row = app.core.read().environments.get(&id).cloned().ok_or_else(|| missing("environment", id))?;
    html(console::environments::environment(&shell(&app, Some(&caller)), &row))
}

#[derive(Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    repository: String,
    #[serde(default)]
    person: String,
    #[serde(default)]
    event: String,
    #[serde(default)]
    resource: String,
}

/// The access explainer.
pub(super) async fn access(State(app): State<App>, caller: Caller, Query(asked): Query<Asked>) -> Page {
    let Asked { repository, person, event, resource } = asked;
    let question = console::access::Question { repository, person, event, resource };
    let nothing = question.repository.is_empty() && question.person.is_empty();
    let answer = if nothing { Ok(None) } else { understood(&question).map(|it| Some(ask_gate(&app, &it))) };
    let shell = shell(&app, Some(&caller));
    let config = app.config();
    let rules = &config.access;
    match answer {
        Ok(decision) => html(console::access::access(&shell, rules, &question, decision.as_ref(), None)),
        Err(trouble) => html(console::access::access(&shell, rules, &question, None, Some(&trouble))),
    }
}

/// Reads a question, or says what is wrong with it.
fn understood(question: &console::access::Question) -> Result<AccessQuestion, String> {
    let number = |what: &str, text: &str| {
        text.trim()
            .parse()
            .map_err(|_| format!("the {what} id must be a number; renamed accounts keep theirs"))
    };
    let event = console::access::EVENT_CLASSES
        .into_iter()
        .find(|class| console::access::event_class(*class) == question.event)
        .ok_or("choose an event from the list")?;
    if question.resource.trim().is_empty() {
        return Err("name a pool or a resource".to_owned());
    }
    Ok(AccessQuestion {
        repository: question.repository.trim().parse().map_err(|error| format!("the repository: {error}"))?,
        person: number("person", &question.person)?,
        event,
        resource: question.resource.trim().to_owned(),
    })
}

/// The terms of service.
pub(super) async fn terms(State(app): State<App>, Member(caller): Member) -> Page {
    let view = crate::http::judging::terms_of(&app, &caller);
    html(console::terms::terms(&shell(&app, Some(&caller)), &view))
}

/// Webhook deliveries, newest first.
pub(super) async fn deliveries(
    State(app): State<App>,
    caller: Caller,
    Query(Before { before }): Query<Before<String>>,
) -> Page {
    let mut rows: Vec<_> = {
        let farm = app.core.read();
        let before = before.as_ref().and_then(|guid| farm.deliveries.get(guid));
        let before = before.map(|row| (row.received_at, row.guid.clone()));
        let older = farm.deliveries.values().filter(|row| {
            before.as_ref().is_none_or(|(at, guid)| (row.received_at, &row.guid) < (*at, guid))
        });
        older.cloned().collect()
    };
    rows.sort_by(|a, b| (b.received_at, &b.guid).cmp(&(a.received_at, &a.guid)));
    rows.truncate(ROWS + 1);
    let (rows, pager) = one_page(rows, before.is_none(), routes::DELIVERIES, |row| row.guid.clone());
    html(console::deliveries::deliveries(&shell(&app, Some(&caller)), &rows, &pager))
}

#[derive(Deserialize)]
pub(super) struct AuditQuery {
    #[serde(default)]
    subject: String,
    before: Option<EventId>,
}

/// The audit trail.
pub(super) async fn audit(State(app): State<App>, caller: Caller, Query(query): Query<AuditQuery>) -> Page {
    let subject = query.subject.trim();
    let wanted = (!subject.is_empty()).then(|| subject.to_owned());
    let events = EventQuery { subject: wanted, before: query.before, limit: ROWS as u32 + 1 };
    let rows = app.store.events(events).await.map_err(|error| error::database(&error))?;
    let here = if subject.is_empty() { routes::AUDIT.to_owned() } else { routes::audit_of(subject) };
    let (rows, pager) = one_page(rows, query.before.is_none(), &here, |row| row.id.to_string());
    html(console::audit::audit(&shell(&app, Some(&caller)), &rows, subject, &pager))
}

#[derive(Deserialize)]
pub(super) struct Versions {
    from: Option<u64>,
    to: Option<u64>,
}

/// The history of the configuration.
pub(super) async fn config(
    State(app): State<App>,
    caller: Caller,
    Query(Versions { from, to }): Query<Versions>,
) -> Page {
    caller.need(Role::Operator)?;
    let rows = settings::versions(&app).await?;
    let whole = |number: u64| {
        let row = rows.iter().find(|row| row.number == number);
        row.map(|row| settings::view(row, true))
            .ok_or_else(|| missing("version of the configuration", number))
    };
    let compared = match (from, to) {
        (Some(from), Some(to)) => Some((whole(from)?, whole(to)?)),
        _ => None,
    };
    let compared = compared.as_ref().map(|(old, new)| console::history::Compared { old, new });
    let versions: Vec<_> = rows.iter().map(|row| settings::view(row, false)).collect();
    html(console::history::history(&shell(&app, Some(&caller)), &versions, compared))
}

/// The status page; strangers see less.
pub(super) async fn status(State(app): State<App>, headers: HeaderMap) -> Page {
    let caller = auth::viewer(&app, &headers);
    let status = if caller.is_some() { views::status(&app) } else { views::public_status(&app) };
    html(console::status::status(&shell(&app, caller.as_ref()), &status))
}

/// What strangers may know, as JSON.
pub(super) async fn status_json(State(app): State<App>) -> Json<Status> {
    Json(views::public_status(&app))
}

/// Style sheet, scripts, icon.
pub(super) async fn asset(uri: Uri) -> Result<Response, HttpError> {
    let asset = assets::find(uri.path()).ok_or_else(|| missing("page", uri.path()))?;
    let headers =
        [(header::CONTENT_TYPE, asset.content_type), (header::CACHE_CONTROL, assets::CACHE_CONTROL)];
    Ok((headers, asset.body).into_response())
}
