//! The whole front door: a farm as its operators start it gives a real machine to a job of a *simulated* GitHub.
//!
//! Real here: the program with control plane, site, sandbox provider and agent, their processes, containers and control
//! groups. *Simulated*: GitHub, its runner program, and the device where this host has no GPU.
//!
//! Needs what a tour needs, and the example `simulated_runner` of the crate of forges, which `cargo test --workspace`
//! builds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails")]

mod cached;
#[path = "../chain/certificates.rs"]
mod certificates;
#[path = "../chain/mod.rs"]
mod chain;
mod door;
mod witness;

use chain::rows::Rows;
use chain::{Place, traces};
use door::{By, Door, LABELS, NOBODY, SET, runner_program};
use forgeyard_forges::twin::Conclusion;
use forgeyard_model::demand::Source;
use forgeyard_model::registration::{RegistrationState, TakenAnswer};

/// Nothing of a farm at rest is left, in its database or on this host.
fn nothing_is_left(place: &Place) -> Rows {
    // On a thread of its own: it brings its own runtime.
    let rows = std::thread::scope(|scope| scope.spawn(|| Rows::read(&place.data)).join()).unwrap();
    assert_eq!(rows.broken(), Vec::<String>::new(), "{}", place.said());
    assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new(), "{}", place.said());
    rows
}

/// What GitHub has of a job and of runners.
fn conclusion(door: &Door, job: u64) -> Option<Conclusion> {
    door.twin.with(|state| state.job(job).unwrap().view().conclusion)
}

