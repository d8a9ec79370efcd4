//! `POST /webhooks/{forge}`: a body is stored raw, with its GUID, before anything else is done with it.
//!
//! Each forge has secrets of its own, one for each of its Apps, and GUIDs of its own: neither a secret nor a GUID of one
//! forge means anything at another. Gitea and Forgejo send the headers of GitHub beside their own, so one handler serves
//! all; at a Forgejo their own count first.
//!
//! 404 for a forge that is not configured; 202 only after a durable row; 401 for a wrong signature; 413 over 25 MiB (GitHub's own cap); 503 when it cannot be
//! stored in time, so that the sender knows.

use super::Routes;
use super::error::{HttpError, invalid};
use crate::app::App;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_formats::webhook;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::{Digest, ForgeName, Secret, delivery};

/// Largest body, in bytes (GitHub caps payloads at 25 MB).
pub const LIMIT: usize = 25 << 20;

/// The routes.
pub fn routes() -> Routes {
    let limit = axum::extract::DefaultBodyLimit::max(LIMIT);
    Routes::new().route("/webhooks/{forge}", routing::post(receive).layer(limit))
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

async fn receive(
    State(app): State<App>,
    Path(forge): Path<String>,
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
    let forge = known(&app, &forge)?;
    let secrets = app.webhook_secrets(&forge);
    if secrets.is_empty() {
        let text = format!("the forge `{forge}` has no webhook secret here, so no body of it can be trusted");
        let error = ApiError::new(ErrorKind::Unavailable, "webhook.no_secret", text);
        let hint = "name its file with `webhook-secret-file` under [[forges.apps]] or [[forges]], or set \
                    FORGEYARD_WEBHOOK_SECRET for the forge `github`; then start again";
        return Err(error.hint(hint).into());
    }
    let own = app.forges.forgejo(&forge).is_some();
    let named = |names: &[&str]| {
        let names = if own { names } else { names.get(names.len().saturating_sub(1)..).unwrap_or_default() };
        names.iter().find_map(|name| header(&headers, name))
    };
    match webhook::forgejo::SIGNATURE.iter().find_map(|name| header(&headers, name)).filter(|_| own) {
        Some(bare) => signed(&secrets, |secret| webhook::verify_bare(secret, Some(bare), &body))?,
        None => {
            let signature = header(&headers, "x-hub-signature-256");
            signed(&secrets, |secret| webhook::verify_signature(secret, signature, &body))?;
        }
    }
    let event = named(&webhook::forgejo::EVENT)
        .ok_or_else(|| invalid("webhook.event", "the header X-GitHub-Event is missing"))?;
    let guid = named(&webhook::forgejo::DELIVERY).filter(|guid| plain(guid));
    let guid =
        guid.ok_or_else(|| invalid("webhook.guid", "the header X-GitHub-Delivery is missing or not a GUID"))?;
    if !plain(event) {
        return Err(invalid("webhook.event", "the header X-GitHub-Event is not an event name"));
    }
    let key = delivery::key(&forge, guid);
    let input =
        Input::DeliveryReceived { guid: key.clone(), event: event.to_owned(), body: Digest::of(&body) };
    let stored = app.core.give_with_body(input, crate::core::farm(), Some((key, body))).await?;
    let repeated = stored == Reply::Unchanged;
    Ok((StatusCode::ACCEPTED, Json(serde_json::json!({ "guid": guid, "repeated": repeated }))))
}

/// The forge of this name, if this farm has one.
fn known(app: &App, name: &str) -> Result<ForgeName, HttpError> {
    let unknown = || {
        let text = "this farm has no forge of the name in the address";
        let error = ApiError::new(ErrorKind::NotFound, "webhook.no_forge", text);
        HttpError(error.hint("the address ends with the `name` of a [[forges]] in forgeyard.toml"))
    };
    let forge: ForgeName = name.parse().map_err(|_| unknown())?;
    if app.forge_names().contains(&forge) { Ok(forge) } else { Err(unknown()) }
}

/// Refuses a body that no secret of its forge signed. All are tried: a body does not say which App it is for.
fn signed(
    secrets: &[&Secret],
    verify: impl Fn(&Secret) -> Result<(), webhook::SignatureError>,
) -> Result<(), HttpError> {
    let mut refused = None;
    for secret in secrets {
        match verify(secret) {
            Ok(()) => return Ok(()),
            Err(error) => refused = Some(error),
        }
    }
    let text = refused.map(|error| error.to_string()).unwrap_or_default();
    let error = ApiError::new(ErrorKind::Unauthenticated, "webhook.signature", text);
    Err(error.hint("the secret of the webhook must be the one that the farm was started with").into())
}

fn plain(text: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=100).contains(&text.len()) && text.bytes().all(ok)
}
