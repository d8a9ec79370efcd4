//! The real Gradle (4.4.1, of Debian) builds a small tree of Java: cold, warm, as a fork, as a reader and a stranger who push by
//! mistake, twice with other bytes, and with a cache that is gone, sick or silent. Skipped, visibly, where it is not installed
//! (`scripts/install-clients.sh`). What is on the wire is shown without it.
//!
//! Gradle switches its remote cache off for the rest of a build after any answer that is neither a hit, a miss nor 2xx to a write, and
//! says so. So a project that comes from the cache behind one that was stored is the proof that nothing went wrong in between.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::service::Running;
use forgeyard_cache::store::Listed;
use forgeyard_cache::token::Access;
use std::path::PathBuf;
use std::process::Command;
use support::programs::look;
use support::sick::{gone, sick};
use support::{Client, service, token};

const PROJECTS: [&str; 3] = ["a", "b", "c"];

/// The one of `docs/cache.md`, but for the local cache, which is off.
const SETTINGS: &str = "
rootProject.name = 'tree'
include 'a', 'b', 'c'
def cache = System.getenv('FORGEYARD_CACHE_URL')
def token = System.getenv('FORGEYARD_CACHE_TOKEN')
buildCache {
    local { enabled = false }
    remote(HttpBuildCache) {
        enabled = cache != null
        url = \"${cache}-/gradle/\"
        push = true
        credentials { username = 'any'; password = token ?: '' }
    }
}
";

/// What a build says when it asks the cache no more.
const OFF: &str = "remote build cache was disabled";

/// The program, and the compiler that it needs.
fn gradle() -> Option<PathBuf> {
    let found = look("javac").and_then(|_| look("gradle"));
    if found.is_none() {
        println!("SKIPPED: gradle or a JDK is not installed (scripts/install-clients.sh --gradle)");
    }
    found
}

/// Builds a new tree with nothing of earlier ones, as somebody, who has to succeed. The first project has this text in it. Which
/// projects came from the cache, and what was said.
fn build(program: &PathBuf, scope: &str, token: Option<&str>, text: &str, more: &[&str]) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    };
    write("settings.gradle", SETTINGS);
    write("build.gradle", "subprojects { apply plugin: 'java' }\n");
    write("gradle.properties", "org.gradle.caching=true\norg.gradle.daemon=false\n");
    for name in PROJECTS {
        let text = if name == "a" { text } else { "the same for everybody" };
        for number in 0..3 {
            let class = format!(
                "package {name};\npublic class Part{number} {{ public String told() {{ return \"{text} {number}\"; }} }}\n"
            );
            write(&format!("{name}/src/main/java/{name}/Part{number}.java"), &class);
        }
    }
    let mut command = Command::new(program);
    command.args(["--console=plain", "classes"]).args(more).current_dir(folder.path());
    command.env("GRADLE_USER_HOME", folder.path().join("home")).env_remove("GRADLE_OPTS");
    // starts sooner, and is no process of its own beside the first
    command.env("JAVA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx512m");
    command.env("FORGEYARD_CACHE_URL", scope).env_remove("FORGEYARD_CACHE_TOKEN");
    let output = command.envs(token.map(|token| ("FORGEYARD_CACHE_TOKEN", token))).output().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    let mut cached = String::new();
    for name in PROJECTS {
        let made = folder.path().join(format!("{name}/build/classes/java/main/{name}/Part2.class"));
        assert!(made.is_file(), "{name}: {said}");
        if said.contains(&format!(":{name}:compileJava FROM-CACHE")) {
            cached.push_str(name);
        }
    }
    (cached, said)
}

fn stat(running: &Running) -> Stat {
    let admin = token("admin", Access::Admin);
    let mut client = Client::new(running.address);
    serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap()
}

fn counted(running: &Running, scope: &str) -> Counted {
    let found = stat(running).traffic.into_iter().find(|one| one.scope == scope && one.surface == "gradle");
    found.unwrap_or_else(|| panic!("nothing was counted for {scope}"))
}

