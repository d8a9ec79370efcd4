//! The Forgejo client against the *simulated* Forgejo. Nothing here speaks to a Forgejo or Gitea.

#![allow(clippy::unwrap_used, reason = "tests")]

use forgeyard_forges::forgejo::{Forgejo, ForgejoError, OneJob};
use forgeyard_forges::github::{HttpOptions, RepositoryPath};
use forgeyard_forges::twin::{ForgejoProgram, ForgejoState, ForgejoTwin, ProgramError};
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
    let registered = client.register(&path, "fy-1", &gpu()).await.unwrap();
    assert_eq!(client.runner(&path, registered.id).await.unwrap().unwrap().name, "fy-1");
    let word = OneJob {
        url: client.web().to_owned(),
        uuid: registered.uuid.clone(),
        token: registered.token.clone(),
        labels: gpu(),
        handle: wanted.handle.clone(),
    };
    let word = OneJob::decode(word.encode().unwrap().expose()).unwrap();
    let mut program = ForgejoProgram::new(word);
    program.declare().await.unwrap();
    let task = program.fetch().await.unwrap().unwrap();
    // The one that is older waits on: nobody is robbed.
    assert_eq!(twin.with(|state| state.tasks[&task.id].job), second);
    assert_eq!(program.fetch().await.unwrap(), None, "one registration, one job");
    assert!(client.runner(&path, registered.id).await.unwrap().unwrap().busy());
    program.update(&task, "RESULT_SUCCESS").await.unwrap();
    assert!(matches!(program.fetch().await, Err(ProgramError::Refused { status: 401, .. })));
    assert_eq!(client.runner(&path, registered.id).await.unwrap(), None);
    assert!(!client.delete_runner(&path, registered.id).await.unwrap());
    assert_eq!(client.jobs(&path, &gpu()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_lost_registration_is_found_by_its_name_and_can_be_deleted() {
    let (twin, client, path) = world().await;
    twin.with(|state| state.lose_registration = true);
    let error = client.register(&path, "fy-1", &gpu()).await.unwrap_err();
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

async fn program(twin: &ForgejoTwin, client: &Forgejo, path: &RepositoryPath, name: &str) -> ForgejoProgram {
    let registered = client.register(path, name, &gpu()).await.unwrap();
    let handle = client.jobs(path, &gpu()).await.unwrap().last().and_then(|job| job.handle.clone());
    let (url, labels) = (twin.base().to_owned(), gpu());
    ForgejoProgram::new(OneJob { url, uuid: registered.uuid, token: registered.token, labels, handle })
}

/// Report 47: the task is assigned before the answer is written.
#[tokio::test]
async fn a_fetch_whose_answer_was_lost_is_repeated_with_its_key_and_gets_the_same_task() {
    let (twin, client, path) = world().await;
    let job = twin.with(|state| state.start(&ada(), &["gpu"], None));
    let mut program = program(&twin, &client, &path, "fy-1").await;
    twin.with(|state| state.lose_fetches = 2);
    for _ in 0..2 {
        assert!(matches!(program.fetch().await, Err(ProgramError::Lost { .. })));
        assert_eq!(twin.with(|state| state.jobs[&job].status), "running", "it is assigned all the same");
    }
    let task = program.fetch().await.unwrap().unwrap();
    let (tasks, keys) = twin.with(|state| (state.tasks.clone(), state.fetches.clone()));
    assert_eq!(tasks.len(), 1, "one task, however often it was asked for");
    assert_eq!((tasks[&task.id].job, tasks[&task.id].told), (job, 3));
    assert!(task.token.ends_with("-3"), "the token of the job is a new one: the old one was told to nobody");
    assert!(keys.iter().all(|(_, key)| key.is_some() && *key == keys[0].1), "{keys:?}");
    // An answer ends the key.
    program.fetch().await.unwrap();
    assert_ne!(twin.with(|state| state.fetches[3].1.clone()), keys[0].1);
}

/// The same at a Gitea, which ignores the key: nobody has the task, and the forge says that it runs.
#[tokio::test]
async fn a_server_that_ignores_the_key_has_lost_the_task_and_calls_it_running() {
    let (twin, client, path) = world().await;
    let job = twin.with(|state| state.start(&ada(), &["gpu"], None));
    twin.with(|state| (state.honours_keys, state.lose_fetches) = (false, 1));
    let mut program = program(&twin, &client, &path, "fy-1").await;
    assert!(program.fetch().await.is_err());
    for _ in 0..3 {
        assert_eq!(program.fetch().await.unwrap(), None);
    }
    assert_eq!(client.jobs(&path, &[]).await.unwrap()[0].status, "running");
    assert!(twin.with(|state| state.tasks.values().all(|task| task.job == job && !task.heard)));
}

/// `requested_job` is asked for where the list tells a handle, and nowhere else.
#[tokio::test]
async fn a_server_that_tells_no_handle_binds_late() {
    let (twin, client, path) = world().await;
    let (first, second) =
        twin.with(|state| (state.start(&ada(), &["gpu"], None), state.start(&ada(), &["gpu"], None)));
    twin.with(|state| state.handles = false);
    let mut late = program(&twin, &client, &path, "fy-1").await;
    let task = late.fetch().await.unwrap().unwrap();
    assert_eq!(twin.with(|state| state.tasks[&task.id].job), first, "whichever waits");
    twin.with(|state| state.handles = true);
    let mut bound = program(&twin, &client, &path, "fy-2").await;
    let task = bound.fetch().await.unwrap().unwrap();
    assert_eq!(twin.with(|state| state.tasks[&task.id].job), second);
}

#[tokio::test]
async fn a_server_without_registration_by_rest_is_asked_by_the_runner_protocol_and_must_know_runners_of_one_use()
 {
    let (twin, client, path) = world().await;
    twin.with(|state| (state.rest_registration, state.handles) = (false, false));
    let job = twin.with(|state| state.start(&ada(), &["gpu"], None));
    let mut program = program(&twin, &client, &path, "fy-1").await;
    let named = client.runners_named(&path, "fy-1").await.unwrap();
    assert!(named.len() == 1 && named[0].ephemeral, "{named:?}");
    let task = program.fetch().await.unwrap().unwrap();
    assert_eq!(twin.with(|state| state.tasks[&task.id].job), job);
    twin.with(|state| state.ephemeral = false);
    let error = client.register(&path, "fy-2", &gpu()).await.unwrap_err();
    assert!(matches!(error, ForgejoError::NotOfOneUse) && error.fix().is_some(), "{error}");
    assert_eq!(client.runners_named(&path, "fy-2").await.unwrap(), [], "none that would take job after job");
}
