//! What buttons post to. Each checks the role as the API does, gives one input as the person that is signed in, and
//! leads back to the page where its effect shows.

use super::{Form, Named};
use crate::app::App;
use crate::console::routes;
use crate::http::error::{HttpError, invalid, missing};
use crate::http::people;
use axum::extract::State;
use axum::response::Redirect;
use forgeyard_model::input::Input;
use forgeyard_model::principal::Role;
use forgeyard_model::{DeviceId, JobId, LeaseId, PoolName, RunnerId, SiteId};
use serde::Deserialize;

type Done = Result<Redirect, HttpError>;

/// Longest reason, in characters; as long as the field of the page.
const REASON: usize = 200;

async fn act<T>(app: &App, form: &Form<T>, role: Role, input: Input, back: &str) -> Done {
    let _ = people::act(app, &form.caller, role, input).await?;
    Ok(Redirect::to(back))
}

#[derive(Deserialize)]
pub(super) struct Nothing {}

#[derive(Deserialize)]
pub(super) struct Reason {
    reason: String,
}

impl Reason {
    fn text(&self) -> Result<String, HttpError> {
        let text = self.reason.trim();
        if text.is_empty() || text.chars().count() > REASON {
            return Err(invalid("form.reason", format!("a reason has 1 to {REASON} characters")));
        }
        Ok(text.to_owned())
    }
}

pub(super) async fn cancel(State(app): State<App>, Named(job): Named<JobId>, form: Form<Nothing>) -> Done {
    act(&app, &form, Role::Maintainer, Input::CancelJob { job }, &routes::job(job)).await
}

#[derive(Deserialize)]
pub(super) struct Rerun {
    #[serde(default)]
    test_only: String,
}

pub(super) async fn rerun(State(app): State<App>, Named(job): Named<JobId>, form: Form<Rerun>) -> Done {
    form.caller.need(Role::Maintainer)?;
    people::check_rerun(&app, job, form.fields.test_only == "true")?;
    act(&app, &form, Role::Maintainer, Input::RerunJob { job }, &routes::job(job)).await
}

pub(super) async fn clear_device(
    State(app): State<App>,
    Named(device): Named<DeviceId>,
    form: Form<Nothing>,
) -> Done {
    act(&app, &form, Role::Operator, Input::ClearDevice { device }, routes::DEVICES).await
}

pub(super) async fn quarantine_device(
    State(app): State<App>,
    Named(device): Named<DeviceId>,
    form: Form<Reason>,
) -> Done {
    let input = Input::QuarantineDevice { device, reason: form.fields.text()? };
    act(&app, &form, Role::Operator, input, routes::DEVICES).await
}

pub(super) async fn write_off(
    State(app): State<App>,
    Named(lease): Named<LeaseId>,
    form: Form<Nothing>,
) -> Done {
    act(&app, &form, Role::Operator, Input::WriteOffLease { lease }, routes::DEVICES).await
}

pub(super) async fn keep(State(app): State<App>, Named(runner): Named<RunnerId>, form: Form<Reason>) -> Done {
    let input = Input::KeepRunner { runner, reason: form.fields.text()? };
    let job = {
        let farm = app.core.read();
        let attempt = farm.runners.get(&runner).and_then(|row| farm.attempts.get(&row.work.attempt()?));
        attempt.map(|attempt| attempt.job).ok_or_else(|| missing("runner", runner))?
    };
    act(&app, &form, Role::Operator, input, &routes::job(job)).await
}

#[derive(Deserialize)]
pub(super) struct Drain {
    drain: String,
}

impl Drain {
    fn wish(&self) -> Result<bool, HttpError> {
        match self.drain.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(invalid("form.drain", "the field drain is true or false")),
        }
    }
}

pub(super) async fn drain(State(app): State<App>, Named(site): Named<SiteId>, form: Form<Drain>) -> Done {
    let drain = form.fields.wish()?;
    act(&app, &form, Role::Operator, Input::DrainSite { site, drain }, routes::SITES).await
}

pub(super) async fn drain_pool(
    State(app): State<App>,
    Named(pool): Named<PoolName>,
    form: Form<Drain>,
) -> Done {
    let drain = form.fields.wish()?;
    act(&app, &form, Role::Operator, Input::DrainPool { pool, drain }, routes::POOLS).await
}

pub(super) async fn reset_pool(
    State(app): State<App>,
    Named(pool): Named<PoolName>,
    form: Form<Nothing>,
) -> Done {
    act(&app, &form, Role::Operator, Input::ResetPool { pool }, routes::POOLS).await
}
