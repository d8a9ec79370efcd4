//! Typed HTTP client. One method per route, in one file per subject.

mod environments;

use crate::ApiError;
use forgeyard_model::Secret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Largest answer that is read into memory.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Time for a question that does not wait on purpose.
const USUAL: Duration = Duration::from_secs(60);

/// An error of the client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client cannot be made.
    #[error("the client could not be made: {0}")]
    Setup(String),
    /// No answer came.
    #[error("{action} failed: no answer from the farm")]
    Unreachable {
        /// What was asked.
        action: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The farm said no.
    #[error("{0}")]
    Refused(ApiError),
    /// The answer is not what this version of the client understands.
    #[error("{action}: the answer cannot be understood: {reason}")]
    Answer {
        /// What was asked.
        action: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A client of one farm. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<Secret>,
}

impl Client {
    /// A client of the farm at this base URL; with a further certificate authority, PEM.
    pub fn new(base: &str, token: Option<Secret>, ca: Option<&[u8]>) -> Result<Self, ClientError> {
        // The error says that a provider is set already, which is just as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url: reqwest::Url =
            base.parse().map_err(|error| ClientError::Setup(format!("`{base}`: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ClientError::Setup(format!("`{base}` is not an HTTP URL")));
        }
        let setup = |error: reqwest::Error| ClientError::Setup(error.to_string());
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("forgeyard/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(20))
            // A redirect would carry the token to a place that nobody named.
            .redirect(reqwest::redirect::Policy::none());
        if let Some(ca) = ca {
            builder = builder.tls_certs_merge(reqwest::Certificate::from_pem_bundle(ca).map_err(setup)?);
        }
        let http = builder.build().map_err(setup)?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned(), token })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, wait: Duration) -> Result<T, ClientError> {
        let request = self.http.get(format!("{}{path}", self.base)).timeout(USUAL.saturating_add(wait));
        let bytes = self.answer(format!("GET {path}"), request).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| ClientError::Answer { action: format!("GET {path}"), reason: error.to_string() })
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        let request = self.http.post(format!("{}{path}", self.base)).timeout(USUAL).json(body);
        self.answer(format!("POST {path}"), request).await.map(|_| ())
    }

    async fn answer(&self, action: String, request: reqwest::RequestBuilder) -> Result<Vec<u8>, ClientError> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        };
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(source) => return Err(ClientError::Unreachable { action, source }),
        };
        let status = response.status();
        let mut bytes = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if bytes.len() + chunk.len() > MAX_ANSWER => {
                    return Err(ClientError::Answer {
                        action,
                        reason: format!("more than {MAX_ANSWER} bytes"),
                    });
                }
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(source) => return Err(ClientError::Unreachable { action, source }),
            }
        }
        if status.is_success() {
            return Ok(bytes);
        }
        match serde_json::from_slice::<ApiError>(&bytes) {
            Ok(error) => Err(ClientError::Refused(error)),
            Err(_) => {
                Err(ClientError::Answer { action, reason: format!("status {status} without an explanation") })
            }
        }
    }
}
