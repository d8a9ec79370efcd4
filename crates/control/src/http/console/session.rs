//! Signing in and out. A session is a cookie that names the token's digest and an end, signed by the farm; it ends with
//! its time, with the token, or with the sign-out in its browser.

use super::form::{self, MemberForm};
use super::{html, shell};
use crate::app::App;
use crate::auth::{self, Caller};
use crate::console::{entry, routes};
use crate::forges;
use crate::http::error::HttpError;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_model::input::Input;
use forgeyard_model::principal::PrincipalKind;
use forgeyard_model::{Digest, Secret};
use serde::Deserialize;
use std::time::Duration;

/// How long a session lasts.
pub(super) const SESSION: Duration = Duration::from_secs(12 * 3600);

#[derive(Deserialize)]
pub(super) struct Next {
    #[serde(default)]
    next: String,
}

/// Sign-in.
pub(super) async fn page(
    State(app): State<App>,
    headers: HeaderMap,
    Query(Next { next }): Query<Next>,
) -> Result<Response, HttpError> {
    if auth::viewer(&app, &headers).is_some() {
        return Ok(Redirect::to(local(&next)).into_response());
    }
    Ok(html(entry::login(&shell(&app, None), local(&next), &forges::names(&app), None)).into_response())
}

#[derive(Deserialize)]
struct Login {
    token: Secret,
    #[serde(default)]
    next: String,
}

/// Takes a token and answers with a session.
pub(super) async fn login(State(app): State<App>, request: Request) -> Result<Response, HttpError> {
    form::own_page(&app, request.uri(), request.headers())?;
    let Login { token, next } = form::read(request, &app).await?;
    let digest = Digest::of(token.expose().trim().as_bytes());
    let Some(caller) = auth::caller(&app, &digest) else {
        tracing::info!("a sign-in with a token that is unknown, revoked or over");
        let error = ApiError::new(
            ErrorKind::Unauthenticated,
            "auth.unknown_token",
            "the token is unknown, revoked or over",
        );
        let page = entry::login(&shell(&app, None), local(&next), &forges::names(&app), Some(&error));
        return Ok((StatusCode::UNAUTHORIZED, Html(page.into_string())).into_response());
    };
    tracing::info!(name = %caller.principal.name, "signed in");
    let end = app.clock.now().plus(SESSION);
    let value = app.keys.cookie(&digest, end.as_micros());
    let mut response = Redirect::to(local(&next)).into_response();
    set_cookie(&app, &mut response, &value, SESSION.as_secs());
    Ok(response)
}

#[derive(Deserialize)]
pub(super) struct Nothing {}

/// Ends the session.
pub(super) async fn logout(
    State(app): State<App>,
    form: Result<MemberForm<Nothing>, HttpError>,
) -> Result<Response, HttpError> {
    match form {
        Ok(form) => end_session(&app, &form.caller).await,
        // A session that is over already is as good as signed out.
        Err(HttpError(error)) if error.kind == ErrorKind::Unauthenticated => {}
        Err(error) => return Err(error),
    }
    let mut response = Redirect::to(routes::LOGIN).into_response();
    set_cookie(&app, &mut response, "", 0);
    Ok(response)
}

/// A person's session is a token of its own and ends with the sign-out; a token that somebody pasted stays.
async fn end_session(app: &App, caller: &Caller) {
    if !matches!(caller.principal.kind, PrincipalKind::Person { .. }) {
        return;
    }
    let session = caller.cookie.as_deref().and_then(|cookie| app.keys.read_cookie(cookie));
    if let Some((digest, _)) = session {
        let given = app.core.give(Input::TokenRevoked { digest }, caller.principal.clone()).await;
        if let Err(error) = given {
            tracing::warn!(%error, "a session was not ended; it ends with its time");
        }
    }
}

pub(super) fn set_cookie(app: &App, response: &mut Response, value: &str, seconds: u64) {
    let secure = if app.secure { "; Secure" } else { "" };
    let name = auth::COOKIE;
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    if let Ok(text) = HeaderValue::from_str(&text) {
        response.headers_mut().append(header::SET_COOKIE, text);
    }
}

/// The path, when it is one of this farm; the front page otherwise. Browsers read `//host` and `/\host` as other hosts,
/// and drop tabs and line ends before they look.
pub(super) fn local(next: &str) -> &str {
    let mut bytes = next.bytes();
    let path = bytes.next() == Some(b'/') && !matches!(bytes.next(), Some(b'/' | b'\\'));
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic());
    // The sign-in itself would lead in a circle.
    let out = next.starts_with(routes::LOGIN) || next.starts_with(routes::LOGOUT);
    if path && plain && !out { next } else { routes::PIPELINES }
}

/// The same with another page to fall back on.
pub(super) fn local_or<'a>(next: &'a str, otherwise: &'a str) -> &'a str {
    if next.is_empty() || local(next) != next { otherwise } else { next }
}

#[cfg(test)]
mod tests {
    use super::local;
    use proptest::prelude::*;

    #[test]
    fn only_paths_of_this_farm_are_gone_to_after_signing_in() {
        assert_eq!(local("/jobs/job_1?fragment=x#L4"), "/jobs/job_1?fragment=x#L4");
        for foreign in ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", ""] {
            assert_eq!(local(foreign), "/pipelines", "{foreign:?}");
        }
        assert_eq!(local("/login?next=/login"), "/pipelines");
    }

    proptest! {
        #[test]
        fn no_text_leads_elsewhere(next in "[/\\\\a-z:.\\t\\n@#?%]{0,12}") {
            // As browsers do it: without tabs and line ends, with backslashes as slashes.
            let seen: String =
                local(&next).chars().filter(|c| !matches!(c, '\t' | '\n')).map(|c| if c == '\\' { '/' } else { c }).collect();
            prop_assert!(seen.starts_with('/') && !seen.starts_with("//"), "{}", seen);
        }
    }
}
