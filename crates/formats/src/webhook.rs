//! Webhooks of GitHub: the signature over the raw bytes, and what a body means to the farm.
//!
//! Protocol: `X-GitHub-Event` names the event, `X-GitHub-Delivery` carries a GUID that a redelivery repeats, and
//! `X-Hub-Signature-256` is `sha256=` with the HMAC-SHA256 of the raw body in 64 lower-case hexadecimal digits.
//!
//! Invariants:
//! - [`verify_signature`] compares in constant time, on the bytes as they arrived, and never accepts an empty key;
//! - [`read`] is total: every body has a [`Meaning`] or an [`Explanation`] that names the JSON path or byte at fault;
//! - ids are 64 bits wide, because check runs and jobs passed 2^32 long ago;
//! - commits that leave here are 40 or 64 lower-case hexadecimal digits and branch refs start with `refs/heads/`.

pub mod compose;
pub mod forgejo;
mod node;
mod signature;

pub use signature::{SignatureError, sign, verify_bare, verify_signature};

use forgeyard_model::forge::{ForgeEvent, Meaning, Person, Press, Repository, Trigger, WorkflowJob};
use forgeyard_model::{Explanation, ForgeName};
use node::Node;
use serde_json::Value;

/// Says what a webhook body means. `event` is the value of the header `X-GitHub-Event`.
pub fn read(forge: &ForgeName, event: &str, body: &[u8]) -> Result<Meaning, Explanation> {
    let value = parse(event, body)?;
    let root = Node::root(event, &value);
    match event {
        "push" => read_push(forge, &root),
        "pull_request" => read_pull_request(forge, &root),
        "workflow_job" => read_workflow_job(forge, &root),
        "check_run" if root.get("action").and_then(|node| node.text().ok()) == Some("requested_action") => {
            read_press(forge, &root)
        }
        other => {
            // The body of an event that asks for nothing is still required to be an object: a sender that is
            // misconfigured should hear so at once and not at the first push.
            root.object()?;
            Ok(nothing(reason_without_work(other, root.get("action").and_then(|node| node.text().ok()))))
        }
    }
}

/// Reads JSON; a body that ends too early is told apart from one that is wrong in the middle.
fn parse(event: &str, body: &[u8]) -> Result<Value, Explanation> {
    serde_json::from_slice(body).map_err(|error| {
        let byte = byte_of(body, error.line(), error.column());
        if body.starts_with(b"payload=") {
            return Explanation::new(
                "webhook.form_encoded",
                format!("the body of `{event}` is a form, not JSON"),
            )
            .with("it begins with `payload=`")
            .fix("set the content type of the webhook to `application/json`");
        }
        if error.is_eof() {
            return Explanation::new(
                "webhook.truncated",
                format!("the body of `{event}` ends in the middle of its JSON, at byte {}", body.len()),
            )
            .with(format!("{error}"))
            .fix("redeliver the webhook; when it happens again, look for a proxy that cuts bodies");
        }
        Explanation::new(
            "webhook.not_json",
            format!("the body of `{event}` is not JSON: wrong at byte {byte}"),
        )
        .with(format!("{error}"))
    })
}

/// Byte offset of a line and column as the JSON reader counts them: both from 1, columns in bytes.
fn byte_of(body: &[u8], line: usize, column: usize) -> usize {
    let start = match line {
        0 | 1 => 0,
        _ => body
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(line - 2)
            .map_or(body.len(), |(place, _)| place + 1),
    };
    start.saturating_add(column.saturating_sub(1)).min(body.len())
}

fn nothing(reason: impl Into<String>) -> Meaning {
    Meaning::Nothing { reason: reason.into() }
}

fn read_repository(forge: &ForgeName, root: &Node<'_>) -> Result<Repository, Explanation> {
    let repository = root.field("repository")?;
    Ok(Repository {
        forge: forge.clone(),
        id: repository.field("id")?.id()?,
        name: repository.field("full_name")?.text()?.to_owned(),
    })
}

fn read_person(node: &Node<'_>) -> Result<Person, Explanation> {
    Ok(Person { id: node.field("id")?.id()?, login: node.field("login")?.text()?.to_owned() })
}

fn read_push(forge: &ForgeName, root: &Node<'_>) -> Result<Meaning, Explanation> {
    let git_ref = root.field("ref")?.text()?;
    let repository = read_repository(forge, root)?;
    let sender = read_person(&root.field("sender")?)?;
    let after = root.field("after")?.commit()?;
    let deleted = root.field("deleted")?.flag()?;
    if deleted || after.bytes().all(|byte| byte == b'0') {
        return Ok(nothing(format!("`{git_ref}` was deleted: there is no commit to build")));
    }
    if git_ref.starts_with("refs/tags/") {
        return Ok(nothing(format!("`{git_ref}` is a tag: pipelines start from branches and pull requests")));
    }
    if git_ref.strip_prefix("refs/heads/").is_none_or(str::is_empty) {
        return Ok(nothing(format!(
            "`{git_ref}` is not a branch: pipelines start from branches and pull requests"
        )));
    }
    Ok(Meaning::Work(Box::new(ForgeEvent {
        repository,
        trigger: Trigger::Push { git_ref: git_ref.to_owned() },
        head_sha: after.to_owned(),
        sender,
        author: None,
    })))
}

