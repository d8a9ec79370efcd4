//! The way to the actions service: registration token → admin connection → calls with its token.
//!
//! The admin token is a JSON web token; its `exp` is read (not verified: it is not ours to judge) and it is renewed
//! a minute before. A token whose end cannot be read is used for one call.

use super::super::budget::Limit;
use super::super::client::{Call, Github};
use super::super::endpoint::{address, may_carry_tokens};
use super::super::error::GithubError;
use super::super::wire::{Answer, Proof, Request};
use super::ScaleSets;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_model::{Secret, Timestamp};
use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long before its end an admin token is renewed.
const MARGIN_SECONDS: i64 = 60;
/// Pause after a 429 of the actions service that does not say how long.
const PAUSE: Duration = Duration::from_secs(60);
/// No 429 makes us wait longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// An open admin connection.
#[derive(Debug, Clone)]
pub(super) struct Admin {
    url: String,
    token: Secret,
    until: Timestamp,
}

#[derive(Deserialize)]
struct Opened {
    url: String,
    token: Secret,
}

/// A call to the actions service.
#[derive(Debug, Clone)]
pub(super) struct Service {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    set: Option<u64>,
}

impl Service {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), query: Vec::new(), body: None, set: None }
    }

    pub(super) fn query(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    pub(super) fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    /// Names the scale set in the user agent, for GitHub's support.
    pub(super) fn of_set(mut self, set: u64) -> Self {
        self.set = Some(set);
        self
    }
}

/// User agent as GitHub's own client writes it.
pub(super) fn user_agent(set: Option<u64>) -> String {
    json!({
        "system": "forgeyard",
        "version": env!("CARGO_PKG_VERSION"),
        "commit": "",
        "scale_set_id": set.unwrap_or(0),
        "subsystem": "scaleset",
    })
    .to_string()
}

/// When a JSON web token ends, if that can be read.
fn expiry(token: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let payload = token.split('.').nth(1)?.trim_end_matches('=');
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    // Out of range or not a number: not readable.
    (claims.exp > 0.0 && claims.exp < 1e11).then(|| Timestamp::from_micros((claims.exp as i64) * 1_000_000))
}

impl ScaleSets {
    pub(super) fn github(&self) -> &Github {
        &self.inner.github
    }

    /// The open connection, or a new one.
    async fn admin(&self) -> Result<Admin, GithubError> {
        // Held while it is opened, so that a crowd of callers opens one.
        let mut held = self.inner.admin.lock().await;
        if let Some(admin) = held.as_ref().filter(|admin| admin.until > self.github().now()) {
            return Ok(admin.clone());
        }
        let admin = self.open().await?;
        *held = Some(admin.clone());
        Ok(admin)
    }

    async fn open(&self) -> Result<Admin, GithubError> {
        let github = self.github();
        let target = &self.inner.target;
        let mut again = false;
        loop {
            let registration = github.registration_token(target).await?;
            let url = format!("{}/{target}", github.endpoint().web());
            let call = Call::post("runner-registration", "/actions/runner-registration".to_owned())
                .body(json!({ "url": url, "runner_event": "register" }));
            let answer = github.at_the_door(registration.token, call).await?;
            // A fresh registration token is not known everywhere at once.
            if matches!(answer.status, 401 | 403) && !again {
                again = true;
                continue;
            }
            let call = answer.call.clone();
            let opened: Opened = answer.json()?;
            let url = address(&opened.url).map_err(|error| GithubError::Answer {
                call,
                field: "url".to_owned(),
                reason: error.to_string(),
            })?;
            let until = expiry(opened.token.expose()).map_or(Timestamp::default(), |end| {
                Timestamp::from_micros(end.as_micros().saturating_sub(MARGIN_SECONDS * 1_000_000))
            });
            return Ok(Admin { url, token: opened.token, until });
        }
    }

