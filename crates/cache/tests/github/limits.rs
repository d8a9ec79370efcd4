//! Quotas, rates, names of projects, and what an admin removes.

use super::*;

/// What an admin removes is gone from here as well: the store is believed and not the catalog.
#[test]
fn entry_that_was_purged_is_a_miss_by_key_by_beginning_and_by_url() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    cache.save(&main, "linux-1", b"poison");
    let found = cache.look(&main, "linux-1", &[]);
    let admin = support::token("admin", Access::Admin);
    let purged =
        cache.client.ask("DELETE", "/-/admin/entries?writer=run%20of%20p%2Fmain", Some(&admin), None);
    assert_eq!(purged.body, b"{\"removed\":1}\n");
    assert_eq!(cache.look(&main, "linux-1", &["linux-"])["ok"], false);
    assert_eq!(cache.client.ask("GET", &path_of(&found["signed_download_url"]), None, None).status, 404);
    cache.save(&main, "linux-1", b"good");
    let found = cache.look(&main, "linux-", &[]);
    assert_eq!(cache.content(&found), b"good");
}

/// mozilla/sccache#2566, node#61436: GitHub's own service answers 429 after 200 uploads a minute, which a build of one entry
/// for each object file reaches at once.
#[test]
fn sccache_2566_five_hundred_uploads_within_a_minute_are_all_taken() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    for number in 0..500 {
        cache.save(&main, &format!("objects/a/b/c/{number:04}"), format!("object {number}").as_bytes());
    }
    let found = cache.look(&main, "objects/a/b/c/0499", &[]);
    assert_eq!(cache.content(&found), b"object 499");
}

/// ROCm/rocm-cli#353: no client of sccache removes anything, so a store without limits grows for ever.
#[test]
fn rocm_cli_353_scope_is_kept_within_its_quota_and_what_went_is_a_miss() {
    let mut cache = Cache::start(Durability::PageCache);
    let small = runtime_token("small", Access::Write);
    for number in 0..30_u8 {
        cache.save(&small, &format!("linux-{number:02}"), &vec![number; 100_000]);
        cache.pass(60);
    }
    // falcondev#65: what a client was just sent to is not collected under it
    let promised = cache.look(&small, "linux-00", &[]);
    cache.running.as_ref().unwrap().maintain().unwrap();
    assert_eq!(cache.content(&promised), vec![0; 100_000]);
    let admin = support::token("admin", Access::Admin);
    let stat = cache.client.ask("GET", "/-/admin/stat", Some(&admin), None);
    let stat: Value = serde_json::from_slice(&stat.body).unwrap();
    let held = stat["scopes"].as_array().unwrap().iter().find(|scope| scope["scope"] == "small").unwrap();
    assert!(held["bytes"].as_u64().unwrap() <= 1 << 20, "{held}");
    assert_eq!(
        cache.look(&small, "linux-01", &[])["ok"],
        false,
        "what was not used for longest is gone first"
    );
    assert_eq!(cache.look(&small, "linux-", &[])["matched_key"], "linux-29");
}

/// mozilla/sccache#2312: projects that shared a bucket got each other's objects.
#[test]
fn sccache_2312_same_key_of_two_projects_is_two_entries() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let small = runtime_token("small", Access::Write);
    cache.save(&main, "k", b"of p");
    assert_eq!(cache.look(&small, "k", &[])["ok"], false);
    cache.save(&small, "k", b"of small");
    for (token, content) in [(&main, &b"of p"[..]), (&small, b"of small")] {
        let found = cache.look(token, "k", &[]);
        assert_eq!(cache.content(&found), content);
    }
}
