//! What people are told at the forge: one check run for each head.

use crate::world::World;
use forgeyard_control::demand::checks::{Board, Checks};
use forgeyard_forges::twin::{CheckRun, RunSpec};
use forgeyard_testkit::build::name;
use std::time::Duration;

fn checks(world: &World) -> Vec<CheckRun> {
    world.twin.with(|state| state.check_runs().cloned().collect())
}

async fn tell(world: &World, checks: &mut Checks) {
    let app = &world.plane.app;
    checks.round(app, Board::Checks(app.forges.of(&name("github")).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_of_one_head_have_one_check_run_that_changes_only_with_its_text() {
    let world = World::new().await;
    let jobs = ["build", "test", "docs"].map(|name| world.job(name));
    let (_, jobs) = world.push(jobs.into()).await;
    for job in &jobs {
        world.until(*job, "launching").await;
    }
    let mut known = Checks::default();
    tell(&world, &mut known).await;
    tell(&world, &mut known).await;
    // A control plane that starts anew knows what was sent.
    tell(&world, &mut Checks::default()).await;
    assert_eq!((checks(&world).len(), world.calls_about("/check-runs")), (1, 1));
    let text = format!("{:?}", checks(&world)[0]);
    assert!(text.contains("build") && text.contains("3 of 3 jobs wait"), "{text}");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_run_whose_state_stays_is_told_each_half_a_minute_at_most_and_nothing_is_forgotten() {
    let world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    world.until(jobs[0], "launching").await;
    let mut known = Checks::default();
    tell(&world, &mut known).await;
    let (_, jobs) = world.push(vec![world.job("docs")]).await;
    world.until(jobs[0], "launching").await;
    tell(&world, &mut known).await;
    assert_eq!(world.calls_about("/check-runs"), 1, "it still waits, for two jobs instead of one");
    assert!(known.owes(), "so it is looked at again, though nothing may be written until then");
    world.twin.advance(Duration::from_secs(31)).await;
    tell(&world, &mut known).await;
    assert_eq!((checks(&world).len(), world.calls_about("/check-runs"), known.owes()), (1, 2, false));
    let text = format!("{:?}", checks(&world)[0]);
    assert!(text.contains("2 of 2 jobs wait"), "{text}");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_job_is_told_with_what_is_missing_and_its_end_closes_the_check_run() {
    let world = World::new().await;
    let stranger = world.twin.with(|state| state.add_user("stranger"));
    let (run, job) = world.twin.with(|state| {
        let run = state.start_run(RunSpec::push(world.repository, &stranger, vec![world.job("build")]));
        (run, state.current_jobs(run)[0].id)
    });
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(job, "held").await;
    let mut known = Checks::default();
    tell(&world, &mut known).await;
    let told = format!("{:?}", checks(&world));
    assert!(told.contains("action_required") && told.contains("1 of 1 jobs need an approval"), "{told}");
    assert!(told.contains(&demand.reason().unwrap().message[..20]), "{told}");
    world.twin.with(|state| state.cancel_run(run));
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(job, "withdrawn").await;
    tell(&world, &mut known).await;
    assert_eq!(checks(&world).len(), 1, "the same check run says it");
    world.plane.stop().await;
}

/// A cache that went cold is seen where people look: in the check run, and in the answer to why.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_is_over_is_told_with_what_it_had_of_the_cache_and_why_that_is_cold() {
    let mut world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    world.until(jobs[0], "launching").await;
    let mut known = Checks::default();
    tell(&world, &mut known).await;
    assert!(!format!("{:?}", checks(&world)).contains("build cache"));
    let (machine, program) = world.listen().await;
    machine.work(&program).await;
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(jobs[0], "ended").await;
    world.gone(machine.runner).await;
    tell(&world, &mut known).await;
    let told = format!("{:?}", checks(&world));
    let job = demand.launch.unwrap();
    let why = forgeyard_control::views::cached(&world.plane.app.core.read(), job);
    for line in ["8 of 10 reads hit", "ccache: 8 of 10 hit", "cold (denied): writes are denied"] {
        assert!(told.contains(line), "{line}: {told}");
        assert!(why.iter().any(|said| said.contains(line)), "{line}: {why:?}");
    }
    world.plane.stop().await;
}
