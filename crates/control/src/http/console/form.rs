//! What a page of the console posts: fields, with the token of the session among them.

use super::super::error::HttpError;
use crate::app::App;
use crate::auth::{self, Caller};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, Uri, header};
use axum::response::IntoResponse as _;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_model::principal::Role;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A form of a session that is signed in. There is no form without a valid token, so a handler that takes one is safe
/// against requests that other sites make a browser send. Fields are texts.
pub struct Form<T> {
    /// Who posts.
    pub caller: Caller,
    /// The fields.
    pub fields: T,
}

#[derive(Deserialize)]
struct Sent<T> {
    csrf: Option<String>,
    #[serde(flatten)]
    fields: T,
}

/// The same of somebody with a role anywhere: the handler asks where.
pub(super) struct MemberForm<T> {
    /// Who posts.
    pub caller: Caller,
    /// The fields.
    pub fields: T,
}

impl<T: DeserializeOwned> FromRequest<App> for Form<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, app: &App) -> Result<Self, HttpError> {
        let MemberForm { caller, fields } = MemberForm::from_request(request, app).await?;
        caller.need(Role::Viewer)?;
        Ok(Self { caller, fields })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for MemberForm<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, app: &App) -> Result<Self, HttpError> {
        let caller = auth::session(app, request.headers())?;
        own_page(app, request.uri(), request.headers())?;
        let Sent { csrf, fields } = read(request, app).await?;
        auth::check_csrf(app, caller.cookie.as_deref().unwrap_or_default(), csrf.as_deref())?;
        Ok(Self { caller, fields })
    }
}

/// Reads fields alone: for the sign-in, before there is a session.
pub(super) async fn read<T: DeserializeOwned>(request: Request, app: &App) -> Result<T, HttpError> {
    let form = axum::Form::<T>::from_request(request, app).await;
    form.map(|axum::Form(fields)| fields).map_err(|rejection| {
        let large = rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE
            || rejection.into_response().status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE;
        let (kind, text) = if large {
            (ErrorKind::TooLarge, "the form is too large")
        } else {
            (ErrorKind::Invalid, "the form is not what its page would send")
        };
        ApiError::new(kind, "form.unreadable", text).hint("load the page again and repeat").into()
    })
}

/// Refuses what a browser says comes from elsewhere. The token already proves it for a session; the sign-in has only
/// this.
pub(super) fn own_page(app: &App, uri: &Uri, headers: &HeaderMap) -> Result<(), HttpError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let own = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            let host = text(header::HOST.as_str()).or_else(|| uri.authority().map(|it| it.as_str()));
            authority.is_some() && (authority == host || origin == app.public_url.trim_end_matches('/'))
        }
        // Not a browser.
        (None, None) => true,
    };
    if own {
        return Ok(());
    }
    let error = ApiError::new(ErrorKind::Forbidden, "auth.foreign_page", "the form comes from another site");
    Err(error.hint("open the console itself and repeat there").into())
}
