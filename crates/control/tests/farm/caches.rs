//! A build cache as its pages show it.

use super::NOW;
use forgeyard_api::cache::{
    CacheBudget, CacheBudgetState, CacheEntries, CacheEntry, CacheMoment, CacheScope, CacheTraffic,
    CacheView, CacheWarm,
};
use forgeyard_model::Timestamp;

fn traffic(client: &str, hits: u64, parent_hits: u64, misses: u64, writes: u64) -> CacheTraffic {
    CacheTraffic {
        client: client.to_owned(),
        hits,
        parent_hits,
        misses,
        writes,
        spared: hits + parent_hits,
        bytes_out: (hits + parent_hits) * 61_000,
        bytes_in: writes * 64_000,
        made: writes,
        made_millis: writes * 3_400,
        saved_millis: (writes > 0).then_some((hits + parent_hits) * 3_400 / 2),
        ..CacheTraffic::default()
    }
}

fn scope(name: &str, entries: u64, traffic: Vec<CacheTraffic>) -> CacheScope {
    CacheScope { scope: name.to_owned(), entries, bytes: entries * 63_000, traffic, budget: None }
}

/// A trusted scope that is warm, one of a pull request that lives on it, one that has gone cold.
pub fn cache() -> CacheView {
    let mut main = scope(
        "kestrel/main",
        48_211,
        vec![traffic("ccache", 81_020, 0, 6_400, 6_391), traffic("dav", 12_002, 0, 911, 905)],
    );
    main.budget = Some(CacheBudget {
        state: CacheBudgetState::Met,
        cause: None,
        text: "92 % of 100333 reads of the last 1440 minutes hit, asked for are 60 %".to_owned(),
    });
    let fork = scope("kestrel/pr/4117", 37, vec![traffic("ccache", 12, 4_912, 41, 37)]);
    let mut cold = scope("wheels", 2_010, vec![traffic("bazel", 4, 0, 1_801, 0)]);
    cold.traffic[0].denied = 1_790;
    cold.budget = Some(CacheBudget {
        state: CacheBudgetState::Missed,
        cause: Some("denied".to_owned()),
        text: "0 % of 1805 reads of the last 60 minutes hit, asked for are 60 %. cold (denied): writes are denied: the token of \
               the job may only read, has expired, or is of another scope"
            .to_owned(),
    });
    let quarter = |number: i64| {
        let at = Timestamp::from_micros(NOW.as_micros() - number * 900_000_000);
        let wave = (number - 40).unsigned_abs() * 23 % 700;
        CacheMoment { at, hits: 400 + wave, misses: 30 + wave / 6, writes: 25 + wave / 8 }
    };
    CacheView {
        address: "http://10.0.0.4:8420".to_owned(),
        disk_bytes: 31 << 30,
        capacity_bytes: 50 << 30,
        entries: 50_258,
        tail_idle_minutes: Some(8_130),
        scopes: vec![main, fork, cold],
        price_per_cpu_hour: Some("0.04".parse().unwrap()),
        warm: warm(),
        day: (0..90).rev().filter(|number| number % 13 != 0).map(quarter).collect(),
    }
}

/// One of each kind: fresh, being fetched, failing.
fn warm() -> Vec<CacheWarm> {
    let ago = |minutes: i64| Timestamp::from_micros(NOW.as_micros() - minutes * 60_000_000);
    let thing = |kind: &str, path: &str, source: &str, bytes: u64| CacheWarm {
        list: "kestrel".to_owned(),
        kind: kind.to_owned(),
        path: path.to_owned(),
        source: source.to_owned(),
        bytes,
        fetching: None,
        last_good: Some(ago(12)),
        error: None,
        next: None,
    };
    let mirror = thing(
        "git",
        "/pre/kestrel/-/warm/git/kestrel.git",
        "https://git.example.org/kestrel-sim/kestrel.git",
        812 << 20,
    );
    let image = thing(
        "container",
        "/v2/pre/kestrel/warm/docker.io/library/ubuntu:24.04",
        "docker.io/library/ubuntu:24.04",
        0,
    );
    let input = thing(
        "input",
        "/pre/kestrel/-/warm/sha256/9a129038d9a00aed",
        "https://models.example.org/weights.bin",
        0,
    );
    vec![
        mirror,
        CacheWarm { fetching: Some(17 << 20), last_good: None, ..image },
        CacheWarm {
            last_good: None,
            error: Some("https://models.example.org/weights.bin: its source answers 404 Not Found; correct its address".to_owned()),
            next: Some(Timestamp::from_micros(NOW.as_micros() + 240_000_000)),
            ..input
        },
    ]
}

/// Entries of a scope, two of many.
pub fn entries() -> CacheEntries {
    let entry = |key: &str, run: Option<&str>| CacheEntry {
        kind: "ccache".to_owned(),
        key: key.to_owned(),
        size: 61_004,
        stored_at: Timestamp::from_micros(NOW.as_micros() - 5_000_000_000),
        principal: "kestrel-sim/kestrel".to_owned(),
        run: run.map(ToOwned::to_owned),
        client: "ccache/4.14".to_owned(),
    };
    CacheEntries {
        scope: "kestrel/main".to_owned(),
        entries: vec![
            entry("0c9a1f3be0a6c8d1f7be1c55b2f8c7d0a1b2", Some("9182736455-1")),
            entry("0c9b7710aa3e5d1f7be1c55b2f8c7d0a1c9d", None),
        ],
        of: 48_211,
    }
}
