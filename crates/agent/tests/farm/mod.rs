//! A *simulated* farm: the far side of `/agent/v1` on loopback, with real bytes and planned faults. One attempt each.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use forgeyard_api::agent::{
    CACHE, CacheAccess, Finish, Heartbeat, HeartbeatAnswer, LogAnswer, REDEEM, RUNNER_CONFIG, RUNNER_TOOK,
    Redeem, Redeemed, RunnerConfig, RunnerTook, WAIT, Wait, Waited,
};
use forgeyard_api::error::{ApiError, ErrorKind};
use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::job::JobSpec;
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::resources::Flavor;
use forgeyard_model::verdict::ExitFacts;
use forgeyard_model::{ArtifactId, AttemptId, Digest, Id as _, Lane, PipelineId, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(crate) const TOKEN: &str = "one-shot-token-1234";
/// Token of a machine that was made before there was work.
pub(crate) const WAITING_TOKEN: &str = "rnr_one.shot-token-9876";
pub(crate) const SESSION: &str = "session-token-5678";

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) redeemed: Option<Redeemed>,
    pub(crate) nonces: Vec<String>,
    pub(crate) closed: bool,
    pub(crate) heartbeats: Vec<Option<String>>,
    pub(crate) log: Vec<u8>,
    pub(crate) log_requests: usize,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) ranges: Vec<Option<String>>,
    pub(crate) artifacts: BTreeMap<(String, String), Vec<u8>>,
    pub(crate) finished: Option<ExitFacts>,
    pub(crate) finishes: usize,
    pub(crate) cancel: bool,
    pub(crate) superseded: bool,
    /// Nonces that asked for work.
    pub(crate) asked: Vec<String>,
    /// So many further log requests are answered 503.
    pub(crate) refuse_logs: usize,
    /// So many further downloads break off in the middle.
    pub(crate) cut_blobs: usize,
    /// The configuration of a runner; none is not there yet.
    pub(crate) config: Option<String>,
    /// How often it was handed out.
    pub(crate) configs: usize,
    /// What hooks said.
    pub(crate) took: Vec<RunnerTook>,
    /// What they are told; none is not decided yet.
    pub(crate) answer: Option<TakenAnswer>,
    /// The build cache of the job.
    pub(crate) cache: Option<CacheAccess>,
}

#[derive(Clone)]
pub(crate) struct Farm {
    pub(crate) url: String,
    inner: Arc<Mutex<Inner>>,
}

type Answer<T> = Result<T, Refused>;
pub(crate) struct Refused(ErrorKind);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status()).unwrap();
        (status, Json(ApiError::new(self.0, "simulated", "refused by the simulated farm"))).into_response()
    }
}

