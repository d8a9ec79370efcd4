//! Signing people in at the *simulated* Forgejo: an OAuth 2 application with PKCE, by RFC 6749 and RFC 7636. Refusals of the
//! token call are answered 400 with `error`, as the RFC has it. A code works once, for the application, the address and the
//! verifier that it was made for.

use super::calls::{Reply, Request};
use super::forgejo::ForgejoState;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_model::forge::Person;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Client id of its one application.
pub const FORGEJO_CLIENT: &str = "simulated-client";
/// Client secret of its one application.
pub const FORGEJO_CLIENT_SECRET: &str = "simulated-client-secret";

#[derive(Debug, Clone)]
struct Code {
    person: Person,
    redirect: String,
    challenge: String,
}

/// Who is at the page, and what was given out.
#[derive(Debug, Clone, Default)]
pub(super) struct Logins {
    at_the_page: Option<Person>,
    codes: BTreeMap<String, Code>,
    tokens: BTreeMap<String, Person>,
}

impl ForgejoState {
    /// The person whose browser opens the page next; nobody when absent.
    pub fn sign_in(&mut self, person: Option<&Person>) {
        self.logins.at_the_page = person.cloned();
    }

    /// Pages and calls of signing in; none for all others.
    pub(super) fn login_call(&mut self, request: &Request) -> Option<Reply> {
        Some(match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/login/oauth/authorize") => self.authorize(request),
            ("POST", "/login/oauth/access_token") => self.access_token(request),
            ("GET", "/api/v1/user") => {
                let token = request.authorization("bearer").unwrap_or_default();
                match self.logins.tokens.get(token) {
                    Some(person) => Reply::json(200, &json!({ "id": person.id, "login": person.login })),
                    None => return None,
                }
            }
            _ => return None,
        })
    }

    fn authorize(&mut self, request: &Request) -> Reply {
        let text = |name: &str| request.query.get(name).map(String::as_str).unwrap_or_default();
        let Some(person) = self.logins.at_the_page.clone() else {
            return Reply::message(401, "nobody is signed in at this simulated Forgejo");
        };
        let asked = (text("client_id"), text("response_type"), text("code_challenge_method"));
        if asked != (FORGEJO_CLIENT, "code", "S256") || text("code_challenge").is_empty() {
            return Reply::message(400, "the simulated application is asked for with `code` and PKCE");
        }
        let code = format!("code-{}", self.number());
        let redirect = text("redirect_uri").to_owned();
        let to = format!("{redirect}?code={code}&state={}", text("state"));
        let challenge = text("code_challenge").to_owned();
        self.logins.codes.insert(code, Code { person, redirect, challenge });
        Reply::empty(302).with("location", to)
    }

    fn access_token(&mut self, request: &Request) -> Reply {
        let refused =
            |error: &str| Reply::json(400, &json!({ "error": error, "error_description": "simulated" }));
        let Ok(body) = request.parse() else { return refused("invalid_request") };
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("grant_type") != "authorization_code" {
            return refused("unsupported_grant_type");
        }
        if (text("client_id"), text("client_secret")) != (FORGEJO_CLIENT, FORGEJO_CLIENT_SECRET) {
            return refused("unauthorized_client");
        }
        // Whatever comes of it, a code is gone once somebody tried it.
        let Some(code) = self.logins.codes.remove(text("code")) else { return refused("invalid_grant") };
        let sum = digest(&SHA256, text("code_verifier").as_bytes());
        if code.redirect != text("redirect_uri") || URL_SAFE_NO_PAD.encode(sum.as_ref()) != code.challenge {
            return refused("invalid_grant");
        }
        let token = format!("person-token-{}", self.number());
        self.logins.tokens.insert(token.clone(), code.person);
        Reply::json(200, &json!({ "access_token": token, "token_type": "bearer", "expires_in": 3600 }))
    }
}
