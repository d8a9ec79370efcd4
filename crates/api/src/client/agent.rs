//! `/agent/v1`, from the agent's side.
//!
//! Every call after [`AgentClient::redeem`] carries the session token as a bearer token and the fence as a header.
//! Nothing is retried here: the caller knows what may wait and what must stop.

use super::http::{self, ClientError, HttpOptions};
use crate::agent::{
    self, CacheAccess, Finish, Heartbeat, HeartbeatAnswer, LogAnswer, Redeem, Redeemed, RunnerConfig,
    RunnerConfigRequest, RunnerTook, Wait, Waited,
};
use crate::error::{ApiError, ErrorKind};
use bytes::Bytes;
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::verdict::ExitFacts;
use forgeyard_model::{AttemptId, Digest, Secret};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header};
use std::time::Duration;

/// Header that carries the fence of the attempt.
pub const FENCE: &str = "forgeyard-fence";

/// Time that one call with a large body may take; a broken transfer is taken up again, so this is only a stop.
const TRANSFER: Duration = Duration::from_secs(3600);

/// What a call that waits at the farm may take beyond its wait.
const POLL_MARGIN: Duration = Duration::from_secs(15);

/// Who calls: the attempt, its fence and the session token.
#[derive(Debug, Clone)]
pub struct Session {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence.
    pub fence: u32,
    /// Token of every call.
    pub token: Secret,
}

/// Client of one agent.
#[derive(Debug, Clone)]
pub struct AgentClient {
    http: Client,
    base: String,
}

impl AgentClient {
    /// A client for the farm at this address.
    pub fn new(base: &str, options: &HttpOptions) -> Result<Self, ClientError> {
        Ok(Self { http: http::build(options)?, base: http::base(base)? })
    }

    /// Redeems the one-shot token. The same nonce may ask again until the first heartbeat.
    pub async fn redeem(&self, request: &Redeem) -> Result<Redeemed, ClientError> {
        let (call, builder) = self.request(Method::POST, agent::REDEEM.to_owned());
        http::json(call, builder.json(request)).await
    }

    /// Asks for work, for a machine that was made before there was some.
    pub async fn wait(&self, request: &Wait) -> Result<Waited, ClientError> {
        let (call, builder) = self.request(Method::POST, agent::WAIT.to_owned());
        let wait = Duration::from_secs(request.wait_seconds).saturating_add(POLL_MARGIN);
        http::json(call, builder.timeout(wait).json(request)).await
    }

    /// Says that the agent lives, and learns whether to stop.
    pub async fn heartbeat(
        &self,
        session: &Session,
        step: Option<&str>,
    ) -> Result<HeartbeatAnswer, ClientError> {
        self.heartbeat_of_quiet(session, step, None).await
    }

    /// The same, of a runner program that has been alone in its machine for so many seconds.
    pub async fn heartbeat_of_quiet(
        &self,
        session: &Session,
        step: Option<&str>,
        quiet_seconds: Option<u64>,
    ) -> Result<HeartbeatAnswer, ClientError> {
        let (call, builder) = self.call(session, Method::POST, agent::HEARTBEAT);
        let body = Heartbeat { fence: session.fence, step: step.map(str::to_owned), quiet_seconds };
        http::json(call, builder.json(&body)).await
    }

    /// Sends log bytes that begin at `offset`. Bytes that the farm has already are ignored there.
    pub async fn log(&self, session: &Session, offset: u64, bytes: Bytes) -> Result<LogAnswer, ClientError> {
        let (call, builder) = self.call(session, Method::POST, &format!("{}?offset={offset}", agent::LOG));
        http::json(call, builder.header(header::CONTENT_TYPE, "application/octet-stream").body(bytes)).await
    }

    /// Begins to download an input from byte `from`.
    pub async fn blob(&self, session: &Session, digest: Digest, from: u64) -> Result<Download, ClientError> {
        let path = agent::BLOB.replace("{digest}", &digest.to_string());
        let (call, mut builder) = self.call(session, Method::GET, &path);
        builder = builder.timeout(TRANSFER);
        if from > 0 {
            builder = builder.header(header::RANGE, format!("bytes={from}-"));
        }
        let answer = match builder.send().await {
            Ok(answer) => answer,
            Err(source) => return Err(ClientError::Transport { call, source: source.without_url() }),
        };
        match answer.status() {
            StatusCode::OK => Ok(Download { call, answer, starts_at: 0 }),
            StatusCode::PARTIAL_CONTENT => Ok(Download { call, answer, starts_at: from }),
            status => Err(refusal(call, status, answer).await),
        }
    }

    /// Uploads the bytes of an output; the farm verifies the digest.
    pub async fn artifact(
        &self,
        session: &Session,
        kind: ArtifactKind,
        name: &str,
        digest: Digest,
        body: tokio::fs::File,
        size: u64,
    ) -> Result<Artifact, ClientError> {
        let kind = serde_json::to_value(kind)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default();
        let path = agent::ARTIFACT.replace("{kind}", &kind).replace("{name}", &segment(name));
        let path = format!("{path}?digest={digest}");
        let (call, builder) = self.call(session, Method::PUT, &path);
        let stream = tokio_util::io::ReaderStream::with_capacity(body, 256 << 10);
        let builder = builder
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(header::CONTENT_LENGTH, size)
            .timeout(TRANSFER)
            .body(reqwest::Body::wrap_stream(stream));
        http::json(call, builder).await
    }

