//! Webhook → acknowledged, and webhook → job placed, at a steady rate.
//!
//! At 200 a second the source is *simulated*: it is there as soon as it is asked for. What is measured is the control
//! plane: HTTP, signature, the durable row, reading, gate, pipeline, queue, placement, each step durable before the
//! next. With a real `git fetch` per webhook the rate is what one git process after the other allows, so that is
//! measured one at a time, beside the same git commands by hand.

use crate::plane::{Plane, config, pull_request, send, sqlite};
use crate::{figure, percentile, site};
use forgeyard_control::core::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;

const RATE: u64 = 200;
const SECONDS: u64 = 5;
const REAL: u64 = 12;
/// What the floor does.
pub(crate) const FLOOR: &str = "bare HTTP + append + fdatasync, in groups";

/// When the runner of the job of each delivery was first seen in the replica.
type Seen = Arc<Mutex<BTreeMap<String, Instant>>>;

pub(crate) async fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let (mut floor, _) = at_rate(&format!("http://{}/", bare(folder.path()).await), None).await;
    let (floor_50, floor_99) = (percentile(&mut floor, 50), percentile(&mut floor, 99));

    let data = folder.path().join("simulated");
    std::fs::create_dir_all(&data).unwrap();
    let config_of = config(Path::new("/nowhere"), 1_000_000);
    let plane = Arc::new(Plane::without_sources(&data, sqlite(&data).await, config_of).await);
    site::join(&plane).await;
    let seen = watch(&plane);
    let sources = tokio::spawn(bring_sources(Arc::clone(&plane)));
    let before = cpu_seconds();
    let (mut acknowledged, mut placed) =
        at_rate(&format!("{}/webhooks/github", plane.url), Some(&seen)).await;
    let cpu = (cpu_seconds() - before) * 1e3 / (RATE * SECONDS) as f64;
    sources.abort();
    let missing = (RATE * SECONDS) as usize - placed.len();
    assert_eq!(missing, 0, "webhooks that placed no job");
    let peer = FLOOR;
    let what = "webhook → acknowledged, 200/s";
    figure(&format!("{what}, p50"), percentile(&mut acknowledged, 50), "ms", Some((peer, floor_50)), None);
    figure(&format!("{what}, p99"), percentile(&mut acknowledged, 99), "ms", Some((peer, floor_99)), None);
    let what = "webhook → job placed, 200/s, simulated source";
    figure(&format!("{what}, p50"), percentile(&mut placed, 50), "ms", Some((peer, floor_50)), None);
    let aim = Some(("at most", 50.0));
    figure(&format!("{what}, p99"), percentile(&mut placed, 99), "ms", Some((peer, floor_99)), aim);
    // Waiting times are those of this moment's machine; the work is not.
    let text = "webhook → job placed, processor time of sender, farm and database";
    figure(text, cpu, "ms", Some(("one core at 200/s has", 1000.0 / RATE as f64)), None);
    real(folder.path()).await;
}

/// Processor time of this process so far, in seconds: user and system, in ticks of a hundredth.
pub(crate) fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = text.rsplit(')').next().unwrap();
    let ticks = after.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

