//! Tokens of the cache: a signed statement of who may read and write where, until when.
//!
//! ```text
//! fyc_<claims>.<signature>        both base64url without padding
//! claims     JSON of [`Claims`]
//! signature  Ed25519 over "forgeyard-cache-token-v1\n" and the bytes of the claims as sent
//! ```
//!
//! The farm mints one for each job, to end with the job's deadline. The cache needs the public key alone, so it asks
//! nobody. One algorithm, one form: there is no header that a caller could choose anything in.

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

/// Reads a token whose key is one of these and whose signature holds. Time and revocation are looked at elsewhere.
pub fn read<'k>(
    token: &str,
    key: impl FnOnce(&str) -> Option<&'k VerifyingKey>,
) -> Result<Claims, TokenError> {
    if token.len() > LONGEST {
        return Err(TokenError::Form);
    }
    let (claims, signature) =
        token.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')).ok_or(TokenError::Form)?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Form);
    let (bytes, signature) = (decode(claims)?, decode(signature)?);
    let claims: Claims = serde_json::from_slice(&bytes).map_err(|_| TokenError::Form)?;
    let signature = Signature::from_slice(&signature).map_err(|_| TokenError::Form)?;
    let key = key(&claims.key).ok_or(TokenError::Key)?;
    key.verify_strict(&[SIGNED, &bytes].concat(), &signature).map_err(|_| TokenError::Signature)?;
    Ok(claims)
}
