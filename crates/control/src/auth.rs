//! Who calls. A token in the `Authorization` header, or a console session in a cookie. Loopback is no identity.
//!
//! A cookie travels by itself, so a cookie alone only ever reads. What changes something needs, beside the cookie, the
//! token that belongs to it: in the header [`CSRF_HEADER`] (checked by [`Caller`]) or in the field `csrf` of a form
//! (checked by [`Form`](crate::http::console::Form)). There is no third way to a `Caller`.

use crate::app::App;
use crate::http::error::HttpError;
use crate::keys;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_model::Digest;
use forgeyard_model::principal::{ApiToken, Principal, PrincipalKind, Role};
use forgeyard_model::site::Site;

/// Name of the console's cookie.
pub const COOKIE: &str = "forgeyard";

/// Header by which a script of our own pages shows where it comes from.
pub const CSRF_HEADER: &str = "x-forgeyard-csrf";

/// Who calls, as far as roles go.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The principal, for the audit trail.
    pub principal: Principal,
    /// What it may do.
    pub role: Role,
    /// The session cookie, when there is one: its forms must carry the token that belongs to it.
    pub cookie: Option<String>,
}

impl Caller {
    /// Refuses callers below this role.
    pub fn need(&self, role: Role) -> Result<(), HttpError> {
        if self.role >= role {
            return Ok(());
        }
        let text =
            format!("this needs the role {role}; the token `{}` has {}", self.principal.name, self.role);
        Err(ApiError::new(ErrorKind::Forbidden, "auth.role", text)
            .hint("ask an admin for a token with that role: `forgeyard token new`")
            .into())
    }
}

fn unauthenticated(code: &str, message: &str) -> HttpError {
    ApiError::new(ErrorKind::Unauthenticated, code, message)
        .hint("send `Authorization: Bearer TOKEN`; the first token is in `admin.token` in the data folder")
        .into()
}

/// The bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// The session cookie of a request, whatever it is worth.
pub fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, value)| value)
}

/// The caller with this token, when it is valid now.
pub fn caller(app: &App, digest: &Digest) -> Option<Caller> {
    let now = app.clock.now();
    let farm = app.core.read();
    let token: &ApiToken = farm.tokens.get(digest)?;
    let over = token.revoked_at.is_some() || token.expires_at.is_some_and(|end| end <= now);
    match token.principal.kind {
        PrincipalKind::Token { role } if !over => {
            Some(Caller { principal: token.principal.clone(), role, cookie: None })
        }
        _ => None,
    }
}

/// The caller of a console session. Only reads may follow from this alone.
pub fn session(app: &App, headers: &HeaderMap) -> Result<Caller, HttpError> {
    let value = cookie(headers).ok_or_else(|| unauthenticated("auth.missing", "this needs a token"))?;
    let session = app.keys.read_cookie(value).filter(|(_, end)| *end > app.clock.now().as_micros());
    let found = session.and_then(|(digest, _)| caller(app, &digest));
    let found =
        found.ok_or_else(|| unauthenticated("auth.session_over", "the session is over; sign in again"))?;
    Ok(Caller { cookie: Some(value.to_owned()), ..found })
}

/// Whoever looks, when that is known: for what is shown, never for what is done.
pub fn viewer(app: &App, headers: &HeaderMap) -> Option<Caller> {
    match bearer(headers) {
        Some(token) => caller(app, &Digest::of(token.as_bytes())),
        None => session(app, headers).ok(),
    }
}

/// Refuses what carries a session's cookie without the token that belongs to it.
pub fn check_csrf(app: &App, cookie: &str, sent: Option<&str>) -> Result<(), HttpError> {
    if sent.is_some_and(|sent| keys::same(sent, &app.keys.csrf(cookie))) {
        return Ok(());
    }
    let text = "the request does not come from a page of this session";
    let error = ApiError::new(ErrorKind::Forbidden, "auth.csrf", text);
    Err(error.hint("load the page again and repeat; programs send a token in `Authorization`").into())
}

impl FromRequestParts<App> for Caller {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        if let Some(token) = bearer(&parts.headers) {
            return caller(app, &Digest::of(token.as_bytes())).ok_or_else(|| {
                unauthenticated("auth.unknown_token", "the token is unknown, revoked or over")
            });
        }
        let found = session(app, &parts.headers)?;
        if !parts.method.is_safe() {
            let sent = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
            check_csrf(app, found.cookie.as_deref().unwrap_or_default(), sent)?;
        }
        Ok(found)
    }
}

/// A site that calls with its token.
#[derive(Debug, Clone)]
pub struct SiteCaller(pub Site);

impl FromRequestParts<App> for SiteCaller {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        let Some(token) = bearer(&parts.headers) else {
            return Err(unauthenticated("site.no_token", "a site must send its token"));
        };
        let digest = Digest::of(token.as_bytes());
        let found = app.core.read().sites.values().find(|site| site.token == digest).cloned();
        found.map(SiteCaller).ok_or_else(|| {
            ApiError::new(ErrorKind::Unauthenticated, "site.unknown_token", "no site has this token")
                .hint("join again with the farm's join token")
                .into()
        })
    }
}

impl SiteCaller {
    /// The site as a principal.
    pub fn principal(&self) -> Principal {
        Principal {
            id: forgeyard_model::Id::derive(self.0.id, "principal"),
            name: self.0.name.to_string(),
            kind: PrincipalKind::Site,
        }
    }
}
