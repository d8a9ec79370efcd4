//! Signed URLs: who holds one may do one thing to one object until a time, and nothing else.
//!
//! ```text
//! /-/github/<object>[/<file name>]?sp=u|d&sc=<scope>&se=<seconds>&sl=<longest>&sig=<HMAC>
//!
//! sp    method class: u writes with PUT, d reads with GET and HEAD
//! sc    the scope that it belongs to
//! se    end, seconds since the epoch
//! sl    most bytes that may be written; 0 for a read
//! sig   HMAC-SHA-256 over "forgeyard-cache-url-v1" and these four and the object, a line each; base64url
//! ```
//!
//! Azure's clients want a container (`-` or `github`, by the form of the host) and a query (caches.md §3.3); they add
//! parameters of their own, which the signature does not cover and which change nothing of what is allowed. The URL is a
//! bearer secret: it is never logged, and its type does not print.

use crate::admin::parameter as decoded;
use crate::http::Method;
use crate::scope::ScopePath;
use forgeyard_model::{Secret, Timestamp};
use ring::hmac;
use std::fmt::Write as _;

/// Where signed URLs begin.
pub const PREFIX: &str = "/-/github/";
/// How long one holds.
pub const LIFE_SECONDS: i64 = 3600;

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Write with PUT.
    Upload,
    /// Read with GET and HEAD.
    Download,
}

impl Right {
    const fn as_str(self) -> &'static str {
        match self {
            Right::Upload => "u",
            Right::Download => "d",
        }
    }

    /// Whether a request with this method is meant.
    pub const fn covers(self, method: Method) -> bool {
        match self {
            Right::Upload => matches!(method, Method::Put),
            Right::Download => matches!(method, Method::Get | Method::Head),
        }
    }
}

/// What a URL allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// What may be done.
    pub right: Right,
    /// To what.
    pub object: String,
    /// In which scope.
    pub scope: ScopePath,
    /// Until when, seconds since the epoch.
    pub until: i64,
    /// Most bytes that may be written.
    pub longest: u64,
}

/// Why a URL is not believed. The caller is told only that it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// A part is missing or no such thing.
    #[error("the signed URL is not one of this cache")]
    Form,
    /// Another signature.
    #[error("the signature of the URL does not hold")]
    Signature,
    /// Past its end.
    #[error("the signed URL has expired")]
    Expired,
    /// A write by a URL for reading, or the other way round.
    #[error("the signed URL is for another method")]
    Method,
}

/// The key that signs.
pub struct Signer(hmac::Key);

impl Signer {
    /// With this secret.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The URL below `base` (scheme and host) for this; `file` is for clients that look at how a path ends.
    pub fn sign(&self, base: &str, allowed: &Allowed, file: Option<&str>) -> Secret {
        let tag = hmac::sign(&self.0, message(allowed).as_bytes());
        let Allowed { right, object, scope, until, longest } = allowed;
        let mut url = format!("{base}{PREFIX}{object}");
        if let Some(file) = file {
            url.push('/');
            for byte in file.bytes() {
                match byte {
                    b'.' | b'-' | b'_' => url.push(char::from(byte)),
                    byte if byte.is_ascii_alphanumeric() => url.push(char::from(byte)),
                    byte => {
                        let _ = write!(url, "%{byte:02X}");
                    }
                }
            }
        }
        let scope = scope.as_str().replace('/', "%2F");
        let _ = write!(
            url,
            "?sp={}&sc={scope}&se={until}&sl={longest}&sig={}",
            right.as_str(),
            encode(tag.as_ref())
        );
        Secret::new(url)
    }

