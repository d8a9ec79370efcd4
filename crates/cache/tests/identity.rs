//! The exchange of tokens, against a *simulated issuer*: a local HTTP server with RSA keys of its own that makes tokens as
//! GitHub and GitLab document them. No real forge was asked.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::identity::policy::{Issuer, IssuerKind};
use forgeyard_cache::identity::{Given, Minter};
use forgeyard_cache::service::{Options, Running, start_with};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::issuer::{AUDIENCE, Simulated, encode, issuer, modulus, with};
use support::{Client, NOW, key, options, write_authority};

struct Cache {
    running: Running,
    client: Client,
    now: Arc<AtomicI64>,
    _folder: tempfile::TempDir,
}

impl Cache {
    fn start(issuers: Vec<Issuer>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = Arc::new(AtomicI64::new(NOW));
        let clock = Arc::clone(&now);
        let options = options(folder.path(), Durability::PageCache);
        write_authority(&options.authority, |snapshot| snapshot.issuers = issuers);
        let clock: forgeyard_cache::store::Clock =
            Arc::new(move || Timestamp::from_micros(clock.load(Ordering::SeqCst)));
        let minter = Minter { id: "k".to_owned(), key: key() };
        let running = start_with(Options { clock, ..options }, Some(minter)).unwrap();
        let client = Client::new(running.address);
        Self { running, client, now, _folder: folder }
    }

    /// Status and body of an exchange.
    fn exchange(&mut self, token: &str) -> (u16, Value) {
        let body = json!({ "token": token }).to_string();
        let answer = self.client.ask("POST", "/v1/token", None, Some(body.as_bytes()));
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    fn given(&mut self, token: &str) -> Given {
        let (status, body) = self.exchange(token);
        assert_eq!(status, 200, "{body}");
        serde_json::from_value(body).unwrap()
    }

    fn refused(&mut self, token: &str, code: &str, words: &str) {
        let (status, body) = self.exchange(token);
        assert_eq!((status, &body["code"]), (403, &code.into()), "{body}");
        assert!(body["message"].as_str().unwrap().contains(words), "{body}");
        assert!(!body["fix"].as_str().unwrap().is_empty());
    }
}

#[test]
fn push_to_the_protected_default_branch_writes_main_and_a_pull_request_writes_its_own() {
    let simulated = Simulated::start();
    let mut cache = Cache::start(vec![issuer(IssuerKind::Github, &simulated)]);
    let main = cache.given(&simulated.sign("first", "first", &simulated.push("1")));
    assert_eq!((main.scope.as_str(), main.access), ("p/main", Access::Write));
    assert_eq!(main.expires_at, Timestamp::from_micros(NOW + 7200 * 1_000_000));
    let fork = with(
        simulated.push("2"),
        json!({"event_name": "pull_request", "ref": "refs/pull/9/merge", "ref_protected": "false"}),
    );
    let fork = cache.given(&simulated.sign("first", "first", &fork));
    assert_eq!((fork.scope.as_str(), fork.access), ("p/pr/9", Access::Write));
    let client = &mut cache.client;
    assert_eq!(client.ask("PUT", "/p/main/-/kv/a", Some(&main.token), Some(b"main's")).status, 201);
    assert_eq!(client.ask("GET", "/p/main/-/kv/a", Some(&fork.runtime_token), None).body, b"main's");
    assert_eq!(client.ask("PUT", "/p/main/-/kv/a", Some(&fork.token), Some(b"poison")).status, 201);
    assert_eq!(client.ask("GET", "/p/main/-/kv/a", None, None).body, b"main's");
    assert_eq!(simulated.fetches.load(Ordering::SeqCst), 1, "the keys are kept");
    cache.running.stop().unwrap();
}

#[test]
fn event_that_runs_with_the_rights_of_the_base_branch_reads_only() {
    let simulated = Simulated::start();
    let mut cache = Cache::start(vec![issuer(IssuerKind::Github, &simulated)]);
    for (number, event) in ["pull_request_target", "issue_comment", "workflow_run"].into_iter().enumerate() {
        let claims = with(simulated.push(&number.to_string()), json!({ "event_name": event }));
        let given = cache.given(&simulated.sign("first", "first", &claims));
        assert_eq!((given.scope.as_str(), given.access), ("p/main", Access::Read), "{event}");
        let put = cache.client.ask("PUT", "/p/main/-/kv/a", Some(&given.token), Some(b"poison"));
        assert_eq!(put.status, 403, "{event}");
    }
    let claims = with(simulated.push("9"), json!({"ref_protected": "false"}));
    assert_eq!(cache.given(&simulated.sign("first", "first", &claims)).access, Access::Read);
    cache.running.stop().unwrap();
}

#[test]
fn forged_foreign_expired_and_replayed_tokens_are_refused() {
    let simulated = Simulated::start();
    let mut cache = Cache::start(vec![issuer(IssuerKind::Github, &simulated)]);
    let push = simulated.push("1");
    let good = simulated.sign("first", "first", &push);
    let payload = good.split('.').nth(1).unwrap().to_owned();
    // alg none, and an HMAC with the public key as its secret
    let none = format!("{}.{payload}.", encode(json!({"alg": "none", "kid": "first"}).to_string()));
    cache.refused(&none, "exchange.token", "RS256");
    let signed = format!("{}.{payload}", encode(json!({"alg": "HS256", "kid": "first"}).to_string()));
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &modulus("first"));
    let hmac = format!("{signed}.{}", encode(ring::hmac::sign(&secret, signed.as_bytes())));
    cache.refused(&hmac, "exchange.token", "RS256");
    // another key under the issuer's id, and claims that were changed
    cache.refused(&simulated.sign("first", "second", &push), "exchange.token", "signature");
    let more = encode(with(push.clone(), json!({"ref": "refs/heads/main "})).to_string());
    let parts: Vec<&str> = good.split('.').collect();
    cache.refused(&format!("{}.{more}.{}", parts[0], parts[2]), "exchange.token", "signature");
    let sign = |changes: Value| simulated.sign("first", "first", &with(push.clone(), changes));
    // issuers that begin, or end, like the declared one
    for other in ["/", "/.attacker.example", "0"] {
        let issuer = format!("{}{other}", simulated.url);
        cache.refused(&sign(json!({ "iss": issuer })), "exchange.issuer", "not declared");
    }
    cache.refused(&sign(json!({"aud": "https://other.example"})), "exchange.token", "audience");
    cache.refused(&sign(json!({"aud": [format!("{AUDIENCE}/x")]})), "exchange.token", "audience");
    cache.refused(&sign(json!({"aud": null})), "exchange.token", "audience");
    let now = NOW / 1_000_000;
    for times in [
        json!({"exp": now - 61}),
        json!({"exp": null}),
        json!({"exp": "never"}),
        json!({"nbf": now + 61}),
        json!({"iat": now + 61}),
        json!({"exp": now + 90 * 86_400}),
    ] {
        cache.refused(&sign(times), "exchange.token", "expired");
    }
    // a repository with the same name and another number, and one that was handed to another owner
    cache.refused(&sign(json!({"repository_id": "101"})), "exchange.project", "number");
    cache.refused(&sign(json!({"repository_owner_id": "8"})), "exchange.project", "number");
    cache.refused("not a token", "exchange.token", "JSON web token");
    // within the minute by which clocks may differ, and only once
    let given = cache.given(&sign(json!({"exp": now - 59, "jti": "late"})));
    assert_eq!(given.access, Access::Write);
    cache.given(&good);
    cache.refused(&good, "exchange.replay", "before");
    cache.refused(&simulated.sign("first", "first", &push), "exchange.replay", "before");
    cache.running.stop().unwrap();
}

