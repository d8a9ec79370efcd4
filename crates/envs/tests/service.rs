//! The environment service against a *simulated* farm: two routes that give out work and take results.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::EnvironmentResult;
use forgeyard_envs::service::{Options, run};
use forgeyard_envs::{Limits, VirtualPackage};
use forgeyard_model::environment::{Environment, EnvironmentState};
use forgeyard_model::{EnvironmentId, Id as _, PipelineId, Secret, Timestamp};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use support::{Channel, Place};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
struct Farm {
    work: Arc<Mutex<VecDeque<Environment>>>,
    /// Answers with an error of its own this many times first.
    trouble: Arc<Mutex<u32>>,
    results: mpsc::UnboundedSender<(EnvironmentId, EnvironmentState)>,
}

type Answer<T> = Result<Json<T>, (StatusCode, Json<ApiError>)>;

fn admit(farm: &Farm, headers: &HeaderMap) -> Result<(), (StatusCode, Json<ApiError>)> {
    let refuse = |kind: ErrorKind, code| {
        let error = ApiError::new(kind, code, "simulated");
        Err((StatusCode::from_u16(kind.status()).unwrap(), Json(error)))
    };
    if headers.get("authorization").is_none_or(|value| value != "Bearer hunter2") {
        return refuse(ErrorKind::Unauthenticated, "token.invalid");
    }
    let mut trouble = farm.trouble.lock().unwrap();
    if *trouble > 0 {
        *trouble -= 1;
        return refuse(ErrorKind::Unavailable, "farm.starting");
    }
    Ok(())
}

async fn work(State(farm): State<Farm>, headers: HeaderMap) -> Answer<Option<Environment>> {
    admit(&farm, &headers)?;
    let next = farm.work.lock().unwrap().pop_front();
    if next.is_none() {
        // The wait of a long poll, cut short.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Ok(Json(next))
}

async fn result(
    State(farm): State<Farm>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(result): Json<EnvironmentResult>,
) -> Answer<serde_json::Value> {
    admit(&farm, &headers)?;
    farm.results.send((id.parse().unwrap(), result.state)).unwrap();
    // As the farm answers: an object without fields.
    Ok(Json(serde_json::json!({})))
}

fn environment(number: u128, spec: &str) -> Environment {
    let at = Timestamp::from_micros(1_700_000_000_000_000);
    Environment {
        id: EnvironmentId::new(at, number),
        name: "notebook".parse().unwrap(),
        pipeline: PipelineId::new(at, 1),
        channel: "main".parse().unwrap(),
        specs: vec![spec.into()],
        run: vec!["fy-greet".into()],
        state: EnvironmentState::Requested,
        requested_at: at,
        since: at,
        deadline: None,
        generation: 1,
    }
}

#[tokio::test]
async fn service_makes_what_the_farm_asks_for_and_reports_both_outcomes() {
    let (channel, place) = (Channel::start().await, Place::new());
    let (results, mut posted) = mpsc::unbounded_channel();
    let work_list = VecDeque::from([environment(1, "fy-greet"), environment(2, "fy-absent")]);
    let farm = Farm { work: Arc::new(Mutex::new(work_list)), trouble: Arc::new(Mutex::new(1)), results };
    let router = Router::new()
        .route("/api/v1/environment-work", get(work))
        .route("/api/v1/environments/{id}/result", post(result))
        .route("/channels/main/{*path}", get(proxy_to_channel))
        .with_state(farm);
    let router = router.layer(axum::Extension(channel.url.clone()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let farm_url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

    let options = Options {
        farm_url,
        token: Secret::new("hunter2"),
        ca_file: None,
        root_dir: place.root(),
        cache_dir: place.cache(),
        extra_channels: Vec::new(),
        host: Some(("linux-64".into(), vec![VirtualPackage::new("__unix", "0")])),
        limits: Limits::default(),
    };
    let shutdown = CancellationToken::new();
    let service = tokio::spawn(run(options, shutdown.clone()));

    let (id, state) = posted.recv().await.unwrap();
    assert_eq!(id, environment(1, "").id);
    let EnvironmentState::Ready { prefix, proof, lock, .. } = state else { panic!("{state:?}") };
    assert_eq!(lock.len(), 2);
    assert_eq!(proof.unwrap().stdout, format!("good evening from {prefix}\n"));
    let (id, state) = posted.recv().await.unwrap();
    assert_eq!(id, environment(2, "").id);
    let EnvironmentState::Failed { reason } = state else { panic!("{state:?}") };
    assert_eq!(reason.code, "environment.unsolvable");

    shutdown.cancel();
    service.await.unwrap().unwrap();
}

/// The farm serves its channel below its own URL.
async fn proxy_to_channel(
    Path(path): Path<String>,
    axum::Extension(url): axum::Extension<String>,
) -> (StatusCode, Vec<u8>) {
    let answer = reqwest::get(format!("{url}/{path}")).await.unwrap();
    let status = answer.status();
    (status, answer.bytes().await.unwrap().to_vec())
}
