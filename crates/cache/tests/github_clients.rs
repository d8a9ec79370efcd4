//! GitHub's own clients and sccache over GitHub's protocol, against the cache. *Real clients*: `@actions/cache` 6.3 and
//! `@actions/artifact` 6.2 from npm with small scripts of ours (`node/`), and sccache 0.16. What is not installed is skipped,
//! visibly (`scripts/install-clients.sh`).
//!
//! The clients reach the cache by environment variables here, as the runner would set them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::identity::policy::IssuerKind;
use forgeyard_cache::service::Running;
use forgeyard_cache::token::Access;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use support::issuer::{Simulated, issuer};
use support::nix::text;
use support::node::{Node, result};
use support::programs::find;
use support::{Client, runtime_token, service, token};

/// Runs a script against the cache at this address, and answers with its result and all that it printed.
fn run(
    node: &Node,
    workspace: &Path,
    address: SocketAddr,
    token: &str,
    arguments: &[&str],
) -> (serde_json::Value, String) {
    result(&node.action(workspace, &format!("http://{address}/"), token, arguments).output().unwrap())
}

fn counted(client: &mut Client, scope: &str) -> Counted {
    let admin = token("admin", Access::Admin);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    let found = stat.traffic.into_iter().find(|one| one.scope == scope && one.surface == "github");
    found.unwrap_or_else(|| panic!("nothing was counted for {scope}"))
}

