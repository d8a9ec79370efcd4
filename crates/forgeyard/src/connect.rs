//! `[[forges]]` of `forgeyard.toml`: to which code hosts the farm is connected, as which Apps.
//!
//! ```toml
//! [[forges]]
//! name = "github"            # as in [[repositories]]
//! kind = "github"
//! # web-url = "https://git.example.org"   # an Enterprise Server; github.com when absent
//!
//! [[forges.apps]]            # each further App adds its rate limits
//! client-id = "Iv23li…"      # or app-id = 123456
//! key-file = "/etc/forgeyard/app.pem"
//! webhook-secret-file = "/etc/forgeyard/webhook.secret"
//! # client-secret-file = "/etc/forgeyard/app.secret"   # people sign in to the console with it
//! ```
//!
//! Each App has a webhook, and each webhook a secret: neither is shared between forges. `forgeyard forge connect github`
//! makes an App and writes all of this.
//!
//! A key is read once, at the start, from its file, and is never shown. Nothing is called here: whether GitHub knows the
//! App shows at the first call.

use crate::output::Wrong;
use anyhow::{Context as _, Result};
use forgeyard_control::clock::Clock;
use forgeyard_control::forges::{ConnectionOptions, Connections, Register, ScaleSetWish};
use forgeyard_forges::forgejo::Forgejo;
use forgeyard_forges::github::budget::Pace;
use forgeyard_forges::github::{
    AppIdentity, AppKey, Endpoint, Github, GithubOptions, HttpOptions, LoginApp, LoginKind, Target,
};
use forgeyard_model::{ForgeName, Secret};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What kind of code host it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// github.com, or a GitHub Enterprise Server.
    Github,
    /// A Forgejo.
    Forgejo,
}

/// Where runners are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// At the one repository whose job they are for.
    #[default]
    Repository,
    /// At the organisation.
    Organisation,
}

/// An App.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AppConfig {
    /// Client id.
    pub client_id: Option<String>,
    /// Numeric id, where there is no client id.
    pub app_id: Option<u64>,
    /// File with the private key, PEM.
    pub key_file: PathBuf,
    /// File with the secret of the App's webhook; none for a farm without an inbound port.
    pub webhook_secret_file: Option<PathBuf>,
    /// File with the client secret: people then sign in to the console with this App. Needs `client-id`.
    pub client_secret_file: Option<PathBuf>,
}

/// An OAuth 2 application of a Forgejo.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SignInConfig {
    /// Its id.
    pub client_id: String,
    /// File with its secret.
    pub client_secret_file: PathBuf,
}

/// A runner scale set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ScaleSetConfig {
    /// Organisation, or `owner/name` of a repository.
    pub at: String,
    /// Its name: what `runs-on:` says.
    pub name: String,
    /// Its runner group.
    pub group: Option<String>,
    /// Its labels; its name when absent. A pool must offer them.
    #[serde(default)]
    pub labels: Vec<String>,
}

/// A connection to a code host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ForgeConfig {
    /// Its name, as in `[[repositories]]`.
    pub name: ForgeName,
    /// What kind it is.
    pub kind: Kind,
    /// Address of its pages; github.com when absent.
    pub web_url: Option<String>,
    /// Address of its REST interface, where it cannot be told from `web-url`: proxies and tests.
    pub api_url: Option<String>,
    /// Further certificate authorities to trust, PEM.
    pub ca_file: Option<PathBuf>,
    /// Where runners are registered.
    #[serde(default)]
    pub register_at: At,
    /// Numeric id of the runner group; 1 is the default group.
    pub runner_group: Option<u64>,
    /// File with the secret of webhooks that were made by hand, at an organisation or a repository.
    pub webhook_secret_file: Option<PathBuf>,
    /// Of a Forgejo: file with an access token that may write repositories.
    pub token_file: Option<PathBuf>,
    /// Of a Forgejo: how people sign in with it.
    pub sign_in: Option<SignInConfig>,
    /// The Apps.
    #[serde(default)]
    pub apps: Vec<AppConfig>,
    /// Scale sets to listen to, which need no webhook.
    #[serde(default)]
    pub scale_sets: Vec<ScaleSetConfig>,
}

