//! Conda channels, read by conda, mamba, pixi and rattler: `/channels/NAME/SUBDIR/…`.
//!
//! An index is made from one channel row, so a client sees either all of a promotion or nothing of it. Everybody may
//! read a channel: that is what publishing means.

use super::Routes;
use super::error::{self, HttpError};
use super::range;
use crate::app::App;
use crate::console::routes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_formats::conda::Repodata;
use forgeyard_model::ChannelName;
use forgeyard_model::channel::Channel;

/// The routes.
pub fn routes() -> Routes {
    Routes::new()
        .route("/channels/{name}", routing::get(describe))
        .route("/channels/{name}/{subdir}/{file}", routing::get(file))
}

fn channel(app: &App, name: &ChannelName) -> Result<Channel, HttpError> {
    app.core.read().channels.get(name).cloned().ok_or_else(|| error::missing("channel", name))
}

/// The channel as JSON. A person who opens its address in a browser is led to its page.
async fn describe(
    State(app): State<App>,
    Path(name): Path<ChannelName>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let shown = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    if shown.is_some_and(|shown| shown.contains("text/html")) {
        return Ok(Redirect::to(&routes::channel(&name)).into_response());
    }
    Ok(Json(channel(&app, &name)?).into_response())
}

async fn file(
    State(app): State<App>,
    Path((name, subdir, file)): Path<(ChannelName, String, String)>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let channel = channel(&app, &name)?;
    if file == "repodata.json" || file == "repodata.json.zst" {
        return index(&channel, &subdir, file.ends_with(".zst"), &headers);
    }
    // A package and the statements that let it in, beside it.
    let (wanted, statements) = match file.strip_suffix(".sigs") {
        Some(package) => (package, true),
        None => (file.as_str(), false),
    };
    let entry = channel.entries.iter().find(|entry| entry.subdir == subdir && entry.file_name == wanted);
    let entry =
        entry.ok_or_else(|| error::missing("package", format!("{subdir}/{wanted} in channel {name}")))?;
    if statements {
        return range::serve(&app, entry.attestation, &headers, "application/json").await;
    }
    range::serve(&app, entry.digest, &headers, "application/octet-stream").await
}

/// The index of one platform. A platform without packages has an empty index: clients always ask for `noarch`.
pub fn repodata(channel: &Channel, subdir: &str) -> Result<Repodata, HttpError> {
    let mut index = Repodata::new(subdir);
    for entry in channel.entries.iter().filter(|entry| entry.subdir == subdir) {
        index.add(&entry.file_name, &entry.record).map_err(|error| {
            HttpError(ApiError::new(ErrorKind::Internal, "channel.index", error.to_string()))
        })?;
    }
    Ok(index)
}

fn index(
    channel: &Channel,
    subdir: &str,
    compressed: bool,
    headers: &HeaderMap,
) -> Result<Response, HttpError> {
    let tag = format!("\"{}-{subdir}{}\"", channel.generation, if compressed { "-zst" } else { "" });
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|known| known.trim() == tag)) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    let index = repodata(channel, subdir)?;
    let (bytes, kind) = if compressed {
        let bytes = index.to_zst().map_err(|error| {
            HttpError(ApiError::new(ErrorKind::Internal, "channel.index", error.to_string()))
        })?;
        (bytes, "application/zstd")
    } else {
        (index.to_bytes(), "application/json")
    };
    let mut response = bytes.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}