fn workspace(content: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs_err::create_dir_all(folder.path().join("out")).unwrap();
    fs_err::write(folder.path().join("out/file"), content).unwrap();
    folder
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn official_cache_client_saves_restores_forks_and_reads_only() {
    let Some(node) = Node::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let (main, fork) = (runtime_token("p/main", Access::Write), runtime_token("p/pr/7", Access::Write));
    let cache = |workspace: &Path, token: &str, arguments: &[&str]| {
        run(&node, workspace, running.address, token, &[&["cache.mjs"], arguments].concat())
    };
    let made = workspace(&noise(300_000));
    // cold
    let (result, said) = cache(made.path(), &main, &["restore", "linux-1", "out"]);
    assert!(result.is_null(), "{said}");
    let (result, said) = cache(made.path(), &main, &["save", "linux-1", "out"]);
    assert!(result.as_i64().is_some_and(|id| id > 0), "{said}");
    // warm, by key and by the beginning of one
    let empty = tempfile::tempdir().unwrap();
    let (result, said) = cache(empty.path(), &main, &["restore", "linux-1", "out"]);
    assert_eq!(result, "linux-1", "{said}");
    assert_eq!(fs_err::read(empty.path().join("out/file")).unwrap(), noise(300_000));
    let empty = tempfile::tempdir().unwrap();
    let (result, said) = cache(empty.path(), &main, &["restore", "linux-2", "out", "mac-", "linux-"]);
    assert_eq!(result, "linux-1", "{said}");
    assert!(empty.path().join("out/file").is_file());
    // a key is never written twice
    let (result, said) = cache(made.path(), &main, &["save", "linux-1", "out"]);
    assert!(result == -1 && said.contains("another job may be creating this cache"), "{said}");
    // a fork reads main and writes its own
    let empty = tempfile::tempdir().unwrap();
    let (result, said) = cache(empty.path(), &fork, &["restore", "linux-1", "out"]);
    assert_eq!(result, "linux-1", "{said}");
    let forks = workspace(b"of the fork");
    let (result, said) = cache(forks.path(), &fork, &["save", "linux-1", "out"]);
    assert!(result.as_i64().is_some_and(|id| id > 0), "{said}");
    for (token, content) in [(&main, noise(300_000)), (&fork, b"of the fork".to_vec())] {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(cache(empty.path(), token, &["restore", "linux-1", "out"]).0, "linux-1");
        assert!(fs_err::read(empty.path().join("out/file")).unwrap() == content);
    }
    // who may only read is told so in words, and stays green
    let reader = runtime_token("p/main", Access::Read);
    let (result, said) = cache(made.path(), &reader, &["save", "linux-9", "out"]);
    assert!(result == -1 && said.contains("this token may read and not write"), "{said}");
    // a token that does not hold is a miss and never an error
    let empty = tempfile::tempdir().unwrap();
    let (result, said) = cache(empty.path(), "eyJ.broken.token", &["restore", "linux-1", "out"]);
    assert!(result.is_null(), "{said}");
    let counts = counted(&mut client, "p/main");
    assert_eq!((counts.writes, counts.malformed, counts.denied), (1, 0, 1), "{counts:?}");
    assert_eq!((counts.misses, counts.hits), (1, 3), "{counts:?}");
    let counts = counted(&mut client, "p/pr/7");
    assert_eq!((counts.parent_hits, counts.hits, counts.writes), (1, 1, 1), "{counts:?}");
    running.stop().unwrap();
}

/// actions/toolkit: an upload above 128 MiB goes in blocks of 64 MiB, several at once and in any order.
#[test]
fn official_cache_client_uploads_a_large_archive_in_blocks() {
    let Some(node) = Node::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = support::service_up_to(folder.path(), 1 << 30);
    let main = runtime_token("p/main", Access::Write);
    let content = noise(140 << 20);
    let made = workspace(&content);
    let arguments = ["cache.mjs", "save", "large", "out"];
    let (result, said) = run(&node, made.path(), running.address, &main, &arguments);
    assert!(result.as_i64().is_some_and(|id| id > 0), "{said}");
    let empty = tempfile::tempdir().unwrap();
    let arguments = ["cache.mjs", "restore", "large", "out"];
    let (result, said) = run(&node, empty.path(), running.address, &main, &arguments);
    assert_eq!(result, "large", "{said}");
    assert!(fs_err::read(empty.path().join("out/file")).unwrap() == content);
    running.stop().unwrap();
}

/// What the documentation says of GitHub's own runner: its environment, as it sets it for an action, with our file loaded by
/// `NODE_OPTIONS`. The runner program itself is *not* run here: it cannot be installed.
#[test]
fn action_in_the_environment_of_githubs_runner_is_sent_to_the_farm_by_a_setting_of_node() {
    let Some(node) = Node::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let made = workspace(b"some object files");
    let main = runtime_token("p/main", Access::Write);
    let preloaded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/runner/forgeyard-cache.cjs");
    let action = |arguments: &[&str], repository: &str, artifacts: &str| {
        // nobody listens there: what is not redirected fails
        let mut command = node.action(made.path(), "http://127.0.0.1:9/", "eyJ.of.github", arguments);
        command.env("GITHUB_ACTION_REPOSITORY", repository);
        command.env("NODE_OPTIONS", format!("--require={}", preloaded.display()));
        command.env("FORGEYARD_CACHE_URL", format!("http://{}/", running.address));
        command.env("FORGEYARD_CACHE_TOKEN", &main).env("FORGEYARD_ARTIFACTS", artifacts);
        text(&command.output().unwrap())
    };
    let said = action(&["cache.mjs", "save", "k", "out"], "actions/cache", "");
    assert!(said.contains("RESULT ") && !said.contains("RESULT -1"), "{said}");
    let said = action(&["cache.mjs", "restore", "k", "out"], "actions/cache", "");
    assert!(said.contains("RESULT \"k\""), "{said}");
    let said = action(&["artifact.mjs", "list"], "actions/download-artifact", "1");
    assert!(said.contains("RESULT {\"artifacts\":[]}"), "{said}");
    let said = action(&["artifact.mjs", "list"], "actions/download-artifact", "");
    assert!(said.contains("FAILED"), "artifacts stay at GitHub: {said}");
    running.stop().unwrap();
}

/// The token that GitHub's runner gives to a job of a fork, as a *simulated issuer* makes it, straight from the official
/// clients: what reaches the cache through a resolver.
#[test]
fn runtime_token_of_a_fork_is_believed_as_it_comes_where_that_is_declared() {
    let Some(node) = Node::find() else { return };
    let (folder, simulated) = (tempfile::tempdir().unwrap(), Simulated::start());
    let authority = folder.path().join("authority.json");
    let running = service(folder.path());
    let seconds = support::NOW / 1_000_000;
    let runtime = |permission: u64, ids: &str| {
        let ac = serde_json::json!([{"Scope": "refs/pull/9/merge", "Permission": permission}, {"Scope": "refs/heads/main", "Permission": 1}]);
        let claims = serde_json::json!({"iss": simulated.url, "exp": seconds + 3600, "repository_id": "100", "ac": ac.to_string(),
            "scp": format!("Actions.Other Actions.Results:{ids}")});
        simulated.sign("first", "first", &claims)
    };
    let fork = runtime(3, "ce7f54c7-61c7-4aae-887f-30da475f5f1a:ca395085-040a-526b-2ce8-bdc85f692774");
    let made = workspace(&noise(100_000));
    let main = runtime_token("p/main", Access::Write);
    let (saved, said) = run(&node, made.path(), running.address, &main, &["cache.mjs", "save", "k", "out"]);
    assert!(saved.as_i64().is_some_and(|id| id > 0), "{said}");
    let restore = |token: &str| {
        let empty = tempfile::tempdir().unwrap();
        run(&node, empty.path(), running.address, token, &["cache.mjs", "restore", "k", "out"]).0
    };
    assert!(restore(&fork).is_null(), "not declared, so nobody knows it");
    support::write_authority(&authority, |snapshot| {
        snapshot.issuers = vec![issuer(IssuerKind::GithubRuntime, &simulated)];
    });
    let began = std::time::Instant::now();
    while restore(&fork).is_null() {
        assert!(began.elapsed().as_secs() < 60, "the authority was not taken over");
    }
    let (saved, said) = run(&node, made.path(), running.address, &fork, &["cache.mjs", "save", "k2", "out"]);
    assert!(saved.as_i64().is_some_and(|id| id > 0), "{said}");
    let mut client = Client::new(running.address);
    assert_eq!(counted(&mut client, "p/pr/9").writes, 1);
    assert_eq!(counted(&mut client, "p/main").writes, 1);
    // artifacts go by GitHub's own ids
    let url = format!("http://{}/", running.address);
    let artifact = |token: &str, arguments: &[&str]| {
        let arguments = [&["artifact.mjs"], arguments].concat();
        node.action(made.path(), &url, token, &arguments).output().unwrap()
    };
    good(&artifact(&fork, &["upload", "objects", "out/file"]), "uploading");
    assert!(good(&artifact(&fork, &["list"]), "listing").contains("\"name\":\"objects\""));
    let other = runtime(3, "00000000-61c7-4aae-887f-30da475f5f1a:ca395085-040a-526b-2ce8-bdc85f692774");
    assert!(good(&artifact(&other, &["list"]), "listing").contains("RESULT {\"artifacts\":[]}"));
    // one that may only read does
    let reader = runtime(1, "ce7f54c7-61c7-4aae-887f-30da475f5f1a:00000000-040a-526b-2ce8-bdc85f692774");
    assert_eq!(restore(&reader), "k");
    let (saved, said) =
        run(&node, made.path(), running.address, &reader, &["cache.mjs", "save", "k3", "out"]);
    assert!(saved == -1 && said.contains("this token may read and not write"), "{said}");
    running.stop().unwrap();
}

/// mozilla/sccache#2330: when version 1 ended, clients that spoke it failed without a word. Here the client prints why, and
/// the step goes on.
#[test]
fn sccache_2330_version_1_is_refused_in_words_and_the_step_goes_on() {
    let Some(node) = Node::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let made = workspace(b"x");
    let main = runtime_token("p/main", Access::Write);
    let url = format!("http://{}/", running.address);
    let mut command = node.action(made.path(), &url, &main, &["cache.mjs", "restore", "k", "out"]);
    command.env("ACTIONS_CACHE_URL", &url);
    command.env_remove("ACTIONS_CACHE_SERVICE_V2").env_remove("ACTIONS_RESULTS_URL");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("RESULT null"), "{said}");
    assert!(
        said.contains("this cache speaks version 2") && said.contains("ACTIONS_CACHE_SERVICE_V2=true"),
        "{said}"
    );
    running.stop().unwrap();
}