#[test]
fn gradle_builds_cold_warm_as_a_fork_as_a_reader_and_as_a_stranger() {
    let Some(program) = gradle() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main_scope = format!("http://{}/p/main/", running.address);
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    let as_somebody = |token: Option<&str>, text: &str| build(&program, &main_scope, token, text, &[]);

    let (cached, said) = as_somebody(Some(&main), "main");
    assert_eq!(cached, "", "{said}");
    let cold = counted(&running, "p/main");
    assert_eq!((cold.hits, cold.misses, cold.writes, cold.malformed), (0, 3, 3, 0), "{cold:?} {said}");
    let (cached, said) = as_somebody(Some(&main), "main");
    assert_eq!(cached, "abc", "{said}");

    // a fork reads main, and writes what it changed to itself
    let (cached, said) = as_somebody(Some(&fork), "fork");
    assert_eq!(cached, "bc", "{said}");
    let (cached, said) = as_somebody(Some(&fork), "fork");
    assert_eq!(cached, "abc", "{said}");
    let of_fork = counted(&running, "p/pr/7");
    assert_eq!((of_fork.writes, of_fork.denied, of_fork.parent_hits), (1, 0, 4), "{of_fork:?}");

    // who may not write pushes all the same: it is told nothing, goes on reading, and nothing of it is kept. Nobody gets what the
    // fork wrote
    let reader = token("p/main", Access::Read);
    for (name, token) in
        [("reader", Some(reader.as_str())), ("stranger", None), ("broken", Some("fyc_no.token"))]
    {
        let before = counted(&running, "p/main").denied;
        let (cached, said) = as_somebody(token, "fork");
        assert_eq!(cached, "bc", "{name}: {said}");
        assert!(!said.contains(OFF) && !said.contains("Could not"), "{name}: {said}");
        assert_eq!(counted(&running, "p/main").denied, before + 1, "{name}: {said}");
    }
    let after = counted(&running, "p/main");
    assert_eq!((after.writes, after.failures, after.malformed), (3, 0, 0), "nobody else wrote: {after:?}");

    // a scope that a stranger may not see is an empty one
    let hidden = format!("http://{}/secret/", running.address);
    let (cached, said) = build(&program, &hidden, None, "stranger", &[]);
    assert!(cached.is_empty() && !said.contains(OFF) && !said.contains("Could not"), "{said}");
    assert!(stat(&running).scopes.iter().all(|scope| scope.scope != "secret"), "{said}");

    // a task that is run again pushes an archive with another time in it: the first stays, and that is no alarm
    let (_, said) = build(&program, &main_scope, Some(&main), "main", &["--rerun-tasks"]);
    assert!(!said.contains(OFF), "{said}");
    let again = counted(&running, "p/main");
    assert_eq!((again.writes, again.repeats, again.mismatches), (3, 3, 0), "{again:?}");

    // who wrote it, and with what
    let admin = token("admin", Access::Admin);
    let mut client = Client::new(running.address);
    let entries = client.ask("GET", "/-/admin/entries?scope=p/main", Some(&admin), None).body;
    let entries: Vec<Listed> =
        String::from_utf8(entries).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 3);
    for entry in entries {
        assert!(entry.by.client.starts_with("Gradle/"), "{entry:?}");
        assert_eq!(entry.by.run.as_deref(), Some("run of p/main"));
    }
    let metrics = String::from_utf8(client.ask("GET", "/metrics", None, None).body).unwrap();
    let line = "forgeyard_cache_writes_total{scope=\"p/main\",surface=\"gradle\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    running.stop().unwrap();
}

/// *Simulated* troubles of a cache: nobody listens, 5xx, silence. No build fails for them, and each asks once.
#[test]
fn gradle_builds_by_itself_when_the_cache_is_gone_fails_or_hangs() {
    let Some(program) = gradle() else { return };
    let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    // half a minute without it
    let patience = "-Dorg.gradle.internal.http.socketTimeout=2000";
    for (name, address) in [("gone", gone()), ("failing", sick(Some(down))), ("hanging", sick(None))] {
        let (cached, said) =
            build(&program, &format!("http://{address}/p/main/"), Some("any"), name, &[patience]);
        assert!(cached.is_empty() && said.contains(OFF), "{name}: {said}");
        assert_eq!(said.matches("Could not load entry").count(), 1, "{name}: {said}");
    }
}

/// What Gradle does not send here, on the wire: something that is no archive (gradle#9033: an entry that cannot be unpacked fails a build),
/// and a large archive of somebody who may not write, sent after `100 Continue`, as `useExpectContinue` of 7.2 and later asks.
#[test]
fn gradle_9033_entry_that_is_no_archive_is_not_kept_and_a_denied_archive_is_thanked() {
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let main = token("p/main", Access::Write);
    let mut client = Client::new(running.address);
    let path = "/p/main/-/gradle/5fb29c3f0adaaa6ee7b421ed1cf0a302";
    assert_eq!(client.ask("PUT", path, Some(&main), Some(b"<html>")).status, 422);
    assert_eq!(client.ask("GET", path, None, None).status, 404);

    let archive = [&[0x1f, 0x8b, 8][..], &vec![7; 3 << 20]].concat();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: c\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        archive.len()
    );
    client.send(head.as_bytes());
    assert_eq!(client.answer(true).status, 100);
    client.send(&archive);
    assert_eq!(client.answer(false).status, 200);
    assert_eq!(client.ask("GET", path, None, None).status, 404);
    assert_eq!(counted(&running, "p/main").denied, 1);
    let stored = client.ask("PUT", path, Some(&main), Some(&archive));
    assert_eq!(stored.status, 201);
    assert!(client.ask("GET", path, None, None).body == archive);
    running.stop().unwrap();
}