#[test]
fn new_key_of_the_issuer_is_fetched_once_and_made_up_ones_cost_it_nothing() {
    let simulated = Simulated::start();
    let mut cache = Cache::start(vec![issuer(IssuerKind::Github, &simulated)]);
    cache.given(&simulated.sign("first", "first", &simulated.push("1")));
    *simulated.published.lock().unwrap() = vec!["first", "second"];
    cache.refused(&simulated.sign("second", "second", &simulated.push("2")), "exchange.token", "publish");
    assert_eq!(simulated.fetches.load(Ordering::SeqCst), 1, "not again within thirty seconds");
    cache.now.fetch_add(31 * 1_000_000, Ordering::SeqCst);
    cache.given(&simulated.sign("second", "second", &simulated.push("2")));
    for number in 0..20 {
        let made_up = simulated.sign(&format!("key{number}"), "second", &simulated.push("3"));
        cache.refused(&made_up, "exchange.token", "publish");
    }
    assert_eq!(simulated.fetches.load(Ordering::SeqCst), 2);
    // a key that was taken back is gone with the next fetch; when the issuer fails, the known ones go on
    *simulated.published.lock().unwrap() = vec!["second"];
    cache.now.fetch_add(31 * 1_000_000, Ordering::SeqCst);
    let other = simulated.sign("other", "second", &simulated.push("4"));
    cache.refused(&other, "exchange.token", "publish");
    cache.refused(&simulated.sign("first", "first", &simulated.push("5")), "exchange.token", "publish");
    *simulated.up.lock().unwrap() = false;
    cache.now.fetch_add(31 * 1_000_000, Ordering::SeqCst);
    let (status, body) = cache.exchange(&simulated.sign("first", "first", &simulated.push("6")));
    assert_eq!((status, &body["code"]), (503, &"exchange.unavailable".into()), "{body}");
    cache.given(&simulated.sign("second", "second", &simulated.push("7")));
    cache.running.stop().unwrap();
}

