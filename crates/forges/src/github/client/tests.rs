//! What the simulated GitHub does not do: redirects of renamed repositories, and versions of answers. Small servers
//! of our own stand for it here.

use super::super::endpoint::RepositoryPath;
use super::super::jobs::{Polled, RunStatus};
use super::super::key::AppKey;
use super::*;
use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use std::sync::atomic::{AtomicUsize, Ordering};

const NOW: i64 = 1_700_000_000_000_000;

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// A router that gives out installations and tokens.
fn router() -> Router {
    Router::new()
        .route(
            "/repos/{owner}/{name}/installation",
            get(|| async { axum::Json(serde_json::json!({"id": 5})) }),
        )
        .route(
            "/app/installations/5/access_tokens",
            post(|| async {
                let body = serde_json::json!({"token": "ghs_x", "expires_at": "2023-11-14T23:13:20Z"});
                (StatusCode::CREATED, axum::Json(body))
            }),
        )
}

fn client(base: &str) -> Github {
    let pem = Secret::new(include_str!("../../twin/app_key.pem"));
    Github::new(GithubOptions {
        endpoint: Endpoint::at(base, base).unwrap(),
        apps: vec![AppIdentity { issuer: "1".into(), key: AppKey::from_pem(&pem).unwrap() }],
        clock: Arc::new(|| Timestamp::from_micros(NOW)),
        http: HttpOptions::default(),
    })
    .unwrap()
}

fn path() -> RepositoryPath {
    RepositoryPath::parse("o/old").unwrap()
}

#[tokio::test]
async fn a_client_without_an_app_does_not_exist() {
    let options = GithubOptions {
        endpoint: Endpoint::github_com(),
        apps: Vec::new(),
        clock: Arc::new(|| Timestamp::from_micros(NOW)),
        http: HttpOptions::default(),
    };
    assert!(matches!(Github::new(options), Err(GithubError::Setup { .. })));
}

#[tokio::test]
async fn a_renamed_repository_is_followed_with_the_token() {
    let moved =
        || async { (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, "/repositories/7/actions/jobs/3")]) };
    let job = |headers: HeaderMap| async move {
        if headers.get("authorization").is_none_or(|value| value != "Bearer ghs_x") {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        axum::Json(serde_json::json!({"id": 3, "run_id": 2, "status": "queued"})).into_response()
    };
    let base = serve(
        router()
            .route("/repos/o/old/actions/jobs/3", get(moved))
            .route("/repositories/7/actions/jobs/3", get(job)),
    )
    .await;
    let job = client(&base).job(&path(), 3).await.unwrap().unwrap();
    assert_eq!((job.id, job.run_attempt), (3, 1));
}

#[tokio::test]
async fn a_redirect_to_another_place_never_gets_the_token() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let other = serve(Router::new().fallback(any(move || {
        seen.fetch_add(1, Ordering::Relaxed);
        async { "thank you" }
    })))
    .await;
    let moved = move || {
        let place = format!("{other}/repos/o/old/actions/jobs/3");
        async move { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)]) }
    };
    let base = serve(router().route("/repos/o/old/actions/jobs/3", get(moved))).await;
    let error = client(&base).job(&path(), 3).await.unwrap_err().to_string();
    assert!(error.contains("`location`") && !error.contains("ghs_x"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_redirect_in_a_circle_ends() {
    let moved = || async { (StatusCode::FOUND, [(header::LOCATION, "/repos/o/old/actions/jobs/3")]) };
    let base = serve(router().route("/repos/o/old/actions/jobs/3", get(moved))).await;
    assert!(client(&base).job(&path(), 3).await.is_err());
}

#[tokio::test]
async fn a_poll_with_the_version_of_the_last_one_is_told_that_nothing_changed() {
    let runs = |headers: HeaderMap| async move {
        if headers.get("if-none-match").is_some_and(|etag| etag == "W/\"v1\"") {
            return StatusCode::NOT_MODIFIED.into_response();
        }
        let run = serde_json::json!({
            "id": 9, "event": "push", "head_sha": "a", "repository": {"id": 7, "full_name": "o/old"},
        });
        let body = serde_json::json!({"total_count": 1, "workflow_runs": [run]});
        ([(header::ETAG, "W/\"v1\"")], axum::Json(body)).into_response()
    };
    let base = serve(router().route("/repos/o/old/actions/runs", get(runs))).await;
    let github = client(&base);
    let Polled::Changed { value, etag } =
        github.poll_runs(&path(), RunStatus::Queued, 2, None).await.unwrap()
    else {
        panic!("nothing was asked before")
    };
    assert_eq!(value.runs.len(), 1);
    let again = github.poll_runs(&path(), RunStatus::Queued, 2, etag.as_ref()).await.unwrap();
    assert_eq!(again, Polled::Unchanged);
}

#[tokio::test]
async fn an_answer_with_a_field_of_another_kind_names_call_and_field() {
    let runs = || async { axum::Json(serde_json::json!({"id": "three", "run_id": 2, "status": "queued"})) };
    let base = serve(router().route("/repos/o/old/actions/jobs/3", get(runs))).await;
    let error = client(&base).job(&path(), 3).await.unwrap_err().to_string();
    assert!(error.contains("GET /repos/o/old/actions/jobs/3") && error.contains("`id`"), "{error}");
}

#[tokio::test]
async fn a_call_that_is_given_up_is_not_counted_as_under_way() {
    let base = serve(router().route(
        "/repos/o/old/actions/jobs/3",
        get(|| async {
            std::future::pending::<()>().await;
        }),
    ))
    .await;
    let github = client(&base);
    let call = Call::get("job", "/repos/o/old/actions/jobs/3".to_owned());
    let target: Target = path().into();
    let app = github.app(0).unwrap();
    github.token(app, &target).await.unwrap();
    let spending = call.spending(Some(5));
    let waiting = github.installed(&target, call);
    // Polled once, so that it is sent, and given up.
    tokio::select! {
        biased;
        _ = waiting => panic!("it never answers"),
        () = tokio::task::yield_now() => {}
    }
    let heard = Heard {
        limit: Some(5000),
        remaining: Some(1),
        reset: Some(Timestamp::from_micros(NOW + 60_000_000)),
        ..Heard::default()
    };
    let now = github.now();
    app.budget().sent(now, &spending);
    app.budget().heard(now, &spending, 200, &heard);
    assert_eq!(app.budget().ask(now, &spending), Advice::Go);
}

#[tokio::test]
async fn an_app_proves_itself_with_one_token_for_four_minutes_and_anew_after_a_refusal() {
    let github = client("http://127.0.0.1:1");
    let app = github.app(0).unwrap();
    let proof = |second: i64| {
        let token = app.proof(Timestamp::from_micros(NOW + second * 1_000_000)).unwrap();
        token.expose().to_owned()
    };
    let first = proof(0);
    assert_eq!(proof(239), first);
    let second = proof(240);
    assert_ne!(second, first);
    let third = proof(100);
    assert_ne!(third, second, "the clock was set back: that token is not good yet");
    assert_eq!(proof(110), third);
    app.forget_proof();
    assert_ne!(proof(110), third);
}
