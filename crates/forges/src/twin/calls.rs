//! Calls to the simulated GitHub and its answers, without sockets; and the record of them.
//!
//! [`State::serve`] is the whole of it: faults, counting, dispatch, record. The server puts HTTP around it, and a
//! simulation may call it directly. An answer that is to be held (a poll of a message queue) comes back as
//! [`Outcome::Hold`]: the caller asks again when something changed, or at the time it names.

use super::faults::Misbehaviour;
use super::state::State;
use forgeyard_model::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A way to call without sockets: none is a lost answer. Whoever gives it plays the network, and time.
pub type Direct = Arc<dyn Fn(Request) -> Pin<Box<dyn Future<Output = Option<Reply>> + Send>> + Send + Sync>;

/// A call.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// Path as it came, without the query.
    pub path: String,
    /// Query, decoded.
    pub query: BTreeMap<String, String>,
    /// Headers; names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: Vec<u8>,
}

impl Request {
    /// A call without headers and body; the path may carry a query without escapes.
    pub fn new(method: &str, path: &str) -> Self {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        });
        Self { method: method.to_owned(), path: path.to_owned(), query: query.collect(), ..Self::default() }
    }

    /// With this header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_ascii_lowercase(), value.to_owned());
        self
    }

    /// With this JSON body.
    pub fn json(mut self, body: &Value) -> Self {
        self.body = written(body);
        self.header("content-type", "application/json")
    }

    pub(super) fn authorization(&self, scheme: &str) -> Option<&str> {
        let value = self.headers.get("authorization")?;
        let (found, token) = value.split_once(' ')?;
        found.eq_ignore_ascii_case(scheme).then(|| token.trim())
    }

    pub(super) fn parse(&self) -> Result<Value, Reply> {
        if self.body.is_empty() {
            return Ok(json!({}));
        }
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(value @ Value::Object(_)) => Ok(value),
            // acquirejobs takes an array.
            Ok(value @ Value::Array(_)) => Ok(value),
            _ => Err(Reply::message(400, "Problems parsing JSON")),
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.query.get(name)?.parse().ok()
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Reply {
    pub(super) fn json(status: u16, body: &impl Serialize) -> Self {
        let kind = ("content-type".to_owned(), "application/json; charset=utf-8".to_owned());
        Self { status, headers: vec![kind], body: written(body) }
    }

    pub(super) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// An error as REST tells it.
    pub(super) fn message(status: u16, message: &str) -> Self {
        Self::json(
            status,
            &json!({
                "message": message,
                "documentation_url": "https://docs.github.com/rest",
                "status": status.to_string(),
            }),
        )
    }

    pub(super) fn not_found() -> Self {
        Self::message(404, "Not Found")
    }

    /// What is wrong with a field, in the form of `validation-error`.
    pub(super) fn invalid(field: &str, code: &str) -> Self {
        Self::json(
            422,
            &json!({
                "message": "Validation Failed",
                "documentation_url": "https://docs.github.com/rest",
                "errors": [{ "resource": "simulated", "field": field, "code": code }],
            }),
        )
    }

    /// What cannot be done, in the form of `validation-error` without fields.
    pub(super) fn unprocessable(message: &str) -> Self {
        let body = json!({ "message": message, "documentation_url": "https://docs.github.com/rest" });
        Self::json(422, &body)
    }

    /// The same in the form of `validation-error-simple`, which calls about runners have.
    pub(super) fn invalid_text(error: &str) -> Self {
        Self::json(
            422,
            &json!({
                "message": "Invalid request.",
                "documentation_url": "https://docs.github.com/rest",
                "errors": [error],
            }),
        )
    }

    pub(super) fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// The body as JSON; null when it is none.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// What comes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// An answer.
    Answer(Reply),
    /// Not yet: ask again when something changed, and not later than this.
    Hold(Timestamp),
}

/// What comes of a call, with what goes wrong on the way back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The outcome.
    pub outcome: Outcome,
    /// The connection is closed instead of answering.
    pub closes: bool,
    /// The answer is kept this long, in real time.
    pub real_delay: Duration,
    /// The answer is kept until this simulated time.
    pub until: Option<Timestamp>,
}