impl Farm {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let farm = Self { url, inner: Arc::default() };
        let base = "/agent/v1/attempts/{attempt}";
        let router = Router::new()
            .route(REDEEM, post(redeem))
            .route(WAIT, post(wait))
            .route(&format!("{base}/heartbeat"), post(heartbeat))
            .route(&format!("{base}/log"), post(log))
            .route(&format!("{base}/blobs/{{digest}}"), get(blob))
            .route(&format!("{base}/artifacts/{{kind}}/{{name}}"), put(artifact))
            .route(&format!("{base}/finish"), post(finish))
            .route(CACHE, get(cache))
            .route(RUNNER_CONFIG, post(runner_config))
            .route(RUNNER_TOOK, post(runner_took))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(farm.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        farm
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(crate) fn offer(
        &self,
        spec: JobSpec,
        flavor: Flavor,
        devices: Vec<DeviceFacts>,
        log_cap_bytes: u64,
        mask: &[&str],
    ) {
        let cache = self.lock().cache.is_some();
        self.lock().redeemed = Some(Redeemed {
            attempt: AttemptId::new(Timestamp::from_micros(1), 7),
            fence: 3,
            session: SESSION.to_owned(),
            lane: Lane::Protected,
            spec,
            flavor,
            devices,
            heartbeat_seconds: 1,
            log_cap_bytes,
            cache,
            mask: mask.iter().map(|text| (*text).to_owned()).collect(),
        });
    }

    pub(crate) fn blob(&self, bytes: Vec<u8>) -> Digest {
        let digest = Digest::of(&bytes);
        self.lock().blobs.insert(digest, bytes);
        digest
    }

    pub(crate) fn log_text(&self) -> String {
        String::from_utf8_lossy(&self.lock().log).into_owned()
    }

    /// Waits for something that must come; the time is only a stop for a broken test.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut(&mut Inner) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(&mut self.lock()) {
                return found;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(120),
                "{what} did not come; log:\n{}",
                self.log_text()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn facts(&self) -> ExitFacts {
        self.until("the end", |inner| inner.finished.clone()).await
    }

    pub(crate) async fn logged(&self, text: &str) {
        self.until(text, |inner| String::from_utf8_lossy(&inner.log).contains(text).then_some(())).await;
    }

    fn session(&self, headers: &HeaderMap) -> Answer<MutexGuard<'_, Inner>> {
        let inner = self.lock();
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if bearer != Some(&format!("Bearer {SESSION}")) {
            return Err(Refused(ErrorKind::Unauthenticated));
        }
        if inner.superseded {
            return Err(Refused(ErrorKind::Superseded));
        }
        Ok(inner)
    }
}

async fn redeem(State(farm): State<Farm>, Json(request): Json<Redeem>) -> Answer<Json<Redeemed>> {
    let mut inner = farm.lock();
    if ![TOKEN, WAITING_TOKEN].contains(&request.token.as_str()) || inner.closed {
        return Err(Refused(ErrorKind::Forbidden));
    }
    inner.nonces.push(request.nonce);
    inner.redeemed.clone().map(Json).ok_or(Refused(ErrorKind::Unavailable))
}

