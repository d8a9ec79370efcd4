//! A storage helper of ccache (4.13 and later): a program that ccache starts once on a machine and speaks to over a socket,
//! and which keeps connections to the cache open, with TLS and with a token that may change.
//!
//! - [`protocol`]: what they say to each other.
//! - [`settings`]: what ccache starts it with.
//!
//! What keeps builds green: a key that is not here, and a write that is not allowed, are `noop`. When the cache does not
//! answer, requests are refused at once for [`PAUSE`], so a compiler does not wait for a dead cache again and again. Whoever
//! can open the socket can use the token, so it is for its owner only.

pub mod protocol;
pub mod settings;

use crate::helper::protocol::{
    ERR, GREETING, LARGEST, NOOP, OK, Parsed, ProtocolError, Request, message, parse,
};
use crate::helper::settings::Settings;
use forgeyard_model::Secret;
use reqwest::{Method, StatusCode};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long nothing is asked of a cache that did not answer.
pub const PAUSE: Duration = Duration::from_secs(10);
/// Longest wait for a connection to the cache.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest wait for the next bytes of an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a helper does not run.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The socket.
    #[error("listening on {}: {source}", path.display())]
    Listen {
        /// The socket.
        path: std::path::PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The HTTP client.
    #[error("making the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// The file of the attribute `@ca-file`.
    #[error("the certificate authority {}: {reason}", path.display())]
    Authority {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

struct Helper {
    settings: Settings,
    client: reqwest::Client,
    started: Instant,
    /// Milliseconds after the start when something was last asked, and until which nothing is asked of the cache.
    used: AtomicU64,
    down_until: AtomicU64,
    busy: AtomicU64,
    denied: AtomicBool,
    stop: CancellationToken,
}

/// Answer to a request.
enum Answer {
    Value(Vec<u8>),
    Short(u8),
    Failed(String),
}

/// A socket that nobody but its owner can open. One that a dead helper left is replaced.
fn listen(settings: &Settings) -> Result<UnixListener, HelperError> {
    let path = &settings.endpoint;
    let bind = || {
        let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
        let bound = UnixListener::bind(path);
        nix::sys::stat::umask(before);
        bound
    };
    let dead = |error: &std::io::Error| {
        error.kind() == std::io::ErrorKind::AddrInUse
            && fs_err::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
            && std::os::unix::net::UnixStream::connect(path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    let bound = match bind() {
        Err(error) if dead(&error) => fs_err::remove_file(path).and_then(|()| bind()),
        other => other,
    };
    bound.map_err(|source| HelperError::Listen { path: path.clone(), source })
}

/// Runs a helper until it is told to stop or nobody asked for long enough.
pub async fn run(settings: Settings) -> Result<(), HelperError> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .read_timeout(ANSWER)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("forgeyard-ccache-helper/", env!("CARGO_PKG_VERSION")));
    if let Some(path) = &settings.ca_file {
        let wrong = |reason: String| HelperError::Authority { path: path.clone(), reason };
        let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let trusted =
            reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
        if trusted.is_empty() {
            return Err(wrong("it holds no certificate".to_owned()));
        }
        client = client.tls_certs_merge(trusted);
    }
    let client = client.build()?;
    let listener = listen(&settings)?;
    let helper = Arc::new(Helper {
        client,
        started: Instant::now(),
        used: AtomicU64::new(0),
        down_until: AtomicU64::new(0),
        busy: AtomicU64::new(0),
        denied: AtomicBool::new(false),
        stop: CancellationToken::new(),
        settings,
    });
    loop {
        tokio::select! {
            () = helper.stop.cancelled() => break,
            () = helper.idle() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let helper = Arc::clone(&helper);
                    tokio::spawn(async move { helper.converse(stream).await });
                }
                // too many open files, say; it may get better
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
    let _ = fs_err::remove_file(&helper.settings.endpoint);
    Ok(())
}

impl Helper {
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Ends when nobody asked for as long as ccache wants to wait.
    async fn idle(&self) {
        let Some(idle) = self.settings.idle else { return std::future::pending().await };
        loop {
            let used = Duration::from_millis(self.used.load(Ordering::Relaxed));
            let end = self.started + used + idle;
            if self.busy.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            } else if end <= Instant::now() {
                return;
            } else {
                tokio::time::sleep_until(end).await;
            }
        }
    }

    async fn converse(&self, mut stream: UnixStream) {
        if let Err(error) = self.talk(&mut stream).await {
            tracing::info!("a connection of ccache ended: {error}");
        }
    }

    async fn talk(&self, stream: &mut UnixStream) -> std::io::Result<()> {
        // whoever is gone already may have said stop before
        let _ = stream.write_all(&GREETING).await;
        let mut buffer = Vec::new();
        loop {
            let wrong = |error: ProtocolError| std::io::Error::other(error);
            let length = match parse(&buffer).map_err(wrong)? {
                Parsed::Part => {
                    if stream.read_buf(&mut buffer).await? == 0 {
                        return Ok(());
                    }
                    continue;
                }
                Parsed::Whole(request, length) => {
                    if request == Request::Stop {
                        // ccache may not wait for the answer
                        let _ = stream.write_all(&[OK]).await;
                        self.stop.cancel();
                        return Ok(());
                    }
                    self.busy.fetch_add(1, Ordering::Relaxed);
                    let answer = self.answer(request).await;
                    self.busy.fetch_sub(1, Ordering::Relaxed);
                    self.used.store(self.now(), Ordering::Relaxed);
                    match answer {
                        Answer::Value(bytes) => stream.write_all(&bytes).await?,
                        Answer::Short(byte) => stream.write_all(&[byte]).await?,
                        Answer::Failed(text) => {
                            stream.write_all(&[&[ERR][..], &message(&text)].concat()).await?;
                        }
                    }
                    length
                }
            };
            buffer.drain(..length);
        }
    }

    async fn answer(&self, request: Request<'_>) -> Answer {
        let done = match request {
            Request::Info => return Answer::Value(self.info()),
            Request::Stop => return Answer::Short(OK),
            Request::Get(key) => self.ask(Method::GET, key, None).await,
            Request::Exists(key) => self.ask(Method::HEAD, key, None).await,
            Request::Remove(key) => self.ask(Method::DELETE, key, None).await,
            Request::Put { key, overwrite, value } => {
                if !overwrite && matches!(self.ask(Method::HEAD, key, None).await, Ok(Some(_))) {
                    return Answer::Short(NOOP);
                }
                self.ask(Method::PUT, key, Some(value.to_vec())).await
            }
        };
        match done {
            Ok(None) => Answer::Short(NOOP),
            Ok(Some(value)) if matches!(request, Request::Get(_)) => {
                let length = (value.len() as u64).to_ne_bytes();
                Answer::Value([&[OK][..], &length, &value].concat())
            }
            Ok(Some(_)) => Answer::Short(OK),
            Err(text) => Answer::Failed(text),
        }
    }

    fn info(&self) -> Vec<u8> {
        let mut said = Vec::new();
        if self.denied.load(Ordering::Relaxed) {
            said.push("writes are refused: the token may not write here, or does not hold".to_owned());
        }
        let unknown = &self.settings.unknown;
        said.extend(
            unknown.iter().take(100).map(|name| format!("the attribute `{name}` means nothing here")),
        );
        let mut bytes = message(concat!("forgeyard ", env!("CARGO_PKG_VERSION")));
        bytes.push(said.len() as u8);
        bytes.extend(said.iter().flat_map(|text| message(text)));
        bytes
    }

    async fn token(&self) -> Option<Secret> {
        match &self.settings.token_file {
            // without it reads of public scopes go on
            Some(file) => {
                let text = tokio::fs::read_to_string(file).await.ok()?;
                Some(Secret::new(text.trim()))
            }
            None => self.settings.token.clone(),
        }
    }

    /// One request to the cache: what it sent, nothing when the key is not there or may not be written, or why it failed.
    async fn ask(
        &self,
        method: Method,
        key: &[u8],
        body: Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, String> {
        if self.down_until.load(Ordering::Relaxed) > self.now() {
            return Err("the cache did not answer a moment ago".to_owned());
        }
        let done = self.send(method, key, body).await;
        done.map_err(|error| {
            let until = self.now() + PAUSE.as_millis() as u64;
            self.down_until.store(until, Ordering::Relaxed);
            // the address may hold a password
            format!("no answer from the cache: {}", error.without_url())
        })?
    }

    async fn send(
        &self,
        method: Method,
        key: &[u8],
        body: Option<Vec<u8>>,
    ) -> Result<Result<Option<Vec<u8>>, String>, reqwest::Error> {
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let (folder, name) = digits.split_at_checked(2).unwrap_or(("", &digits));
        let writes = method == Method::PUT || method == Method::DELETE;
        let mut request = self.client.request(method, format!("{}{folder}/{name}", self.settings.address));
        if let Some(token) = self.token().await {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            request = request.header("Content-Type", "application/octet-stream").body(body);
        }
        let mut answer = request.send().await?;
        Ok(match answer.status() {
            status if status.is_success() => {
                if answer.content_length().is_some_and(|length| length > LARGEST) {
                    return Ok(Ok(None));
                }
                let mut value = Vec::new();
                while let Some(chunk) = answer.chunk().await? {
                    value.extend_from_slice(&chunk);
                    if value.len() as u64 > LARGEST {
                        return Ok(Ok(None));
                    }
                }
                Ok(Some(value))
            }
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                if writes {
                    self.denied.store(true, Ordering::Relaxed);
                }
                Ok(None)
            }
            status => Err(format!("the cache answered {status}")),
        })
    }
}
