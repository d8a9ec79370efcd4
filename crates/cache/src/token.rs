//! Tokens of the cache: a signed statement of who may read and write where, until when.
//!
//! ```text
//! fyc_<claims>.<signature>        both base64url without padding
//! claims     JSON of [`Claims`]
//! signature  Ed25519 over "forgeyard-cache-token-v1\n" and the bytes of the claims as sent
//! ```
//!
//! The farm mints one for each job, to end with the job's deadline. The cache needs the public key alone, so it asks
//! nobody. One algorithm, and no header that a caller could choose anything in.
//!
//! GitHub's official clients take their token apart before they use it, so there is a second form of the same claims:
//!
//! ```text
//! eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.<payload>.<signature>     a JWT, whose header is always just this text
//! payload    {"iss":"forgeyard","exp":…,"scp":"Actions.Results:<run>:<job>","claims":{…}}
//! signature  Ed25519 over all before the second dot
//! ```
//!
//! `scp` is what the artifact client reads; the farm itself goes by `claims` alone. Neither form can be made into the other
//! without the key: what is signed begins differently.

use crate::scope::ScopePath;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use forgeyard_model::{Secret, Timestamp};
use serde::{Deserialize, Serialize};

/// What every token begins with, so that scanners for leaked secrets can know it.
pub const PREFIX: &str = "fyc_";
const SIGNED: &[u8] = b"forgeyard-cache-token-v1\n";
/// Longest token that is looked at.
const LONGEST: usize = 4096;

/// How much a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads its scope and the parents.
    Read,
    /// Writes its scope as well.
    Write,
    /// Looks at and removes entries of every scope. Reads and writes no entries itself.
    Admin,
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Claims {
    /// Id of the token, by which it is revoked.
    pub id: String,
    /// Id of the key that signed it.
    pub key: String,
    /// Who: the name that provenance carries.
    pub principal: String,
    /// The scope.
    pub scope: ScopePath,
    /// What it allows.
    pub access: Access,
    /// End.
    pub expires_at: Timestamp,
    /// Revocation epoch in which it was minted; of an older one than the authority's, it is void.
    pub epoch: u64,
    /// Release mode: parents are not read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold: bool,
    /// It holds only while its id is in the list of [live tokens](crate::authority::live).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listed: bool,
    /// The run that it belongs to, for provenance: job, run, workflow, runner, in any words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// Why a token is not believed. Says nothing about keys to the caller; the reason is for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a token of this service.
    #[error("the token is not one of this cache")]
    Form,
    /// No such key.
    #[error("the token is signed with an unknown key")]
    Key,
    /// Wrong signature.
    #[error("the signature of the token does not hold")]
    Signature,
    /// Past its end.
    #[error("the token has expired")]
    Expired,
    /// Taken back.
    #[error("the token was revoked")]
    Revoked,
}

/// Mints a token.
pub fn mint(claims: &Claims, key: &SigningKey) -> Result<Secret, TokenError> {
    let claims = serde_json::to_vec(claims).map_err(|_| TokenError::Form)?;
    let signature = key.sign(&[SIGNED, &claims].concat());
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    Ok(Secret::new(format!("{PREFIX}{}.{}", encode(&claims), encode(&signature.to_bytes()))))
}

/// The header of the second form: `{"alg":"EdDSA","typ":"JWT"}`. Any other header is no token of this cache.
const JWT_HEADER: &str = "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9";

#[derive(Serialize, Deserialize)]
struct Payload {
    iss: String,
    exp: i64,
    scp: String,
    claims: Claims,
}

/// Mints a token in the form that GitHub's official clients want in `ACTIONS_RUNTIME_TOKEN`.
pub fn mint_jwt(claims: &Claims, key: &SigningKey) -> Result<Secret, TokenError> {
    let ids = crate::github::Backend::new(&claims.scope, &claims.principal, claims.run.as_deref());
    let payload = Payload {
        iss: "forgeyard".to_owned(),
        exp: claims.expires_at.as_micros().div_euclid(1_000_000),
        scp: format!("Actions.Results:{}:{}", ids.run, ids.job),
        claims: claims.clone(),
    };
    let payload = serde_json::to_vec(&payload).map_err(|_| TokenError::Form)?;
    let signed = format!("{JWT_HEADER}.{}", URL_SAFE_NO_PAD.encode(payload));
    let signature = key.sign(signed.as_bytes());
    Ok(Secret::new(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))))
}

