//! Signing people in: the web flow of an App, with PKCE (RFC 7636).
//!
//! The browser is sent to [`LoginApp::address`] and comes back with a code; [`LoginApp::redeem`] turns the code into the
//! person that GitHub vouches for, by numeric id. The person's token is used for that one question, is never stored, and
//! appears in no error.

use super::endpoint::Endpoint;
use super::error::GithubError;
use super::wire::{HttpOptions, Proof, Request, Wire};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Which protocol a sign-in speaks: both are OAuth 2 with PKCE and differ in little.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoginKind {
    /// GitHub's web flow.
    #[default]
    Github,
    /// An OAuth 2 application of a Forgejo, by RFC 6749 word for word; people are at `/api/v1/user`. Never tried against a
    /// real one.
    Forgejo,
}

/// An App, or an OAuth 2 application, as people sign in with it.
#[derive(Debug, Clone)]
pub struct LoginApp {
    /// Which protocol.
    pub kind: LoginKind,
    /// Which host.
    pub endpoint: Endpoint,
    /// Client id of the App.
    pub client_id: String,
    /// Client secret of the App.
    pub client_secret: Secret,
    /// Connections.
    pub http: HttpOptions,
}

/// Why a sign-in came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The forge does not take the code, the secret or the address.
    #[error("the forge refuses the sign-in: {error}")]
    Refused {
        /// The forge's word for it: `bad_verification_code`.
        error: String,
    },
    /// The call failed.
    #[error(transparent)]
    Call(#[from] GithubError),
}

#[derive(Deserialize)]
struct Redeemed {
    #[serde(default)]
    access_token: Option<Secret>,
    #[serde(default)]
    error: Option<String>,
}

/// The challenge that goes with a verifier: what the browser carries, while the verifier stays with the farm.
pub fn challenge(verifier: &Secret) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose().as_bytes()))
}

impl LoginApp {
    /// Where the browser is sent.
    pub fn address(&self, redirect: &str, state: &str, verifier: &Secret) -> Result<String, GithubError> {
        let mut url = self.url("/login/oauth/authorize")?;
        url.query_pairs_mut()
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", redirect)
            .append_pair("state", state)
            .append_pair("code_challenge", &challenge(verifier))
            .append_pair("code_challenge_method", "S256");
        match self.kind {
            // Whoever has no account there cannot be anybody here.
            LoginKind::Github => {
                url.query_pairs_mut().append_pair("allow_signup", "false");
            }
            LoginKind::Forgejo => {
                url.query_pairs_mut().append_pair("response_type", "code").append_pair("scope", "read:user");
            }
        }
        Ok(url.into())
    }

    fn url(&self, path: &str) -> Result<Url, GithubError> {
        Url::parse(&format!("{}{path}", self.endpoint.web()))
            .map_err(|error| GithubError::Setup { what: "address".to_owned(), reason: error.to_string() })
    }

    /// Redeems the code that the browser brought back, and asks who it is.
    pub async fn redeem(
        &self,
        code: &Secret,
        redirect: &str,
        verifier: &Secret,
    ) -> Result<Person, LoginError> {
        let wire = Wire::new(&self.http)?;
        let accept = vec![("accept", "application/json".to_owned())];
        let mut body = json!({
            "client_id": self.client_id,
            "client_secret": self.client_secret.expose(),
            "code": code.expose(),
            "redirect_uri": redirect,
            "code_verifier": verifier.expose(),
        });
        if self.kind == LoginKind::Forgejo {
            body["grant_type"] = json!("authorization_code");
        }
        let request = Request {
            call: "POST /login/oauth/access_token".to_owned(),
            method: Method::POST,
            url: self.url("/login/oauth/access_token")?,
            proof: Proof::InPath,
            headers: accept,
            body: Some(body),
            timeout: None,
        };
        let redeemed: Redeemed = wire.exchange(request).await?.json()?;
        let token = match (redeemed.access_token, redeemed.error) {
            (Some(token), None) => token,
            (_, error) => {
                let shown = error.unwrap_or_else(|| "no token in its answer".to_owned());
                let error = shown.chars().filter(|letter| !letter.is_control()).take(100).collect();
                return Err(LoginError::Refused { error });
            }
        };
        let url = Url::parse(&format!("{}/user", self.endpoint.api()))
            .map_err(|error| GithubError::Setup { what: "address".to_owned(), reason: error.to_string() })?;
        let request = Request {
            call: "GET /user".to_owned(),
            method: Method::GET,
            url,
            proof: Proof::Bearer(token),
            headers: vec![("accept", "application/vnd.github+json".to_owned())],
            body: None,
            timeout: None,
        };
        let person: Person = wire.exchange(request).await?.json()?;
        if person.id == 0 {
            return Err(LoginError::Refused { error: "it names nobody".to_owned() });
        }
        Ok(person)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_is_that_of_the_standard() {
        // RFC 7636, appendix B.
        let verifier = Secret::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
        assert_eq!(challenge(&verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }

    #[test]
    fn address_carries_the_challenge_and_neither_verifier_nor_secret() {
        let app = LoginApp {
            kind: LoginKind::Github,
            endpoint: Endpoint::github_com(),
            client_id: "Iv1.x".to_owned(),
            client_secret: Secret::new("hunter2"),
            http: HttpOptions::default(),
        };
        let verifier = Secret::new("v".repeat(43));
        let text = app.address("https://farm.example/login/callback", "st&te", &verifier).unwrap();
        assert!(text.starts_with("https://github.com/login/oauth/authorize?client_id=Iv1.x&"), "{text}");
        assert!(text.contains("state=st%26te") && text.contains("code_challenge_method=S256"), "{text}");
        assert!(!text.contains("hunter2") && !text.contains(verifier.expose()), "{text}");
    }
}
