//! The runner protocol of the *simulated* Forgejo: `runner.v1.RunnerService` over unary Connect with JSON, as far as a runner
//! of one use needs it (runners.md §3.7). In JSON, numbers of 64 bits are text and names are in camel case; both spellings
//! are taken.
//!
//! `FetchTask` is the call whose lost answer matters: the task is assigned before the answer is written. A Forgejo gives the
//! same task again for the same `x-runner-request-key`, with a new token of the job; a Gitea does not look at the key, says
//! that there is nothing, and the task is lost ([`ForgejoState::honours_keys`]).

use super::calls::{Reply, Request};
use super::forgejo::ForgejoState;
use serde_json::{Value, json};

/// Where the service is.
pub(super) const SERVICE: &str = "/api/actions/runner.v1.RunnerService/";

/// A task: one try of a job on one runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgejoTask {
    /// Its id.
    pub id: u64,
    /// Its job.
    pub job: u64,
    /// The runner that it was assigned to.
    pub runner: u64,
    /// The request key with which it was fetched.
    pub key: Option<String>,
    /// How often it was told to the runner, told answers that were lost with it.
    pub told: u32,
    /// Whether its runner ever spoke of it.
    pub heard: bool,
}

/// An error as Connect writes it.
fn refused(status: u16, code: &str, message: &str) -> Reply {
    Reply::json(status, &json!({ "code": code, "message": message }))
}

fn field<'v>(body: &'v Value, camel: &str, snake: &str) -> Option<&'v Value> {
    body.get(camel).or_else(|| body.get(snake))
}

fn number(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::String(text)) => text.parse().unwrap_or(0),
        Some(value) => value.as_u64().unwrap_or(0),
        None => 0,
    }
}

impl ForgejoState {
    /// Answers a call of the service; none = the answer is lost.
    pub(super) fn runner_service(&mut self, method: &str, request: &Request) -> Option<Reply> {
        let body = match request.parse() {
            Ok(body) => body,
            Err(_) => return Some(refused(400, "invalid_argument", "the message cannot be read")),
        };
        if method == "Register" {
            return Some(self.register_by_token(&body));
        }
        let header = |name: &str| request.headers.get(name).map(String::as_str).unwrap_or_default();
        let (uuid, token) = (header("x-runner-uuid"), header("x-runner-token"));
        let found = self.runners.values().find(|one| one.uuid == uuid && one.token == token);
        let Some(runner) = found.map(|runner| runner.id) else {
            return Some(refused(401, "unauthenticated", "unregistered runner"));
        };
        let key = Some(header("x-runner-request-key")).filter(|key| !key.is_empty()).map(str::to_owned);
        match method {
            "Declare" => Some(Reply::json(200, &json!({ "runner": self.runner_message(runner) }))),
            "FetchTask" => self.fetch(runner, key, &body),
            "UpdateTask" => Some(self.update(runner, &body)),
            _ => Some(refused(404, "unimplemented", "this call is not simulated")),
        }
    }

    fn register_by_token(&mut self, body: &Value) -> Reply {
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        if self.registration_token.as_deref() != Some(text("token")) {
            return refused(404, "not_found", "runner registration token not found");
        }
        let ephemeral = body.get("ephemeral").and_then(Value::as_bool).unwrap_or(false);
        let id = self.add_runner(text("name"), ephemeral && self.ephemeral);
        Reply::json(200, &json!({ "runner": self.runner_message(id) }))
    }

    fn runner_message(&self, id: u64) -> Value {
        self.runners.get(&id).map_or(Value::Null, |runner| {
            json!({
                "id": runner.id.to_string(), "uuid": runner.uuid, "token": runner.token, "name": runner.name,
                "ephemeral": runner.ephemeral,
            })
        })
    }

    fn task_message(&self, task: &ForgejoTask) -> Value {
        json!({
            "id": task.id.to_string(),
            "context": { "token": format!("job-token-{}-{}", task.id, task.told) },
        })
    }

    fn fetch(&mut self, runner: u64, key: Option<String>, body: &Value) -> Option<Reply> {
        self.fetches.push((runner, key.clone()));
        let version = self.version.to_string();
        let nothing = Some(Reply::json(200, &json!({ "tasksVersion": version })));
        let known = self
            .tasks
            .values_mut()
            .find(|task| self.honours_keys && key.is_some() && task.runner == runner && task.key == key);
        let task = match known {
            Some(task) => {
                task.told += 1;
                task.clone()
            }
            None => {
                let seen = number(field(body, "tasksVersion", "tasks_version"));
                let busy = self.runners.get(&runner).is_none_or(|runner| runner.job.is_some());
                if busy || seen == self.version {
                    return nothing;
                }
                let handle = field(body, "requestedJob", "requested_job").and_then(Value::as_str);
                let handle = handle.filter(|_| self.handles).map(str::to_owned);
                let Some(job) = self.take(runner, handle.as_deref()) else { return nothing };
                let id = self.number();
                let task = ForgejoTask { id, job, runner, key, told: 1, heard: false };
                self.tasks.insert(id, task.clone());
                task
            }
        };
        if self.lose_fetches > 0 {
            self.lose_fetches -= 1;
            return None;
        }
        Some(Reply::json(200, &json!({ "task": self.task_message(&task), "tasksVersion": version })))
    }

    fn update(&mut self, runner: u64, body: &Value) -> Reply {
        let state = body.get("state").unwrap_or(&Value::Null);
        let id = number(state.get("id"));
        let Some(task) = self.tasks.get_mut(&id).filter(|task| task.runner == runner) else {
            return refused(404, "not_found", "no such task of this runner");
        };
        task.heard = true;
        let job = task.job;
        let result = match state.get("result").and_then(Value::as_str) {
            Some("RESULT_SUCCESS") => Some("success"),
            Some("RESULT_FAILURE") => Some("failure"),
            Some("RESULT_CANCELLED") => Some("cancelled"),
            _ => None,
        };
        if let Some(result) = result {
            self.end(job, result);
        }
        Reply::json(200, &json!({ "state": { "id": id.to_string() } }))
    }
}
