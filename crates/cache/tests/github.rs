//! GitHub's cache and artifact services over HTTP. *Protocol tests*: the requests are written by hand, for what the official
//! clients cannot be made to do. The clients themselves are in `github_clients.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

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

/// actions/cache#757, #472: restoring an archive that was cut off succeeded.
#[test]
fn actions_cache_757_upload_that_is_cut_off_or_of_another_size_becomes_no_entry() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    // a zstd frame with one raw block of eight bytes, whole and cut
    let whole = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 8 << 3 | 1, 0, 0][..], b"contents"].concat();
    for (uploaded, promised) in
        [(&whole[..], whole.len() + 1), (&whole[..], 0), (&whole[..whole.len() - 1], whole.len() - 1)]
    {
        let url = cache.reserved(&main, "k");
        assert_eq!(cache.put(&url, uploaded).status, 201);
        let (status, body) = cache.finalize(&main, "k", promised);
        assert!(status == 400 && body["code"] == "invalid_argument", "{body}");
        assert_eq!(cache.look(&main, "k", &[])["ok"], false);
    }
    let url = cache.reserved(&main, "k");
    assert_eq!(cache.finalize(&main, "k", 0).0, 412, "not committed");
    assert_eq!(cache.put(&url, &whole).status, 201);
    assert_eq!(cache.finalize(&main, "k", whole.len()).0, 200);
    assert_eq!(
        cache.finalize(&main, "k", whole.len()).0,
        200,
        "the answer was lost, and the client asks again"
    );
    let found = cache.look(&main, "k", &[]);
    let url = path_of(&found["signed_download_url"]);
    let answer = cache.client.ask("GET", &url, None, None);
    assert!(answer.body == whole && answer.head.contains(&Digest::of(&whole).hex()), "the digest is the tag");
}

/// An entry of sccache is a ZIP, and is looked into.
#[test]
fn object_of_sccache_whose_checksum_does_not_hold_becomes_no_entry() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let key = format!("sccache/a/b/c/abc{}", "0".repeat(61));
    let url = cache.reserved(&main, &key);
    assert_eq!(cache.put(&url, b"PK\x03\x04 and no end").status, 201);
    let (status, body) = cache.finalize(&main, &key, 15);
    assert!(status == 400 && body["msg"].as_str().unwrap().contains("ZIP"), "{body}");
    cache.save(&main, "sccache/.sccache_check", b"Hello, World!");
}

/// falcondev#65, #235: caches were cut off because parts were merged later, and by the shape of their ids.
#[rstest::rstest]
fn falcondev_65_blocks_are_put_together_by_their_list_alone_and_at_once(
    #[values(Durability::PageCache, Durability::Group)] durability: Durability,
) {
    let mut cache = Cache::start(durability);
    let (main, _) = main_and_fork();
    let url = cache.reserved(&main, "k");
    let blocks: Vec<(String, Vec<u8>)> = [(2_u8, 3_000_000_usize), (0, 10), (1, 1_500_000), (9, 77)]
        .into_iter()
        .map(|(number, length)| (format!("{number}{}", "A".repeat(63)), vec![number; length]))
        .collect();
    for (id, bytes) in &blocks {
        assert_eq!(cache.put(&format!("{url}&comp=block&blockid={id}"), bytes).status, 201);
    }
    // the same id again replaces the block
    let again = format!("{url}&comp=block&blockid={}", blocks[1].0);
    assert_eq!(cache.put(&again, b"0123456789ab").status, 201);
    let list = |ids: &[&str]| {
        let inner: String = ids.iter().map(|id| format!("<Latest>{id}</Latest>")).collect();
        format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{inner}</BlockList>")
    };
    let commit = format!("{url}&comp=blocklist");
    for (wrong, status) in [
        (list(&["unknown"]), 400),
        (list(&[&blocks[0].0, &blocks[0].0]), 400),
        ("<BlockList>&a;</BlockList>".to_owned(), 400),
    ] {
        assert_eq!(cache.put(&commit, wrong.as_bytes()).status, status, "{wrong}");
    }
    let right = list(&[&blocks[1].0, &blocks[2].0, &blocks[0].0]);
    let answer = cache.put(&commit, right.as_bytes());
    assert!(
        answer.status == 201
            && answer.head.contains("x-ms-request-id")
            && answer.head.contains("Last-Modified")
    );
    assert_eq!(cache.put(&commit, right.as_bytes()).status, 201, "the answer was lost");
    assert_eq!(cache.put(&commit, list(&[&blocks[0].0]).as_bytes()).status, 409, "another list");
    let expected = [&b"0123456789ab"[..], &blocks[2].1, &blocks[0].1].concat();
    let (status, body) = cache.finalize(&main, "k", expected.len());
    assert_eq!(status, 200, "{body}");
    let found = cache.look(&main, "k", &[]);
    assert!(cache.content(&found) == expected);
    cache.restart();
    let url = path_of(&found["signed_download_url"]);
    let ask = format!("GET {url} HTTP/1.1\r\nHost: x\r\nRange: bytes=10-1500011\r\n\r\n");
    cache.client.send(ask.as_bytes());
    let part = cache.client.answer(false);
    assert!(
        part.status == 206 && part.body == expected[10..1_500_012],
        "URLs outlive a restart, and have ranges"
    );
    assert_eq!(cache.client.ask("HEAD", &url, None, None).status, 200);
}

