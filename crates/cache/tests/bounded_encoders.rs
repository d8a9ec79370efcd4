//! harmonia#1003: servers that compress while they answer died of their encoders. One test in a process of its own, since it
//! looks at its memory. *Protocol test.*

#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use forgeyard_cache::token::Access;
use grpc::{Remote, digest};
use support::{Client, service, token};
use tonic::transport::Endpoint;

/// Readers that have begun and do not go on, each on a connection of its own. More than may have an encoder.
const READERS: usize = 80;
/// What one of them may cost: a piece of the content, a MiB that waits to be sent, an encoder. Those of harmonia, which looked far
/// back for repetitions, took 128 MiB and more.
const MOST_EACH: u64 = 4 << 20;

fn resident() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn harmonia_1003_encoders_are_bounded_and_a_reader_beyond_them_gets_its_bytes_too() {
    let folder = tempfile::tempdir().unwrap();
    let running = std::thread::scope(|threads| threads.spawn(|| service(folder.path())).join().unwrap());
    let mut state = 1u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let content: Vec<u8> = words.take(768 << 10).flatten().collect();
    let digest = digest(&content);
    let (main, path) = (token("p/main", Access::Write), format!("/p/main/-/bazel/cas/{}", digest.hash));
    assert_eq!(Client::new(running.address).ask("PUT", &path, Some(&main), Some(&content)).status, 201);
    let before = resident();
    let mut held = Vec::new();
    for _ in 0..READERS {
        // windows as small as they may be, so that little waits at the client, which is in this process too
        let endpoint = Endpoint::from_shared(format!("http://{}", running.address)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        let remote = Remote::over(endpoint, Some(main.clone()), "p/main").await;
        let parts = remote.begin_read(&digest, true).await.unwrap();
        held.push((remote, parts));
    }
    let each = resident().saturating_sub(before) / READERS as u64;
    println!("{each} bytes for each of {READERS} readers");
    assert!(each < MOST_EACH, "{each} bytes for each of {READERS} readers");
    // the first ones have encoders, the last ones have none
    for (number, (_, mut parts)) in held.into_iter().enumerate() {
        if (4..READERS - 4).contains(&number) {
            continue;
        }
        let mut read = Vec::new();
        while let Some(part) = parts.message().await.unwrap() {
            read.extend_from_slice(&part.data);
        }
        assert!(zstd::stream::decode_all(&*read).unwrap() == content, "reader {number}");
    }
    running.stop().unwrap();
}
