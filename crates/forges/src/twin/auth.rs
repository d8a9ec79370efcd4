//! Apps, installations and tokens: who calls, and what they may do.
//!
//! JWTs of Apps are really verified: RS256 with the App's public key, the issuer (client id or App id), and a lifetime
//! of at most ten minutes around the simulated time.

use super::calls::{Reply, Request};
use super::clock::iso;
use super::hooks::{Hook, HookOwner};
use super::runners::Scope;
use super::state::State;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use forgeyard_model::{Secret, Timestamp};
use ring::rand::SystemRandom;
use ring::signature::{
    KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Key of the simulated Apps, made for this purpose. It opens nothing.
pub const APP_KEY: &str = include_str!("app_key.pem");

/// Permissions that the farm asks for, as the manifest writes them.
pub const PERMISSIONS: &[(&str, &str)] = &[
    ("actions", "write"),
    ("administration", "write"),
    ("checks", "write"),
    ("contents", "read"),
    ("members", "read"),
    ("metadata", "read"),
    ("organization_self_hosted_runners", "write"),
    ("pull_requests", "read"),
];

const JWT_LIFE: i64 = 600;
const JWT_LEEWAY: i64 = 60;

/// A GitHub App.
#[derive(Debug, Clone)]
pub struct App {
    /// Numeric id.
    pub id: u64,
    /// Client id.
    pub client_id: String,
    /// Name in addresses.
    pub slug: String,
    /// Account that owns it.
    pub owner: u64,
    /// Permissions that it asks for.
    pub permissions: BTreeMap<String, String>,
    /// Its hook.
    pub hook: u64,
    pub(super) public_key: Vec<u8>,
    /// Its key in PEM, as the owner downloads it.
    pub key: Secret,
}

/// An installation of an App.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Numeric id.
    pub id: u64,
    /// The App.
    pub app: u64,
    /// Account where it is installed.
    pub account: u64,
    /// Repositories that it was given; none means all.
    pub selected: Option<BTreeSet<u64>>,
    /// Permissions that it was given.
    pub permissions: BTreeMap<String, String>,
    /// Since when it is suspended.
    pub suspended_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Installation {
    pub(super) fn sees(&self, repository: u64) -> bool {
        self.selected.as_ref().is_none_or(|selected| selected.contains(&repository))
    }
}

/// What a token opens.
#[derive(Debug, Clone)]
pub(super) enum Opens {
    Installation {
        id: u64,
        permissions: BTreeMap<String, String>,
        repositories: Option<BTreeSet<u64>>,
    },
    /// A classic personal token.
    Person(u64),
    Registration(Scope),
    Admin(Scope),
    Queue(String),
    /// The session of a stand-in runner.
    Runner(u64),
}

/// A token.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) opens: Opens,
    pub(super) expires_at: Timestamp,
}

/// Who calls.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    App(u64),
    Installation { id: u64, permissions: BTreeMap<String, String>, repositories: Option<BTreeSet<u64>> },
    Person(u64),
    Anonymous,
}

impl State {
    /// Makes an App of an account, with the permissions that the farm asks for and its own hook.
    pub fn add_app(&mut self, owner: u64, slug: &str, hook_url: Option<&str>, hook_secret: Secret) -> u64 {
        let id = 1_000 + u64::try_from(self.apps.len()).unwrap_or(0) + 1;
        let events = ["workflow_job", "push", "pull_request", "check_run", "installation"];
        let hook = self.add_hook(HookOwner::App(id), hook_url, hook_secret, &events);
        let public_key = read_key(APP_KEY).map(|key| key.public_key().as_ref().to_vec()).unwrap_or_default();
        let app = App {
            id,
            client_id: format!("Iv1.simulated{id}"),
            slug: slug.to_owned(),
            owner,
            permissions: PERMISSIONS.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            hook,
            public_key,
            key: Secret::new(APP_KEY),
        };
        self.apps.insert(id, app);
        id
    }

    /// An App.
    pub fn app(&self, id: u64) -> Option<&App> {
        self.apps.get(&id)
    }

    /// An App, to be changed.
    pub fn app_mut(&mut self, id: u64) -> Option<&mut App> {
        self.apps.get_mut(&id)
    }

