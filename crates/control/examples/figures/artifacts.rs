//! An artifact up, through an agent's own door, and down again, over HTTP, beside `cp` and `sha256sum`.

use crate::plane::{Plane, config, pull_request, send, sqlite};
use crate::{figure, site};
use forgeyard_api::agent::{self, Redeem};
use forgeyard_api::client::agent::{AgentClient, Session};
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::input::Input;
use forgeyard_model::principal::{ApiToken, Principal, PrincipalKind, Role};
use forgeyard_model::{ArtifactId, Digest, Id as _, PrincipalId, Secret, Timestamp};
use sha2::Digest as _;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use tokio::io::AsyncWriteExt as _;

const MEBIBYTES: usize = 256;
/// Rounds; the best of each is taken, since other work on the machine only ever makes one slower.
const ROUNDS: usize = 3;

pub(crate) async fn measure() {
    // A folder on a disk: `/tmp` may be memory.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let data = folder.path();
    let plane = Plane::without_sources(data, sqlite(data).await, config(Path::new("/nowhere"), 10)).await;
    site::join(&plane).await;
    let (client, session) = agent(&plane).await;
    let people = person(&plane).await;
    let file = data.join("file");
    let (mut up, mut up_floor, mut down, mut down_floor) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for round in 0..ROUNDS {
        let block: Vec<u8> =
            (0..1_048_576u32).map(|i| (i.wrapping_mul(2_654_435_761 + round as u32) >> 11) as u8).collect();
        std::fs::write(&file, block.repeat(MEBIBYTES)).unwrap();
        let whole = std::fs::read(&file).unwrap();
        let digest = Digest::of(&whole);
        drop(whole);
        run(Command::new("sync").arg(&file));
        let rate = |begin: Instant| MEBIBYTES as f64 / begin.elapsed().as_secs_f64();

        let copy = data.join("copy");
        let begin = Instant::now();
        run(Command::new("cp").arg(&file).arg(&copy));
        run(Command::new("sync").arg(&copy));
        run(Command::new("sha256sum").arg(&file));
        up_floor = up_floor.max(rate(begin));

        let begin = Instant::now();
        let body = tokio::fs::File::open(&file).await.unwrap();
        let name = format!("file-{round}");
        let size = (MEBIBYTES << 20) as u64;
        let stored =
            client.artifact(&session, ArtifactKind::Source, &name, digest, body, size).await.unwrap();
        up = up.max(rate(begin));

        std::fs::remove_file(&copy).unwrap();
        let begin = Instant::now();
        run(Command::new("cp").arg(&file).arg(&copy));
        run(Command::new("sha256sum").arg(&copy));
        down_floor = down_floor.max(rate(begin));

        let begin = Instant::now();
        let found = download(&people, stored.id, &data.join("down")).await;
        assert_eq!(found, digest, "other bytes came back");
        down = down.max(rate(begin));
    }
    let peer = Some(("cp + sync + sha256sum", up_floor));
    figure("artifact up, 256 MiB over HTTP, verified and durable", up, "MiB/s", peer, None);
    let peer = Some(("cp + sha256sum", down_floor));
    figure("artifact down, 256 MiB over HTTP, verified", down, "MiB/s", peer, None);
    plane.stop().await;
}

fn run(command: &mut Command) {
    assert!(command.stdout(Stdio::null()).status().unwrap().success(), "{command:?} failed");
}

/// An agent with a session: its job has been placed, and it has redeemed its token.
async fn agent(plane: &Plane) -> (AgentClient, Session) {
    let signed = pull_request(1, &"a".repeat(40));
    let url = format!("{}/webhooks/github", plane.url);
    send(&reqwest::Client::new(), &url, "guid-1", &signed).await;
    let mut version = plane.app.core.version();
    let attempt = loop {
        for input in site::sources(plane, &mut BTreeSet::new()) {
            plane.give(input).await;
        }
        if let Some(attempt) = plane.app.core.read().attempts.values().next().cloned() {
            break attempt;
        }
        version.changed().await.unwrap();
    };
    let client = AgentClient::new(&plane.url, &HttpOptions::default()).unwrap();
    let token = plane.app.keys.attempt_token(&attempt);
    let request = Redeem { version: agent::VERSION, token, nonce: "a nonce of it".to_owned() };
    let redeemed = client.redeem(&request).await.unwrap();
    let session =
        Session { attempt: redeemed.attempt, fence: redeemed.fence, token: Secret::new(&redeemed.session) };
    (client, session)
}

/// Somebody who may read artifacts.
async fn person(plane: &Plane) -> Client {
    let token = forgeyard_control::keys::new_token();
    plane
        .give(Input::TokenIssued {
            token: ApiToken {
                digest: Digest::of(token.as_bytes()),
                principal: Principal {
                    id: PrincipalId::from_bits(7),
                    name: "reader".to_owned(),
                    kind: PrincipalKind::Token { role: Role::Viewer },
                },
                created_at: Timestamp::from_micros(0),
                expires_at: None,
                revoked_at: None,
                repositories: Default::default(),
                forge_roles: Default::default(),
                generation: 0,
            },
        })
        .await;
    Client::new(&plane.url, Some(Secret::new(token)), &HttpOptions::default()).unwrap()
}

/// Downloads into a file and answers the digest of what came.
async fn download(people: &Client, artifact: ArtifactId, to: &Path) -> Digest {
    let mut answer = people.artifact_bytes(artifact).await.unwrap();
    let mut file = tokio::fs::File::create(to).await.unwrap();
    let mut hash = sha2::Sha256::new();
    while let Some(chunk) = answer.chunk().await.unwrap() {
        hash.update(&chunk);
        file.write_all(&chunk).await.unwrap();
    }
    file.flush().await.unwrap();
    Digest::from_bytes(hash.finalize().into())
}
