//! Jobs and runs as they are read back.

use super::runners::mint;
use super::world::{World, org, repository};
use forgeyard_forges::github::{Polled, Rerun as Asked, Role, RunStatus, Runs};
use forgeyard_forges::twin::{Conclusion, JobSpec, Rerun, RunSpec, Setup};
use forgeyard_model::forge::Person;
use std::time::Duration;

fn changed(polled: Polled<Runs>) -> Runs {
    match polled {
        Polled::Changed { value, .. } => value,
        Polled::Unchanged => panic!("nothing was asked before"),
    }
}

#[tokio::test]
async fn polling_finds_queued_jobs_that_no_webhook_told_of() {
    let world = World::new().await;
    let github = world.client();
    let (run, jobs) = world.push(vec![JobSpec::new("build", &["gpu"]), JobSpec::new("lint", &["Linux"])]);
    let found = changed(github.poll_runs(&repository(), RunStatus::Queued, 2, None).await.unwrap());
    assert_eq!(found.runs.iter().map(|run| run.id).collect::<Vec<_>>(), [run]);
    assert!(!found.more);
    let listed = github.run_jobs(&repository(), run, found.runs[0].run_attempt).await.unwrap();
    assert_eq!(listed.iter().map(|job| job.id).collect::<Vec<_>>(), jobs);
    assert!(listed.iter().all(|job| job.id > u64::from(u32::MAX)), "ids are wider than 32 bits");
    let first = &listed[0];
    assert_eq!((first.status.as_str(), &first.labels), ("queued", &vec!["gpu".to_owned()]));
    assert_eq!((first.runner_id, &first.runner_name), (None, &None));
}

#[tokio::test]
async fn a_run_with_many_jobs_is_read_to_its_end_and_polls_stop_where_told() {
    let world = World::new().await;
    let github = world.client();
    let names: Vec<String> = (0..230).map(|index| format!("cell {index}")).collect();
    let (run, _) = world.push(names.iter().map(|name| JobSpec::new(name, &["gpu"])).collect());
    assert_eq!(github.run_jobs(&repository(), run, 1).await.unwrap().len(), 230);
    for _ in 0..219 {
        world.push(vec![JobSpec::new("build", &["gpu"])]);
    }
    let found = changed(github.poll_runs(&repository(), RunStatus::Queued, 2, None).await.unwrap());
    assert_eq!((found.runs.len(), found.more), (200, true));
    assert_eq!(world.count("GET", "/actions/runs"), 2);
}

/// actions/runner #2147: GitHub gives a job to any runner with its labels. Who took it is read back.
#[tokio::test]
async fn runner_2147_who_really_took_a_job_is_read_back() {
    let world = World::new().await;
    let github = world.client();
    let (_, jobs) = world.push(vec![JobSpec::new("build", &["gpu"])]);
    let (id, config) = mint(&github, &org(), "meant-for-another").await;
    world.twin.with(|state| {
        state.connect(config.expose()).unwrap();
        assert!(state.begin_job(id));
    });
    let job = github.job(&repository(), jobs[0]).await.unwrap().unwrap();
    assert_eq!((job.runner_id, job.runner_name.as_deref()), (Some(id), Some("meant-for-another")));
    assert_eq!((job.status.as_str(), job.conclusion), ("in_progress", None));
    world.twin.with(|state| assert!(state.end_job(id, Conclusion::Failure)));
    let job = github.job(&repository(), jobs[0]).await.unwrap().unwrap();
    assert_eq!((job.status.as_str(), job.conclusion.as_deref()), ("completed", Some("failure")));
    assert!(job.completed_at.is_some());
}

#[tokio::test]
async fn a_rerun_names_who_pressed_the_button_and_has_new_jobs() {
    let world = World::new().await;
    let github = world.client();
    let (run, jobs) = world.push(vec![JobSpec::new("build", &["gpu"])]);
    let other = world.twin.with(|state| {
        let other = state.add_user("somebody");
        assert!(state.cancel_run(run));
        assert!(state.rerun(run, Rerun::All, &other));
        other
    });
    let seen = github.run(&repository(), run).await.unwrap().unwrap();
    assert_eq!(seen.run_attempt, 2);
    assert_eq!(seen.actor, Some(world.person.clone()));
    assert_eq!(seen.triggering_actor, Some(other));
    let again = github.run_jobs(&repository(), run, 2).await.unwrap();
    assert!(again.iter().all(|job| job.run_id == run && job.run_attempt == 2 && !jobs.contains(&job.id)));
}