/// A call that was answered.
#[derive(Debug, Clone)]
pub struct Call {
    /// When.
    pub at: Timestamp,
    /// What was asked; the `authorization` header is cut to its scheme.
    pub request: Request,
    /// Who asked: `app:1`, `installation:2`, `anonymous`, …
    pub caller: String,
    /// What was answered, whether or not it arrived.
    pub reply: Reply,
    /// Whether the call went to REST, and not to the actions service.
    pub rest: bool,
}

impl State {
    /// Answers a call, faults included.
    pub fn serve(&mut self, request: &Request) -> Served {
        let mut served = Served {
            outcome: Outcome::Answer(Reply::empty(500)),
            closes: false,
            real_delay: Duration::ZERO,
            until: None,
        };
        let fault = self.fault_for(request);
        match &fault {
            Some(Misbehaviour::Status { status, message, retry_after }) => {
                let mut reply = Reply::message(*status, message);
                if let Some(seconds) = retry_after {
                    reply = reply.with("retry-after", seconds);
                }
                self.record(request, &reply);
                served.outcome = Outcome::Answer(reply);
                return served;
            }
            Some(Misbehaviour::RequestLost) => {
                served.closes = true;
                return served;
            }
            Some(Misbehaviour::Duplicated) => {
                let _ = self.answer(request);
            }
            Some(Misbehaviour::SlowReal(wait)) => served.real_delay = *wait,
            Some(Misbehaviour::SlowSimulated(wait)) => served.until = Some(self.now.plus(*wait)),
            Some(Misbehaviour::AnswerLost) => served.closes = true,
            Some(Misbehaviour::EmptyBody | Misbehaviour::CutBody) | None => {}
        }
        let outcome = self.answer(request);
        served.outcome = match (outcome, fault) {
            (Outcome::Answer(mut reply), Some(Misbehaviour::EmptyBody)) => {
                reply.body.clear();
                Outcome::Answer(reply)
            }
            (Outcome::Answer(mut reply), Some(Misbehaviour::CutBody)) => {
                reply.body.truncate(reply.body.len() / 2);
                Outcome::Answer(reply)
            }
            (outcome, _) => outcome,
        };
        served
    }

    /// Answers a call that was held before, without planning faults again.
    pub fn serve_again(&mut self, request: &Request) -> Outcome {
        self.answer(request)
    }

    fn answer(&mut self, request: &Request) -> Outcome {
        let outcome = self.dispatch(request);
        if let Outcome::Answer(reply) = &outcome {
            self.record(request, reply);
        }
        outcome
    }

    fn dispatch(&mut self, request: &Request) -> Outcome {
        if let Some(path) = request.path.strip_prefix(&self.setup.actions_path.clone()) {
            return self.actions_service(request, path);
        }
        if let Some(page) = self.page(request) {
            return Outcome::Answer(page);
        }
        if request.path.starts_with("/login/oauth/") {
            return Outcome::Answer(self.login_calls(request));
        }
        let prefix = self.setup.api_prefix.clone();
        let Some(path) = request.path.strip_prefix(&prefix) else {
            return Outcome::Answer(Reply::message(404, "Not Found: no simulated page is here"));
        };
        if path == "/actions/runner-registration" {
            return Outcome::Answer(self.runner_registration(request).unwrap_or_else(|error| error));
        }
        Outcome::Answer(self.rest(request, path))
    }

    fn record(&mut self, request: &Request, reply: &Reply) {
        let rest = !request.path.starts_with(&self.setup.actions_path);
        let mut kept = request.clone();
        if let Some(value) = kept.headers.get_mut("authorization") {
            value.truncate(value.find(' ').unwrap_or(0));
        }
        let caller = self.caller_name(request);
        self.calls.push_back(Call { at: self.now, request: kept, caller, reply: reply.clone(), rest });
        while self.calls.len() > self.setup.calls_kept {
            self.calls.pop_front();
        }
    }

    /// Calls that were answered, oldest first.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&mut self) {
        self.calls.clear();
    }
}

/// As JSON. Bodies are large and many, and writing them by way of `Display` takes twice the time.
pub(super) fn written(body: &impl Serialize) -> Vec<u8> {
    // What is written here has texts as keys, the only thing that could fail.
    serde_json::to_vec(body).unwrap_or_default()
}
