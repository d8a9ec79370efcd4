//! The real Gradle by way of the relay that every job of a farm has: before a cache that is well, and before one that is not there.
//! Skipped, visibly, where it is not installed (`scripts/install-clients.sh`). Gradle by itself is in
//! `crates/cache/tests/gradle_client.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forgeyard");

/// That of `docs/cache.md`, but for the local cache, which is off.
const SETTINGS: &str = "
rootProject.name = 'tree'
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

fn installed() -> bool {
    let found = ["javac", "gradle"].iter().all(|program| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
    });
    if !found {
        println!("SKIPPED: gradle or a JDK is not installed (scripts/install-clients.sh --gradle)");
    }
    found
}

/// Builds a new tree with the relay, and says what was said.
fn build(cache: &str, token: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    };
    write("settings.gradle", SETTINGS);
    write("build.gradle", "apply plugin: 'java'\n");
    write("gradle.properties", "org.gradle.caching=true\norg.gradle.daemon=false\n");
    write("src/main/java/t/Part.java", "package t;\npublic class Part { public int told() { return 7; } }\n");
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "relay", "--cache", cache, "--token-file"]).arg(token);
    command.args(["--", "gradle", "--console=plain", "classes"]).current_dir(folder.path());
    command.env("HOME", folder.path()).env("GRADLE_USER_HOME", folder.path().join("home"));
    command.env("JAVA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx512m");
    for name in ["GRADLE_OPTS", "FORGEYARD_CACHE_URL", "FORGEYARD_CACHE_TOKEN"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(
        output.status.success() && folder.path().join("build/classes/java/main/t/Part.class").is_file(),
        "{said}"
    );
    said
}

struct Cache {
    child: Child,
    address: String,
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// With a cache that is not there the relay answers as an empty one does, so Gradle says nothing of it.
#[test]
fn gradle_finds_the_cache_by_the_relay_of_a_job() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let scopes = "[cache]\nlisten = \"127.0.0.1:0\"\n\n[[cache.scopes]]\npath = \"p/main\"\ntrusted = true\n";
    fs_err::write(path("forgeyard.toml"), scopes).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "run", "--data"]).arg(path("data")).arg("--config").arg(path("forgeyard.toml"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned()));
    let cache = Cache { child, address: address.expect("it says where it listens") };
    let made = Command::new(PROGRAM)
        .args(["cache", "token", "p/main", "--data"])
        .arg(path("data"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs_err::write(path("token"), made.stdout).unwrap();
    let url = format!("http://{}", cache.address);
    let cold = build(&url, &path("token"));
    assert!(cold.contains("0 of 1 reads hit, 1 entries stored, 0 refused"), "{cold}");
    let warm = build(&url, &path("token"));
    assert!(warm.contains(":compileJava FROM-CACHE") && warm.contains("1 of 1 reads hit"), "{warm}");
    drop(cache);
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let alone = build(&format!("http://{gone}"), &path("token"));
    assert!(!alone.contains("Could not") && !alone.contains("was disabled"), "{alone}");
}
