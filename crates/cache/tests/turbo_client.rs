//! The real Turborepo (2.11, from npm) builds a small tree of packages: cold, warm, as a fork, as a stranger and a reader, with signed
//! archives, and with a cache that is dead, sick or silent. Skipped, visibly, where it is not installed
//! (`scripts/install-clients.sh`).
//!
//! What a task makes is new each time (`uuid`), so who has the same bytes took them from somebody.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::admin::Stat;
use forgeyard_cache::figures::Counted;
use forgeyard_cache::service::Running;
use forgeyard_cache::token::Access;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::programs::{clients, look};
use support::sick::{gone, sick};
use support::{Client, service, token};

const PACKAGES: [&str; 3] = ["a", "b", "c"];

/// The program, and node that it needs to find it.
fn turbo() -> Option<PathBuf> {
    let program = clients().join("node/node_modules/.bin/turbo");
    let found = program.is_file() && look("node").is_some();
    if !found {
        println!("SKIPPED: turbo is not installed (scripts/install-clients.sh)");
    }
    found.then_some(program)
}

/// A tree of packages, each with a file of more than a MiB among what it makes; `c` needs `b`, and that needs `a`.
struct Tree {
    folder: tempfile::TempDir,
    turbo: PathBuf,
}

impl Tree {
    fn new(turbo: &Path, signed: bool) -> Self {
        let tree = Self { folder: tempfile::tempdir().unwrap(), turbo: turbo.to_owned() };
        tree.write(
            "package.json",
            r#"{"name":"tree","private":true,"packageManager":"npm@10.0.0","workspaces":["packages/*"]}"#,
        );
        let mut locked = r#"{"name":"tree","lockfileVersion":3,"requires":true,"packages":{"":{"name":"tree","workspaces":["packages/*"]}"#.to_owned();
        for (number, name) in PACKAGES.iter().enumerate() {
            let needs = match number.checked_sub(1).and_then(|before| PACKAGES.get(before)) {
                Some(before) => format!(r#","dependencies":{{"@t/{before}":"*"}}"#),
                None => String::new(),
            };
            locked.push_str(&format!(
                r#","node_modules/@t/{name}":{{"resolved":"packages/{name}","link":true}},"packages/{name}":{{"name":"@t/{name}","version":"1.0.0"{needs}}}"#
            ));
            let script = "mkdir -p dist && cat src.txt /proc/sys/kernel/random/uuid > dist/out.txt && head -c 1500000 /dev/urandom > dist/large";
            tree.write(
                &format!("packages/{name}/package.json"),
                &format!(
                    r#"{{"name":"@t/{name}","version":"1.0.0","scripts":{{"build":"{script}"}}{needs}}}"#
                ),
            );
            tree.write(&format!("packages/{name}/src.txt"), name);
        }
        tree.write("package-lock.json", &format!("{locked}}}}}"));
        let signature = if signed { r#""remoteCache":{"signature":true},"# } else { "" };
        tree.write(
            "turbo.json",
            &format!(
                r#"{{{signature}"tasks":{{"build":{{"dependsOn":["^build"],"outputs":["dist/**"]}}}}}}"#
            ),
        );
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }

    fn made(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let dist = self.folder.path().join("packages").join(name).join("dist");
        (fs_err::read(dist.join("out.txt")).unwrap(), fs_err::read(dist.join("large")).unwrap())
    }

    /// Builds it as somebody, who has to succeed. How many tasks came from the cache, and what was said.
    fn build(&self, api: &str, token: &str, more: &[(&str, &str)]) -> (usize, String) {
        let home = self.folder.path().join("home");
        fs_err::create_dir_all(&home).unwrap();
        let mut command = Command::new(&self.turbo);
        // nothing of the machine, and no cache on its disk
        command.args(["run", "build", "--cache=remote:rw", "--no-daemon"]).current_dir(self.folder.path());
        for name in ["TURBO_TEAMID", "TURBO_CACHE", "CI", "VERCEL"] {
            command.env_remove(name);
        }
        command.env("HOME", &home).env("TURBO_TELEMETRY_DISABLED", "1").env("DO_NOT_TRACK", "1");
        command.env("TURBO_API", api).env("TURBO_TOKEN", token).env("TURBO_TEAM", "any");
        let output = command.envs(more.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
        assert!(output.status.success(), "{said}");
        let cached = said.lines().find_map(|line| line.trim().strip_prefix("Cached:"));
        let cached = cached.and_then(|line| line.trim().split(' ').next()?.parse().ok());
        (cached.unwrap_or_else(|| panic!("it does not say what was cached: {said}")), said)
    }
}

fn counted(running: &Running, scope: &str) -> Counted {
    let admin = token("admin", Access::Admin);
    let mut client = Client::new(running.address);
    let stat: Stat =
        serde_json::from_slice(&client.ask("GET", "/-/admin/stat", Some(&admin), None).body).unwrap();
    let found = stat.traffic.into_iter().find(|one| one.scope == scope && one.surface == "turbo");
    found.unwrap_or_else(|| panic!("nothing was counted for {scope}"))
}

fn api(address: SocketAddr) -> String {
    format!("http://{address}/p/main/-/turbo")
}

#[test]
fn turborepo_builds_cold_warm_as_a_fork_as_a_reader_and_as_a_stranger() {
    let Some(turbo) = turbo() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let api = api(running.address);
    let (main, fork) = (token("p/main", Access::Write), token("p/pr/7", Access::Write));
    let built = Tree::new(&turbo, false);
    assert_eq!(built.build(&api, &main, &[]).0, 0);
    let cold = counted(&running, "p/main");
    assert_eq!((cold.hits, cold.misses, cold.writes, cold.malformed), (0, 3, 3, 0), "{cold:?}");
    let warm = Tree::new(&turbo, false);
    assert_eq!(warm.build(&api, &main, &[]).0, 3);
    assert!(PACKAGES.iter().all(|name| warm.made(name) == built.made(name)));

    // a fork reads main, and writes what it changed to itself
    let forked = Tree::new(&turbo, false);
    assert_eq!(forked.build(&api, &fork, &[]).0, 3);
    assert_eq!(forked.made("a"), built.made("a"));
    let changed = |name: &str| {
        let tree = Tree::new(&turbo, false);
        tree.write("packages/c/src.txt", name);
        tree
    };
    let (first, second) = (changed("by the fork"), changed("by the fork"));
    assert_eq!(first.build(&api, &fork, &[]).0, 2);
    assert_eq!(second.build(&api, &fork, &[]).0, 3);
    assert_eq!(second.made("c"), first.made("c"));
    let of_fork = counted(&running, "p/pr/7");
    assert_eq!((of_fork.writes, of_fork.denied), (1, 0), "{of_fork:?}");

    // who may not write reads, says so once, and is green; nobody gets what the fork wrote
    let reader = token("p/main", Access::Read);
    for (name, token) in [("stranger", "none"), ("reader", reader.as_str()), ("broken", "fyc_no.token")] {
        let before = counted(&running, "p/main").denied;
        let tree = Tree::new(&turbo, false);
        tree.write("packages/b/src.txt", &format!("by the {name}"));
        let (cached, said) = tree.build(&api, token, &[]);
        assert_eq!((cached, tree.made("a")), (1, built.made("a")), "{name}: {said}");
        assert_eq!(said.matches("reads remain enabled").count(), 1, "{name}: {said}");
        assert!(!said.contains("unable to parse"), "{name}: {said}");
        // two tasks were made anew; after the first refusal nothing more is sent
        assert_eq!(counted(&running, "p/main").denied, before + 1, "{name}: {said}");
        let tree = changed("by the fork");
        let (cached, said) = tree.build(&api, token, &[]);
        assert_eq!(cached, 2, "{name} got what a fork wrote: {said}");
    }
    assert_eq!(counted(&running, "p/main").writes, 3, "nobody else wrote to main");
    running.stop().unwrap();
}

/// With `remoteCache.signature` an archive is believed when its tag holds: it comes back as it was sent.
#[test]
fn turborepo_believes_the_tag_that_came_with_an_archive() {
    let Some(turbo) = turbo() else { return };
    let folder = tempfile::tempdir().unwrap();
    let running = service(folder.path());
    let (api, main) = (api(running.address), token("p/main", Access::Write));
    let key = [("TURBO_REMOTE_CACHE_SIGNATURE_KEY", "a key of tests that is long enough")];
    let built = Tree::new(&turbo, true);
    assert_eq!(built.build(&api, &main, &key).0, 0);
    let warm = Tree::new(&turbo, true);
    let (cached, said) = warm.build(&api, &main, &key);
    assert_eq!((cached, warm.made("c")), (3, built.made("c")), "{said}");
    let doubter = Tree::new(&turbo, true);
    let other = [("TURBO_REMOTE_CACHE_SIGNATURE_KEY", "another key that is long enough")];
    assert_eq!(doubter.build(&api, &main, &other).0, 0);
    running.stop().unwrap();
}

/// *Simulated* troubles of a cache: nobody listens, 5xx, silence. No build fails for them.
#[test]
fn turborepo_builds_by_itself_when_the_cache_is_gone_fails_or_hangs() {
    let Some(turbo) = turbo() else { return };
    let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    for (name, address) in [("gone", gone()), ("failing", sick(Some(down))), ("hanging", sick(None))] {
        let tree = Tree::new(&turbo, false);
        let patience = [("TURBO_REMOTE_CACHE_TIMEOUT", "2"), ("TURBO_REMOTE_CACHE_UPLOAD_TIMEOUT", "2")];
        assert_eq!(tree.build(&api(address), "any", &patience).0, 0, "{name}");
        tree.made("c");
    }
}
