//! Foreign JSON web tokens, taken apart and checked: RS256 and nothing else.
//!
//! The algorithm is pinned here and never taken from the token: a header that names another one is refused before any key
//! is looked at, so neither `none` nor an HMAC with the public key as its secret comes anywhere. Keys are taken from the
//! issuer's published set alone; `jwk`, `jku`, `x5u` and `x5c` in a header are not read, `crit` is refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_model::Timestamp;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest token that is looked at.
pub const LONGEST: usize = 16 << 10;
/// How far clocks may differ, in seconds.
pub const SKEW: i64 = 60;
/// Longest life that an issuer may give a token, in seconds.
const LONGEST_LIFE: i64 = 24 * 3600;

/// Why a token is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// No JWT.
    #[error("the token is not a JSON web token")]
    Form,
    /// Another algorithm.
    #[error("the token is not signed with RS256")]
    Algorithm,
    /// No such key.
    #[error("the token is signed with a key that its issuer does not publish")]
    Key,
    /// Another signature.
    #[error("the signature of the token does not hold")]
    Signature,
    /// Another issuer.
    #[error("the token is of another issuer")]
    Issuer,
    /// Made for somebody else.
    #[error("the token was made for another audience")]
    Audience,
    /// Past its end, not yet begun, or without an end.
    #[error("the token has expired, is not valid yet, or does not say until when it holds")]
    Time,
}

/// A token that was taken apart and not believed yet.
#[derive(Debug, Clone)]
pub struct Unverified<'a> {
    /// Which key is said to have signed it.
    pub key: String,
    /// What it says its issuer is: good for choosing an issuer, and for nothing else before the signature was checked.
    pub issuer: String,
    signed: &'a str,
    signature: Vec<u8>,
    claims: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl<'a> Unverified<'a> {
    /// Takes a token apart.
    pub fn read(token: &'a str) -> Result<Self, JwtError> {
        if token.len() > LONGEST {
            return Err(JwtError::Form);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Form)?;
        let (header, payload) = signed.split_once('.').ok_or(JwtError::Form)?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| JwtError::Form);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| JwtError::Form)?;
        if header.alg != "RS256" {
            return Err(JwtError::Algorithm);
        }
        if header.crit.is_some() {
            return Err(JwtError::Form);
        }
        let key = header.kid.filter(|kid| kid.len() <= 256).ok_or(JwtError::Key)?;
        let claims: BTreeMap<String, Value> =
            serde_json::from_slice(&decode(payload)?).map_err(|_| JwtError::Form)?;
        let issuer = claims.get("iss").and_then(Value::as_str).ok_or(JwtError::Issuer)?.to_owned();
        Ok(Self { key, issuer, signed, signature: decode(signature)?, claims })
    }

    /// Believes it: by this key, of this issuer, for this audience when one is asked for, now.
    pub fn verify(
        self,
        key: &RsaKey,
        issuer: &str,
        audience: Option<&str>,
        now: Timestamp,
    ) -> Result<Claims, JwtError> {
        let public = RsaPublicKeyComponents { n: &key.n, e: &key.e };
        let held = public.verify(&RSA_PKCS1_2048_8192_SHA256, self.signed.as_bytes(), &self.signature);
        held.map_err(|_| JwtError::Signature)?;
        if self.issuer != issuer {
            return Err(JwtError::Issuer);
        }
        let claims = Claims(self.claims);
        if let Some(audience) = audience {
            let meant = match claims.0.get("aud") {
                Some(Value::String(one)) => one == audience,
                Some(Value::Array(all)) => all.iter().any(|one| one == audience),
                _ => false,
            };
            if !meant {
                return Err(JwtError::Audience);
            }
        }
        let now = now.as_micros().div_euclid(1_000_000);
        let time = |name: &str| claims.0.get(name).map(|value| value.as_i64().ok_or(JwtError::Time));
        let end = time("exp").ok_or(JwtError::Time)??;
        let begun =
            |at: Option<Result<i64, JwtError>>| at.transpose().map(|at| at.is_none_or(|at| at <= now + SKEW));
        if end <= now - SKEW || end > now + LONGEST_LIFE || !begun(time("nbf"))? || !begun(time("iat"))? {
            return Err(JwtError::Time);
        }
        Ok(claims)
    }
}

