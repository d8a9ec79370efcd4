//! Bytes by digest, whole or one range (RFC 9110 §14): `bytes=a-b`, `bytes=a-`, `bytes=-n`.

use super::error::{self, HttpError};
use crate::app::App;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_model::Digest;
use std::ops::Range;
use tokio_util::io::ReaderStream;

/// The range is not within the bytes, or makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside;

/// What a `Range` header asks of `size` bytes; `None` = the whole.
pub(crate) fn parse(text: &str, size: u64) -> Result<Option<Range<u64>>, Outside> {
    let Some(spec) = text.trim().strip_prefix("bytes=") else { return Ok(None) };
    // Several ranges may be answered with the whole.
    if spec.contains(',') {
        return Ok(None);
    }
    let (first, last) = spec.trim().split_once('-').ok_or(Outside)?;
    let range = match (first.trim(), last.trim()) {
        ("", "") => return Err(Outside),
        ("", count) => {
            let count: u64 = count.parse().map_err(|_| Outside)?;
            size.saturating_sub(count)..size
        }
        (first, "") => first.parse().map_err(|_| Outside)?..size,
        (first, last) => {
            let (first, last): (u64, u64) =
                (first.parse().map_err(|_| Outside)?, last.parse().map_err(|_| Outside)?);
            if last < first {
                return Err(Outside);
            }
            first..last.saturating_add(1).min(size)
        }
    };
    if range.start >= range.end { Err(Outside) } else { Ok(Some(range)) }
}

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

#[cfg(test)]
mod tests {
    use super::{Outside, parse};
    use proptest::prelude::*;

    #[test]
    fn ranges_of_the_standard_are_understood() {
        assert_eq!(parse("bytes=0-499", 1000), Ok(Some(0..500)));
        assert_eq!(parse("bytes=-500", 1000), Ok(Some(500..1000)));
        assert_eq!(parse("bytes=500-", 1000), Ok(Some(500..1000)));
        assert_eq!(parse("bytes=0-9999", 1000), Ok(Some(0..1000)));
        assert_eq!(parse("bytes=1000-", 1000), Err(Outside));
        assert_eq!(parse("bytes=5-2", 1000), Err(Outside));
        assert_eq!(parse("bytes=0-1,5-6", 1000), Ok(None));
        assert_eq!(parse("lines=1-2", 1000), Ok(None));
    }

    proptest! {
        #[test]
        fn any_range_stays_inside(text in "bytes=.{0,20}", size in 0u64..10_000) {
            if let Ok(Some(range)) = parse(&text, size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