    /// Asks for the configuration of the forge's runner program, and waits for it at the farm. See
    /// [`RunnerConfigRequest`] for what the errors mean.
    pub async fn runner_config(
        &self,
        session: &Session,
        wait_seconds: u64,
    ) -> Result<RunnerConfig, ClientError> {
        let (call, builder) = self.call(session, Method::POST, agent::RUNNER_CONFIG);
        let body = RunnerConfigRequest { fence: session.fence, wait_seconds };
        let wait = Duration::from_secs(wait_seconds).saturating_add(POLL_MARGIN);
        http::json(call, builder.timeout(wait).json(&body)).await
    }

    /// Asks for the build cache. See [`CacheAccess`] for what the errors mean.
    pub async fn cache(&self, session: &Session) -> Result<CacheAccess, ClientError> {
        let (call, builder) = self.call(session, Method::GET, agent::CACHE);
        http::json(call, builder).await
    }

    /// Says which job the runner really took, and learns whether it may run. The fence is that of the session.
    pub async fn runner_took(
        &self,
        session: &Session,
        took: &RunnerTook,
    ) -> Result<TakenAnswer, ClientError> {
        let (call, builder) = self.call(session, Method::POST, agent::RUNNER_TOOK);
        let body = RunnerTook { fence: session.fence, ..took.clone() };
        let wait = Duration::from_secs(took.wait_seconds).saturating_add(POLL_MARGIN);
        http::json(call, builder.timeout(wait).json(&body)).await
    }

    /// Reports the end of the attempt.
    pub async fn finish(&self, session: &Session, facts: &ExitFacts) -> Result<(), ClientError> {
        let (call, builder) = self.call(session, Method::POST, agent::FINISH);
        let answer = match builder.json(&Finish { fence: session.fence, facts: facts.clone() }).send().await {
            Ok(answer) => answer,
            Err(source) => return Err(ClientError::Transport { call, source: source.without_url() }),
        };
        // The answer is empty, so it is not read as JSON.
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(refusal(call, status, answer).await),
        }
    }

    fn call(&self, session: &Session, method: Method, route: &str) -> (String, RequestBuilder) {
        let (call, builder) = self.request(method, route.replace("{attempt}", &session.attempt.to_string()));
        (call, builder.bearer_auth(session.token.expose()).header(FENCE, session.fence))
    }

    fn request(&self, method: Method, path: String) -> (String, RequestBuilder) {
        let call = format!("{method} {path}");
        (call, self.http.request(method, format!("{}{path}", self.base)))
    }
}

/// Bytes of an input on their way.
#[derive(Debug)]
pub struct Download {
    call: String,
    answer: Response,
    starts_at: u64,
}

impl Download {
    /// Offset of the first byte; 0 when the farm did not honour the range.
    pub fn starts_at(&self) -> u64 {
        self.starts_at
    }

    /// The next bytes; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.answer.chunk().await.map_err(|source| ClientError::Transport {
            call: self.call.clone(),
            source: source.without_url(),
        })
    }
}

/// An answer that is no success, as an error. The body is cut: it is only read for its explanation.
async fn refusal(call: String, status: StatusCode, mut answer: Response) -> ClientError {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > 64 << 10 {
            break;
        }
    }
    match serde_json::from_slice::<ApiError>(&body) {
        Ok(error) => ClientError::Refused { call, error: Box::new(error) },
        Err(_) => ClientError::Answer { call, reason: format!("status {status}") },
    }
}

/// Whether asking again later may help: there was no answer, a proxy answered, or the farm had trouble of its own.
pub fn transient(error: &ClientError) -> bool {
    match error {
        ClientError::Setup { .. } => false,
        ClientError::Transport { .. } | ClientError::Answer { .. } => true,
        ClientError::Refused { error, .. } => {
            matches!(error.kind, ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::NoSpace)
        }
    }
}

/// Whether the farm said that this attempt is no longer wanted.
pub fn superseded(error: &ClientError) -> bool {
    matches!(error.refusal(), Some(ErrorKind::Superseded | ErrorKind::Unauthenticated | ErrorKind::Forbidden))
}

/// A text as one segment of a path: all but unreserved characters are percent-encoded.
fn segment(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slash_stays_one_segment() {
        assert_eq!(segment("a/b c_1.0-é.conda"), "a%2Fb%20c_1.0-%C3%A9.conda");
    }

    #[test]
    fn only_own_trouble_of_the_farm_is_worth_another_try() {
        let refused = |kind| ClientError::Refused {
            call: String::new(),
            error: Box::new(ApiError::new(kind, "x", "x")),
        };
        assert!(transient(&refused(ErrorKind::Unavailable)));
        assert!(!transient(&refused(ErrorKind::Mismatch)));
        assert!(superseded(&refused(ErrorKind::Superseded)));
    }
}
