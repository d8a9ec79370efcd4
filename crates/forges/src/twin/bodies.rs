//! Bodies of webhooks in GitHub's shape. What is said of GitHub's hooks is in the reference of webhook events; fields
//! that are only links are mostly left out.

use super::clock::iso;
use super::jobs::{Conclusion, Job, JobStatus, JobView, Run};
use super::repositories::Pull;
use super::state::State;
use forgeyard_formats::webhook::compose::{ComposedPullRequest, ComposedPush};
use forgeyard_model::forge::Person;
use serde_json::{Value, json};

impl State {
    /// The job as hooks and REST tell it, as seen in `view`.
    pub(super) fn job_json(&self, job: &Job, view: &JobView) -> Value {
        let run = self.runs.get(&job.run);
        let repository = run.map_or(0, |run| run.spec.repository);
        let full_name = self.full_name(repository);
        let api = format!("{}/repos/{full_name}", self.urls.api);
        let started = view.started_at.or(view.completed_at).unwrap_or(job.created_at);
        let taken = view.runner.as_ref();
        let steps = match view.status {
            JobStatus::InProgress => json!([{
                "name": "Set up job", "status": "in_progress", "conclusion": null, "number": 1,
                "started_at": iso(started), "completed_at": null,
            }]),
            JobStatus::Completed if taken.is_some() => json!([{
                "name": "Set up job", "status": "completed", "number": 1,
                "conclusion": view.conclusion.map(Conclusion::name),
                "started_at": iso(started), "completed_at": view.completed_at.map(iso),
            }]),
            _ => json!([]),
        };
        json!({
            "id": job.id,
            "run_id": job.run,
            "workflow_name": run.map(|run| run.spec.workflow.clone()),
            "head_branch": run.map(|run| run.spec.head_branch.clone()),
            "run_url": format!("{api}/actions/runs/{}", job.run),
            "run_attempt": job.attempt,
            "node_id": format!("simulated-job-{}", job.id),
            "head_sha": run.map(|run| run.spec.head_sha.clone()).unwrap_or_default(),
            "url": format!("{api}/actions/jobs/{}", job.id),
            "html_url": format!("{}/{full_name}/actions/runs/{}/job/{}", self.urls.html, job.run, job.id),
            "status": view.status.name(),
            "conclusion": view.conclusion.map(Conclusion::name),
            "created_at": iso(job.created_at),
            "started_at": iso(started),
            "completed_at": view.completed_at.map(iso),
            "name": job.spec.name,
            "steps": steps,
            "check_run_url": format!("{api}/check-runs/{}", job.id),
            "labels": job.spec.labels,
            "runner_id": taken.map(|taken| taken.id),
            "runner_name": taken.map(|taken| taken.name.clone()),
            "runner_group_id": taken.map(|taken| taken.group_id),
            "runner_group_name": taken.map(|taken| taken.group_name.clone()),
        })
    }

    /// Repository, organisation and sender, which every event of a repository carries.
    fn around(&self, repository: u64, sender: Value, mut body: Value) -> Value {
        let owner = self.repositories.get(&repository).and_then(|one| self.accounts.get(&one.owner));
        if let Some(fields) = body.as_object_mut() {
            let about = if self.setup.links_in_webhooks {
                self.repository_json(repository)
            } else {
                self.short_repository_json(repository)
            };
            fields.insert("repository".to_owned(), about);
            fields.insert("sender".to_owned(), sender);
            if let Some(owner) = owner.filter(|owner| owner.organization) {
                let url = format!("{}/orgs/{}", self.urls.api, owner.login);
                let organization = json!({
                    "login": owner.login,
                    "id": owner.id,
                    "node_id": format!("simulated-organization-{}", owner.id),
                    "url": url,
                    "repos_url": format!("{url}/repos"),
                    "events_url": format!("{url}/events"),
                    "hooks_url": format!("{url}/hooks"),
                    "issues_url": format!("{url}/issues"),
                    "members_url": format!("{url}/members{{/member}}"),
                    "public_members_url": format!("{url}/public_members{{/member}}"),
                    "avatar_url": format!("{}/avatars/{}", self.urls.html, owner.id),
                    "description": null,
                });
                fields.insert("organization".to_owned(), organization);
            }
        }
        body
    }

