//! bazel#4329, #3939: large contents go through in pieces. One test in a process of its own, since it looks at its memory.

#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use forgeyard_cache::grpc::wire;
use forgeyard_cache::token::Access;
use grpc::Remote;
use sha2::{Digest as _, Sha256};
use std::io::{Read as _, Write as _};
use support::{Client, service, token};

const SIZE: usize = 60 << 20;
const PIECE: usize = 64 << 10;
/// Clients and server together; what would hold a content needs almost twice that.
const MOST: u64 = 32 << 20;

fn peak() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

fn piece(number: usize) -> Vec<u8> {
    let mut state = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(PIECE);
    while bytes.len() < PIECE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[tokio::test]
async fn bazel_4329_large_content_goes_through_in_pieces_and_memory_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let running = std::thread::scope(|threads| threads.spawn(|| service(folder.path())).join().unwrap());
    let main = token("p/main", Access::Write);
    let mut hash = Sha256::new();
    (0..SIZE / PIECE).for_each(|number| hash.update(piece(number)));
    let digest = wire::Digest {
        hash: forgeyard_model::Digest::from_bytes(hash.finalize().into()).hex(),
        size_bytes: SIZE as i64,
    };
    let path = format!("/p/main/-/bazel/cas/{}", digest.hash);
    let before = peak();
    // over HTTP
    let mut client = Client::new(running.address);
    client.send(
        format!("PUT {path} HTTP/1.1\r\nAuthorization: Bearer {main}\r\nContent-Length: {SIZE}\r\n\r\n")
            .as_bytes(),
    );
    (0..SIZE / PIECE).for_each(|number| client.stream.write_all(&piece(number)).unwrap());
    assert_eq!(client.answer(false).status, 201);
    client.send(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes());
    let (mut read, mut buffer) = (0, vec![0; PIECE]);
    loop {
        match client.stream.read(&mut buffer).unwrap() {
            0 => break,
            some => read += some,
        }
    }
    assert!(read > SIZE);
    let over_http = peak() - before;
    // over gRPC, into another scope, compressed and plain
    let fork = Remote::new(running.address, Some(token("secret", Access::Write)), "secret").await;
    for compressed in [true, false] {
        let name = fork.upload_name(compressed, &digest);
        let mut at = 0;
        let messages = (0..SIZE / PIECE).map(move |number| {
            let data = match compressed {
                true => zstd::bulk::compress(&piece(number), 1).unwrap(),
                false => piece(number),
            };
            let message = wire::WriteRequest {
                resource_name: name.clone(),
                write_offset: at,
                finish_write: number + 1 == SIZE / PIECE,
                data: data.into(),
            };
            at += message.data.len() as i64;
            message
        });
        fork.write_raw(tokio_stream::iter(messages)).await.unwrap();
        let read = fork.read_through(&digest, compressed).await.unwrap();
        assert!(compressed || read == SIZE as u64, "{read}");
    }
    let over_grpc = peak() - before;
    println!("memory grew by {over_http} over HTTP and by {over_grpc} in all");
    assert!(over_grpc < MOST, "{over_http} over HTTP, {over_grpc} in all");
    running.stop().unwrap();
}
