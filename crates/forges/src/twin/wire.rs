//! One HTTP/1.1 call over a fresh connection to this machine: for webhooks, the stand-in runner and tests. Only `http`.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;

/// Why a call got no answer.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The address is not one of plain `http`.
    #[error("`{0}` is not an address of plain http")]
    Address(String),
    /// No connection, or it was closed before the whole answer came.
    #[error("no answer from `{url}`: {why}")]
    Closed {
        /// The address.
        url: String,
        /// Why.
        why: String,
    },
    /// It took too long.
    #[error("the call to `{url}` timed out after {} s", .limit.as_secs())]
    Timeout {
        /// The address.
        url: String,
        /// How long it might take.
        limit: Duration,
    },
}

/// An answer.
#[derive(Debug, Clone)]
pub struct WireAnswer {
    /// Status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// Calls an address and waits at most `limit` in real time.
pub async fn call(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
    limit: Duration,
) -> Result<WireAnswer, WireError> {
    match tokio::time::timeout(limit, exchange(method, url, headers, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(WireError::Timeout { url: url.to_owned(), limit }),
    }
}

async fn exchange(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Result<WireAnswer, WireError> {
    let closed = |why: String| WireError::Closed { url: url.to_owned(), why };
    let uri: hyper::Uri = url.parse().map_err(|_| WireError::Address(url.to_owned()))?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or_else(|| WireError::Address(url.to_owned()))?;
    let port = authority.port_u16().unwrap_or(80);
    let stream =
        TcpStream::connect((authority.host(), port)).await.map_err(|error| closed(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| closed(error.to_string()))?;
    let connection = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = hyper::Request::builder().method(method).uri(path).header("host", authority.as_str());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| closed(error.to_string()))?;
    let answer = sender.send_request(request).await.map_err(|error| closed(error.to_string()))?;
    let status = answer.status().as_u16();
    let headers = answer
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let body = answer.into_body().collect().await.map_err(|error| closed(error.to_string()))?;
    connection.abort();
    Ok(WireAnswer { status, headers, body: body.to_bytes().to_vec() })
}
