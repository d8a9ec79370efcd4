//! A cold cache is named, with its cause, within one build: real ccache and sccache, spoiled in the ways in which caches were cold
//! for months without anybody noticing. Each is skipped, visibly, where it is not installed (`scripts/install-clients.sh`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_cache::budget::{Budget, Cause, Report, Verdict};
use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::token::Access;
use forgeyard_model::Timestamp;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::programs::find;
use support::{Client, NOW, options, token, write_authority};

const FILES: usize = 6;
/// Minutes of the window of the budget.
const WINDOW: u32 = 10;

/// A service with a budget on main, whose clock a test moves.
struct Watched {
    running: Running,
    minutes: Arc<AtomicI64>,
    tree: tempfile::TempDir,
    _folder: tempfile::TempDir,
}

impl Watched {
    fn new(quota_mib: Option<u64>) -> Self {
        let (folder, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let minutes = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&minutes);
        let options = Options {
            clock: Arc::new(move || Timestamp::from_micros(NOW + clock.load(Ordering::Relaxed) * 60_000_000)),
            ..options(folder.path(), Durability::PageCache)
        };
        let budget = Budget { hit_percent: 60, of_at_least: FILES as u64, within_minutes: WINDOW };
        write_authority(&options.authority, |snapshot| {
            for rule in snapshot.scopes.iter_mut().filter(|rule| rule.path.as_str() == "p/main") {
                (rule.budget, rule.quota_mib) = (Some(budget), quota_mib);
            }
        });
        for number in 0..FILES {
            // Bytes that do not compress, so that a quota can be too small for them.
            let size = if quota_mib.is_some() { 300_000 } else { 1 };
            let bytes: String =
                (0..size).map(|at| format!("{},", mixed(at + ((number as u64) << 32)))).collect();
            let text = format!(
                "#include <stdio.h>\nconst unsigned char data{number}[] = {{{bytes}}};\nint part{number}(void) {{ return NOW; }}\n"
            );
            fs_err::write(tree.path().join(format!("part{number}.c")), text).unwrap();
        }
        Self { running: start(options).unwrap(), minutes, tree, _folder: folder }
    }

    /// The window of the budget is over: what was before counts no more.
    fn later(&self) {
        // Figures are noted every few minutes; the window begins with one that was noted after the build.
        for minutes in [2, i64::from(WINDOW) + 1] {
            self.minutes.fetch_add(minutes, Ordering::Relaxed);
            self.running.maintain().unwrap();
        }
    }

    fn ccache(&self, ccache: &Path, token: &str, now: &str, more: &[(&str, &str)]) {
        let run = tempfile::tempdir().unwrap();
        for number in 0..FILES {
            let mut command = Command::new(ccache);
            command
                .current_dir(self.tree.path())
                .env("CCACHE_DIR", run.path())
                .env("CCACHE_REMOTE_ONLY", "true");
            let storage = format!("http://any:{token}@{}/p/main/-/ccache", self.running.address);
            command.env("CCACHE_REMOTE_STORAGE", storage).envs(more.iter().copied());
            command.args(["gcc", "-c", &format!("-DNOW={now}"), &format!("part{number}.c"), "-o"]);
            good(command.arg(run.path().join("part.o")));
        }
    }

    fn sccache(&self, sccache: &Path, token: &str, now: &str, more: &[(&str, &str)]) {
        let run = tempfile::tempdir().unwrap();
        let command = || {
            let mut command = Command::new(sccache);
            command.current_dir(self.tree.path()).env("SCCACHE_SERVER_UDS", run.path().join("socket"));
            command.env("SCCACHE_WEBDAV_ENDPOINT", format!("http://{}/p/main/-/dav/", self.running.address));
            command
                .env("SCCACHE_WEBDAV_TOKEN", token)
                .env("SCCACHE_DIR", run.path())
                .envs(more.iter().copied());
            command
        };
        for number in 0..FILES {
            let part = format!("part{number}.c");
            good(
                command()
                    .args(["gcc", "-c", &format!("-DNOW={now}"), &part, "-o"])
                    .arg(run.path().join("part.o")),
            );
        }
        good(command().arg("--stop-server"));
    }

