//! Turborepo's calls on the wire. The real client is in `turbo_client.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::token::Access;
use support::{Answer, Client, service, token};

const HASH: &str = "fba523f8923f2faf";

/// Bytes that begin as an archive does.
fn archive(size: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd];
    bytes.extend((0..size).map(|at| (at * 31 % 251) as u8 ^ seed));
    bytes
}

fn path(scope: &str, what: &str) -> String {
    format!("/{scope}/-/turbo/v8/artifacts/{what}?slug=any")
}

/// Sends an archive in chunks, without its length, as clients that sign while they send do (turborepo#9177).
fn put(
    client: &mut Client,
    scope: &str,
    hash: &str,
    token: Option<&str>,
    headers: &str,
    body: &[u8],
) -> Answer {
    let mut wire =
        format!("PUT {} HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n{headers}", path(scope, hash));
    if let Some(token) = token {
        wire.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    wire.push_str("\r\n");
    let mut wire = wire.into_bytes();
    for some in body.chunks(100_000) {
        wire.extend_from_slice(format!("{:x}\r\n", some.len()).as_bytes());
        wire.extend_from_slice(some);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"0\r\n\r\n");
    client.send(&wire);
    client.answer(false)
}

/// vercel/turborepo#9177: an archive without a length is taken. What was said of it comes with it, also in parts, and after a
/// restart; it is no part of the bytes.
#[test]
fn turborepo_9177_archive_in_chunks_is_kept_with_its_duration_and_its_tag() {
    let folder = tempfile::tempdir().unwrap();
    let main = token("p/main", Access::Write);
    // in the log, and in a file of its own
    for (hash, size) in [("small", 3000), ("large", 3 << 20)] {
        let running = service(folder.path());
        let mut client = Client::new(running.address);
        let body = archive(size, 1);
        let said = "x-artifact-duration: 755\r\nX-Artifact-Tag: c2lnbmVk+/=\r\n";
        assert_eq!(put(&mut client, "p/main", hash, Some(&main), said, &body).status, 201);
        running.stop().unwrap();

        let running = service(folder.path());
        let mut client = Client::new(running.address);
        let got = client.ask("GET", &path("p/main", hash), None, None);
        assert!(got.status == 200 && got.body == body, "{}", got.head);
        for line in
            ["x-artifact-duration: 755\r\n", "x-artifact-tag: c2lnbmVk+/=\r\n", "Accept-Ranges: bytes\r\n"]
        {
            assert!(got.head.contains(line), "{line}: {}", got.head);
        }
        let head = client.ask("HEAD", &path("p/main", hash), None, None);
        assert!(head.head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", head.head);
        for (first, last) in [(0, 3), (1000, 2999), (body.len() - 1, body.len() - 1)] {
            let asked = path("p/main", hash);
            client.send(
                format!("GET {asked} HTTP/1.1\r\nHost: c\r\nRange: bytes={first}-{last}\r\n\r\n").as_bytes(),
            );
            let part = client.answer(false);
            assert!(part.status == 206 && part.body == body[first..=last], "{}", part.head);
            assert!(part.head.contains(&format!("bytes {first}-{last}/{}", body.len())), "{}", part.head);
        }
        running.stop().unwrap();
    }
}

/// The first archive of a hash stays in main and is no alarm, a fork has its own, and nobody reads that of another one.
#[test]
fn first_archive_stays_in_a_trusted_scope_and_a_fork_writes_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let (main, fork, other) =
        (token("p/main", Access::Write), token("p/pr/7", Access::Write), token("p/pr/8", Access::Write));
    let (first, second) = (archive(100, 1), archive(100, 2));
    assert_eq!(put(&mut client, "p/main", HASH, Some(&main), "", &first).status, 201);
    assert_eq!(put(&mut client, "p/main", HASH, Some(&main), "", &second).status, 200);
    // a fork's token at the address of main writes to the fork
    assert_eq!(
        put(&mut client, "p/main", HASH, Some(&fork), "x-artifact-duration: 5\r\n", &second).status,
        201
    );
    let read =
        |client: &mut Client, token: Option<&str>| client.ask("GET", &path("p/main", HASH), token, None);
    for token in [None, Some(main.as_str()), Some(&other)] {
        let got = read(&mut client, token);
        assert!(got.body == first && !got.head.contains("x-artifact"), "{}", got.head);
    }
    let got = read(&mut client, Some(&fork));
    assert!(got.body == second && got.head.contains("x-artifact-duration: 5\r\n"), "{}", got.head);
    assert_eq!(put(&mut client, "p/pr/8", "own", Some(&other), "", &second).status, 201);
    for token in [None, Some(main.as_str()), Some(&fork)] {
        assert_eq!(client.ask("GET", &path("p/main", "own"), token, None).status, 404);
    }
    // without a scope in the address it is that of the token; the bytes are no entry of another protocol
    let own = "/-/turbo/v8/artifacts/own";
    assert_eq!(client.ask("GET", own, Some(&other), None).body, second);
    assert_eq!(client.ask("GET", "/-/kv/own", Some(&other), None).status, 404);
    let admin = token("admin", Access::Admin);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    let counted = stat.traffic.iter().find(|one| one.scope == "p/main" && one.surface == "turbo").unwrap();
    assert_eq!((counted.writes, counted.repeats, counted.mismatches), (1, 1, 0), "{counted:?}");
    running.stop().unwrap();
}

/// What a run asks before and after its tasks; what is no archive; who may not write.
#[test]
fn turborepo_is_answered_in_json_and_what_is_no_archive_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    let json = |answer: &Answer| -> serde_json::Value { serde_json::from_slice(&answer.body).unwrap() };
    assert_eq!(json(&client.ask("GET", &path("p/main", "status"), None, None))["status"], "enabled");
    let events = br#"[{"sessionId":"x","source":"REMOTE","event":"MISS","hash":"a","duration":0}]"#;
    assert_eq!(client.ask("POST", &path("p/main", "events"), None, Some(events)).status, 200);
    let preflight = client.ask("OPTIONS", &path("p/main", HASH), None, None);
    assert!(preflight.status == 200 && preflight.head.contains("Authorization"), "{}", preflight.head);
    let body = archive(100, 1);
    for token in [None, Some("fyc_no.token"), Some(token("p/main", Access::Read).as_str())] {
        let refused = put(&mut client, "p/main", HASH, token, "", &body);
        assert_eq!((refused.status, &json(&refused)["error"]["code"]), (403, &"forbidden".into()));
    }
    assert_eq!(put(&mut client, "p/main", HASH, Some(&main), "", b"no archive").status, 422);
    let long = format!("x-artifact-tag: {}\r\n", "a".repeat(1000));
    assert_eq!(put(&mut client, "p/main", HASH, Some(&main), &long, &body).status, 400);
    let mut client = Client::new(running.address);
    assert_eq!(client.ask("GET", &path("p/main", HASH), None, None).status, 404);
    assert_eq!(client.ask("GET", &path("p/main", "a/b"), None, None).status, 404);
    assert_eq!(client.ask("GET", "/p/main/-/turbo/v2/user", None, None).status, 404);
    running.stop().unwrap();
}
