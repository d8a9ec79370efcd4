//! The signature of a webhook: HMAC-SHA256 over the raw body.

use forgeyard_model::Secret;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Why a signature does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is none.
    #[error("webhook has no `X-Hub-Signature-256` header: set the same secret at the forge and at the farm")]
    Missing,
    /// It was made with another algorithm.
    #[error("webhook signature must start with `sha256=`")]
    Algorithm,
    /// It is not 64 lower-case hexadecimal digits.
    #[error(
        "webhook signature must be `sha256=` and 64 lower-case hexadecimal digits, found {found} characters"
    )]
    Form {
        /// How many characters follow the equals sign.
        found: usize,
    },
    /// It belongs to another body or another secret.
    #[error("webhook signature does not fit the body: another secret, or the body was changed on the way")]
    Mismatch,
    /// The farm's own secret is empty, so that everybody could sign.
    #[error("webhook secret of the farm is empty: nothing signed with it can be trusted")]
    EmptySecret,
}

/// The value that the header `X-Hub-Signature-256` has for this body.
pub fn sign(secret: &Secret, body: &[u8]) -> Result<String, SignatureError> {
    let mut mac = keyed(secret)?;
    mac.update(body);
    Ok(format!("sha256={}", hex::encode(mac.finalize().into_bytes())))
}

/// Checks the header against the raw body, in constant time.
pub fn verify_signature(secret: &Secret, header: Option<&str>, body: &[u8]) -> Result<(), SignatureError> {
    // An empty secret of our own comes before whatever was sent.
    keyed(secret)?;
    let digits =
        header.ok_or(SignatureError::Missing)?.strip_prefix("sha256=").ok_or(SignatureError::Algorithm)?;
    verify_bare(secret, Some(digits), body)
}

/// The same for a header that holds the digits alone, as those of Gitea and Forgejo do.
pub fn verify_bare(secret: &Secret, header: Option<&str>, body: &[u8]) -> Result<(), SignatureError> {
    let mut mac = keyed(secret)?;
    let digits = header.ok_or(SignatureError::Missing)?;
    let form = SignatureError::Form { found: digits.chars().count() };
    let lower = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let mut claimed = [0u8; 32];
    if !lower || hex::decode_to_slice(digits, &mut claimed).is_err() {
        return Err(form);
    }
    mac.update(body);
    mac.verify_slice(&claimed).map_err(|_| SignatureError::Mismatch)
}

fn keyed(secret: &Secret) -> Result<Hmac<Sha256>, SignatureError> {
    if secret.expose().is_empty() {
        return Err(SignatureError::EmptySecret);
    }
    // HMAC takes keys of every length; the error is mapped only because the type asks for it.
    Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).map_err(|_| SignatureError::EmptySecret)
}
