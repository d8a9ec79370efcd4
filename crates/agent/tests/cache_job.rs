//! The build cache in real containers on this host. The farm is simulated, and the cache a thread of the test; machine, agent and
//! relay are real.
//!
//! Needs what `sandbox.rs` needs.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod farm;
mod rig;

use forgeyard_api::agent::CacheAccess;
use forgeyard_model::Timestamp;
use rig::Rig;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

const AGENT: &str = env!("CARGO_BIN_EXE_forgeyard-agent");

/// What it says of its budget.
const COLD: &str =
    "{\"scope\":\"github/1/pr/7\",\"verdict\":{\"cold\":\"key-churn\"},\"text\":\"keys change\"}";

/// A cache that has every entry, whose budget is missed, and what it heard.
fn cache() -> (String, Arc<Mutex<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let heard = Arc::new(Mutex::new(String::new()));
    let all = Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let all = Arc::clone(&all);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read) = stream.read(&mut buffer) {
                    if read == 0 {
                        return;
                    }
                    let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    let body = if asked.starts_with("GET /-/budget ") { COLD } else { "an entry\n" };
                    all.lock().unwrap().push_str(&asked);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    stream.write_all((head + body).as_bytes()).unwrap();
                }
            });
        }
    });
    (address, heard)
}

fn access(address: &str) -> CacheAccess {
    CacheAccess {
        address: address.to_owned(),
        token: "the-token-of-the-cache".to_owned(),
        scope: "github/1/pr/7".to_owned(),
        writes: true,
        reason: "a pull request writes its own scope and reads main".to_owned(),
        expires_at: Timestamp::from_micros(1),
        nix_keys: vec!["main-1:key".to_owned()],
        ca: None,
    }
}

/// Asks the cache as a client would that reads its environment.
const ASK: &str = "import os,urllib.request as u; r=u.Request(os.environ['SCCACHE_WEBDAV_ENDPOINT']+'x',\
                   headers={'Authorization':'Bearer '+os.environ['SCCACHE_WEBDAV_TOKEN']}); print(u.urlopen(r).read().decode())";

/// Each step is a container with a network of its own, in which the relay is the only thing that there is.
#[tokio::test]
async fn machine_without_network_reaches_the_cache_and_nothing_else_and_never_sees_the_token() {
    need_sandbox!();
    let (address, heard) = cache();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().cache = Some(access(&address));
    let port = rig.farm.url.rsplit(':').next().unwrap().to_owned();
    let ask = format!("python3 -c \"{ASK}\"");
    let look = format!(
        "{ask}; cat ~/.bazelrc ~/.netrc; env | sort; echo \"$NIX_CONFIG\"; (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo farm reached; true"
    );
    rig.run(&[&ask, &format!("bash -c '{}'", look.replace('\'', "'\\''"))]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(
        facts.steps.iter().map(|step| step.exit_code).collect::<Vec<_>>(),
        [Some(0), Some(0)],
        "{log}"
    );
    assert_eq!(log.matches("an entry").count(), 2, "one for each step:\n{log}");
    assert!(log.contains("[forgeyard] cache: reads and writes github/1/pr/7"), "{log}");
    assert!(log.contains("http://127.0.0.1:8420/-/dav/") && log.contains("main-1:key"), "{log}");
    assert!(log.contains("build --remote_cache=http://job:***@127.0.0.1:8420/-/bazel"), "masked:\n{log}");
    assert!(!log.contains("farm reached") && !log.contains("the-token-of-the-cache"), "{log}");
    let heard = heard.lock().unwrap().to_lowercase();
    assert_eq!(heard.matches("authorization: bearer the-token-of-the-cache").count(), 3, "{heard}");
    let cache = facts.cache.unwrap();
    assert_eq!((cache.hits, cache.misses, cache.scope.as_str()), (2, 0, "github/1/pr/7"));
    assert!(log.contains("[forgeyard] cache: 2 of 2 reads hit"), "{log}");
    let [sccache] = &cache.clients[..] else { panic!("{:?}", cache.clients) };
    assert_eq!((sccache.client.as_str(), sccache.hits, sccache.received_bytes), ("dav", 2, 18));
    assert!(log.contains("[forgeyard] cache: dav: 2 of 2 hit"), "{log}");
    assert_eq!(cache.cold.unwrap().cause, "key-churn");
    assert!(log.contains("[forgeyard] cache: cold (key-churn): keys change"), "{log}");
    rig.end().await;
}

/// A cold cache is named with its cause within one build, and one that is not there is cold as well.
#[tokio::test]
async fn log_and_facts_of_a_job_name_a_cache_that_was_away() {
    need_sandbox!();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().cache = Some(access(&format!("http://{gone}")));
    rig.run(&[&format!("python3 -c \"{ASK}\" 2>&1 | grep '404'")]).await;
    let facts = rig.farm.facts().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    let cache = facts.cache.unwrap();
    assert_eq!((cache.alone, cache.hits), (1, 0));
    assert_eq!(cache.cold.unwrap().cause, "away");
    assert!(log.contains("[forgeyard] cache: cold (away): the cache went away once"), "{log}");
    assert!(log.contains("onnection refused"), "{log}");
    rig.end().await;
}

/// The environment of a job names a place: after the agent was started again it must be the same one.
#[tokio::test]
async fn agent_that_is_started_again_brings_the_cache_back_to_the_running_job() {
    need_sandbox!();
    let (address, _) = cache();
    let rig = Rig::new(AGENT).await;
    rig.farm.lock().cache = Some(access(&address));
    let script = format!(
        "echo up; until [ -e /work/go ]; do sleep 0.1; done; until python3 -c \"{ASK}\" 2>/dev/null; do sleep 0.1; done"
    );
    rig.run(&[&script]).await;
    rig.farm.logged("up").await;
    rig.kill_agent().await;
    std::fs::write(rig.folder().join("work/go"), "").unwrap();
    let facts = rig.facts_of_a_watched_machine().await;
    let log = rig.farm.log_text();
    assert_eq!(facts.steps[0].exit_code, Some(0), "{log}");
    assert!(log.contains("an entry"), "{log}");
    rig.end().await;
}