/// falcondev#259: URLs could be guessed.
#[test]
fn falcondev_259_url_that_is_forged_widened_or_late_is_refused() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, fork) = main_and_fork();
    cache.save(&main, "k", b"content");
    let found = cache.look(&main, "k", &[]);
    let download = path_of(&found["signed_download_url"]);
    let upload = cache.reserved(&fork, "other");
    let status = |cache: &mut Cache, method: &str, url: &str| {
        let mut client = Client::new(cache.running.as_ref().unwrap().address);
        client.ask(method, url, None, Some(b"")).status
    };
    for (method, url) in [
        ("PUT", download.clone()),
        ("GET", upload.clone()),
        ("POST", upload.clone()),
        ("DELETE", download.clone()),
        ("GET", download.replace("sp=d", "sp=u")),
        ("PUT", download.replace("sp=d", "sp=u")),
        ("PUT", upload.replace("sl=", "sl=9")),
        ("PUT", upload.replace("sc=p%2Fpr%2F7", "sc=p%2Fmain")),
        ("GET", download.split('?').next().unwrap().to_owned()),
        ("GET", "/-/github/1".to_owned()),
    ] {
        assert_eq!(status(&mut cache, method, &url), 403, "{method} {url}");
    }
    assert_eq!(status(&mut cache, "GET", &download), 200);
    // the URL is for this content: removed, or replaced, it is a miss
    cache.pass(3601);
    assert_eq!(status(&mut cache, "GET", &download), 403, "an hour later");
    assert_eq!(status(&mut cache, "PUT", &upload), 403);
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

#[test]
fn upload_is_bounded_by_its_url() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let url = cache.reserved(&main, "k");
    // the service here takes 64 MiB; the body of a promise that is too long is never read
    let mut client = Client::new(cache.running.as_ref().unwrap().address);
    client.send(
        format!("PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", (64 << 20) + 1).as_bytes(),
    );
    assert_eq!(client.answer(false).status, 413);
    let block = vec![7; 30 << 20];
    for id in ["YQ", "Yg"] {
        assert_eq!(cache.put(&format!("{url}&comp=block&blockid={id}"), &block).status, 201, "{id}");
    }
    let mut client = Client::new(cache.running.as_ref().unwrap().address);
    let third = format!(
        "PUT {url}&comp=block&blockid=Yw HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        block.len()
    );
    client.send(third.as_bytes());
    assert_eq!(client.answer(false).status, 413);
}

