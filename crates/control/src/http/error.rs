//! One error type on every route.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;

/// An error as an answer.
#[derive(Debug)]
pub struct HttpError(pub ApiError);

impl<E: Into<ApiError>> From<E> for HttpError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let unavailable = self.0.kind == ErrorKind::Unavailable;
        let mut response = (status, Json(&self.0)).into_response();
        if unavailable {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        // For whoever shows it in another way, as the console does.
        response.extensions_mut().insert(self.0);
        response
    }
}

/// No such thing.
pub fn missing(what: &str, id: impl std::fmt::Display) -> HttpError {
    HttpError(ApiError::new(ErrorKind::NotFound, "farm.not_found", format!("there is no {what} {id}")))
}

/// The request makes no sense.
pub fn invalid(code: &str, message: impl Into<String>) -> HttpError {
    HttpError(ApiError::new(ErrorKind::Invalid, code, message))
}

/// An error of the database, as far as a caller may know it.
pub fn database(error: &forgeyard_db::Error) -> HttpError {
    tracing::error!(%error, "the database");
    if matches!(error, forgeyard_db::Error::NoSpace { .. }) {
        let error =
            ApiError::new(ErrorKind::NoSpace, "database.no_space", "the disk of the database is full");
        return HttpError(
            error.hint("free space on the disk of the data folder; the farm goes on by itself"),
        );
    }
    if error.transient() {
        let error =
            ApiError::new(ErrorKind::Unavailable, "database.unavailable", "the database does not answer");
        return HttpError(error.hint("try again in a moment"));
    }
    HttpError(ApiError::new(ErrorKind::Internal, "database.failed", "the database answered with an error"))
}

/// An error of the blob store.
pub fn blobs(error: &forgeyard_blobs::Error) -> HttpError {
    let explanation = error.explanation();
    let kind = match error {
        forgeyard_blobs::Error::Mismatch { .. } => ErrorKind::Mismatch,
        forgeyard_blobs::Error::NoSpace { .. } => ErrorKind::NoSpace,
        forgeyard_blobs::Error::NotFound { .. } => ErrorKind::NotFound,
        forgeyard_blobs::Error::Range { .. } => ErrorKind::Range,
        _ => {
            tracing::error!(%error, "the blob store");
            ErrorKind::Internal
        }
    };
    let mut error = ApiError::new(kind, explanation.code, explanation.message);
    error.evidence = explanation.evidence;
    error.hint = explanation.fix;
    HttpError(error)
}
