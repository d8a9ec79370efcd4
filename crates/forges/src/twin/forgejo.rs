//! A *simulated* Forgejo: the REST calls about runners, jobs and runs of [`crate::forgejo`], and the runner protocol
//! ([`super::forgejo_rpc`]). It is no Forgejo, and what it answers is written from published structures and tests.
//!
//! Invariants: a runner of one use takes one job and is gone with its end; one that names a handle takes that job or none;
//! a call without the token is answered 401, and one that is not simulated 404 with words that say so.

use super::calls::{Reply, Request};
use super::forgejo_rpc::{ForgejoTask, SERVICE};
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
    /// Whether it is of one use.
    pub ephemeral: bool,
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
    /// Tasks that were assigned.
    pub tasks: BTreeMap<u64, ForgejoTask>,
    /// Every fetch: the runner, and its request key.
    pub fetches: Vec<(u64, Option<String>)>,
    /// Whether the same request key gets the same task again, as at a Forgejo; a Gitea ignores it.
    pub honours_keys: bool,
    /// The next fetches are done, and their answers lost.
    pub lose_fetches: u32,
    /// Whether runners can be registered by REST; else there is a registration token.
    pub rest_registration: bool,
    /// Whether the server knows runners of one use.
    pub ephemeral: bool,
    pub(super) registration_token: Option<String>,
    pub(super) version: u64,
    /// How often the list of jobs was asked for.
    pub lists: usize,
    pub(super) logins: super::forgejo_login::Logins,
    runs: BTreeMap<u64, ForgejoRun>,
    numbers: u64,
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
            tasks: BTreeMap::new(),
            fetches: Vec::new(),
            honours_keys: true,
            lose_fetches: 0,
            rest_registration: true,
            ephemeral: true,
            registration_token: None,
            version: 1,
            lists: 0,
            logins: Default::default(),
            runs: BTreeMap::new(),
            numbers: 300,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
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
        self.version += 1;
        self.jobs
            .insert(id, ForgejoJob { id, run, attempt: 1, handle, labels, status: "waiting", runner: None });
        id
    }

    /// The forge now says of the run of a job that somebody else caused it.
    pub fn caused_by(&mut self, job: u64, user: &Person) {
        let run = self.jobs.get(&job).map(|job| job.run);
        if let Some(run) = run.and_then(|run| self.runs.get_mut(&run)) {
            run.user = user.clone();
        }
    }

    /// Somebody runs a job again: it waits, under the same id and another handle.
    pub fn rerun(&mut self, id: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            self.version += 1;
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

    pub(super) fn add_runner(&mut self, name: &str, ephemeral: bool) -> u64 {
        let id = self.number();
        let (uuid, token) = (format!("99fc4a58-a25e-4dbe-b6ea-{id:012}"), format!("{id:040x}"));
        self.runners
            .insert(id, ForgejoRunner { id, uuid, token, name: name.to_owned(), ephemeral, job: None });
        id
    }

    /// Gives a runner the job of the handle if that waits, or without a handle the first one that waits for its labels.
    pub(super) fn take(&mut self, runner: u64, handle: Option<&str>) -> Option<u64> {
        let mut waiting = self.jobs.values_mut().filter(|job| job.status == "waiting");
        let job = match handle {
            Some(handle) => waiting.find(|job| job.handle == handle),
            None => waiting.next(),
        }?;
        (job.status, job.runner) = ("running", Some(runner));
        let id = job.id;
        self.runners.get_mut(&runner)?.job = Some(id);
        self.version += 1;
        Some(id)
    }

    fn serve(&mut self, request: &Request) -> Option<Reply> {
        if let Some(status) = self.failing {
            return Some(Reply::message(status, "simulated trouble"));
        }
        if let Some(method) = request.path.strip_prefix(SERVICE) {
            return self.runner_service(method, request);
        }
        if let Some(reply) = self.login_call(request) {
            return Some(reply);
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
            ("GET", ["runners", "registration-token"]) => {
                let token =
                    self.registration_token.get_or_insert_with(|| "simulated-registration".to_owned());
                Reply::json(200, &json!({ "token": token }))
            }
            ("POST", ["runners"]) if self.rest_registration => {
                let body = request.parse().ok()?;
                let Some(name) = body.get("name").and_then(Value::as_str) else {
                    return Some(Reply::message(422, "[Name]: Required"));
                };
                let ephemeral = body.get("ephemeral").and_then(Value::as_bool).unwrap_or(false);
                let id = self.add_runner(name, ephemeral);
                let runner = &self.runners[&id];
                let answer = json!({ "id": id, "uuid": runner.uuid, "token": runner.token });
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
    fn list_jobs(&mut self, labels: Option<&str>) -> Reply {
        self.lists += 1;
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
    json!({ "id": runner.id, "uuid": runner.uuid, "name": runner.name, "status": status, "ephemeral": runner.ephemeral, "labels": [] })
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
