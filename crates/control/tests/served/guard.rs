//! Every route of the router is walked: strangers get in nowhere but where the list says so, viewers change nothing,
//! and a cookie alone changes nothing.

use crate::rig::{Answer, Rig, cookie, request};
use axum::body::Body;
use axum::http::{Method, header};
use forgeyard_control::{auth, http};
use forgeyard_model::principal::Role;
use forgeyard_model::{Id, Timestamp};

/// Routes that answer strangers, each for a reason.
const OPEN: [(&str, &str); 15] = [
    ("/openapi.json", "describes the routes, which are the same everywhere"),
    ("/webhooks/{forge}", "proved by the signature of its body"),
    ("/agent/v1/redeem", "proved by a one-shot token in its body"),
    ("/site/v1/join", "proved by the join token in its body"),
    ("/channels/{name}", "published"),
    ("/channels/{name}/{subdir}/{file}", "published"),
    ("/api/v1/public-key", "public by its nature"),
    ("/healthz", "says only whether the database answers"),
    ("/status", "the public status page"),
    ("/status.json", "the same as JSON"),
    ("/login", "the way in"),
    ("/login/forge/{forge}", "the way in by a forge"),
    ("/login/callback", "proved by the state of a sign-in and the browser that began it"),
    ("/logout", "without a session there is nothing to end"),
    ("/assets/{file}", "style and script"),
];

/// Asks something, as POST, and changes nothing; or is said by everybody for themselves.
const ASKS: [&str; 3] = ["/api/v1/access/explain", "/api/v1/terms", "/terms"];

/// The path with parameters that are well formed.
fn filled(path: &str) -> String {
    let id = |kind: &str| {
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let text = forgeyard_model::JobId::new(at, 7).to_string();
        text.replacen("job", kind, 1)
    };
    let kinds = [
        ("/pipelines/", "pipe"),
        ("/jobs/", "job"),
        ("/devices/", "dev"),
        ("/leases/", "lease"),
        ("/runners/", "rnr"),
        ("/sites/", "site"),
        ("/artifacts/", "art"),
        ("/environments/", "env"),
        ("/demands/", "dem"),
    ];
    let kind = kinds.iter().find(|(part, _)| path.contains(part)).map_or("x", |(_, kind)| kind);
    path.replace("{id}", &id(kind))
        .replace("{attempt}", &id("att"))
        .replace("{digest}", &forgeyard_model::Digest::of(b"x").to_string())
        .replace("{kind}", "source")
        .replace("{forge}", "github")
        .replace("{name}", "main")
        .replace("{subdir}", "noarch")
        .replace("{file}", "repodata.json")
}

const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];

fn unsafe_methods() -> impl Iterator<Item = Method> {
    METHODS.into_iter().filter(|method| !method.is_safe())
}

#[test]
fn the_parameters_of_the_walk_are_well_formed() {
    let known: forgeyard_model::RunnerId =
        filled("/runners/{id}").rsplit('/').next().unwrap().parse().unwrap();
    assert!(known.to_string().starts_with("rnr_"));
    for (path, id) in [("/jobs/{id}", "job_"), ("/devices/{id}", "dev_"), ("/leases/{id}", "lease_")] {
        assert!(filled(path).contains(id), "{path}");
    }
}

#[tokio::test]
async fn no_route_is_open_by_accident() {
    let rig = Rig::start().await;
    let routes = http::routes();
    for (path, _) in OPEN {
        assert!(routes.paths().iter().any(|known| known == path), "{path} is on the list and not routed");
    }
    let mut refused = 0;
    for path in routes.paths().iter().filter(|path| OPEN.iter().all(|(open, _)| open != path)) {
        for method in METHODS {
            for forged in [None, Some("Bearer nobody"), Some("Basic YWRtaW46")] {
                let mut asked = request(method.clone(), &filled(path));
                if let Some(forged) = forged {
                    asked = asked.header(header::AUTHORIZATION, forged);
                }
                let answer = rig.ask(asked.body(Body::empty()).unwrap()).await;
                // An agent's path names its attempt; whether there is one is only told to who brings some token.
                let no_attempt = answer.status == 404 && path.starts_with("/agent/") && forged.is_some();
                let closed = matches!(answer.status, 401 | 405) || no_attempt;
                assert!(closed, "{method} {path} as {forged:?}: {} {}", answer.status, answer.body);
                refused += usize::from(answer.status == 401);
            }
        }
    }
    assert!(refused > 150, "{refused}");
    rig.end().await;
}

