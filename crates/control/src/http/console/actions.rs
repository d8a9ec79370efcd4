//! What buttons post to. Each checks the role as the API does, gives one input as the person that is signed in, and
//! leads back to the page where its effect shows.

use super::form::MemberForm;
use super::{Form, Named, session};
use crate::app::App;
use crate::console::routes;
use crate::http::error::{HttpError, invalid, missing};
use crate::http::{judging, people};
use axum::extract::State;
use axum::response::Redirect;
use forgeyard_api::people::{JudgeRequest, TermsRequest};
use forgeyard_model::approval::Way;
use forgeyard_model::input::Input;
use forgeyard_model::principal::Role;
use forgeyard_model::{DemandId, DeviceId, JobId, LeaseId, PipelineId, PoolName, RunnerId, SiteId};
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

pub(super) async fn cancel(
    State(app): State<App>,
    Named(job): Named<JobId>,
    form: MemberForm<Nothing>,
) -> Done {
    let _ = people::act_on_job(&app, &form.caller, job, Input::CancelJob { job }).await?;
    Ok(Redirect::to(&routes::job(job)))
}

#[derive(Deserialize)]
pub(super) struct Rerun {
    #[serde(default)]
    test_only: String,
}

pub(super) async fn rerun(State(app): State<App>, Named(job): Named<JobId>, form: MemberForm<Rerun>) -> Done {
    people::need_of_job(&app, &form.caller, job, Role::Maintainer)?;
    people::check_rerun(&app, job, form.fields.test_only == "true")?;
    let _ = people::act_on_job(&app, &form.caller, job, Input::RerunJob { job }).await?;
    Ok(Redirect::to(&routes::job(job)))
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

#[derive(Deserialize)]
pub(super) struct Judged {
    #[serde(default)]
    reason: String,
    /// The commit that the page showed.
    #[serde(default)]
    head: String,
    /// Where the button was.
    #[serde(default)]
    back: String,
}

impl Judged {
    fn request(&self) -> JudgeRequest {
        let reason = Some(self.reason.clone()).filter(|reason| !reason.trim().is_empty());
        JudgeRequest { head_sha: self.head.clone(), reason, how: Way::Console }
    }
}

/// A button that judges must name the commit that its page showed: an empty one would approve whatever is there.
fn looked_at(form: &MemberForm<Judged>) -> Result<(), HttpError> {
    if form.fields.head.is_empty() {
        return Err(invalid("form.head", "the form does not say which commit was looked at"));
    }
    Ok(())
}

async fn judge_demand(app: App, id: DemandId, form: MemberForm<Judged>, approve: bool) -> Done {
    looked_at(&form)?;
    let request = form.fields.request();
    judging::judge(&app, &form.caller, || judging::of_demand(&app, id), request, approve).await?;
    Ok(Redirect::to(session::local_or(&form.fields.back, routes::QUEUE)))
}

pub(super) async fn approve_demand(
    State(app): State<App>,
    Named(id): Named<DemandId>,
    form: MemberForm<Judged>,
) -> Done {
    judge_demand(app, id, form, true).await
}

pub(super) async fn refuse_demand(
    State(app): State<App>,
    Named(id): Named<DemandId>,
    form: MemberForm<Judged>,
) -> Done {
    judge_demand(app, id, form, false).await
}

async fn judge_pipeline(app: App, id: PipelineId, form: MemberForm<Judged>, approve: bool) -> Done {
    looked_at(&form)?;
    let request = form.fields.request();
    judging::judge(&app, &form.caller, || judging::of_pipeline(&app, id), request, approve).await?;
    Ok(Redirect::to(&routes::pipeline(id)))
}

pub(super) async fn approve_pipeline(
    State(app): State<App>,
    Named(id): Named<PipelineId>,
    form: MemberForm<Judged>,
) -> Done {
    judge_pipeline(app, id, form, true).await
}

pub(super) async fn refuse_pipeline(
    State(app): State<App>,
    Named(id): Named<PipelineId>,
    form: MemberForm<Judged>,
) -> Done {
    judge_pipeline(app, id, form, false).await
}

#[derive(Deserialize)]
pub(super) struct Terms {
    version: String,
}

pub(super) async fn accept_terms(State(app): State<App>, form: MemberForm<Terms>) -> Done {
    let version =
        form.fields.version.parse().map_err(|_| invalid("form.version", "the version is a number"))?;
    let request = TermsRequest { version, person: None, forge: None, how: Way::Console };
    judging::accept_terms(&app, &form.caller, request).await?;
    Ok(Redirect::to(routes::TERMS))
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
