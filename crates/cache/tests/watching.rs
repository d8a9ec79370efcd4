//! What those who look after a running service see: what hits saved, the last day, who read what.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::{Page, Stat};
use forgeyard_cache::readers::Reading;
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::{Client, NOW, options, service, token};

#[test]
fn what_a_hit_saves_is_the_time_between_a_miss_and_its_write() {
    let folder = tempfile::tempdir().unwrap();
    let seconds = Arc::new(AtomicI64::new(0));
    let clock = Arc::clone(&seconds);
    let options = Options {
        clock: Arc::new(move || Timestamp::from_micros(NOW + clock.load(Ordering::Relaxed) * 1_000_000)),
        ..options(folder.path(), Durability::PageCache)
    };
    let running = start(options).unwrap();
    running.price("0.36".parse().unwrap());
    let mut client = Client::new(running.address);
    let (writer, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    for key in ["/p/main/-/kv/a", "/p/main/-/kv/b"] {
        assert_eq!(client.ask("GET", key, Some(&writer), None).status, 404);
        seconds.fetch_add(3, Ordering::Relaxed);
        assert_eq!(client.ask("PUT", key, Some(&writer), Some(b"made")).status, 201);
    }
    // never missed, so nobody knows how long it took
    client.ask("PUT", "/p/main/-/kv/c", Some(&writer), Some(b"made"));
    seconds.fetch_add(900, Ordering::Relaxed);
    for _ in 0..4 {
        assert_eq!(client.ask("GET", "/p/main/-/kv/a", Some(&fork), None).status, 200);
    }
    let answer = client.ask("GET", "/-/admin/stat", Some(&token("admin", Access::Admin)), None);
    let stat: Stat = serde_json::from_slice(&answer.body).unwrap();
    let of = |scope: &str| stat.traffic.iter().find(|it| it.scope == scope).unwrap();
    assert_eq!((of("p/main").made, of("p/main").made_millis), (2, 6000));
    assert_eq!((of("p/pr/7").spared, of("p/pr/7").parent_hits), (4, 4));
    assert!(stat.capacity_bytes > 0);
    // the fork made nothing itself: what main took for it tells what it was spared
    assert_eq!(of("p/pr/7").saved_millis(&stat.traffic), Some(4 * 3000));
    assert_eq!(stat.price_per_cpu_hour.unwrap().for_millis(4 * 3000).to_string(), "0.0012");
    let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
    for line in [
        "seconds_total{scope=\"p/pr/7\",surface=\"kv\"} 12.000",
        "money_total{scope=\"p/pr/7\",surface=\"kv\"} 0.0012",
    ] {
        assert!(metrics.contains(&format!("forgeyard_cache_saved_{line}\n")), "{line}: {metrics}");
    }
    assert_eq!(
        stat.day.iter().map(|it| (it.hits, it.misses, it.writes)).fold((0, 0, 0), |a, b| (
            a.0 + b.0,
            a.1 + b.1,
            a.2 + b.2
        )),
        (4, 2, 3)
    );
    running.stop().unwrap();
}

/// Cache poisoning became a class of attack in 2026: once a writer is known to be hostile, the builds that took something
/// of it must be known too, also after a restart.
#[test]
fn builds_that_read_what_a_writer_wrote_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    client.ask("PUT", "/p/main/-/kv/shared", Some(&main), Some(b"x"));
    client.ask("PUT", "/p/main/-/kv/other", Some(&main), Some(b"x"));
    client.ask("PUT", "/p/pr/7/-/kv/own", Some(&fork), Some(b"y"));
    for (path, token) in [
        ("/p/main/-/kv/shared", Some(&fork)),
        ("/p/main/-/kv/shared", Some(&fork)),
        ("/p/pr/7/-/kv/own", Some(&fork)),
        ("/p/main/-/kv/shared", None),
    ] {
        assert_eq!(client.ask("GET", path, token.map(String::as_str), None).status, 200, "{path}");
    }
    drop(client);
    running.stop().unwrap();

    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let admin = token("admin", Access::Admin);
    let mut readers = |query: &str| {
        let answer = client.ask("GET", &format!("/-/admin/readers?{query}"), Some(&admin), None);
        assert_eq!(answer.status, 200);
        let text = String::from_utf8(answer.body).unwrap();
        let readings = text.lines().map(|line| serde_json::from_str::<Reading>(line).unwrap());
        let mut all: Vec<_> =
            readings.map(|it| (it.reader.run.unwrap_or_default(), it.entries, it.reads)).collect();
        all.sort();
        all
    };
    let fork_run = "run of p/pr/7".to_owned();
    assert_eq!(readers("writer=run+of+p/main"), [(String::new(), 1, 1), (fork_run.clone(), 1, 2)]);
    assert_eq!(readers("writer=run+of+p/pr/7"), [(fork_run.clone(), 1, 1)]);
    assert_eq!(readers("scope=p/main&prefix=other"), []);
    assert_eq!(readers("scope=p/main&prefix=sha"), [(String::new(), 1, 1), (fork_run, 1, 2)]);
    assert_eq!(client.ask("GET", "/-/admin/readers", Some(&admin), None).status, 404);
    assert_eq!(client.ask("GET", "/-/admin/readers?scope=p/main", Some(&main), None).status, 403);
    running.stop().unwrap();
}

#[test]
fn entries_of_a_scope_are_listed_by_key_and_counted_beyond_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let writer = token("p/main", Access::Write);
    for key in ["b2", "a1", "b1", "b3"] {
        client.ask("PUT", &format!("/p/main/-/kv/{key}"), Some(&writer), Some(b"x"));
    }
    let path = "/-/admin/entries?scope=p/main&prefix=b&most=2";
    let answer = client.ask("GET", path, Some(&token("admin", Access::Admin)), None);
    let page: Page = serde_json::from_slice(&answer.body).unwrap();
    let keys: Vec<&str> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!((keys.as_slice(), page.of), (["b1", "b2"].as_slice(), 3));
    running.stop().unwrap();
}
