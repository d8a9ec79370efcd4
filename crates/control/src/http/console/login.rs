//! Signing in by a forge: the web flow of its App, with PKCE.
//!
//! What begins in a browser ends in it: the state of a sign-in is known to the farm alone, is bound to a cookie of the browser
//! that began, is good for ten minutes and for one answer. The forge then says who it is, by numeric id; a session is a token
//! row of that person, so that it ends like any token: with its time, by sign-out, or revoked by an admin. What the person
//! may do is read from the access files at every request, never from the session.

use super::session::{self, local};
use super::{html, shell};
use crate::app::App;
use crate::auth;
use crate::console::{entry, routes};
use crate::effect::causes;
use crate::http::error::HttpError;
use crate::{forges, keys};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_engine::gate::standing;
use forgeyard_forges::github::{LoginApp, LoginError};
use forgeyard_model::access::Access;
use forgeyard_model::forge::Person;
use forgeyard_model::input::Input;
use forgeyard_model::principal::ApiToken;
use forgeyard_model::{Digest, Explanation, ForgeName, Secret, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a sign-in may take at the forge.
const PATIENCE: Duration = Duration::from_secs(600);
/// Sign-ins under way at once; beyond that the oldest is forgotten.
const MOST: usize = 1000;
/// Cookie of the browser that began.
const BROWSER: &str = "forgeyard-login";

struct Begun {
    forge: ForgeName,
    verifier: Secret,
    browser: Digest,
    next: String,
    ends: Timestamp,
}

/// Sign-ins that are under way, by their state.
#[derive(Default)]
pub struct Logins(Mutex<BTreeMap<String, Begun>>);

impl Logins {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, state: String, begun: Begun, now: Timestamp) {
        let mut all = self.all();
        all.retain(|_, other| other.ends > now);
        while all.len() >= MOST {
            let oldest = all.iter().min_by_key(|(_, other)| other.ends).map(|(state, _)| state.clone());
            let Some(oldest) = oldest else { break };
            all.remove(&oldest);
        }
        all.insert(state, begun);
    }

    /// Takes a sign-in out: its state is good for one answer, whatever comes of it.
    fn take(&self, state: &str, now: Timestamp) -> Option<Begun> {
        self.all().remove(state).filter(|begun| begun.ends > now)
    }
}

fn redirect(app: &App) -> String {
    format!("{}{}", app.public_url.trim_end_matches('/'), routes::LOGIN_CALLBACK)
}

fn of<'a>(app: &'a App, forge: &ForgeName) -> Result<&'a LoginApp, HttpError> {
    app.forges.login(forge).ok_or_else(|| {
        let text = format!("nobody signs in with the forge `{forge}` here");
        HttpError(ApiError::new(ErrorKind::NotFound, "login.no_forge", text).hint("sign in with a token"))
    })
}

#[derive(Deserialize)]
pub(super) struct Next {
    #[serde(default)]
    next: String,
}

/// Sends the browser to the forge.
pub(super) async fn begin(
    State(app): State<App>,
    Path(forge): Path<ForgeName>,
    Query(Next { next }): Query<Next>,
) -> Result<Response, HttpError> {
    let login = of(&app, &forge)?;
    let (state, browser) = (keys::nonce(), keys::nonce());
    let verifier = Secret::new(keys::nonce());
    let to = login.address(&redirect(&app), &state, &verifier).map_err(|error| {
        tracing::error!(error = causes(&error), "a sign-in cannot begin");
        HttpError(ApiError::new(
            ErrorKind::Internal,
            "login.address",
            "the address of the forge is not usable",
        ))
    })?;
    let now = app.clock.now();
    let begun = Begun {
        forge,
        verifier,
        browser: Digest::of(browser.as_bytes()),
        next: local(&next).to_owned(),
        ends: now.plus(PATIENCE),
    };
    app.logins.begin(state, begun, now);
    let mut response = Redirect::to(&to).into_response();
    browser_cookie(&app, &mut response, &browser, PATIENCE.as_secs());
    Ok(response)
}

