//! Real clients and a cache in trouble, by way of the relay: each build stays green, and none waits for each of its files.
//!
//! The cache is a thread of the test that is sick on purpose; sccache, ccache, Bazel and Nix are the real programs.

use crate::place::program;
use crate::programs::find;
use crate::sick::{ALL, LAST, Sick, cache};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

/// Runs a script with the relay, and answers what was said.
fn with_relay(cache: &str, folder: &Path, script: &str) -> String {
    let mut command = program();
    command.args(["cache", "relay", "--cache", cache, "--", "bash", "-ec", script]);
    command.current_dir(folder).env("HOME", folder).env("FORGEYARD_CACHE_TOKEN", "any");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
    said
}

/// Most requests of a client at once: Bazel's.
const AT_ONCE: usize = 20;
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
        let (url, heard) = cache(sick);
        let said = with_relay(
            &url,
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
        let (url, heard) = cache(sick);
        let said = with_relay(&url, folder.path(), &compile(&ccache.display().to_string(), ""));
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
        let (url, heard) = cache(sick);
        let script = "mkdir w && cd w && touch WORKSPACE && echo some > in.txt\n\
             for n in 1 2 3; do echo \"genrule(name = \\\"r$n\\\", srcs = [\\\"in.txt\\\"], outs = [\\\"o$n\\\"], cmd = \\\"cat \\$< > \\$@\\\")\"; done > BUILD\n\
             bazel --bazelrc=\"$FORGEYARD_BAZELRC\" --batch --output_user_root=\"$HOME/root\" build --color=no --curses=no //:r1 //:r2 //:r3\n\
             test -s bazel-bin/o3\n";
        let said = with_relay(&url, folder.path(), script);
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
        let (url, heard) = cache(sick);
        // The one builder that needs nothing of a store.
        let script = "echo content > file; hash=$(sha256sum file | cut -d ' ' -f 1)\n\
             NIX_CONFIG=\"$NIX_CONFIG\n experimental-features = nix-command\nbuild-users-group =\nsandbox = false\nsubstituters =\"\n\
             export NIX_CONFIG=$(echo \"$NIX_CONFIG\" | sed 's/^ //; s/^extra-substituters/trusted-substituters/')\n\
             nix --store \"$HOME/root\" build --option substituters \"${FORGEYARD_CACHE_URL}-/nix\" --no-link --json --impure --expr \
             \"derivation { name = \\\"x\\\"; system = \\\"builtin\\\"; builder = \\\"builtin:fetchurl\\\"; url = \\\"file://\\${builtins.path { path = $PWD/file; }}\\\"; \
             outputHash = \\\"$hash\\\"; outputHashAlgo = \\\"sha256\\\"; outputHashMode = \\\"flat\\\"; }\"\n";
        let said = with_relay(&url, folder.path(), script);
        check(sick, heard.load(Ordering::Relaxed), &said);
    }
}

/// nix#15023: Nix sends no body when it tries an upload again, and then waits for five minutes, four times. `nix copy` fails, since
/// somebody counts on it, and is told so in a way that it does not try again.
#[test]
fn nix_15023_nix_copy_to_a_sick_cache_fails_and_does_not_try_again() {
    for nix in ["nix", "nix-2.26"] {
        let Some(nix) = find(nix) else { continue };
        for sick in ALL {
            let folder = tempfile::tempdir().unwrap();
            let (url, _) = cache(sick);
            let script = format!(
                "nix() {{ timeout 100 {} --extra-experimental-features nix-command --store \"$HOME/root\" \"$@\"; }}\n\
                 echo content > file\npath=$(nix store add-path file)\n\
                 if nix copy --to \"${{FORGEYARD_CACHE_URL}}-/nix\" $path 2> said; then exit 3; fi\n\
                 cat said >&2; [ $(grep -c 'unable to upload' said) -le 1 ]\n",
                nix.display()
            );
            with_relay(&url, folder.path(), &script);
            let _ = Command::new("chmod").args(["-R", "u+w"]).arg(folder.path()).output();
        }
    }
}

/// After the first silence nobody waits for the cache again.
fn check(sick: Sick, heard: usize, said: &str) {
    let most = match sick {
        Sick::Dead => 0,
        // Those that were under way: a client asks for several things at once.
        Sick::Hung => AT_ONCE,
        Sick::Fails => 3 + AT_ONCE,
        Sick::Dies => LAST + AT_ONCE,
        Sick::Tears => usize::MAX,
    };
    assert!(heard <= most, "{sick:?}: {heard} requests went to a cache that does not answer\n{said}");
    println!("{sick:?}: {heard} requests to the cache; {}", said.lines().last().unwrap_or_default());
}