impl AppConfig {
    fn identity(&self, forge: &ForgeName) -> Result<AppIdentity> {
        let issuer = match (&self.client_id, self.app_id) {
            (Some(id), None) if !id.trim().is_empty() => id.trim().to_owned(),
            (None, Some(id)) => id.to_string(),
            _ => {
                let text = format!("an App of the forge `{forge}` must have one of `client-id` and `app-id`");
                return Err(Wrong::new(text).fix("copy the client id from the App's settings page").into());
            }
        };
        let path = self.key_file.display();
        let wrong = |what: &str| {
            Wrong::new(format!("the key of App {issuer} of the forge `{forge}` {what}: {path}"))
                .fix("make a private key on the App's settings page and put the file there, readable by the farm alone")
        };
        let pem = fs_err::read_to_string(&self.key_file).map(Secret::new);
        let pem = pem.with_context(|| wrong("cannot be read"))?;
        let key = AppKey::from_pem(&pem).with_context(|| wrong("is no RSA key in PEM"))?;
        Ok(AppIdentity { issuer, key })
    }
}

/// Reads the secret of a webhook from its file.
pub fn webhook_secret(path: &Path) -> Result<Secret> {
    let wrong = |what: &str| Wrong::new(format!("the webhook secret in {} {what}", path.display()));
    let text = fs_err::read_to_string(path).with_context(|| wrong("cannot be read"))?;
    match text.trim() {
        "" => Err(wrong("is empty").fix("write the secret of the webhook into it").into()),
        text => Ok(Secret::new(text)),
    }
}

impl ForgeConfig {
    /// Secrets of its webhooks.
    pub fn webhook_secrets(&self) -> Result<Vec<Secret>> {
        let of_apps = self.apps.iter().filter_map(|app| app.webhook_secret_file.as_deref());
        self.webhook_secret_file.as_deref().into_iter().chain(of_apps).map(webhook_secret).collect()
    }

    fn endpoint(&self) -> Result<Endpoint> {
        let endpoint = match (&self.web_url, &self.api_url) {
            (None, None) => return Ok(Endpoint::github_com()),
            (Some(web), None) => Endpoint::enterprise(web),
            (Some(web), Some(api)) => Endpoint::at(web, api),
            (None, Some(_)) => {
                let text = format!("the forge `{}` has `api-url` without `web-url`", self.name);
                return Err(Wrong::new(text).fix("write both, or only `web-url`").into());
            }
        };
        endpoint.with_context(|| Wrong::new(format!("the addresses of the forge `{}`", self.name)))
    }

    /// How many runners its Apps may register each minute, where GitHub's published limits hold.
    pub fn registrations_per_minute(&self) -> Option<u32> {
        let metered = self.kind == Kind::Github && self.endpoint().is_ok_and(|endpoint| endpoint.metered());
        let apps = u32::try_from(self.apps.len()).unwrap_or(u32::MAX);
        (metered && apps > 0).then(|| Pace::GITHUB.registrations_per_minute().saturating_mul(apps))
    }

    /// The client of a Forgejo. Nothing is called.
    pub fn forgejo(&self) -> Result<Forgejo> {
        let name = &self.name;
        let lacks = |key: &str, fix: &str| Wrong::new(format!("the forge `{name}` has no `{key}`")).fix(fix);
        let web =
            self.web_url.as_deref().ok_or_else(|| lacks("web-url", "write the address of its pages"))?;
        let path = self.token_file.as_deref().ok_or_else(|| {
            lacks("token-file", "make an access token with the scope write:repository, and name its file")
        })?;
        if self.register_at == At::Organisation || !self.apps.is_empty() || !self.scale_sets.is_empty() {
            return Err(Wrong::new(format!(
                "the forge `{name}` is a Forgejo: it has no Apps and no scale sets, and runners are \
                                           registered at repositories"
            ))
            .fix("remove those keys")
            .into());
        }
        let token = fs_err::read_to_string(path).with_context(|| {
            Wrong::new(format!("the token of the forge `{name}` cannot be read: {}", path.display()))
        })?;
        let http = HttpOptions { ca_file: self.ca_file.clone(), ..HttpOptions::default() };
        Forgejo::new(web, Secret::new(token.trim()), &http)
            .with_context(|| Wrong::new(format!("the connection to the forge `{name}`")))
    }

