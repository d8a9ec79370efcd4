//! A stand-in for the runner program that speaks HTTP to the twin, so that it can live in another process or machine.
//!
//! It takes an encoded JIT configuration, connects once, takes one job, begins it under its own name, and ends it. What
//! the work is, is the caller's: nothing, a sleep, or a real program. The wire is ours, not that of the real program.

use super::wire::{WireError, call};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeyard_model::Secret;
use serde_json::{Value, json};
use std::time::Duration;

/// Exit code of a runner that did its job.
pub const EXIT_DONE: i32 = 0;
/// Exit code of a runner that could not connect.
pub const EXIT_REFUSED: i32 = 1;
/// Exit code of a runner program that is too old (ARC marks the set as outdated).
pub const EXIT_TOO_OLD: i32 = 7;

/// Why the stand-in runner could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The configuration cannot be read.
    #[error("the JIT configuration cannot be read")]
    Config,
    /// The simulated service refused.
    #[error("the simulated service refused to {step} ({status}): {message}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// Status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// No answer.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// A connected stand-in runner.
#[derive(Debug)]
pub struct Runner {
    service: String,
    token: Secret,
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
}

/// A job that the runner was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenJob {
    /// Id of the job.
    pub job: u64,
    /// Id of the run.
    pub run: u64,
    /// Attempt of the run.
    pub attempt: u64,
    /// Its name.
    pub name: String,
    /// `owner/name`.
    pub repository: String,
    /// Id of the repository.
    pub repository_id: u64,
    /// Login of who caused the run.
    pub actor: String,
    /// Their id.
    pub actor_id: u64,
    /// Login of who asked for this attempt.
    pub triggering_actor: String,
    /// How long its steps are to take.
    pub duration: Duration,
    /// How its steps are to end: `success`, `failure`, …
    pub conclusion: String,
    /// Whether somebody asked to end it.
    pub cancel_requested: bool,
}

const LIMIT: Duration = Duration::from_secs(120);

impl Runner {
    /// Connects with a JIT configuration; a second time is refused.
    pub async fn connect(encoded: &str) -> Result<Self, RunnerError> {
        let service = service_of(encoded).ok_or(RunnerError::Config)?;
        let body = json!({ "jit": encoded.trim() });
        let url = format!("{service}/_simulated/runner/connect");
        let answer = call("POST", &url, &[], body.to_string().into_bytes(), LIMIT).await?;
        let value = accepted("connect", answer.status, &answer.body)?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self {
            service,
            token: Secret::new(text("token")),
            id: value.get("runnerId").and_then(Value::as_u64).unwrap_or(0),
            name: text("name"),
        })
    }

    async fn step(&self, method: &str, step: &'static str, body: &Value) -> Result<Value, RunnerError> {
        let url = format!("{}/_simulated/runner/{step}", self.service);
        let bearer = format!("Bearer {}", self.token.expose());
        let headers = [("authorization", bearer.as_str())];
        let answer = call(method, &url, &headers, body.to_string().into_bytes(), LIMIT).await?;
        accepted(step, answer.status, &answer.body)
    }

    /// The job that it was given, if any by now. Waits as long as the service holds the call.
    pub async fn job(&self) -> Result<Option<GivenJob>, RunnerError> {
        let value = self.step("GET", "job", &json!({})).await?;
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let Some(job) = number("jobId") else { return Ok(None) };
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Some(GivenJob {
            job,
            run: number("runId").unwrap_or(0),
            attempt: number("attempt").unwrap_or(1),
            name: text("name"),
            repository: text("repository"),
            repository_id: number("repositoryId").unwrap_or(0),
            actor: text("actor"),
            triggering_actor: text("triggeringActor"),
            actor_id: number("actorId").unwrap_or(0),
            duration: Duration::from_secs(number("durationSeconds").unwrap_or(0)),
            conclusion: text("conclusion"),
            cancel_requested: value.get("cancelRequested").and_then(Value::as_bool).unwrap_or(false),
        }))
    }

    /// Begins the job under its own name.
    pub async fn begin(&self) -> Result<(), RunnerError> {
        self.step("POST", "begin", &json!({})).await.map(drop)
    }

    /// Ends the job; the service forgets the runner.
    pub async fn end(&self, conclusion: &str) -> Result<(), RunnerError> {
        self.step("POST", "end", &json!({ "conclusion": conclusion })).await.map(drop)
    }

    /// Goes away without having done a job.
    pub async fn disconnect(&self) -> Result<(), RunnerError> {
        self.step("POST", "disconnect", &json!({})).await.map(drop)
    }

    /// The whole life of a runner program; `work` is the job's steps and says how they ended. Returns the exit code.
    pub async fn run<W, F>(encoded: &str, work: W) -> i32
    where
        W: FnOnce(GivenJob) -> F,
        F: Future<Output = String>,
    {
        let Ok(runner) = Self::connect(encoded).await else { return EXIT_REFUSED };
        let job = loop {
            match runner.job().await {
                Ok(Some(job)) => break job,
                Ok(None) => {}
                Err(_) => return EXIT_REFUSED,
            }
        };
        if runner.begin().await.is_err() {
            return EXIT_REFUSED;
        }
        let conclusion = work(job).await;
        match runner.end(&conclusion).await {
            Ok(()) => EXIT_DONE,
            Err(_) => EXIT_REFUSED,
        }
    }
}

fn accepted(step: &'static str, status: u16, body: &[u8]) -> Result<Value, RunnerError> {
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    if (200..300).contains(&status) {
        return Ok(value);
    }
    let message = value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    Err(RunnerError::Refused { step, status, message })
}

/// The service that a JIT configuration names.
fn service_of(encoded: &str) -> Option<String> {
    let files: Value = serde_json::from_slice(&STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let settings = STANDARD.decode(files.get(".runner")?.as_str()?).ok()?;
    let settings: Value = serde_json::from_slice(&settings).ok()?;
    Some(settings.get("ServerUrl")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_makes_the_reader_of_configurations_panic(text in ".*") {
            let _ = service_of(&text);
            let _ = service_of(&STANDARD.encode(&text));
        }
    }
}