    /// Installs an App at an account, with all permissions that it asks for.
    pub fn install(&mut self, app: u64, account: u64, selected: Option<Vec<u64>>) -> u64 {
        self.numbers.installation += 1;
        let id = self.numbers.installation;
        let permissions = self.apps.get(&app).map(|app| app.permissions.clone()).unwrap_or_default();
        let installation = Installation {
            id,
            app,
            account,
            selected: selected.map(|ids| ids.into_iter().collect()),
            permissions,
            suspended_at: None,
            created_at: self.now,
        };
        self.installations.insert(id, installation);
        self.emit_installation(id, "created");
        id
    }

    /// An installation, to be changed.
    pub fn installation_mut(&mut self, id: u64) -> Option<&mut Installation> {
        self.installations.get_mut(&id)
    }

    /// Suspends an installation, or ends that.
    pub fn suspend(&mut self, id: u64, suspended: bool) {
        let now = self.now;
        if let Some(installation) = self.installations.get_mut(&id) {
            installation.suspended_at = suspended.then_some(now);
        }
        self.emit_installation(id, if suspended { "suspend" } else { "unsuspend" });
    }

    /// Removes an installation; its tokens die with it.
    pub fn uninstall(&mut self, id: u64) {
        self.emit_installation(id, "deleted");
        self.installations.remove(&id);
    }

    /// Makes a classic personal token.
    pub fn add_personal_token(&mut self, account: u64) -> Secret {
        let text = format!("ghp_simulated{}", self.secret_text());
        let expires_at = Timestamp::from_micros(i64::MAX);
        self.tokens.insert(text.clone(), Token { opens: Opens::Person(account), expires_at });
        Secret::new(text)
    }

    pub(super) fn give_token(&mut self, prefix: &str, opens: Opens, life: Duration) -> (String, Timestamp) {
        let text = format!("{prefix}simulated{}", self.secret_text());
        let expires_at = self.now.plus(life);
        self.tokens.insert(text.clone(), Token { opens, expires_at });
        (text, expires_at)
    }

    pub(super) fn token(&self, text: &str) -> Option<&Token> {
        self.tokens.get(text).filter(|token| token.expires_at > self.now)
    }

    /// Makes all tokens invalid that installations hold, as when GitHub revokes them.
    pub fn revoke_installation_tokens(&mut self) {
        self.tokens.retain(|_, token| !matches!(token.opens, Opens::Installation { .. }));
    }

    pub(super) fn caller(&self, request: &Request) -> Result<Caller, Reply> {
        let token = request.authorization("bearer").or_else(|| request.authorization("token"));
        let Some(token) = token else {
            return match request.headers.get("authorization") {
                None => Ok(Caller::Anonymous),
                Some(_) => Err(Reply::message(401, "Bad credentials")),
            };
        };
        if token.split('.').count() == 3 {
            return self.verify_jwt(token).map(Caller::App);
        }
        match self.token(token).map(|token| &token.opens) {
            Some(Opens::Installation { id, permissions, repositories }) => {
                let row = self.installations.get(id).ok_or_else(|| Reply::message(401, "Bad credentials"))?;
                if row.suspended_at.is_some() {
                    return Err(Reply::message(403, "This installation has been suspended"));
                }
                // Permissions that were taken away since the token was made are gone.
                let mut permissions = permissions.clone();
                permissions.retain(|name, _| row.permissions.contains_key(name));
                Ok(Caller::Installation { id: *id, permissions, repositories: repositories.clone() })
            }
            Some(Opens::Person(account)) => Ok(Caller::Person(*account)),
            _ => Err(Reply::message(401, "Bad credentials")),
        }
    }

    pub(super) fn caller_name(&self, request: &Request) -> String {
        match self.caller(request) {
            Ok(Caller::App(id)) => format!("app:{id}"),
            Ok(Caller::Installation { id, .. }) => format!("installation:{id}"),
            Ok(Caller::Person(id)) => format!("person:{id}"),
            Ok(Caller::Anonymous) => "anonymous".to_owned(),
            Err(_) => "refused".to_owned(),
        }
    }

