//! A stand-in for the runner program of a Forgejo or Gitea: it speaks the real protocol over HTTP (unary Connect with JSON)
//! and runs nothing. *Simulated*: the program of the forges was never run here.
//!
//! Invariant: the request key of a fetch is kept until an answer to it arrived, and only then is there another one.

use super::wire::{WireAnswer, WireError, call};
use crate::forgejo::OneJob;
use serde_json::{Value, json};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Why a call of the stand-in gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No answer came.
    #[error("{call}: no answer")]
    Lost {
        /// Which call.
        call: &'static str,
        /// The cause.
        #[source]
        source: WireError,
    },
    /// The forge refused.
    #[error("{call}: status {status}: {code}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// HTTP status.
        status: u16,
        /// Connect's word for it.
        code: String,
    },
}

/// A task that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedTask {
    /// Its id.
    pub id: u64,
    /// The token of the job.
    pub token: String,
}

/// The program, for one job.
#[derive(Debug)]
pub struct ForgejoProgram {
    one: OneJob,
    /// The key of the fetch that was not answered yet.
    key: Option<u64>,
    keys: u64,
    /// What the forge called its tasks when it had none for us.
    version: u64,
}

impl ForgejoProgram {
    /// With what a machine was handed.
    pub fn new(one: OneJob) -> Self {
        Self { one, key: None, keys: 0, version: 0 }
    }

    async fn call(&self, name: &'static str, key: Option<&str>, body: Value) -> Result<Value, ProgramError> {
        let url = format!("{}/api/actions/runner.v1.RunnerService/{name}", self.one.url);
        let mut headers = vec![
            ("content-type", "application/json"),
            ("connect-protocol-version", "1"),
            ("x-runner-uuid", self.one.uuid.as_str()),
            ("x-runner-token", self.one.token.expose()),
        ];
        headers.extend(key.map(|key| ("x-runner-request-key", key)));
        let answer = call("POST", &url, &headers, body.to_string().into_bytes(), LIMIT).await;
        let WireAnswer { status, body, .. } =
            answer.map_err(|source| ProgramError::Lost { call: name, source })?;
        let value: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if status == 200 {
            return Ok(value);
        }
        let code = value.get("code").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(ProgramError::Refused { call: name, status, code })
    }

    /// Says that it is there, and which labels it has.
    pub async fn declare(&self) -> Result<(), ProgramError> {
        self.call("Declare", None, json!({ "version": "simulated", "labels": self.one.labels }))
            .await
            .map(drop)
    }

    /// Asks once for a task: for the job that it was told, where it was told one. After an answer that did not come, the
    /// next call repeats the same request.
    pub async fn fetch(&mut self) -> Result<Option<FetchedTask>, ProgramError> {
        let key = match self.key {
            Some(key) => key,
            None => {
                self.keys += 1;
                *self.key.insert(self.keys)
            }
        };
        let key = format!("00000000-0000-4000-8000-{key:012x}");
        let mut body = json!({ "tasksVersion": self.version.to_string() });
        if let Some(handle) = &self.one.handle {
            body["requestedJob"] = json!(handle);
        }
        let answer = self.call("FetchTask", Some(&key), body).await?;
        self.key = None;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let task = answer.get("task").filter(|task| task.is_object());
        if task.is_none() {
            self.version = text(answer.get("tasksVersion")).parse().unwrap_or(0);
        }
        Ok(task.map(|task| FetchedTask {
            id: text(task.get("id")).parse().unwrap_or(0),
            token: text(task.get("context").and_then(|context| context.get("token"))),
        }))
    }

    /// Says how a task ended: `RESULT_SUCCESS`, `RESULT_FAILURE`, or that it runs (`RESULT_UNSPECIFIED`).
    pub async fn update(&self, task: &FetchedTask, result: &str) -> Result<(), ProgramError> {
        let state = json!({ "id": task.id.to_string(), "result": result });
        self.call("UpdateTask", None, json!({ "state": state })).await.map(drop)
    }
}
