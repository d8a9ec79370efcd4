//! Questions to a farm: JSON that parses, tables that fit, exit codes that say what happened.

use crate::rig::{Farm, alone, program, recipe};
use std::time::Duration;

const READS: &[&[&str]] = &[
    &["status"],
    &["job", "list"],
    &["runner", "list"],
    &["runner", "list", "--all"],
    &["device", "list"],
    &["lease", "list"],
    &["lease", "list", "--all"],
    &["site", "list"],
    &["pool", "list"],
    &["image", "list"],
    &["artifact", "list"],
    &["channel", "list"],
    &["env", "list"],
    &["usage"],
    &["usage", "--days", "7"],
    &["audit"],
    &["token", "list"],
    &["public-key"],
];

#[test]
fn every_read_answers_json_and_a_table_that_fits() {
    let farm = Farm::start();
    let pipeline = farm.hand_in();
    for read in READS {
        let json = farm.json(read);
        assert!(json.is_array() || json.is_object(), "{read:?}: {json}");
        let table = farm.ask(read).ends(0).out;
        assert!(!table.trim().is_empty(), "{read:?}");
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{read:?} is too wide:\n{table}");
    }
    let jobs = farm.json(&["job", "list", "--pipeline", &pipeline]);
    let job = jobs[0]["id"].as_str().unwrap();
    assert_eq!(farm.json(&["job", "show", job])["job"]["id"], *job);
    assert_eq!(farm.json(&["audit", "--subject", job])[0]["subject"], *job);
    let artifact = farm.json(&["artifact", "list"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(farm.json(&["artifact", "show", &artifact])["id"], *artifact);
    let table = farm.ask(&["job", "list"]).ends(0).out;
    assert!(table.contains(job), "ids are never cut:\n{table}");
}

#[test]
fn a_job_says_why_it_waits_and_how_to_help_it() {
    let farm = Farm::start();
    farm.hand_in();
    let job = farm.json(&["job", "list"])[0]["id"].as_str().unwrap().to_owned();
    for command in [&["why", &job][..], &["job", "why", &job]] {
        let said = farm.ask(command).ends(0);
        assert!(
            said.out.contains("queue.no_site") && said.out.contains("forgeyard site run"),
            "{}",
            said.out
        );
    }
    assert_eq!(farm.json(&["why", &job])["reason"]["code"], "queue.no_site");
}

#[test]
fn a_run_shows_its_states_and_ends_with_the_reason() {
    let farm = Farm::start();
    let folder = recipe(farm.folder.path()).display().to_string();
    let run = farm
        .call(&["run", &folder])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let run = run.unwrap();
    let job = loop {
        let jobs = farm.json(&["job", "list"]);
        if let Some(job) = jobs[0]["id"].as_str() {
            break job.to_owned();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // Its log has nothing to say yet, and says what it waits for.
    let log =
        farm.call(&["job", "log", "--follow", &job]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    farm.ask(&["job", "cancel", &job]).ends(0);
    let said = crate::rig::Said::from(run.wait_with_output().unwrap()).ends(1);
    let said =
        said.names(&["plan", "queued: no site has joined", "canceled", &format!("{job} (plan): canceled")]);
    assert!(said.out.contains("source.tar"), "{}", said.out);
    let log = crate::rig::Said::from(log.wait_with_output().unwrap()).ends(0);
    log.names(&["plan is queued", "canceled"]);
    // What is over cannot be stopped, and a plan is no test.
    farm.ask(&["job", "rerun", "--test-only", &job]).ends(3).names(&["only a test", "fix:"]);
}

#[test]
fn no_token_is_a_wrong_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(&["status"]).current_dir(folder.path()).output().unwrap();
    let said = crate::rig::Said::from(output).ends(2);
    said.names(&["no token", "forgeyard-data/admin.token", "FORGEYARD_TOKEN", "--token-file"]);
}

#[test]
fn no_answer_ends_with_4() {
    // Port 1 is taken by nobody.
    let output = program(&["status", "--farm", "http://127.0.0.1:1"]).env("FORGEYARD_TOKEN", "x").output();
    let said = crate::rig::Said::from(output.unwrap()).ends(4);
    said.names(&["http://127.0.0.1:1", "no answer", "--farm"]);
}

#[test]
fn what_the_farm_refuses_ends_with_3() {
    let farm = Farm::start();
    farm.hand_in();
    let job = farm.json(&["job", "list"])[0]["id"].as_str().unwrap().to_owned();
    let unknown = "job_00000000000000000000000000";
    farm.ask(&["job", "show", unknown]).ends(3).names(&["there is no job", unknown, "at: GET"]);
    let strange = farm.call(&["status"]).env("FORGEYARD_TOKEN", "fy_wrong").output().unwrap();
    crate::rig::Said::from(strange).ends(3).names(&["auth.unknown_token", "fix:"]);

    let viewer =
        farm.ask(&["token", "new", "--name", "reader", "--role", "viewer", "--expires-in", "1h"]).ends(0);
    let viewer = viewer.out.trim();
    let as_viewer = |arguments: &[&str]| {
        crate::rig::Said::from(farm.call(arguments).env("FORGEYARD_TOKEN", viewer).output().unwrap())
    };
    as_viewer(&["job", "list"]).ends(0);
    as_viewer(&["job", "cancel", &job]).ends(3).names(&["auth.role", "maintainer", "reader"]);
    as_viewer(&["token", "list"]).ends(3).names(&["admin"]);
    let listed = farm.ask(&["token", "list"]).ends(0).out;
    assert!(listed.contains("reader") && listed.contains("good until"), "{listed}");
    assert!(!listed.contains(viewer), "the token itself is never shown again");
    farm.ask(&["token", "revoke", "reader"]).ends(0);
    as_viewer(&["job", "list"]).ends(3).names(&["revoked"]);
    farm.ask(&["token", "revoke", "reader"]).ends(2).names(&["no token that is good", "token list"]);
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let farm = Farm::start();
    farm.ask(&["job", "show", "rnr_00000000000000000000000000"]).ends(2).names(&["job_"]);
    farm.ask(&["site", "drain", "nowhere"]).ends(2).names(&["no site `nowhere`", "site list"]);
    farm.ask(&["channel", "show", "nothing"]).ends(2).names(&["nothing", "channel list"]);
    farm.ask(&["env", "show", "nothing"]).ends(2).names(&["nothing", "env list"]);
    farm.ask(&["token", "new", "--name", "x", "--role", "king"])
        .ends(2)
        .names(&["king", "viewer, maintainer"]);
    farm.ask(&["run", "/nowhere"]).ends(2).names(&["/nowhere is not a folder"]);
    let empty = tempfile::tempdir().unwrap();
    farm.ask(&["run", &empty.path().display().to_string()]).ends(2).names(&["has no recipe", "fix:"]);
    alone(&["status", "--farm", "farm.example"]).ends(2);
}

#[test]
fn a_download_is_kept_only_when_its_digest_is_right() {
    let farm = Farm::start();
    farm.hand_in();
    let artifact = farm.json(&["artifact", "list"])[0].clone();
    let id = artifact["id"].as_str().unwrap();
    let to = farm.folder.path().join("source.tar");
    farm.ask(&["artifact", "get", id, "--statements", "--output", &to.display().to_string()]).ends(0);
    let found = forgeyard_model::Digest::of(&fs_err::read(&to).unwrap());
    assert_eq!(artifact["digest"], found.to_string());
    let beside = fs_err::read_to_string(farm.folder.path().join("source.tar.statements.json")).unwrap();
    assert_eq!(beside.trim(), "[]", "nothing was promoted");
    farm.ask(&["artifact", "verify", id]).ends(1);
    // The bytes change where the farm keeps them: it notices, or we do.
    let hex = found.hex();
    let blob = find(&farm.folder.path().join("data/blobs"), &hex).expect("the blob");
    let mut bytes = fs_err::read(&blob).unwrap();
    bytes[100] ^= 1;
    let mut rights = fs_err::metadata(&blob).unwrap().permissions();
    #[expect(
        clippy::permissions_set_readonly_false,
        reason = "it lies in a folder that only this test knows"
    )]
    rights.set_readonly(false);
    fs_err::set_permissions(&blob, rights).unwrap();
    fs_err::write(&blob, bytes).unwrap();
    let again = farm.folder.path().join("again.tar");
    let said = farm.ask(&["artifact", "get", id, "--output", &again.display().to_string()]);
    assert_ne!(said.code, 0, "{}", said.out);
    assert!(!again.exists(), "nothing is kept: {}", said.err);
}

fn find(folder: &std::path::Path, hex: &str) -> Option<std::path::PathBuf> {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = if path.is_dir() {
            find(&path, hex)
        } else {
            path.to_string_lossy().replace('/', "").contains(hex).then_some(path)
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

#[test]
fn a_reader_that_goes_away_is_no_trouble() {
    let farm = Farm::start();
    farm.hand_in();
    let mut child = farm
        .call(&["audit", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let said = crate::rig::Said::from(child.wait_with_output().unwrap()).ends(0);
    assert_eq!(said.err, "");
}