    /// Makes a call with the admin token. A token that is not taken is replaced once.
    pub(super) async fn admin_call(&self, call: Service) -> Result<Answer, GithubError> {
        let mut again = false;
        loop {
            let admin = self.admin().await?;
            let proof = Proof::Bearer(admin.token.clone());
            let answer = self.at_service(&admin, proof, call.clone()).await?;
            if answer.status != 401 || again {
                return Ok(answer);
            }
            let mut held = self.inner.admin.lock().await;
            if held.as_ref().is_some_and(|held| held.token == admin.token) {
                *held = None;
            }
            again = true;
        }
    }

    /// Makes a call to the actions service with another token.
    pub(super) async fn service_call(&self, token: Secret, call: Service) -> Result<Answer, GithubError> {
        let admin = self.admin().await?;
        self.at_service(&admin, Proof::Bearer(token), call).await
    }

    async fn at_service(&self, admin: &Admin, proof: Proof, call: Service) -> Result<Answer, GithubError> {
        let title = format!("{} {}", call.method, call.path);
        let mut url = parse_url(&title, "url", &format!("{}{}", admin.url, call.path))?;
        url.query_pairs_mut()
            .extend_pairs(call.query.iter().map(|(name, value)| (*name, value.as_str())))
            .append_pair("api-version", "6.0-preview");
        self.send(Request {
            call: title,
            method: call.method,
            url,
            proof,
            headers: vec![("user-agent", user_agent(call.set)), ("accept", "application/json".to_owned())],
            body: call.body,
            timeout: None,
        })
        .await
    }

    /// Sends a request to the actions service; a 429 becomes a wait.
    pub(super) async fn send(&self, request: Request) -> Result<Answer, GithubError> {
        let answer = self.github().wire().exchange(request).await?;
        let told = answer.header("retry-after").and_then(|text| text.trim().parse::<u64>().ok());
        if answer.status == 429 || (answer.status == 503 && told.is_some()) {
            let pause = told.map_or(PAUSE, Duration::from_secs).min(LONGEST_PAUSE);
            let until = self.github().now().plus(pause);
            return Err(GithubError::Limited { call: answer.call, limit: Limit::Told, until });
        }
        Ok(answer)
    }
}

/// Reads an address that an answer named; a token will be sent there.
pub(super) fn parse_url(call: &str, field: &str, text: &str) -> Result<Url, GithubError> {
    let wrong =
        |reason: String| GithubError::Answer { call: call.to_owned(), field: field.to_owned(), reason };
    let url = Url::parse(text).map_err(|error| wrong(format!("it is no address: {error}")))?;
    if may_carry_tokens(&url) { Ok(url) } else { Err(wrong("only https carries tokens".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::super::super::answer;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_of_an_admin_token_is_read_from_it() {
        let token = |claims: &str| format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(
            expiry(&token(r#"{"exp":1700000000}"#)),
            Some(Timestamp::from_micros(1_700_000_000_000_000))
        );
        assert_eq!(
            expiry(&token(r#"{"exp":1700000000.5}"#)),
            Some(Timestamp::from_micros(1_700_000_000_000_000))
        );
        for odd in
            [token("{}"), token(r#"{"exp":-1}"#), token(r#"{"exp":1e300}"#), "opaque".into(), "a.b.c".into()]
        {
            assert_eq!(expiry(&odd), None, "{odd}");
        }
    }

    #[test]
    fn a_byte_order_mark_before_the_answer_is_passed_over() {
        let text = "\u{feff}{\"url\":\"https://pipelines.example/abc/\",\"token\":\"t\",\"more\":1}";
        let read: Opened = answer::read("POST /x", text.as_bytes()).unwrap();
        assert_eq!(read.url, "https://pipelines.example/abc/");
    }

    #[test]
    fn tokens_are_not_sent_where_an_answer_wants_them_in_the_clear() {
        assert!(parse_url("POST /x", "messageQueueUrl", "http://queue.example/q").is_err());
        assert!(parse_url("POST /x", "messageQueueUrl", "https://queue.example/q?a=b").is_ok());
    }

    proptest! {
        #[test]
        fn any_token_has_an_end_or_none(token in ".{0,80}") {
            let _ = expiry(&token);
        }
    }
}
