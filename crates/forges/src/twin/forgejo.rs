//! A *simulated* Forgejo: the REST calls about runners, jobs and runs of [`crate::forgejo`], and a stand-in for the runner
//! program. It is no Forgejo, and what it answers is written from published structures and tests.
//!
//! Invariants: a runner of one use takes one job and is gone with its end; one that names a handle takes that job or none;
//! a call without the token is answered 401, and one that is not simulated 404 with words that say so.

use super::calls::{Reply, Request};
use super::server::{Lost, read};
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The token that it takes.
pub const FORGEJO_TOKEN: &str = "simulated-forgejo-token";

/// A job.
#[derive(Debug, Clone)]
pub struct ForgejoJob {
    /// Id, the same for all attempts.
    pub id: u64,
    /// Run.
    pub run: u64,
    /// Attempt.
    pub attempt: u64,
    /// Names this attempt.
    pub handle: String,
    /// Labels.
    pub labels: Vec<String>,
    /// `waiting`, `running`, `success`, `failure`, `cancelled`.
    pub status: &'static str,
    /// The runner that has it.
    pub runner: Option<u64>,
}

/// A registered runner.
#[derive(Debug, Clone)]
pub struct ForgejoRunner {
    /// Id.
    pub id: u64,
    /// Account.
    pub uuid: String,
    /// Password.
    pub token: String,
    /// Name.
    pub name: String,
    /// The job that it has.
    pub job: Option<u64>,
}

#[derive(Debug, Clone)]
struct ForgejoRun {
    user: Person,
    fork: Option<u64>,
    event: &'static str,
}

/// All that there is: one repository.
#[derive(Debug)]
pub struct ForgejoState {
    /// `owner/name`.
    pub repository: String,
    /// Its id.
    pub repository_id: u64,
    /// Jobs.
    pub jobs: BTreeMap<u64, ForgejoJob>,
    /// Runners.
    pub runners: BTreeMap<u64, ForgejoRunner>,
    /// Whether jobs have handles and runs, as from Forgejo 15.
    pub handles: bool,
    /// The next registration is made, and its answer lost.
    pub lose_registration: bool,
    /// Commit statuses in the order in which they came: commit, context, state, description.
    pub statuses: Vec<(String, String, String, String)>,
    /// The next calls are answered with this status.
    pub failing: Option<u16>,
    runs: BTreeMap<u64, ForgejoRun>,
    numbers: u64,
}

/// Why the stand-in of the runner program got no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoJob {
    /// The account or its password is not known.
    #[error("the registration is not known")]
    Unknown,
    /// The job of the handle is taken or over.
    #[error("the job of the handle does not wait")]
    NotWaiting,
    /// Nothing waits for its labels.
    #[error("no job waits")]
    Nothing,
}

impl ForgejoState {
    /// One with this repository.
    pub fn new(repository: &str, id: u64) -> Self {
        Self {
            repository: repository.to_owned(),
            repository_id: id,
            jobs: BTreeMap::new(),
            runners: BTreeMap::new(),
            handles: true,
            lose_registration: false,
            statuses: Vec::new(),
            failing: None,
            runs: BTreeMap::new(),
            numbers: 300,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A person pushed, or asked to pull from the fork of this id: one run with one job. Its id.
    pub fn start(&mut self, user: &Person, labels: &[&str], fork: Option<u64>) -> u64 {
        let (run, id) = (self.number(), self.number());
        let event = if fork.is_some() { "pull_request" } else { "push" };
        self.runs.insert(run, ForgejoRun { user: user.clone(), fork, event });
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let handle = format!("handle-{id}-1");
        self.jobs
            .insert(id, ForgejoJob { id, run, attempt: 1, handle, labels, status: "waiting", runner: None });
        id
    }

    /// Somebody runs a job again: it waits, under the same id and another handle.
    pub fn rerun(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.attempt += 1;
            job.handle = format!("handle-{id}-{}", job.attempt);
            (job.status, job.runner) = ("waiting", None);
        }
    }

    /// A job is over. Its runner, of one use, is gone with it.
    pub fn end(&mut self, id: u64, status: &'static str) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.status = status;
            if let Some(runner) = job.runner.take() {
                self.runners.remove(&runner);
            }
        }
    }

