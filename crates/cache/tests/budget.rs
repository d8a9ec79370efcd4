//! Budgets of hit rates over a running service: the same words for people and for Prometheus.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::budget::{Budget, Cause, Report, Verdict};
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::{Client, NOW, options, token, write_authority};

/// Two configured caches sat at 0 % for months: a cold one is named, with its cause, within one build.
#[test]
fn cold_cache_is_named_with_its_cause_and_found_warm_again() {
    let folder = tempfile::tempdir().unwrap();
    let minutes = Arc::new(AtomicI64::new(0));
    let clock = Arc::clone(&minutes);
    let options = Options {
        clock: Arc::new(move || Timestamp::from_micros(NOW + clock.load(Ordering::Relaxed) * 60_000_000)),
        ..options(folder.path(), Durability::PageCache)
    };
    let budget = Budget { hit_percent: 60, of_at_least: 10, within_minutes: 30 };
    write_authority(&options.authority, |snapshot| {
        for rule in &mut snapshot.scopes {
            rule.budget = Some(budget).filter(|_| matches!(rule.path.as_str(), "p/main" | "p/pr"));
        }
    });
    let running = start(options).unwrap();
    let mut client = Client::new(running.address);
    let admin = token("admin", Access::Admin);
    let check = |client: &mut Client, scope: &str| {
        let path = format!("/-/admin/check?scope={scope}");
        let answer = client.ask("GET", &path, Some(&admin), None);
        assert_eq!(answer.status, 200);
        serde_json::from_slice::<Report>(&answer.body).unwrap()
    };
    let met = |client: &mut Client, line: &str| {
        let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
        assert!(metrics.contains(&format!("forgeyard_cache_budget_met{{{line}\n")), "{line}: {metrics}");
    };
    assert_eq!(client.ask("GET", "/-/admin/check?scope=secret", Some(&admin), None).status, 404);
    assert_eq!(client.ask("GET", "/-/admin/check?scope=p/main", None, None).status, 403);

    assert_eq!(check(&mut client, "p/main").verdict, Verdict::Undecided);
    minutes.store(30, Ordering::Relaxed);
    let nobody = check(&mut client, "p/main");
    assert_eq!(nobody.verdict, Verdict::Cold(Cause::NoClient), "{}", nobody.text);

    let reader = token("p/main", Access::Read);
    for number in 0..10 {
        let path = format!("/p/main/-/kv/{number}");
        assert_eq!(client.ask("GET", &path, Some(&reader), None).status, 404);
        assert_eq!(client.ask("PUT", &path, Some(&reader), Some(b"x")).status, 403);
    }
    let denied = check(&mut client, "p/main");
    assert_eq!(denied.verdict, Verdict::Cold(Cause::Denied), "{}", denied.text);
    assert!(
        denied.text.contains("0 % of 10 reads") && denied.text.contains("may only read"),
        "{}",
        denied.text
    );
    met(&mut client, "scope=\"p/main\",cause=\"denied\"} 0");
    // a job asks with its own token, and is told of its own scope
    let own = client.ask("GET", "/-/budget", Some(&reader), None);
    assert_eq!(serde_json::from_slice::<Report>(&own.body).unwrap(), denied);
    let other = token("secret", Access::Write);
    for token in [None, Some(other.as_str())] {
        assert_eq!(client.ask("GET", "/-/budget", token, None).status, 404);
    }

    let writer = token("p/main", Access::Write);
    for number in 0..30 {
        client.ask("PUT", &format!("/p/main/-/kv/{number}"), Some(&writer), Some(b"x"));
        assert_eq!(client.ask("GET", &format!("/p/main/-/kv/{number}"), Some(&writer), None).status, 200);
    }
    assert_eq!(check(&mut client, "p/main").verdict, Verdict::Met);
    met(&mut client, "scope=\"p/main\",cause=\"\"} 1");

    // a pull request is watched by the budget of its family, from its first request on
    let fork = token("p/pr/7", Access::Write);
    for number in 0..20 {
        let path = format!("/p/main/-/kv/of-the-fork-{number}");
        client.ask("GET", &path, Some(&fork), None);
        client.ask("PUT", &path, Some(&fork), Some(b"x"));
        if number == 0 {
            running.maintain().unwrap();
        }
    }
    let churn = check(&mut client, "p/pr/7");
    assert_eq!((churn.verdict, churn.reads), (Verdict::Cold(Cause::KeyChurn), 20), "{}", churn.text);
    running.stop().unwrap();
}