#[tokio::test]
async fn a_viewer_changes_nothing() {
    let rig = Rig::start().await;
    let viewer = rig.token("eve", Role::Viewer).await;
    let session = rig.session(&viewer);
    let csrf = rig.app.keys.csrf(&session);
    let before = rig.app.core.read().clone();
    let paths = http::routes();
    let closed = |path: &&String| OPEN.iter().all(|(open, _)| open != path) && !ASKS.contains(&path.as_str());
    for path in paths.paths().iter().filter(closed) {
        for method in unsafe_methods() {
            let json = request(method.clone(), &filled(path))
                .header(header::AUTHORIZATION, format!("Bearer {viewer}"))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(
                    r#"{"reason":"x","drain":true,"test_only":false,"name":"x","role":"admin"}"#,
                ));
            let form = request(method.clone(), &filled(path))
                .header(header::COOKIE, cookie(&session))
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Body::from(format!("csrf={csrf}&reason=x&drain=true&test_only=false")));
            for asked in [json, form] {
                let answer = rig.ask(asked.unwrap()).await;
                assert!(answer.status >= 400, "{method} {path}: {} {}", answer.status, answer.body);
            }
        }
    }
    let after = rig.app.core.read().clone();
    assert_eq!(before.tokens, after.tokens);
    assert_eq!(before.pipelines, after.pipelines);
    rig.end().await;
}

#[tokio::test]
async fn a_cookie_alone_changes_nothing() {
    let rig = Rig::start().await;
    let session = rig.session(&rig.admin);
    let foreign = rig.app.keys.csrf(&rig.session(&rig.token("other", Role::Admin).await));
    let paths = http::routes();
    let mut refused = 0;
    // The sign-in makes a session and takes none; the others of the list do not look at cookies.
    let closed = |path: &&String| path.as_str() == "/logout" || OPEN.iter().all(|(open, _)| open != path);
    for path in paths.paths().iter().filter(closed) {
        for method in unsafe_methods() {
            for (kind, body) in [
                ("application/json", r#"{"reason":"x","drain":true,"name":"x","role":"admin"}"#.to_owned()),
                ("application/x-www-form-urlencoded", "reason=x&drain=true".to_owned()),
                ("application/x-www-form-urlencoded", format!("csrf={foreign}&reason=x&drain=true")),
                ("application/x-www-form-urlencoded", "csrf=&reason=x&drain=true".to_owned()),
                ("text/plain", "csrf=".to_owned()),
            ] {
                let asked = request(method.clone(), &filled(path))
                    .header(header::COOKIE, cookie(&session))
                    .header(header::CONTENT_TYPE, kind)
                    .header(auth::CSRF_HEADER, &foreign)
                    .body(Body::from(body));
                let answer = rig.ask(asked.unwrap()).await;
                // 401: calls of sites and agents know no cookies. 400: not even a form.
                assert!(matches!(answer.status, 400 | 401 | 403 | 405), "{method} {path}: {}", answer.status);
                refused += usize::from(answer.body.contains("auth.csrf"));
            }
        }
    }
    assert!(refused > 60, "{refused}");
    rig.end().await;
}

#[tokio::test]
async fn with_its_token_a_cookie_is_as_good_as_the_token_of_the_principal() {
    let rig = Rig::start().await;
    let session = rig.session(&rig.admin);
    let send = |csrf: Option<String>| {
        let mut asked = request(Method::POST, "/api/v1/tokens")
            .header(header::COOKIE, cookie(&session))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(csrf) = csrf {
            asked = asked.header(auth::CSRF_HEADER, csrf);
        }
        asked.body(Body::from(r#"{"name":"ci","role":"viewer"}"#)).unwrap()
    };
    assert_eq!(rig.ask(send(None)).await.status, 403);
    assert_eq!(rig.ask(send(Some(rig.app.keys.csrf(&session)))).await.status, 200);
    // A session that the farm did not sign, or whose end was moved, is none.
    for forged in [session.replacen('.', ".9", 1), format!("{session}0"), "x".to_owned(), String::new()] {
        let asked = request(Method::GET, "/api/v1/status").header(header::COOKIE, cookie(&forged));
        let answer: Answer = rig.ask(asked.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 401, "{forged}");
    }
    rig.end().await;
}