    /// The connection itself. Nothing is called.
    pub fn connection(&self, clock: &Clock) -> Result<ConnectionOptions> {
        if self.apps.is_empty() {
            return Err(Wrong::new(format!(
                "the forge `{}` has no App, and nothing is asked anonymously",
                self.name
            ))
            .fix("add [[forges.apps]] with `client-id` and `key-file`")
            .into());
        }
        let apps = self.apps.iter().map(|app| app.identity(&self.name)).collect::<Result<_>>()?;
        let clock = clock.clone();
        let github = Github::new(GithubOptions {
            endpoint: self.endpoint()?,
            apps,
            clock: Arc::new(move || clock.now()),
            http: HttpOptions { ca_file: self.ca_file.clone(), ..HttpOptions::default() },
        });
        let scale_sets = self.scale_sets.iter().map(|set| {
            let at = Target::parse(&set.at).with_context(|| {
                Wrong::new(format!("scale set `{}` of the forge `{}`", set.name, self.name))
                    .fix("write an organisation, or `owner/name`, into its `at`")
            })?;
            let labels = if set.labels.is_empty() { vec![set.name.clone()] } else { set.labels.clone() };
            let group = set.group.clone().unwrap_or_else(|| "Default".to_owned());
            Ok(ScaleSetWish { at, name: set.name.clone(), group, labels })
        });
        Ok(ConnectionOptions {
            forge: self.name.clone(),
            github: github
                .with_context(|| Wrong::new(format!("the connection to the forge `{}`", self.name)))?,
            register: match self.register_at {
                At::Repository => Register::Repository,
                At::Organisation => Register::Organisation,
            },
            runner_group: self.runner_group.unwrap_or(1),
            scale_sets: scale_sets.collect::<Result<_>>()?,
        })
    }
}

impl ForgeConfig {
    /// How people sign in with this forge, when they can.
    fn sign_in(&self) -> Result<Option<LoginApp>> {
        match (self.kind, &self.sign_in) {
            (Kind::Github, None) => self.login(),
            (Kind::Github, Some(_)) => {
                let text =
                    format!("the forge `{}` is a GitHub, where people sign in with its App", self.name);
                Err(Wrong::new(text).fix("write `client-secret-file` into [[forges.apps]] instead").into())
            }
            (Kind::Forgejo, None) => Ok(None),
            (Kind::Forgejo, Some(application)) => {
                let web = self.forgejo()?.web().to_owned();
                let wrong = |what: &str| {
                    Wrong::new(format!("the sign-in with the forge `{}` {what}", self.name)).fix(
                        "make an OAuth2 application in the settings of an account there, with the redirect address \
                         `PUBLIC-URL/login/callback`, and write its id and the file of its secret",
                    )
                };
                let path = &application.client_secret_file;
                let text = fs_err::read_to_string(path)
                    .with_context(|| wrong("has a client secret that cannot be read"))?;
                if text.trim().is_empty() || application.client_id.trim().is_empty() {
                    return Err(wrong("has an empty client id or secret").into());
                }
                Ok(Some(LoginApp {
                    kind: LoginKind::Forgejo,
                    endpoint: Endpoint::at(&web, &format!("{web}/api/v1"))
                        .with_context(|| wrong("has no usable address"))?,
                    client_id: application.client_id.trim().to_owned(),
                    client_secret: Secret::new(text.trim()),
                    http: HttpOptions { ca_file: self.ca_file.clone(), ..HttpOptions::default() },
                }))
            }
        }
    }