#[test]
fn artifact_is_bound_to_the_run_of_the_token() {
    let mut cache = Cache::start(Durability::PageCache);
    let (main, _) = main_and_fork();
    let of = |scope: &str, job: &str, run: &str| {
        let mut claims = support::claims(scope, Access::Write);
        (claims.principal, claims.run) = (job.to_owned(), Some(run.to_owned()));
        let ids = Backend::new(&claims.scope, &claims.principal, claims.run.as_deref());
        (forgeyard_cache::token::mint_jwt(&claims, &support::key()).unwrap().expose().to_owned(), ids)
    };
    let (build, build_ids) = of("p/main", "build", "1");
    let (test, test_ids) = of("p/main", "test", "1");
    let (stranger, stranger_ids) = of("p/main", "test", "2");
    let (fork, _) = of("p/pr/7", "build", "1");
    let named = |ids: &Backend, name: &str| {
        json!({"workflow_run_backend_id": ids.run, "workflow_job_run_backend_id": ids.job, "name": name, "version": 7,
            "mime_type": "application/octet-stream"})
    };
    let (status, body) = cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects"));
    assert_eq!(status, 200, "{body}");
    let url = path_of(&body["signed_upload_url"]);
    assert_eq!(cache.put(&url, b"objects").status, 201);
    let finalize = |size: &str, hash: String| {
        let mut body = named(&build_ids, "objects");
        body["size"] = size.into();
        body["hash"] = hash.into();
        body
    };
    let right = format!("sha256:{}", Digest::of(b"objects").hex());
    // the job of a run cannot be spoken for by another one, and neither can the run
    for token in [&test, &stranger, &fork, &main] {
        let (status, body) = cache.call(ARTIFACT, "FinalizeArtifact", token, &finalize("7", right.clone()));
        assert_eq!((status, &body["code"]), (403, &"permission_denied".into()), "{body}");
    }
    let (status, body) = cache.call(
        ARTIFACT,
        "FinalizeArtifact",
        &build,
        &finalize("7", format!("sha256:{}", Digest::of(b"other").hex())),
    );
    assert!(status == 400 && body["msg"].as_str().unwrap().contains("digest"), "{body}");
    let (_, body) = cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects"));
    let url = path_of(&body["signed_upload_url"]);
    assert_eq!(cache.put(&url, b"objects").status, 201);
    let (status, body) = cache.call(ARTIFACT, "FinalizeArtifact", &build, &finalize("7", right));
    assert!(status == 200 && body["artifact_id"].is_string(), "{body}");
    // another job of the run reads it
    let (_, listed) = cache.call(ARTIFACT, "ListArtifacts", &test, &named(&test_ids, ""));
    assert_eq!(listed["artifacts"][0]["name"], "objects", "{listed}");
    let (_, signed) = cache.call(ARTIFACT, "GetSignedArtifactURL", &test, &named(&build_ids, "objects"));
    let answer = cache.client.ask("GET", &path_of(&signed["signed_url"]), None, None);
    assert!(answer.body == b"objects" && answer.head.contains("filename*=UTF-8''objects"), "{}", answer.head);
    // a job of another run does not, whichever ids it names
    let (_, listed) = cache.call(ARTIFACT, "ListArtifacts", &stranger, &named(&stranger_ids, ""));
    assert_eq!(listed["artifacts"], json!([]));
    for method in ["ListArtifacts", "GetSignedArtifactURL", "DeleteArtifact"] {
        assert_eq!(cache.call(ARTIFACT, method, &stranger, &named(&build_ids, "objects")).0, 403, "{method}");
        assert_eq!(cache.call(ARTIFACT, method, "nothing", &named(&build_ids, "objects")).0, 401, "{method}");
    }
    // and after a restart it is all the same; a name that was deleted is free
    cache.restart();
    assert_eq!(cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects")).0, 409);
    assert_eq!(cache.call(ARTIFACT, "DeleteArtifact", &test, &named(&build_ids, "objects")).0, 200);
    assert_eq!(cache.client.ask("GET", &path_of(&signed["signed_url"]), None, None).status, 404);
    assert_eq!(cache.call(ARTIFACT, "CreateArtifact", &build, &named(&build_ids, "objects")).0, 200);
}

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
