//! The front door: 500 webhooks a second to their durable answers, and a webhook to the machine in the desired set.
//!
//! Webhooks are those of a *simulated* GitHub: `workflow_job` in GitHub's shape and size, signed, each with a GUID of its
//! own and about a job of its own. A burst is made of runs with 25 jobs: its runs are asked for at GitHub, which wants
//! no more than 900 such calls a minute, and the farm keeps to that. The whole control plane works meanwhile as it would: each delivery is read, its run
//! looked up (the simulated GitHub answers at once), the gate asked, the job queued and placed at a *simulated* site.
//! Sender, simulated GitHub and control plane share the processors of this machine.

use crate::hub::{Hook, Hub, Sent, send_all};
use crate::plane::{Plane, config, sqlite};
use crate::webhooks::FLOOR;
use crate::{figure, millis, percentile, site, webhooks};
use forgeyard_api::site::{DESIRED, DesiredSet};
use forgeyard_db::Store;
use forgeyard_model::{AttemptId, ForgeName};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const RATE: u64 = 500;
const SECONDS: u64 = 5;
/// Jobs of a run.
const OF_RUN: u64 = 25;
/// Webhooks a second, and for how long, where one event is followed through.
const STEADY: (u64, u64) = (20, 10);
const PATIENCE: Duration = Duration::from_secs(50);

fn answered(sent: &[Sent]) -> Vec<Duration> {
    sent.iter().map(|one| one.answered).collect()
}

/// The same bodies at the same rate to a listener that only makes them durable.
async fn floor(folder: &Path, rate: u64, hooks: Vec<Hook>) -> Vec<Duration> {
    let url = format!("http://{}/", webhooks::bare(folder).await);
    answered(&send_all(&url, rate, hooks).await)
}

async fn plane(hub: &Arc<Hub>, data: &Path, store: Arc<dyn Store>) -> Plane {
    let config = hub.served_by(config(Path::new("/nowhere"), 1_000_000));
    let plane = Plane::connected(data, store, config, hub.connections()).await;
    site::join(&plane).await;
    // The first poll looks for jobs that nobody told of; those of the measurement are to come by webhooks.
    tokio::time::sleep(Duration::from_secs(1)).await;
    plane
}

/// 500 webhooks a second, on each database.
pub(crate) async fn burst() {
    let folder = tempfile::tempdir().unwrap();
    // How many jobs a run has may be said, to look at what GitHub's limits do to a burst.
    let of_run = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(OF_RUN);
    let mut databases = vec![("SQLite", "sqlite:".to_owned())];
    let schema = forgeyard_db::testing::postgres::schema().await;
    databases.extend(schema.as_ref().map(|schema| ("PostgreSQL", schema.url.clone())));
    for (database, address) in databases {
        let data = folder.path().join(database);
        std::fs::create_dir_all(&data).unwrap();
        // Right before each database, since a busy machine is another one a minute later.
        let mut floor = floor(&data, RATE, Hub::new().queue(RATE * SECONDS / of_run, of_run)).await;
        let (floor_50, floor_99) = (percentile(&mut floor, 50), percentile(&mut floor, 99));
        let store = forgeyard_db::open(&address, &data).await.unwrap();
        let hub = Hub::new();
        let plane = plane(&hub, &data, store).await;
        let hooks = hub.queue(RATE * SECONDS / of_run, of_run);
        let before = webhooks::cpu_seconds();
        let sent = send_all(&format!("{}/webhooks/github", plane.url), RATE, hooks).await;
        let mut times = answered(&sent);
        let text = format!("webhook → durable answer, 500/s, {database}, simulated GitHub");
        figure(&format!("{text}, p50"), percentile(&mut times, 50), "ms", Some((FLOOR, floor_50)), None);
        let aim = Some(("at most", 50.0));
        figure(&format!("{text}, p99"), percentile(&mut times, 99), "ms", Some((FLOOR, floor_99)), aim);
        let last = sent.iter().map(|one| one.due).max().unwrap();
        let placed = placed(&plane, sent.len()).await;
        let took = millis(last.elapsed());
        let text = format!(
            "500/s for {SECONDS} s, {database}: last webhook → {placed} of {} jobs placed",
            sent.len()
        );
        figure(&text, took, "ms", None, None);
        // Waiting times are those of this moment's machine; the work is not.
        let cpu = (webhooks::cpu_seconds() - before) * 1e3 / sent.len() as f64;
        let text = format!("webhook → job placed, {database}, processor time of sender and farm");
        figure(&text, cpu, "ms", Some(("one core at 500/s has", 1000.0 / RATE as f64)), None);
        plane.stop().await;
    }
}

