//! The real Bazel over gRPC: 4.2.3, the only one that the tests can install (`scripts/install-clients.sh --bazel`), with
//! generated files. Skipped, visibly, where it is not there. It has neither compressed contents nor batches: those are *protocol
//! tests* in `reapi.rs`.

#![cfg(feature = "grpc")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::token::Access;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Client, service, token};

fn bazel() -> Option<PathBuf> {
    let found = support::programs::look("bazel");
    if found.is_none() {
        println!("SKIPPED: bazel is not installed (scripts/install-clients.sh --bazel)");
    }
    found
}

/// A workspace and a server of Bazel of its own, as a fresh machine has them.
struct Build {
    run: tempfile::TempDir,
    child: Child,
}

/// Files in a row, each made from the one before by this shell command after it was copied.
fn start(bazel: &PathBuf, length: usize, command: &str, options: &[&str]) -> Build {
    let run = tempfile::tempdir().unwrap();
    let workspace = run.path().join("workspace");
    fs_err::create_dir_all(&workspace).unwrap();
    fs_err::write(workspace.join("WORKSPACE"), "").unwrap();
    fs_err::write(workspace.join("0.txt"), "some input\n").unwrap();
    let rules: String = (1..=length)
        .map(|number| {
            let before = number - 1;
            format!(
                "genrule(name = \"r{number}\", srcs = [\"{before}.txt\"], outs = [\"{number}.txt\"], cmd = \"cat $< > $@; {command}\")\n"
            )
        })
        .collect();
    fs_err::write(workspace.join("BUILD"), rules).unwrap();
    let output = fs_err::File::create(run.path().join("output")).unwrap();
    let mut command = Command::new(bazel);
    command.current_dir(&workspace).env("HOME", run.path()).arg("--batch");
    command.arg(format!("--output_user_root={}", run.path().join("root").display()));
    command.args(["build", "--color=no", "--curses=no", "--remote_timeout=20"]).args(options);
    command.arg(format!("//:r{length}")).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::from(output.into_parts().0)).spawn().unwrap();
    Build { run, child }
}

impl Build {
    /// Waits for a build that must succeed; answers with what it said.
    fn end(mut self) -> String {
        let status = self.child.wait().unwrap();
        let said = fs_err::read_to_string(self.run.path().join("output")).unwrap();
        assert!(status.success(), "{said}");
        // its output folders are read-only
        let _ = Command::new("chmod").args(["-R", "u+w"]).arg(self.run.path()).output();
        said
    }
}

fn remote(address: SocketAddr, token: Option<&str>) -> String {
    let user = token.map_or_else(String::new, |token| format!("anybody:{token}@"));
    format!("--remote_cache=grpc://{user}{address}")
}

const MAIN: &str = "--remote_instance_name=p/main";

fn counted(address: SocketAddr, scope: &str) -> Option<Counted> {
    let admin = token("admin", Access::Admin);
    let body = Client::new(address).ask("GET", "/-/admin/stat", Some(&admin), None).body;
    let stat: Stat = serde_json::from_slice(&body).unwrap();
    stat.traffic.into_iter().find(|one| one.scope == scope && one.surface == "reapi")
}

/// bazel#16624, #16724 and bb-deployments#51: with a token that may only read, this old Bazel builds and says nothing.
#[test]
fn bazel_over_grpc_builds_cold_warm_as_a_fork_as_a_reader_and_as_a_stranger() {
    let Some(bazel) = bazel() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let address = running.address;
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    let build = |token: Option<&str>, command: &str| {
        start(&bazel, 2, command, &[&remote(address, token), MAIN]).end()
    };
    let hits = |said: &str| assert!(said.contains("2 remote cache hit"), "{said}");
    build(Some(&main), "echo x >> $@");
    let cold = counted(address, "p/main").unwrap();
    assert_eq!(cold.malformed, 0);
    assert!(cold.writes >= 4, "two results and two files: {cold:?}");
    hits(&build(Some(&main), "echo x >> $@"));
    hits(&build(Some(&fork), "echo x >> $@"));
    build(Some(&fork), "echo of the fork >> $@");
    assert!(counted(address, "p/pr/7").unwrap().writes >= 4);
    let said = build(Some(&token("p/main", Access::Read)), "echo of the reader >> $@");
    assert!(!said.contains("WARNING") && !said.contains("ERROR"), "{said}");
    hits(&build(None, "echo x >> $@"));
    build(Some("fyc_broken.token"), "echo of the broken token >> $@");
    // the token as a header, and the scope of the token for want of an instance
    let header = format!("--remote_header=authorization=Bearer {fork}");
    let said = start(&bazel, 2, "echo of the fork >> $@", &[&remote(address, None), &header]).end();
    hits(&said);
    let after = counted(address, "p/main").unwrap();
    assert_eq!(after.writes, cold.writes, "nobody else wrote to main");
    assert!(after.denied > 0, "the reader was counted");
    running.stop().unwrap();
}

/// bazel#18696 and #8250: what a result names is gone, or is not fetched at once.
#[test]
fn bazel_18696_over_grpc_builds_again_when_contents_are_gone() {
    let Some(bazel) = bazel() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let address = running.address;
    let main = token("p/main", Access::Write);
    let build = |options: &[&str]| {
        let remote = remote(address, Some(&main));
        start(&bazel, 3, "echo x >> $@", &[&[remote.as_str(), MAIN], options].concat()).end()
    };
    build(&[]);
    let said = build(&["--remote_download_minimal"]);
    assert!(said.contains("3 remote cache hit"), "{said}");
    let admin = token("admin", Access::Admin);
    let mut client = Client::new(address);
    let list = client.ask("GET", "/-/admin/entries?scope=p%2Fmain", Some(&admin), None).body;
    for line in String::from_utf8(list).unwrap().lines().filter(|line| line.contains("\"kind\":\"content\""))
    {
        let key = line.split("\"key\":\"").nth(1).unwrap().split('"').next().unwrap();
        client.ask("DELETE", &format!("/-/admin/entries?scope=p%2Fmain&prefix={key}"), Some(&admin), None);
    }
    let said = build(&[]);
    assert!(!said.contains("remote cache hit"), "{said}");
    let said = build(&[]);
    assert!(said.contains("3 remote cache hit"), "the results were stored again: {said}");
    running.stop().unwrap();
}

#[test]
fn bazel_over_grpc_stays_green_when_the_cache_dies_in_the_middle() {
    let Some(bazel) = bazel() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let address = running.address;
    let main = token("p/main", Access::Write);
    let options = [&*remote(address, Some(&main)), MAIN, "--remote_local_fallback", "--remote_retries=1"];
    let build = start(&bazel, 4, "sleep 1; echo x >> $@", &options);
    let end = Instant::now() + Duration::from_secs(240);
    while counted(address, "p/main").is_none_or(|counted| counted.writes < 2) {
        assert!(Instant::now() < end, "nothing was stored");
        std::thread::sleep(Duration::from_millis(20));
    }
    running.stop().unwrap();
    let said = build.end();
    assert!(said.contains("WARNING"), "it noticed: {said}");
}
