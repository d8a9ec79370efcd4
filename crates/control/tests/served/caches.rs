//! The pages and routes of the build cache, with a *simulated* cache behind them.

use crate::rig::{Answer, Rig, cookie, request};
use axum::body::Body;
use axum::http::{Method, header};
use forgeyard_api::cache::{CacheEntries, CacheEntry, CacheRemoval, CacheScope, CacheTraffic, CacheView};
use forgeyard_control::cache_admin::{CacheAdmin, CacheError};
use forgeyard_model::Timestamp;
use forgeyard_model::principal::Role;
use std::sync::{Arc, Mutex};

/// Answers with one scope, until it is told to be away; remembers what it was told to remove.
#[derive(Default)]
struct Simulated {
    away: Mutex<bool>,
    removed: Mutex<Vec<(String, CacheRemoval)>>,
}

#[async_trait::async_trait]
impl CacheAdmin for Simulated {
    async fn look(&self) -> Result<CacheView, CacheError> {
        if *self.away.lock().unwrap() {
            return Err(CacheError::NoAnswer("connection refused".to_owned()));
        }
        let traffic =
            CacheTraffic { client: "dav".to_owned(), hits: 9, misses: 1, ..CacheTraffic::default() };
        let scope = CacheScope {
            scope: "main".to_owned(),
            entries: 1,
            traffic: vec![traffic],
            ..CacheScope::default()
        };
        Ok(CacheView {
            address: "http://127.0.0.1:8420".to_owned(),
            disk_bytes: 1,
            capacity_bytes: 2,
            entries: 1,
            tail_idle_minutes: None,
            scopes: vec![scope],
            day: Vec::new(),
            price_per_cpu_hour: None,
            warm: Vec::new(),
        })
    }

    async fn entries(&self, scope: &str, prefix: &str, most: usize) -> Result<CacheEntries, CacheError> {
        assert!(most > 0);
        let entry = CacheEntry {
            kind: "kv".to_owned(),
            key: format!("{prefix}key-of-an-entry"),
            size: 1,
            stored_at: Timestamp::from_micros(0),
            principal: "ci".to_owned(),
            run: Some("77".to_owned()),
            client: "curl".to_owned(),
        };
        Ok(CacheEntries { scope: scope.to_owned(), entries: vec![entry], of: 1 })
    }

    async fn remove(&self, by: &str, which: &CacheRemoval) -> Result<u64, CacheError> {
        self.removed.lock().unwrap().push((by.to_owned(), which.clone()));
        Ok(1)
    }
}

async fn page(rig: &Rig, path: &str, session: &str) -> Answer {
    rig.ask(request(Method::GET, path).header(header::COOKIE, cookie(session)).body(Body::empty()).unwrap())
        .await
}

async fn post(rig: &Rig, session: &str, fields: &str) -> Answer {
    let body = format!("csrf={}&{fields}", rig.app.keys.csrf(session));
    let asked = request(Method::POST, "/cache/remove")
        .header(header::COOKIE, cookie(session))
        .header(header::ORIGIN, &rig.address)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    rig.ask(asked.body(Body::from(body)).unwrap()).await
}

#[tokio::test]
async fn farm_without_a_cache_says_how_to_get_one() {
    let rig = Rig::start().await;
    let session = rig.session(&rig.admin);
    let answer = page(&rig, "/cache", &session).await;
    assert!(answer.status == 200 && answer.body.contains("runs no build cache"), "{}", answer.body);
    assert_eq!(page(&rig, "/cache/scope?scope=main", &session).await.status, 404);
    let asked =
        request(Method::GET, "/api/v1/cache").header(header::AUTHORIZATION, format!("Bearer {}", rig.admin));
    let answer = rig.ask(asked.body(Body::empty()).unwrap()).await;
    assert!(answer.status == 404 && answer.body.contains("cache.none"), "{}", answer.body);
    rig.end().await;
}

#[tokio::test]
async fn cache_that_is_away_breaks_no_page_but_its_own_and_is_named_there() {
    let cache = Arc::new(Simulated::default());
    let rig = Rig::with_cache(Arc::clone(&cache) as Arc<dyn CacheAdmin>).await;
    let session = rig.session(&rig.admin);
    let answer = page(&rig, "/cache", &session).await;
    assert!(answer.body.contains("90.0 %") && answer.body.contains("scope=main"), "{}", answer.body);
    *cache.away.lock().unwrap() = true;
    let answer = page(&rig, "/cache", &session).await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.body.contains("cache.no_answer") && answer.body.contains("connection refused"),
        "{}",
        answer.body
    );
    assert_eq!(page(&rig, "/cache/scope?scope=main", &session).await.status, 503);
    assert_eq!(page(&rig, "/status", &session).await.status, 200);
    rig.end().await;
}

#[tokio::test]
async fn entries_are_shown_to_operators_and_removed_in_their_name() {
    let cache = Arc::new(Simulated::default());
    let rig = Rig::with_cache(Arc::clone(&cache) as Arc<dyn CacheAdmin>).await;
    let viewer = rig.session(&rig.token("eve", Role::Viewer).await);
    let operator = rig.session(&rig.token("olga", Role::Operator).await);
    let answer = page(&rig, "/cache/scope?scope=main&prefix=a", &viewer).await;
    assert!(answer.status == 200 && !answer.body.contains("key-of-an-entry"), "{}", answer.body);
    assert_eq!(post(&rig, &viewer, "scope=main&prefix=").await.status, 403);
    let answer = page(&rig, "/cache/scope?scope=main&prefix=a", &operator).await;
    assert!(answer.body.contains("akey-of-an-entry") && answer.body.contains("run 77"), "{}", answer.body);

    let answer = post(&rig, &operator, "scope=main&prefix=a&back=main").await;
    assert_eq!((answer.status, answer.header(header::LOCATION)), (303, "/cache/scope?scope=main"));
    assert_eq!(post(&rig, &operator, "writer=77&back=main").await.status, 303);
    assert_eq!(post(&rig, &operator, "back=main").await.status, 400, "neither scope nor writer");
    let removed = cache.removed.lock().unwrap().clone();
    assert_eq!(
        removed,
        [
            ("olga".to_owned(), CacheRemoval::Scope { scope: "main".to_owned(), prefix: "a".to_owned() }),
            ("olga".to_owned(), CacheRemoval::Writer { writer: "77".to_owned() }),
        ]
    );
    rig.end().await;
}