#[tokio::test]
async fn a_run_of_a_fork_names_the_repository_that_its_commit_comes_from() {
    let world = World::new().await;
    let github = world.client();
    let (run, fork) = world.twin.with(|state| {
        let stranger = state.add_user("stranger");
        let fork = state.add_fork(world.repository, &stranger);
        let spec = RunSpec {
            event: "pull_request".into(),
            head_repository: fork,
            ..RunSpec::push(world.repository, &stranger, vec![JobSpec::new("build", &["gpu"])])
        };
        (state.start_run(spec), fork)
    });
    let seen = github.run(&repository(), run).await.unwrap().unwrap();
    assert_eq!(seen.event, "pull_request");
    assert_eq!(seen.head_repository.as_ref().map(|head| head.id), Some(fork));
    assert!(seen.from_elsewhere());
    assert!(seen.path.is_some_and(|path| path.starts_with(".github/workflows/")));
    assert!(seen.pull_requests.is_empty(), "GitHub does not tell them for forks");
}

/// TF-AWS #2459: what REST tells lags behind the webhook. "Not there" is told as such and is no error.
#[tokio::test]
async fn tf_aws_2459_a_job_that_rest_does_not_know_yet_is_no_error() {
    let world = World::with(Setup { read_lag: Duration::from_secs(30), ..Setup::default() }).await;
    let github = world.client();
    let (_, jobs) = world.push(vec![JobSpec::new("build", &["gpu"])]);
    assert_eq!(github.job(&repository(), jobs[0]).await.unwrap(), None);
    world.clock_forward(Duration::from_secs(31));
    assert!(github.job(&repository(), jobs[0]).await.unwrap().is_some());
}

/// runs-on #259: a repetition is refused while the run goes on, and accepted when it ended.
#[tokio::test]
async fn runs_on_259_a_repetition_is_told_to_wait_for_the_end_of_the_run() {
    let world = World::new().await;
    let github = world.client();
    let (run, jobs) = world.push(vec![JobSpec::new("build", &["gpu"]), JobSpec::new("test", &["gpu"])]);
    let (id, config) = mint(&github, &org(), "gpu-1").await;
    world.twin.with(|state| {
        state.connect(config.expose()).unwrap();
        assert!(state.begin_job(id) && state.end_job(id, Conclusion::Failure));
    });
    assert_eq!(github.rerun_failed_jobs(&repository(), run).await.unwrap(), Asked::RunActive);
    assert_eq!(github.rerun_job(&repository(), jobs[0]).await.unwrap(), Asked::RunActive);
    world.twin.with(|state| assert!(state.cancel_run(run)));
    assert_eq!(github.rerun_failed_jobs(&repository(), run).await.unwrap(), Asked::Accepted);
    assert_eq!(github.run(&repository(), run).await.unwrap().map(|run| run.run_attempt), Some(2));
}

/// A login that was given up and taken by somebody else gives nobody a role.
#[tokio::test]
async fn a_role_does_not_go_over_to_whoever_took_the_login() {
    let world = World::new().await;
    let github = world.client();
    let old = world.person.clone();
    world.twin.with(|state| state.set_permission(world.repository, &old, "maintain"));
    assert_eq!(github.role(&repository(), &old).await.unwrap(), Role::Maintain);
    world.twin.with(|state| {
        state.rename_account(old.id, "somebody-else");
        let new = state.add_user("maintainer");
        state.set_permission(world.repository, &new, "admin");
    });
    assert_eq!(github.role(&repository(), &old).await.unwrap(), Role::None);
    let bot = Person { id: 1, login: "dependabot[bot]".into() };
    assert_eq!(github.role(&repository(), &bot).await.unwrap(), Role::None);
}

#[tokio::test]
async fn all_repositories_of_an_installation_are_listed_with_their_ids() {
    let world = World::new().await;
    world.twin.with(|state| {
        for index in 0..130 {
            state.add_repository(&format!("conda/feedstock-{index}"));
        }
    });
    let github = world.client();
    let all = github.installed_repositories(&org()).await.unwrap();
    assert_eq!(all.len(), 131);
    let one = github.repository(&repository()).await.unwrap().unwrap();
    assert!(all.contains(&one));
    assert_eq!((one.id, one.full_name.as_str(), one.fork), (world.repository, "conda/feedstock", false));
}
