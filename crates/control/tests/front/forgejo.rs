//! A job of a *simulated* Forgejo gets a machine that is bound to it, from a real control plane.

use crate::lab::Lab;
use crate::plane::eventually;
use forgeyard_forges::twin::ForgejoProgram;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_forgejo_gets_a_machine_that_takes_it_and_no_other() {
    let mut lab = Lab::new().await;
    // A stranger's job beside it is refused, and one that no pool serves is none of ours.
    let (job, strangers) = lab.twin.with(|state| {
        state.start(&lab.ada, &["windows"], None);
        (state.start(&lab.ada, &["gpu"], None), state.start(&lab.eve, &["gpu"], None))
    });
    lab.round().await;
    lab.until(strangers, &["refused", "held"]).await;
    lab.until(job, &["launching"]).await;
    assert_eq!(lab.twin.with(|state| state.runners.len()), 0, "it registers only when the machine is up");
    let machine = lab.boot().await;
    let one = machine.handover().await;
    assert_eq!((one.url.as_str(), one.handle.is_some()), (lab.twin.base(), true));
    machine.begins().await;
    // An older job with the same label waits; the handle passes it by.
    let mut program = ForgejoProgram::new(one);
    let task = program.fetch().await.unwrap().unwrap();
    assert_eq!(lab.twin.with(|state| state.tasks[&task.id].job), job);
    let taker = lab.until(job, &["running"]).await.taken_by.unwrap();
    assert_eq!(taker.runner, Some(machine.runner), "the machine that has it is known");
    // Both jobs are of one commit: its one status says what is known of both, with the reason, and is not repeated.
    let told = eventually("the commit has a status", || async {
        lab.twin.with(|state| state.statuses.last().cloned())
    })
    .await;
    assert_eq!((told.0.as_str(), told.1.as_str()), ("a".repeat(40).as_str(), "forgeyard"));
    assert!(["pending", "failure"].contains(&told.2.as_str()), "{told:?}");
    assert!(told.3.contains("jobs") && told.3.chars().count() <= 255, "{told:?}");
    let texts: Vec<_> = lab.twin.with(|state| state.statuses.clone());
    assert!(texts.windows(2).all(|two| two[0] != two[1]), "{texts:?}");
    program.update(&task, "RESULT_SUCCESS").await.unwrap();
    let ended = lab.until(job, &["ended"]).await;
    assert_eq!(ended.conclusion.as_deref(), Some("success"));
    assert_eq!(lab.twin.with(|state| state.runners.len()), 0);
    lab.plane.stop().await;
}