/// What a believed token says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Claims(BTreeMap<String, Value>);

impl Claims {
    /// From JSON, for tests of what is decided by claims.
    pub fn from_json(json: Value) -> Option<Self> {
        serde_json::from_value(json).ok().map(Self)
    }

    /// A text; empty when it is missing or none.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A number, as a number or as the text that forges make of it.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.0.get(name)? {
            Value::Number(number) => number.as_u64(),
            Value::String(text) if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
            _ => None,
        }
    }

    /// Whether it is true, as a truth value or as the text that forges make of it.
    pub fn truth(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| *value == true || *value == "true")
    }

    /// End, in seconds since the epoch.
    pub fn end(&self) -> i64 {
        self.0.get("exp").and_then(Value::as_i64).unwrap_or(0)
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RsaKey {
    n: Vec<u8>,
    e: Vec<u8>,
}

/// Reads a set of keys (RFC 7517): RSA keys for signatures, by id. Others are read over.
pub fn key_set(bytes: &[u8]) -> Option<BTreeMap<String, RsaKey>> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(bytes).ok()?;
    let read = |key: &Value| -> Option<(String, RsaKey)> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let fits = |name: &str, wanted: &str| text(name).is_none_or(|text| text == wanted);
        if text("kty") != Some("RSA") || !fits("alg", "RS256") || !fits("use", "sig") {
            return None;
        }
        let number = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok().filter(|bytes| !bytes.is_empty());
        Some((text("kid")?.to_owned(), RsaKey { n: number("n")?, e: number("e")? }))
    };
    Some(set.keys.iter().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(header: &str, payload: &str) -> String {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.{}", encode(header), encode(payload), encode("signature"))
    }

    #[test]
    fn algorithm_is_pinned_before_any_key_is_looked_at() {
        for alg in ["none", "None", "HS256", "RS512", "ES256", "rs256", ""] {
            let token = made(&format!(r#"{{"alg":"{alg}","kid":"k"}}"#), r#"{"iss":"i"}"#);
            assert_eq!(Unverified::read(&token).unwrap_err(), JwtError::Algorithm, "{alg}");
        }
        let token = made(r#"{"alg":"RS256","kid":"k","crit":["b64"]}"#, r#"{"iss":"i"}"#);
        assert_eq!(Unverified::read(&token).unwrap_err(), JwtError::Form);
        let token = made(r#"{"alg":"RS256"}"#, r#"{"iss":"i"}"#);
        assert_eq!(Unverified::read(&token).unwrap_err(), JwtError::Key);
    }

    #[test]
    fn keys_for_other_uses_are_read_over() {
        let set = br#"{"keys":[{"kty":"RSA","kid":"a","use":"sig","n":"AQAB","e":"AQAB"},
            {"kty":"RSA","kid":"b","use":"enc","n":"AQAB","e":"AQAB"},{"kty":"EC","kid":"c"},
            {"kty":"RSA","kid":"d","alg":"PS256","n":"AQAB","e":"AQAB"},{"kty":"oct","kid":"e","k":"AQAB"},7]}"#;
        assert_eq!(key_set(set).unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_apart_or_refused(token in "\\PC{0,80}", header in "\\PC{0,40}", payload in "\\PC{0,40}", set: Vec<u8>) {
            let _ = Unverified::read(&token);
            let _ = Unverified::read(&made(&header, &payload));
            let _ = key_set(&set);
            if let Ok(read) = Unverified::read(&made(r#"{"alg":"RS256","kid":"k"}"#, &format!(r#"{{"iss":"i","x":"{payload}"}}"#))) {
                let key = RsaKey { n: set.clone(), e: vec![1, 0, 1] };
                prop_assert!(read.verify(&key, "i", None, Timestamp::from_micros(0)).is_err());
            }
        }
    }
}
