//! GitHub's cache and artifact services over HTTP. *Protocol tests*: the requests are written by hand, for what the official
//! clients cannot be made to do. The clients themselves are in `github_clients.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod artifacts;
mod limits;
mod uploads;

#[path = "../support/mod.rs"]
mod support;

use forgeyard_cache::authority::Snapshot;
use forgeyard_cache::github::Backend;
use forgeyard_cache::github::messages::{
    CreateCacheEntryRequest, CreateCacheEntryResponse, GetCacheEntryDownloadUrlRequest,
    GetCacheEntryDownloadUrlResponse,
};

use forgeyard_cache::scope::ScopeRule;
use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::{Digest, Timestamp};
use prost::Message as _;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::{Answer, Client, NOW, options, runtime_token, write_authority};

const CACHE: &str = "/twirp/github.actions.results.api.v1.CacheService";
const ARTIFACT: &str = "/twirp/github.actions.results.api.v1.ArtifactService";
/// Of the official client's form.
const VERSION: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Beside the usual scopes, one with a quota of 1 MiB.
fn scopes(snapshot: &mut Snapshot) {
    let small = ScopeRule { quota_mib: Some(1), ..ScopeRule::new("small".parse().unwrap()) };
    snapshot.scopes.push(small);
}

struct Cache {
    running: Option<Running>,
    client: Client,
    now: Arc<AtomicI64>,
    folder: tempfile::TempDir,
    durability: Durability,
}

impl Cache {
    fn start(durability: Durability) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = Arc::new(AtomicI64::new(NOW));
        let running = Self::run(&folder, &now, durability);
        let client = Client::new(running.address);
        Self { running: Some(running), client, now, folder, durability }
    }

    fn run(folder: &tempfile::TempDir, now: &Arc<AtomicI64>, durability: Durability) -> Running {
        let clock = Arc::clone(now);
        let clock: forgeyard_cache::store::Clock =
            Arc::new(move || Timestamp::from_micros(clock.load(Ordering::SeqCst)));
        let options = options(folder.path(), durability);
        write_authority(&options.authority, scopes);
        start(Options { clock, ..options }).unwrap()
    }

    fn restart(&mut self) {
        self.running.take().unwrap().stop().unwrap();
        let running = Self::run(&self.folder, &self.now, self.durability);
        self.client = Client::new(running.address);
        self.running = Some(running);
    }

    fn pass(&self, seconds: i64) {
        self.now.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    fn post(&mut self, path: &str, kind: &str, token: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: cache.example:8420\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.client.send(&[head.as_bytes(), body].concat());
        self.client.answer(false)
    }

    fn call(&mut self, service: &str, method: &str, token: &str, body: &Value) -> (u16, Value) {
        let path = format!("{service}/{method}");
        let answer = self.post(&path, "application/json", token, body.to_string().as_bytes());
        (answer.status, serde_json::from_slice(&answer.body).unwrap())
    }

    fn create(&mut self, token: &str, key: &str) -> (u16, Value) {
        self.call(CACHE, "CreateCacheEntry", token, &json!({"key": key, "version": VERSION}))
    }

    /// Reserves a key; answers with path and query of the URL.
    fn reserved(&mut self, token: &str, key: &str) -> String {
        let (status, body) = self.create(token, key);
        assert_eq!(status, 200, "{body}");
        path_of(&body["signed_upload_url"])
    }

    fn finalize(&mut self, token: &str, key: &str, size: usize) -> (u16, Value) {
        let body = json!({"key": key, "version": VERSION, "size_bytes": size.to_string()});
        self.call(CACHE, "FinalizeCacheEntryUpload", token, &body)
    }

    fn look(&mut self, token: &str, key: &str, others: &[&str]) -> Value {
        let body = json!({"key": key, "restore_keys": others, "version": VERSION});
        let (status, body) = self.call(CACHE, "GetCacheEntryDownloadURL", token, &body);
        assert_eq!(status, 200, "{body}");
        body
    }

    fn put(&mut self, url: &str, body: &[u8]) -> Answer {
        // an upload that is refused ends its connection
        let mut client = Client::new(self.running.as_ref().unwrap().address);
        client.ask("PUT", url, None, Some(body))
    }

    /// An entry from beginning to end.
    fn save(&mut self, token: &str, key: &str, content: &[u8]) {
        let url = self.reserved(token, key);
        assert_eq!(self.put(&url, content).status, 201);
        let (status, body) = self.finalize(token, key, content.len());
        assert!(status == 200 && body["ok"] == true, "{body}");
    }

    fn content(&mut self, found: &Value) -> Vec<u8> {
        assert_eq!(found["ok"], true);
        let url = path_of(&found["signed_download_url"]);
        let answer = self.client.ask("GET", &url, None, None);
        assert_eq!(answer.status, 200);
        answer.body
    }
}

