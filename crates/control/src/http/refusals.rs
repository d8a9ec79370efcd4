//! Refusals that the framework makes by itself (a path, a query or a body that cannot be read, a wrong method, a
//! panic) are plain text or empty. Here they become the farm's own error: there is one error type.

use axum::http::StatusCode;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;

/// Longest text of the framework that is passed on, in bytes.
pub(super) const LONGEST: usize = 4096;

/// No route has this path.
pub(super) fn no_route(path: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, "http.no_route", format!("there is nothing at {path}"))
        .hint("see `GET /openapi.json` for all routes")
}

/// What the framework said about a request for this path, as an error of the farm.
pub(super) fn of(status: StatusCode, path: &str, text: &str) -> ApiError {
    match status {
        StatusCode::NOT_FOUND => no_route(path),
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
        // What went wrong inside is in the log, not in the answer.
        _ => ApiError::new(ErrorKind::Internal, "http.failed", "the farm failed to answer; its log says why"),
    }
}