#[test]
fn runtime_token_of_a_fork_is_exchanged_when_that_is_declared_and_clamped_to_its_pull_request() {
    let simulated = Simulated::start();
    let ac = |scopes: Value| {
        let now = NOW / 1_000_000;
        json!({"iss": simulated.url, "exp": now + 3600, "repository_id": "100", "ac": scopes.to_string(),
            "scp": "Actions.Results:a:b", "run_id": "4711"})
    };
    let fork = ac(
        json!([{"Scope": "refs/pull/9/merge", "Permission": 3}, {"Scope": "refs/heads/main", "Permission": 1}]),
    );
    let fork = simulated.sign("first", "first", &fork);
    let mut cache = Cache::start(vec![issuer(IssuerKind::Github, &simulated)]);
    cache.refused(&fork, "exchange.token", "audience");
    cache.running.stop().unwrap();
    let mut cache = Cache::start(vec![
        issuer(IssuerKind::GithubRuntime, &simulated),
        issuer(IssuerKind::Github, &simulated),
    ]);
    let given = cache.given(&fork);
    assert_eq!((given.scope.as_str(), given.access), ("p/pr/9", Access::Write));
    cache.refused(&fork, "exchange.replay", "before");
    // identity tokens go on as before, and one for another audience is none because runtime tokens are declared
    assert_eq!(cache.given(&simulated.sign("first", "first", &simulated.push("1"))).access, Access::Write);
    let other = with(simulated.push("2"), json!({"aud": "https://other.example"}));
    cache.refused(&simulated.sign("first", "first", &other), "exchange.token", "audience");
    let main = ac(json!([{"Scope": "refs/heads/main", "Permission": 3}]));
    let given = cache.given(&simulated.sign("first", "first", &main));
    assert_eq!((given.scope.as_str(), given.access), ("p/main", Access::Read), "main is never given for it");
    cache.running.stop().unwrap();
}

#[test]
fn token_of_gitlab_is_exchanged_by_the_numbers_of_project_and_namespace() {
    let simulated = Simulated::start();
    let mut cache = Cache::start(vec![issuer(IssuerKind::Gitlab, &simulated)]);
    let now = NOW / 1_000_000;
    let claims = json!({"iss": simulated.url, "aud": AUDIENCE, "jti": "1", "exp": now + 300, "project_id": "100",
        "namespace_id": "7", "pipeline_source": "push", "ref": "main", "ref_type": "branch", "ref_protected": "true",
        "pipeline_id": "12", "job_id": "34"});
    let given = cache.given(&simulated.sign("first", "first", &claims));
    assert_eq!((given.scope.as_str(), given.access), ("p/main", Access::Write));
    let merge = json!({"jti": "2", "pipeline_source": "merge_request_event", "ref_path": "refs/merge-requests/3/head"});
    let given = cache.given(&simulated.sign("first", "first", &with(claims, merge)));
    assert_eq!((given.scope.as_str(), given.access), ("p/pr/3", Access::Write));
    cache.running.stop().unwrap();
}

#[test]
fn without_a_declared_issuer_nothing_is_exchanged() {
    let simulated = Simulated::start();
    let mut cache = Cache::start(Vec::new());
    let (status, body) = cache.exchange(&simulated.sign("first", "first", &simulated.push("1")));
    assert_eq!((status, &body["code"]), (404, &"exchange.off".into()), "{body}");
    assert_eq!(simulated.fetches.load(Ordering::SeqCst), 0);
    cache.running.stop().unwrap();
}

/// A token that is stolen from a log must not be of use because the cache was restarted.
#[test]
fn token_that_was_exchanged_is_refused_after_a_restart() {
    let simulated = Simulated::start();
    let folder = tempfile::tempdir().unwrap();
    let token = simulated.sign("first", "first", &simulated.push("1"));
    for round in 0..3 {
        let options = options(folder.path(), Durability::PageCache);
        write_authority(&options.authority, |snapshot| {
            snapshot.issuers = vec![issuer(IssuerKind::Github, &simulated)];
        });
        let running = start_with(options, Some(Minter { id: "k".to_owned(), key: key() })).unwrap();
        let body = json!({ "token": &token }).to_string();
        let answer = Client::new(running.address).ask("POST", "/v1/token", None, Some(body.as_bytes()));
        let text = String::from_utf8(answer.body).unwrap();
        match round {
            0 => assert_eq!(answer.status, 200, "{text}"),
            _ => assert!(answer.status == 403 && text.contains("exchange.replay"), "{text}"),
        }
        running.stop().unwrap();
    }
}
