//! A job gets a runner, and what is known of that runner at every step.

use crate::plane::refused;
use crate::world::World;
use forgeyard_forges::twin::{CallFault, Conclusion, Misbehaviour, Runner as Program};
use forgeyard_model::demand::{DemandState, Source};
use forgeyard_model::registration::RegistrationState;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn job_gets_a_runner_from_webhook_to_destroyed_machine() {
    let mut world = World::new().await;
    let (run, jobs) = world.push(vec![world.job("build")]).await;
    let demand = world.until(jobs[0], "launching").await;
    assert_eq!((demand.run, demand.seen.contains_key(&Source::Webhook)), (run, true));
    assert_eq!(demand.facts.as_ref().unwrap().actor.as_ref().unwrap().id, world.person.id);
    assert_eq!(world.calls("POST", "/generate-jitconfig"), 0, "nothing is minted before the machine is up");

    let (machine, program) = world.listen().await;
    let registration = world.registration(machine.runner);
    assert_eq!(world.registered(), std::slice::from_ref(&registration.name));
    let job = machine.work(&program).await;
    assert_eq!(job.job, jobs[0]);
    world.twin.advance(Duration::from_secs(2)).await;

    let ended = world.until(jobs[0], "ended").await;
    assert_eq!((&ended.state, ended.conclusion.as_deref()), (&DemandState::Ended, Some("success")));
    assert_eq!(ended.taken_by.unwrap().runner, Some(machine.runner));
    world.gone(machine.runner).await;
    assert_eq!(world.registration(machine.runner).state, RegistrationState::Gone);
    assert_eq!(world.conclusion(jobs[0]), Some(Conclusion::Success));
    assert!(world.registered().is_empty());
    // Whose run it is, the configuration, and whether the runner is still there.
    let spent = world.calls_about("/actions/");
    assert!(spent <= 3, "{spent} calls for one job");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_is_given_to_its_own_session_until_the_program_begins_and_is_nowhere_afterwards() {
    let mut world = World::new().await;
    world.push(vec![world.job("build"), world.job("test")]).await;
    let one = world.boot().await;
    let other = world.boot().await;
    let config = one.config().await.unwrap();
    assert_eq!(one.config().await.unwrap(), config, "an answer may be lost on the way");
    assert_ne!(other.config().await.unwrap(), config);
    // The token of another attempt opens nothing.
    let mut session = one.agent.session.clone();
    session.token = other.agent.session.token.clone();
    let error = refused(one.agent.client.runner_config(&session, 0).await);
    assert_eq!(error.code, "agent.wrong_session");

    let kept = world.setup.data().join("jit").join(one.runner.to_string());
    assert!(kept.exists());
    one.begins().await;
    assert!(!kept.exists());
    let error = refused(one.agent.client.runner_config(&one.agent.session, 0).await);
    assert_eq!(error.code, "registration.consumed");
    // Neither the database nor anything beside it holds it.
    let journal = world.plane.app.store.journal(1, 10_000).await.unwrap();
    assert!(!serde_json::to_string(&journal).unwrap().contains(&config));
    world.plane.stop().await;
    for entry in std::fs::read_dir(world.setup.data()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(config.len()).any(|window| window == config.as_bytes());
            assert!(!found, "the configuration is in {}", path.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answer_of_a_mint_leaves_one_runner_of_the_name() {
    let mut world = World::new().await;
    let lost = CallFault::next("POST", "/generate-jitconfig", Misbehaviour::AnswerLost);
    world.twin.with(|state| state.plan_call_fault(lost));
    world.push(vec![world.job("build")]).await;
    let machine = world.boot().await;
    let waiting = tokio::spawn({
        let (client, session) = (machine.agent.client.clone(), machine.agent.session.clone());
        async move { client.runner_config(&session, 25).await }
    });
    // The effect is tried again after its pause.
    for _ in 0..200 {
        if waiting.is_finished() {
            break;
        }
        world.twin.advance(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let config = waiting.await.unwrap().unwrap();
    assert_eq!(world.calls("POST", "/generate-jitconfig"), 3, "lost, refused by name, minted anew");
    let registration = world.registration(machine.runner);
    assert_eq!(world.registered(), [registration.name]);
    machine.begins().await;
    let program = Program::connect(&config.config).await.unwrap();
    machine.work(&program).await;
    world.gone(machine.runner).await;
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_configuration_is_replaced_under_another_name() {
    let mut world = World::new().await;
    world.push(vec![world.job("build")]).await;
    let machine = world.boot().await;
    machine_minted(&world, &machine).await;
    let first = world.registration(machine.runner).name;
    std::fs::remove_file(world.setup.data().join("jit").join(machine.runner.to_string())).unwrap();
    let config = machine.config().await.unwrap();
    let second = world.registration(machine.runner).name;
    assert_ne!(first, second);
    machine.begins().await;
    let program = Program::connect(&config).await.unwrap();
    assert_eq!(program.name, second);
    crate::plane::eventually("the first name is forgotten", || async {
        (world.registered() == [second.clone()]).then_some(())
    })
    .await;
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_kills_no_runner_and_keeps_a_configuration_that_was_not_fetched() {
    let mut world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build"), world.job("test")]).await;
    let (busy, program) = world.listen().await;
    let job = busy.given(&program).await;
    let fresh = world.boot().await;
    machine_minted(&world, &fresh).await;
    let mut world = world.restart().await;
    assert!(matches!(busy.took(&job).await, forgeyard_model::registration::TakenAnswer::Allowed { .. }));
    program.begin().await.unwrap();
    let config = fresh.config().await.unwrap();
    fresh.begins().await;
    let second = Program::connect(&config).await.unwrap();
    fresh.work(&second).await;
    program.end("success").await.unwrap();
    busy.finish(0).await.unwrap();
    world.twin.advance(Duration::from_secs(2)).await;
    for job in jobs {
        world.until(job, "ended").await;
    }
    for machine in [busy.runner, fresh.runner] {
        world.gone(machine).await;
    }
    world.plane.stop().await;
}

async fn machine_minted(world: &World, machine: &crate::world::Machine) {
    crate::plane::eventually("the configuration is minted", || async {
        let state = world.runner(machine.runner).registration?.state;
        matches!(state, RegistrationState::Minted { .. }).then_some(())
    })
    .await;
}