/// Path and query of a URL that the cache gave.
fn path_of(url: &Value) -> String {
    url.as_str().unwrap().strip_prefix("http://cache.example:8420").unwrap().to_owned()
}

fn main_and_fork() -> (String, String) {
    (runtime_token("p/main", Access::Write), runtime_token("p/pr/7", Access::Write))
}

#[test]
fn keys_are_matched_whole_then_by_beginning_then_by_restore_key_newest_first_own_scope_first() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, fork) = main_and_fork();
    for key in ["linux-1", "linux-2", "linux", "mac-1"] {
        cache.save(&main, key, key.as_bytes());
        cache.pass(1);
    }
    let matched = |cache: &mut Cache, token: &str, key: &str, others: &[&str]| {
        cache.look(token, key, others)["matched_key"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(
        matched(&mut cache, &main, "linux", &[]),
        "linux",
        "a whole key before newer ones that begin with it"
    );
    assert_eq!(matched(&mut cache, &main, "linux-", &[]), "linux-2", "the newest of those");
    assert_eq!(
        matched(&mut cache, &main, "windows", &["bsd", "linux-1", "mac"]),
        "linux-1",
        "in their order"
    );
    assert_eq!(matched(&mut cache, &main, "windows", &[]), "");
    assert_eq!(matched(&mut cache, &fork, "linux-2", &[]), "linux-2");
    cache.save(&fork, "linux-0", b"of the fork");
    assert_eq!(
        matched(&mut cache, &fork, "linux-2", &["linux-"]),
        "linux-0",
        "all keys in the own scope before a parent's"
    );
    assert_eq!(matched(&mut cache, &main, "linux-0", &[]), "", "and nothing of it in main");
    // another version is another archive
    let body = json!({"key": "linux", "version": "other"});
    assert_eq!(cache.call(CACHE, "GetCacheEntryDownloadURL", &main, &body).1["ok"], false);
    cache.restart();
    assert_eq!(matched(&mut cache, &main, "linux-", &[]), "linux-2", "also after a restart");
    let found = cache.look(&main, "linux-", &[]);
    assert_eq!(cache.content(&found), b"linux-2");
}

/// falcondev#164: what speaks protobuf is answered in protobuf, errors in JSON.
#[test]
fn falcondev_164_protobuf_and_json_are_the_same_service() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let create = CreateCacheEntryRequest { key: "k".to_owned(), version: "sccache-v0.16".to_owned() };
    let path = format!("/p/main/-/github{CACHE}/CreateCacheEntry");
    let answer = cache.post(&path, "application/protobuf", &main, &create.encode_to_vec());
    assert!(answer.head.contains("Content-Type: application/protobuf"));
    let created = CreateCacheEntryResponse::decode(&answer.body[..]).unwrap();
    assert!(
        created.ok
            && created.signed_upload_url.contains("/-/github/")
            && created.signed_upload_url.contains("sig=")
    );
    let look = GetCacheEntryDownloadUrlRequest {
        key: "k".to_owned(),
        version: "sccache-v0.16".to_owned(),
        restore_keys: vec![],
    };
    let path = format!("{CACHE}/GetCacheEntryDownloadURL");
    let answer = cache.post(&path, "application/protobuf", &main, &look.encode_to_vec());
    assert!(
        !GetCacheEntryDownloadUrlResponse::decode(&answer.body[..]).unwrap().ok,
        "a miss is 200 and no error"
    );
    for (kind, body) in
        [("application/protobuf", &[0xff][..]), ("application/json", b"{"), ("text/plain", b"{}")]
    {
        let answer = cache.post(&path, kind, &main, body);
        let said: Value = serde_json::from_slice(&answer.body).unwrap();
        assert!(answer.status == 400 && said["code"] == "malformed" && said["msg"].is_string(), "{said}");
    }
    assert_eq!(cache.call(CACHE, "DeleteEverything", &main, &json!({})).1["code"], "bad_route");
}

