//! Runners: minting, finding, ending.

use super::world::{World, org, repository, words};
use forgeyard_forges::github::{Again, Cause, Deleted, Github, Jit, JitRequest, Target};
use forgeyard_forges::twin::{Conclusion, JobSpec, Misbehaviour, Setup};
use forgeyard_model::Secret;
use std::time::Duration;

pub(crate) fn request(name: &str) -> JitRequest {
    JitRequest { name: name.into(), runner_group_id: 1, labels: vec!["gpu".into()], work_folder: None }
}

pub(crate) async fn mint(github: &Github, target: &Target, name: &str) -> (u64, Secret) {
    match github.mint_jit(target, &request(name)).await.unwrap() {
        Jit::Minted { runner, config } => (runner.id, config),
        Jit::NameTaken => panic!("{name} is taken"),
    }
}

/// ARC #4148: a configuration is good for one start; a second one is refused by GitHub.
#[tokio::test]
async fn arc_4148_a_configuration_registers_one_runner_once_at_organisation_and_repository() {
    let world = World::new().await;
    let github = world.client();
    for target in [org(), repository().into()] {
        let (id, config) = mint(&github, &target, "gpu-1").await;
        let runner = github.runner(&target, id).await.unwrap().unwrap();
        assert!((runner.name.as_str(), runner.online, runner.busy) == ("gpu-1", false, false), "{runner:?}");
        assert_eq!(runner.labels, ["gpu"]);
        world.twin.with(|state| {
            state.connect(config.expose()).unwrap();
            assert!(state.connect(config.expose()).is_err());
        });
        assert!(github.runner(&target, id).await.unwrap().unwrap().online);
        assert_eq!(github.runner_by_name(&target, "gpu-1").await.unwrap().map(|runner| runner.id), Some(id));
    }
    assert_eq!(github.runner_by_name(&org(), "gpu").await.unwrap(), None);
    assert_eq!(github.runner(&org(), 424_242).await.unwrap(), None);
}

#[tokio::test]
async fn a_name_that_is_taken_is_told_and_can_be_freed() {
    let world = World::new().await;
    let github = world.client();
    let (first, _) = mint(&github, &org(), "gpu-1").await;
    assert!(matches!(github.mint_jit(&org(), &request("gpu-1")).await.unwrap(), Jit::NameTaken));
    assert_eq!(github.delete_runner(&org(), first).await.unwrap(), Deleted::Gone);
    let (second, _) = mint(&github, &org(), "gpu-1").await;
    assert_ne!(first, second);
}

#[tokio::test]
async fn a_lost_answer_leaves_the_outcome_unknown_and_the_name_tells_it() {
    let world = World::new().await;
    let github = world.client();
    github.runners(&org()).await.unwrap();
    world.next_fails("POST", "generate-jitconfig", Misbehaviour::AnswerLost);
    let error = github.mint_jit(&org(), &request("gpu-1")).await.unwrap_err();
    assert!(error.outcome_unknown(), "{}", words(&error));
    assert_eq!(world.count("POST", "/generate-jitconfig"), 1, "a call that changes something is sent once");
    assert!(matches!(github.mint_jit(&org(), &request("gpu-1")).await.unwrap(), Jit::NameTaken));
    let registered = github.runner_by_name(&org(), "gpu-1").await.unwrap().unwrap();
    assert_eq!(github.delete_runner(&org(), registered.id).await.unwrap(), Deleted::Gone);
    mint(&github, &org(), "gpu-1").await;
}

/// GARM #455: while a job runs, deleting is refused, and lists of runners lag.
#[tokio::test]
async fn garm_455_a_busy_runner_is_not_deleted_although_the_list_calls_it_idle() {
    let world = World::with(Setup { list_lag: Duration::from_secs(120), ..Setup::default() }).await;
    let github = world.client();
    let (id, config) = mint(&github, &org(), "gpu-1").await;
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    world.twin.with(|state| {
        state.connect(config.expose()).unwrap();
        assert!(state.begin_job(id));
    });
    assert!(!github.runners(&org()).await.unwrap()[0].busy, "the list lags");
    assert!(github.runner(&org(), id).await.unwrap().unwrap().busy, "a single read does not");
    assert_eq!(github.delete_runner(&org(), id).await.unwrap(), Deleted::Busy);
    world.twin.with(|state| assert!(state.end_job(id, Conclusion::Success)));
    assert_eq!(github.delete_runner(&org(), id).await.unwrap(), Deleted::WasGone);
}

#[tokio::test]
async fn refusals_to_mint_are_named() {
    let world = World::with(Setup { group_limit: 1, ..Setup::default() }).await;
    let github = world.client();
    let asked = |group: u64, name: &str| JitRequest { runner_group_id: group, ..request(name) };
    let cause = |error: forgeyard_forges::github::GithubError| error.cause().cloned().unwrap();

    mint(&github, &org(), "gpu-1").await;
    let full = cause(github.mint_jit(&org(), &request("gpu-2")).await.unwrap_err());
    assert_eq!(full, Cause::GroupFull { limit: Some(1) });
    assert_eq!(full.again(), Again::AfterChange);
    assert_eq!(cause(github.mint_jit(&org(), &asked(2, "gpu-3")).await.unwrap_err()), Cause::GroupHosted);
    assert_eq!(cause(github.mint_jit(&org(), &asked(77, "gpu-3")).await.unwrap_err()), Cause::NotFound);
    let none = JitRequest { labels: Vec::new(), ..request("gpu-4") };
    let invalid = cause(github.mint_jit(&org(), &none).await.unwrap_err());
    assert!(matches!(&invalid, Cause::Invalid { text } if text.contains("labels")), "{invalid}");

    let repository: Target = repository().into();
    world.twin.with(|state| state.repository_mut(world.repository).unwrap().own_runners = false);
    let disabled = cause(github.mint_jit(&repository, &request("gpu-5")).await.unwrap_err());
    assert_eq!(disabled, Cause::RepositoryRunnersDisabled);
    world.twin.with(|state| state.repository_mut(world.repository).unwrap().actions_enabled = false);
    let disabled = cause(github.mint_jit(&repository, &request("gpu-5")).await.unwrap_err());
    assert_eq!(disabled, Cause::ActionsDisabled);
}

#[tokio::test]
async fn a_long_list_of_runners_is_read_to_its_end() {
    let world = World::new().await;
    let github = world.client();
    world.twin.with(|state| {
        for index in 0..230 {
            let spec = forgeyard_forges::twin::RunnerSpec {
                scope: forgeyard_forges::twin::Scope::Organization(world.org),
                name: format!("gpu-{index}"),
                group: 1,
                labels: vec!["gpu".into()],
                work_folder: "_work".into(),
                set: None,
            };
            state.mint_jit(spec).unwrap();
        }
    });
    assert_eq!(github.runners(&org()).await.unwrap().len(), 230);
}