/// Another site leads back here, so this cookie cannot be strict; it opens nothing by itself.
fn browser_cookie(app: &App, response: &mut Response, value: &str, seconds: u64) {
    let secure = if app.secure { "; Secure" } else { "" };
    let path = routes::LOGIN;
    let text = format!("{BROWSER}={value}; Path={path}; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
    if let Ok(text) = HeaderValue::from_str(&text) {
        response.headers_mut().append(header::SET_COOKIE, text);
    }
}

#[derive(Deserialize)]
pub(super) struct Answer {
    #[serde(default)]
    state: String,
    code: Option<Secret>,
    error: Option<String>,
}

/// The browser is back from the forge.
pub(super) async fn callback(
    State(app): State<App>,
    headers: HeaderMap,
    Query(answer): Query<Answer>,
) -> Response {
    let mut response = match finish(&app, &headers, answer).await {
        Ok((cookie, next)) => {
            let mut response = super::step_inside(&next);
            session::set_cookie(&app, &mut response, &cookie, session::SESSION.as_secs());
            response
        }
        Err(error) => {
            tracing::info!(code = %error.code, "a sign-in by a forge came to nothing: {}", error.message);
            let status = StatusCode::from_u16(error.kind.status()).unwrap_or(StatusCode::FORBIDDEN);
            let page = entry::login(
                &shell(&app, None),
                routes::PIPELINES,
                &app.forges.sign_in_names(),
                Some(&error),
            );
            (status, html(page)).into_response()
        }
    };
    browser_cookie(&app, &mut response, "", 0);
    response
}

fn refused(code: &str, text: impl Into<String>, hint: &str) -> ApiError {
    ApiError::new(ErrorKind::Forbidden, code, text).hint(hint)
}

async fn finish(app: &App, headers: &HeaderMap, answer: Answer) -> Result<(String, String), ApiError> {
    let again = "begin at the sign-in page of this farm, and finish in the same browser within ten minutes";
    let now = app.clock.now();
    let begun = app.logins.take(&answer.state, now).ok_or_else(|| {
        refused("login.state", "this sign-in was not begun here, is over, or was answered before", again)
    })?;
    let browser = auth::cookie_named(headers, BROWSER).unwrap_or_default();
    if Digest::of(browser.as_bytes()) != begun.browser {
        return Err(refused("login.browser", "this sign-in was begun in another browser", again));
    }
    if let Some(error) = answer.error {
        let shown: String = error.chars().filter(|letter| letter.is_ascii_graphic()).take(60).collect();
        return Err(refused("login.declined", format!("the forge answered `{shown}`"), again));
    }
    let code = answer.code.ok_or_else(|| refused("login.no_code", "the forge sent no code", again))?;
    let login = of(app, &begun.forge).map_err(|error| error.0)?;
    let person =
        login.redeem(&code, &redirect(app), &begun.verifier).await.map_err(|error| match &error {
            LoginError::Refused { .. } => refused("login.refused", error.to_string(), again),
            LoginError::Call(cause) => {
                tracing::warn!(error = causes(cause), "a code of a sign-in could not be redeemed");
                ApiError::new(ErrorKind::Unavailable, "login.forge", "the forge did not answer")
                    .hint("try again in a moment")
            }
        })?;
    let forge_roles = roles_at(app, &begun.forge, &person).await;
    let config = app.config();
    let may = standing::of(&config, &begun.forge, person.id, &forge_roles);
    if may.highest().is_none() && !named(&config.access, &begun.forge, person.id) {
        let text = format!(
            "{} (id {} at {}) has no role in this farm, and no access rule names this id of this forge",
            person.login, person.id, begun.forge
        );
        let hint = format!(
            "ask an operator for a member rule in the access file, by \"{}:{}\"",
            begun.forge, person.id
        );
        return Err(refused("login.nobody", text, &hint));
    }
    let token = keys::new_token();
    let digest = Digest::of(token.as_bytes());
    let end = now.plus(session::SESSION);
    let principal = auth::person(&begun.forge, &person);
    let row = ApiToken {
        principal: principal.clone(),
        digest,
        created_at: now,
        expires_at: Some(end),
        revoked_at: None,
        repositories: Default::default(),
        forge_roles,
        generation: 0,
    };
    app.core.give(Input::TokenIssued { token: row }, principal).await?;
    tracing::info!(forge = %begun.forge, name = %person.login, id = person.id, "signed in by the forge");
    Ok((app.keys.cookie(&digest, end.as_micros()), begun.next))
}

/// Whether an access rule speaks of a person: whoever is named may sign in, for example to accept the terms.
fn named(access: &Access, forge: &ForgeName, person: u64) -> bool {
    let groups = access.lists.values().chain(access.teams.values());
    access.grants.iter().any(|grant| access.holds(&grant.users, forge, person))
        || access
            .grants
            .iter()
            .filter_map(|grant| grant.approvers.as_ref())
            .any(|approvers| access.holds(&approvers.users, forge, person))
        || groups.into_iter().any(|ids| access.holds(ids, forge, person))
}

/// Roles of a person at the forge, where the access files give them a meaning. A repository that cannot be asked about gives
/// none.
async fn roles_at(app: &App, forge: &ForgeName, person: &Person) -> BTreeMap<u64, String> {
    let config = app.config();
    if config.access.forge_roles.is_empty() {
        return BTreeMap::new();
    }
    let Ok(connection) = app.forges.of(forge) else { return BTreeMap::new() };
    let asked = config.repositories.iter().filter(|repository| repository.forge == *forge).map(|known| async move {
        let path = forges::Connection::path(&forgeyard_model::forge::Repository {
            forge: known.forge.clone(),
            id: known.id,
            name: known.name.clone(),
        });
        let role = match path {
            Ok(path) => connection.github().role(&path, person).await.map_err(|error| {
                Explanation::new("login.role", causes(&error))
            }),
            Err(reason) => Err(reason),
        };
        match role {
            Ok(role) => role.name().map(|name| (known.id, name.to_owned())),
            Err(reason) => {
                tracing::warn!(repository = %known.name, "the role of {} is not known: {}", person.login, reason.message);
                None
            }
        }
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(ends: i64) -> Begun {
        Begun {
            forge: "github".parse().unwrap(),
            verifier: Secret::new("v"),
            browser: Digest::of(b"b"),
            next: String::new(),
            ends: Timestamp::from_micros(ends),
        }
    }

    #[test]
    fn state_is_good_once_and_for_a_while_and_the_table_is_bounded() {
        let logins = Logins::default();
        let at = Timestamp::from_micros;
        logins.begin("a".to_owned(), begun(100), at(0));
        assert!(logins.take("a", at(50)).is_some());
        assert!(logins.take("a", at(50)).is_none(), "once");
        logins.begin("b".to_owned(), begun(100), at(0));
        assert!(logins.take("b", at(100)).is_none(), "over");
        for number in 0..2 * MOST {
            logins.begin(number.to_string(), begun(1000 + i64::try_from(number).unwrap()), at(0));
        }
        assert_eq!(logins.all().len(), MOST);
        assert!(
            logins.take("0", at(0)).is_none() && logins.take(&(2 * MOST - 1).to_string(), at(0)).is_some()
        );
    }
}
