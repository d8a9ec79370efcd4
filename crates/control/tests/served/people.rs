//! Signing in and out, and what pages and errors look like to browsers and to programs.

use crate::rig::{Answer, Rig, cookie, request};
use axum::body::Body;
use axum::http::{Method, header};
use forgeyard_control::console::assets;
use forgeyard_model::principal::Role;
use std::sync::atomic::Ordering;

async fn sign_in(rig: &Rig, token: &str, next: &str, from: Option<(&str, &str)>) -> Answer {
    let mut asked =
        request(Method::POST, "/login").header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    if let Some((name, value)) = from {
        asked = asked.header(name, value);
    }
    rig.ask(asked.body(Body::from(format!("token={token}&next={next}"))).unwrap()).await
}

async fn get(rig: &Rig, path: &str, session: Option<&str>) -> Answer {
    let mut asked = request(Method::GET, path).header(header::ACCEPT, "text/html,*/*;q=0.8");
    if let Some(session) = session {
        asked = asked.header(header::COOKIE, cookie(session));
    }
    rig.ask(asked.body(Body::empty()).unwrap()).await
}

fn session_of(answer: &Answer) -> String {
    let set = answer.header(header::SET_COOKIE);
    set.split(';').next().unwrap().split_once('=').unwrap().1.to_owned()
}

#[tokio::test]
async fn a_session_begins_with_a_token_and_ends_after_twelve_hours() {
    let rig = Rig::start().await;
    let answer = sign_in(&rig, &rig.admin, "/devices?x=1", None).await;
    assert_eq!((answer.status, answer.header(header::LOCATION)), (303, "/devices?x=1"));
    let set = answer.header(header::SET_COOKIE).to_owned();
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"] {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains(&rig.admin), "the cookie does not hold the token");
    let session = session_of(&answer);
    assert_eq!(get(&rig, "/pipelines", Some(&session)).await.status, 200);
    rig.ahead.store(12 * 3600 + 1, Ordering::Relaxed);
    let over = get(&rig, "/pipelines?state=failed", Some(&session)).await;
    assert_eq!(over.status, 303);
    assert_eq!(over.header(header::LOCATION), "/login?next=%2Fpipelines%3Fstate%3Dfailed");
    rig.end().await;
}

#[tokio::test]
async fn a_wrong_token_and_a_foreign_page_do_not_sign_in() {
    let rig = Rig::start().await;
    let wrong = sign_in(&rig, "fy_wrong", "/", None).await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.body.contains("auth.unknown_token") && wrong.headers.get(header::SET_COOKIE).is_none());
    let foreign = [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")];
    for from in foreign {
        let answer = sign_in(&rig, &rig.admin, "/", Some(from)).await;
        assert_eq!(answer.status, 403, "{from:?}");
        assert!(answer.headers.get(header::SET_COOKIE).is_none());
    }
    let own = ("origin", "http://farm.test");
    assert_eq!(
        sign_in(&rig, &rig.admin, "//evil.example", Some(own)).await.header(header::LOCATION),
        "/pipelines"
    );
    rig.end().await;
}

#[tokio::test]
async fn signing_out_needs_the_page_and_takes_the_cookie() {
    let rig = Rig::start().await;
    let session = session_of(&sign_in(&rig, &rig.admin, "/", None).await);
    let out = |csrf: String| {
        request(Method::POST, "/logout")
            .header(header::COOKIE, cookie(&session))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(format!("csrf={csrf}")))
            .unwrap()
    };
    assert_eq!(rig.ask(out(String::new())).await.status, 403);
    let answer = rig.ask(out(rig.app.keys.csrf(&session))).await;
    assert_eq!(answer.header(header::LOCATION), "/login");
    assert!(answer.header(header::SET_COOKIE).contains("Max-Age=0"));
    rig.end().await;
}

#[tokio::test]
async fn every_page_is_there_with_its_policy() {
    let rig = Rig::start().await;
    let site = rig.join().await;
    rig.report(site).await;
    let pipeline = rig.run("demo").await;
    let job = rig.plan_of(pipeline);
    let artifact = rig.app.core.read().artifacts_of(pipeline).next().unwrap().id;
    let session = rig.session(&rig.admin);
    let pages = [
        "/pipelines".to_owned(),
        "/pipelines?state=active".to_owned(),
        format!("/pipelines/{pipeline}"),
        format!("/jobs/{job}"),
        "/devices".to_owned(),
        "/sites".to_owned(),
        "/artifacts".to_owned(),
        format!("/artifacts/{artifact}"),
        "/channel".to_owned(),
        "/environments".to_owned(),
        "/access".to_owned(),
        "/access?repository=9000000001&person=7000000001&event=push&resource=local".to_owned(),
        "/deliveries".to_owned(),
        "/audit".to_owned(),
        format!("/audit?subject={job}"),
        "/status".to_owned(),
    ];
    for page in pages {
        let answer = get(&rig, &page, Some(&session)).await;
        assert_eq!(answer.status, 200, "{page}: {}", answer.body);
        assert!(answer.body.starts_with("<!DOCTYPE html>"), "{page}");
        assert_eq!(answer.header(header::CONTENT_SECURITY_POLICY), assets::CONTENT_SECURITY_POLICY, "{page}");
        assert_eq!(answer.header(header::CACHE_CONTROL), "no-store", "{page}");
        assert_eq!(answer.header(header::X_CONTENT_TYPE_OPTIONS), "nosniff", "{page}");
    }
    for part in [
        "/pipelines?fragment=rows".to_owned(),
        format!("/pipelines/{pipeline}?fragment=chain"),
        format!("/jobs/{job}?fragment=state"),
    ] {
        let answer = get(&rig, &part, Some(&session)).await;
        assert!(answer.status == 200 && !answer.body.contains("<html"), "{part}");
    }
    let allowed = get(
        &rig,
        "/access?repository=9000000001&person=7000000001&event=push&resource=local",
        Some(&session),
    );
    assert!(allowed.await.body.contains(">Allowed<"));
    for asset in assets::all() {
        let answer = get(&rig, &asset.path, None).await;
        assert_eq!((answer.status, answer.body.as_bytes()), (200, asset.body));
        assert_eq!(answer.header(header::CACHE_CONTROL), assets::CACHE_CONTROL);
    }
    rig.end().await;
}