/// Claims, signature and what is signed, of either form.
fn parts(token: &str) -> Option<(Claims, Signature, Vec<u8>)> {
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
    let signature = |text: &str| Signature::from_slice(&decode(text)?).ok();
    if let Some(rest) = token.strip_prefix(PREFIX) {
        let (claims, made) = rest.split_once('.')?;
        let bytes = decode(claims)?;
        let claims = serde_json::from_slice(&bytes).ok()?;
        return Some((claims, signature(made)?, [SIGNED, &bytes].concat()));
    }
    let (payload, made) = token.strip_prefix(JWT_HEADER)?.strip_prefix('.')?.split_once('.')?;
    let read: Payload = serde_json::from_slice(&decode(payload)?).ok()?;
    let signed = format!("{JWT_HEADER}.{payload}").into_bytes();
    Some((read.claims, signature(made)?, signed))
}

/// Reads a token whose key is one of these and whose signature holds. Time and revocation are looked at elsewhere.
pub fn read<'k>(
    token: &str,
    key: impl FnOnce(&str) -> Option<&'k VerifyingKey>,
) -> Result<Claims, TokenError> {
    if token.len() > LONGEST {
        return Err(TokenError::Form);
    }
    let (claims, signature, signed) = parts(token).ok_or(TokenError::Form)?;
    let key = key(&claims.key).ok_or(TokenError::Key)?;
    key.verify_strict(&signed, &signature).map_err(|_| TokenError::Signature)?;
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claims() -> Claims {
        Claims {
            id: "t1".to_owned(),
            key: "k1".to_owned(),
            principal: "job_1".to_owned(),
            scope: "p/pr/7".parse().unwrap(),
            access: Access::Write,
            expires_at: Timestamp::from_micros(100),
            epoch: 0,
            cold: false,
            listed: false,
            run: Some("4711".to_owned()),
        }
    }

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }

    #[test]
    fn both_forms_say_the_same_and_the_second_has_what_the_artifact_client_reads() {
        let public = key().verifying_key();
        let jwt = mint_jwt(&claims(), &key()).unwrap();
        assert_eq!(read(jwt.expose(), |_| Some(&public)), Ok(claims()));
        assert_eq!(read(mint(&claims(), &key()).unwrap().expose(), |_| Some(&public)), Ok(claims()));
        let payload = URL_SAFE_NO_PAD.decode(jwt.expose().split('.').nth(1).unwrap()).unwrap();
        let payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        let scp = payload["scp"].as_str().unwrap();
        assert_eq!(scp.split(':').count(), 3, "{scp}");
        assert_eq!(URL_SAFE_NO_PAD.decode(JWT_HEADER).unwrap(), br#"{"alg":"EdDSA","typ":"JWT"}"#);
    }

    #[test]
    fn jwt_with_another_header_is_no_token() {
        let public = key().verifying_key();
        let jwt = mint_jwt(&claims(), &key()).unwrap().expose().to_owned();
        let rest = jwt.split_once('.').unwrap().1;
        for header in
            [r#"{"alg":"none"}"#, r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"typ":"JWT","alg":"EdDSA"}"#]
        {
            let forged = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header));
            assert_eq!(read(&forged, |_| Some(&public)), Err(TokenError::Form));
        }
        let unsigned = format!("{}.", jwt.rsplit_once('.').unwrap().0);
        assert_eq!(read(&unsigned, |_| Some(&public)), Err(TokenError::Form));
    }

    proptest! {
        #[test]
        fn changed_jwt_is_never_believed(at: prop::sample::Index, with in "[A-Za-z0-9_.-]", text in "\\PC{0,60}") {
            let public = key().verifying_key();
            let good = mint_jwt(&claims(), &key()).unwrap().expose().to_owned();
            let at = at.index(good.len());
            let mut changed = good.clone();
            changed.replace_range(at..=at, &with);
            prop_assume!(changed != good);
            prop_assert!(read(&changed, |_| Some(&public)).is_err());
            prop_assert!(read(&text, |_| Some(&public)).is_err());
        }
    }
}