    /// The App by which people sign in: the first one with a client secret.
    fn login(&self) -> Result<Option<LoginApp>> {
        let Some((app, path)) =
            self.apps.iter().find_map(|app| Some((app, app.client_secret_file.as_ref()?)))
        else {
            return Ok(None);
        };
        let wrong = |what: &str| {
            Wrong::new(format!("the sign-in with the forge `{}` {what}", self.name))
                .fix("make a client secret on the App's settings page; the callback address there is `PUBLIC-URL/login/callback`")
        };
        let Some(client_id) =
            app.client_id.as_ref().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())
        else {
            return Err(wrong("needs the `client-id` of its App").into());
        };
        let text =
            fs_err::read_to_string(path).with_context(|| wrong("has a client secret that cannot be read"))?;
        if text.trim().is_empty() {
            return Err(wrong("has an empty client secret").into());
        }
        Ok(Some(LoginApp {
            kind: LoginKind::Github,
            endpoint: self.endpoint()?,
            client_id,
            client_secret: Secret::new(text.trim()),
            http: HttpOptions { ca_file: self.ca_file.clone(), ..HttpOptions::default() },
        }))
    }
}

/// Makes all connections. Nothing is called yet.
pub fn connections(forges: &[ForgeConfig], clock: &Clock) -> Result<Connections> {
    for (place, forge) in forges.iter().enumerate() {
        if forges.iter().take(place).any(|other| other.name == forge.name) {
            let text = format!("two connections have the name `{}`", forge.name);
            return Err(Wrong::new(text).fix("give each forge its own name").into());
        }
    }
    let githubs = forges.iter().filter(|forge| forge.kind == Kind::Github);
    let made: Result<Vec<_>> = githubs.map(|forge| forge.connection(clock)).collect();
    let mut all = Connections::new(made?);
    let mut logins = Vec::new();
    for forge in forges {
        let secrets = forge.webhook_secrets()?;
        if !secrets.is_empty() {
            all = all.trusting(forge.name.clone(), secrets);
        }
        logins.extend(forge.sign_in()?.map(|app| (forge.name.clone(), app)));
        match forge.kind {
            Kind::Github => {}
            Kind::Forgejo => all = all.with_forgejo(forge.name.clone(), forge.forgejo()?),
        }
    }
    Ok(all.with_logins(logins))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FileConfig;
    use forgeyard_formats::toml_text;

    fn read(text: &str) -> FileConfig {
        toml_text::read("forgeyard.toml", text).unwrap()
    }

    fn refused(text: &str) -> String {
        let error = connections(&read(text).forges, &Clock::system()).err().unwrap();
        format!("{error:#}")
    }

    #[test]
    fn connection_is_made_from_a_key_in_a_file_and_the_key_is_in_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("app.pem");
        let text = format!(
            "[[forges]]\nname = \"github\"\nkind = \"github\"\n[[forges.apps]]\nclient-id = \"Iv23x\"\nkey-file = \"{}\"\n\
             [[forges.scale-sets]]\nat = \"conda\"\nname = \"gpu\"\n",
            key.display()
        );
        assert!(refused(&text).contains("cannot be read"));
        fs_err::write(&key, "hunter2").unwrap();
        let error = refused(&text);
        assert!(error.contains("no RSA key") && !error.contains("hunter2"), "{error}");
        fs_err::write(&key, include_str!("../../forges/src/twin/app_key.pem")).unwrap();
        let made = connections(&read(&text).forges, &Clock::system()).unwrap();
        let made = made.of(&"github".parse().unwrap()).unwrap();
        assert_eq!(made.github().endpoint(), &Endpoint::github_com());
        assert_eq!(made.scale_sets()[0].labels, ["gpu"]);
    }

    #[test]
    fn each_app_brings_the_secret_of_its_webhook_and_an_empty_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs_err::write(at("app.pem"), include_str!("../../forges/src/twin/app_key.pem")).unwrap();
        let app = |number: u8| {
            let file = at(&number.to_string());
            format!(
                "[[forges.apps]]\napp-id = {number}\nkey-file = \"{}\"\nwebhook-secret-file = \"{}\"\n",
                at("app.pem").display(),
                file.display()
            )
        };
        let head = |name: &str| format!("[[forges]]\nname = \"{name}\"\nkind = \"github\"\n");
        let text = format!("{}{}{}{}{}", head("github"), app(1), app(2), head("ghes"), app(3));
        for (name, secret) in [("1", "one\n"), ("2", "two"), ("3", " ")] {
            fs_err::write(at(name), secret).unwrap();
        }
        assert!(refused(&text).contains("is empty"));
        fs_err::write(at("3"), "three").unwrap();
        let made = connections(&read(&text).forges, &Clock::system()).unwrap();
        let of = |name: &str| made.webhook_secrets(&name.parse().unwrap());
        assert_eq!(of("github"), [Secret::new("one"), Secret::new("two")]);
        assert_eq!(of("ghes"), [Secret::new("three")]);
    }

    /// Hole 14: the password of the cloud lay with a third party. Here a secret is never text of a configuration.
    #[test]
    fn hole_14_a_secret_in_the_configuration_is_an_unknown_key_and_is_not_repeated() {
        for key in ["client-secret", "key", "webhook-secret", "password"] {
            let text = format!(
                "[[forges]]\nname = \"github\"\nkind = \"github\"\n[[forges.apps]]\nclient-id = \"a\"\nkey-file = \"k\"\n{key} = \"hunter2\"\n"
            );
            let error = toml_text::read::<FileConfig>("forgeyard.toml", &text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn people_sign_in_with_each_forge_that_has_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let (key, secret) = (folder.path().join("app.pem"), folder.path().join("client.secret"));
        fs_err::write(&key, include_str!("../../forges/src/twin/app_key.pem")).unwrap();
        let forge = |name: &str| {
            format!(
                "[[forges]]\nname = \"{name}\"\nkind = \"github\"\nweb-url = \"https://{name}.example.org\"\n[[forges.apps]]\n\
                 client-id = \"a\"\nkey-file = \"{}\"\nclient-secret-file = \"{}\"\n",
                key.display(),
                secret.display()
            )
        };
        assert!(refused(&forge("one")).contains("cannot be read"));
        fs_err::write(&secret, "hunter2\n").unwrap();
        let made = connections(&read(&forge("one")).forges, &Clock::system()).unwrap();
        assert_eq!(made.sign_in_names(), ["one"]);
        let lab = format!(
            "[[forges]]\nname = \"lab\"\nkind = \"forgejo\"\nweb-url = \"https://git.example.org\"\ntoken-file = \"{0}\"\n\
             sign-in = {{ client-id = \"x\", client-secret-file = \"{0}\" }}\n",
            secret.display()
        );
        let text = format!("{}{}{lab}", forge("one"), forge("two"));
        let made = connections(&read(&text).forges, &Clock::system()).unwrap();
        assert_eq!(made.sign_in_names(), ["lab", "one", "two"]);
        let login = made.login(&"lab".parse().unwrap()).unwrap();
        assert_eq!(login.endpoint.api(), "https://git.example.org/api/v1");
        let error = refused(&forge("one").replace(
            "[[forges.apps]]",
            "sign-in = { client-id = \"x\", client-secret-file = \"y\" }\n[[forges.apps]]",
        ));
        assert!(error.contains("with its App") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_forgejo_needs_an_address_and_a_token_and_nothing_of_github() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        let head = "[[forges]]\nname = \"lab\"\nkind = \"forgejo\"\n";
        assert!(refused(head).contains("no `web-url`"));
        let web = format!("{head}web-url = \"https://git.example.org\"\n");
        assert!(refused(&web).contains("no `token-file`"));
        let whole = format!("{web}token-file = \"{}\"\n", token.display());
        assert!(refused(&whole).contains("cannot be read"));
        fs_err::write(&token, "secret words\n").unwrap();
        let at_organisation = format!("{whole}register-at = \"organisation\"\n");
        assert!(refused(&at_organisation).contains("registered at repositories"));
        let made = connections(&read(&whole).forges, &Clock::system()).unwrap();
        assert_eq!(made.forgejo(&"lab".parse().unwrap()).unwrap().web(), "https://git.example.org");
    }

    #[test]
    fn connection_without_an_app_or_with_half_an_address_says_what_to_write() {
        let head = "[[forges]]\nname = \"github\"\nkind = \"github\"\n";
        assert!(refused(head).contains("no App"));
        let both = format!("{head}[[forges.apps]]\nclient-id = \"a\"\napp-id = 1\nkey-file = \"/nowhere\"\n");
        assert!(refused(&both).contains("one of `client-id` and `app-id`"));
        assert!(refused(&format!("{head}{head}")).contains("two connections"));
    }
}