/// Waits until so many jobs have a place; answers how many have.
async fn placed(plane: &Plane, count: usize) -> usize {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for demand in plane.app.core.read().demands.values() {
            *states.entry(demand.state.name()).or_default() += 1;
        }
        let placed = states.get("launching").copied().unwrap_or_default();
        if placed >= count {
            return placed;
        }
        if Instant::now() >= end {
            eprintln!("jobs that have no place after {PATIENCE:?}: {states:?}");
            return placed;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// When the desired set first named the machine of an attempt.
type Named = Arc<Mutex<BTreeMap<AttemptId, Instant>>>;

/// One event after the other, to the moment at which the site is told to make the machine.
pub(crate) async fn create() {
    let (rate, seconds) = STEADY;
    let folder = tempfile::tempdir().unwrap();
    let mut floor = floor(folder.path(), rate, Hub::new().queue(rate * seconds, 1)).await;
    let data = folder.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let hub = Hub::new();
    let plane = plane(&hub, &data, sqlite(&data).await).await;
    let named = Named::default();
    let asking = tokio::spawn(ask(plane.url.clone(), Arc::clone(&named)));
    let hooks = hub.queue(rate * seconds, 1);
    let sent = send_all(&format!("{}/webhooks/github", plane.url), rate, hooks).await;
    let end = Instant::now() + PATIENCE;
    while named.lock().unwrap().len() < sent.len() {
        assert!(Instant::now() < end, "the desired set never named all machines");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    asking.abort();
    let mut times: Vec<Duration> = {
        let (farm, named, github) =
            (plane.app.core.read(), named.lock().unwrap(), "github".parse::<ForgeName>().unwrap());
        let attempt_of = |job: u64| {
            let launch = farm.jobs.get(&farm.demand_of(&github, job)?.launch?)?;
            launch.state.attempt()
        };
        let found = sent.iter().map(|one| {
            let at = attempt_of(one.job).and_then(|attempt| named.get(&attempt));
            at.expect("every job has a machine that was named").duration_since(one.due)
        });
        found.collect()
    };
    let text =
        format!("webhook → machine in the desired set of its site, {rate}/s, simulated GitHub and site");
    let peer = format!("{FLOOR}, once");
    let (floor_50, floor_99) = (percentile(&mut floor, 50), percentile(&mut floor, 99));
    figure(&format!("{text}, p50"), percentile(&mut times, 50), "ms", Some((&peer, floor_50)), None);
    let aim = Some(("at most", 100.0));
    figure(&format!("{text}, p99"), percentile(&mut times, 99), "ms", Some((&peer, floor_99)), aim);
    plane.stop().await;
}

/// The site's long poll, over HTTP as a site does it.
async fn ask(url: String, named: Named) {
    let http = reqwest::Client::new();
    let (mut after, mut epoch) = (0, 0);
    loop {
        let address = format!("{url}{DESIRED}?after={after}&epoch={epoch}&wait_seconds=20");
        let answer = http.get(address).bearer_auth(site::TOKEN).send().await.unwrap();
        let set: DesiredSet = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        let now = Instant::now();
        (after, epoch) = (set.generation, set.epoch);
        let mut named = named.lock().unwrap();
        for attempt in set.runners.iter().filter_map(|runner| runner.attempt) {
            named.entry(attempt).or_insert(now);
        }
    }
}
