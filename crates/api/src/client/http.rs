//! What all clients share: one connection pool with one TLS stack, and one way to read an answer.
//!
//! Invariants: an answer is read up to a limit; a token is only ever put into the `Authorization` header; an error
//! names the method and the address.

use crate::error::{ApiError, ErrorKind};
use bytes::BytesMut;
use reqwest::{Client, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::time::Duration;

/// The largest answer that a client reads, in bytes.
pub const MAX_ANSWER: usize = 32 << 20;

/// How a client connects.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// A file with further certificate authorities to trust, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Further certificate authorities to trust, in PEM.
    pub ca: Option<String>,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long a whole call may take, unless the call itself says otherwise.
    pub timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            ca_file: None,
            ca: None,
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
        }
    }
}

/// What can go wrong in a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client could not be set up.
    #[error("cannot set up the HTTP client: {reason}")]
    Setup {
        /// Why.
        reason: String,
    },
    /// The farm answered with an error.
    #[error("{call}: {error}")]
    Refused {
        /// Method and address.
        call: String,
        /// What the farm said.
        #[source]
        error: Box<ApiError>,
    },
    /// There was no answer.
    #[error("{call}: no answer")]
    Transport {
        /// Method and address.
        call: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The answer is not what the contract says.
    #[error("{call}: cannot understand the answer: {reason}")]
    Answer {
        /// Method and address.
        call: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ClientError {
    /// What kind of refusal it is, if the farm refused.
    pub fn refusal(&self) -> Option<ErrorKind> {
        match self {
            ClientError::Refused { error, .. } => Some(error.kind),
            _ => None,
        }
    }
}

/// Builds the connection pool.
pub fn build(options: &HttpOptions) -> Result<Client, ClientError> {
    // Another part of the process may have chosen the provider already; both choose the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .connect_timeout(options.connect_timeout)
        .timeout(options.timeout)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("forgeyard/", env!("CARGO_PKG_VERSION")));
    if let Some(file) = &options.ca_file {
        let setup = |reason: String| ClientError::Setup { reason: format!("{}: {reason}", file.display()) };
        let pem = std::fs::read(file).map_err(|error| setup(error.to_string()))?;
        builder = builder.tls_certs_merge(authorities(&pem).map_err(setup)?);
    }
    if let Some(pem) = &options.ca {
        let setup = |reason| ClientError::Setup { reason: format!("certificate authorities: {reason}") };
        builder = builder.tls_certs_merge(authorities(pem.as_bytes()).map_err(setup)?);
    }
    builder.build().map_err(|error| ClientError::Setup { reason: causes(&error) })
}

/// Certificate authorities of a text in PEM, or why it has none.
pub fn authorities(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, String> {
    let all = reqwest::Certificate::from_pem_bundle(pem).map_err(|error| error.to_string())?;
    if all.is_empty() { Err("holds no certificate".to_owned()) } else { Ok(all) }
}

/// Base address without the slash at its end.
pub fn base(url: &str) -> Result<String, ClientError> {
    let trimmed = url.trim_end_matches('/');
    match reqwest::Url::parse(trimmed) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") => Ok(trimmed.to_owned()),
        _ => Err(ClientError::Setup { reason: format!("`{url}` is not an http or https address") }),
    }
}

/// Sends the request and reads its answer as JSON. `call` names it in errors.
pub async fn json<T: DeserializeOwned>(call: String, request: RequestBuilder) -> Result<T, ClientError> {
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(source) => return Err(ClientError::Transport { call, source: source.without_url() }),
    };
    let status = answer.status();
    let body = body(&call, answer).await?;
    if status.is_success() {
        return serde_json::from_slice(&body)
            .map_err(|error| ClientError::Answer { call, reason: error.to_string() });
    }
    Err(refused(call, status, &body))
}

/// An answer that is no success, as the error that it is.
pub async fn refusal(call: String, answer: Response) -> ClientError {
    let status = answer.status();
    match body(&call, answer).await {
        Ok(body) => refused(call, status, &body),
        Err(error) => error,
    }
}

fn refused(call: String, status: reqwest::StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ApiError>(body) {
        Ok(error) => ClientError::Refused { call, error: Box::new(error) },
        // A proxy answers in its own words.
        Err(_) => {
            let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
            ClientError::Answer { call, reason: format!("status {status}, body `{text}`") }
        }
    }
}

/// The query of an address, with its question mark; empty without pairs.
pub fn query<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    text.push(char::from(byte));
                }
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    text
}

async fn body(call: &str, mut answer: Response) -> Result<BytesMut, ClientError> {
    let mut body = BytesMut::new();
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_ANSWER => body.extend_from_slice(&chunk),
            Ok(Some(_)) => {
                let reason = format!("it is larger than {MAX_ANSWER} bytes");
                return Err(ClientError::Answer { call: call.to_owned(), reason });
            }
            Ok(None) => return Ok(body),
            Err(source) => {
                return Err(ClientError::Transport { call: call.to_owned(), source: source.without_url() });
            }
        }
    }
}

/// An error with all its causes in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_addresses_are_taken_and_a_slash_at_the_end_does_not_matter() {
        assert_eq!(base("https://farm.example/").unwrap(), "https://farm.example");
        for url in ["farm.example", "ftp://farm.example", "", "http://"] {
            assert!(base(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_query_holds_any_text() {
        let pairs = [("subject", "a b&c=ä"), ("before", "evt_1")];
        assert_eq!(query(pairs.into_iter()), "?subject=a%20b%26c%3D%C3%A4&before=evt_1");
        assert_eq!(query(std::iter::empty()), "");
    }

    #[test]
    fn a_certificate_file_that_cannot_be_used_is_named() {
        let options = HttpOptions { ca_file: Some("/nowhere/ca.pem".into()), ..HttpOptions::default() };
        let error = build(&options).unwrap_err().to_string();
        assert!(error.contains("/nowhere/ca.pem"), "{error}");
        let options = HttpOptions { ca: Some("no certificate".to_owned()), ..HttpOptions::default() };
        let error = build(&options).unwrap_err().to_string();
        assert!(error.contains("certificate authorities: holds no certificate"), "{error}");
    }
}
