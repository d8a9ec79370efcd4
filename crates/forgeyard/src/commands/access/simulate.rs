//! `forgeyard access simulate`: what the gate would have said to events that were recorded. Files hold bodies of
//! webhooks, as the forge sent them; the class of the event is told by the file's name or by an option.

use crate::output::Wrong;
use anyhow::Result;
use forgeyard_control::http::people::ask_about;
use forgeyard_formats::webhook;
use forgeyard_model::ForgeName;
use forgeyard_model::access::Decision;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::forge::Meaning;
use serde::Serialize;
use std::path::Path;

/// What the gate would have said.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    /// The file.
    pub(super) file: String,
    /// The resource that was asked for.
    pub(super) resource: String,
    /// `allowed`, `refused`, `nothing to decide` or `unreadable`.
    pub(super) answer: &'static str,
    /// By which rule, or why not.
    pub(super) why: String,
}

/// The gate's answer to the body in a file, for each resource.
pub(super) fn ask(
    config: &FarmConfig,
    event: Option<&str>,
    path: &Path,
    resources: &[String],
) -> Result<Vec<Line>> {
    let file = path.display().to_string();
    let body = fs_err::read(path)
        .map_err(|error| Wrong::new(error.to_string()).fix("name files with bodies of webhooks"))?;
    // `push.1.json`, `pull_request.opened.json`: the event stands first, as in recorded collections.
    let stem = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let event = event.unwrap_or_else(|| stem.split('.').next().unwrap_or_default());
    let forge: ForgeName = "github".parse()?;
    let line = |resource: &str, answer, why: String| Line {
        file: file.clone(),
        resource: resource.to_owned(),
        answer,
        why,
    };
    let event = match webhook::read(&forge, event, &body) {
        Err(reason) => return Ok(vec![line("", "unreadable", reason.message)]),
        Ok(Meaning::Work(event)) => event,
        Ok(Meaning::Nothing { reason }) => return Ok(vec![line("", "nothing to decide", reason)]),
        Ok(Meaning::Demand(_)) => {
            let text = "whose work a `workflow_job` is stands in its run, which the farm asks the forge for";
            return Ok(vec![line("", "nothing to decide", text.to_owned())]);
        }
        Ok(Meaning::Pressed(press)) => {
            let text = format!("the button `{}` was pressed for commit {}", press.button, press.head_sha);
            return Ok(vec![line("", "nothing to decide", text)]);
        }
        Ok(Meaning::PullRequestClosed { number, .. }) => {
            return Ok(vec![line("", "nothing to decide", format!("pull request {number} was closed"))]);
        }
    };
    let decide = |resource: &String| match ask_about(config, &event, resource) {
        Decision::Allow { by, lane, .. } => {
            line(resource, "allowed", format!("by {}; lane: {lane}", by.join(", ")))
        }
        Decision::Deny { reason } => line(resource, "refused", reason.message),
    };
    Ok(resources.iter().map(decide).collect())
}
