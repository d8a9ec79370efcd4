//! The real Turborepo: before a cache that is well, and before one that is sick on purpose.

use crate::place::{Place, relay, text};
use crate::programs::find;
use crate::sick::{Sick, cache};
use std::path::Path;

/// A tree of one package, whose task makes something new each time.
fn tree(folder: &Path) {
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    };
    write(
        "package.json",
        r#"{"name":"tree","private":true,"packageManager":"npm@10.0.0","workspaces":["packages/*"]}"#,
    );
    write(
        "package-lock.json",
        r#"{"name":"tree","lockfileVersion":3,"requires":true,"packages":{"":{"name":"tree","workspaces":["packages/*"]},"node_modules/@t/a":{"resolved":"packages/a","link":true},"packages/a":{"name":"@t/a","version":"1.0.0"}}}"#,
    );
    write("turbo.json", r#"{"tasks":{"build":{"outputs":["dist/**"]}}}"#);
    write(
        "packages/a/package.json",
        r#"{"name":"@t/a","version":"1.0.0","scripts":{"build":"mkdir -p dist && cat /proc/sys/kernel/random/uuid > dist/out.txt"}}"#,
    );
}

/// Builds a new tree with the relay, by the line of the docs. What was made, and what was said.
fn build(turbo: &Path, cache: &str, token: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let script = format!(
        "TURBO_API=\"${{FORGEYARD_CACHE_URL}}-/turbo\" TURBO_TOKEN=\"$FORGEYARD_CACHE_TOKEN\" TURBO_TEAM=any \
         '{}' run build --cache=remote:rw --no-daemon",
        turbo.display()
    );
    let mut command = relay(cache, token);
    command.args(["--", "bash", "-ec", &script]).current_dir(folder.path()).env("HOME", folder.path());
    command.env("TURBO_TELEMETRY_DISABLED", "1").env("DO_NOT_TRACK", "1");
    let output = command.output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    (fs_err::read_to_string(folder.path().join("packages/a/dist/out.txt")).unwrap(), said)
}

#[test]
fn turborepo_finds_the_cache_by_the_relay_of_a_job() {
    let Some(turbo) = find("turbo") else { return };
    let place = Place::new("127.0.0.1:0", "");
    let cache = place.start();
    let (main, fork) = (place.token("p/main"), place.token("p/pr/7"));
    let (cold, said) = build(&turbo, &cache.plain, &main);
    assert!(said.contains("0 cached, 1 total"), "{said}");
    for token in [main, fork] {
        let (warm, said) = build(&turbo, &cache.plain, &token);
        assert_eq!(warm, cold, "{token}: {said}");
        assert!(said.contains("1 of 1 reads hit"), "{token}: {said}");
    }
}

/// The relay answers as an empty cache does, and says nothing of the trouble to the client.
#[test]
fn turborepo_builds_with_a_sick_cache_by_the_relay() {
    let Some(turbo) = find("turbo") else { return };
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token").display().to_string();
    fs_err::write(&token, "any").unwrap();
    for sick in [Sick::Dead, Sick::Hung, Sick::Fails, Sick::Dies] {
        let (_, said) = build(&turbo, &cache(sick).0, &token);
        assert!(
            said.contains("0 cached, 1 total") && !said.contains("temporarily unavailable"),
            "{sick:?}: {said}"
        );
    }
}
