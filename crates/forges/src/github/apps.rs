//! Apps themselves: what one is and may do, where it is installed, its webhook, and the making of one from a
//! manifest.

use super::answer;
use super::client::{Call, Github};
use super::endpoint::{Endpoint, Target};
use super::error::GithubError;
use super::wire::{HttpOptions, Proof, Request, Wire};
use forgeyard_model::{Secret, Timestamp};
use reqwest::{Method, Url};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The account that an App is installed at.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Account {
    /// Numeric id.
    pub id: u64,
    /// Login, for display.
    pub login: String,
    /// `Organization` or `User`.
    #[serde(default, rename = "type")]
    pub kind: String,
}

/// An installation of an App.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Installation {
    /// Numeric id.
    pub id: u64,
    /// Where.
    #[serde(default)]
    pub account: Option<Account>,
    /// `all` or `selected`.
    #[serde(default)]
    pub repository_selection: Option<String>,
    /// What was granted: name of the permission to `read`, `write` or `admin`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub permissions: BTreeMap<String, String>,
    /// Events that are sent.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub events: Vec<String>,
    /// Since when it is suspended, if it is.
    #[serde(default, deserialize_with = "answer::optional_time")]
    pub suspended_at: Option<Timestamp>,
}

/// What an App says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AppDescription {
    /// Numeric id.
    pub id: u64,
    /// Name in addresses.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub slug: Option<String>,
    /// Name for people.
    pub name: String,
    /// Client id, where GitHub gives it.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub client_id: Option<String>,
    /// Who owns it, where GitHub says so.
    #[serde(default)]
    pub owner: Option<Account>,
    /// What it asks for; an installation may have granted less.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub permissions: BTreeMap<String, String>,
    /// Events that it subscribes to.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub events: Vec<String>,
}

/// Where an App's events are sent. GitHub never gives the secret back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HookConfig {
    /// The address.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub url: Option<String>,
    /// `json` or `form`.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub content_type: Option<String>,
}

/// A new App, made from a manifest: everything that the farm has to keep.
#[derive(Debug, Clone, Deserialize)]
pub struct ConvertedApp {
    /// Numeric id.
    pub id: u64,
    /// Name in addresses; `{web}/apps/{slug}/installations/new` installs it.
    pub slug: String,
    /// Name for people.
    pub name: String,
    /// Client id, the issuer of its tokens.
    pub client_id: String,
    /// Secret for the login of people.
    pub client_secret: Secret,
    /// Key of webhook signatures; none when the manifest asked for no webhook.
    #[serde(default)]
    pub webhook_secret: Option<Secret>,
    /// The private key, in PEM.
    pub pem: Secret,
    /// Its page.
    pub html_url: String,
    /// Who owns it.
    #[serde(default)]
    pub owner: Option<Account>,
}

impl Github {
    /// The App at a place, as GitHub describes it.
    pub async fn describe_app(&self, place: usize) -> Result<AppDescription, GithubError> {
        self.as_app(self.app(place)?, Call::get("app", "/app".to_owned())).await?.json()
    }

    /// The webhook of an App.
    pub async fn hook_config(&self, place: usize) -> Result<HookConfig, GithubError> {
        self.as_app(self.app(place)?, Call::get("hook-config", "/app/hook/config".to_owned())).await?.json()
    }

    /// Where an App is installed at an organisation or repository, with what was granted; none if it is not.
    pub async fn installation(
        &self,
        place: usize,
        target: &Target,
    ) -> Result<Option<Installation>, GithubError> {
        let call = Call::get("installation", format!("{}/installation", target.path()));
        let answer = self.as_app(self.app(place)?, call).await?;
        if answer.status == 404 && matches!(answer.cause(), super::Cause::NotFound) {
            return Ok(None);
        }
        answer.json().map(Some)
    }
}

/// Redeems the code that GitHub sends back when a person has made an App from the farm's manifest. The code is the
/// credential: it works once, for an hour, and this is the only call without a token. It never appears in an error.
pub async fn convert_manifest(
    endpoint: &Endpoint,
    http: &HttpOptions,
    code: &Secret,
) -> Result<ConvertedApp, GithubError> {
    let call = "POST /app-manifests/{code}/conversions".to_owned();
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let text = code.expose();
    if text.is_empty() || text.len() > 200 || !text.bytes().all(fine) {
        let reason = "it holds more than letters, digits, `-` and `_`".to_owned();
        return Err(GithubError::Setup { what: "code of the App manifest".to_owned(), reason });
    }
    let url = Url::parse(&format!("{}/app-manifests/{text}/conversions", endpoint.api()))
        .map_err(|error| GithubError::Setup { what: "address".to_owned(), reason: error.to_string() })?;
    let headers = vec![("accept", "application/vnd.github+json".to_owned())];
    let request =
        Request { call, method: Method::POST, url, proof: Proof::InPath, headers, body: None, timeout: None };
    Wire::new(http)?.exchange(request).await?.json()
}
