//! The table of routes, the document made from it and the real router say the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_api::routes::{Method, ROUTES};
use forgeyard_api::{agent, site};
use plane::repository::Repository;
use plane::site::Site;
use plane::{Answer, Setup, chain, schema};
use std::collections::BTreeSet;
use std::path::Path;

/// A path with something in place of each parameter.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_route_is_there() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    for route in ROUTES {
        let method = route.method.as_str().parse().unwrap();
        let request = plane.http.request(method, format!("{}{}", plane.url, filled(route.path)));
        let answer = request.bearer_auth(&plane.token).send().await.unwrap();
        let (status, name) = (answer.status().as_u16(), format!("{} {}", route.method.as_str(), route.path));
        assert_ne!(status, 405, "{name}");
        if status == 404 {
            let error: forgeyard_api::ApiError = answer.json().await.unwrap();
            assert_ne!(error.code, "http.no_route", "{name}");
        }
    }
    plane.stop().await;
}

/// The text up to the parenthesis that ends a call.
fn arguments(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    &text[..end.unwrap()]
}

/// What a `.route(` call registers: its path as it is written, and the methods.
fn registered(text: &str) -> Vec<(String, Method)> {
    let mut found = Vec::new();
    for call in text.split(".route(").skip(1).map(arguments) {
        let (path, handlers) = call.split_once(',').unwrap();
        let end = handlers.find(".layer(").unwrap_or(handlers.len());
        let path = match path.trim() {
            "agent::REDEEM" => agent::REDEEM,
            "agent::WAIT" => agent::WAIT,
            "agent::HEARTBEAT" => agent::HEARTBEAT,
            "agent::CACHE" => agent::CACHE,
            "agent::LOG" => agent::LOG,
            "agent::BLOB" => agent::BLOB,
            "agent::ARTIFACT" => agent::ARTIFACT,
            "agent::FINISH" => agent::FINISH,
            "agent::RUNNER_CONFIG" => agent::RUNNER_CONFIG,
            "agent::RUNNER_TOOK" => agent::RUNNER_TOOK,
            "site::JOIN" => site::JOIN,
            "site::DESIRED" => site::DESIRED,
            "site::REPORT" => site::REPORT,
            literal => {
                literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("a literal path")
            }
        };
        for (name, method) in [("get(", Method::Get), ("post(", Method::Post), ("put(", Method::Put)] {
            if handlers[..end].contains(name) {
                found.push((path.to_owned(), method));
            }
        }
    }
    found
}

#[test]
fn every_route_of_the_router_is_documented() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")];
    let mut registered_routes = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            // The pages for people are no contract; `routes.rs` is what the calls go through.
            if path.is_dir() && !path.ends_with("console") {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("routes.rs") {
                registered_routes.extend(registered(&std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    let documented: BTreeSet<_> = ROUTES.iter().map(|route| (route.path.to_owned(), route.method)).collect();
    assert_eq!(registered_routes, documented);
}

#[tokio::test(flavor = "multi_thread")]
async fn document_is_served_and_describes_every_route() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let answer = Answer::of(plane.http.get(format!("{}/openapi.json", plane.url))).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let document = answer.json();
    for route in ROUTES {
        let method = route.method.as_str().to_ascii_lowercase();
        assert!(document["paths"][route.path][method].is_object(), "{}", route.path);
    }
    assert_eq!(document["paths"].as_object().unwrap().len(), {
        let paths: BTreeSet<_> = ROUTES.iter().map(|route| route.path).collect();
        paths.len()
    });
    plane.stop().await;
}

/// A whole pipeline leaves something behind every list, so that the answers are not empty.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_as_the_document_says() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push", &repository.pushed(&repository.head())).await;
    let view = chain::drive(&plane, &mut site, pipeline).await;
    let document = Answer::of(plane.get("/openapi.json")).await.json();
    let mut seen = 0;
    for route in ROUTES.iter().filter(|route| route.method == Method::Get && route.path.starts_with("/api/"))
    {
        let answer = &document["paths"][route.path]["get"]["responses"]["200"]["content"]["application/json"];
        if answer.is_null() {
            continue;
        }
        let ids = match route.path {
            path if path.starts_with("/api/v1/pipelines/") => vec![pipeline.to_string()],
            path if path.starts_with("/api/v1/jobs/") => {
                view.jobs.iter().map(|job| job.id.to_string()).collect()
            }
            path if path.starts_with("/api/v1/artifacts/") => {
                view.artifacts.iter().map(|artifact| artifact.id.to_string()).collect()
            }
            "/api/v1/pools/{name}" => vec!["local".to_owned()],
            "/api/v1/config/history/{number}" => vec!["1".to_owned()],
            // This farm has none.
            path if path.starts_with("/api/v1/demands/") || path.starts_with("/api/v1/cache") => Vec::new(),
            _ => vec![String::new()],
        };
        for id in ids {
            let path = ["{id}", "{name}", "{number}"]
                .iter()
                .fold(route.path.to_owned(), |path, part| path.replace(part, &id));
            let given = Answer::of(plane.get(&path)).await;
            assert_eq!(given.status, 200, "{path}");
            schema::fits(&document, &answer["schema"], &given.json(), &path).unwrap();
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} answers were looked at");
    let refusal = Answer::of(plane.get("/api/v1/nothing")).await.json();
    let error = serde_json::json!({ "$ref": "#/components/schemas/ApiError" });
    schema::fits(&document, &error, &refusal, "refusal").unwrap();
    // The looking itself finds what is wrong.
    assert!(schema::fits(&document, &error, &serde_json::json!({ "kind": "odd" }), "wrong").is_err());
    plane.stop().await;
}
