//! Who may call what, and how refusals look: one error type, on every route.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_api::client::site::SiteClient;
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::TokenRequest;
use forgeyard_model::principal::Role;
use forgeyard_model::{Id, JobId, Secret};
use plane::site::{Site, join_request};
use plane::{Answer, Plane, Setup, refused};

async fn with_role(plane: &Plane, role: Role) -> Client {
    let request = TokenRequest {
        name: format!("{role}"),
        role,
        expires_in_seconds: None,
        repositories: Default::default(),
    };
    let token = plane.client.issue_token(&request).await.unwrap().token;
    Client::new(&plane.url, Some(Secret::new(token)), &HttpOptions::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_is_held_to_what_it_may() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let job = JobId::from_bits(1);
    let viewer = with_role(&plane, Role::Viewer).await;
    viewer.status().await.unwrap();
    assert_eq!(refused(viewer.cancel(job).await).code, "auth.role");
    let maintainer = with_role(&plane, Role::Maintainer).await;
    assert_eq!(refused(maintainer.cancel(job).await).kind, ErrorKind::NotFound);
    let site = forgeyard_model::SiteId::from_bits(1);
    assert_eq!(refused(maintainer.drain(site, true).await).kind, ErrorKind::Forbidden);
    let operator = with_role(&plane, Role::Operator).await;
    assert_eq!(refused(operator.drain(site, true).await).kind, ErrorKind::NotFound);
    let request = TokenRequest {
        name: "x".to_owned(),
        role: Role::Admin,
        expires_in_seconds: None,
        repositories: Default::default(),
    };
    assert_eq!(refused(operator.issue_token(&request).await).kind, ErrorKind::Forbidden);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_a_valid_token_gets_in_not_even_from_loopback() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let request = TokenRequest {
        name: "brief".to_owned(),
        role: Role::Admin,
        expires_in_seconds: Some(0),
        repositories: Default::default(),
    };
    let over = plane.client.issue_token(&request).await.unwrap().token;
    for token in ["", "fy_wrong", &over] {
        let answer =
            Answer::of(plane.http.get(format!("{}/api/v1/status", plane.url)).bearer_auth(token)).await;
        assert_eq!((answer.status, answer.error().kind), (401, ErrorKind::Unauthenticated), "{token}");
    }
    let forged = format!("{}/api/v1/status", plane.url);
    let forged = plane.http.get(forged).header("cookie", "forgeyard=00.99999999999999999.00");
    assert_eq!(Answer::of(forged).await.status, 401);
    assert_eq!(Answer::of(plane.http.get(format!("{}/metrics", plane.url))).await.status, 401);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cookie_alone_changes_nothing_on_the_api() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let digest = forgeyard_model::Digest::of(plane.token.as_bytes());
    let cookie = plane.app.keys.cookie(&digest, i64::MAX);
    let cancel = format!("{}/api/v1/jobs/{}/cancel", plane.url, JobId::from_bits(1));
    let request = || plane.http.post(&cancel).header("cookie", format!("forgeyard={cookie}"));
    let forms = request().header("content-type", "application/x-www-form-urlencoded").body("a=b");
    for request in [request(), request().header("x-forgeyard-csrf", "wrong"), forms] {
        let answer = Answer::of(request).await;
        assert_eq!((answer.status, answer.error().code.as_str()), (403, "auth.csrf"));
    }
    let own = request().header("x-forgeyard-csrf", plane.app.keys.csrf(&cookie));
    assert_eq!(Answer::of(own).await.status, 404);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn site_without_the_join_token_or_with_a_token_of_yesterday_is_refused() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let stranger = SiteClient::new(&plane.url, &HttpOptions::default()).unwrap();
    let error = refused(stranger.join(&join_request("wrong")).await);
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Forbidden, "site.join_token"));
    let mut key = join_request(&plane.join_token);
    key.public_key = "not a key".to_owned();
    assert_eq!(refused(stranger.join(&key).await).code, "site.public_key");
    let mut old = join_request(&plane.join_token);
    old.version = 99;
    assert_eq!(refused(stranger.join(&old).await).code, "site.version");
    let site = Site::join(&plane).await;
    // Joining again under the same name is the same site with another token; the old one is over.
    let again = Site::join(&plane).await;
    assert_eq!(refused(site.desired().await).code, "site.unknown_token");
    again.desired().await.unwrap();
    assert_eq!(plane.client.status().await.unwrap().sites.len(), 1);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_on_the_routes_of_programs_is_an_error_of_the_farm() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let post = |path: &str| plane.http.post(format!("{}{path}", plane.url)).bearer_auth(&plane.token);
    let json =
        |path: &str, body: &'static str| post(path).header("content-type", "application/json").body(body);
    for (request, status, code) in [
        (plane.get("/api/v1/nothing"), 404, "http.no_route"),
        (plane.get("/agent/v1/nothing"), 404, "http.no_route"),
        (plane.get("/channels/none/noarch/repodata.json"), 404, "farm.not_found"),
        (post("/api/v1/status"), 405, "http.method"),
        (plane.get("/api/v1/jobs/not-an-id"), 400, "http.request"),
        (plane.get("/api/v1/jobs/run_00000000000000000000000000"), 400, "http.request"),
        (plane.get("/api/v1/events?before=yesterday"), 400, "http.request"),
        (json("/api/v1/tokens", "{"), 400, "http.request"),
        (json("/api/v1/tokens", "{}"), 400, "http.request"),
        (post("/api/v1/tokens").body("name=x"), 400, "http.request"),
        (json("/agent/v1/redeem", "[]"), 400, "http.request"),
        (json("/site/v1/join", r#"{"version":1,"name":"../etc"}"#), 400, "http.request"),
    ] {
        let (client, request) = request.build_split();
        let request = request.unwrap();
        let what = format!("{} {}", request.method(), request.url().path());
        let answer = Answer::of(reqwest::RequestBuilder::from_parts(client, request)).await;
        assert_eq!(answer.status, status, "{what}");
        assert_eq!(answer.error().code, code, "{what}");
        assert_eq!(answer.header("content-type"), "application/json", "{what}");
    }
    plane.stop().await;
}
