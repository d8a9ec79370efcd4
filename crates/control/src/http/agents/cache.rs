//! What an agent asks about the build cache. The token leaves the farm only here, only to the session of exactly this
//! attempt, and only while that attempt lives.

use super::{Agent, superseded};
use crate::app::App;
use crate::cache_tokens::{Without, wanted};
use crate::http::error::HttpError;
use axum::Json;
use axum::extract::State;
use forgeyard_api::ApiError;
use forgeyard_api::agent::CacheAccess;
use forgeyard_api::error::ErrorKind;

pub(super) async fn access(
    State(app): State<App>,
    Agent(attempt): Agent,
) -> Result<Json<CacheAccess>, HttpError> {
    if !attempt.state.live() {
        return Err(superseded(&attempt));
    }
    let none = |text: &str| ApiError::new(ErrorKind::NotFound, "cache.none", text);
    let Some(tokens) = app.cache_tokens.clone() else {
        return Err(none("this farm has no build cache").into());
    };
    let wanted = {
        let (farm, config) = (app.core.read(), app.config());
        wanted(&farm, &config, tokens.cache(), &attempt)
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(Without::Never(reason)) => return Err(none(&reason.message).into()),
        Err(Without::NotYet) => {
            let text = format!("what {} works on is not known yet, or may not run", attempt.id);
            return Err(ApiError::new(ErrorKind::Conflict, "cache.not_yet", text).hint("ask again").into());
        }
    };
    let (asked, core) = (wanted.clone(), app.core.clone());
    let minted = tokio::task::spawn_blocking(move || tokens.mint(&core, &asked)).await;
    let minted = minted.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(|error| {
        tracing::error!(%error, attempt = %attempt.id, "a token of the cache could not be made");
        ApiError::new(ErrorKind::Unavailable, "cache.not_minted", "the token cannot be made now")
            .hint("ask again")
    })?;
    let minted = minted.ok_or_else(|| superseded(&attempt))?;
    tracing::info!(attempt = %attempt.id, scope = wanted.given.scope, writes = wanted.given.writes, "a token of the cache");
    Ok(Json(CacheAccess {
        address: minted.address,
        token: minted.token.expose().to_owned(),
        scope: wanted.given.scope,
        writes: wanted.given.writes,
        reason: wanted.given.reason.to_owned(),
        expires_at: wanted.expires_at,
        nix_keys: minted.nix_keys,
        ca: minted.ca,
    }))
}
