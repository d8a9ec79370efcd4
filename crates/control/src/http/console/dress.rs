//! What stands around all routes: the policy of pages, and errors that the caller can read.

use super::{session, shell};
use crate::app::App;
use crate::auth;
use crate::console::{assets, entry, routes};
use crate::http::error::HttpError;
use crate::http::refusals;
use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use maud::{DOCTYPE, html};

/// Addresses of programs: errors there are JSON, whatever the caller says that it can show.
const PROGRAMS: [&str; 8] =
    ["/api/", "/site/", "/agent/", "/webhooks/", "/channels/", "/metrics", "/healthz", "/status.json"];

/// No route has this address.
pub async fn unknown(uri: Uri) -> HttpError {
    HttpError(refusals::no_route(uri.path()))
}

/// Gives every page its policy and every error its form.
pub async fn dress(State(app): State<App>, request: Request, next: Next) -> Response {
    let page = wants_page(request.uri(), request.headers());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let asked = page.then(|| (request.uri().clone(), request.headers().clone()));
    let mut response = next.run(request).await;
    if response.status().is_client_error() || response.status().is_server_error() {
        let (error, status, json) = explained(&path, response).await;
        response = match (error, asked) {
            (Some(error), Some((uri, headers))) => as_page(&app, &method, &uri, &headers, &error, status),
            _ => json,
        };
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html")) {
        let headers = response.headers_mut();
        let policy = HeaderValue::from_static(assets::CONTENT_SECURITY_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    // Pages and answers are for one person at one moment. What may be kept says so itself: by its own header, or by a
    // tag to compare.
    let kept = response.headers().contains_key(header::ETAG) || response.status() == StatusCode::NOT_MODIFIED;
    if !kept {
        let cache = HeaderValue::from_static("no-store");
        response.headers_mut().entry(header::CACHE_CONTROL).or_insert(cache);
    }
    response
}

fn wants_page(uri: &Uri, headers: &HeaderMap) -> bool {
    let shown = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    shown.is_some_and(|shown| shown.contains("text/html"))
        && !PROGRAMS.iter().any(|prefix| uri.path().starts_with(prefix))
}

/// The error of an answer. Refusals of the framework (a bad query, a method that is not there) get the one error type
/// here, by [`refusals`]. A page that carries its own error, as the sign-in does, is left as it is.
async fn explained(path: &str, response: Response) -> (Option<ApiError>, StatusCode, Response) {
    let status = response.status();
    if let Some(error) = response.extensions().get::<ApiError>().cloned() {
        return (Some(error), status, response);
    }
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| !kind.starts_with("text/plain")) {
        return (None, status, response);
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, refusals::LONGEST).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let error = refusals::of(status, path, text.trim());
    // One kind of error has one status; only the method has one that its kind does not tell.
    let status = match status {
        StatusCode::METHOD_NOT_ALLOWED => status,
        _ => StatusCode::from_u16(error.kind.status()).unwrap_or(status),
    };
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    let mut json = Json(&error).into_response();
    *json.status_mut() = status;
    json.headers_mut().extend(parts.headers);
    (Some(error), status, json)
}

fn as_page(
    app: &App,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    error: &ApiError,
    status: StatusCode,
) -> Response {
    let place = session::local(uri.path_and_query().map_or(routes::PIPELINES, |place| place.as_str()));
    if error.kind == ErrorKind::Unauthenticated && method == Method::GET {
        let from_elsewhere = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
        if from_elsewhere && auth::cookie(headers).is_none() {
            return step_inside(place);
        }
        return Redirect::to(&format!("{}?next={}", routes::LOGIN, routes::query(place))).into_response();
    }
    let caller = auth::viewer(app, headers);
    let shell = shell(app, caller.as_ref());
    let page = match error.code.as_str() {
        "farm.not_found" if error.message.starts_with("there is no page") => {
            entry::not_found(&shell, uri.path())
        }
        _ => entry::error(&shell, error),
    };
    (status, Html(page.into_string())).into_response()
}

/// A strict cookie is not sent when another site leads here, so a person who follows a link of the forge would have to
/// sign in although they are. This page asks again from here, where the cookie is sent.
pub(super) fn step_inside(place: &str) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0;url=" (place) };
                title { "Forgeyard" }
            }
            body { a href=(place) { "Go on" } }
        }
    };
    Html(page.into_string()).into_response()
}
