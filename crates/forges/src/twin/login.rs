//! Signing people in at the simulated GitHub: the web flow of an App, with PKCE.
//!
//! A person who is at the page is a setting ([`State::sign_in`]); pressing the button is [`State::authorize`], and over HTTP
//! the page presses it at once. A code works once, for ten minutes, for the App and the address that it was made for, and,
//! when a challenge came with it, only with its verifier. Refusals are answered 200 with `error`, as GitHub does.

use super::auth::Opens;
use super::calls::{Reply, Request};
use super::state::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_model::Timestamp;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a code is good.
const CODE_LIFE: Duration = Duration::from_secs(600);
/// How long the token of a person is good.
const TOKEN_LIFE: Duration = Duration::from_secs(8 * 3600);

/// A code that was given to a browser.
#[derive(Debug, Clone)]
struct Code {
    app: u64,
    account: u64,
    redirect: String,
    challenge: Option<String>,
    expires_at: Timestamp,
}

/// Who is at the page, and what was given out.
#[derive(Debug, Clone, Default)]
pub(super) struct Logins {
    at_the_page: Option<u64>,
    codes: BTreeMap<String, Code>,
}

impl State {
    /// The person whose browser opens the page next; nobody when absent.
    pub fn sign_in(&mut self, account: Option<u64>) {
        self.logins.at_the_page = account;
    }

    /// The secret by which an App proves itself when it redeems a code.
    pub fn client_secret(&self, app: u64) -> forgeyard_model::Secret {
        forgeyard_model::Secret::new(format!("simulated-client-secret-{app}"))
    }

    /// Pages and calls under `/login/oauth`.
    pub(super) fn login_calls(&mut self, request: &Request) -> Reply {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/login/oauth/authorize") => self.authorize_page(&request.query),
            ("POST", "/login/oauth/access_token") => self.redeem_code(request),
            _ => Reply::message(404, "Not Found: no simulated page is here"),
        }
    }

    fn authorize_page(&mut self, query: &BTreeMap<String, String>) -> Reply {
        let Some(account) = self.logins.at_the_page else {
            return Reply::message(401, "nobody is signed in at this simulated GitHub");
        };
        match self.authorize(query, account) {
            Some(to) => Reply::empty(302).with("location", to),
            None => Reply::message(404, "no App has this client id"),
        }
    }

    /// A person presses the button: where the browser is sent. None when no App has the client id.
    pub fn authorize(&mut self, query: &BTreeMap<String, String>, account: u64) -> Option<String> {
        let text = |name: &str| query.get(name).cloned();
        let client = text("client_id")?;
        let app = self.apps.values().find(|app| app.client_id == client)?.id;
        let redirect = text("redirect_uri")?;
        let challenge = text("code_challenge")
            .filter(|_| query.get("code_challenge_method").is_some_and(|m| m == "S256"));
        let code = self.secret_text().chars().take(20).collect::<String>();
        let expires_at = self.now.plus(CODE_LIFE);
        let row = Code { app, account, redirect: redirect.clone(), challenge, expires_at };
        self.logins.codes.insert(code.clone(), row);
        let joint = if redirect.contains('?') { '&' } else { '?' };
        let state = text("state").map(|state| format!("&state={state}")).unwrap_or_default();
        Some(format!("{redirect}{joint}code={code}{state}"))
    }

    fn redeem_code(&mut self, request: &Request) -> Reply {
        let body = match request.parse() {
            Ok(body) => body,
            Err(error) => return error,
        };
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let refused = |error: &str, description: &str| {
            let uri = "https://docs.github.com/apps";
            Reply::json(200, &json!({ "error": error, "error_description": description, "error_uri": uri }))
        };
        let bad_code = || refused("bad_verification_code", "The code passed is incorrect or expired.");
        let client = text("client_id");
        let app = self.apps.values().find(|app| app.client_id == client).map(|app| app.id);
        let Some(app) = app.filter(|app| self.client_secret(*app).expose() == text("client_secret")) else {
            let words = "The client_id and/or client_secret passed are incorrect.";
            return refused("incorrect_client_credentials", words);
        };
        // Whatever comes of it, a code is gone once somebody tried it.
        let Some(code) = self.logins.codes.remove(&text("code")) else { return bad_code() };
        if code.app != app || code.expires_at <= self.now {
            return bad_code();
        }
        let redirect = text("redirect_uri");
        if !redirect.is_empty() && redirect != code.redirect {
            let words = "The redirect_uri MUST match the registered callback URL for this application.";
            return refused("redirect_uri_mismatch", words);
        }
        if let Some(challenge) = &code.challenge {
            let sum = digest(&SHA256, text("code_verifier").as_bytes());
            if URL_SAFE_NO_PAD.encode(sum.as_ref()) != *challenge {
                return bad_code();
            }
        }
        let (token, _) = self.give_token("ghu_", Opens::Person(code.account), TOKEN_LIFE);
        Reply::json(
            200,
            &json!({ "access_token": token, "token_type": "bearer", "scope": "", "expires_in": TOKEN_LIFE.as_secs() }),
        )
    }

    /// `GET /user`: the person whose token it is.
    pub(super) fn own_user_json(&self, id: u64) -> Value {
        self.public_user_json(id)
    }
}
