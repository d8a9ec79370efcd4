//! A *simulated* farm: the three routes of `/site/v1` over loopback, without a database and without decisions.

use crate::sim::Crash;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use forgeyard_api::error::{ApiError, ErrorKind};
use forgeyard_api::site::{self, DesiredQuery, DesiredSet, Join, Joined, Reported, SiteReport};
use forgeyard_model::{Id as _, SiteId};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

pub const JOIN_TOKEN: &str = "join-me";

pub struct Farm {
    pub url: String,
    pub state: Arc<Inner>,
}

pub struct Inner {
    pub desired: watch::Sender<DesiredSet>,
    pub reports: Mutex<Vec<SiteReport>>,
    pub joins: Mutex<Vec<Join>>,
    pub token: Mutex<String>,
    pub crash: Crash,
    pub report_seconds: u64,
    reported: watch::Sender<usize>,
}

impl Farm {
    pub async fn start(crash: Crash) -> Farm {
        let first = DesiredSet { epoch: 1, generation: 1, runners: Vec::new(), releasing: Vec::new() };
        let state = Arc::new(Inner {
            desired: watch::channel(first).0,
            reports: Mutex::default(),
            joins: Mutex::default(),
            token: Mutex::new("none yet".to_owned()),
            crash,
            report_seconds: 1,
            reported: watch::channel(0).0,
        });
        let routes = Router::new()
            .route(site::JOIN, post(join))
            .route(site::DESIRED, get(desired))
            .route(site::REPORT, post(report))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Farm { url, state }
    }

    /// Changes the desired set.
    pub fn change(&self, change: impl FnOnce(&mut DesiredSet)) {
        self.state.desired.send_modify(|set| {
            change(set);
            set.generation += 1;
        });
    }

    pub fn last(&self) -> Option<SiteReport> {
        self.state.reports.lock().unwrap().last().cloned()
    }

    /// Waits for a report; panics with the last one when none comes in a minute.
    pub async fn report_where(&self, what: &str, wanted: impl Fn(&SiteReport) -> bool) -> SiteReport {
        let mut reported = self.state.reported.subscribe();
        let found = async {
            loop {
                if let Some(report) = self.last().filter(|report| wanted(report)) {
                    return report;
                }
                reported.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), found).await {
            Ok(report) => report,
            Err(_) => panic!("no report says that {what}; the last one: {:#?}", self.last()),
        }
    }

    /// Waits for the next report.
    pub async fn next_report(&self) {
        let mut reported = self.state.reported.subscribe();
        let _ = tokio::time::timeout(Duration::from_secs(60), reported.changed()).await;
    }
}

fn refuse(kind: ErrorKind, code: &str) -> Response {
    let status = StatusCode::from_u16(kind.status()).unwrap();
    (status, Json(ApiError::new(kind, code, code))).into_response()
}

async fn join(State(farm): State<Arc<Inner>>, Json(join): Json<Join>) -> Response {
    if join.join_token != JOIN_TOKEN {
        return refuse(ErrorKind::Forbidden, "join.bad_token");
    }
    farm.crash.point().await;
    let mut joins = farm.joins.lock().unwrap();
    joins.push(join);
    let token = format!("site-token-{}", joins.len());
    *farm.token.lock().unwrap() = token.clone();
    Json(Joined { site: SiteId::from_bits(1), token }).into_response()
}

fn known(farm: &Inner, headers: &HeaderMap) -> bool {
    let bearer = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    bearer == Some(farm.token.lock().unwrap().as_str())
}

async fn desired(State(farm): State<Arc<Inner>>, headers: HeaderMap, Query(query): Query<DesiredQuery>) -> Response {
    if !known(&farm, &headers) {
        return refuse(ErrorKind::Unauthenticated, "site.unknown");
    }
    let mut sets = farm.desired.subscribe();
    let newer = sets.wait_for(|set| set.epoch != query.epoch || set.generation > query.after);
    let set = match tokio::time::timeout(Duration::from_secs(query.wait_seconds), newer).await {
        Ok(set) => set.unwrap().clone(),
        Err(_) => farm.desired.borrow().clone(),
    };
    Json(set).into_response()
}

async fn report(State(farm): State<Arc<Inner>>, headers: HeaderMap, Json(report): Json<SiteReport>) -> Response {
    if !known(&farm, &headers) {
        return refuse(ErrorKind::Unauthenticated, "site.unknown");
    }
    farm.reports.lock().unwrap().push(report);
    farm.reported.send_modify(|count| *count += 1);
    // The farm has it; whether the site hears that is another matter.
    farm.crash.point().await;
    let generation = farm.desired.borrow().generation;
    Json(Reported { generation, report_seconds: farm.report_seconds }).into_response()
}
