//! How many digests of FindMissingBlobs one core answers for.
//!
//! `cargo xtask bench cache-find-missing` runs it. The server is a process of its own, over loopback, with a token; what is
//! counted is CPU time of the server, read from /proc, since the client takes the same cores. Requests have as many digests
//! as Bazel packs into one (14,000, almost a megabyte). All contents are unique. There is no peer to compare with: no other
//! server says how many it answers for. Prints lines of JSON.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measuring program stops at the first surprise"
)]

mod measure;

use forgeyard_cache::grpc::wire;
use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::{Body, Policy, Provenance, Store as _};
use forgeyard_model::Digest;
use measure::Figure;
use std::path::Path;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

const CONTENTS: u32 = 500_000;
const BATCH: usize = 14_000;
/// As many as it takes to ask for each content once.
const REQUESTS: usize = CONTENTS as usize / BATCH;

fn main() {
    measure::serve_if_asked(false);
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let (mut child, address) = measure::server(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let channel =
        runtime.block_on(Endpoint::from_shared(format!("http://{address}")).unwrap().connect()).unwrap();
    let measure = |offset, rounds: std::ops::Range<usize>| {
        let rates = rounds.map(|round| runtime.block_on(rate(&channel, child.id(), offset, round)));
        measure::median(rates.collect())
    };
    // each content once, then all of them again and again, as builds do
    for (what, value) in [
        ("that are here, the first time", measure(0, 0..1)),
        ("that are here, again", measure(0, 1..4)),
        ("that are missing", measure(CONTENTS, 0..3)),
    ] {
        let text = format!("FindMissingBlobs, digests {what}, per CPU second");
        Figure { text: &text, value, unit: "/s", peer: None, aim: Some(("at least", 1e6)) }.print();
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn content(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn fill(folder: &Path) {
    let store = LogStore::open(Config::new(folder.join("store")), measure::clock()).unwrap();
    for number in 0..CONTENTS {
        let bytes = content(number);
        let key = Digest::of(&bytes).hex();
        let name = Name { scope: "bench".parse().unwrap(), kind: Kind::Content, key };
        store.put(&name, Body::Inline(&bytes), Policy::Keep, &Provenance::default()).unwrap();
    }
    store.snapshot().unwrap();
}

async fn rate(channel: &Channel, server: u32, offset: u32, round: usize) -> f64 {
    let token = measure::token();
    let mut spent = 0.0;
    for request in 0..REQUESTS {
        // spread over all contents, each request another set
        let first = (round * REQUESTS + request) * BATCH;
        let blob_digests = (first..first + BATCH)
            .map(|at| (at as u64 * 7919 % u64::from(CONTENTS)) as u32 + offset)
            .map(|number| wire::Digest { hash: Digest::of(&content(number)).hex(), size_bytes: 4 })
            .collect();
        let message = wire::FindMissingBlobsRequest {
            instance_name: "bench".to_owned(),
            blob_digests,
            digest_function: wire::SHA256,
        };
        let mut request = tonic::Request::new(message);
        let bearer = format!("Bearer {}", token.expose()).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let before = measure::cpu(server);
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path =
            "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs".parse().unwrap();
        let codec = ProstCodec::<wire::FindMissingBlobsRequest, wire::FindMissingBlobsResponse>::default();
        let answer = grpc.unary(request, path, codec).await.unwrap().into_inner();
        spent += measure::cpu(server) - before;
        let expected = if offset == 0 { 0 } else { BATCH };
        assert_eq!(answer.missing_blob_digests.len(), expected);
    }
    (REQUESTS * BATCH) as f64 / spent
}
