//! Real clients: sccache over WebDAV and S3, ccache and Bazel over HTTP, on real compilers. Each is skipped, visibly, where it is not
//! installed (`scripts/install-clients.sh`).
//!
//! The course is the same for each: cold on main, warm on main, a fork that reads main and writes to itself, a stranger who
//! reads, a token that does not hold, a cache that is gone. Every build must succeed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::token::Access;
use std::path::Path;
use std::process::{Command, Output};
use support::nix::Nix;
use support::programs::find;
use support::{Client, service, token};

const SOURCES: usize = 4;

/// A small tree in C that uses the system's headers, and one in Rust.
fn tree(folder: &Path) {
    fs_err::write(folder.join("shared.h"), "#include <stdio.h>\n#include <stdlib.h>\n#define SHARED 42\n")
        .unwrap();
    for number in 0..SOURCES {
        let text = format!(
            "#include \"shared.h\"\nint part_{number}(void) {{ return printf(\"%d\", SHARED + {number}); }}\n"
        );
        fs_err::write(folder.join(format!("part{number}.c")), text).unwrap();
        let text = format!("//! Part.\npub fn part() -> usize {{ std::env::args().count() + {number} }}\n");
        fs_err::write(folder.join(format!("part{number}.rs")), text).unwrap();
    }
}

fn good(output: &Output, what: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{what}: {}{}", text(&output.stdout), text(&output.stderr));
}

fn counted(client: &mut Client, scope: &str, surface: &str) -> Counted {
    let admin = token("admin", Access::Admin);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    let found = stat.traffic.into_iter().find(|one| one.scope == scope && one.surface == surface);
    found.unwrap_or_else(|| panic!("nothing was counted for {scope} on {surface}"))
}

fn scopes_with_entries(client: &mut Client) -> Vec<String> {
    let admin = token("admin", Access::Admin);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    stat.scopes.into_iter().map(|scope| scope.scope).collect()
}

/// One server of sccache for one configuration, as one job has it; builds the tree and stops.
fn sccache_build(
    sccache: &Path,
    tree: &Path,
    over: &str,
    endpoint: &str,
    token: Option<&str>,
    only: &[usize],
) {
    let run = tempfile::tempdir().unwrap();
    let command = |program: &Path| {
        let mut command = Command::new(program);
        command.current_dir(tree).env("SCCACHE_SERVER_UDS", run.path().join("socket"));
        command.env("SCCACHE_DIR", run.path()).env("SCCACHE_IGNORE_SERVER_IO_ERROR", "1");
        if over == "dav" {
            command.env("SCCACHE_WEBDAV_ENDPOINT", endpoint).env("SCCACHE_WEBDAV_KEY_PREFIX", "objects/gcc");
            if let Some(token) = token {
                command.env("SCCACHE_WEBDAV_TOKEN", token);
            }
            return command;
        }
        command.env("SCCACHE_BUCKET", "any").env("SCCACHE_ENDPOINT", endpoint).env("SCCACHE_REGION", "auto");
        command.env("SCCACHE_S3_KEY_PREFIX", "objects/gcc").env("SCCACHE_S3_USE_SSL", "false");
        match token {
            Some(token) => command.env("AWS_ACCESS_KEY_ID", token).env("AWS_SECRET_ACCESS_KEY", "anything"),
            None => command.env("SCCACHE_S3_NO_CREDENTIALS", "true"),
        };
        command
    };
    let out = run.path().join("out");
    fs_err::create_dir_all(&out).unwrap();
    for number in only {
        let mut cc = command(sccache);
        let source = format!("part{number}.c");
        cc.args(["gcc", "-O1", "-c", &source, "-o"]).arg(out.join(format!("part{number}.o")));
        good(&cc.output().unwrap(), &source);
        let mut rustc = command(sccache);
        let source = format!("part{number}.rs");
        rustc.args(["rustc", "--edition=2021", "--crate-type=lib", "--emit=link,dep-info", "--crate-name"]);
        rustc.arg(format!("part{number}")).arg(&source).arg("--out-dir").arg(&out);
        good(&rustc.output().unwrap(), &source);
        assert!(
            out.join(format!("part{number}.o")).is_file()
                && out.join(format!("libpart{number}.rlib")).is_file()
        );
    }
    good(&command(sccache).arg("--stop-server").output().unwrap(), "stopping the server of sccache");
}