    /// The deployment of a job that names an environment.
    fn deployment_json(&self, job: &Job, run: &Run, environment: &str) -> Value {
        let repository = format!("{}/repos/{}", self.urls.api, self.full_name(run.spec.repository));
        let url = format!("{repository}/deployments/{}", job.id);
        json!({
            "url": url,
            "id": job.id,
            "node_id": format!("simulated-deployment-{}", job.id),
            "task": "deploy",
            "original_environment": environment,
            "environment": environment,
            "description": null,
            "created_at": iso(job.created_at),
            "updated_at": iso(self.now),
            "statuses_url": format!("{url}/statuses"),
            "repository_url": repository,
            "creator": self.person_json(&run.spec.actor),
            "sha": run.spec.head_sha,
            "ref": run.spec.head_branch,
            "payload": {},
            "transient_environment": false,
            "production_environment": false,
            "performed_via_github_app": null,
        })
    }

    /// Tells of a step of a job.
    pub(super) fn emit_job(&mut self, id: u64, action: &str) {
        let Some(job) = self.jobs.get(&id) else { return };
        let Some(run) = self.runs.get(&job.run) else { return };
        let repository = run.spec.repository;
        let mut body = json!({ "action": action, "workflow_job": self.job_json(job, &job.view()) });
        if let (Some(environment), Some(fields)) = (&job.spec.environment, body.as_object_mut()) {
            fields.insert("deployment".to_owned(), self.deployment_json(job, run, environment));
        }
        let sender = self.person_json(&run.triggering_actor);
        let body = self.around(repository, sender, body);
        self.emit("workflow_job", Some(action), Some(repository), &body);
    }

    /// Somebody pushes a commit to a branch.
    pub fn push(&mut self, repository: u64, branch: &str, before: &str, after: &str, sender: &Person) {
        let Some(composed) = self.composed(repository) else { return };
        let body = ComposedPush {
            repository: composed,
            git_ref: format!("refs/heads/{branch}"),
            before: Some(before.to_owned()),
            after: Some(after.to_owned()),
            message: "a simulated commit".to_owned(),
            sender: sender.clone(),
            installation: 0,
            at: iso(self.now),
        };
        let body = self.with_known_urls(body.json());
        self.emit("push", None, Some(repository), &body);
    }

    /// Composed bodies name an installation; here the hook decides whether there is one.
    fn with_known_urls(&self, mut body: Value) -> Value {
        if let Some(fields) = body.as_object_mut() {
            fields.remove("installation");
        }
        body
    }

    /// Opens a pull request; returns its number.
    pub fn open_pull(
        &mut self,
        repository: u64,
        head_repository: u64,
        head: &str,
        head_sha: &str,
        author: &Person,
    ) -> u64 {
        self.numbers.pull += 1;
        let number = self.numbers.pull;
        let base = self
            .repositories
            .get(&repository)
            .map_or_else(|| "main".to_owned(), |one| one.default_branch.clone());
        let pull = Pull {
            number,
            author: author.clone(),
            head_repository,
            head: head.to_owned(),
            head_sha: head_sha.to_owned(),
            base,
            base_sha: "b".repeat(40),
            open: true,
        };
        if let Some(repository) = self.repositories.get_mut(&repository) {
            repository.pulls.insert(number, pull);
        }
        self.emit_pull(repository, number, "opened", "", author);
        number
    }

    /// Somebody pushes to the head of a pull request.
    pub fn push_to_pull(&mut self, repository: u64, number: u64, head_sha: &str, sender: &Person) {
        let pull = self.repositories.get_mut(&repository).and_then(|one| one.pulls.get_mut(&number));
        let Some(pull) = pull else { return };
        let before = std::mem::replace(&mut pull.head_sha, head_sha.to_owned());
        self.emit_pull(repository, number, "synchronize", &before, sender);
    }

    /// Somebody closes a pull request.
    pub fn close_pull(&mut self, repository: u64, number: u64, sender: &Person) {
        let pull = self.repositories.get_mut(&repository).and_then(|one| one.pulls.get_mut(&number));
        let Some(pull) = pull else { return };
        pull.open = false;
        self.emit_pull(repository, number, "closed", "", sender);
    }

    fn emit_pull(&mut self, repository: u64, number: u64, action: &str, before: &str, sender: &Person) {
        if let Some(body) = self.pull_body(repository, number, action, before, sender) {
            self.emit("pull_request", Some(action), Some(repository), &body);
        }
    }

