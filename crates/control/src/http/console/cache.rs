//! Pages of the build cache. It is asked anew for each, see [`crate::cache_admin`].

use super::{Form, Page, html, shell};
use crate::app::App;
use crate::auth::Caller;
use crate::console::cache::{self as pages, Look};
use crate::console::routes;
use crate::http::cache::removed;
use crate::http::error::{HttpError, missing};
use axum::extract::{Query, State};
use axum::response::Redirect;
use forgeyard_api::cache::{CacheRemoval, CacheScope};
use forgeyard_model::Explanation;
use forgeyard_model::principal::Role;
use serde::Deserialize;

/// Entries of one page.
const ROWS: usize = 100;

/// The whole cache. That it does not answer is shown on its page: the farm works without it.
pub(super) async fn whole(State(app): State<App>, caller: Caller) -> Page {
    let shell = shell(&app, Some(&caller));
    match app.cache_admin.look().await {
        Ok(None) => html(pages::cache(&shell, Look::None)),
        Ok(Some(view)) => html(pages::cache(&shell, Look::Here(&view))),
        Err(HttpError(error)) => {
            let mut why = Explanation::new(error.code, error.message);
            why.fix = error.hint;
            html(pages::cache(&shell, Look::Silent(&why)))
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Asked {
    scope: String,
    #[serde(default)]
    prefix: String,
}

/// One scope.
pub(super) async fn scope(
    State(app): State<App>,
    caller: Caller,
    Query(Asked { scope, prefix }): Query<Asked>,
) -> Page {
    let view = app.cache_admin.look().await?;
    let Some(view) = view else { return Err(missing("page", routes::CACHE_SCOPE)) };
    // a scope that was just emptied is not among them any more
    let found = view
        .scopes
        .into_iter()
        .find(|row| row.scope == scope)
        .unwrap_or_else(|| CacheScope { scope: scope.clone(), ..CacheScope::default() });
    let entries = match caller.need(Role::Operator) {
        Ok(()) => Some(app.cache_admin.entries(&scope, &prefix, ROWS).await?),
        Err(_) => None,
    };
    html(pages::scope(&shell(&app, Some(&caller)), &found, &prefix, entries.as_ref()))
}

#[derive(Deserialize)]
pub(super) struct Removal {
    #[serde(default)]
    scope: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    writer: String,
    #[serde(default)]
    back: String,
}

/// Removes entries: of a scope, or of a writer when one is named.
pub(super) async fn remove(State(app): State<App>, form: Form<Removal>) -> Result<Redirect, HttpError> {
    form.caller.need(Role::Operator)?;
    let Removal { scope, prefix, writer, back } = form.fields;
    let which = match writer.is_empty() {
        true => CacheRemoval::Scope { scope, prefix },
        false => CacheRemoval::Writer { writer },
    };
    let _ = removed(&app, &form.caller, &which).await?;
    Ok(Redirect::to(&match back.as_str() {
        "" => routes::CACHE.to_owned(),
        back => routes::cache_scope(back, ""),
    }))
}
