//! The identity of a GitHub App: its issuer and private key, and the short-lived JSON web tokens signed with it.
//!
//! `iat` is a minute in the past, for clocks that differ; `exp` is nine minutes after it, where GitHub allows ten
//! (runners.md §3.3).

use super::error::GithubError;
use super::rs256;
use forgeyard_model::{Secret, Timestamp};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Serialize;
use std::time::Duration;

/// How far in the past a token claims to be issued.
const ISSUED_AGO: i64 = 60;
/// How long after that it ends.
const LIFETIME: Duration = Duration::from_secs(9 * 60);

/// The private key of an App. It cannot be printed.
#[derive(Clone)]
pub struct AppKey(EncodingKey);

impl std::fmt::Debug for AppKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret key]")
    }
}

impl AppKey {
    /// Reads the PEM file that GitHub offers for download; PKCS#8 is taken as well.
    pub fn from_pem(pem: &Secret) -> Result<Self, GithubError> {
        let wrong = |reason: String| GithubError::Key { reason };
        let der = PrivateKeyDer::from_pem_slice(pem.expose().as_bytes())
            .map_err(|error| wrong(format!("it is not a private key in PEM: {error}")))?;
        let bytes = match &der {
            PrivateKeyDer::Pkcs1(key) => key.secret_pkcs1_der(),
            PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der(),
            _ => return Err(wrong("it is not an RSA key".to_owned())),
        };
        rs256::key_pair(bytes).map_err(|reason| wrong(format!("it is not a usable RSA key: {reason}")))?;
        Ok(Self(EncodingKey::from_rsa_der(bytes)))
    }
}

/// Who an App is: its client id (or numeric id) and its key.
#[derive(Debug, Clone)]
pub struct AppIdentity {
    /// Client id, or the numeric id in decimal.
    pub issuer: String,
    /// The private key.
    pub key: AppKey,
}

#[derive(Serialize)]
struct Claims<'a> {
    iat: i64,
    exp: i64,
    iss: &'a str,
}

impl AppIdentity {
    /// A token that proves to be this App for the next eight minutes.
    pub fn sign(&self, now: Timestamp) -> Result<Secret, GithubError> {
        rs256::install();
        let issued = now.as_micros().div_euclid(1_000_000) - ISSUED_AGO;
        let claims = Claims {
            iat: issued,
            exp: issued.saturating_add(i64::try_from(LIFETIME.as_secs()).unwrap_or(0)),
            iss: &self.issuer,
        };
        jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &self.key.0)
            .map(Secret::new)
            .map_err(|error| GithubError::Key { reason: format!("it cannot sign: {error}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{DecodingKey, Validation};

    fn identity(pem: &str) -> AppIdentity {
        AppIdentity { issuer: "Iv23example".to_owned(), key: AppKey::from_pem(&Secret::new(pem)).unwrap() }
    }

    #[test]
    fn a_token_names_the_app_is_a_minute_old_and_lives_nine_minutes() {
        for pem in [include_str!("../twin/app_key.pem"), include_str!("../../tests/fixtures/app_key.pk8.pem")]
        {
            let token = identity(pem).sign(Timestamp::from_micros(1_700_000_000_900_000)).unwrap();
            let mut validation = Validation::new(Algorithm::RS256);
            // The instant of the test is not today.
            validation.validate_exp = false;
            let der = include_bytes!("../../tests/fixtures/app_key.pub.der");
            let read = jsonwebtoken::decode::<serde_json::Value>(
                token.expose(),
                &DecodingKey::from_rsa_der(der),
                &validation,
            )
            .unwrap();
            assert_eq!(
                read.claims,
                serde_json::json!({"iat": 1_699_999_940, "exp": 1_700_000_480, "iss": "Iv23example"})
            );
        }
    }

    #[test]
    fn what_is_not_an_rsa_key_is_refused_and_never_printed() {
        for pem in
            ["", "secret-words", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n"]
        {
            let error = AppKey::from_pem(&Secret::new(pem)).unwrap_err().to_string();
            assert!(error.starts_with("the App's private key cannot be used"), "{error}");
            assert!(!error.contains("secret-words"), "{error}");
        }
        let printed = format!("{:?}", identity(include_str!("../twin/app_key.pem")));
        assert_eq!(printed, "AppIdentity { issuer: \"Iv23example\", key: [secret key] }");
    }
}