#[tokio::test]
async fn browsers_get_errors_as_pages_and_programs_get_the_one_error() {
    let rig = Rig::start().await;
    let session = rig.session(&rig.admin);
    for path in ["/nowhere", "/jobs/nonsense", "/jobs/job_00000000000000000000000000", "/channel/nope"] {
        let answer = get(&rig, path, Some(&session)).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("There is no such thing here"), "{path}: {}", answer.body);
        assert_eq!(answer.header(header::CONTENT_SECURITY_POLICY), assets::CONTENT_SECURITY_POLICY);
    }
    let described = get(&rig, "/channels/none", Some(&session)).await;
    assert_eq!(described.header(header::LOCATION), "/channel/none");
    for (path, status, kind) in [
        ("/api/v1/nowhere", 404, "not_found"),
        ("/api/v1/jobs/nonsense", 400, "invalid"),
        ("/api/v1/events?before=x", 400, "invalid"),
        ("/channels/none/noarch/repodata.json", 404, "not_found"),
        ("/api/v1/runs", 405, "invalid"),
    ] {
        let answer = get(&rig, path, Some(&session)).await;
        assert_eq!(answer.status, status, "{path}");
        let error: forgeyard_api::ApiError = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(serde_json::to_value(error.kind).unwrap(), kind, "{path}");
    }
    rig.end().await;
}

#[tokio::test]
async fn a_link_from_another_site_leads_inside_without_a_second_sign_in() {
    let rig = Rig::start().await;
    let asked = request(Method::GET, "/pipelines?state=failed")
        .header(header::ACCEPT, "text/html")
        .header("sec-fetch-site", "cross-site");
    let answer = rig.ask(asked.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains(r#"content="0;url=/pipelines?state=failed""#), "{}", answer.body);
    rig.end().await;
}

#[tokio::test]
async fn strangers_see_that_the_farm_works_and_no_more() {
    let rig = Rig::start().await;
    let site = rig.join().await;
    rig.report(site).await;
    rig.run("secret-project").await;
    for path in ["/status", "/status.json"] {
        let answer = get(&rig, path, None).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains("pthread-haswell"), "{path}");
        for hidden in ["secret-project", "opencl:0:0", "6.1.0", "admin", "name=\"csrf\""] {
            assert!(!answer.body.contains(hidden), "{path} shows {hidden}");
        }
    }
    rig.end().await;
}

#[tokio::test]
async fn actions_need_the_same_role_as_in_the_api() {
    let rig = Rig::start().await;
    let site = rig.join().await;
    rig.report(site).await;
    let job = rig.plan_of(rig.run("demo").await);
    let device = *rig.app.core.read().devices.keys().next().unwrap();
    let roles = [Role::Viewer, Role::Maintainer, Role::Operator];
    for (path, fields, api, json, least) in [
        (format!("/jobs/{job}/cancel"), "", format!("/api/v1/jobs/{job}/cancel"), "{}", Role::Maintainer),
        (format!("/jobs/{job}/rerun"), "", format!("/api/v1/jobs/{job}/rerun"), "{}", Role::Maintainer),
        (
            format!("/devices/{device}/quarantine"),
            "&reason=loud+fan",
            format!("/api/v1/devices/{device}/quarantine"),
            r#"{"reason":"loud fan"}"#,
            Role::Operator,
        ),
        (
            format!("/devices/{device}/clear"),
            "",
            format!("/api/v1/devices/{device}/clear"),
            "{}",
            Role::Operator,
        ),
        (
            format!("/sites/{site}/drain"),
            "&drain=true",
            format!("/api/v1/sites/{site}/drain"),
            r#"{"drain":true}"#,
            Role::Operator,
        ),
    ] {
        for role in roles {
            let token = rig.token("somebody", role).await;
            let session = rig.session(&token);
            let csrf = rig.app.keys.csrf(&session);
            let form = request(Method::POST, &path)
                .header(header::COOKIE, cookie(&session))
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Body::from(format!("csrf={csrf}{fields}")));
            let call = request(Method::POST, &api)
                .header(header::AUTHORIZATION, format!("Bearer {token}"))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(json));
            for asked in [form, call] {
                let answer = rig.ask(asked.unwrap()).await;
                assert_eq!(answer.status == 403, role < least, "{path} as {role}: {}", answer.body);
            }
        }
    }
    // What was done is on the record under the name of who did it.
    let query = forgeyard_db::EventQuery { subject: Some(device.to_string()), before: None, limit: 10 };
    let events = rig.app.store.events(query).await.unwrap();
    assert!(events.iter().any(|event| event.to == "quarantined" && event.by.name == "somebody"));
    rig.end().await;
}
