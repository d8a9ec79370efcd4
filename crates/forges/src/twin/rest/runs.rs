//! Calls about runs and jobs. What they tell of a job may lie behind by `read_lag`.

use super::super::auth::Caller;
use super::super::calls::Reply;
use super::super::clock::iso;
use super::super::jobs::{Conclusion, Job, JobStatus, JobView, Rerun, Run};
use super::super::state::State;
use super::{Context, id_of, not_simulated};
use forgeyard_model::Timestamp;
use forgeyard_model::forge::Person;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    pub(super) fn run_calls(
        &mut self,
        context: &Context<'_>,
        owner: u64,
        repository: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        let level = if method == "GET" { "read" } else { "write" };
        self.require(&context.caller, "actions", level, owner, Some(repository))?;
        match rest {
            ["actions", "jobs", id, rest @ ..] => self.job_calls(context, repository, id_of(id)?, rest),
            ["actions", "runs"] if method == "GET" => Ok(self.list_runs(context, repository)),
            ["actions", "runs", id, rest @ ..] => {
                let id = id_of(id)?;
                let run = self.runs.get(&id).filter(|run| run.spec.repository == repository);
                let attempt = run.ok_or_else(Reply::not_found)?.attempt;
                self.one_run(context, id, attempt, rest)
            }
            _ => Err(not_simulated()),
        }
    }

    /// The time that reads show.
    fn seen_at(&self) -> Timestamp {
        let lag = i64::try_from(self.setup.read_lag.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.now.as_micros().saturating_sub(lag))
    }

    fn actor(&self, caller: &Caller) -> Person {
        let account = match caller {
            Caller::Person(id) => self.accounts.get(id).map(|account| account.person()),
            _ => None,
        };
        account.unwrap_or(Person { id: 41_898_282, login: "simulated-app[bot]".to_owned() })
    }

    fn job_calls(
        &mut self,
        context: &Context<'_>,
        repository: u64,
        id: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let job = self.jobs.get(&id).ok_or_else(Reply::not_found)?;
        let run = job.run;
        if self.runs.get(&run).is_none_or(|run| run.spec.repository != repository) {
            return Err(Reply::not_found());
        }
        match (context.request.method.as_str(), rest) {
            ("GET", []) => {
                let view = job.view_at(self.seen_at()).filter(|view| view.status != JobStatus::Blocked);
                Ok(Reply::json(200, &self.job_json(job, view.ok_or_else(Reply::not_found)?)))
            }
            ("POST", ["rerun"]) => self.rerun_call(context, run, Rerun::Job(id)),
            _ => Err(not_simulated()),
        }
    }

    fn rerun_call(&mut self, context: &Context<'_>, run: u64, which: Rerun) -> Result<Reply, Reply> {
        let actor = self.actor(&context.caller);
        if self.rerun(run, which, &actor) {
            Ok(Reply::json(201, &json!({})))
        } else {
            Err(Reply::message(403, "This workflow run is already running"))
        }
    }

    fn one_run(
        &mut self,
        context: &Context<'_>,
        id: u64,
        attempt: u32,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        match (method, rest) {
            ("GET", []) => Ok(Reply::json(200, &self.run_json(id, attempt))),
            ("GET", ["attempts", number]) => {
                let number = attempt_of(number, attempt)?;
                Ok(Reply::json(200, &self.run_json(id, number)))
            }
            ("GET", ["jobs"]) => {
                let all = context.request.query.get("filter").is_some_and(|filter| filter == "all");
                Ok(self.list_jobs(context, id, (!all).then_some(attempt)))
            }
            ("GET", ["attempts", number, "jobs"]) => {
                Ok(self.list_jobs(context, id, Some(attempt_of(number, attempt)?)))
            }
            ("POST", ["approve"]) => {
                if self.approve_run(id) {
                    Ok(Reply::json(201, &json!({})))
                } else {
                    Err(Reply::message(403, "This run does not wait for approval"))
                }
            }
            ("POST", ["rerun"]) => self.rerun_call(context, id, Rerun::All),
            ("POST", ["rerun-failed-jobs"]) => self.rerun_call(context, id, Rerun::Failed),
            ("POST", ["cancel" | "force-cancel"]) => {
                if self.cancel_run(id) {
                    Ok(Reply::json(202, &json!({})))
                } else {
                    Err(Reply::message(409, "Cannot cancel a workflow run that is completed."))
                }
            }
            ("GET", ["pending_deployments"]) => {
                let waiting = self.current_jobs(id);
                let waiting = waiting.into_iter().filter(|job| job.status() == JobStatus::Waiting);
                let all: Vec<Value> = waiting.map(|job| self.pending_json(job)).collect();
                Ok(Reply::json(200, &json!(all)))
            }
            _ => Err(not_simulated()),
        }
    }

    fn pending_json(&self, job: &Job) -> Value {
        let run = self.runs.get(&job.run);
        let repository = run.and_then(|run| self.repositories.get(&run.spec.repository));
        let name = job.spec.environment.clone().unwrap_or_default();
        let id = repository.and_then(|one| one.environments.get(&name)).map(|environment| environment.id);
        let page = format!("{}/{}", self.urls.html, repository.map_or("", |one| one.name.as_str()));
        json!({
            "environment": {
                "id": id,
                "node_id": format!("simulated-environment-{}", id.unwrap_or(0)),
                "name": name,
                "url": format!("{page}/environments/{name}"),
                "html_url": format!("{page}/deployments/{name}"),
            },
            "wait_timer": 0,
            "wait_timer_started_at": null,
            "current_user_can_approve": false,
            "reviewers": [],
        })
    }

    fn list_runs(&self, context: &Context<'_>, repository: u64) -> Reply {
        let query = &context.request.query;
        let at = self.seen_at();
        let wanted = query.get("status");
        let fits = |run: &&Run| {
            if run.spec.repository != repository {
                return false;
            }
            let (status, conclusion) = self.run_status(run.id, run.attempt, at);
            wanted.is_none_or(|wanted| *wanted == status || Some(wanted.as_str()) == conclusion)
                && query.get("event").is_none_or(|event| *event == run.spec.event)
                && query.get("branch").is_none_or(|branch| *branch == run.spec.head_branch)
                && query.get("head_sha").is_none_or(|sha| *sha == run.spec.head_sha)
        };
        let all: Vec<&Run> = self.runs.values().rev().filter(fits).collect();
        let (size, page) = context.page();
        // Only the page that is asked for is written out: there may be thousands. Most of what is written of a run is its
        // repository, of which there are few.
        let shown = (page - 1).saturating_mul(size)..page.saturating_mul(size);
        let mut repositories: BTreeMap<u64, Arc<Value>> = BTreeMap::new();
        let all: Vec<Option<RunShown>> = all
            .iter()
            .enumerate()
            .map(|(place, run)| {
                let mut of = |id| {
                    let known = repositories.entry(id);
                    Arc::clone(known.or_insert_with(|| Arc::new(self.minimal_repository_json(id))))
                };
                shown.contains(&place).then(|| self.run_shown(run, run.attempt, &mut of))
            })
            .collect();
        self.listed(context, "workflow_runs", &all)
    }

    fn list_jobs(&self, context: &Context<'_>, run: u64, attempt: Option<u32>) -> Reply {
        let at = self.seen_at();
        let ids = self.runs.get(&run).map(|run| run.jobs.clone()).unwrap_or_default();
        let jobs = ids.iter().filter_map(|id| self.jobs.get(id));
        let jobs = jobs.filter(|job| attempt.is_none_or(|attempt| attempt == job.attempt));
        let seen = jobs.filter_map(|job| Some((job, job.view_at(at)?)));
        let all: Vec<Value> = seen.map(|(job, view)| self.job_json(job, view)).collect();
        self.listed(context, "jobs", &all)
    }

    /// Status and conclusion of a run, which follow from its jobs.
    fn run_status(&self, run: u64, attempt: u32, at: Timestamp) -> (&'static str, Option<&'static str>) {
        let Some(row) = self.runs.get(&run) else { return ("pending", None) };
        if row.held {
            return ("completed", Some("action_required"));
        }
        let jobs = row.jobs.iter().filter_map(|id| self.jobs.get(id)).filter(|job| job.attempt == attempt);
        let views: Vec<Option<&JobView>> = jobs.map(|job| job.view_at(at)).collect();
        let has = |status: JobStatus| {
            views.iter().any(|view| view.map_or(JobStatus::Blocked, |view| view.status) == status)
        };
        let open = [JobStatus::Blocked, JobStatus::Waiting, JobStatus::Queued].into_iter().any(has);
        if has(JobStatus::InProgress) || (open && has(JobStatus::Completed)) {
            return ("in_progress", None);
        }
        if has(JobStatus::Queued) {
            return ("queued", None);
        }
        if has(JobStatus::Waiting) {
            return ("waiting", None);
        }
        if open || views.is_empty() {
            return ("pending", None);
        }
        let ended =
            |conclusion: Conclusion| views.iter().flatten().any(|view| view.conclusion == Some(conclusion));
        let conclusion = if ended(Conclusion::Failure) || ended(Conclusion::TimedOut) {
            Conclusion::Failure
        } else if ended(Conclusion::Cancelled) {
            Conclusion::Cancelled
        } else if ended(Conclusion::Success) {
            Conclusion::Success
        } else {
            Conclusion::Skipped
        };
        ("completed", Some(conclusion.name()))
    }

    fn run_json(&self, id: u64, attempt: u32) -> Option<RunShown> {
        let of = &mut |id| Arc::new(self.minimal_repository_json(id));
        self.runs.get(&id).map(|run| self.run_shown(run, attempt, of))
    }

    /// A run. `repository` makes what is written of a repository.
    fn run_shown(&self, run: &Run, attempt: u32, repository: &mut dyn FnMut(u64) -> Arc<Value>) -> RunShown {
        let id = run.id;
        let (status, conclusion) = self.run_status(id, attempt, self.seen_at());
        let spec = &run.spec;
        let full_name = self.full_name(spec.repository);
        let url = format!("{}/repos/{full_name}/actions/runs/{id}", self.urls.api);
        let workflow = format!("{}/repos/{full_name}/actions/workflows/1", self.urls.api);
        // GitHub leaves this empty for pull requests from forks.
        let pulls: Vec<Value> = match spec.pull {
            Some(number) if spec.head_repository == spec.repository => vec![self.pull_minimal(run, number)],
            _ => Vec::new(),
        };
        let own = json!({
            "id": id,
            "name": spec.workflow,
            "node_id": format!("simulated-run-{id}"),
            "check_suite_id": id,
            "check_suite_node_id": format!("simulated-suite-{id}"),
            "head_branch": spec.head_branch,
            "head_sha": spec.head_sha,
            "path": format!(".github/workflows/{}.yml", spec.workflow),
            "run_number": run.number,
            "run_attempt": attempt,
            "event": spec.event,
            "display_title": "a simulated run",
            "status": status,
            "conclusion": conclusion,
            "workflow_id": 1,
            "url": url,
            "html_url": format!("{}/{full_name}/actions/runs/{id}", self.urls.html),
            "pull_requests": pulls,
            "created_at": iso(run.created_at),
            "updated_at": iso(run.updated_at),
            "run_started_at": iso(run.started_at),
            "actor": self.person_json(&spec.actor),
            "triggering_actor": self.person_json(&run.triggering_actor),
            "jobs_url": format!("{url}/jobs"),
            "logs_url": format!("{url}/logs"),
            "check_suite_url": format!("{}/repos/{full_name}/check-suites/{id}", self.urls.api),
            "artifacts_url": format!("{url}/artifacts"),
            "cancel_url": format!("{url}/cancel"),
            "rerun_url": format!("{url}/rerun"),
            "workflow_url": workflow,
            "previous_attempt_url": null,
            "head_commit": null,
            "head_repository_id": spec.head_repository,
        });
        RunShown {
            own,
            repository: repository(spec.repository),
            head_repository: repository(spec.head_repository),
        }
    }

    fn pull_minimal(&self, run: &Run, number: u64) -> Value {
        let repository = run.spec.repository;
        let url = format!("{}/repos/{}", self.urls.api, self.full_name(repository));
        let pull = self.repositories.get(&repository).and_then(|one| one.pulls.get(&number));
        let side = |branch: &str, sha: &str| {
            let name = self.full_name(repository);
            let name = name.split_once('/').map_or("", |(_, name)| name).to_owned();
            json!({ "ref": branch, "sha": sha, "repo": { "id": repository, "url": url, "name": name } })
        };
        json!({
            "id": number,
            "number": number,
            "url": format!("{url}/pulls/{number}"),
            "head": side(&run.spec.head_branch, &run.spec.head_sha),
            "base": side(
                pull.map_or("main", |pull| pull.base.as_str()),
                pull.map_or("", |pull| pull.base_sha.as_str()),
            ),
        })
    }
}

/// What GitHub says of a run. Runs of one list share what is said of their repository.
struct RunShown {
    own: Value,
    repository: Arc<Value>,
    head_repository: Arc<Value>,
}

impl Serialize for RunShown {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(None)?;
        for (name, value) in self.own.as_object().into_iter().flatten() {
            fields.serialize_entry(name, value)?;
        }
        fields.serialize_entry("repository", &*self.repository)?;
        fields.serialize_entry("head_repository", &*self.head_repository)?;
        fields.end()
    }
}

fn attempt_of(text: &str, newest: u32) -> Result<u32, Reply> {
    let number: u32 = text.parse().map_err(|_| Reply::not_found())?;
    if (1..=newest).contains(&number) { Ok(number) } else { Err(Reply::not_found()) }
}
