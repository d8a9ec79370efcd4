//! The attacks that a shared cache has to withstand, each against a service with a trusted scope and those of two pull requests: it gains
//! nothing, and the log says why it was refused.
//!
//! The tests share one log, and run beside each other: what is looked for in it is said of its own attack alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "support/said.rs"]
mod said;
mod support;

use forgeyard_cache::service::Running;
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_model::{Digest, Timestamp};
use said::Said;
use serde_json::{Value, json};
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::{Answer, Client, NOW, claims, key, narinfo, runtime_token, service, token};

/// The log of this process; the service writes from threads of its own.
fn log() -> Said {
    static SAID: OnceLock<Said> = OnceLock::new();
    let said = SAID.get_or_init(|| {
        let said = Said::default();
        let to_said = tracing_subscriber::fmt().with_ansi(false).with_writer(said.clone());
        tracing::subscriber::set_global_default(to_said.finish()).unwrap();
        said
    });
    said.clone()
}

/// There is a line behind so many others that says all of this.
#[track_caller]
fn says(said: &Said, behind: usize, words: &[&str]) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let text = said.text();
        if text.lines().skip(behind).any(|line| words.iter().all(|word| line.contains(word))) {
            return;
        }
        assert!(Instant::now() < end, "no line says {words:?}:\n{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Attack {
    said: Said,
    _folder: tempfile::TempDir,
    running: Running,
    main: String,
    fork: String,
}

impl Attack {
    fn new() -> Self {
        let (said, folder) = (log(), tempfile::tempdir().unwrap());
        let running = service(folder.path());
        let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
        Self { said, _folder: folder, running, main, fork }
    }

    /// Over a connection of its own, since some attacks end theirs.
    fn ask(&self, method: &str, path: &str, token: &str, body: Option<&[u8]>) -> Answer {
        Client::new(self.running.address).ask(method, path, Some(token), body)
    }

    /// Does it, and expects this status and a line of the log that was not there before.
    #[track_caller]
    fn refused(&self, asked: (&str, &str, &str, Option<&[u8]>), status: u16, words: &[&str]) {
        let behind = self.said.text().lines().count();
        let answer = self.ask(asked.0, asked.1, asked.2, asked.3);
        assert_eq!(
            answer.status,
            status,
            "{} {}: {}",
            asked.0,
            asked.1,
            String::from_utf8_lossy(&answer.body)
        );
        says(&self.said, behind, words);
    }
}

#[test]
fn swap_of_a_content_under_its_digest_or_of_an_entry_of_main_is_refused_with_a_logged_reason() {
    let attack = Attack::new();
    let cas = format!("/-/bazel/cas/{}", Digest::of(b"good").hex());
    let digest = Digest::of(b"good").hex();
    attack.refused(
        ("PUT", &cas, &attack.main, Some(b"evil")),
        422,
        &[&digest, "an entry is refused", "digest"],
    );
    assert_eq!(attack.ask("GET", &cas, &attack.main, None).status, 404);
    // an entry of main that another job of main would write anew
    assert_eq!(attack.ask("PUT", "/-/kv/swap", &attack.main, Some(b"good")).status, 201);
    attack.refused(
        ("PUT", "/-/kv/swap", &attack.main, Some(b"evil")),
        200,
        &["swap", "another content for a key of a trusted scope", "run of p/main"],
    );
    assert_eq!(attack.ask("GET", "/-/kv/swap", &attack.main, None).body, b"good");
}

#[test]
fn poison_for_another_scope_is_refused_with_a_logged_reason_and_stays_in_its_own() {
    let attack = Attack::new();
    let path = "/p/pr/8/-/kv/poison";
    attack.refused(
        ("PUT", path, &attack.fork, Some(b"evil")),
        403,
        &["a write is refused", path, "job of p/pr/7"],
    );
    attack.refused(("DELETE", path, &attack.fork, None), 403, &["a write is refused", path]);
    // at the address of main, which it reads, it still writes to itself
    assert_eq!(attack.ask("PUT", "/p/main/-/kv/mine", &attack.main, Some(b"good")).status, 201);
    for key in ["poison", "mine"] {
        let path = format!("/p/main/-/kv/{key}");
        assert_eq!(attack.ask("PUT", &path, &attack.fork, Some(b"evil")).status, 201);
        assert_eq!(attack.ask("GET", &path, &attack.fork, None).body, b"evil");
    }
    for other in [attack.main.clone(), token("p/pr/8", Access::Write)] {
        assert_eq!(attack.ask("GET", "/p/main/-/kv/poison", &other, None).status, 404);
        assert_eq!(attack.ask("GET", "/p/main/-/kv/mine", &other, None).body, b"good");
    }
    assert_eq!(attack.ask("DELETE", "/p/main/-/kv/mine", &attack.fork, None).status, 204);
    assert_eq!(
        attack.ask("GET", "/p/main/-/kv/mine", &attack.fork, None).body,
        b"good",
        "main keeps its own"
    );
}

