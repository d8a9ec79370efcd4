//! SQLite in a data folder: one process, and clear words when something is wrong.

use forgeyard_db::{Error, open};
use tempfile::TempDir;

#[tokio::test]
async fn second_opener_of_a_data_folder_is_refused_and_told_why() {
    let folder = TempDir::new().unwrap();
    let first = open("sqlite:", folder.path()).await.unwrap();
    let error = open("sqlite:", folder.path()).await.err().unwrap();
    assert!(matches!(error, Error::Locked { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(&folder.path().display().to_string()) && text.contains("stop that process"),
        "{text}"
    );
    drop(first);
    open("sqlite:", folder.path()).await.unwrap();
}

#[tokio::test]
async fn restarted_process_need_not_wait_for_the_lease_of_the_dead_one() {
    let folder = TempDir::new().unwrap();
    let first = open("sqlite:", folder.path()).await.unwrap();
    let hour = std::time::Duration::from_secs(3600);
    assert_eq!(first.take_epoch("first", hour).await.unwrap(), 1);
    drop(first);
    let second = open("sqlite:", folder.path()).await.unwrap();
    assert_eq!(second.take_epoch("second", hour).await.unwrap(), 2);
}

#[tokio::test]
async fn file_that_is_no_database_is_called_unreadable() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("farm.db"), [b'x'; 8192]).unwrap();
    let error = open("sqlite:", folder.path()).await.err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

#[tokio::test]
async fn other_kinds_of_database_are_refused_without_showing_the_url() {
    let error = open("mysql://root:hunter2@db/farm", "/nowhere".as_ref()).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains("`mysql`") && !text.contains("hunter2"), "{text}");
}