#[test]
fn official_artifact_client_uploads_lists_downloads_and_deletes_within_its_run() {
    let Some(node) = Node::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    // 20 MiB: blocks of 8 MiB, five at once
    let content = noise(20 << 20);
    let made = workspace(&content);
    let main = runtime_token("p/main", Access::Write);
    let artifact = |workspace: &Path, token: &str, arguments: &[&str]| {
        run(&node, workspace, running.address, token, &[&["artifact.mjs"], arguments].concat())
    };
    let (result, said) = artifact(made.path(), &main, &["upload", "objects", "out/file"]);
    assert!(result["id"] == 1 && result["size"].as_u64().is_some_and(|size| size > 20 << 20), "{said}");
    let (listed, said) = artifact(made.path(), &main, &["list"]);
    let one = &listed["artifacts"][0];
    assert_eq!((&one["name"], &one["id"]), (&"objects".into(), &1.into()), "{said}");
    assert_eq!(one["digest"], format!("sha256:{}", result["digest"].as_str().unwrap()));
    let empty = tempfile::tempdir().unwrap();
    let (result, said) = artifact(empty.path(), &main, &["download", "objects", "to"]);
    assert_eq!(result["digestMismatch"], false, "{said}");
    let downloaded = ["to/file", "to/out/file"].map(|path| empty.path().join(path));
    let downloaded = downloaded.iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("{said}"));
    assert!(fs_err::read(downloaded).unwrap() == content);
    // a file without an archive around it keeps its name
    fs_err::write(made.path().join("report 1.txt"), "fine").unwrap();
    let (result, said) = artifact(made.path(), &main, &["raw", "ignored", "report 1.txt"]);
    assert_eq!(result["id"], 2, "{said}");
    artifact(empty.path(), &main, &["download", "report 1.txt", "raw"]);
    assert_eq!(fs_err::read(empty.path().join("raw/report 1.txt")).unwrap(), b"fine");
    // the name is taken until it is deleted
    let url = format!("http://{}/", running.address);
    let arguments = ["artifact.mjs", "upload", "objects", "out/file"];
    let failed = node.action(made.path(), &url, &main, &arguments).output().unwrap();
    let said = text(&failed);
    assert!(!failed.status.success() && said.contains("already exists in this run"), "{said}");
    let (result, said) = artifact(made.path(), &main, &["delete", "objects"]);
    assert_eq!(result["id"], 1, "{said}");
    // a fork has a run of its own, and sees nothing of this one
    let fork = runtime_token("p/pr/7", Access::Write);
    assert_eq!(artifact(made.path(), &fork, &["list"]).0["artifacts"], serde_json::json!([]));
    assert_eq!(artifact(made.path(), &main, &["list"]).0["artifacts"][0]["name"], "report 1.txt");
    running.stop().unwrap();
}