/// A miss and what must not be read are one answer, so there is nothing to log but a wrong proof.
#[test]
fn existence_in_another_scope_shows_in_no_answer_and_a_wrong_proof_is_logged() {
    let attack = Attack::new();
    let secret = token("secret", Access::Write);
    let (there, never) = (Digest::of(b"there").hex(), Digest::of(b"never").hex());
    assert_eq!(attack.ask("PUT", &format!("/-/bazel/cas/{there}"), &secret, Some(b"there")).status, 201);
    for path in ["", "/secret"] {
        for method in ["GET", "HEAD"] {
            let of = |digest: &str| {
                let answer = attack.ask(method, &format!("{path}/-/bazel/cas/{digest}"), &attack.fork, None);
                (answer.status, answer.head, answer.body)
            };
            assert_eq!(of(&there).0, 404, "{method} {path}");
            assert_eq!(of(&there), of(&never), "{method} {path}");
        }
    }
    // who wants a name for it has to show all of its bytes
    for digest in [&there, &never] {
        let path = format!("/-/bazel/cas/{digest}");
        attack.refused(("PUT", &path, &attack.fork, Some(b"a guess")), 422, &[digest, "an entry is refused"]);
    }
}

#[test]
fn token_that_is_replayed_after_its_end_forged_or_widened_is_refused_with_a_logged_reason() {
    let attack = Attack::new();
    let of = |claims: &Claims, seed: u8| {
        let key = ed25519_dalek::SigningKey::from_bytes(&[seed; 32]);
        token::mint(claims, &key).unwrap().expose().to_owned()
    };
    let main = claims("p/main", Access::Write);
    let ended = Timestamp::from_micros(NOW - 1);
    let expired =
        token::mint(&Claims { expires_at: ended, ..main.clone() }, &key()).unwrap().expose().to_owned();
    let forged = of(&main, 9);
    // the claims of main under the signature of a fork's
    let signature = attack.fork.rsplit_once('.').unwrap().1;
    let widened = format!("{}.{signature}", attack.main.rsplit_once('.').unwrap().0);
    for (number, token) in [expired, forged, widened].iter().enumerate() {
        let path = format!("/p/main/-/kv/replay{number}");
        attack.refused(("PUT", &path, token, Some(b"evil")), 403, &["a token is not believed"]);
    }
}

#[test]
fn traversal_and_smuggled_frames_are_refused_with_a_logged_reason() {
    let attack = Attack::new();
    for request in [
        "GET /p/main/-/kv/../../secret HTTP/1.1\r\n\r\n",
        "GET /p/pr/7/%2e%2e/8/-/kv/x HTTP/1.1\r\n\r\n",
        "PUT /-/kv/x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "PUT /-/kv/x HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "\0\0\0\0",
    ] {
        let (behind, mut client) = (attack.said.text().lines().count(), Client::new(attack.running.address));
        client.send(request.as_bytes());
        assert_eq!(client.answer(false).status, 400, "{request:?}");
        says(&attack.said, behind, &["a request is refused", "status=400", "127.0.0.1"]);
    }
}

/// A file of Nix of a few kilobytes that unpacks to a gigabyte, and a description that says less or as much.
#[test]
fn decompression_bomb_is_refused_with_a_logged_reason() {
    let attack = Attack::new();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 19).unwrap();
    for _ in 0..64 {
        encoder.write_all(&vec![0; 16 << 20]).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 200_000);
    let file = format!("{}.zst", narinfo::file_of(&bomb));
    assert_eq!(attack.ask("PUT", &format!("/-/nix/{file}"), &attack.main, Some(&bomb)).status, 201);
    for (number, size) in [1000, 64 << 20].into_iter().enumerate() {
        let hash = format!("{number}").repeat(32);
        let said = format!(
            "StorePath: /nix/store/{hash}-bomb\nURL: {file}\nCompression: zstd\nFileHash: sha256:{}\nFileSize: {}\n\
             NarHash: sha256:{}\nNarSize: {size}\nReferences: \n",
            narinfo::base32(&bomb),
            bomb.len(),
            narinfo::base32(b"zeros"),
        );
        let path = format!("/-/nix/{hash}.narinfo");
        attack.refused(
            ("PUT", &path, &attack.main, Some(said.as_bytes())),
            422,
            &[&hash, "an entry is refused"],
        );
    }
}

#[test]
fn signed_url_that_is_forged_or_widened_is_refused_with_a_logged_reason() {
    let attack = Attack::new();
    let job = runtime_token("p/pr/7", Access::Write);
    let wish = json!({"key": "k", "version": Digest::of(b"version").hex()}).to_string();
    let path = "/twirp/github.actions.results.api.v1.CacheService/CreateCacheEntry";
    let mut client = Client::new(attack.running.address);
    client.send(
        format!(
            "POST {path} HTTP/1.1\r\nHost: cache\r\nAuthorization: Bearer {job}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{wish}",
            wish.len()
        )
        .as_bytes(),
    );
    let given: Value = serde_json::from_slice(&client.answer(false).body).unwrap();
    let url = given["signed_upload_url"].as_str().unwrap();
    let url = &url[url.find("/-/github/").unwrap()..];
    let widened = url.replace("sc=p%2Fpr%2F7", "sc=p%2Fmain");
    assert_ne!(widened, url);
    let bare = url.split('?').next().unwrap();
    for forged in [widened.as_str(), bare, "/-/github/1?sig=AAAA"] {
        let behind = attack.said.text().lines().count();
        let answer = Client::new(attack.running.address).ask("PUT", forged, None, Some(b"evil"));
        assert_eq!(answer.status, 403, "{forged}");
        says(&attack.said, behind, &[forged.split('?').next().unwrap(), "URL"]);
    }
}