    /// What a request with this path and query is allowed to do. The comparison takes the same time for every signature.
    pub fn check(
        &self,
        method: Method,
        path: &str,
        query: &str,
        now: Timestamp,
    ) -> Result<Allowed, UrlError> {
        let object = path.strip_prefix(PREFIX).ok_or(UrlError::Form)?;
        let object = object.split('/').next().unwrap_or_default();
        let part = |name: &str| decoded(query, name).ok_or(UrlError::Form);
        let digits = |name: &str| {
            part(name).and_then(|text| {
                let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                plain.then(|| text.parse::<u64>().ok()).flatten().ok_or(UrlError::Form)
            })
        };
        let allowed = Allowed {
            right: match part("sp")?.as_str() {
                "u" => Right::Upload,
                "d" => Right::Download,
                _ => return Err(UrlError::Form),
            },
            object: object.to_owned(),
            scope: part("sc")?.parse().map_err(|_| UrlError::Form)?,
            until: i64::try_from(digits("se")?).map_err(|_| UrlError::Form)?,
            longest: digits("sl")?,
        };
        let signature = decode(&part("sig")?).ok_or(UrlError::Form)?;
        hmac::verify(&self.0, message(&allowed).as_bytes(), &signature).map_err(|_| UrlError::Signature)?;
        if allowed.until <= now.as_micros() / 1_000_000 {
            return Err(UrlError::Expired);
        }
        if !allowed.right.covers(method) {
            return Err(UrlError::Method);
        }
        Ok(allowed)
    }
}

fn message(allowed: &Allowed) -> String {
    let Allowed { right, object, scope, until, longest } = allowed;
    format!("forgeyard-cache-url-v1\n{}\n{object}\n{scope}\n{until}\n{longest}", right.as_str())
}

fn encode(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn allowed() -> Allowed {
        let scope = "p/main".parse().unwrap();
        Allowed { right: Right::Upload, object: "ab12".to_owned(), scope, until: 2000, longest: 99 }
    }

    fn parts(url: &Secret) -> (String, String) {
        let (path, query) = url.expose().strip_prefix("http://h").unwrap().split_once('?').unwrap();
        (path.to_owned(), query.to_owned())
    }

    #[test]
    fn url_allows_what_it_says_and_does_not_print() {
        let signer = Signer::new(&[7; 32]);
        let url = signer.sign("http://h", &allowed(), Some("a b/..zip"));
        let (path, query) = parts(&url);
        assert_eq!(path, "/-/github/ab12/a%20b%2F..zip");
        assert_eq!(signer.check(Method::Put, &path, &query, NOW), Ok(allowed()));
        let more = format!("comp=block&blockid=YQ%3D%3D&{query}");
        assert_eq!(
            signer.check(Method::Put, &path, &more, NOW),
            Ok(allowed()),
            "Azure's clients add parameters"
        );
        assert_eq!(signer.check(Method::Get, &path, &query, NOW), Err(UrlError::Method));
        let late = Timestamp::from_micros(2_000_000_000);
        assert_eq!(signer.check(Method::Put, &path, &query, late), Err(UrlError::Expired));
        assert!(!format!("{url:?} {url}").contains("sig"));
    }

    #[test]
    fn every_part_of_a_url_is_signed() {
        let signer = Signer::new(&[7; 32]);
        let (path, query) = parts(&signer.sign("http://h", &allowed(), None));
        let changed = [
            (path.replace("ab12", "ab13"), query.clone()),
            (path.clone(), query.replace("sp=u", "sp=d")),
            (path.clone(), query.replace("main", "pr")),
            (path.clone(), query.replace("se=2000", "se=9000")),
            (path.clone(), query.replace("sl=99", "sl=100")),
            (path.clone(), query.replace("sl=99", "sl=099")),
        ];
        for (path, query) in changed.iter().take(5) {
            assert_eq!(
                signer.check(Method::Put, path, query, NOW),
                Err(UrlError::Signature),
                "{path}?{query}"
            );
        }
        let (path, query) = parts(&Signer::new(&[8; 32]).sign("http://h", &allowed(), None));
        assert_eq!(signer.check(Method::Put, &path, &query, NOW), Err(UrlError::Signature));
    }

    proptest! {
        #[test]
        fn any_url_is_refused_without_a_panic(path in "(/-/github/)?\\PC{0,30}", query in "(s[pcel]=[^&]{0,9}&){0,5}sig=\\PC{0,50}") {
            let signer = Signer::new(&[7; 32]);
            prop_assert!(signer.check(Method::Put, &path, &query, NOW).is_err());
        }

        #[test]
        fn changed_signature_never_holds(at in 0usize..43, with in "[A-Za-z0-9_-]") {
            let signer = Signer::new(&[7; 32]);
            let (path, query) = parts(&signer.sign("http://h", &allowed(), None));
            let mut changed = query.clone();
            let from = query.len() - 43 + at;
            changed.replace_range(from..=from, &with);
            prop_assume!(changed != query);
            prop_assert!(signer.check(Method::Put, &path, &changed, NOW).is_err());
        }
    }
}