    /// A pull request as lists show it: with less than webhooks do.
    pub(super) fn pull_json(&self, repository: u64, number: u64) -> Option<Value> {
        let author = self.repositories.get(&repository)?.pulls.get(&number)?.author.clone();
        let mut body = self.pull_body(repository, number, "opened", "", &author)?;
        let mut pull = body.get_mut("pull_request").map(Value::take)?;
        for only_alone in ["maintainer_can_modify", "mergeable", "mergeable_state", "merged"] {
            pull.as_object_mut()?.remove(only_alone);
        }
        let row = self.repositories.get(&repository)?.pulls.get(&number)?;
        for (side, of) in [("base", repository), ("head", row.head_repository)] {
            let owner = self.repositories.get(&of)?.owner;
            *pull.get_mut(side)?.get_mut("repo")? = self.repository_json(of);
            *pull.get_mut(side)?.get_mut("user")? = self.account_json(owner);
        }
        *pull.get_mut("user")? = self.person_json(&author);
        let full_name = self.full_name(repository);
        let api = format!("{}/repos/{full_name}", self.urls.api);
        let page = format!("{}/{full_name}/pull/{number}", self.urls.html);
        let links = json!({
            "self": { "href": format!("{api}/pulls/{number}") },
            "html": { "href": page },
            "issue": { "href": format!("{api}/issues/{number}") },
            "comments": { "href": format!("{api}/issues/{number}/comments") },
            "review_comments": { "href": format!("{api}/pulls/{number}/comments") },
            "review_comment": { "href": format!("{api}/pulls/comments{{/number}}") },
            "commits": { "href": format!("{api}/pulls/{number}/commits") },
            "statuses": { "href": format!("{api}/statuses/{}", row.head_sha) },
        });
        let rest = json!({
            "node_id": format!("simulated-pull-{number}"),
            "url": format!("{api}/pulls/{number}"),
            "html_url": page,
            "diff_url": format!("{page}.diff"),
            "patch_url": format!("{page}.patch"),
            "issue_url": format!("{api}/issues/{number}"),
            "commits_url": format!("{api}/pulls/{number}/commits"),
            "review_comments_url": format!("{api}/pulls/{number}/comments"),
            "review_comment_url": format!("{api}/pulls/comments{{/number}}"),
            "comments_url": format!("{api}/issues/{number}/comments"),
            "statuses_url": format!("{api}/statuses/{}", row.head_sha),
            "_links": links,
            "state": if row.open { "open" } else { "closed" },
            "locked": false,
            "assignee": null,
            "assignees": [],
            "requested_reviewers": [],
            "requested_teams": [],
            "labels": [],
            "milestone": null,
            "auto_merge": null,
            "author_association": "CONTRIBUTOR",
            "draft": false,
            "body": null,
            "closed_at": if row.open { Value::Null } else { json!(iso(self.now)) },
            "merged_at": null,
            "merge_commit_sha": null,
        });
        let fields = pull.as_object_mut()?;
        for (name, value) in rest.as_object()? {
            fields.insert(name.clone(), value.clone());
        }
        Some(pull)
    }

    fn pull_body(
        &self,
        repository: u64,
        number: u64,
        action: &str,
        before: &str,
        sender: &Person,
    ) -> Option<Value> {
        let pull = self.repositories.get(&repository)?.pulls.get(&number)?.clone();
        let (base, head) = (self.composed(repository)?, self.composed(pull.head_repository)?);
        let body = ComposedPullRequest {
            action: action.to_owned(),
            repository: base,
            number,
            title: "a simulated pull request".to_owned(),
            base: pull.base,
            base_sha: pull.base_sha,
            head_repository: head,
            head: pull.head,
            head_sha: pull.head_sha,
            before: before.to_owned(),
            author: pull.author,
            sender: sender.clone(),
            installation: 0,
            at: iso(self.now),
        };
        Some(self.with_known_urls(body.json()))
    }

    /// Somebody presses a button of a check run.
    pub fn request_check_action(&mut self, check: u64, identifier: &str, sender: &Person) {
        let Some(row) = self.checks.get(&check) else { return };
        let repository = row.repository;
        let body = json!({
            "action": "requested_action",
            "check_run": self.check_json(row),
            "requested_action": { "identifier": identifier },
        });
        let body = self.around(repository, self.person_json(sender), body);
        self.emit("check_run", Some("requested_action"), Some(repository), &body);
    }

    /// Somebody asks for a check run again.
    pub fn rerequest_check(&mut self, check: u64, sender: &Person) {
        let Some(row) = self.checks.get(&check) else { return };
        let repository = row.repository;
        let body = json!({ "action": "rerequested", "check_run": self.check_json(row) });
        let body = self.around(repository, self.person_json(sender), body);
        self.emit("check_run", Some("rerequested"), Some(repository), &body);
    }

    /// Tells the App of a change of an installation.
    pub(super) fn emit_installation(&mut self, id: u64, action: &str) {
        let Some(installation) = self.installations.get(&id) else { return };
        let account = installation.account;
        let body = json!({
            "action": action,
            "installation": self.installation_json(installation),
            "repositories": [],
            "sender": self.account_json(account),
        });
        self.emit_to("installation", Some(action), None, Some(account), &body);
    }
}
