//! A farm that cannot start says what, where and what to do.

use crate::rig::{Farm, alone};

#[test]
fn unknown_key_of_the_configuration_names_the_nearest_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("forgeyard.toml");
    fs_err::write(&config, "farm = \"x\"\nmax-runing = 3\n").unwrap();
    let data = folder.path().join("data").display().to_string();
    let said = alone(&["serve", "--config", &config.display().to_string(), "--data", &data]).ends(2);
    said.names(&["forgeyard.toml, line 2", "max-runing", "max-running"]);
    assert!(!folder.path().join("data").exists(), "nothing was begun");
}

#[test]
fn configuration_that_is_not_there_is_named() {
    alone(&["serve", "--config", "/nowhere/forgeyard.toml"]).ends(2).names(&["/nowhere/forgeyard.toml"]);
}

#[test]
fn port_that_is_taken_is_named_with_what_to_do() {
    let farm = Farm::start();
    let address = farm.url.strip_prefix("http://").unwrap();
    let config = farm.folder.path().join("second.toml");
    fs_err::write(&config, format!("listen = \"{address}\"\n")).unwrap();
    let data = farm.folder.path().join("second").display().to_string();
    let said = alone(&["serve", "--config", &config.display().to_string(), "--data", &data]).ends(2);
    said.names(&[address, "in use", "fix:", "`listen`"]);
}

#[test]
fn folder_that_cannot_be_made_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs_err::write(&file, "").unwrap();
    let data = file.join("data").display().to_string();
    alone(&["serve", "--data", &data]).ends(2).names(&[&data, "fix: choose another"]);
}

#[test]
fn folder_that_cannot_be_written_is_named() {
    // Root may write anywhere but here.
    alone(&["serve", "--data", "/proc/self"]).ends(2).names(&["/proc/self", "fix: choose another"]);
}

#[test]
fn address_that_the_world_reaches_without_tls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("forgeyard.toml");
    fs_err::write(&config, "listen = \"0.0.0.0:0\"\n").unwrap();
    let data = folder.path().join("data").display().to_string();
    let said = alone(&["serve", "--config", &config.display().to_string(), "--data", &data]).ends(2);
    said.names(&["without TLS", "fix:"]);
}

#[test]
fn second_farm_on_the_same_folder_is_refused() {
    let farm = Farm::start();
    let config = farm.folder.path().join("forgeyard.toml").display().to_string();
    let data = farm.folder.path().join("data").display().to_string();
    let said = alone(&["serve", "--config", &config, "--data", &data]);
    assert_ne!(said.code, 0);
    said.names(&["the database"]);
}
