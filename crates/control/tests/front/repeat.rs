//! Jobs that are lost with their machine.

use crate::plane::eventually;
use crate::world::World;
use forgeyard_model::demand::Repeat;

/// Row 23: runs-on #259. GitHub repeats nothing of a run that goes on.
#[tokio::test(flavor = "multi_thread")]
async fn runs_on_259_job_that_was_lost_with_its_machine_is_run_again_at_the_forge_when_its_run_is_over() {
    let mut world = World::new().await;
    let (run, jobs) = world.push(vec![world.job("build"), world.job("test")]).await;
    let (broken, first) = world.listen_for(jobs[0]).await;
    let job = broken.given(&first).await;
    broken.took(&job).await;
    first.begin().await.unwrap();
    let (machine, second) = world.listen_for(jobs[1]).await;
    let job = machine.given(&second).await;
    machine.took(&job).await;
    second.begin().await.unwrap();
    world.advance(2).await;
    world.until(jobs[0], "running").await;
    world.site.exit(broken.runner);
    world.site.turn().await;
    first.end("failure").await.unwrap();
    world.advance(2).await;
    let demand = world.until(jobs[0], "ended").await;
    assert!(matches!(demand.repeat, Some(Repeat::Wanted { .. })), "{:?}", demand.repeat);
    for _ in 0..3 {
        machine.begins().await;
        world.advance(20).await;
    }
    assert_eq!(world.calls("POST", "/rerun-failed-jobs"), 0, "the run goes on, and nobody is asked in vain");
    second.end("success").await.unwrap();
    machine.finish(0).await.unwrap();
    world.advance(2).await;
    world.until(jobs[1], "ended").await;
    world.advance(140).await;
    eventually("the forge was asked", || async {
        let demand = world.demand(jobs[0])?;
        matches!(demand.repeat, Some(Repeat::Done { .. })).then_some(())
    })
    .await;
    assert_eq!(world.calls("POST", "/rerun-failed-jobs"), 1);
    world.advance(2).await;
    // The forge says that the App ran it again; it is still the work of whoever pushed.
    let again = world.twin.with(|state| {
        let all = state.current_jobs(run);
        all.iter().map(|job| job.id).find(|job| !jobs.contains(job))
    });
    let demand = world.until(again.unwrap(), "launching").await;
    assert_eq!((demand.run_attempt, demand.lookups), (2, 0));
    let told = world.plane.client.demand(world.demand(jobs[0]).unwrap().id).await.unwrap();
    assert_eq!(told.why.reason.code, "repeat.done");
    world.plane.stop().await;
}