    /// What the runner program does: asks for one job.
    pub fn one_job(
        &mut self,
        uuid: &str,
        token: &str,
        labels: &[String],
        handle: Option<&str>,
    ) -> Result<u64, NoJob> {
        let runner =
            self.runners.values_mut().find(|one| one.uuid == uuid && one.token == token && one.job.is_none());
        let runner = runner.ok_or(NoJob::Unknown)?;
        let waits = |job: &&mut ForgejoJob| {
            job.status == "waiting" && job.labels.iter().all(|one| labels.contains(one))
        };
        let job = match handle {
            Some(handle) => {
                self.jobs.values_mut().find(|job| job.handle == handle).filter(waits).ok_or(NoJob::NotWaiting)
            }
            None => self.jobs.values_mut().find(waits).ok_or(NoJob::Nothing),
        }?;
        (job.status, job.runner) = ("running", Some(runner.id));
        runner.job = Some(job.id);
        Ok(job.id)
    }

    fn serve(&mut self, request: &Request) -> Option<Reply> {
        if let Some(status) = self.failing {
            return Some(Reply::message(status, "simulated trouble"));
        }
        let told = request.authorization("bearer").or_else(|| request.authorization("token"));
        if told != Some(FORGEJO_TOKEN) {
            return Some(Reply::message(401, "token is required"));
        }
        if let Some(sha) = request.path.strip_prefix(&format!("/api/v1/repos/{}/statuses/", self.repository))
        {
            return self.take_status(sha, request);
        }
        let prefix = format!("/api/v1/repos/{}/actions/", self.repository);
        let not_simulated = || Some(Reply::message(404, "this call or repository is not simulated"));
        let Some(path) = request.path.strip_prefix(&prefix) else { return not_simulated() };
        let parts: Vec<&str> = path.split('/').collect();
        Some(match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["runners", "jobs"]) => self.list_jobs(request.query.get("labels").map(String::as_str)),
            ("GET", ["runs", id]) => match id.parse().ok().and_then(|id| self.run_json(id)) {
                Some(run) => Reply::json(200, &run),
                None => Reply::message(404, "no such run"),
            },
            ("POST", ["runners"]) => {
                let body = request.parse().ok()?;
                let Some(name) = body.get("name").and_then(Value::as_str) else {
                    return Some(Reply::message(422, "[Name]: Required"));
                };
                let id = self.number();
                let (uuid, token) = (format!("99fc4a58-a25e-4dbe-b6ea-{id:012}"), format!("{id:040x}"));
                let answer = json!({ "id": id, "uuid": uuid, "token": token });
                self.runners.insert(id, ForgejoRunner { id, uuid, token, name: name.to_owned(), job: None });
                if std::mem::take(&mut self.lose_registration) {
                    return None;
                }
                Reply::json(201, &answer)
            }
            ("GET", ["runners"]) => {
                let first = request.number("page").is_none_or(|page| page <= 1);
                let all: Vec<Value> = self.runners.values().filter(|_| first).map(runner_json).collect();
                Reply::json(200, &json!(all))
            }
            (method, ["runners", id]) => {
                let found = id.parse().ok().and_then(|id: u64| self.runners.get(&id).cloned());
                let Some(runner) = found else { return Some(Reply::message(404, "no such runner")) };
                if method == "DELETE" {
                    self.runners.remove(&runner.id);
                    return Some(Reply::empty(204));
                }
                Reply::json(200, &runner_json(&runner))
            }
            _ => return not_simulated(),
        })
    }

    fn take_status(&mut self, sha: &str, request: &Request) -> Option<Reply> {
        let body = request.parse().ok()?;
        let text = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let known = ["pending", "success", "error", "failure", "warning", "skipped"];
        if request.method != "POST" || sha.len() != 40 || !known.contains(&text("state").as_str()) {
            return Some(Reply::message(422, "the simulated status is not well formed"));
        }
        self.statuses.push((sha.to_owned(), text("context"), text("state"), text("description")));
        Some(Reply::json(
            201,
            &json!({ "id": self.statuses.len(), "status": text("state"), "context": text("context") }),
        ))
    }

    /// Jobs that wait or run; with labels, those that ask for no others. No entry is `null`.
    fn list_jobs(&self, labels: Option<&str>) -> Reply {
        let labels: Option<Vec<&str>> = labels.map(|text| text.split(',').collect());
        let open = self.jobs.values().filter(|job| matches!(job.status, "waiting" | "running"));
        let fitting = open.filter(|job| {
            labels
                .as_ref()
                .is_none_or(|labels| job.labels.iter().all(|label| labels.contains(&label.as_str())))
        });
        let list: Vec<Value> = fitting
            .map(|job| {
                let mut entry = json!({
                    "id": job.id, "repo_id": self.repository_id, "owner_id": 2, "name": "build", "needs": null,
                    "runs_on": job.labels, "task_id": job.runner.unwrap_or(0), "status": job.status,
                });
                if self.handles {
                    entry["run_id"] = json!(job.run);
                    entry["attempt"] = json!(job.attempt);
                    entry["handle"] = json!(job.handle);
                }
                entry
            })
            .collect();
        Reply::json(200, &if list.is_empty() { Value::Null } else { json!(list) })
    }

    fn run_json(&self, id: u64) -> Option<Value> {
        let run = self.runs.get(&id)?;
        let status = self.jobs.values().find(|job| job.run == id).map_or("unknown", |job| job.status);
        let payload = match run.fork {
            None => json!({ "ref": "refs/heads/main" }),
            Some(fork) => {
                json!({ "pull_request": { "number": 7, "user": run.user, "head": { "repo": { "id": fork } } } })
            }
        };
        Some(json!({
            "id": id, "title": "simulated", "repository": { "id": self.repository_id }, "workflow_id": "ci.yml",
            "index_in_repo": 1, "trigger_user": run.user, "prettyref": if run.fork.is_some() { "#7" } else { "main" },
            "commit_sha": "a".repeat(40), "is_fork_pull_request": run.fork.is_some(), "need_approval": false,
            "event": run.event, "event_payload": payload.to_string(), "status": status,
        }))
    }
}