fn registered(door: &Door) -> Vec<String> {
    door.twin.with(|state| state.runners().map(|runner| runner.name.clone()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_signed_webhook_gets_a_machine_runs_and_leaves_nothing() {
    let Some(program) = runner_program() else { return };
    let door = Door::open(&program, By::Webhook).await;
    let job = door.push(door.repository, &LABELS, None);

    // The job's one step runs: everything is there.
    let step = door.witness.step().await;
    assert_eq!(step.repository, "lab/solver");
    let machine = door.machine(&[]).await;
    let registration = machine.registration.as_deref().unwrap();
    assert_eq!(registered(&door), std::slice::from_ref(&registration.name));
    let taken = registration.taken.as_ref().expect("the hook asked before the first step");
    assert!(matches!(taken.answer, TakenAnswer::Allowed { .. }), "{taken:?}");
    assert_eq!((taken.job.repository.id, taken.job.key.as_str()), (door.repository, "build"));
    let there = door.traces(machine.id);
    for kind in ["process", "group", "folder"] {
        assert!(there.iter().any(|trace| trace.starts_with(kind)), "no {kind}: {there:?}");
    }
    assert!(door.marker(machine.id).exists());
    let leases = door.client.leases().await.unwrap();
    assert_eq!(leases.iter().filter(|lease| lease.state.live()).count(), 1, "{leases:?}");
    step.go_on().await;

    // It ends, and nothing is there.
    let demand = door.demand(job, "ended").await;
    assert!(demand.seen.contains_key(&Source::Webhook), "{:?}", demand.seen);
    assert_eq!(demand.conclusion.as_deref(), Some("success"));
    assert_eq!(demand.taken_by.as_ref().unwrap().runner, Some(machine.id));
    assert_eq!(conclusion(&door, job), Some(Conclusion::Success));
    door.gone(machine.id).await;
    door.leases_end().await;
    assert_eq!(registered(&door), Vec::<String>::new());
    let log = door.log(&demand).await;
    assert!(log.contains("step of lab/solver") && log.contains("the witness says go on"), "{log}");
    let why = door.why(job);
    println!("forgeyard why:\n{why}");
    assert!(why.contains("success"), "{why}");

    // One after the other: made, configured, used, forgotten at GitHub, removed.
    let mut events = door.client.events(Some(&machine.id.to_string())).await.unwrap();
    events.sort_by_key(|event| (event.at, event.id));
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    println!("the machine: {}", names.join(", "));
    let place = |name: &str| names.iter().position(|other| *other == name).expect(name);
    let order = ["RunnerBooted", "RegistrationMinted", "RegistrationGone", "RunnerDeleting", "RunnerDeleted"];
    assert!(order.map(place).is_sorted(), "{names:?}");

    let (of_job, others) = door.calls();
    println!("{} calls to REST for the job:\n  {}", of_job.len(), of_job.join("\n  "));
    println!("{} others:\n  {}", others.len(), others.join("\n  "));
    assert!(of_job.len() <= 3, "{of_job:?}");
    assert!(!door.witness.more().await, "a step ran that nobody knows of");
    let (place, took) = door.close();
    let rows = nothing_is_left(&place);
    assert_eq!((rows.runners.len(), rows.attempts.len()), (1, 1));
    assert_eq!(rows.runners[0].registration.as_ref().unwrap().state, RegistrationState::Gone);
    println!("held after {:.1} s", took.as_secs_f64());
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_job_that_takes_the_machine_runs_no_step_and_the_allowed_one_gets_another() {
    let Some(program) = runner_program() else { return };
    let door = Door::open(&program, By::Webhook).await;
    // It gets no machine of its own.
    let thief = door.push(door.other, &LABELS, None);
    let refused = door.demand(thief, "refused").await;
    println!("before: {}", refused.reason().unwrap());
    assert_eq!(door.client.runners().await.unwrap(), []);

    let robbed = door.push(door.repository, &LABELS, Some(NOBODY));
    let first = door.machine(&[]).await;
    let marker = door.marker(first.id);
    let conclusion_of_theft = door
        .until("the theft is over", async || {
            assert!(!marker.exists(), "a step of the denied job ran");
            conclusion(&door, thief)
        })
        .await;
    assert_eq!(conclusion_of_theft, Conclusion::Failure);
    assert!(!marker.exists(), "a step of the denied job ran");
    door.gone(first.id).await;

    // Whoever was robbed gets another machine.
    let second = door.machine(&[first.id]).await;
    let name = second.registration.as_ref().unwrap().name.clone();
    door.twin.with(|state| state.steer(robbed, &name));
    let step = door.witness.step().await;
    assert_eq!(step.repository, "lab/solver", "the first step that ran at all");
    step.go_on().await;
    let demand = door.demand(robbed, "ended").await;
    assert_eq!(demand.taken_by.as_ref().unwrap().runner, Some(second.id));
    assert_eq!(conclusion(&door, robbed), Some(Conclusion::Success));
    door.gone(second.id).await;
    door.leases_end().await;
    assert_eq!(registered(&door), Vec::<String>::new());

    let log = door.log(&demand).await;
    println!("log:\n{log}");
    assert!(log.contains("the hook refused the job") && !log.contains("step of lab/other"), "{log}");
    assert!(!door.witness.more().await, "a step ran that nobody knows of");
    let (why, why_robbed) = (door.why(thief), door.why(robbed));
    println!("forgeyard why, the thief:\n{why}\nforgeyard why, the robbed:\n{why_robbed}");
    assert!(why.contains("ran no step of it: no grant names lab/other") && why.contains("failure"), "{why}");
    let (place, took) = door.close();
    let rows = nothing_is_left(&place);
    assert_eq!(rows.runners.len(), 2);
    let first = rows.runners.iter().find(|runner| runner.id == first.id).unwrap();
    let taken = first.registration.as_ref().unwrap().taken.as_ref().unwrap();
    let TakenAnswer::Refused { reason } = &taken.answer else { panic!("{taken:?}") };
    println!("the hook was told: {reason}");
    assert!(reason.message.contains("lab/other"), "{reason}");
    println!("held after {:.1} s", took.as_secs_f64());
}

/// A farm without an inbound port.
#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_scale_set_is_served_without_any_webhook() {
    let Some(program) = runner_program() else { return };
    let door = Door::open(&program, By::ScaleSet).await;
    let job = door.push(door.repository, &[SET], None);
    let step = door.witness.step().await;
    assert_eq!(step.repository, "lab/solver");
    let machine = door.machine(&[]).await;
    step.go_on().await;
    let demand = door.demand(job, "ended").await;
    assert!(demand.seen.contains_key(&Source::ScaleSet), "{:?}", demand.seen);
    assert!(!demand.seen.contains_key(&Source::Webhook), "{:?}", demand.seen);
    assert_eq!(demand.taken_by.as_ref().unwrap().runner, Some(machine.id));
    door.gone(machine.id).await;
    door.leases_end().await;
    assert_eq!(registered(&door), Vec::<String>::new());
    assert_eq!(conclusion(&door, job), Some(Conclusion::Success));
    let (of_job, others) = door.calls();
    println!("{} calls to REST for the job: {of_job:?}; others: {others:?}", of_job.len());
    assert!(of_job.len() <= 3, "{of_job:?}");
    println!("forgeyard why:\n{}", door.why(job));
    let (place, took) = door.close();
    nothing_is_left(&place);
    println!("held after {:.1} s", took.as_secs_f64());
}
