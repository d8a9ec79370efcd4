//! The Forgejo client against the *simulated* Forgejo. Nothing here speaks to a Forgejo or Gitea.

#![allow(clippy::unwrap_used, reason = "tests")]

use forgeyard_forges::forgejo::{Forgejo, ForgejoError, OneJob};
use forgeyard_forges::github::{HttpOptions, RepositoryPath};
use forgeyard_forges::twin::{ForgejoState, ForgejoTwin, NoJob};
use forgeyard_model::Secret;
use forgeyard_model::forge::Person;

async fn world() -> (ForgejoTwin, Forgejo, RepositoryPath) {
    let twin = ForgejoTwin::start(ForgejoState::new("lab/solver", 1)).await.unwrap();
    let client = Forgejo::new(twin.base(), twin.token(), &HttpOptions::default()).unwrap();
    (twin, client, RepositoryPath::parse("lab/solver").unwrap())
}

fn ada() -> Person {
    Person { id: 2, login: "ada".to_owned() }
}

fn gpu() -> Vec<String> {
    vec!["gpu".to_owned(), "linux".to_owned()]
}

#[tokio::test]
async fn a_runner_that_is_handed_a_handle_takes_that_job_and_is_gone_with_it() {
    let (twin, client, path) = world().await;
    assert_eq!(client.jobs(&path, &gpu()).await.unwrap(), []);
    let (first, second) =
        twin.with(|state| (state.start(&ada(), &["gpu"], None), state.start(&ada(), &["gpu"], None)));
    let jobs = client.jobs(&path, &gpu()).await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [first, second]);
    let wanted = jobs.iter().find(|job| job.id == second).unwrap().clone();
    let registered = client.register(&path, "fy-1").await.unwrap();
    assert_eq!(client.runner(&path, registered.id).await.unwrap().unwrap().name, "fy-1");
    let word = OneJob {
        url: client.web().to_owned(),
        uuid: registered.uuid.clone(),
        token: registered.token.clone(),
        labels: gpu(),
        handle: wanted.handle.clone(),
    };
    let word = OneJob::decode(word.encode().unwrap().expose()).unwrap();
    let take = |state: &mut ForgejoState| {
        state.one_job(&word.uuid, word.token.expose(), &word.labels, word.handle.as_deref())
    };
    // The one that is older waits on: nobody is robbed.
    assert_eq!(twin.with(take), Ok(second));
    assert_eq!(twin.with(take), Err(NoJob::Unknown), "one registration, one job");
    assert!(client.runner(&path, registered.id).await.unwrap().unwrap().busy());
    twin.with(|state| state.end(second, "success"));
    assert_eq!(client.runner(&path, registered.id).await.unwrap(), None);
    assert!(!client.delete_runner(&path, registered.id).await.unwrap());
    assert_eq!(client.jobs(&path, &gpu()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_lost_registration_is_found_by_its_name_and_can_be_deleted() {
    let (twin, client, path) = world().await;
    twin.with(|state| state.lose_registration = true);
    let error = client.register(&path, "fy-1").await.unwrap_err();
    assert!(matches!(error, ForgejoError::Transport { .. }), "{error}");
    let strays = client.runners_named(&path, "fy-1").await.unwrap();
    assert_eq!(strays.len(), 1);
    assert!(client.delete_runner(&path, strays[0].id).await.unwrap());
    assert_eq!(client.runners_named(&path, "fy-1").await.unwrap(), []);
}

#[tokio::test]
async fn whose_work_a_run_is_can_be_asked_and_a_fork_is_seen() {
    let (twin, client, path) = world().await;
    let (own, fork) =
        twin.with(|state| (state.start(&ada(), &["gpu"], None), state.start(&ada(), &["gpu"], Some(9))));
    let jobs = client.jobs(&path, &[]).await.unwrap();
    let run = async |id: u64| {
        let job = jobs.iter().find(|job| job.id == id).unwrap();
        client.run(&path, job.run_id.unwrap()).await.unwrap().unwrap()
    };
    let (own, fork) = (run(own).await, run(fork).await);
    assert_eq!((own.event.as_str(), own.head_repository(), own.trigger_user), ("push", Some(1), Some(ada())));
    assert_eq!((fork.event.as_str(), fork.head_repository()), ("pull_request", Some(9)));
    assert_eq!(client.run(&path, 4711).await.unwrap(), None);
}

#[tokio::test]
async fn a_refusal_says_what_to_do_and_never_the_token() {
    let (twin, client, path) = world().await;
    let stranger = Forgejo::new(twin.base(), Secret::new("hunter2"), &HttpOptions::default()).unwrap();
    let error = stranger.jobs(&path, &[]).await.unwrap_err();
    assert!(
        error.fix().unwrap().contains("token-file") && !format!("{error:?}").contains("hunter2"),
        "{error:?}"
    );
    twin.with(|state| state.failing = Some(503));
    let error = client.jobs(&path, &[]).await.unwrap_err();
    assert!(error.to_string().contains("503") && error.fix().is_none());
    assert!(Forgejo::new("http://git.example.org", twin.token(), &HttpOptions::default()).is_err());
    assert!(Forgejo::new(twin.base(), Secret::new(" "), &HttpOptions::default()).is_err());
}

/// Servers before Forgejo 15, and Gitea, tell neither run nor handle.
#[tokio::test]
async fn a_server_without_handles_is_understood() {
    let (twin, client, path) = world().await;
    twin.with(|state| state.handles = false);
    twin.with(|state| state.start(&ada(), &["gpu"], None));
    let jobs = client.jobs(&path, &gpu()).await.unwrap();
    assert_eq!((jobs[0].handle.clone(), jobs[0].run_id, jobs[0].status.as_str()), (None, None, "waiting"));
}