/// The floor: a listener that only appends each body to a file, durably, before it answers. What came while the disk was busy is
/// made durable together, as the farm does it; with one synchronisation for each body the floor would be above the house.
pub(crate) async fn bare(folder: &Path) -> std::net::SocketAddr {
    use tokio::sync::{mpsc, oneshot};
    let mut file = tokio::fs::File::create(folder.join("bare")).await.unwrap();
    let (given, mut taken) = mpsc::channel::<(axum::body::Bytes, oneshot::Sender<()>)>(1024);
    tokio::spawn(async move {
        let mut together = Vec::new();
        while taken.recv_many(&mut together, 256).await > 0 {
            for (body, _) in &together {
                file.write_all(body).await.unwrap();
            }
            file.flush().await.unwrap();
            file.sync_data().await.unwrap();
            for (_, answer) in together.drain(..) {
                let _ = answer.send(());
            }
        }
    });
    let handler = axum::routing::post(move |body: axum::body::Bytes| {
        let given = given.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            given.send((body, answer)).await.unwrap();
            answered.await.unwrap();
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/", handler);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Sends webhooks at the rate, whether or not earlier ones were answered. Answers the times from the moment at which
/// each was due: to its answer, and to its job's place.
async fn at_rate(url: &str, seen: Option<&Seen>) -> (Vec<Duration>, Vec<Duration>) {
    let http = reqwest::Client::new();
    let bodies: Vec<_> =
        (0..RATE * SECONDS).map(|n| pull_request(n + 1, &format!("{:040x}", n + 1))).collect();
    let begin = Instant::now() + Duration::from_millis(200);
    let mut calls = Vec::new();
    for (n, signed) in (0..).zip(bodies) {
        let due = begin + Duration::from_micros(1_000_000 / RATE) * n;
        let (http, url) = (http.clone(), url.to_owned());
        calls.push(tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            let guid = format!("guid-{n}");
            send(&http, &url, &guid, &signed).await;
            (guid, due, due.elapsed())
        }));
    }
    let answers: Vec<_> = futures::future::join_all(calls).await.into_iter().map(Result::unwrap).collect();
    let patience = Instant::now() + Duration::from_secs(30);
    let Some(seen) = seen else { return (answers.into_iter().map(|call| call.2).collect(), Vec::new()) };
    while seen.lock().unwrap().len() < answers.len() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = seen.lock().unwrap();
    let placed = answers.iter().filter_map(|(guid, due, _)| Some(seen.get(guid)?.duration_since(*due)));
    (answers.iter().map(|call| call.2).collect(), placed.collect())
}

/// Notes when the runner of each delivery's job appears to readers.
fn watch(plane: &Plane) -> Seen {
    let seen = Seen::default();
    let (mut changes, core, noted) = (plane.app.core.changes(), plane.app.core.clone(), Arc::clone(&seen));
    tokio::spawn(async move {
        loop {
            let key = match changes.recv().await {
                Ok(Change { kind: "runner", key, .. }) => Some(key),
                Ok(_) => continue,
                // Too many at once: look at all of them.
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => None,
                Err(_) => return,
            };
            let now = Instant::now();
            let farm = core.read();
            let one = key.and_then(|key| farm.runners.get(&key.parse().ok()?));
            let note = |runner: &forgeyard_model::runner::Runner| {
                let attempt = runner.work.attempt().and_then(|id| farm.attempts.get(&id));
                if let Some(pipeline) =
                    attempt.and_then(|attempt| farm.pipelines.get(&attempt.owner.pipeline()?))
                {
                    noted.lock().unwrap().entry(pipeline.delivery.clone()).or_insert(now);
                }
            };
            match one {
                Some(runner) => note(runner),
                None => farm.runners.values().for_each(note),
            }
        }
    });
    seen
}

async fn bring_sources(plane: Arc<Plane>) {
    let mut version = plane.app.core.version();
    let mut brought = BTreeSet::new();
    loop {
        version.catch_up();
        let inputs = site::sources(&plane, &mut brought);
        futures::future::join_all(inputs.into_iter().map(|input| plane.give(input))).await;
        if version.changed().await.is_err() {
            return;
        }
    }
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Webhook → placed with a real fetch, one at a time.
async fn real(folder: &Path) {
    let (data, work) = (folder.join("real"), folder.join("work"));
    std::fs::create_dir_all(&data).unwrap();
    std::fs::create_dir_all(&work).unwrap();
    git(&work, &["init", "-q", "-b", "main"]);
    let mut heads = Vec::new();
    for n in 0..=REAL {
        std::fs::write(work.join("file"), n.to_string()).unwrap();
        git(&work, &["add", "."]);
        git(&work, &["commit", "-q", "-m", "a change"]);
        heads.push(git(&work, &["rev-parse", "HEAD"]));
        git(&work, &["update-ref", &format!("refs/pull/{}/head", n + 1), "HEAD"]);
    }
    let plane = Plane::start(&data, sqlite(&data).await, config(&work, 1_000_000)).await;
    site::join(&plane).await;
    let seen = watch(&plane);
    let http = reqwest::Client::new();
    let url = format!("{}/webhooks/github", plane.url);
    let (mut placed, mut floor) = (Vec::new(), Vec::new());
    for (n, head) in (0..).zip(&heads) {
        let guid = format!("real-{n}");
        let begin = Instant::now();
        send(&http, &url, &guid, &pull_request(n + 1, head)).await;
        let patience = begin + Duration::from_secs(20);
        let at = loop {
            if let Some(at) = seen.lock().unwrap().get(&guid) {
                break *at;
            }
            assert!(Instant::now() < patience, "{guid} placed no job");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        // The first fetch makes the cache, and is not one like the others.
        if n > 0 {
            placed.push(at.duration_since(begin));
            floor.push(by_hand(folder, &work, n + 1, head));
        }
    }
    let peer = Some(("git fetch + git archive", percentile(&mut floor, 50)));
    let what = "webhook → job placed, real git fetch, one at a time, p50";
    figure(what, percentile(&mut placed, 50), "ms", peer, None);
    plane.stop().await;
}

/// The same fetch, done by hand into a repository of its own.
fn by_hand(folder: &Path, work: &Path, number: u64, head: &str) -> Duration {
    let bare = folder.join("by-hand.git");
    if !bare.exists() {
        git(folder, &["init", "-q", "--bare", "by-hand.git"]);
    }
    let archive = folder.join("by-hand.tar").display().to_string();
    let begin = Instant::now();
    let wanted = format!("refs/pull/{number}/head:refs/pull/{number}");
    git(&bare, &["fetch", "-q", &work.display().to_string(), &wanted]);
    git(&bare, &["archive", "-o", &archive, head]);
    begin.elapsed()
}
