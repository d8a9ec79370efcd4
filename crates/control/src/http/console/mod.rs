//! The console over HTTP: pages, their live parts, and the actions of their buttons.
//!
//! - [`pages`] and [`job`] put view data together and hand it to the page functions of [`crate::console`];
//! - [`actions`] are what buttons post to; each reads a [`Form`], gives one input to the core as the person that is
//!   signed in, and sends the browser back to the page (303), so that reloading repeats nothing;
//! - [`session`] signs people in and out;
//! - [`dress`] stands around all routes of the farm: it gives every page its policy, and every error the form that the
//!   caller can read: a page for browsers, [`ApiError`](forgeyard_api::ApiError) as JSON for everybody else.

mod actions;
mod cache;
mod dress;
mod form;
mod job;
mod log;
mod login;
mod pages;
mod session;

use dress::step_inside;
pub use dress::{dress, unknown};
pub use form::Form;
pub use login::Logins;

use super::Routes;
use super::error::{HttpError, missing};
use crate::app::App;
use crate::auth::Caller;
use crate::console::{Names, Shell, shell::Viewer};
use crate::views;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::response::Html;
use forgeyard_engine::gate;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::forge::Repository;
use forgeyard_model::principal::Role;
use maud::Markup;
use std::collections::BTreeSet;

/// Largest form that is read, in bytes.
const FORM_LIMIT: usize = 16 << 10;

/// A page, or the error that is shown in its place.
type Page = Result<Html<String>, HttpError>;

/// The routes.
pub fn routes() -> Routes {
    use axum::routing::{get, post};
    let form = |method: axum::routing::MethodRouter<App>| {
        method.layer(axum::extract::DefaultBodyLimit::max(FORM_LIMIT))
    };
    Routes::new()
        .route("/", get(pages::front))
        .route("/pipelines", get(pages::pipelines))
        .route("/pipelines/{id}", get(pages::pipeline))
        .route("/queue", get(pages::queue))
        .route("/jobs/{id}", get(job::job))
        .route("/devices", get(pages::devices))
        .route("/sites", get(pages::sites))
        .route("/artifacts", get(pages::artifacts))
        .route("/artifacts/{id}", get(pages::artifact))
        .route("/channel", get(pages::channels))
        .route("/channel/{name}", get(pages::channel))
        .route("/environments", get(pages::environments))
        .route("/environments/{id}", get(pages::environment))
        .route("/pools", get(pages::pools))
        .route("/cache", get(cache::whole))
        .route("/cache/scope", get(cache::scope))
        .route("/cache/remove", form(post(cache::remove)))
        .route("/access", get(pages::access))
        .route("/deliveries", get(pages::deliveries))
        .route("/audit", get(pages::audit))
        .route("/config", get(pages::config))
        .route("/status", get(pages::status))
        .route("/status.json", get(pages::status_json))
        .route("/assets/{file}", get(pages::asset))
        .route("/login", form(get(session::page).post(session::login)))
        .route("/login/forge/{forge}", get(login::begin))
        .route("/login/callback", get(login::callback))
        .route("/logout", form(post(session::logout)))
        .route("/jobs/{id}/cancel", form(post(actions::cancel)))
        .route("/jobs/{id}/rerun", form(post(actions::rerun)))
        .route("/devices/{id}/clear", form(post(actions::clear_device)))
        .route("/devices/{id}/quarantine", form(post(actions::quarantine_device)))
        .route("/leases/{id}/write-off", form(post(actions::write_off)))
        .route("/runners/{id}/keep", form(post(actions::keep)))
        .route("/sites/{id}/drain", form(post(actions::drain)))
        .route("/demands/{id}/approve", form(post(actions::approve_demand)))
        .route("/demands/{id}/refuse", form(post(actions::refuse_demand)))
        .route("/pipelines/{id}/approve", form(post(actions::approve_pipeline)))
        .route("/pipelines/{id}/refuse", form(post(actions::refuse_pipeline)))
        .route("/terms", get(pages::terms).merge(form(post(actions::accept_terms))))
        .route("/pools/{name}/drain", form(post(actions::drain_pool)))
        .route("/pools/{name}/reset", form(post(actions::reset_pool)))
}

/// The frame of a page for this caller.
fn shell(app: &App, caller: Option<&Caller>) -> Shell {
    let now = app.clock.now();
    let alarms = caller.map_or(0, |_| views::alarms(&app.core.read(), now).len() + app.rules.alarms().len());
    Shell {
        farm: app.config().farm.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        public_url: app.public_url.trim_end_matches('/').to_owned(),
        hooks: app.hook_names(),
        now,
        viewer: caller.map(|caller| Viewer {
            name: caller.principal.name.clone(),
            role: caller.role,
            judges: judges(app, caller),
        }),
        csrf: caller
            .and_then(|caller| caller.cookie.as_deref())
            .map_or_else(String::new, |it| app.keys.csrf(it)),
        alarms,
        theme: None,
    }
}

/// Repositories in which somebody may say whether a head may run. The engine asks again when it is said.
fn judges(app: &App, caller: &Caller) -> BTreeSet<RepositoryKey> {
    let config = app.config();
    let may = |repository: &&forgeyard_model::config::RepositoryConfig| {
        if caller.role_in(*repository) >= Some(Role::Maintainer) {
            return true;
        }
        let by = caller.approver(app, *repository);
        let Some(forge) = config.access.forge_of(by.forge.as_ref()).filter(|_| by.person.id != 0) else {
            return false;
        };
        let here =
            Repository { forge: repository.forge.clone(), id: repository.id, name: repository.name.clone() };
        let grants = config
            .access
            .grants
            .iter()
            .filter(|grant| grant.repository.is(config.access.home(), &repository.forge, repository.id));
        grants.flat_map(|grant| &grant.resources).any(|resource| {
            gate::may_approve(
                &here,
                Some(repository),
                resource,
                &config.access,
                (&by.person, &forge),
                by.role,
            )
            .is_ok()
        })
    };
    config
        .repositories
        .iter()
        .filter(|repository| caller.sees(*repository))
        .filter(may)
        .map(|it| RepositoryKey { forge: it.forge.clone(), id: it.id })
        .collect()
}

/// The frame of a page about one repository: buttons are those of the caller's role there.
fn shell_of(app: &App, caller: &Caller, repository: &Repository) -> Shell {
    let role = caller.role_in(repository).unwrap_or(Role::Viewer);
    shell(app, Some(&Caller { role, ..caller.clone() }))
}

/// Names of what pages speak of.
fn names(app: &App) -> Names {
    let farm = app.core.read();
    Names {
        sites: farm.sites.values().map(|site| (site.id, site.name.to_string())).collect(),
        devices: farm.devices.clone(),
    }
}

fn html(markup: Markup) -> Page {
    Ok(Html(markup.into_string()))
}

/// The one parameter of a path. What is not even an id of the right kind is not here, rather than a bad request.
struct Named<T>(T);

impl<T: std::str::FromStr> FromRequestParts<App> for Named<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(text) = path.map_err(|_| missing("page", parts.uri.path()))?;
        text.parse().map(Named).map_err(|_| missing("page", parts.uri.path()))
    }
}
