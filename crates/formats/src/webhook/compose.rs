//! Composes webhook bodies in GitHub's shape, for the tour and for tests. What leaves here is *simulated*: no forge
//! sent it, and whoever shows it to people says so.
//!
//! The shape follows GitHub's published examples; fields that are only links are left out. The two bodies that those
//! examples lack are made by the documented differences:
//! - `pull_request.synchronize` is `pull_request.opened` with the top-level fields `before` and `after`, the head that
//!   was replaced and the new one;
//! - a pull request from a fork has a `head.repo` with another `id` and `full_name`, whose `fork` is true, and a
//!   `head.label` and `head.user` of the fork's owner.

use super::{SignatureError, sign};
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use serde_json::{Value, json};

const NO_COMMIT: &str = "0000000000000000000000000000000000000000";

/// A repository as it stands in a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposedRepository {
    /// Numeric id.
    pub id: u64,
    /// `owner/name`.
    pub full_name: String,
    /// Who owns it.
    pub owner: Person,
    /// Its default branch.
    pub default_branch: String,
    /// Whether it is a fork of another one.
    pub fork: bool,
}

impl ComposedRepository {
    fn json(&self) -> Value {
        let name = self.full_name.rsplit('/').next().unwrap_or(&self.full_name);
        let page = format!("https://github.com/{}", self.full_name);
        json!({
            "id": self.id,
            "name": name,
            "full_name": self.full_name,
            "private": false,
            "owner": person(&self.owner),
            "html_url": page,
            "description": null,
            "fork": self.fork,
            "url": format!("https://api.github.com/repos/{}", self.full_name),
            "clone_url": format!("{page}.git"),
            "archived": false,
            "disabled": false,
            "default_branch": self.default_branch,
        })
    }
}

/// A pull request event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposedPullRequest {
    /// `opened`, `reopened`, `synchronize`, `closed`.
    pub action: String,
    /// The repository that it wants to change.
    pub repository: ComposedRepository,
    /// Its number.
    pub number: u64,
    /// Its title.
    pub title: String,
    /// Branch that it wants to change.
    pub base: String,
    /// Commit of that branch.
    pub base_sha: String,
    /// The repository that its commits come from.
    pub head_repository: ComposedRepository,
    /// The branch that they come from.
    pub head: String,
    /// Commit to build.
    pub head_sha: String,
    /// The head before, which `synchronize` names.
    pub before: String,
    /// Who opened it.
    pub author: Person,
    /// Who sent the event; for `synchronize` the one who pushed.
    pub sender: Person,
    /// Installation of the forge's app.
    pub installation: u64,
    /// When, in the form `2026-01-31T12:00:00Z`.
    pub at: String,
}

/// A push event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposedPush {
    /// The repository.
    pub repository: ComposedRepository,
    /// Full name of the ref.
    pub git_ref: String,
    /// Commit before; absent when the ref is new.
    pub before: Option<String>,
    /// Commit after; absent when the ref is deleted.
    pub after: Option<String>,
    /// First line of the head commit's message.
    pub message: String,
    /// Who pushed.
    pub sender: Person,
    /// Installation of the forge's app.
    pub installation: u64,
    /// When, in the form `2026-01-31T12:00:00Z`.
    pub at: String,
}

/// A body with the headers that go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// Value of `X-GitHub-Event`.
    pub event: &'static str,
    /// Value of `X-Hub-Signature-256`.
    pub signature: String,
    /// The raw body.
    pub body: Vec<u8>,
}

fn person(person: &Person) -> Value {
    json!({
        "login": person.login,
        "id": person.id,
        "url": format!("https://api.github.com/users/{}", person.login),
        "html_url": format!("https://github.com/{}", person.login),
        "type": "User",
        "site_admin": false,
    })
}

fn side(repository: &ComposedRepository, branch: &str, sha: &str) -> Value {
    json!({
        "label": format!("{}:{branch}", repository.owner.login),
        "ref": branch,
        "sha": sha,
        "user": person(&repository.owner),
        "repo": repository.json(),
    })
}

impl ComposedPullRequest {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        let closed = self.action == "closed";
        let page = format!("{}/pull/{}", self.repository.full_name, self.number);
        let mut body = json!({
            "action": self.action,
            "number": self.number,
            "pull_request": {
                "id": self.number,
                "number": self.number,
                "url": format!("https://api.github.com/repos/{}/pulls/{}", self.repository.full_name, self.number),
                "html_url": format!("https://github.com/{page}"),
                "state": if closed { "closed" } else { "open" },
                "locked": false,
                "title": self.title,
                "user": person(&self.author),
                "body": null,
                "created_at": self.at,
                "updated_at": self.at,
                "closed_at": if closed { json!(self.at) } else { Value::Null },
                "merged_at": null,
                "merge_commit_sha": null,
                "draft": false,
                "merged": false,
                "mergeable": null,
                "mergeable_state": "unknown",
                "author_association": "NONE",
                "maintainer_can_modify": false,
                "head": side(&self.head_repository, &self.head, &self.head_sha),
                "base": side(&self.repository, &self.base, &self.base_sha),
            },
            "repository": self.repository.json(),
            "installation": { "id": self.installation },
            "sender": person(&self.sender),
        });
        if self.action == "synchronize"
            && let Some(fields) = body.as_object_mut()
        {
            fields.insert("before".to_owned(), json!(self.before));
            fields.insert("after".to_owned(), json!(self.head_sha));
        }
        body
    }

    /// The body with its signature.
    pub fn signed(&self, secret: &Secret) -> Result<Signed, SignatureError> {
        signed("pull_request", &self.json(), secret)
    }
}

impl ComposedPush {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        let before = self.before.as_deref().unwrap_or(NO_COMMIT);
        let after = self.after.as_deref().unwrap_or(NO_COMMIT);
        let by = json!({ "name": self.sender.login, "username": self.sender.login, "email": null });
        let commit = self.after.as_ref().map(|id| {
            json!({
                "id": id,
                "distinct": true,
                "message": self.message,
                "timestamp": self.at,
                "author": by,
                "committer": by,
                "added": [], "removed": [], "modified": [],
            })
        });
        json!({
            "ref": self.git_ref,
            "before": before,
            "after": after,
            "created": self.before.is_none(),
            "deleted": self.after.is_none(),
            "forced": false,
            "base_ref": null,
            "compare": format!("https://github.com/{}/compare/{before}...{after}", self.repository.full_name),
            "commits": commit.iter().collect::<Vec<_>>(),
            "head_commit": commit,
            "repository": self.repository.json(),
            "pusher": { "name": self.sender.login, "email": null },
            "installation": { "id": self.installation },
            "sender": person(&self.sender),
        })
    }

    /// The body with its signature.
    pub fn signed(&self, secret: &Secret) -> Result<Signed, SignatureError> {
        signed("push", &self.json(), secret)
    }
}

fn signed(event: &'static str, body: &Value, secret: &Secret) -> Result<Signed, SignatureError> {
    let body = body.to_string().into_bytes();
    Ok(Signed { event, signature: sign(secret, &body)?, body })
}
