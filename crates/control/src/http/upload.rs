//! Bodies that become blobs: announced by length and digest, bounded, verified on arrival.
//!
//! A refused upload is heard out for a while. Without that the sender, who is still writing, would see a broken
//! connection in place of the refusal, and would try the same upload again and again.

use super::error::{self, HttpError, invalid};
use crate::app::App;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_blobs::Stored;
use forgeyard_model::Digest;
use futures::TryStreamExt as _;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::io::StreamReader;

/// How long a refused upload is heard out.
const HEARD_OUT: Duration = Duration::from_secs(30);

/// Stores a body under its digest. `allowed` is what was found out about the request so far.
pub async fn store(
    app: &App,
    what: &str,
    digest: Digest,
    headers: &HeaderMap,
    body: Body,
    allowed: Result<(), HttpError>,
) -> Result<Stored, HttpError> {
    let mut bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    let answer = match allowed.and_then(|()| fits(app, what, headers)) {
        Ok(()) => {
            let limited = Box::new((&mut bytes).take(app.artifact_limit));
            app.blobs.put(Some(digest), limited).await.map_err(|error| error::blobs(&error))
        }
        Err(refusal) => Err(refusal),
    };
    if answer.is_err() {
        hear_out(&mut bytes).await;
    }
    answer
}

/// The length must be announced, and must be one that is taken.
fn fits(app: &App, what: &str, headers: &HeaderMap) -> Result<(), HttpError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length: u64 =
        length.ok_or_else(|| invalid("upload.length", "an upload must say its length (`Content-Length`)"))?;
    if length > app.artifact_limit {
        let text = format!("{what} has {length} bytes; at most {} are taken", app.artifact_limit);
        return Err(ApiError::new(ErrorKind::TooLarge, "upload.too_large", text).into());
    }
    Ok(())
}

async fn hear_out(bytes: &mut (impl AsyncRead + Unpin)) {
    let mut nowhere = tokio::io::sink();
    let rest = tokio::io::copy(bytes, &mut nowhere);
    // Whoever does not come to an end in time sees the broken connection after all.
    let _ = tokio::time::timeout(HEARD_OUT, rest).await;
}