/// sccache#2258 (forks read), sccache#2278 and #2082 (the check, nested prefixes), next.js#92999 (a broken token).
#[rstest::rstest]
fn sccache_builds_cold_warm_as_a_fork_and_as_a_stranger(#[values("dav", "s3")] over: &str) {
    let Some(sccache) = find("sccache") else { return };
    let (folder, tree_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(tree_folder.path());
    let running = service(folder.path());
    let endpoint = match over {
        "dav" => format!("http://{}/p/main/-/dav/", running.address),
        _ => format!("http://{}/p/main/-/s3", running.address),
    };
    let mut client = Client::new(running.address);
    let build = |token: Option<&str>, only: &[usize]| {
        sccache_build(&sccache, tree_folder.path(), over, &endpoint, token, only);
    };
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    let entries = 2 * 3;
    build(Some(&main), &[0, 1, 2]);
    let cold = counted(&mut client, "p/main", over);
    assert_eq!((cold.hits, cold.misses, cold.writes, cold.malformed), (0, entries, entries, 0));
    build(Some(&main), &[0, 1, 2]);
    let warm = counted(&mut client, "p/main", over);
    assert_eq!((warm.hits, warm.misses), (entries, entries));
    build(Some(&fork), &[0, 1, 2, 3]);
    let forked = counted(&mut client, "p/pr/7", over);
    assert_eq!((forked.parent_hits, forked.misses, forked.writes), (entries, 2, 2));
    build(None, &[0, 3]);
    build(Some("fyc_broken.token"), &[0, 3]);
    build(Some(&token("p/main", Access::Read)), &[0, 3]);
    let after = counted(&mut client, "p/main", over);
    assert_eq!(after.writes, entries, "nobody else wrote to main");
    assert!(after.hits > warm.hits && after.denied > 0);
    running.stop().unwrap();
}

fn ccache_build(ccache: &Path, tree: &Path, storage: &str, only: &[usize]) {
    let run = tempfile::tempdir().unwrap();
    for number in only {
        let mut command = Command::new(ccache);
        command.current_dir(tree).env("CCACHE_DIR", run.path()).env("CCACHE_REMOTE_ONLY", "true");
        command.env("CCACHE_REMOTE_STORAGE", storage);
        let source = format!("part{number}.c");
        command.args(["gcc", "-O1", "-c", &source, "-o"]).arg(run.path().join("part.o"));
        good(&command.output().unwrap(), &source);
        assert!(run.path().join("part.o").is_file());
    }
}

/// ccache#1511 (its files under ac/ are no action results), ccache#1282 (denied writes are silent, so they are counted).
#[rstest::rstest]
fn ccache_builds_cold_warm_as_a_fork_as_a_stranger_and_without_a_cache(
    #[values("subdirs", "flat", "bazel")] layout: &str,
) {
    let Some(ccache) = find("ccache") else { return };
    let (folder, tree_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(tree_folder.path());
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let address = running.address;
    let build = |token: Option<&str>, only: &[usize]| {
        let token = token.map_or_else(String::new, |token| format!("|bearer-token={token}"));
        let storage = format!("http://{address}/p/main/-/ccache|layout={layout}{token}");
        ccache_build(&ccache, tree_folder.path(), &storage, only);
    };
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    build(Some(&main), &[0, 1, 2]);
    let cold = counted(&mut client, "p/main", "ccache");
    assert_eq!((cold.hits, cold.malformed), (0, 0));
    assert!(cold.writes >= 6, "a result and a manifest for each: {cold:?}");
    build(Some(&main), &[0, 1, 2]);
    let warm = counted(&mut client, "p/main", "ccache");
    assert_eq!((warm.hits, warm.misses, warm.writes), (6, cold.misses, cold.writes));
    build(Some(&fork), &[0, 1, 2, 3]);
    let forked = counted(&mut client, "p/pr/7", "ccache");
    assert_eq!((forked.parent_hits, forked.hits), (6, 0));
    assert!(forked.writes >= 2);
    assert_eq!(scopes_with_entries(&mut client), ["p/main", "p/pr/7"]);
    build(None, &[0, 3]);
    build(Some("fyc_broken.token"), &[0, 3]);
    let after = counted(&mut client, "p/main", "ccache");
    assert_eq!(after.writes, cold.writes, "nobody else wrote to main");
    assert!(after.hits >= warm.hits + 4 && after.denied > 0);
    running.stop().unwrap();
    build(Some(&main), &[0]);
}

/// One build of Bazel in a workspace and with a server of its own, which is stopped.
fn bazel_build(bazel: &Path, remote: &str, part: &str) -> String {
    let run = tempfile::tempdir().unwrap();
    let workspace = run.path().join("workspace");
    fs_err::create_dir_all(&workspace).unwrap();
    fs_err::write(workspace.join("WORKSPACE"), "").unwrap();
    let rule = format!(
        "genrule(name = \"a\", srcs = [\"in.txt\"], outs = [\"a.txt\"], cmd = \"cat $< > $@; echo {part} >> $@\")\n\
         genrule(name = \"b\", srcs = [\":a\"], outs = [\"b.txt\"], cmd = \"wc -c $< > $@\")\n"
    );
    fs_err::write(workspace.join("BUILD"), rule).unwrap();
    fs_err::write(workspace.join("in.txt"), "some input\n").unwrap();
    let root = format!("--output_user_root={}", run.path().join("root").display());
    let command = || {
        let mut command = Command::new(bazel);
        command.current_dir(&workspace).env("HOME", run.path()).args(["--batch", &root]);
        command
    };
    let cache = format!("--remote_cache={remote}");
    let output = command().args(["build", "--color=no", "--curses=no", &cache, "//:b"]).output().unwrap();
    good(&output, "bazel");
    assert!(workspace.join("bazel-bin/b.txt").is_file());
    // its output folders are read-only
    let _ = Command::new("chmod").args(["-R", "u+w"]).arg(run.path()).output();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// bazel#16724, bb-deployments#51: Bazel with a token that may only read stays green and says nothing of it.
#[test]
fn bazel_builds_cold_warm_as_a_fork_and_as_a_reader() {
    let Some(bazel) = find("bazel") else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let remote = |token: Option<&str>| {
        let user = token.map_or_else(String::new, |token| format!("anybody:{token}@"));
        format!("http://{user}{}/p/main/-/bazel", running.address)
    };
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    bazel_build(&bazel, &remote(Some(&main)), "x");
    let cold = counted(&mut client, "p/main", "bazel");
    assert_eq!(cold.malformed, 0);
    assert!(cold.writes >= 4, "two results and two files: {cold:?}");
    let said = bazel_build(&bazel, &remote(Some(&main)), "x");
    assert!(said.contains("2 remote cache hit"), "{said}");
    let said = bazel_build(&bazel, &remote(Some(&fork)), "x");
    assert!(said.contains("2 remote cache hit"), "{said}");
    bazel_build(&bazel, &remote(Some(&fork)), "of the fork");
    assert!(counted(&mut client, "p/pr/7", "bazel").writes >= 4);
    let said = bazel_build(&bazel, &remote(Some(&token("p/main", Access::Read))), "of the reader");
    assert!(!said.contains("WARNING"), "{said}");
    let said = bazel_build(&bazel, &remote(None), "x");
    assert!(said.contains("2 remote cache hit"), "{said}");
    assert_eq!(counted(&mut client, "p/main", "bazel").writes, cold.writes, "nobody else wrote to main");
    running.stop().unwrap();
}

/// nix#7882 (a path is copied again), nix#4832 (ranges), and the two ways of a read-only user.
#[rstest::rstest]
#[case::of_bookworm("")]
#[case::of_trixie("-2.26")]
fn nix_copies_to_a_scope_and_another_store_reads_it_as_a_fork_and_as_a_stranger(#[case] version: &str) {
    let Some(nix) = Nix::find(version) else { return };
    let (folder, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = service(folder.path());
    let mut client = Client::new(running.address);
    let cache = format!("http://{}/p/main/-/nix", running.address);
    let store = |name: &str, token: Option<&str>| nix.place(run.path(), name, token);
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    let first = store("first", Some(&main));
    let source = run.path().join("some-source");
    fs_err::create_dir_all(&source).unwrap();
    fs_err::write(source.join("file"), vec![7; 200_000]).unwrap();
    let added = first.nix(&["store", "add-path", &source.display().to_string()]);
    good(&added, "adding a path");
    let path = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    for _ in 0..2 {
        good(&first.nix(&["copy", "--to", &cache, &path]), "copying to the cache");
    }
    let writes = counted(&mut client, "p/main", "nix").writes;
    assert_eq!(writes, 2, "a file and its narinfo");
    for (name, token) in [("fork", Some(fork.as_str())), ("stranger", None), ("broken", Some("fyc_no.token"))]
    {
        let other = store(name, token);
        let copied = other.nix(&["copy", "--no-check-sigs", "--from", &cache, &path]);
        good(&copied, name);
        assert!(other.nix(&["path-info", &path]).status.success(), "{name}");
    }
    let stranger = store("stranger", None);
    fs_err::write(source.join("file"), "another").unwrap();
    let added = stranger.nix(&["store", "add-path", &source.display().to_string()]);
    let other = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    assert!(!stranger.nix(&["copy", "--to", &cache, &other]).status.success());
    assert!(counted(&mut client, "p/main", "nix").denied > 0);
    assert_eq!(counted(&mut client, "p/main", "nix").writes, writes);
    running.stop().unwrap();
}
