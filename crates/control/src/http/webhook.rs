//! `POST /webhooks/github`: a body is stored raw, with its GUID, before anything else is done with it.
//!
//! 202 only after a durable row; 401 for a wrong signature; 413 over 25 MiB (GitHub's own cap); 503 when it cannot be
//! stored in time, so that the sender knows.

use super::Routes;
use super::error::{HttpError, invalid};
use crate::app::App;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_formats::webhook;
use forgeyard_model::Digest;
use forgeyard_model::input::{Input, Reply};

/// Largest body, in bytes (GitHub caps payloads at 25 MB).
pub const LIMIT: usize = 25 << 20;

/// The routes.
pub fn routes() -> Routes {
    let limit = axum::extract::DefaultBodyLimit::max(LIMIT);
    Routes::new().route("/webhooks/github", routing::post(receive).layer(limit))
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

async fn receive(
    State(app): State<App>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<(StatusCode, Json<serde_json::Value>), HttpError> {
    metrics::counter!("forgeyard_webhooks_total").increment(1);
    let body = body.map_err(|rejection| {
        let text = format!("the body cannot be read, or has more than {LIMIT} bytes: {rejection}");
        let large = rejection.status() == StatusCode::PAYLOAD_TOO_LARGE;
        let kind = if large { ErrorKind::TooLarge } else { ErrorKind::Invalid };
        HttpError(ApiError::new(kind, "webhook.body", text))
    })?;
    let Some(secret) = &app.webhook_secret else {
        let error = ApiError::new(
            ErrorKind::Unavailable,
            "webhook.no_secret",
            "this farm has no webhook secret, so no body can be trusted",
        );
        return Err(error.hint("set FORGEYARD_WEBHOOK_SECRET and start again").into());
    };
    webhook::verify_signature(secret, header(&headers, "x-hub-signature-256"), &body).map_err(|error| {
        let error = ApiError::new(ErrorKind::Unauthenticated, "webhook.signature", error.to_string());
        HttpError(error.hint("the secret of the webhook must be the one that the farm was started with"))
    })?;
    let event = header(&headers, "x-github-event")
        .ok_or_else(|| invalid("webhook.event", "the header X-GitHub-Event is missing"))?;
    let guid = header(&headers, "x-github-delivery").filter(|guid| plain(guid));
    let guid =
        guid.ok_or_else(|| invalid("webhook.guid", "the header X-GitHub-Delivery is missing or not a GUID"))?;
    if !plain(event) {
        return Err(invalid("webhook.event", "the header X-GitHub-Event is not an event name"));
    }
    let input =
        Input::DeliveryReceived { guid: guid.to_owned(), event: event.to_owned(), body: Digest::of(&body) };
    let stored = app.core.give_with_body(input, crate::core::farm(), Some((guid.to_owned(), body))).await?;
    let repeated = stored == Reply::Unchanged;
    Ok((StatusCode::ACCEPTED, Json(serde_json::json!({ "guid": guid, "repeated": repeated }))))
}

fn plain(text: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=100).contains(&text.len()) && text.bytes().all(ok)
}
