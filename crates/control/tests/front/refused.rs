//! What gets no runner, and why.

use crate::world::{Plan, World};
use forgeyard_forges::twin::{JobSpec, RunSpec};
use forgeyard_model::registration::TakenAnswer;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_connection_a_demand_is_refused_with_the_way_to_have_one() {
    let world = World::with(Plan { unconnected: true, ..Plan::default() }).await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    let demand = world.until(jobs[0], "refused").await;
    let reason = demand.reason().unwrap();
    assert_eq!(reason.code, "forge.not_connected");
    assert!(reason.message.contains("no connection to the forge `github` is configured"), "{reason}");
    assert!(reason.fix.as_ref().unwrap().contains("[[forges]]"), "{reason}");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_for_hosted_runners_is_ignored_by_its_labels() {
    let world = World::new().await;
    let (_, jobs) = world.push(vec![JobSpec::new("build", &["ubuntu-latest"]), world.job("test")]).await;
    world.until(jobs[1], "launching").await;
    assert_eq!(world.demand(jobs[0]), None);
    let deliveries = world.plane.client.deliveries().await.unwrap();
    let ignored =
        deliveries.iter().any(|delivery| format!("{:?}", delivery.state).contains("demand.not_ours"));
    assert!(ignored, "{deliveries:?}");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_signature_makes_no_demand() {
    let world = World::new().await;
    world.twin.with(|state| {
        let hook = state.app(world.app).unwrap().hook;
        state.hook_mut(hook).unwrap().secret = forgeyard_model::Secret::new("somebody else's");
    });
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    assert_eq!(world.demand(jobs[0]), None);
    assert_eq!(world.plane.client.deliveries().await.unwrap(), []);
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_that_is_cancelled_before_its_launch_gets_no_machine() {
    let mut world = World::new().await;
    let (run, jobs) = world.push(vec![world.job("build")]).await;
    world.until(jobs[0], "launching").await;
    world.twin.with(|state| state.cancel_run(run));
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(jobs[0], "withdrawn").await;
    world.advance(30).await;
    crate::plane::eventually("no machine is wanted", || async {
        world.site.desired().await.unwrap().runners.is_empty().then_some(())
    })
    .await;
    assert_eq!(world.calls("POST", "/generate-jitconfig"), 0);
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stranger_who_starts_a_run_is_held_for_an_approval_and_nothing_is_made() {
    let world = World::new().await;
    let stranger = world.twin.with(|state| state.add_user("stranger"));
    let spec = RunSpec::push(world.repository, &stranger, vec![world.job("build")]);
    let job = world.twin.with(|state| {
        let run = state.start_run(spec);
        state.current_jobs(run)[0].id
    });
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(job, "held").await;
    assert!(demand.reason().is_some());
    assert_eq!(demand.launches, 0);
    world.plane.stop().await;
}

/// Row 22: actions/runner #2147, github-act-runner #59, nebari #1563. GitHub binds late; the reservation moves, and the
/// robbed job gets another runner.
#[tokio::test(flavor = "multi_thread")]
async fn actions_runner_2147_job_of_a_stolen_runner_gets_another_one() {
    let mut world = World::new().await;
    let (_, first) = world.push(vec![world.job("build")]).await;
    let machine = world.boot().await;
    let config = machine.config().await.unwrap();
    let registration = world.registration(machine.runner);
    // A second job with the same labels comes, and GitHub gives it the runner that was made for the first.
    world.steer(first[0], "a runner that does not exist");
    let (_, second) = world.push_steered(&registration.name).await;
    machine.begins().await;
    let program = forgeyard_forges::twin::Runner::connect(&config).await.unwrap();
    let taken = machine.work(&program).await;
    assert_eq!(taken.job, second[0]);
    let (other, program) = world.listen_for(first[0]).await;
    let taken = other.work(&program).await;
    assert_eq!(taken.job, first[0]);
    world.twin.advance(Duration::from_secs(2)).await;
    for (job, runner) in [(second[0], machine.runner), (first[0], other.runner)] {
        assert_eq!(world.until(job, "ended").await.taken_by.unwrap().runner, Some(runner));
    }
    world.gone(machine.runner).await;
    world.gone(other.runner).await;
    assert!(world.registered().is_empty());
    world.plane.stop().await;
}

/// A denied job of another repository with the same label takes the machine: no step of it runs.
#[tokio::test(flavor = "multi_thread")]
async fn denied_job_that_takes_a_machine_is_refused_before_its_first_step() {
    let plan = Plan { register: forgeyard_control::forges::Register::Organisation, ..Plan::default() };
    let mut world = World::with(plan).await;
    let other = world.twin.with(|state| state.add_repository("conda/other"));
    let (_, mine) = world.push(vec![world.job("build")]).await;
    let machine = world.boot().await;
    let config = machine.config().await.unwrap();
    let name = world.registration(machine.runner).name;
    world.steer(mine[0], "a runner that does not exist");
    let thief = world.twin.with(|state| {
        let run = state.start_run(RunSpec::push(other, &world.person, vec![world.job("theft")]));
        let job = state.current_jobs(run)[0].id;
        state.steer(job, &name);
        job
    });
    world.twin.advance(Duration::from_secs(2)).await;
    machine.begins().await;
    let program = forgeyard_forges::twin::Runner::connect(&config).await.unwrap();
    let given = machine.given(&program).await;
    assert_eq!(given.job, thief);
    let mut environment = machine.environment(&given);
    environment.repository_id = other;
    let answer = machine.agent.client.runner_took(&machine.agent.session, &environment).await.unwrap();
    let TakenAnswer::Refused { reason } = answer else { panic!("{answer:?}") };
    assert!(reason.message.contains("repository"), "{reason}");
    // The hook fails, so the program ends the job as failed, and the machine goes.
    program.begin().await.unwrap();
    program.end("failure").await.unwrap();
    machine.finish(1).await.unwrap();
    world.gone(machine.runner).await;
    // The job that was robbed gets its own machine.
    let (other, program) = world.listen_for(mine[0]).await;
    assert_eq!(other.work(&program).await.job, mine[0]);
    world.plane.stop().await;
}

/// A run does not say who opened its pull request, and for forks not even which one it is.
#[tokio::test(flavor = "multi_thread")]
async fn author_of_a_fork_counts_although_a_maintainer_starts_the_run() {
    let world = World::new().await;
    let (stranger, number, job) = world.twin.with(|state| {
        let stranger = state.add_user("stranger");
        let fork = state.add_fork(world.repository, &stranger);
        let sha = "c".repeat(40);
        let number = state.open_pull(world.repository, fork, "fix", &sha, &stranger);
        let run = state.start_run(RunSpec {
            event: "pull_request".to_owned(),
            head_branch: "fix".to_owned(),
            head_sha: sha,
            head_repository: fork,
            pull: Some(number),
            ..RunSpec::push(world.repository, &world.person, vec![world.job("build")])
        });
        (stranger, number, state.current_jobs(run)[0].id)
    });
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(job, "held").await;
    let facts = demand.facts.clone().unwrap();
    assert_eq!((facts.pull_request, facts.author), (Some(number), Some(stranger)));
    assert!(demand.reason().unwrap().to_string().contains("stranger"), "{:?}", demand.reason());
    world.plane.stop().await;
}
