//! The tour, as a person runs it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails")]

mod chain;

use chain::{Place, engine, possible, rows::Rows, traces};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[test]
fn the_tour_holds_and_a_foreign_client_installs_from_its_channel_and_nothing_is_left() {
    if !possible() {
        return;
    }
    let place = Place::new();
    let mut life = place.tour(&["--keep"]);
    while !place.said().contains("The farm stays up") {
        assert!(life.over().is_none(), "the tour ended:\n{}", place.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = place.said();
    println!("{said}");
    assert!(said.contains("stage ") && said.contains("push: test/fy-bandwidth/gpu"), "the table is missing");
    assert!(!said.contains("BROKEN"), "a claim is broken");
    let digests: Vec<&str> = said
        .lines()
        .skip_while(|line| !line.starts_with("Package  fy-bandwidth-0.1.0"))
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .collect();
    assert!(digests.len() >= 6, "too few stages: {digests:?}");
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");

    let channel = said.lines().find_map(|line| line.strip_prefix("Channel  ")).unwrap();
    let installed = foreign_client(&place, channel, "fy-bandwidth");
    let (_, digest) = installed.iter().find(|(file, _)| file.starts_with("fy-bandwidth-0.1.0")).unwrap();
    assert_eq!(digest, digests[0], "a foreign client installed other bytes");
    assert_eq!(installed.len(), 2, "the program and the kernels that it needs: {installed:?}");

    let ended = life.stop(&place);
    assert!(ended.success(), "{ended}");
    let rows = Rows::read(&place.data);
    assert_eq!(rows.broken(), Vec::<String>::new());
    assert!(rows.attempts.iter().all(|attempt| attempt.fence == 1), "undisturbed, nothing is tried twice");
    assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new());
}

/// Installs a package by py-rattler and answers file names and digests as it wrote them down.
fn foreign_client(place: &Place, channel: &str, package: &str) -> BTreeMap<String, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign_client.py");
    let folder = |name: &str| place.data.with_file_name(name);
    let output = Command::new(engine().join("bin/python"))
        .args([script, channel])
        .args([folder("prefix"), folder("cache")])
        .arg(package)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_tour_that_is_stopped_politely_leaves_no_machine_in_a_temporary_folder() {
    if !possible() {
        return;
    }
    let place = Place::new();
    let life = place.start(&["tour"]);
    // The temporary folder is named in the first line.
    let data = loop {
        let said = place.said();
        let rest = said.split_once("token in ").and_then(|(_, rest)| rest.split_once("/admin.token"));
        if let Some((data, _)) = rest {
            break PathBuf::from(data);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    while chain::attempts_at_work(&data).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let machines = chain::machines(&data).into_iter().collect();
    let ended = life.stop(&place);
    assert_eq!(ended.code(), Some(1), "{}", place.said());
    assert!(place.said().contains("stopped by a signal"), "{}", place.said());
    assert_eq!(traces::of(&data, &machines), Vec::<String>::new(), "{}", place.said());
    assert_eq!(Rows::read(&data).broken(), Vec::<String>::new());
    std::fs::remove_dir_all(&data).unwrap();
}

#[test]
fn two_tours_at_once_do_not_disturb_each_other() {
    if !possible() {
        return;
    }
    let places = [Place::new(), Place::new()];
    let lives = places.each_ref().map(|place| place.tour(&[]));
    for (place, life) in places.iter().zip(lives) {
        let ended = life.end(place);
        assert!(ended.success(), "{ended}\n{}", place.said());
    }
    for place in &places {
        let rows = Rows::read(&place.data);
        assert_eq!(rows.broken(), Vec::<String>::new());
        assert!(rows.attempts.iter().all(|attempt| attempt.fence == 1), "an attempt was tried twice");
        assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new());
    }
}

#[test]
fn a_second_tour_in_a_used_folder_is_refused_and_told_how_to_go_on() {
    let place = Place::new();
    std::fs::create_dir_all(&place.data).unwrap();
    std::fs::write(place.data.join("farm.db"), "").unwrap();
    let data = place.data.display().to_string();
    let ended = place.start(&["tour", "--data", &data]).end(&place);
    assert_eq!(ended.code(), Some(1));
    assert!(place.said().contains("--resume"), "{}", place.said());
}
