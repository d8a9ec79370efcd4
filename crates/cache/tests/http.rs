//! What callers may do over HTTP, protocol by protocol, some of it by TLS too. *Protocol tests*: the requests are written by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::store::sum::Sum;
use forgeyard_cache::token::Access;
use forgeyard_model::Digest;
use std::time::{Duration, Instant};
use support::tls::Way;
use support::{Client, service, token, write_authority};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[rstest::rstest]
fn fork_reads_what_main_wrote_and_writes_only_to_itself(#[values(Way::Plain, Way::Tls)] way: Way) {
    let folder = folder();
    let running = way.service(folder.path());
    let mut client = way.client(folder.path(), &running);
    let (main, fork, other) =
        (token("p/main", Access::Write), token("p/pr/7", Access::Write), token("p/pr/8", Access::Write));
    assert_eq!(client.ask("PUT", "/p/main/-/kv/a", Some(&main), Some(b"main's")).status, 201);
    // the fork is configured like main; its token says where it stands
    assert_eq!(client.ask("GET", "/p/main/-/kv/a", Some(&fork), None).body, b"main's");
    assert_eq!(client.ask("PUT", "/p/main/-/kv/a", Some(&fork), Some(b"poison")).status, 201);
    assert_eq!(client.ask("PUT", "/p/main/-/kv/b", Some(&fork), Some(b"fork's")).status, 201);
    assert_eq!(client.ask("GET", "/p/main/-/kv/a", Some(&fork), None).body, b"poison", "its own entry");
    for (who, of) in [(Some(&main), "main"), (Some(&other), "another fork"), (None, "a stranger")] {
        let who = who.map(String::as_str);
        assert_eq!(client.ask("GET", "/p/main/-/kv/a", who, None).body, b"main's", "{of}");
        assert_eq!(client.ask("GET", "/p/main/-/kv/b", who, None).status, 404, "{of}");
        if of != "main" {
            assert_eq!(client.ask("GET", "/p/pr/7/-/kv/b", who, None).status, 404, "{of}");
            let asked = client.ask("HEAD", "/p/pr/7/-/kv/b", who, None).status;
            assert_eq!(asked, 404, "{of} learns nothing of what exists");
        }
    }
    running.stop().unwrap();
}

#[test]
fn miss_is_404_and_never_401_whoever_asks() {
    let folder = folder();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let expired = "Bearer-that-is-no-token".to_owned();
    for path in [
        "/p/main/-/kv/x",
        "/secret/-/kv/x",
        "/no/such/scope/-/kv/x",
        "/-/kv/x",
        "/p/main/-/dav/.sccache_check",
    ] {
        for who in [None, Some(expired.as_str())] {
            assert_eq!(client.ask("GET", path, who, None).status, 404, "{path}");
        }
    }
    assert_eq!(client.ask("PUT", "/p/main/-/kv/x", None, Some(b"x")).status, 403);
    assert_eq!(client.ask("PUT", "/p/main/-/dav/p/.sccache_check", None, Some(b"Hello, World!")).status, 403);
    let reader = token("p/main", Access::Read);
    assert_eq!(client.ask("PUT", "/p/main/-/kv/x", Some(&reader), Some(b"x")).status, 403);
    // bazel#2249 of BuildBuddy, bb-deployments#51: accepted and thrown away, or Bazel complains for every action
    let digest = Digest::of(b"x").hex();
    assert_eq!(
        client.ask("PUT", &format!("/p/main/-/bazel/cas/{digest}"), Some(&reader), Some(b"x")).status,
        200
    );
    assert_eq!(client.ask("GET", &format!("/p/main/-/bazel/cas/{digest}"), Some(&reader), None).status, 404);
}

#[test]
fn what_may_not_be_redistributed_is_refused_to_strangers() {
    let folder = folder();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let writer = token("cuda", Access::Write);
    assert_eq!(client.ask("PUT", "/cuda/-/kv/libcudnn", Some(&writer), Some(b"x")).status, 201);
    assert_eq!(client.ask("GET", "/cuda/-/kv/libcudnn", None, None).status, 404);
    assert_eq!(
        client.ask("GET", "/cuda/-/kv/libcudnn", Some(&token("p/pr/7", Access::Write)), None).status,
        404
    );
    assert_eq!(client.ask("GET", "/cuda/-/kv/libcudnn", Some(&writer), None).status, 200);
}

