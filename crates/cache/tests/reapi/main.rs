//! The Remote Execution API over gRPC. *Protocol tests*: a client of tonic says on the wire what Bazel, Buck2, Siso and recc
//! say. What Bazel 4.2.3 itself does is in `bazel_grpc.rs`.

#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod actions;
mod atrest;
mod batches;
mod refusals;
mod stream;

#[path = "../support/grpc.rs"]
mod grpc;
#[path = "../support/mod.rs"]
mod support;

use forgeyard_cache::grpc::wire::{self, Digest};
use forgeyard_cache::service::Running;
use forgeyard_cache::token::Access;
use grpc::{ActionResult, Directory, OutputDirectory, OutputFile, Remote, Tree, digest, result};
use prost::Message as _;
use std::io::Write as _;
use support::{Client, service, token, write_authority};
use tonic::Code;

const EMPTY: &[u8] = b"";

fn start() -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    // it makes runtimes of its own, which it could not on the thread of one
    let running = std::thread::scope(|threads| threads.spawn(|| service(folder.path())).join().unwrap());
    (folder, running)
}

async fn remote(running: &Running, scope: &str, access: Access) -> Remote {
    Remote::new(running.address, Some(token(scope, access)), "p/main").await
}

/// Bytes that do not compress.
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

/// As many frames as there are pieces.
fn frames(bytes: &[u8], piece: usize) -> Vec<u8> {
    bytes.chunks(piece).flat_map(|some| zstd::bulk::compress(some, 3).unwrap()).collect()
}

fn metric(running: &Running, line: &str) -> u64 {
    let metrics = Client::new(running.address).ask("GET", "/metrics", None, None).body;
    let metrics = String::from_utf8(metrics).unwrap();
    let found = metrics.lines().find_map(|one| one.strip_prefix(line)).map(str::trim);
    found.map_or(0, |number| number.parse().unwrap())
}

#[tokio::test]
async fn fork_reads_main_over_grpc_and_writes_only_to_itself() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    let fork = remote(&running, "p/pr/7", Access::Write).await;
    let other = remote(&running, "p/pr/8", Access::Write).await;
    let stranger = Remote::new(running.address, None, "p/main").await;
    assert_eq!(main.put(&[b"object"]).await, [0]);
    main.update(b"compile", &result(&[b"object"])).await.unwrap();
    for reader in [&main, &fork, &other, &stranger] {
        assert!(reader.has(b"object").await);
        assert_eq!(reader.action(b"compile").await.unwrap(), result(&[b"object"]));
        assert_eq!(reader.read(&digest(b"object"), false, 0, 0).await.unwrap(), b"object");
    }
    assert_eq!(fork.put(&[b"poison"]).await, [0]);
    fork.update(b"compile", &result(&[b"poison"])).await.unwrap();
    assert_eq!(fork.action(b"compile").await.unwrap(), result(&[b"poison"]), "its own");
    for reader in [&main, &other, &stranger] {
        assert_eq!(reader.action(b"compile").await.unwrap(), result(&[b"object"]));
        assert!(!reader.has(b"poison").await);
    }
    // entries are those of Bazel over HTTP
    let mut http = Client::new(running.address);
    let path = format!("/p/main/-/bazel/cas/{}", digest(b"object").hash);
    assert_eq!(http.ask("GET", &path, None, None).body, b"object");
    // another instance: the scope of the token, a scope that is not allowed, and no scope at all
    for (instance, has) in [("", true), ("p/pr/8", false), ("secret", false), ("../main", false)] {
        let mut asked = fork.clone();
        asked.instance = instance.to_owned();
        assert_eq!(asked.has(b"poison").await, has, "{instance}");
    }
    running.stop().unwrap();
}

/// What one scope has shows in no answer to another: not in a batch, not in the status of an upload, not in how an upload
/// ends. Whoever wants a name for it has to show all of its bytes.
#[tokio::test]
async fn existence_in_another_scope_shows_in_no_answer() {
    let (_folder, running) = start();
    let secret = Remote::new(running.address, Some(token("secret", Access::Write)), "secret").await;
    let fork = remote(&running, "p/pr/7", Access::Write).await;
    let bytes = noise(200_000, 1);
    let of = digest(&bytes);
    assert_eq!(secret.put(&[&bytes]).await, [0]);
    let never = digest(&noise(200_000, 2));
    assert_eq!(fork.missing(&[of.clone(), never.clone()]).await, [of.clone(), never.clone()]);
    assert!(!fork.query(&of).await.complete);
    for digest in [&of, &never] {
        assert_eq!(fork.read(digest, false, 0, 0).await.unwrap_err().code(), Code::NotFound);
        // other bytes, and only the first of them
        let wrong = fork.write(digest, false, vec![noise(200_000, 3)]).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument);
        let cut = fork.write(digest, false, vec![bytes[..1000].to_vec()]).await.unwrap_err();
        assert_eq!(cut.code(), Code::InvalidArgument);
        assert!(!fork.missing(std::slice::from_ref(digest)).await.is_empty());
    }
    assert_eq!(fork.write(&of, false, vec![bytes.clone()]).await.unwrap(), 200_000);
    assert!(fork.has(&bytes).await);
}

#[tokio::test]
async fn bazel_11063_empty_content_is_always_there_over_grpc() {
    let (_folder, running) = start();
    let main = remote(&running, "p/main", Access::Write).await;
    assert!(main.has(EMPTY).await);
    assert_eq!(main.read(&digest(EMPTY), false, 0, 0).await.unwrap(), EMPTY);
    let compressed = main.read(&digest(EMPTY), true, 0, 0).await.unwrap();
    assert_eq!(zstd::decode_all(&compressed[..]).unwrap(), EMPTY);
    assert_eq!(main.get_all(&[digest(EMPTY)], false).await.unwrap()[0].status.as_ref().unwrap().code, 0);
    assert_eq!(main.write(&digest(EMPTY), false, vec![Vec::new()]).await.unwrap(), 0);
    // bazel-remote#233: a result may refer to it although nobody sent it
    main.update(b"touch", &result(&[EMPTY])).await.unwrap();
    assert!(main.action(b"touch").await.is_ok());
}

#[tokio::test]
async fn health_is_served_and_what_is_not_here_is_unimplemented() {
    let (_folder, running) = start();
    let anybody = Remote::new(running.address, None, "").await;
    let ask = |service: &str| wire::HealthCheckRequest { service: service.to_owned() };
    let path = "grpc.health.v1.Health/Check";
    let answer = anybody.unary::<_, wire::HealthCheckResponse>(path, ask("")).await.unwrap();
    assert_eq!(answer.into_inner().status, 1);
    let unknown = anybody.unary::<_, wire::HealthCheckResponse>(path, ask("x.Y")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    for path in ["build.bazel.remote.execution.v2.Execution/Execute", "grpc.health.v1.Health/x"] {
        let refused = anybody.unary::<_, wire::HealthCheckResponse>(path, ask("")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
    }
    let function =
        wire::FindMissingBlobsRequest { digest_function: 9, ..wire::FindMissingBlobsRequest::default() };
    let path = "build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs";
    let refused = anybody.unary::<_, wire::FindMissingBlobsResponse>(path, function).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "BLAKE3 is not spoken: {refused}");
}