    fn report(&self) -> Report {
        let mut client = Client::new(self.running.address);
        let admin = token("admin", Access::Admin);
        let answer = client.ask("GET", "/-/admin/check?scope=p/main", Some(&admin), None);
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn cold(&self, cause: Cause, says: &str) {
        let report = self.report();
        assert_eq!(report.verdict, Verdict::Cold(cause), "{}", report.text);
        assert!(report.text.contains(says), "{}", report.text);
        println!("{}", report.text);
    }

    fn end(self) {
        self.running.stop().unwrap();
    }
}

/// One byte of a sequence that looks random.
fn mixed(at: u64) -> u8 {
    let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

fn good(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// ccache says nothing when it may not write (ccache#1282), so the cache does.
#[test]
fn denied_writes_are_named_after_one_build() {
    let Some(ccache) = find("ccache") else { return };
    let watched = Watched::new(None);
    watched.ccache(&ccache, &token("p/main", Access::Read), "1", &[]);
    watched.cold(Cause::Denied, "may only read");
    watched.end();
}

/// sccache looks once whether it may write, and then does not try.
#[test]
fn scope_that_nobody_ever_writes_is_named_after_one_build() {
    let Some(sccache) = find("sccache") else { return };
    let watched = Watched::new(None);
    watched.sccache(
        &sccache,
        &token("p/main", Access::Write),
        "1",
        &[("SCCACHE_WEBDAV_RW_MODE", "READ_ONLY")],
    );
    watched.cold(Cause::NeverWritten, "token that may write");
    watched.end();
}

#[test]
fn scope_that_holds_other_things_and_is_not_written_is_named_after_one_build() {
    let Some(sccache) = find("sccache") else { return };
    let watched = Watched::new(None);
    watched.sccache(&sccache, &token("p/main", Access::Write), "1", &[]);
    assert_eq!(watched.report().verdict, Verdict::Undecided, "the first build ever is no verdict");
    watched.later();
    watched.sccache(
        &sccache,
        &token("p/main", Access::Write),
        "2",
        &[("SCCACHE_WEBDAV_RW_MODE", "READ_ONLY")],
    );
    watched.cold(Cause::NotWritten, "only read");
    watched.end();
}

#[test]
fn new_compiler_is_named_after_one_build() {
    let Some(ccache) = find("ccache") else { return };
    let watched = Watched::new(None);
    let main = token("p/main", Access::Write);
    watched.ccache(&ccache, &main, "1", &[("CCACHE_COMPILERCHECK", "string:gcc 12")]);
    watched.later();
    watched.ccache(&ccache, &main, "1", &[("CCACHE_COMPILERCHECK", "string:gcc 12")]);
    assert_eq!(watched.report().verdict, Verdict::Met, "{}", watched.report().text);
    watched.later();
    watched.ccache(&ccache, &main, "1", &[("CCACHE_COMPILERCHECK", "string:gcc 13")]);
    watched.cold(Cause::KeyChurn, "another compiler");
    watched.end();
}

#[test]
fn keys_that_change_in_every_build_are_named_after_one_build() {
    let Some(sccache) = find("sccache") else { return };
    let watched = Watched::new(None);
    let main = token("p/main", Access::Write);
    watched.sccache(&sccache, &main, "1", &[]);
    watched.later();
    watched.sccache(&sccache, &main, "2", &[]);
    watched.cold(Cause::KeyChurn, "keys change in every build");
    watched.end();
}

#[test]
fn what_was_evicted_is_named_after_one_build() {
    let Some(ccache) = find("ccache") else { return };
    // Two of six objects fit.
    let watched = Watched::new(Some(1));
    let main = token("p/main", Access::Write);
    watched.ccache(&ccache, &main, "1", &[]);
    watched.later();
    watched.ccache(&ccache, &main, "1", &[]);
    watched.running.maintain().unwrap();
    watched.cold(Cause::Evicted, "quota");
    watched.end();
}
