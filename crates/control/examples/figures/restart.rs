//! A restart with a thousand running attempts: until the first job of the queue has its place.

use crate::plane::{Plane, config, pull_request, sqlite};
use crate::{figure, millis, site};
use forgeyard_control::core;
use forgeyard_formats::webhook::compose::Signed;
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::input::Input;
use forgeyard_model::{AttemptId, Digest};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const RUNNING: u32 = 1000;
const WAITING: u32 = 10;

pub(crate) async fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let (filled, data) = (folder.path().join("filled"), folder.path().join("again"));
    std::fs::create_dir(&filled).unwrap();
    let nowhere = Path::new("/nowhere");
    let plane = Plane::without_sources(&filled, sqlite(&filled).await, config(nowhere, RUNNING)).await;
    site::join(&plane).await;
    fill(&plane).await;
    let running = running(&plane);
    let rows = plane.app.core.read().rows().len();
    assert_eq!(running.len(), RUNNING as usize);
    plane.stop().await;
    // The lock of the folder lasts as long as this process; its files are what a next process would find.
    assert!(Command::new("cp").arg("-a").args([&filled, &data]).status().unwrap().success());

    // The floor: the same rows, read from the same database and nothing else.
    let begin = Instant::now();
    let store = sqlite(&data).await;
    let read = store
        .load(forgeyard_db::Keep::since(forgeyard_model::Timestamp::from_micros(0)))
        .await
        .unwrap()
        .rows
        .len();
    let floor = begin.elapsed();
    assert!(read >= rows, "{read} rows of {rows} were read");
    store.close().await;
    drop(store);

    let begin = Instant::now();
    let plane = Plane::start(&data, sqlite(&data).await, config(nowhere, RUNNING + 1)).await;
    let mut version = plane.app.core.version();
    while plane.app.core.read().runners.len() == RUNNING as usize {
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, version.changed()).await.expect("no job was placed").unwrap();
    }
    let took = begin.elapsed();
    let after = self::running(&plane);
    assert!(running.is_subset(&after), "the restart ended attempts that ran");
    let text = "restart with 1,000 running attempts → first placement";
    let peer = Some(("reading the same rows", millis(floor)));
    figure(text, millis(took), "ms", peer, Some(("at most", 2000.0)));
    plane.stop().await;
}

fn running(plane: &Plane) -> BTreeSet<AttemptId> {
    let farm = plane.app.core.read();
    farm.attempts.values().filter(|row| row.state == AttemptState::Running).map(|row| row.id).collect()
}

/// Brings the farm to its thousand running attempts, and a few jobs that wait for a place.
async fn fill(plane: &Plane) {
    let webhooks = (0..u64::from(RUNNING + WAITING)).map(|n| pull_request(n + 1, &format!("{:040x}", n + 1)));
    let webhooks: Vec<Signed> = webhooks.collect();
    for (part, n) in webhooks.chunks(200).zip((0..).step_by(200)) {
        let calls = (n..).zip(part).map(|(n, signed): (u64, &Signed)| {
            let (guid, body) = (format!("guid-{n}"), bytes::Bytes::from(signed.body.clone()));
            let (event, digest) = (signed.event.to_owned(), Digest::of(&body));
            let input = Input::DeliveryReceived { guid: guid.clone(), event, body: digest };
            plane.app.core.give_with_body(input, core::farm(), Some((guid, body)))
        });
        futures::future::join_all(calls).await;
    }
    let mut version = plane.app.core.version();
    while !plane.app.core.read().index.unread.is_empty() {
        version.changed().await.unwrap();
    }
    all(plane, site::sources(plane, &mut BTreeSet::new())).await;
    let attempts: Vec<AttemptId> = plane.app.core.read().index.live_attempts.iter().copied().collect();
    let nonce = || "a nonce".to_owned();
    all(plane, attempts.iter().map(|attempt| Input::TokenRedeemed { attempt: *attempt, nonce: nonce() }))
        .await;
    let step = || Some("render".to_owned());
    let heard = |attempt: &AttemptId| Input::AgentHeard { attempt: *attempt, fence: 1, step: step() };
    all(plane, attempts.iter().map(heard)).await;
}

async fn all(plane: &Plane, inputs: impl IntoIterator<Item = Input>) {
    let inputs: Vec<Input> = inputs.into_iter().collect();
    for part in inputs.chunks(200) {
        futures::future::join_all(part.iter().map(|input| plane.give(input.clone()))).await;
    }
}