/// actions/cache#463: a job that died between reserving and finalizing blocked its key for ever.
#[test]
fn actions_cache_463_key_of_a_job_that_died_is_free_after_ten_minutes_or_a_restart() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let url = cache.reserved(&main, "k");
    assert_eq!(cache.create(&main, "k").0, 409);
    assert_eq!(cache.put(&format!("{url}&comp=block&blockid=YQ%3D%3D"), b"half").status, 201);
    cache.pass(500);
    assert_eq!(cache.put(&format!("{url}&comp=block&blockid=Yg%3D%3D"), b"alive").status, 201);
    cache.pass(500);
    assert_eq!(cache.create(&main, "k").0, 409, "blocks keep it alive");
    cache.pass(601);
    let again = cache.reserved(&main, "k");
    let late = cache.put(&format!("{url}&comp=blocklist"), b"<BlockList><Latest>YQ==</Latest></BlockList>");
    assert_eq!(late.status, 404, "the old upload is gone");
    assert_eq!(cache.put(&again, b"whole").status, 201);
    cache.restart();
    assert_eq!(cache.finalize(&main, "k", 5).0, 404);
    assert_eq!(cache.look(&main, "k", &[])["ok"], false, "nothing that was not finalized is served");
    cache.save(&main, "k", b"anew");
}

#[test]
fn entry_is_never_changed_and_only_the_own_scope_is_written() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, fork) = main_and_fork();
    cache.save(&main, "k", b"main's");
    let (status, body) = cache.create(&main, "k");
    assert!(status == 409 && body["code"] == "already_exists", "{body}");
    cache.save(&fork, "k", b"poison");
    let found = cache.look(&main, "k", &[]);
    assert_eq!(cache.content(&found), b"main's");
    // another job of the same scope cannot finalize what this one reserved
    let url = cache.reserved(&fork, "x");
    assert_eq!(cache.put(&url, b"x").status, 201);
    let mut claims = support::claims("p/pr/7", Access::Write);
    claims.principal = "another job".to_owned();
    let other = forgeyard_cache::token::mint_jwt(&claims, &support::key()).unwrap();
    assert_eq!(cache.finalize(other.expose(), "x", 1).0, 403);
    // readers and strangers
    let reader = runtime_token("p/main", Access::Read);
    let (status, body) = cache.create(&reader, "y");
    assert!(status == 403 && body["msg"].as_str().unwrap().starts_with("cache write denied:"), "{body}");
    assert_eq!(cache.create("nothing", "y").0, 403);
    assert_eq!(cache.look("nothing", "k", &[])["ok"], false, "never 401 for a read");
    for wrong in ["", "a,b", &"x".repeat(513)] {
        assert_eq!(cache.create(&main, wrong).0, 400, "{wrong}");
    }
    let many = ["a"; 10];
    let body = json!({"key": "k", "restore_keys": many, "version": VERSION});
    assert_eq!(cache.call(CACHE, "GetCacheEntryDownloadURL", &main, &body).0, 400);
}
