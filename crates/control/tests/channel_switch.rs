//! A channel switches as a whole. quetz#431: an index that was written over in its place had the end of the longer one before
//! behind it. conda#13558, #13491: `repodata.json.zst` and `repodata.json` were of two moments, or the former was none at all.
//!
//! Promotions go on, each of three packages, while readers read everything that clients read, over and over. Whatever they get is of
//! one promotion and as long as it says. Site and agents are *simulated*, the control plane and the readers are real; one of these is
//! py-rattler, where the conda engine is installed (`scripts/install-engine.sh`), with and without Zstandard.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_model::Digest;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::pipeline::PipelineState;
use plane::repository::Repository;
use plane::site::Site;
use plane::{Answer, Plane, Setup, chain, eventually, packages};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const NAMES: [&str; 3] = ["fy-a", "fy-b", "fy-c"];
const PROMOTIONS: u64 = 5;
const READERS: usize = 4;

/// Brings a package of each name in this version to the channel, by one pipeline.
async fn promote(plane: &Plane, site: &mut Site, repository: &Repository, version: u64) {
    let head = repository.commit(&format!("version {version}"));
    let pipeline = plane.begin(&format!("push-{version}"), &repository.pushed(&head)).await;
    let agent = chain::next_job(plane, site, &[]).await;
    let plan = packages::plan_of(&NAMES.map(|name| (name, &[][..])));
    agent.upload(ArtifactKind::Plan, "plan.json", plan.as_bytes()).await.unwrap();
    agent.finish(0).await.unwrap();
    site.turn().await;
    // a build and a test of each
    for _ in 0..2 * NAMES.len() {
        let agent = chain::next_job(plane, site, &[]).await;
        if agent.step() == "test" {
            agent.upload(ArtifactKind::EnvironmentLock, "lock.json", br#"{"packages":[]}"#).await.unwrap();
            agent.finish(0).await.unwrap();
            site.turn().await;
            continue;
        }
        let view = plane.client.pipeline(pipeline).await.unwrap();
        let attempt = view.attempts.iter().find(|attempt| attempt.id == agent.job.attempt).unwrap();
        let job = view.jobs.iter().find(|job| job.id == attempt.job).unwrap();
        let [name] = job.outputs.as_slice() else { panic!("one output was expected: {:?}", job.outputs) };
        let payload = format!("{name} {version}");
        let (version, payload) = (version.to_string(), [("share/x", payload.as_bytes())]);
        let package = packages::package_as(name, &version, "linux-64", &payload);
        let file = format!("{name}-{version}-0.conda");
        agent.upload(ArtifactKind::CondaPackage, &file, &package).await.unwrap();
        agent.finish(0).await.unwrap();
        site.turn().await;
    }
    let view = chain::ended(plane, site, pipeline).await;
    assert_eq!(view.pipeline.state, PipelineState::Succeeded);
    assert!(view.pipeline.channel.is_some(), "{:?}", view.pipeline.not_promoted);
}

/// What a channel has after so many promotions.
fn all_of(generation: u64) -> BTreeSet<String> {
    let of = |version| NAMES.map(|name| format!("{name}-{version}-0.conda"));
    (1..=generation).flat_map(of).collect()
}

/// What the readers saw: each index, by its tag, has the same bytes for everybody.
#[derive(Default)]
struct Seen {
    indexes: Mutex<BTreeMap<String, Digest>>,
    answers: AtomicU64,
    unchanged: AtomicU64,
    stop: AtomicBool,
}

/// Checks an index that came; answers with its generation and what it says.
fn index(seen: &Seen, file: &str, answer: &Answer) -> (u64, serde_json::Value) {
    assert_eq!(answer.status, 200, "{file}");
    assert_eq!(answer.header("content-length"), answer.body.len().to_string(), "{file}");
    let json = match file {
        "repodata.json.zst" => {
            zstd::decode_all(answer.body.as_slice()).expect("whole frames and nothing else")
        }
        _ => answer.body.clone(),
    };
    // nothing may stand behind it
    let read: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let files: BTreeSet<String> = read["packages.conda"].as_object().unwrap().keys().cloned().collect();
    let generation = files.len() as u64 / NAMES.len() as u64;
    assert_eq!(files, all_of(generation), "packages of a promotion come together");
    let end = if file.ends_with(".zst") { "-zst" } else { "" };
    assert_eq!(answer.header("etag"), format!("\"{generation}-linux-64{end}\""));
    let mut indexes = seen.indexes.lock().unwrap();
    for (name, bytes) in
        [(answer.header("etag").to_owned(), &answer.body), (format!("json of {generation}"), &json)]
    {
        let digest = Digest::of(bytes);
        assert_eq!(*indexes.entry(name).or_insert(digest), digest, "{file} of {generation} has other bytes");
    }
    seen.answers.fetch_add(1, SeqCst);
    (generation, read)
}

/// Reads what clients read, in turns, until it is told to stop.
async fn reader(url: String, number: usize, seen: Arc<Seen>, last: Arc<[AtomicU64; READERS]>) {
    let http = reqwest::Client::new();
    let folder = format!("{url}/channels/main/linux-64");
    let mut tags: BTreeMap<&str, String> = BTreeMap::new();
    let mut turn = number;
    while !seen.stop.load(SeqCst) {
        let file = ["repodata.json", "repodata.json.zst"][turn % 2];
        let mut request = http.get(format!("{folder}/{file}"));
        let (known, condition) = (tags.get(file).cloned(), turn / 2 % 3);
        match (condition, &known) {
            (1, Some(tag)) => request = request.header("if-none-match", tag),
            // an index has no parts: all of it comes
            (2, Some(tag)) => request = request.header("range", "bytes=10-19").header("if-range", tag),
            (2, None) => request = request.header("range", "bytes=-7"),
            _ => {}
        }
        turn += 1;
        let answer = Answer::of(request).await;
        if answer.status == 304 {
            assert!(condition == 1 && answer.body.is_empty());
            seen.unchanged.fetch_add(1, SeqCst);
            continue;
        }
        let (generation, read) = index(&seen, file, &answer);
        if condition == 1 {
            assert_ne!(known.as_deref(), Some(answer.header("etag")), "it did not change");
        }
        tags.insert(file, answer.header("etag").to_owned());
        let before = last[number].swap(generation, SeqCst);
        assert!(before <= generation, "a reader went back from {before} to {generation}");
        // what an index names is there, whole and in parts
        let newest = format!("{}-{generation}-0.conda", NAMES[turn % NAMES.len()]);
        let record = &read["packages.conda"][&newest];
        let package = Answer::of(http.get(format!("{folder}/{newest}"))).await;
        assert_eq!((package.status, &record["sha256"]), (200, &Digest::of(&package.body).hex().into()));
        assert_eq!(record["size"], package.body.len());
        let part = http.get(format!("{folder}/{newest}")).header("range", "bytes=5-24");
        let part = Answer::of(part).await;
        assert_eq!((part.status, &part.body[..]), (206, &package.body[5..25]));
        assert_eq!(part.header("content-range"), format!("bytes 5-24/{}", package.body.len()));
    }
}

/// Asks py-rattler for all packages, over and over, in one cache of its own for each way; a line for each answer.
const RATTLER: &str = r#"
import asyncio, json, os, sys
from rattler import Channel, Gateway, SourceConfig
url, folder = sys.argv[1], sys.argv[2]
async def ask(way):
    config = SourceConfig(zstd_enabled=way == "zst", bz2_enabled=False, sharded_enabled=way == "zst")
    gateway = Gateway(cache_dir=os.path.join(folder, way), default_config=config)
    found = await gateway.query([Channel(url)], ["linux-64", "noarch"], ["fy-a", "fy-b", "fy-c"], recursive=False)
    print(json.dumps(sorted(record.file_name for records in found for record in records)), flush=True)
async def all():
    while True:
        stop = os.path.exists(os.path.join(folder, "stop"))
        for way in ["zst", "json"]:
            await ask(way)
        if stop:
            return
try:
    asyncio.run(all())
except BaseException as error:
    print(json.dumps(repr(error)), flush=True)
# its threads outlive the interpreter otherwise, which aborts
os._exit(0)
"#;

/// The real client of conda channels, reading.
struct Rattler {
    child: Child,
    folder: tempfile::TempDir,
    lines: Arc<Mutex<Vec<serde_json::Value>>>,
    reading: std::thread::JoinHandle<()>,
}

impl Rattler {
    /// Says so when it is not installed.
    fn start(url: &str) -> Option<Self> {
        let engine = std::env::var_os("FORGEYARD_ENGINE")
            .map_or_else(|| "/opt/forgeyard/engine".into(), PathBuf::from);
        let python = engine.join("bin/python");
        if !python.exists() {
            println!("SKIPPED: py-rattler is not installed (scripts/install-engine.sh)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let channel = format!("{url}/channels/main");
        let mut child = Command::new(python)
            .args(["-c", RATTLER, &channel])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let reading = std::thread::spawn(move || {
            for line in output.lines() {
                kept.lock().unwrap().push(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        Some(Self { child, folder, lines, reading })
    }

    /// Every answer so far was of one promotion; answers with the last one.
    fn last(&self) -> u64 {
        let lines = self.lines.lock().unwrap();
        let mut last = 0;
        for line in lines.iter() {
            let files: Vec<String> =
                serde_json::from_value(line.clone()).unwrap_or_else(|_| panic!("py-rattler: {line}"));
            last = files.len() as u64 / NAMES.len() as u64;
            assert_eq!(files.into_iter().collect::<BTreeSet<_>>(), all_of(last), "py-rattler");
        }
        last
    }

    fn end(mut self) {
        std::fs::write(self.folder.path().join("stop"), "").unwrap();
        assert!(self.child.wait().unwrap().success());
        self.reading.join().unwrap();
        assert_eq!(self.lines.lock().unwrap().last(), Some(&serde_json::json!(all_of(PROMOTIONS))));
    }
}

/// quetz#431, conda#13558, conda#13491.
#[tokio::test(flavor = "multi_thread")]
async fn quetz_431_every_answer_of_a_channel_is_of_one_generation_while_it_is_switched() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    promote(&plane, &mut site, &repository, 1).await;
    let (seen, last) = (Arc::new(Seen::default()), Arc::new([const { AtomicU64::new(0) }; READERS]));
    let start =
        |number| tokio::spawn(reader(plane.url.clone(), number, Arc::clone(&seen), Arc::clone(&last)));
    let readers: Vec<_> = (0..READERS).map(start).collect();
    let rattler = Rattler::start(&plane.url);
    for version in 2..=PROMOTIONS {
        promote(&plane, &mut site, &repository, version).await;
        eventually("everybody read the new generation", || async {
            let ended = readers.iter().any(tokio::task::JoinHandle::is_finished);
            let all = last.iter().all(|last| last.load(SeqCst) == version);
            let all = all && rattler.as_ref().is_none_or(|rattler| rattler.last() == version);
            (ended || all).then_some(())
        })
        .await;
    }
    seen.stop.store(true, SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    if let Some(rattler) = rattler {
        rattler.last();
        rattler.end();
    }
    let (answers, unchanged) = (seen.answers.load(SeqCst), seen.unchanged.load(SeqCst));
    println!("{answers} indexes were read, {unchanged} more had not changed");
    assert!(unchanged > 0);
    plane.stop().await;
}