/// There is work as soon as a job is offered. A question waits a second, as a farm's waits longer.
async fn wait(State(farm): State<Farm>, Json(request): Json<Wait>) -> Answer<Json<Waited>> {
    if request.token != WAITING_TOKEN {
        return Err(Refused(ErrorKind::Forbidden));
    }
    farm.lock().asked.push(request.nonce);
    for _ in 0..100 {
        if farm.lock().redeemed.is_some() {
            return Ok(Json(Waited::Work));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(Json(Waited::Nothing))
}

async fn heartbeat(
    State(farm): State<Farm>,
    headers: HeaderMap,
    Json(beat): Json<Heartbeat>,
) -> Answer<Json<HeartbeatAnswer>> {
    let mut inner = farm.session(&headers)?;
    inner.closed = true;
    inner.heartbeats.push(beat.step);
    Ok(Json(HeartbeatAnswer { cancel: inner.cancel }))
}

async fn cache(State(farm): State<Farm>, headers: HeaderMap) -> Answer<Json<CacheAccess>> {
    let inner = farm.session(&headers)?;
    inner.cache.clone().map(Json).ok_or(Refused(ErrorKind::NotFound))
}

async fn runner_config(State(farm): State<Farm>, headers: HeaderMap) -> Answer<Response> {
    let mut inner = farm.session(&headers)?;
    let refused = |code| {
        let error = ApiError::new(ErrorKind::Conflict, code, "refused by the simulated farm");
        (StatusCode::CONFLICT, Json(error)).into_response()
    };
    if inner.heartbeats.iter().any(Option::is_some) {
        return Ok(refused("registration.consumed"));
    }
    let Some(config) = inner.config.clone() else { return Ok(refused("registration.not_minted")) };
    inner.configs += 1;
    Ok(Json(RunnerConfig { name: "forgeyard-1".to_owned(), config }).into_response())
}

async fn runner_took(
    State(farm): State<Farm>,
    headers: HeaderMap,
    Json(took): Json<RunnerTook>,
) -> Answer<Json<TakenAnswer>> {
    let mut inner = farm.session(&headers)?;
    inner.took.push(took);
    Ok(Json(inner.answer.clone().unwrap_or(TakenAnswer::Asked)))
}

async fn log(
    State(farm): State<Farm>,
    headers: HeaderMap,
    Query(query): Query<BTreeMap<String, u64>>,
    bytes: Bytes,
) -> Answer<Json<LogAnswer>> {
    let mut inner = farm.session(&headers)?;
    inner.log_requests += 1;
    if inner.refuse_logs > 0 {
        inner.refuse_logs -= 1;
        return Err(Refused(ErrorKind::Unavailable));
    }
    let offset = query["offset"] as usize;
    assert!(offset <= inner.log.len(), "a gap in the log");
    let known = inner.log.len().min(offset + bytes.len());
    assert_eq!(inner.log[offset..known], bytes[..known - offset], "acknowledged bytes have changed");
    let fresh = bytes[known - offset..].to_vec();
    inner.log.extend(fresh);
    Ok(Json(LogAnswer { durable: inner.log.len() as u64 }))
}

async fn blob(
    State(farm): State<Farm>,
    headers: HeaderMap,
    Path((_, digest)): Path<(String, Digest)>,
) -> Answer<Response> {
    let mut inner = farm.session(&headers)?;
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    inner.ranges.push(range.clone());
    let bytes = inner.blobs.get(&digest).cloned().ok_or(Refused(ErrorKind::NotFound))?;
    let from: usize = range.map_or(0, |range| range["bytes=".len()..range.len() - 1].parse().unwrap());
    if from > 0 && from >= bytes.len() {
        return Err(Refused(ErrorKind::Range));
    }
    let status = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let rest = Bytes::from(bytes).slice(from..);
    if inner.cut_blobs > 0 {
        inner.cut_blobs -= 1;
        let half = rest.slice(..rest.len() / 2);
        let (send, receive) = tokio::sync::mpsc::channel(2);
        send.try_send(Ok(half)).unwrap();
        send.try_send(Err(std::io::Error::other("planned"))).unwrap();
        let stream = futures::stream::unfold(receive, |mut receive| async {
            // The first half must be on its way before the connection breaks.
            tokio::time::sleep(Duration::from_millis(100)).await;
            receive.recv().await.map(|item| (item, receive))
        });
        return Ok((status, Body::from_stream(stream)).into_response());
    }
    Ok((status, rest).into_response())
}

async fn artifact(
    State(farm): State<Farm>,
    headers: HeaderMap,
    Path((attempt, kind, name)): Path<(AttemptId, ArtifactKind, String)>,
    Query(query): Query<BTreeMap<String, Digest>>,
    bytes: Bytes,
) -> Answer<Json<Artifact>> {
    let mut inner = farm.session(&headers)?;
    let digest = Digest::of(&bytes);
    if query["digest"] != digest {
        return Err(Refused(ErrorKind::Mismatch));
    }
    let size = bytes.len() as u64;
    inner.artifacts.insert(
        (serde_json::to_value(kind).unwrap().as_str().unwrap().to_owned(), name.clone()),
        bytes.to_vec(),
    );
    Ok(Json(Artifact {
        id: ArtifactId::derive(attempt, &name),
        kind,
        name,
        digest,
        size,
        package: None,
        pipeline: PipelineId::new(Timestamp::from_micros(1), 1),
        job: None,
        attempt: Some(attempt),
        lane: Lane::Protected,
        stored_at: Timestamp::from_micros(1),
        generation: 1,
    }))
}

async fn finish(
    State(farm): State<Farm>,
    headers: HeaderMap,
    Json(finish): Json<Finish>,
) -> Answer<StatusCode> {
    let mut inner = farm.session(&headers)?;
    assert_eq!(finish.fence, 3);
    inner.finishes += 1;
    inner.finished = Some(finish.facts);
    Ok(StatusCode::NO_CONTENT)
}
