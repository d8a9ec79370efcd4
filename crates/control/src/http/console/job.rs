//! The page of a job, with the window of its log.

use super::{Named, Page, html, log, names, shell_of};
use crate::app::App;
use crate::auth::Member;
use crate::console::job as page;
use crate::console::log::LogWindow;
use crate::http::error::{self, HttpError};
use crate::{past, views};
use axum::extract::{Query, State};
use forgeyard_api::people::JobView;
use forgeyard_model::JobId;
use forgeyard_model::principal::Role;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Part {
    pub(super) fragment: Option<String>,
}

/// A job, or its live part.
pub(super) async fn job(
    State(app): State<App>,
    Member(caller): Member,
    Named(id): Named<JobId>,
    Query(Part { fragment }): Query<Part>,
) -> Page {
    let past = past::of_job(&app, id).await?;
    let view = views::job(&app, id).await?;
    let repository = match &view.demand {
        Some(demand) => Some(demand.repository.clone()),
        None => app.core.read().repository_of(view.job.owner).cloned(),
    };
    let repository = repository.ok_or_else(|| error::missing("job", id))?;
    caller.need_in(&repository, Role::Viewer)?;
    let why = {
        let live = app.core.read();
        views::why(&views::foresee(&app, &app.config(), past.as_ref().unwrap_or(&live)), id)?
    };
    let (shell, names) = (shell_of(&app, &caller, &repository), names(&app));
    if fragment.is_some() {
        return html(page::fragment(&shell, &view, &why, &names));
    }
    let log = log_of(&app, &view).await?;
    html(page::job(&shell, &view, &why, &log, &names))
}

/// The log of the last attempt. A verdict speaks of the attempt that it ended, so its lines are looked for only there.
async fn log_of(app: &App, view: &JobView) -> Result<LogWindow, HttpError> {
    let Some(attempt) = view.attempts.last() else { return Ok(LogWindow::default()) };
    let over = !attempt.state.live();
    let verdict = attempt.verdict.as_ref().filter(|_| over);
    // Line 0 stands for the kernel's log, which is not part of this one. Without a class nothing decided.
    let decided = verdict.filter(|verdict| verdict.class.is_some());
    let decisive = decided.and_then(|verdict| verdict.lines.iter().map(|line| line.number).find(|n| *n > 0));
    let dropped = attempt.facts.as_ref().map_or(0, |facts| facts.log_dropped_bytes);
    let window = log::window(app, attempt.id, decisive, over).await?;
    Ok(LogWindow { dropped, ..window })
}