fn read_pull_request(forge: &ForgeName, root: &Node<'_>) -> Result<Meaning, Explanation> {
    let action = root.field("action")?.text()?;
    let repository = read_repository(forge, root)?;
    let sender = read_person(&root.field("sender")?)?;
    let request = root.field("pull_request")?;
    let number = request.field("number")?.id()?;
    match action {
        "opened" | "reopened" | "synchronize" => {}
        "closed" => return Ok(Meaning::PullRequestClosed { repository, number }),
        other => {
            return Ok(nothing(format!(
                "`pull_request.{other}` changes no commit: work starts when a pull request is opened, reopened \
                 or gets new commits"
            )));
        }
    }
    let author = read_person(&request.field("user")?)?;
    let (head, base) = (request.field("head")?, request.field("base")?);
    let base_repository = base.field("repo")?.field("id")?;
    if base_repository.id()? != repository.id {
        return Err(base_repository.wrong(&format!("the repository's own id {}", repository.id)));
    }
    let head_repository = head.field("repo")?;
    if head_repository.is_null() {
        return Ok(nothing(format!(
            "the repository that pull request {number} comes from is gone, so its commits cannot be told apart \
             from foreign ones"
        )));
    }
    let head_repository = head_repository.field("id")?.id()?;
    Ok(Meaning::Work(Box::new(ForgeEvent {
        trigger: Trigger::PullRequest {
            number,
            base: base.field("ref")?.text()?.to_owned(),
            base_sha: base.field("sha")?.commit()?.to_owned(),
            head_repository,
            // By id: the payload's own `fork` flag says whether the head repository is a fork of anything.
            fork: head_repository != repository.id,
        },
        repository,
        head_sha: head.field("sha")?.commit()?.to_owned(),
        sender,
        author: Some(author),
    })))
}

fn read_workflow_job(forge: &ForgeName, root: &Node<'_>) -> Result<Meaning, Explanation> {
    let job = root.field("workflow_job")?;
    let labels = job.field("labels")?;
    let labels = labels.items()?.map(|label| label.text().map(str::to_owned)).collect::<Result<_, _>>()?;
    let run_attempt = match job.optional_id("run_attempt")? {
        Some(attempt) => match u32::try_from(attempt) {
            Ok(attempt) => attempt,
            Err(_) => return Err(job.field("run_attempt")?.wrong("a number below 2^32")),
        },
        None => 1,
    };
    let installation = match root.get("installation").filter(|node| !node.is_null()) {
        Some(node) => Some(node.field("id")?.id()?),
        None => None,
    };
    Ok(Meaning::Demand(Box::new(WorkflowJob {
        repository: read_repository(forge, root)?,
        installation,
        job: job.field("id")?.id()?,
        run: job.field("run_id")?.id()?,
        run_attempt,
        name: job.optional_text("name")?.unwrap_or_default(),
        workflow: job.optional_text("workflow_name")?,
        action: root.field("action")?.text()?.to_owned(),
        conclusion: job.optional_text("conclusion")?,
        labels,
        head_sha: job.field("head_sha")?.commit()?.to_owned(),
        head_branch: job.optional_text("head_branch")?,
        runner_name: job.optional_text("runner_name")?,
        runner_id: job.optional_id("runner_id")?,
        sender: Some(read_person(&root.field("sender")?)?),
        scale_set: None,
    })))
}

/// A button of a check run. GitHub sends it only to the App that made the check run.
fn read_press(forge: &ForgeName, root: &Node<'_>) -> Result<Meaning, Explanation> {
    let check = root.field("check_run")?;
    Ok(Meaning::Pressed(Box::new(Press {
        repository: read_repository(forge, root)?,
        check: check.field("id")?.id()?,
        head_sha: check.field("head_sha")?.commit()?.to_owned(),
        button: root.field("requested_action")?.field("identifier")?.text()?.to_owned(),
        sender: read_person(&root.field("sender")?)?,
    })))
}

/// Why an event other than those that matter asks for nothing.
fn reason_without_work(event: &str, action: Option<&str>) -> String {
    let full = action.map_or_else(|| event.to_owned(), |action| format!("{event}.{action}"));
    match (event, action) {
        ("ping", _) => "the forge asks whether anybody listens: yes".to_owned(),
        ("check_run" | "check_suite", Some("rerequested" | "requested_action")) => {
            format!(
                "`{full}`: running again is asked for at the farm, not at the forge, and approves nothing"
            )
        }
        ("check_run" | "check_suite", _) => {
            format!("`{full}` reports what checks do; the farm writes checks itself")
        }
        ("workflow_run", _) => format!("`{full}` reports a whole run; its jobs come as `workflow_job`"),
        ("installation" | "installation_repositories" | "installation_target", _) => {
            format!("`{full}`: which repositories the farm works for is set in its own configuration")
        }
        ("create" | "delete", _) => format!("`{full}`: branches are followed through `push`"),
        (
            "status" | "deployment" | "deployment_status" | "workflow_dispatch" | "repository" | "member",
            _,
        )
        | ("issues" | "issue_comment" | "pull_request_review" | "pull_request_review_comment" | "label", _)
        | ("release" | "fork" | "star" | "watch" | "team" | "organization" | "membership" | "meta", _) => {
            format!("`{full}` changes nothing that the farm builds")
        }
        _ => format!("unknown event `{}`: stored only", shown(event)),
    }
}

/// A foreign text, cut and without control characters, for messages.
fn shown(text: &str) -> String {
    text.chars().take(80).map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests;
