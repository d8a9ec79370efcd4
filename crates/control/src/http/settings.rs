//! `/api/v1`: what the farm is set up with, as far as a reader may know it, and the tokens that open it.

use super::Routes;
use super::error::{self, HttpError};
use crate::app::App;
use crate::auth::Caller;
use crate::history;
use axum::extract::{Path, State};
use axum::{Json, routing};
use forgeyard_api::people::{ConfigVersionView, ConfigView, RepositoryView, TokenView};
use forgeyard_api::rules::{Reloaded, RulesView};
use forgeyard_model::PrincipalId;
use forgeyard_model::approval::ConfigVersion;
use forgeyard_model::input::Input;
use forgeyard_model::principal::Role;
use serde_json::{Value, json};

/// The routes.
pub fn routes() -> Routes {
    use routing::{get, post};
    Routes::new()
        .route("/api/v1/config", get(config))
        .route("/api/v1/config/rules", get(rules))
        .route("/api/v1/config/reload", post(reload))
        .route("/api/v1/config/history", get(history))
        .route("/api/v1/config/history/{number}", get(version))
        .route("/api/v1/tokens", get(tokens))
        .route("/api/v1/tokens/{principal}/revoke", post(revoke))
}

async fn config(State(app): State<App>, _: Caller) -> Json<ConfigView> {
    let config = app.config();
    let repositories = config.repositories.iter().map(|repository| RepositoryView {
        forge: repository.forge.clone(),
        id: repository.id,
        name: repository.name.clone(),
        protected: repository.protected.clone(),
        channel: repository.channel.clone(),
    });
    Json(ConfigView {
        farm: config.farm.clone(),
        digest: config.digest(),
        pools: config.pools.clone(),
        flavors: config.flavors.clone(),
        images: config.images.clone(),
        use_flavors: config.use_flavors.clone(),
        repositories: repositories.collect(),
        max_running: config.max_running,
    })
}

async fn rules(State(app): State<App>, caller: Caller) -> Result<Json<RulesView>, HttpError> {
    caller.need(Role::Operator)?;
    Ok(Json(crate::rules::view(&app)))
}

async fn reload(State(app): State<App>, caller: Caller) -> Result<Json<Reloaded>, HttpError> {
    caller.need(Role::Operator)?;
    Ok(Json(crate::rules::reload(&app, caller.principal.clone(), "`forgeyard config reload`").await?))
}

/// The texts name people and addresses, so they are for whoever runs the farm.
async fn history(State(app): State<App>, caller: Caller) -> Result<Json<Vec<ConfigVersionView>>, HttpError> {
    caller.need(Role::Operator)?;
    Ok(Json(versions(&app).await?.iter().map(|row| view(row, false)).collect()))
}

async fn version(
    State(app): State<App>,
    caller: Caller,
    Path(number): Path<u64>,
) -> Result<Json<ConfigVersionView>, HttpError> {
    caller.need(Role::Operator)?;
    let found = history::version(&app, number).await.map_err(|error| error::database(&error))?;
    Ok(Json(view(&found.ok_or_else(|| error::missing("version of the configuration", number))?, true)))
}

pub(crate) async fn versions(app: &App) -> Result<Vec<ConfigVersion>, HttpError> {
    history::versions(app).await.map_err(|error| error::database(&error))
}

/// A version for people: its JSON in lines, so that two of them can be compared.
pub(crate) fn view(row: &ConfigVersion, whole: bool) -> ConfigVersionView {
    ConfigVersionView {
        number: row.number,
        digest: row.digest,
        at: row.at,
        by: row.by.clone(),
        changes: row.changes.clone(),
        repeats: row.repeats,
        text: whole.then(|| history::text(row)),
    }
}

async fn tokens(State(app): State<App>, caller: Caller) -> Result<Json<Vec<TokenView>>, HttpError> {
    caller.need(Role::Admin)?;
    let farm = app.core.read();
    let mut all: Vec<TokenView> = farm
        .tokens
        .values()
        .map(|token| TokenView {
            principal: token.principal.clone(),
            created_at: token.created_at,
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
            repositories: token.repositories.clone(),
        })
        .collect();
    all.sort_by_key(|token| (token.created_at, token.principal.id));
    Ok(Json(all))
}

/// Revokes a token by its principal: nobody but its holder knows the token itself, and its digest is kept inside.
async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Path(principal): Path<PrincipalId>,
) -> Result<Json<Value>, HttpError> {
    caller.need(Role::Admin)?;
    // A person may have several sessions under way; all of them end.
    let digests: Vec<_> = {
        let farm = app.core.read();
        let found = farm.tokens.values().filter(|token| token.principal.id == principal);
        found.map(|token| token.digest).collect()
    };
    if digests.is_empty() {
        return Err(error::missing("token", principal));
    }
    for digest in digests {
        app.core.give(Input::TokenRevoked { digest }, caller.principal.clone()).await?;
    }
    Ok(Json(json!({})))
}
