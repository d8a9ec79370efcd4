//! The real Gradle: before a cache that is well, and before one that is not there.

use crate::place::{Place, relay, text};
use crate::programs::find;
use crate::sick::{Sick, cache};

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

/// Builds a new tree with the relay, and says what was said.
fn build(cache: &str, token: &str) -> String {
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
    let mut command = relay(cache, token);
    command.args(["--", "gradle", "--console=plain", "classes"]).current_dir(folder.path());
    command.env("HOME", folder.path()).env("GRADLE_USER_HOME", folder.path().join("home"));
    command.env("JAVA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx512m").env_remove("GRADLE_OPTS");
    let output = command.output().unwrap();
    let said = text(&output);
    assert!(
        output.status.success() && folder.path().join("build/classes/java/main/t/Part.class").is_file(),
        "{said}"
    );
    said
}

/// With a cache that is not there the relay answers as an empty one does, so Gradle says nothing of it.
#[test]
fn gradle_finds_the_cache_by_the_relay_of_a_job() {
    if find("javac").is_none() || find("gradle").is_none() {
        return;
    }
    let place = Place::new("127.0.0.1:0", "");
    let running = place.start();
    let token = place.token("p/main");
    let cold = build(&running.plain, &token);
    assert!(cold.contains("0 of 1 reads hit, 1 entries stored, 0 refused"), "{cold}");
    let warm = build(&running.plain, &token);
    assert!(warm.contains(":compileJava FROM-CACHE") && warm.contains("1 of 1 reads hit"), "{warm}");
    let alone = build(&cache(Sick::Dead).0, &token);
    assert!(!alone.contains("Could not") && !alone.contains("was disabled"), "{alone}");
}
