//! The relay: takes requests on loopback, checks its own secret, passes them on with the token, or answers itself.
//!
//! Bodies are passed on as they come, in both directions, without being kept. A request that the cache did not begin to answer in
//! time counts as silence ([`Health`]), and so does a cache that shows no sign of life at all ([`Pulse`]), much earlier; an answer that
//! stops in the middle is cut off, which every client takes for a miss.
//! Credentials of the job never go to the cache, and the token of the cache never to the job.

use super::answers::{counted_on, without};
use super::counts::{Counters, Counts, client_of};
use super::health::{Health, Went};
use super::prompt::Prompt;
use super::pulse::Pulse;
use base64::Engine as _;
use forgeyard_api::client::{ClientError, HttpOptions, http};
use forgeyard_model::Secret;
use forgeyard_model::verdict::{CacheClient, CacheCold};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use reqwest::Body;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How long the cache may take until it begins to answer, beyond the time for what is sent to it.
const ANSWER: Duration = Duration::from_secs(2);
/// Slowest way to the cache, in bytes a second: a large body has so much more time.
const SLOWEST: u64 = 1 << 20;
/// How long the next bytes of an answer may take.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a connection to the cache may take.
const CONNECT: Duration = Duration::from_secs(1);
/// How long one answer may take as a whole.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Said of a write that was thrown away.
const DISCARDED: &str = "forgeyard-discarded";

/// Where the cache is and what opens it.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Its address.
    pub address: String,
    /// The token; without one only public scopes are read.
    pub token: Option<Secret>,
    /// Certificate authorities to trust at that address beside those of the system, in PEM.
    pub ca: Option<String>,
}

/// The cache that requests are passed on to.
struct Connected {
    address: String,
    token: Option<Secret>,
    client: reqwest::Client,
}

impl Connected {
    /// What the cache says to a small question, when all of its answer comes in this time.
    async fn asked(&self, within: Duration) -> Result<StatusCode, reqwest::Error> {
        let url = format!("{}/-/nix/nix-cache-info", self.address);
        let answered = self.client.get(url).timeout(within).send().await?;
        let status = answered.status();
        answered.bytes().await.map(|_| status)
    }
}

struct Shared {
    options: HttpOptions,
    secret: Secret,
    upstream: RwLock<Option<Arc<Connected>>>,
    health: Health,
    pulse: Pulse,
    counters: Counters,
}

/// A relay that runs; it ends when it is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Why there is no relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The address.
    #[error("the relay of the cache cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
}

impl Relay {
    /// Makes one that listens nowhere yet. Without [`Relay::connect`] it is an empty cache.
    pub fn new(secret: Secret, options: &HttpOptions) -> Self {
        let options = HttpOptions { connect_timeout: CONNECT, timeout: LONGEST, ..options.clone() };
        let shared = Arc::new(Shared {
            options,
            secret,
            upstream: RwLock::default(),
            health: Health::default(),
            pulse: Pulse::default(),
            counters: Counters::default(),
        });
        Self { shared, tasks: Mutex::default() }
    }

    /// Listens here too. Needs the runtime of tokio.
    pub fn listen(&self, listener: std::net::TcpListener) -> std::io::Result<SocketAddr> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(accept(TcpListener::from_std(listener)?, Arc::clone(&self.shared)));
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        Ok(address)
    }

    /// From now on it passes requests on to this cache. Fails when its authorities are of no use; it stays as it was then.
    pub fn connect(&self, upstream: Upstream) -> Result<(), ClientError> {
        let Upstream { address, token, ca } = upstream;
        let client = http::build(&HttpOptions { ca, ..self.shared.options.clone() })?;
        let address = address.trim_end_matches('/').to_owned();
        let connected = Arc::new(Connected { address, token, client });
        *self.shared.upstream.write().unwrap_or_else(PoisonError::into_inner) = Some(connected);
        Ok(())
    }

    /// What went through it.
    pub fn counts(&self) -> Counts {
        self.shared.counters.sum(self.shared.health.breaks())
    }

    /// The same for each client that came.
    pub fn clients(&self) -> Vec<CacheClient> {
        self.shared.counters.clients()
    }

    /// Why the cache brought less than it should: what the budget of the scope says when it is missed, which is asked of the cache, or that
    /// the cache went away.
    pub async fn cold(&self) -> Option<CacheCold> {
        self.budget().await.or_else(|| self.away())
    }

    async fn budget(&self) -> Option<CacheCold> {
        #[derive(serde::Deserialize)]
        struct Said {
            verdict: serde_json::Value,
            text: String,
        }
        let upstream = self.shared.upstream()?;
        if self.shared.health.broken() {
            return None;
        }
        let url = format!("{}/-/budget", upstream.address);
        let token = upstream.token.as_ref()?;
        let asked = upstream.client.get(url).bearer_auth(token.expose()).timeout(ANSWER);
        let answered = asked.send().await.ok()?.error_for_status().ok()?;
        let said: Said = serde_json::from_str(&answered.text().await.ok()?).ok()?;
        let cause = said.verdict.get("cold")?.as_str()?.to_owned();
        Some(CacheCold { cause, text: said.text })
    }

    fn away(&self) -> Option<CacheCold> {
        let why = self.shared.health.why()?;
        let Counts { alone, breaks, .. } = self.counts();
        let times = if breaks == 1 { "once".to_owned() } else { format!("{breaks} times") };
        let now = if self.shared.health.broken() { "it is still away" } else { "it is back" };
        let text = format!(
            "the cache went away {times}, the last time because of: {why}; {alone} requests did without it, and {now}. See on its \
             host whether it runs, and from here whether it is reached"
        );
        Some(CacheCold { cause: "away".to_owned(), text })
    }
}