fn runner_json(runner: &ForgejoRunner) -> Value {
    let status = if runner.job.is_some() { "active" } else { "offline" };
    json!({ "id": runner.id, "uuid": runner.uuid, "name": runner.name, "status": status, "ephemeral": true, "labels": [] })
}

/// A *simulated* Forgejo that listens.
#[derive(Debug)]
pub struct ForgejoTwin {
    state: Arc<Mutex<ForgejoState>>,
    base: String,
    task: JoinHandle<()>,
}

impl Drop for ForgejoTwin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<ForgejoState>) -> MutexGuard<'_, ForgejoState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForgejoTwin {
    /// Starts one on a free port of 127.0.0.1.
    pub async fn start(state: ForgejoState) -> std::io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let base = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service =
                        hyper::service::service_fn(move |request| answer(Arc::clone(&shared), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { state, base, task })
    }

    /// Base of its pages.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The token that it takes.
    pub fn token(&self) -> Secret {
        Secret::new(FORGEJO_TOKEN)
    }

    /// Looks at the state or changes it.
    pub fn with<R>(&self, look: impl FnOnce(&mut ForgejoState) -> R) -> R {
        look(&mut lock(&self.state))
    }
}

async fn answer(
    state: Arc<Mutex<ForgejoState>>,
    request: hyper::Request<hyper::body::Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Lost> {
    let request = read(request).await?;
    let reply = lock(&state).serve(&request).ok_or(Lost)?;
    let mut response = hyper::Response::builder().status(reply.status).header("server", "simulated-forgejo");
    for (name, value) in &reply.headers {
        response = response.header(name.as_str(), value.as_str());
    }
    response.body(Full::new(Bytes::from(reply.body))).map_err(|_| Lost)
}
