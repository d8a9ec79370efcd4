//! A control plane that ends in the middle of a pipeline, and one that begins where it ended. SQLite and blobs are real;
//! site and agents are *simulated*.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_api::error::ErrorKind;
use forgeyard_control::keys::Keys;
use forgeyard_control::serve;
use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::Timestamp;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::JournalEntry;
use forgeyard_model::pipeline::PipelineState;
use plane::repository::Repository;
use plane::site::Site;
use plane::{Setup, chain, refused};

/// Decides a journal again, from nothing.
fn replay(config: &FarmConfig, journal: Vec<JournalEntry>) -> Farm {
    let mut farm = Farm::default();
    for entry in journal {
        let mut entropy = [0; 16];
        let bytes = u128::from_str_radix(&entry.entropy, 16).unwrap().to_be_bytes();
        entropy.copy_from_slice(&bytes);
        assert_eq!(entry.config, config.digest());
        let ctx = Ctx {
            seq: entry.seq,
            now: entry.at,
            entropy,
            by: entry.by.clone(),
            config,
            config_digest: entry.config,
        };
        let decided = decide(&mut farm, &ctx, entry.input.clone()).unwrap();
        // The same decision writes the same entry again.
        assert_eq!(decided.commit.unwrap().journal, entry);
    }
    farm
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_goes_on_after_a_restart_and_its_past_can_be_replayed() {
    let repository = Repository::new();
    let mut setup = Setup::new().with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let pipeline = plane.begin("push", &repository.pushed(&repository.head())).await;
    let plan = chain::next_job(&plane, &mut site, &[]).await;
    chain::succeed(&plan).await;
    let build = chain::next_job(&plane, &mut site, &[&plan]).await;
    assert_eq!(build.log(0, "before\n").await.unwrap(), 7);
    let (old, old_report) = site.follow().await.unwrap();
    plane.stop().await;

    let plane = setup.start().await;
    // A report from before is refused, so that nobody acts on what is no longer known to be wanted.
    let error = refused(site.report(&old_report).await);
    assert_eq!((error.kind, error.code.as_str()), (ErrorKind::Superseded, "site.old_epoch"));
    let new = site.turn().await;
    assert!(new.epoch > old.epoch);
    let wanted = |set: &forgeyard_api::site::DesiredSet| {
        set.runners.iter().map(|machine| (machine.runner, machine.token.clone())).collect::<Vec<_>>()
    };
    assert_eq!(wanted(&new), wanted(&old), "a busy machine is adopted, not replaced");
    // The build goes on with the session that it had, its log too.
    build.client.heartbeat(&build.session, Some("build")).await.unwrap();
    assert_eq!(build.log(0, "before\nafter\n").await.unwrap(), 13);
    chain::succeed(&build).await;
    let test = chain::next_job(&plane, &mut site, &[&build]).await;
    chain::succeed(&test).await;
    let view = chain::ended(&plane, &mut site, pipeline).await;
    assert_eq!(view.pipeline.state, PipelineState::Succeeded);
    assert!(view.jobs.iter().all(|job| job.fence == 1), "nothing was tried twice");
    site.turn().await;
    plane.stop().await;

    let store = setup.open_store().await;
    let stored = store.load(forgeyard_db::Keep::since(Timestamp::from_micros(0))).await.unwrap();
    let journal = store.journal(1, 100_000).await.unwrap();
    assert_eq!(journal.len() as u64, stored.last_seq);
    let replayed = replay(&setup.config, journal);
    let mut loaded = Farm::load(stored.rows);
    (loaded.epoch, loaded.resumed_at) = (replayed.epoch, replayed.resumed_at);
    assert_eq!(replayed.epoch, new.epoch);
    assert!(loaded == replayed, "what is stored is what the journal says");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_stops_although_a_live_view_is_open() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let view = plane.get("/api/v1/live").send().await.unwrap();
    assert_eq!(view.status(), 200);
    plane.stop().await;
    drop(view);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_control_plane_in_the_same_folder_is_told_who_has_it() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let Err(error) = forgeyard_db::open("sqlite:", &setup.data()).await else {
        panic!("two processes have one folder");
    };
    let text = error.to_string();
    assert!(text.contains("in use by another process") && text.contains("data"), "{text}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_that_is_taken_is_named_with_what_to_do() {
    let mut setup = Setup::new();
    let plane = setup.start().await;
    let Err(error) = serve::bind(setup.address).await else { panic!("two listen on one address") };
    let text = error.to_string();
    assert!(text.contains(&setup.address.to_string()), "{text}");
    assert!(text.contains("in use") && text.contains("choose another address"), "{text}");
    plane.stop().await;
}

#[test]
fn data_folder_that_cannot_be_used_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    // A file where the folder should be: no user may write there, root included.
    let file = folder.path().join("data");
    std::fs::write(&file, "").unwrap();
    let Err(error) = Keys::open(&file) else { panic!("keys in a file that is no folder") };
    let text = error.to_string();
    assert!(text.contains(file.to_str().unwrap()), "{text}");
    assert!(text.contains("belongs to the user that runs the farm"), "{text}");
}

#[test]
fn damaged_key_is_named_and_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    Keys::open(folder.path()).unwrap();
    let path = folder.path().join("farm.key");
    std::fs::write(&path, "damaged").unwrap();
    let Err(error) = Keys::open(folder.path()) else { panic!("a damaged key was taken") };
    assert!(error.to_string().contains("farm.key"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "damaged");
}

#[test]
fn key_files_can_be_read_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    Keys::open(folder.path()).unwrap().admin_token().unwrap();
    for name in ["farm.key", "token.key", "join.token", "admin.token"] {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
