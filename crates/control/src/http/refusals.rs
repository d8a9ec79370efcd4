//! Refusals that the framework makes by itself (a path, a query or a body that cannot be read, an unknown route, a
//! wrong method, a panic) are plain text or empty. Programs get the farm's own error instead, on every route that
//! they use: there is one error type.

use super::error::HttpError;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;

/// Beginnings of the paths that programs use.
const PROGRAMS: [&str; 5] = ["/api/", "/site/", "/agent/", "/webhooks/", "/channels/"];
/// Longest text of the framework that is passed on, in bytes.
const LONGEST: usize = 4096;

/// Turns a refusal of the framework into an error of the farm.
pub async fn explain(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let status = response.status();
    let refused = status.is_client_error() || status.is_server_error();
    if !refused || explained(&response) || !PROGRAMS.iter().any(|start| path.starts_with(start)) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, LONGEST).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let error = of(status, &path, text.trim());
    let mut response = HttpError(error).into_response();
    if status == StatusCode::METHOD_NOT_ALLOWED {
        *response.status_mut() = status;
        if let Some(allow) = parts.headers.get(header::ALLOW) {
            response.headers_mut().insert(header::ALLOW, allow.clone());
        }
    }
    response
}

/// Whether it says already what is wrong, in a form of its own.
fn explained(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| !kind.starts_with("text/plain"))
}

fn of(status: StatusCode, path: &str, text: &str) -> ApiError {
    match status {
        StatusCode::NOT_FOUND => {
            ApiError::new(ErrorKind::NotFound, "http.no_route", format!("there is nothing at {path}"))
                .hint("see `GET /openapi.json` for all routes")
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            ApiError::new(ErrorKind::Invalid, "http.method", format!("{path} does not take this method"))
                .hint("see the header `Allow`")
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(ErrorKind::TooLarge, "http.too_large", format!("the body is too large: {text}"))
        }
        status if status.is_client_error() => {
            ApiError::new(ErrorKind::Invalid, "http.request", format!("the request cannot be read: {text}"))
        }
        _ => ApiError::new(ErrorKind::Internal, "http.failed", "the farm failed to answer; its log says why"),
    }
}
