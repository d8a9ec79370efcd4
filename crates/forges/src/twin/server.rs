//! HTTP around the state: one server on a free port of this machine, which also sends the webhooks.
//!
//! The server reads no clock: simulated time moves when a test moves it. Connections are served one by one without a
//! framework, because a lost answer must be a connection that closes with nothing on it.

use super::calls::{Outcome, Reply, Request, Served};
use super::clock::ManualClock;
use super::setup::Setup;
use super::state::State;
use super::wire;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bodies larger than this are not read; GitHub's own limit for webhooks is 25 MB.
const BODY_LIMIT: usize = 32 << 20;
/// A receiver of webhooks must answer in this time (runners.md §3.1).
const RECEIVER_LIMIT: Duration = Duration::from_secs(10);

/// A *simulated* GitHub that listens.
#[derive(Debug)]
pub struct Twin {
    shared: Arc<Shared>,
    base: String,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    clock: ManualClock,
    /// Moves with each change, so that held calls look again.
    version: watch::Sender<u64>,
    /// Held while webhooks are sent: they leave in order.
    sending: tokio::sync::Mutex<()>,
}

impl Shared {
    /// The state at the time of the clock.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance_to(self.clock.now());
        state
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// Sends the webhooks that are due, in order; those of the same hook never overtake each other.
    async fn send_due(&self) {
        let _order = self.sending.lock().await;
        loop {
            let due = self.state().take_due_deliveries();
            if due.is_empty() {
                return;
            }
            for one in due {
                let headers: Vec<(&str, &str)> =
                    one.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let answer = wire::call("POST", &one.url, &headers, one.body.to_vec(), RECEIVER_LIMIT).await;
                let answer = answer.map(|answer| answer.status).map_err(|error| error.to_string());
                self.state().delivery_answered(one.delivery, answer);
            }
        }
    }
}

impl Twin {
    /// Starts one on a free port of 127.0.0.1.
    pub async fn start(setup: Setup) -> std::io::Result<Self> {
        Self::start_with(State::new(setup)).await
    }

    /// Starts one around a state that was filled before.
    pub async fn start_with(mut state: State) -> std::io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let base = format!("http://{}", listener.local_addr()?);
        state.set_base(&base);
        let clock = ManualClock::new(state.now());
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            clock,
            version: watch::Sender::new(0),
            sending: tokio::sync::Mutex::new(()),
        });
        let tasks = vec![
            tokio::spawn(accept(listener, Arc::clone(&shared))),
            tokio::spawn(follow_clock(Arc::clone(&shared))),
            tokio::spawn(follow_changes(Arc::clone(&shared))),
        ];
        Ok(Self { shared, base, tasks })
    }

    /// Base of its pages: `http://127.0.0.1:1234`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Base of REST calls.
    pub fn api_url(&self) -> String {
        self.shared.state().urls().api.clone()
    }

    /// Its clock.
    pub fn clock(&self) -> ManualClock {
        self.shared.clock.clone()
    }

    /// Looks at the state or changes it. Webhooks that become due leave in the background; [`Twin::settle`] waits.
    pub fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        let result = look(&mut self.shared.state());
        self.shared.changed();
        result
    }

    /// Moves the clock forward, stopping at each time at which something is due, and sends what is due there.
    pub async fn advance(&self, by: Duration) {
        let target = self.shared.clock.now().plus(by);
        loop {
            let next = self.shared.state().next_due().map_or(target, |due| due.min(target));
            self.shared.clock.advance_to(next);
            self.settle().await;
            if self.shared.clock.now() >= target {
                return;
            }
        }
    }

    /// Waits until every webhook that is due was sent and answered.
    pub async fn settle(&self) {
        drop(self.shared.state());
        self.shared.changed();
        self.shared.send_due().await;
    }

    /// Lets the simulated clock run with the real one, `speed` times as fast, for as long as the twin lives.
    pub fn run_freely(&mut self, speed: u32) {
        let clock = self.shared.clock.clone();
        let step = Duration::from_millis(20);
        self.tasks.push(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(step);
            loop {
                ticks.tick().await;
                clock.advance(step * speed);
            }
        }));
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// When somebody moves the clock, what is due happens.
async fn follow_clock(shared: Arc<Shared>) {
    let mut moves = shared.clock.changes();
    while moves.changed().await.is_ok() {
        drop(shared.state());
        shared.changed();
    }
}

/// After each change, webhooks that are due are sent.
async fn follow_changes(shared: Arc<Shared>) {
    let mut changes = shared.version.subscribe();
    while changes.changed().await.is_ok() {
        shared.send_due().await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(Arc::clone(&shared), request));
            // An error here is a client that went away, or an answer that is to be lost.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// The connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the simulated answer is lost")]
struct Lost;

async fn answer(
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Lost> {
    let request = read(request).await?;
    let mut version = shared.version.subscribe();
    let Served { mut outcome, closes, real_delay, until } = shared.state().serve(&request);
    if request.method != "GET" {
        shared.changed();
    }
    let real_hold = shared.state().setup_mut().poll_hold_real;
    let give_up = tokio::time::Instant::now() + real_hold;
    let reply = loop {
        match outcome {
            Outcome::Answer(reply) => break reply,
            Outcome::Hold(_) if closes => return Err(Lost),
            Outcome::Hold(until) => {
                let waited = tokio::time::timeout_at(give_up, version.changed()).await;
                let mut state = shared.state();
                outcome = state.serve_again(&request);
                let over = waited.is_err() || state.now() >= until;
                if over && matches!(outcome, Outcome::Hold(_)) {
                    break Reply::empty(202);
                }
                if let Outcome::Hold(again) = &mut outcome {
                    *again = until;
                }
            }
        }
    };
    if let Some(until) = until {
        let mut moves = shared.clock.changes();
        while *moves.borrow_and_update() < until {
            if moves.changed().await.is_err() {
                return Err(Lost);
            }
        }
    }
    if !real_delay.is_zero() {
        tokio::time::sleep(real_delay).await;
    }
    if closes {
        return Err(Lost);
    }
    let mut response = hyper::Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(name.as_str(), value.as_str());
    }
    response.body(Full::new(Bytes::from(reply.body))).map_err(|_| Lost)
}

async fn read(request: hyper::Request<Incoming>) -> Result<Request, Lost> {
    let (parts, body) = request.into_parts();
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let query: BTreeMap<String, String> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(&name.replace('+', " ")), decoded(&value.replace('+', " ")))
        })
        .collect();
    let body = Limited::new(body, BODY_LIMIT).collect().await.map_err(|_| Lost)?;
    Ok(Request {
        method: parts.method.as_str().to_owned(),
        path: decoded(parts.uri.path()),
        query,
        headers,
        body: body.to_bytes().to_vec(),
    })
}

/// A text with its `%41` escapes resolved; what is no escape stays.
pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.filter(|_| *first == b'%').and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_resolved_and_other_percent_signs_stay() {
        assert_eq!(decoded("a%20b%2Fc"), "a b/c");
        assert_eq!(decoded("100%"), "100%");
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }
}
