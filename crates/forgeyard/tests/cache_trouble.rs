//! Real clients and a cache in trouble, by way of the relay that every job of a farm has: each build stays green, and none waits
//! for each of its files.
//!
//! The cache is a thread of the test that is sick on purpose; sccache, ccache, Bazel and Nix are the real programs. Each is
//! skipped, visibly, where it is not installed (`scripts/install-clients.sh`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forgeyard");

/// What is wrong with the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sick {
    /// Nobody listens.
    Dead,
    /// It takes connections and says nothing.
    Hung,
    /// It answers 500 to everything.
    Fails,
    /// It answers a few requests, and then never again.
    Dies,
    /// It breaks off in the middle of each answer.
    Tears,
}

const ALL: [Sick; 5] = [Sick::Dead, Sick::Hung, Sick::Fails, Sick::Dies, Sick::Tears];

/// Requests that a dying cache answers.
const LAST: usize = 3;

/// A cache of this kind; how many requests it heard.
fn cache(sick: Sick) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, heard) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    if sick == Sick::Dead {
        return (address, heard);
    }
    let count = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            std::thread::spawn(move || serve(stream, sick, &count));
        }
    });
    (address, heard)
}

fn serve(mut stream: TcpStream, sick: Sick, count: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let answer = match sick {
            Sick::Fails => "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
            Sick::Tears => "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nPK\x03\x04 begins",
            Sick::Dies if number < LAST => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            _ => {
                std::thread::park();
                continue;
            }
        };
        if stream.write_all(answer.as_bytes()).is_err() || sick == Sick::Tears {
            return;
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let clients = std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
    let places = std::env::split_paths(&folders)
        .chain([Path::new(&clients).join("bin"), Path::new(&clients).join("ccache/bin")]);
    let found = places.map(|folder| folder.join(program)).find(|path| path.is_file());
    if found.is_none() {
        println!("SKIPPED: {program} is not installed (scripts/install-clients.sh)");
    }
    found
}

/// Runs a script with the relay, and answers what was said.
fn with_relay(address: SocketAddr, folder: &Path, script: &str) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "relay", "--cache", &format!("http://{address}"), "--", "bash", "-ec", script]);
    command
        .current_dir(folder)
        .env("HOME", folder)
        .env("FORGEYARD_CACHE_TOKEN", "any")
        .env_remove("FORGEYARD_CACHE_URL");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
    said
}

const FILES: usize = 6;

fn compile(compiler: &str, after: &str) -> String {
    format!(
        "for n in $(seq {FILES}); do echo \"int part$n(void) {{ return $n; }}\" > p$n.c; {compiler} gcc -c p$n.c -o p$n.o; test -s p$n.o; done; {after}"
    )
}

/// sccache alone does not even start when it cannot read (ClickHouse#68266 is its start-up check).
#[test]
fn sccache_builds_with_a_sick_cache() {
    let Some(sccache) = find("sccache") else { return };
    let sccache = sccache.display().to_string();
    for sick in ALL {
        let folder = tempfile::tempdir().unwrap();
        let (address, heard) = cache(sick);
        let said = with_relay(
            address,
            folder.path(),
            &compile(&sccache, &format!("{sccache} --stop-server >/dev/null")),
        );
        check(sick, heard.load(Ordering::Relaxed), &said);
    }
}

/// ccache alone waits up to ten seconds for each of its files.
#[test]
fn ccache_builds_with_a_sick_cache() {
    let Some(ccache) = find("ccache") else { return };
    for sick in ALL {
        let folder = tempfile::tempdir().unwrap();
        let (address, heard) = cache(sick);
        let said = with_relay(address, folder.path(), &compile(&ccache.display().to_string(), ""));
        check(sick, heard.load(Ordering::Relaxed), &said);
    }
}

#[test]
fn bazel_builds_with_a_sick_cache() {
    if find("bazel").is_none() {
        return;
    }
    for sick in ALL {
        let folder = tempfile::tempdir().unwrap();
        let (address, heard) = cache(sick);
        let script = "mkdir w && cd w && touch WORKSPACE && echo some > in.txt\n\
             for n in 1 2 3; do echo \"genrule(name = \\\"r$n\\\", srcs = [\\\"in.txt\\\"], outs = [\\\"o$n\\\"], cmd = \\\"cat \\$< > \\$@\\\")\"; done > BUILD\n\
             bazel --bazelrc=\"$FORGEYARD_BAZELRC\" --batch --output_user_root=\"$HOME/root\" build --color=no --curses=no //:r1 //:r2 //:r3\n\
             test -s bazel-bin/o3\n";
        let said = with_relay(address, folder.path(), script);
        let _ = Command::new("chmod").args(["-R", "u+w"]).arg(folder.path()).output();
        check(sick, heard.load(Ordering::Relaxed), &said);
    }
}

/// Nix alone asks a dead cache five times, for five seconds.
#[test]
fn nix_builds_with_a_sick_cache() {
    if find("nix").is_none() {
        return;
    }
    for sick in ALL {
        let folder = tempfile::tempdir().unwrap();
        let (address, heard) = cache(sick);
        // The one builder that needs nothing of a store.
        let script = "echo content > file; hash=$(sha256sum file | cut -d ' ' -f 1)\n\
             NIX_CONFIG=\"$NIX_CONFIG\n experimental-features = nix-command\nbuild-users-group =\nsandbox = false\nsubstituters =\"\n\
             export NIX_CONFIG=$(echo \"$NIX_CONFIG\" | sed 's/^ //; s/^extra-substituters/trusted-substituters/')\n\
             nix --store \"$HOME/root\" build --option substituters \"${FORGEYARD_CACHE_URL}-/nix\" --no-link --json --impure --expr \
             \"derivation { name = \\\"x\\\"; system = \\\"builtin\\\"; builder = \\\"builtin:fetchurl\\\"; url = \\\"file://$PWD/file\\\"; \
             outputHash = \\\"$hash\\\"; outputHashAlgo = \\\"sha256\\\"; outputHashMode = \\\"flat\\\"; }\"\n";
        let said = with_relay(address, folder.path(), script);
        check(sick, heard.load(Ordering::Relaxed), &said);
    }
}

/// After the first silence nobody waits for the cache again.
fn check(sick: Sick, heard: usize, said: &str) {
    let most = match sick {
        Sick::Dead => 0,
        // Two builds at once may each have one under way.
        Sick::Hung => 4,
        Sick::Fails => 8,
        Sick::Dies => LAST + 4,
        Sick::Tears => usize::MAX,
    };
    assert!(heard <= most, "{sick:?}: {heard} requests went to a cache that does not answer\n{said}");
    println!("{sick:?}: {heard} requests to the cache; {}", said.lines().last().unwrap_or_default());
}
