//! One exchange over HTTP: what goes out, what comes back. No policy: no token is chosen and nothing is repeated
//! here.
//!
//! Invariants: an answer is read up to a limit; a redirect is never followed by the library; an error names the
//! method and the path, and neither query nor token.

use super::error::{GithubError, Silence};
use bytes::BytesMut;
use forgeyard_model::Secret;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Method, Url};
use std::path::PathBuf;
use std::time::Duration;

/// The largest answer that is read, in bytes. A page of 100 jobs with their steps has one or two million.
const MAX_ANSWER: usize = 32 << 20;

/// How the client connects.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// A file with further certificate authorities to trust, in PEM.
    pub ca_file: Option<PathBuf>,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long a whole call may take. Long polls have a limit of their own.
    pub timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { ca_file: None, connect_timeout: Duration::from_secs(10), timeout: Duration::from_secs(30) }
    }
}

/// How a caller proves itself.
#[derive(Debug, Clone)]
pub(crate) enum Proof {
    /// `Bearer`: App tokens, installation tokens, tokens of the actions service.
    Bearer(Secret),
    /// `RemoteAuth`: a registration token at the door of the actions service.
    RemoteAuth(Secret),
    /// A code in the path, good for one call.
    InPath,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Name for errors: method and path.
    pub(crate) call: String,
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) proof: Proof,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<serde_json::Value>,
    pub(crate) timeout: Option<Duration>,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) call: String,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: BytesMut,
}

/// The connection pool, or the way to a simulated GitHub in the same process.
#[derive(Clone)]
pub(crate) enum Wire {
    Http(Client),
    #[cfg(feature = "twin")]
    Direct(crate::twin::Direct),
}

impl Wire {
    pub(crate) fn new(options: &HttpOptions) -> Result<Self, GithubError> {
        // Another part of the process may have chosen the provider already; both choose the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let setup = |what: String| move |reason: String| GithubError::Setup { what, reason };
        let mut builder = Client::builder()
            .connect_timeout(options.connect_timeout)
            .timeout(options.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("forgeyard/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &options.ca_file {
            let wrong = setup(format!("certificates `{}`", file.display()));
            let read = std::fs::read(file).map_err(|error| error.to_string()).and_then(|pem| {
                let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string())?;
                if found.is_empty() { Err("the file holds no certificate".to_owned()) } else { Ok(found) }
            });
            builder = builder.tls_certs_merge(read.map_err(wrong)?);
        }
        let client = builder.build().map_err(|error| setup("connections".to_owned())(error.to_string()))?;
        Ok(Self::Http(client))
    }

    /// Sends a request and reads its answer. An error means that there was none.
    pub(crate) async fn exchange(&self, request: Request) -> Result<Answer, GithubError> {
        let client = match self {
            Self::Http(client) => client,
            #[cfg(feature = "twin")]
            Self::Direct(direct) => return directly(direct, request).await,
        };
        let Request { call, method, url, proof, headers, body, timeout } = request;
        let mut builder = client.request(method, url);
        if let Some(proof) = authorization(&proof) {
            builder = builder.header(AUTHORIZATION, proof);
        }
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        if let Some(body) = &body {
            builder = builder.json(body);
        }
        if let Some(timeout) = timeout {
            builder = builder.timeout(timeout);
        }
        let lost = |source: reqwest::Error| GithubError::Transport {
            call: call.clone(),
            source: Silence::Connection(source.without_url()),
        };
        let mut response = builder.send().await.map_err(lost)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                let reason = format!("it is larger than {MAX_ANSWER} bytes");
                return Err(GithubError::Answer { call, field: ".".to_owned(), reason });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { call, status, headers, body })
    }
}

/// The same exchange with a simulated GitHub, without sockets.
#[cfg(feature = "twin")]
async fn directly(direct: &crate::twin::Direct, request: Request) -> Result<Answer, GithubError> {
    let Request { call, method, url, proof, headers, body, timeout: _ } = request;
    let mut asked = crate::twin::Request::new(method.as_str(), &crate::twin::decoded(url.path()));
    asked.query = url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    for (name, value) in &headers {
        asked = asked.header(name, value);
    }
    if let Some(proof) = authorization(&proof).as_ref().and_then(|proof| proof.to_str().ok()) {
        asked = asked.header("authorization", proof);
    }
    if let Some(body) = &body {
        asked = asked.json(body);
    }
    let Some(reply) = direct(asked).await else {
        return Err(GithubError::Transport { call, source: Silence::Simulated });
    };
    let mut headers = HeaderMap::new();
    for (name, value) in &reply.headers {
        let name = reqwest::header::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    Ok(Answer { call, status: reply.status, headers, body: BytesMut::from(reply.body.as_slice()) })
}

fn authorization(proof: &Proof) -> Option<HeaderValue> {
    let text = match proof {
        Proof::Bearer(token) => format!("Bearer {}", token.expose()),
        Proof::RemoteAuth(token) => format!("RemoteAuth {}", token.expose()),
        Proof::InPath => return None,
    };
    // A token with a line break in it cannot be sent; GitHub answers 401 to an empty one, which is the right error.
    let mut value = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    Some(value)
}