fn good(output: &Output, what: &str) -> String {
    let said = text(output);
    assert!(output.status.success(), "{what}: {said}");
    said
}

/// Builds three files of C and three of Rust with a server of sccache of its own; answers with its statistics.
fn sccache_build(
    sccache: &Path,
    tree: &Path,
    running: &Running,
    path: &str,
    token: &str,
    only: &[usize],
) -> String {
    let run = tempfile::tempdir().unwrap();
    let command = || {
        let mut command = Command::new(sccache);
        command.current_dir(tree).env("SCCACHE_SERVER_UDS", run.path().join("socket"));
        command.env("SCCACHE_DIR", run.path()).env("SCCACHE_GHA_ENABLED", "true");
        command.env("ACTIONS_RESULTS_URL", format!("http://{}/{path}", running.address));
        command.env("ACTIONS_RUNTIME_TOKEN", token).env("ACTIONS_CACHE_SERVICE_V2", "true");
        command
    };
    let out = run.path().join("out");
    fs_err::create_dir_all(&out).unwrap();
    for number in only {
        let source = format!("part{number}.c");
        let mut cc = command();
        cc.args(["gcc", "-O1", "-c", &source, "-o"]).arg(out.join(format!("part{number}.o")));
        good(&cc.output().unwrap(), &source);
        let source = format!("part{number}.rs");
        let mut rustc = command();
        rustc.args(["rustc", "--edition=2021", "--crate-type=lib", "--emit=link,dep-info", "--crate-name"]);
        rustc.arg(format!("part{number}")).arg(&source).arg("--out-dir").arg(&out);
        good(&rustc.output().unwrap(), &source);
        assert!(out.join(format!("libpart{number}.rlib")).is_file());
    }
    let stats = good(&command().arg("--show-stats").output().unwrap(), "statistics");
    good(&command().arg("--stop-server").output().unwrap(), "stopping the server of sccache");
    stats
}

/// falcondev#164 (protobuf), mozilla/sccache#2566 (no limit of uploads a minute), mozilla/sccache#2312 (projects are apart).
#[rstest::rstest]
fn falcondev_164_sccache_builds_over_githubs_protocol_cold_warm_as_a_fork_and_as_a_reader(
    #[values("", "p/main/-/github/")] path: &str,
) {
    let Some(sccache) = find("sccache") else { return };
    let (folder, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for number in 0..4 {
        let c = format!("#include <stdio.h>\nint part_{number}(void) {{ return printf(\"{number}\"); }}\n");
        fs_err::write(tree.path().join(format!("part{number}.c")), c).unwrap();
        let rust = format!("//! Part.\npub fn part() -> usize {{ std::env::args().count() + {number} }}\n");
        fs_err::write(tree.path().join(format!("part{number}.rs")), rust).unwrap();
    }
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let build =
        |token: &str, only: &[usize]| sccache_build(&sccache, tree.path(), &running, path, token, only);
    let (main, fork) = (runtime_token("p/main", Access::Write), runtime_token("p/pr/7", Access::Write));
    let cold = build(&main, &[0, 1, 2]);
    let counts = counted(&mut client, "p/main");
    // six objects, and the entry of the check
    assert_eq!((counts.writes, counts.malformed, counts.hits), (7, 0, 0), "{cold}");
    let warm = build(&main, &[0, 1, 2]);
    let counts = counted(&mut client, "p/main");
    assert_eq!((counts.writes, counts.hits), (7, 7), "{warm}");
    let forked = build(&fork, &[0, 1, 2, 3]);
    let counts = counted(&mut client, "p/pr/7");
    assert_eq!((counts.parent_hits, counts.writes), (7, 3), "two objects and the check: {forked}");
    // the plain form of the token does as well: sccache does not look into it
    let reader = token("p/main", Access::Read);
    let read = build(&reader, &[0, 3]);
    let counts = counted(&mut client, "p/main");
    assert_eq!(counts.writes, 7, "a reader writes nothing: {read}");
    assert!(counts.denied > 0, "{read}");
    build("fyc_broken.token", &[0]);
    running.stop().unwrap();
}