#[rstest::rstest]
fn revoked_token_stops_working_without_a_restart(#[values(Way::Plain, Way::Tls)] way: Way) {
    let folder = folder();
    let running = way.service(folder.path());
    let mut client = way.client(folder.path(), &running);
    let writer = token("p/main", Access::Write);
    assert_eq!(client.ask("PUT", "/-/kv/x", Some(&writer), Some(b"x")).status, 201);
    write_authority(&folder.path().join("authority.json"), |authority| authority.epoch = 1);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while client.ask("PUT", "/-/kv/x", Some(&writer), Some(b"x")).status != 403 {
        assert!(std::time::Instant::now() < end, "still believed after a minute");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn first_writer_of_a_trusted_scope_wins_and_the_second_is_counted() {
    let folder = folder();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    client.ask("PUT", "/-/kv/x", Some(&main), Some(b"one"));
    assert_eq!(client.ask("PUT", "/-/kv/x", Some(&main), Some(b"two")).status, 200);
    assert_eq!(client.ask("GET", "/-/kv/x", Some(&main), None).body, b"one");
    let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
    assert!(
        metrics.contains("forgeyard_cache_mismatches_total{scope=\"p/main\",surface=\"kv\"} 1"),
        "{metrics}"
    );
}

#[rstest::rstest]
fn ranges_heads_chunks_and_large_entries_are_served_as_the_standard_says(
    #[values(Way::Plain, Way::Tls)] way: Way,
) {
    let folder = folder();
    let running = way.service(folder.path());
    let mut client = way.client(folder.path(), &running);
    let main = token("p/main", Access::Write);
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 % 253) as u8).collect();
    for (key, bytes) in [("small", &large[..1000]), ("large", &large[..])] {
        assert_eq!(client.ask("PUT", &format!("/-/kv/{key}"), Some(&main), Some(bytes)).status, 201);
        let whole = client.ask("GET", &format!("/-/kv/{key}"), Some(&main), None);
        assert!(whole.body == bytes);
        let sum = if key == "large" { Sum::Sha256 } else { Sum::Blake3 };
        assert!(whole.head.contains(&format!("ETag: \"{}\"", sum.of(bytes).hex())));
        let head = client.ask("HEAD", &format!("/-/kv/{key}"), Some(&main), None);
        assert!(head.head.contains(&format!("Content-Length: {}\r\n", bytes.len())), "{}", head.head);
        let (from, until) = (bytes.len() / 3, bytes.len() - 5);
        client.send(
            format!(
                "GET /-/kv/{key} HTTP/1.1\r\nAuthorization: Bearer {main}\r\nRange: bytes={from}-{}\r\n\r\n",
                until - 1
            )
            .as_bytes(),
        );
        let part = client.answer(false);
        // harmonia#1139
        assert_eq!(part.status, 206);
        assert!(part.body == bytes[from..until]);
        client.send(
            format!(
                "GET /-/kv/{key} HTTP/1.1\r\nAuthorization: Bearer {main}\r\nRange: bytes=9999999-\r\n\r\n"
            )
            .as_bytes(),
        );
        assert_eq!(client.answer(false).status, 416);
    }
    // vercel/turborepo#9177
    client.send(
        format!(
            "PUT /-/kv/chunked HTTP/1.1\r\nAuthorization: Bearer {main}\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        )
        .as_bytes(),
    );
    assert_eq!(client.answer(false).status, 201);
    assert_eq!(client.ask("GET", "/-/kv/chunked", Some(&main), None).body, b"abcde");
    client.send(format!("PUT /-/kv/e HTTP/1.1\r\nAuthorization: Bearer {main}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n").as_bytes());
    assert_eq!(client.answer(true).status, 100);
    client.send(b"ok");
    assert_eq!(client.answer(false).status, 201);
}

#[rstest::rstest]
fn traversal_and_smuggled_frames_are_refused(#[values(Way::Plain, Way::Tls)] way: Way) {
    let folder = folder();
    let running = way.service(folder.path());
    for request in [
        "GET /p/main/-/kv/../../secret HTTP/1.1\r\n\r\n",
        "GET /p/pr/7/%2e%2e/8/-/kv/x HTTP/1.1\r\n\r\n",
        "PUT /-/kv/x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "PUT /-/kv/x HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "\0\0\0\0",
    ] {
        let mut client = way.client(folder.path(), &running);
        client.send(request.as_bytes());
        assert_eq!(client.answer(false).status, 400, "{request:?}");
    }
}

/// What ProtoBuf makes of an action result with one output file.
fn action_result(digest: &str) -> Vec<u8> {
    let digest = [&[0x0a, 64][..], digest.as_bytes(), &[0x10, 1]].concat();
    let file = [&[0x0a, 1, b'o', 0x12, digest.len() as u8][..], &digest].concat();
    [&[0x12, file.len() as u8][..], &file].concat()
}

/// bazel#18696: Bazel before 7.4 never recovers from a result whose files are gone.
#[rstest::rstest]
fn bazel_18696_result_without_its_files_is_a_miss_and_is_dropped(#[values(Way::Plain, Way::Tls)] way: Way) {
    let folder = folder();
    let running = way.service(folder.path());
    let mut client = way.client(folder.path(), &running);
    let main = token("p/main", Access::Write);
    let fork = token("p/pr/7", Access::Write);
    let (key, digest) = (Digest::of(b"action").hex(), Digest::of(b"x").hex());
    let (ac, cas) = (format!("/p/main/-/bazel/ac/{key}"), format!("/p/main/-/bazel/cas/{digest}"));
    assert_eq!(client.ask("PUT", &ac, Some(&main), Some(&action_result(&digest))).status, 201);
    assert_eq!(client.ask("GET", &ac, Some(&main), None).status, 404);
    assert_eq!(client.ask("PUT", &cas, Some(&main), Some(b"x")).status, 201);
    assert_eq!(client.ask("GET", &ac, Some(&main), None).status, 404, "it was dropped");
    assert_eq!(client.ask("PUT", &ac, Some(&main), Some(&action_result(&digest))).status, 201);
    assert_eq!(client.ask("GET", &ac, Some(&main), None).status, 200);
    assert_eq!(client.ask("GET", &ac, Some(&fork), None).status, 200);
}

/// bazel#11063: nobody uploads the empty content, and everybody refers to it.
#[test]
fn bazel_11063_empty_content_is_always_there() {
    let folder = folder();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let path = format!("/p/main/-/bazel/cas/{}", Digest::of(b"").hex());
    assert_eq!(client.ask("GET", &path, None, None).status, 200);
}

#[test]
fn bytes_that_are_not_what_their_key_or_protocol_says_are_refused() {
    let folder = folder();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    let digest = Digest::of(b"x").hex();
    let wrong = [
        (format!("/-/bazel/cas/{digest}"), &b"y"[..]),
        (format!("/-/bazel/ac/{digest}"), b"Hello, World!"),
        ("/-/dav/a/b/c/abc".to_owned(), b"no zip"),
        ("/-/ccache/ab/cdef".to_owned(), b"no file of ccache"),
    ];
    for (path, bytes) in wrong {
        assert_eq!(client.ask("PUT", &path, Some(&main), Some(bytes)).status, 422, "{path}");
        assert_eq!(client.ask("GET", &path, Some(&main), None).status, 404, "{path}");
    }
}

#[test]
fn entries_of_a_writer_are_listed_and_purged_by_admins_only() {
    let folder = folder();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let (main, admin) = (token("p/main", Access::Write), token("admin", Access::Admin));
    client.ask("PUT", "/-/kv/x", Some(&main), Some(b"x"));
    assert_eq!(client.ask("GET", "/-/admin/stat", Some(&main), None).status, 403);
    let list = client.ask("GET", "/-/admin/entries?scope=p%2Fmain", Some(&admin), None);
    let list = String::from_utf8(list.body).unwrap();
    assert!(list.contains("\"run\":\"run of p/main\"") && list.contains("127.0.0.1"), "{list}");
    let gone = client.ask("DELETE", "/-/admin/entries?writer=run%20of%20p%2Fmain", Some(&admin), None);
    assert_eq!(gone.body, b"{\"removed\":1}\n");
    assert_eq!(client.ask("GET", "/-/kv/x", Some(&main), None).status, 404);
    assert_eq!(
        client.ask("DELETE", "/-/admin/entries", Some(&admin), None).status,
        404,
        "not everything by mistake"
    );
}

/// ccache 4.7 writes a head and then a body, with Nagle's algorithm on. A kernel that waits for an answer that could carry it acknowledges
/// the head after 40 ms or later, never earlier, and only then the body comes.
#[rstest::rstest]
fn body_of_a_client_that_waits_for_the_acknowledgement_of_its_head_comes_at_once(
    #[values(Way::Plain, Way::Tls)] way: Way,
) {
    let folder = folder();
    let running = way.service(folder.path());
    let mut client = way.client(folder.path(), &running);
    client.stream.set_nodelay(false).unwrap();
    let main = token("p/main", Access::Write);
    let mut round = |number: usize| {
        assert_eq!(client.ask("GET", &format!("/p/main/-/kv/{number}"), Some(&main), None).status, 404);
        let began = Instant::now();
        let head = format!(
            "PUT /p/main/-/kv/{number} HTTP/1.1\r\nHost: cache\r\nAuthorization: Bearer {main}\r\nContent-Length: 5\r\n\r\n"
        );
        client.send(head.as_bytes());
        client.send(b"entry");
        assert_eq!(client.answer(false).status, 201);
        began.elapsed()
    };
    // the first ones are quick anyway: a kernel waits once it saw a dialogue
    let fastest = (0..40).map(&mut round).skip(20).min().unwrap();
    assert!(fastest < Duration::from_millis(40), "{fastest:?}");
    running.stop().unwrap();
}