    fn verify_jwt(&self, token: &str) -> Result<u64, Reply> {
        let undecodable = || Reply::message(401, "A JSON web token could not be decoded");
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(undecodable());
        };
        let read = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| undecodable());
        let parse = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).map_err(|_| undecodable());
        if parse(read(header)?)?.get("alg").and_then(Value::as_str) != Some("RS256") {
            return Err(undecodable());
        }
        let body = parse(read(claims)?)?;
        let issuer = match body.get("iss") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Err(Reply::message(401, "'Issuer' claim ('iss') must be present")),
        };
        let app = self.apps.values().find(|app| app.client_id == issuer || app.id.to_string() == issuer);
        let Some(app) = app else { return Err(Reply::message(404, "Integration not found")) };
        let signed = token.rsplit_once('.').map_or("", |(signed, _)| signed);
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &app.public_key)
            .verify(signed.as_bytes(), &read(signature)?)
            .map_err(|_| undecodable())?;
        let now = self.now.as_micros() / 1_000_000;
        let claim = |name: &str| body.get(name).and_then(Value::as_i64);
        let Some(expires) = claim("exp") else {
            let text = "'Expiration time' claim ('exp') must be a numeric value representing the future time at \
                        which the assertion expires";
            return Err(Reply::message(401, text));
        };
        if expires <= now {
            let text = "'Expiration time' claim ('exp') must be a numeric value representing the future time at \
                        which the assertion expires";
            return Err(Reply::message(401, text));
        }
        if expires > now + JWT_LIFE {
            return Err(Reply::message(401, "'Expiration time' claim ('exp') is too far in the future"));
        }
        match claim("iat") {
            Some(issued) if issued <= now + JWT_LEEWAY => Ok(app.id),
            _ => {
                let text = "'Issued at' claim ('iat') must be an Integer representing the time that the \
                            assertion was issued";
                Err(Reply::message(401, text))
            }
        }
    }

    /// Makes a token of an installation, narrowed as asked.
    pub(super) fn installation_token(&mut self, app: u64, id: u64, body: &Value) -> Result<Reply, Reply> {
        let row = self.installations.get(&id).filter(|row| row.app == app).ok_or_else(Reply::not_found)?;
        if row.suspended_at.is_some() {
            return Err(Reply::message(403, "This installation has been suspended"));
        }
        let mut permissions = row.permissions.clone();
        if let Some(asked) = body.get("permissions").and_then(Value::as_object) {
            for (name, level) in asked {
                let level = level.as_str().unwrap_or("read");
                if !row.permissions.get(name).is_some_and(|held| covers(held, level)) {
                    let text = "The permissions requested are not granted to this installation.";
                    return Err(Reply::unprocessable(text));
                }
            }
            permissions = asked
                .iter()
                .map(|(name, level)| (name.clone(), level.as_str().unwrap_or("read").to_owned()))
                .collect();
        }
        let mut repositories = row.selected.clone();
        let account = row.account;
        if let Some(ids) = body.get("repository_ids").and_then(Value::as_array) {
            let ids: BTreeSet<u64> = ids.iter().filter_map(Value::as_u64).collect();
            let owned = |id: &u64| self.repositories.get(id).is_some_and(|one| one.owner == account);
            if !ids.iter().all(|id| owned(id) && row.sees(*id)) {
                let text = "There is at least one repository that does not exist or is not accessible to the \
                            parent installation.";
                return Err(Reply::unprocessable(text));
            }
            repositories = Some(ids);
        }
        let selection = if repositories.is_some() { "selected" } else { "all" };
        let opens = Opens::Installation { id, permissions: permissions.clone(), repositories };
        let (token, expires_at) = self.give_token("ghs_", opens, self.setup.installation_token_validity);
        let body = json!({
            "token": token,
            "expires_at": iso(expires_at),
            "permissions": permissions,
            "repository_selection": selection,
        });
        Ok(Reply::json(201, &body))
    }

    /// Refuses a caller who may not do this at this account (and repository).
    pub(super) fn require(
        &self,
        caller: &Caller,
        permission: &str,
        level: &str,
        account: u64,
        repository: Option<u64>,
    ) -> Result<(), Reply> {
        match caller {
            Caller::Anonymous => Err(Reply::message(401, "Requires authentication")),
            Caller::App(_) => {
                Err(Reply::message(401, "A JSON web token cannot be used here: use an installation token"))
            }
            Caller::Person(_) => Ok(()),
            Caller::Installation { id, permissions, repositories } => {
                let here = self.installations.get(id).is_some_and(|row| {
                    row.account == account && repository.is_none_or(|repository| row.sees(repository))
                });
                let narrowed = match (repositories, repository) {
                    (Some(only), Some(repository)) => only.contains(&repository),
                    _ => true,
                };
                if !here || !narrowed {
                    return Err(Reply::not_found());
                }
                if permissions.get(permission).is_some_and(|held| covers(held, level)) {
                    return Ok(());
                }
                Err(Reply::message(403, "Resource not accessible by integration")
                    .with("x-accepted-github-permissions", format!("{permission}={level}")))
            }
        }
    }

    pub(super) fn app_json(&self, id: u64) -> Value {
        let Some(app) = self.apps.get(&id) else { return Value::Null };
        let events: Vec<&String> = self.hook_events(app.hook);
        json!({
            "id": app.id,
            "slug": app.slug,
            "client_id": app.client_id,
            "node_id": format!("simulated-app-{}", app.id),
            "owner": self.account_json(app.owner),
            "name": format!("{} (simulated)", app.slug),
            "description": "a simulated GitHub App",
            "external_url": self.urls.html,
            "html_url": format!("{}/apps/{}", self.urls.html, app.slug),
            "created_at": iso(self.setup.now),
            "updated_at": iso(self.setup.now),
            "permissions": app.permissions,
            "events": events,
            "installations_count": self.installations.values().filter(|one| one.app == id).count(),
        })
    }

    fn hook_events(&self, hook: u64) -> Vec<&String> {
        self.hooks.get(&hook).map(|hook: &Hook| hook.events.iter().collect()).unwrap_or_default()
    }

    pub(super) fn installation_json(&self, row: &Installation) -> Value {
        let app = self.apps.get(&row.app);
        let url = format!("{}/app/installations/{}", self.urls.api, row.id);
        let organization = self.accounts.get(&row.account).is_some_and(|account| account.organization);
        json!({
            "id": row.id,
            "app_id": row.app,
            "app_slug": app.map(|app| app.slug.clone()),
            "client_id": app.map(|app| app.client_id.clone()),
            "account": self.account_json(row.account),
            "target_id": row.account,
            "target_type": if organization { "Organization" } else { "User" },
            "repository_selection": if row.selected.is_some() { "selected" } else { "all" },
            "access_tokens_url": format!("{url}/access_tokens"),
            "repositories_url": format!("{}/installation/repositories", self.urls.api),
            "html_url": format!("{}/settings/installations/{}", self.urls.html, row.id),
            "permissions": row.permissions,
            "events": app.map(|app| self.hook_events(app.hook)).unwrap_or_default(),
            "single_file_name": null,
            "created_at": iso(row.created_at),
            "updated_at": iso(row.created_at),
            "suspended_at": row.suspended_at.map(iso),
            "suspended_by": row.suspended_at.map(|_| self.account_json(row.account)),
        })
    }
}

/// Whether a held level is enough for a wanted one.
fn covers(held: &str, wanted: &str) -> bool {
    let rank = |level: &str| match level {
        "read" => 1,
        "write" => 2,
        "admin" => 3,
        _ => 0,
    };
    rank(held) >= rank(wanted)
}

fn read_key(pem: &str) -> Option<RsaKeyPair> {
    let text: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    RsaKeyPair::from_der(&STANDARD.decode(text).ok()?).ok()
}

/// A JWT of an App that is good for nine minutes, signed with [`APP_KEY`]; for tests without a client.
pub fn app_jwt(issuer: &str, now: Timestamp) -> Option<String> {
    let now = now.as_micros() / 1_000_000;
    sign_jwt(&json!({ "iss": issuer, "iat": now - 60, "exp": now + 540 }))
}

/// Signs claims with [`APP_KEY`], whatever they say.
pub fn sign_jwt(claims: &Value) -> Option<String> {
    let key = read_key(APP_KEY)?;
    let header = URL_SAFE_NO_PAD.encode(json!({ "alg": "RS256", "typ": "JWT" }).to_string());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
    Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}