impl Shared {
    fn upstream(&self) -> Option<Arc<Connected>> {
        self.upstream.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No file descriptors, most likely: those that are open end sometime.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (stream, awaited) = Prompt::new(stream);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                awaited.store(!request.body().is_end_stream(), Ordering::Relaxed);
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(answer(&shared, request).await) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.header_read_timeout(None);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The credential in an `Authorization` header: Bearer, the password of Basic, or the access key of a request to S3.
fn credential(header: &HeaderValue) -> Option<String> {
    let (scheme, rest) = header.to_str().ok()?.trim().split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if scheme == "AWS4-HMAC-SHA256" {
        let found = rest.split(',').find_map(|part| part.trim().strip_prefix("Credential="))?;
        return found.split('/').next().map(str::to_owned);
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let decoded = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(rest).ok()?).ok()?;
        return decoded.split_once(':').map(|(_, password)| password.to_owned());
    }
    None
}

/// Compares without telling by its time where two texts differ.
fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Whether a request is of the job. Addresses that the cache signed carry their own proof.
fn known(shared: &Shared, path: &str, headers: &HeaderMap) -> bool {
    let sent = headers.get(header::AUTHORIZATION).and_then(credential);
    let ends = |sent: &str| same(sent.rsplit('.').next().unwrap_or_default(), shared.secret.expose());
    sent.as_deref().is_some_and(ends) || path.starts_with("/-/github/")
}

fn plain(status: u16, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Answers in the place of the cache, after all of the body is read: an answer before that confuses Bazel.
async fn alone(
    shared: &Shared,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: Option<Incoming>,
) -> Response<Body> {
    if !path.ends_with("/.sccache_check") {
        shared.counters.alone();
    }
    if let Some(mut body) = body {
        while let Some(Ok(_)) = body.frame().await {}
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let protobuf = kind.is_some_and(|kind| kind.starts_with("application/protobuf"));
    let answer = without(method.as_str(), path, protobuf);
    let mut response = plain(answer.status, answer.kind, answer.body);
    response.headers_mut().insert(HeaderName::from_static(DISCARDED), HeaderValue::from_static("1"));
    response
}

/// Headers of one connection and not of the message.
fn passed_on(name: &HeaderName) -> bool {
    !matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "proxy-connection"
            | "authorization"
            | "expect"
    )
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if !known(shared, &path, &parts.headers) {
        // 403 and not 401: clients would ask for a password.
        return plain(403, "text/plain", "this relay is for another job\n".to_owned());
    }
    let upstream = shared.upstream();
    if let Some(upstream) = &upstream
        && counted_on(parts.method.as_str(), &path)
    {
        ready(shared, upstream).await;
    }
    // sccache reads this before anything else and does not start when the answer is not one; it never is an entry.
    let first = parts.method == Method::GET && path.ends_with("/.sccache_check");
    let Some(upstream) = upstream.filter(|_| !shared.health.broken() && !first) else {
        return alone(shared, &parts.method, &path, &parts.headers, Some(body)).await;
    };
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let url = format!("{}{target}", upstream.address);
    let mut headers: HeaderMap = parts
        .headers
        .iter()
        .filter(|(name, _)| passed_on(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if !path.starts_with("/-/github/")
        && let Some(token) = &upstream.token
        && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
    {
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    let mut sent = upstream.client.request(parts.method.clone(), url).headers(headers);
    let size = body.size_hint().upper();
    let takes = ANSWER + Duration::from_secs(size.map_or(3600, |size| size / SLOWEST));
    let (bare, begun) = (body.is_end_stream(), Instant::now());
    if !bare {
        let beats = Arc::clone(shared);
        // What is taken is a sign of life.
        sent = sent.body(Body::wrap(body.map_frame(move |frame| {
            beats.pulse.beat();
            frame
        })));
    }
    let answered = tokio::select! {
        answered = sent.send() => answered,
        () = stops(shared, &upstream) => return alone(shared, &parts.method, &path, &parts.headers, None).await,
        () = tokio::time::sleep(takes) => {
            trouble(shared, Went::Silent, &"it does not begin to answer in time");
            return alone(shared, &parts.method, &path, &parts.headers, None).await;
        }
    };
    let answered = match answered {
        Ok(answered) if answered.status().as_u16() < 500 => answered,
        Ok(answered) => {
            trouble(shared, Went::Error, &answered.status());
            return alone(shared, &parts.method, &path, &parts.headers, None).await;
        }
        Err(error) => {
            // A body that the job did not finish is no trouble of the cache.
            let went = if error.is_body() { Went::Error } else { Went::Gone };
            // an address that the cache signed is as good as a token
            trouble(shared, went, &http::causes(&error.without_url()));
            return alone(shared, &parts.method, &path, &parts.headers, None).await;
        }
    };
    if bare {
        shared.pulse.took(begun.elapsed());
    } else {
        shared.pulse.beat();
    }
    if parts.method == Method::HEAD || answered.content_length() == Some(0) {
        // that is all there is: its body is not even looked at
        shared.health.well();
    }
    let client = client_of(&path);
    let discarded = answered.headers().contains_key(DISCARDED);
    shared.counters.count(client, &parts.method, &path, answered.status(), discarded, size);
    back(Arc::clone(shared), answered, client)
}

/// What came from the cache, to the job.
fn back(shared: Arc<Shared>, answered: reqwest::Response, client: usize) -> Response<Body> {
    let status = answered.status();
    let found = status.is_success();
    let headers: HeaderMap = answered
        .headers()
        .iter()
        .filter(|(name, _)| passed_on(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let pieces = futures::stream::unfold(Some((shared, answered)), move |state| async move {
        let (shared, mut answered) = state?;
        match tokio::time::timeout(PAUSE, answered.chunk()).await {
            Ok(Ok(Some(piece))) => {
                shared.pulse.beat();
                if found {
                    shared.counters.received(client, piece.len() as u64);
                }
                Some((Ok(piece), Some((shared, answered))))
            }
            Ok(Ok(None)) => {
                shared.health.well();
                None
            }
            Ok(Err(error)) => {
                let error = error.without_url();
                trouble(&shared, Went::Error, &http::causes(&error));
                Some((Err(std::io::Error::other(error)), None))
            }
            Err(_) => {
                trouble(&shared, Went::Silent, &"its answer stops in the middle");
                Some((Err(std::io::Error::from(std::io::ErrorKind::TimedOut)), None))
            }
        }
    });
    let mut response = Response::new(Body::wrap_stream(pieces));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Takes note of trouble and why; the first to see it starts the probe.
fn trouble(shared: &Arc<Shared>, went: Went, why: &dyn std::fmt::Display) {
    let why = why.to_string();
    let Some(mut pause) = shared.health.note(went, &why, Instant::now()) else { return };
    tracing::warn!("the build cache does not answer; the job goes on without it: {why}");
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause).await;
            // The relay is over, and so is its probe.
            let Some(shared) = shared.upgrade() else { return };
            let Some(upstream) = shared.upstream() else { return };
            if upstream.asked(ANSWER).await.is_ok_and(|status| status.as_u16() < 500) {
                shared.health.mend(Instant::now());
                tracing::info!("the build cache answers again");
                return;
            }
            pause = shared.health.patience(Instant::now());
        }
    });
}

/// Whether a cache of which nothing was heard for a while answers a small question.
async fn lives(shared: &Arc<Shared>, upstream: &Connected) -> bool {
    match upstream.asked(shared.pulse.patience()).await {
        Ok(_) => shared.pulse.beat(),
        Err(error) if error.is_timeout() => trouble(shared, Went::Silent, &"it shows no sign of life"),
        Err(error) => trouble(shared, Went::Gone, &http::causes(&error.without_url())),
    }
    !shared.health.broken()
}

/// Before a body that can be sent only once: sees whether there is somebody to take it, and waits for a cache that may be back soon.
async fn ready(shared: &Arc<Shared>, upstream: &Connected) {
    if !shared.health.broken() && !shared.pulse.felt() {
        lives(shared, upstream).await;
    }
    while shared.health.passes(Instant::now()) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ends when the cache shows no sign of life, or when somebody else found that. While it shows one, this goes on for ever.
async fn stops(shared: &Arc<Shared>, upstream: &Connected) {
    let begun = Instant::now();
    loop {
        shared.pulse.silence(begun).await;
        // one asks for all that wait
        let _asks = shared.pulse.asks().await;
        if shared.health.broken() {
            return;
        }
        if shared.pulse.quiet(begun).is_some() {
            continue;
        }
        if !lives(shared, upstream).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_every_client_are_found() {
        let of = |text: &str| credential(&HeaderValue::from_str(text).unwrap());
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("Basic am9iOmFiYw==").as_deref(), Some("abc"));
        let s3 =
            "AWS4-HMAC-SHA256 Credential=abc/20260101/auto/s3/aws4_request, SignedHeaders=host, Signature=0";
        assert_eq!(of(s3).as_deref(), Some("abc"));
        assert_eq!(of("Digest abc"), None);
        assert!(same("abc", "abc") && !same("abc", "abd") && !same("abc", "ab"));
    }
}
