//! Bytes by digest, whole or one range.

use super::error::{self, HttpError};
use crate::app::App;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_formats::range::{Outside, parse};
use forgeyard_model::Digest;
use tokio_util::io::ReaderStream;

/// Answers with the bytes of a blob.
pub async fn serve(
    app: &App,
    digest: Digest,
    headers: &HeaderMap,
    kind: &str,
) -> Result<Response, HttpError> {
    let facts = app.blobs.stat(digest).await.map_err(|error| error::blobs(&error))?;
    let size = facts.ok_or_else(|| error::missing("blob", digest))?.size;
    let asked = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let range = match asked.map(|text| parse(text, size)) {
        None | Some(Ok(None)) => None,
        Some(Ok(Some(range))) => Some(range),
        Some(Err(Outside)) if size == 0 => None,
        Some(Err(Outside)) => {
            let text = format!("the range is outside the {size} bytes of {digest}");
            return Err(ApiError::new(ErrorKind::Range, "blob.range", text).into());
        }
    };
    let blob = app.blobs.get(digest, range.clone()).await.map_err(|error| error::blobs(&error))?;
    let mut response = Response::builder()
        .header(header::CONTENT_TYPE, kind)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CONTENT_LENGTH, blob.len())
        .header(header::ETAG, format!("\"{}\"", digest.hex()));
    if let Some(range) = range {
        let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, text);
    }
    let body = Body::from_stream(ReaderStream::with_capacity(blob.reader, 256 << 10));
    response
        .body(body)
        .map_err(|error| HttpError(ApiError::new(ErrorKind::Internal, "blob.answer", error.to_string())))
}
