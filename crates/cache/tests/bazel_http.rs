//! Reports about Bazel over HTTP. *Protocol tests*; the real Bazel is in `clients.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::token::Access;
use forgeyard_model::Digest;
use std::time::{Duration, Instant};
use support::{Client, service, token, write_authority};

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn cas(bytes: &[u8]) -> String {
    format!("/p/main/-/bazel/cas/{}", Digest::of(bytes).hex())
}

/// What ProtoBuf makes of an action result with one output file.
fn action_result(digest: &str) -> Vec<u8> {
    let digest = [&[0x0a, 64][..], digest.as_bytes(), &[0x10, 1]].concat();
    let file = [&[0x0a, 1, b'o', 0x12, digest.len() as u8][..], &digest].concat();
    [&[0x12, file.len() as u8][..], &file].concat()
}

/// bazel#10159, #6308: a server that ends connections after so many requests races with the next one.
#[test]
fn bazel_10159_connection_is_kept_after_many_requests() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    for number in 0..3000u32 {
        let bytes = (number / 3).to_le_bytes();
        let answer = match number % 3 {
            0 => client.ask("PUT", &cas(&bytes), Some(&main), Some(&bytes)),
            1 => client.ask("GET", &cas(&bytes), Some(&main), None),
            _ => client.ask("GET", &cas(&noise(9, u64::from(number))), Some(&main), None),
        };
        assert_eq!(answer.status, [201, 200, 404][number as usize % 3]);
        assert!(!answer.head.to_lowercase().contains("connection: close"), "{}", answer.head);
    }
    running.stop().unwrap();
}

/// bazel-remote#473: what is here already is read over, and the connection goes on; so it is for whoever may not write.
#[test]
fn bazel_remote_473_repeated_put_is_read_over_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let (main, reader) = (token("p/main", Access::Write), token("p/main", Access::Read));
    let bytes = noise(3 << 20, 1);
    assert_eq!(client.ask("PUT", &cas(&bytes), Some(&main), Some(&bytes)).status, 201);
    for _ in 0..5 {
        assert_eq!(client.ask("PUT", &cas(&bytes), Some(&main), Some(&bytes)).status, 200);
        assert_eq!(client.ask("PUT", &cas(&bytes), Some(&reader), Some(&bytes)).status, 200);
    }
    assert!(client.ask("GET", &cas(&bytes), Some(&reader), None).body == bytes);
    assert_eq!(
        fs_err::read_dir(folder.path().join("store/incoming")).unwrap().count(),
        0,
        "nothing is left over"
    );
}

/// bazel#8250, #19348: whoever was told of a result can fetch its files for as long as a build takes.
#[test]
fn bazel_8250_files_of_an_action_hit_outlive_the_quota_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    write_authority(&folder.path().join("authority.json"), |authority| {
        authority.scopes.iter_mut().for_each(|scope| scope.quota_mib = Some(1));
    });
    let mut client = Client::new(running.address);
    let main = token("p/main", Access::Write);
    let object = noise(300_000, 1);
    let ac = format!("/p/main/-/bazel/ac/{}", Digest::of(b"action").hex());
    assert_eq!(client.ask("PUT", &cas(&object), Some(&main), Some(&object)).status, 201);
    let result = action_result(&Digest::of(&object).hex());
    assert_eq!(client.ask("PUT", &ac, Some(&main), Some(&result)).status, 201);
    assert_eq!(client.ask("GET", &ac, Some(&main), None).status, 200);
    let end = Instant::now() + Duration::from_secs(60);
    // until the new authority is in force and something had to go
    for round in 10.. {
        let more = noise(300_000, round);
        client.ask("PUT", &cas(&more), Some(&main), Some(&more));
        running.maintain().unwrap();
        if client.ask("GET", &cas(&more), Some(&main), None).status == 404 {
            break;
        }
        assert!(Instant::now() < end, "nothing was evicted");
    }
    assert!(client.ask("GET", &cas(&object), Some(&main), None).body == object);
}
