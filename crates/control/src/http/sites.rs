//! `/site/v1`: sites dial in, fetch what should be so, and report what they see.

use super::Routes;
use super::error::{HttpError, invalid};
use crate::app::App;
use crate::auth::SiteCaller;
use crate::keys;
use axum::extract::{Query, State};
use axum::{Json, routing};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::site::{self, DesiredQuery, Join, Joined, Reported};
use forgeyard_engine::desired::{self, TokenOf, desired};
use forgeyard_model::Digest;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::site::{DesiredSet, SiteReport};
use std::time::Duration;

/// A site reports at the latest after this time, in seconds.
const REPORT_SECONDS: u64 = 10;

/// The routes.
pub fn routes() -> Routes {
    Routes::new()
        .route(site::JOIN, routing::post(join))
        .route(site::DESIRED, routing::get(get_desired))
        .route(site::REPORT, routing::post(report))
}

async fn join(State(app): State<App>, Json(join): Json<Join>) -> Result<Json<Joined>, HttpError> {
    if join.version != site::VERSION {
        let text = format!("the site speaks version {}, the farm {}", join.version, site::VERSION);
        return Err(invalid("site.version", text));
    }
    if !keys::same(&join.join_token, app.keys.join_token().expose()) {
        let error =
            ApiError::new(ErrorKind::Forbidden, "site.join_token", "the join token is not that of this farm");
        return Err(error.hint("it is in `join.token` in the farm's data folder").into());
    }
    let well_formed =
        join.public_key.len() == 64 && join.public_key.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !well_formed {
        return Err(invalid("site.public_key", "the public key must be 64 hexadecimal digits (Ed25519)"));
    }
    let token = keys::new_token();
    let input = Input::SiteJoined {
        name: join.name,
        token: Digest::of(token.as_bytes()),
        public_key: join.public_key.to_ascii_lowercase(),
    };
    match app.core.give(input, crate::core::farm()).await? {
        Reply::Site { site } => Ok(Json(Joined { site, token })),
        _ => Err(HttpError(ApiError::new(ErrorKind::Internal, "site.reply", "the core gave no site"))),
    }
}

async fn get_desired(
    State(app): State<App>,
    caller: SiteCaller,
    Query(query): Query<DesiredQuery>,
) -> Result<Json<DesiredSet>, HttpError> {
    let wait = Duration::from_secs(query.wait_seconds.min(60));
    let deadline = tokio::time::Instant::now() + wait;
    let mut version = app.core.version();
    loop {
        // Marked as seen before reading: a change in between wakes the wait below.
        version.catch_up();
        let missing = || super::error::missing("site", caller.0.id);
        let (epoch, generation) = desired::version(&app.core.read(), caller.0.id).ok_or_else(missing)?;
        let news = epoch != query.epoch || generation > query.after;
        if news || !app.changed(&mut version, deadline).await {
            let set = desired(&app.core.read(), caller.0.id, |of| match of {
                TokenOf::Attempt(attempt) => app.keys.attempt_token(attempt),
                TokenOf::Runner(runner) => app.keys.runner_token(runner),
            });
            return set.map(Json).ok_or_else(missing);
        }
    }
}

async fn report(
    State(app): State<App>,
    caller: SiteCaller,
    Json(report): Json<SiteReport>,
) -> Result<Json<Reported>, HttpError> {
    let site = caller.0.id;
    app.core.give(Input::SiteReported { site, report: Box::new(report) }, caller.principal()).await?;
    let generation = app.core.read().sites.get(&site).map_or(0, |site| site.desired_generation);
    Ok(Json(Reported { generation, report_seconds: REPORT_SECONDS }))
}
