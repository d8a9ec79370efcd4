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

use ed25519_dalek::SigningKey;
use forgeyard_cache::authority::{Snapshot, public_text};
use forgeyard_cache::grpc::wire;
use forgeyard_cache::name::{Kind, Name};
use forgeyard_cache::scope::ScopeRule;
use forgeyard_cache::service::{Options, start};
use forgeyard_cache::store::log::{Config, LogStore};
use forgeyard_cache::store::{Body, Policy, Provenance, Store as _};
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_model::{Digest, Timestamp};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

const CONTENTS: u32 = 500_000;
const BATCH: usize = 14_000;
const REQUESTS: usize = 60;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("--serve") {
        return serve(&PathBuf::from(std::env::args().nth(2).unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let (mut child, address) = server(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let channel =
        runtime.block_on(Endpoint::from_shared(format!("http://{address}")).unwrap().connect()).unwrap();
    for (what, offset) in [("that are here", 0), ("that are missing", CONTENTS)] {
        let mut rates: Vec<f64> =
            (0..3).map(|round| runtime.block_on(rate(&channel, child.id(), offset, round))).collect();
        rates.sort_unstable_by(f64::total_cmp);
        let figure = serde_json::json!({
            "figure": format!("FindMissingBlobs, digests {what}, per CPU second"), "value": rates[1], "unit": "/s",
            "peer": null, "aim": "at least", "aim_value": 1e6,
        });
        println!("{figure}");
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn content(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn clock() -> forgeyard_cache::store::Clock {
    Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000))
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

fn fill(folder: &Path) {
    let store = LogStore::open(Config::new(folder.join("store")), clock()).unwrap();
    for number in 0..CONTENTS {
        let bytes = content(number);
        let key = Digest::of(&bytes).hex();
        let name = Name { scope: "bench".parse().unwrap(), kind: Kind::Content, key };
        store.put(&name, Body::Inline(&bytes), Policy::Keep, &Provenance::default()).unwrap();
    }
    store.snapshot().unwrap();
}

fn serve(folder: &Path) {
    let snapshot = Snapshot {
        keys: [("k".to_owned(), public_text(&key().verifying_key()))].into(),
        scopes: vec![ScopeRule::new("bench".parse().unwrap())],
        ..Snapshot::default()
    };
    let authority = folder.join("authority.json");
    std::fs::write(&authority, serde_json::to_vec(&snapshot).unwrap()).unwrap();
    let running = start(Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        store: Config::new(folder.join("store")),
        authority,
        largest: 1 << 30,
        threads: 2,
        scrub_bytes: 0,
        clock: clock(),
    })
    .unwrap();
    println!("{}", running.address);
    loop {
        std::thread::park();
    }
}

fn server(folder: &Path) -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("--serve").arg(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// CPU time of a process, in seconds.
fn cpu(id: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    let spent: u64 = stats.filter_map(|stat| stat.split_whitespace().next()?.parse::<u64>().ok()).sum();
    spent as f64 / 1e9
}

async fn rate(channel: &Channel, server: u32, offset: u32, round: usize) -> f64 {
    let claims = Claims {
        id: "t".to_owned(),
        key: "k".to_owned(),
        principal: "bench".to_owned(),
        scope: "bench".parse().unwrap(),
        access: Access::Write,
        expires_at: Timestamp::from_micros(i64::MAX),
        epoch: 0,
        cold: false,
        run: None,
    };
    let token = token::mint(&claims, &key()).unwrap();
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
        let before = cpu(server);
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path =
            "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs".parse().unwrap();
        let codec = ProstCodec::<wire::FindMissingBlobsRequest, wire::FindMissingBlobsResponse>::default();
        let answer = grpc.unary(request, path, codec).await.unwrap().into_inner();
        spent += cpu(server) - before;
        let expected = if offset == 0 { 0 } else { BATCH };
        assert_eq!(answer.missing_blob_digests.len(), expected);
    }
    (REQUESTS * BATCH) as f64 / spent
}
