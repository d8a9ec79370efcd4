//! Calls about Apps, their installations, and people.

use super::super::auth::Caller;
use super::super::calls::Reply;
use super::super::hooks::HookOwner;
use super::super::state::State;
use super::{Context, id_of, not_simulated};
use forgeyard_model::Secret;
use serde_json::{Value, json};
use std::time::Duration;

/// How long the code of a manifest may be converted (documented: 1 hour).
const MANIFEST_CODE: Duration = Duration::from_secs(3600);

impl State {
    pub(super) fn app_calls(&mut self, context: &Context<'_>, parts: &[&str]) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        match (method, parts) {
            ("POST", ["app-manifests", code, "conversions"]) => self.convert_manifest(code),
            ("GET", ["installation", "repositories"]) => self.installation_repositories(context),
            ("GET", ["users", login, "installation"]) => {
                let account = self.account_by_login(login).ok_or_else(Reply::not_found)?.id;
                self.installation_of(context, account, None)
            }
            ("GET", ["users", login]) => {
                let id = self.account_by_login(login).ok_or_else(Reply::not_found)?.id;
                Ok(Reply::json(200, &self.public_user_json(id)))
            }
            ("GET", ["user"]) => match context.caller {
                Caller::Person(id) => Ok(Reply::json(200, &self.own_user_json(id))),
                _ => Err(Reply::message(401, "Requires authentication")),
            },
            ("GET", ["user", id]) => {
                let id = id_of(id)?;
                if !self.accounts.contains_key(&id) {
                    return Err(Reply::not_found());
                }
                Ok(Reply::json(200, &self.public_user_json(id)))
            }
            (_, ["app", rest @ ..]) => {
                let Caller::App(app) = context.caller else {
                    return Err(Reply::message(401, "A JSON web token could not be decoded"));
                };
                self.calls_of_app(context, app, rest)
            }
            _ => Err(not_simulated()),
        }
    }

    fn calls_of_app(&mut self, context: &Context<'_>, app: u64, rest: &[&str]) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        match (method, rest) {
            ("GET", []) => Ok(Reply::json(200, &self.app_json(app))),
            ("GET", ["installations"]) => {
                let all: Vec<Value> = self
                    .installations
                    .values()
                    .filter(|row| row.app == app)
                    .map(|row| self.installation_json(row))
                    .collect();
                Ok(self.bare_list(context, &all))
            }
            ("GET", ["installations", id]) => {
                let id = id_of(id)?;
                let row = self.installations.get(&id).filter(|row| row.app == app);
                Ok(Reply::json(200, &self.installation_json(row.ok_or_else(Reply::not_found)?)))
            }
            ("POST", ["installations", id, "access_tokens"]) => {
                let body = context.request.parse()?;
                self.installation_token(app, id_of(id)?, &body)
            }
            ("GET", ["hook", "config"]) => Ok(self.hook_config(app)),
            ("PATCH", ["hook", "config"]) => {
                let body = context.request.parse()?;
                let hook = self.apps.get(&app).map_or(0, |app| app.hook);
                if let Some(hook) = self.hooks.get_mut(&hook) {
                    if let Some(url) = body.get("url").and_then(Value::as_str) {
                        hook.url = Some(url.to_owned());
                    }
                    if let Some(secret) = body.get("secret").and_then(Value::as_str) {
                        hook.secret = Secret::new(secret);
                    }
                }
                Ok(self.hook_config(app))
            }
            (_, ["hook", "deliveries", rest @ ..]) => {
                let hook = self.apps.get(&app).map_or(0, |app| app.hook);
                self.delivery_calls(context, hook, rest)
            }
            _ => Err(not_simulated()),
        }
    }

    fn hook_config(&self, app: u64) -> Reply {
        let hook = self.apps.get(&app).and_then(|app| self.hooks.get(&app.hook));
        Reply::json(
            200,
            &json!({
                "content_type": "json",
                "insecure_ssl": "0",
                "secret": "********",
                "url": hook.and_then(|hook| hook.url.clone()),
            }),
        )
    }

    /// Lists that are plain arrays.
    pub(super) fn bare_list(&self, context: &Context<'_>, all: &[Value]) -> Reply {
        let reply = self.listed(context, "items", all);
        let items = reply.value().get("items").cloned().unwrap_or_else(|| json!([]));
        let mut bare = Reply::json(200, &items);
        bare.headers.extend(reply.headers.into_iter().filter(|(name, _)| name == "link"));
        bare
    }

    pub(super) fn installation_of(
        &self,
        context: &Context<'_>,
        account: u64,
        repository: Option<u64>,
    ) -> Result<Reply, Reply> {
        let Caller::App(app) = context.caller else {
            return Err(Reply::message(401, "A JSON web token could not be decoded"));
        };
        let row = self.installations.values().find(|row| {
            row.app == app
                && row.account == account
                && repository.is_none_or(|repository| row.sees(repository))
        });
        Ok(Reply::json(200, &self.installation_json(row.ok_or_else(Reply::not_found)?)))
    }

    fn installation_repositories(&self, context: &Context<'_>) -> Result<Reply, Reply> {
        let Caller::Installation { id, repositories, .. } = &context.caller else {
            return Err(Reply::message(403, "You must authenticate with an installation access token"));
        };
        let row = self.installations.get(id).ok_or_else(Reply::not_found)?;
        let all: Vec<Value> = self
            .repositories
            .values()
            .filter(|one| one.owner == row.account && row.sees(one.id))
            .filter(|one| repositories.as_ref().is_none_or(|only| only.contains(&one.id)))
            .map(|one| self.repository_json(one.id))
            .collect();
        Ok(self.listed(context, "repositories", &all))
    }

    /// A person pressed the button of the manifest page: returns the code that can be converted once.
    pub fn accept_manifest(&mut self, owner: u64, manifest: &Value) -> String {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let url = text(manifest.get("hook_attributes").and_then(|hook| hook.get("url")));
        let slug = text(manifest.get("name")).unwrap_or_else(|| "farm".to_owned()).to_lowercase();
        let secret = self.secret_text();
        let app = self.add_app(owner, &slug, url.as_deref(), Secret::new(secret));
        if let Some(row) = self.apps.get_mut(&app)
            && let Some(asked) = manifest.get("default_permissions").and_then(Value::as_object)
        {
            row.permissions = asked
                .iter()
                .map(|(name, level)| (name.clone(), level.as_str().unwrap_or("read").to_owned()))
                .collect();
        }
        let hook = self.apps.get(&app).map_or(0, |row| row.hook);
        if let Some(events) = manifest.get("default_events").and_then(Value::as_array)
            && let Some(hook) = self.hooks.get_mut(&hook)
        {
            hook.events = events.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        let code = self.secret_text();
        self.manifests.insert(code.clone(), (app, self.now));
        code
    }

    fn convert_manifest(&mut self, code: &str) -> Result<Reply, Reply> {
        let (app, made_at) = self.manifests.remove(code).ok_or_else(Reply::not_found)?;
        if self.now > made_at.plus(MANIFEST_CODE) {
            return Err(Reply::not_found());
        }
        let mut body = self.app_json(app);
        if let (Some(fields), Some(app)) = (body.as_object_mut(), self.apps.get(&app)) {
            let secret = self.hooks.get(&app.hook).map(|hook| hook.secret.expose().to_owned());
            fields.insert("webhook_secret".to_owned(), json!(secret));
            fields.insert("pem".to_owned(), json!(app.key.expose()));
            fields.insert("client_secret".to_owned(), json!(self.client_secret(app.id).expose()));
        }
        Ok(Reply::json(201, &body))
    }

    pub(super) fn hook_of(&self, owner: HookOwner, id: u64) -> Result<u64, Reply> {
        match self.hooks.get(&id) {
            Some(hook) if hook.owner == owner => Ok(id),
            _ => Err(Reply::not_found()),
        }
    }
}
