//! Rules that change while the program runs: by command, by signal, and by themselves.

use crate::rig::Farm;
use std::process::Command;
use std::time::{Duration, Instant};

const HEAD: &str = "farm = \"cli\"\nlisten = \"127.0.0.1:0\"\n";

fn newest(farm: &Farm) -> serde_json::Value {
    farm.json(&["config", "history"])[0].clone()
}

/// Waits until this version counts.
fn until(farm: &Farm, version: u64) -> serde_json::Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let found = newest(farm);
        if found["number"] == version {
            return found;
        }
        assert!(Instant::now() < end, "version {version} never counts: {found}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn changed_rules_count_without_a_restart_and_a_mistake_changes_nothing() {
    let farm = Farm::start();
    let rules = farm.folder.path().join("access.toml");
    fs_err::write(&rules, "terms-version = 1\n").unwrap();
    let head = format!("{HEAD}access = \"{}\"\n", rules.display());
    fs_err::write(farm.config(), format!("{head}max-running = 3\n")).unwrap();
    // The command and the farm itself may be first; the version is one.
    let said = farm.ask(&["config", "reload"]).ends(0);
    assert!(said.out.contains("version 2"), "{}", said.out);
    let found = until(&farm, 2);
    assert!(found["changes"].as_array().unwrap().iter().any(|line| line == "max-running: 16 → 3"), "{found}");
    // A mistake names file, line and what was probably meant, and nothing of the file counts.
    fs_err::write(farm.config(), format!("{head}max-running = 5\nmax-runing = 4\n")).unwrap();
    farm.ask(&["config", "reload"]).ends(3).names(&[
        "line 5",
        "max-runing",
        "max-running",
        "stays as it was",
    ]);
    assert!(farm.ask(&["config", "status"]).ends(1).out.contains("max-runing"));
    assert_eq!(farm.json(&["config", "history"])[0]["number"], 2);
    // A mistake in the access file is one as well, and is found by the farm itself.
    fs_err::write(farm.config(), format!("{head}max-running = 3\nartifact-limit-mib = 7\n")).unwrap();
    let status = |part: &str| {
        let end = Instant::now() + Duration::from_secs(60);
        while !farm.ask(&["config", "status"]).out.contains(part) {
            assert!(Instant::now() < end, "it never says {part}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    status("from the next start of the farm: artifact-limit-mib");
    fs_err::write(&rules, "terms-version = \"two\"\n").unwrap();
    status("access.toml, line 1");
    // Put right, it counts by itself.
    fs_err::write(&rules, "terms-version = 2\n").unwrap();
    let found = until(&farm, 3);
    assert!(found["by"].as_str().unwrap().contains("access.toml"), "{found}");
    assert_eq!(found["changes"][0], "access.terms-version: 1 → 2");
}

#[test]
fn signal_reads_the_rules_again_and_does_not_end_the_farm() {
    let farm = Farm::start();
    fs_err::write(farm.config(), format!("{HEAD}max-running = 4\n")).unwrap();
    let sent = Command::new("kill").args(["-HUP", &farm.pid().to_string()]).status().unwrap();
    assert!(sent.success());
    let found = until(&farm, 2);
    assert_eq!(found["changes"][0], "max-running: 16 → 4");
}
