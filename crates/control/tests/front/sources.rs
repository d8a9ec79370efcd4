//! Where demand comes from when webhooks fail, get lost, or are turned off.

use crate::plane::eventually;
use crate::world::{Plan, World};
use forgeyard_control::demand::listener::Listener;
use forgeyard_control::demand::poll::Poll;
use forgeyard_control::demand::redelivery;
use forgeyard_control::forges::ScaleSetWish;
use forgeyard_forges::github::Target;
use forgeyard_forges::twin::{CallFault, HookFault, JobSpec, Misbehaviour, RunSpec, Trouble};
use forgeyard_model::demand::Source;
use forgeyard_testkit::build::name;
use std::time::Duration;

fn fault(world: &World, trouble: Trouble) {
    world.twin.with(|state| state.plan_hook_fault(HookFault::next("workflow_job", "queued", trouble)));
}

async fn redeliver(world: &World) -> usize {
    let app = &world.plane.app;
    let connection = app.forges.of(&name("github")).unwrap();
    redelivery::round(app, connection, 0).await.unwrap()
}

async fn poll(world: &World) {
    let app = &world.plane.app;
    Poll::default().round(app, app.forges.of(&name("github")).unwrap()).await;
}

/// Row 15: ARC #2788. A job was lost with one webhook.
#[tokio::test(flavor = "multi_thread")]
async fn arc_2788_failed_delivery_is_asked_for_again_and_its_job_is_found() {
    let world = World::new().await;
    fault(&world, Trouble::Failed(503));
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    assert_eq!(world.demand(jobs[0]), None);
    assert_eq!(redeliver(&world).await, 1);
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(jobs[0], "launching").await;
    assert!(demand.seen.contains_key(&Source::Redelivery), "{:?}", demand.seen);
    assert!(!demand.seen.contains_key(&Source::Webhook), "{:?}", demand.seen);
    world.twin.advance(Duration::from_secs(120)).await;
    assert_eq!(redeliver(&world).await, 0, "what arrived is not asked for again");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redelivery_that_is_held_by_a_limit_is_asked_for_at_the_next_look() {
    let mut world = World::new().await;
    fault(&world, Trouble::Failed(502));
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    let limit = CallFault::next("POST", "/attempts", Misbehaviour::too_many(30));
    world.twin.with(|state| state.plan_call_fault(limit));
    let app = &world.plane.app;
    redelivery::round(app, app.forges.of(&name("github")).unwrap(), 0).await.unwrap_err();
    world.advance(120).await;
    assert_eq!(redeliver(&world).await, 1);
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(jobs[0], "launching").await;
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_that_was_never_sent_is_made_up_for_by_polling() {
    let world = World::new().await;
    fault(&world, Trouble::Lost);
    let (_, jobs) = world.push(vec![world.job("build"), JobSpec::new("docs", &["ubuntu-latest"])]).await;
    assert_eq!(redeliver(&world).await, 0);
    assert_eq!(world.demand(jobs[0]), None);
    eventually("what arrived is read", || async {
        world.plane.app.core.read().index.unread.is_empty().then_some(())
    })
    .await;
    // The webhook of the other job arrived: its run is read in the first round that it is not young in.
    world.twin.advance(Duration::from_secs(40)).await;
    poll(&world).await;
    let demand = world.until(jobs[0], "launching").await;
    assert!(demand.seen.contains_key(&Source::Poll), "{:?}", demand.seen);
    assert_eq!(world.demand(jobs[1]), None, "a job for hosted runners is none of the farm's");
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_webhooks_off_a_job_is_found_served_and_its_end_is_read_back() {
    let mut world = World::with(Plan { silent: true, ..Plan::default() }).await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    poll(&world).await;
    let (machine, program) = world.listen().await;
    machine.work(&program).await;
    world.gone(machine.runner).await;
    world.until(jobs[0], "running").await;
    // Nobody says that it is over; the farm asks.
    world.advance(310).await;
    let demand = world.until(jobs[0], "ended").await;
    assert_eq!(demand.conclusion.as_deref(), Some("success"));
    world.plane.stop().await;
}

/// Nothing is spent on a job that is held, so nothing looks after it either. It is over all the same when its run is
/// cancelled, or when a runner that was made for another job took it, and nobody may tell.
#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_held_job_is_read_once_its_run_is_in_no_list_any_more() {
    let mut world = World::with(Plan { silent: true, ..Plan::default() }).await;
    let (run, job) = world.twin.with(|state| {
        let stranger = state.add_user("stranger");
        let run = state.start_run(RunSpec::push(world.repository, &stranger, vec![world.job("build")]));
        (run, state.current_jobs(run)[0].id)
    });
    let forge = name("github");
    let mut kept = Poll::default();
    kept.round(&world.plane.app, world.plane.app.forges.of(&forge).unwrap()).await;
    world.until(job, "held").await;
    world.twin.with(|state| assert!(state.cancel_run(run)));
    world.advance(250).await;
    kept.round(&world.plane.app, world.plane.app.forges.of(&forge).unwrap()).await;
    let demand = world.until(job, "withdrawn").await;
    assert_eq!(demand.conclusion.as_deref(), Some("cancelled"));
    world.plane.stop().await;
}

/// A look that fails is repeated soon. A run that nobody lists any more may fail for ever, and costs one call in half an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_held_job_that_cannot_be_read_is_not_asked_for_again_soon() {
    let mut world = World::with(Plan { silent: true, ..Plan::default() }).await;
    let (run, job) = world.twin.with(|state| {
        let stranger = state.add_user("stranger");
        let run = state.start_run(RunSpec::push(world.repository, &stranger, vec![world.job("build")]));
        (run, state.current_jobs(run)[0].id)
    });
    let forge = name("github");
    let mut kept = Poll::default();
    kept.round(&world.plane.app, world.plane.app.forges.of(&forge).unwrap()).await;
    world.until(job, "held").await;
    world.twin.with(|state| {
        assert!(state.cancel_run(run));
        let gone = CallFault::next("GET", "/jobs", Misbehaviour::server_error(404));
        state.plan_call_fault(gone.always());
    });
    let before = world.calls_about("/jobs");
    for _ in 0..4 {
        world.advance(250).await;
        kept.round(&world.plane.app, world.plane.app.forges.of(&forge).unwrap()).await;
    }
    assert_eq!(world.calls_about("/jobs") - before, 1);
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repository_is_polled_every_four_minutes_and_not_before() {
    let world = World::new().await;
    let app = &world.plane.app;
    let connection = app.forges.of(&name("github")).unwrap();
    let mut poll = Poll::default();
    poll.round(app, connection).await;
    let calls = world.calls_about("/actions/runs");
    poll.round(app, connection).await;
    assert_eq!(world.calls_about("/actions/runs"), calls, "it is not due");
    world.twin.advance(Duration::from_secs(241)).await;
    poll.round(app, connection).await;
    assert_eq!(world.calls_about("/actions/runs"), calls + 2);
    world.plane.stop().await;
}

/// However many repositories an App is installed at, those without a grant cost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_granted_of_25_000_repositories_cost_less_than_a_thousand_calls_an_hour() {
    let world = World::with(Plan { further: (24_999, 29), ..Plan::default() }).await;
    let app = &world.plane.app;
    let connection = app.forges.of(&name("github")).unwrap();
    // That of the farm itself, so that nothing is polled twice when its own loop takes a turn.
    let poll = app.sources.poll(connection.forge());
    for step in 1..=720 {
        world.twin.advance(Duration::from_secs(5)).await;
        poll.lock().await.round(app, connection).await;
        if step % 16 == 0 {
            redeliver(&world).await;
        }
    }
    let calls = world.calls_about("/");
    assert_eq!(world.calls_about("/actions/runs"), 2 * 30 * 15, "each granted one is polled, no other");
    assert!(calls < 1000, "{calls} calls in an hour");
    world.plane.stop().await;
}

fn scale_set() -> Plan {
    let wish = ScaleSetWish {
        at: Target::parse("conda").unwrap(),
        name: "gpu-set".to_owned(),
        group: "Default".to_owned(),
        labels: vec!["gpu-set".to_owned()],
    };
    Plan { silent: true, scale_sets: vec![wish], labels: vec!["gpu-set".to_owned()], ..Plan::default() }
}

/// A farm without an inbound port: no webhook, no poll.
#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_scale_set_is_heard_of_acquired_served_and_its_message_acknowledged() {
    let mut world = World::with(scale_set()).await;
    let set = listening(&world).await;
    let (_, jobs) = world.push(vec![JobSpec::new("build", &["gpu-set"])]).await;
    let demand = world.until(jobs[0], "launching").await;
    assert!(demand.seen.contains_key(&Source::ScaleSet), "{:?}", demand.seen);
    assert_eq!(demand.scale_set.unwrap().set, set);
    let (machine, program) = world.listen().await;
    assert_eq!(machine.work(&program).await.job, jobs[0]);
    let ended = world.until(jobs[0], "ended").await;
    assert_eq!(ended.taken_by.unwrap().runner, Some(machine.runner));
    world.gone(machine.runner).await;
    eventually("every message is acknowledged", || async {
        (world.twin.with(|state| state.unacknowledged(set)) == 0).then_some(())
    })
    .await;
    assert_eq!(world.calls("POST", "/actions/runners/generate-jitconfig"), 0, "minted by the set alone");
    let last = world.plane.app.store.setting(&format!("scale-set/github/{set}/last-message")).await.unwrap();
    assert!(last.is_some());
    world.plane.stop().await;
}

/// At most three calls for a job: what webhooks told of is not read again because a message speaks of it too.
#[tokio::test(flavor = "multi_thread")]
async fn message_of_a_job_that_webhooks_told_of_costs_no_call() {
    let world = World::with(Plan { silent: false, ..scale_set() }).await;
    listening(&world).await;
    // The request for a message that is under way answers with the first job, the next one late.
    let late = Misbehaviour::SlowSimulated(Duration::from_secs(10));
    world.twin.with(|state| state.plan_call_fault(CallFault::next("GET", "/message", late)));
    let (_, first) = world.push(vec![JobSpec::new("build", &["gpu-set"])]).await;
    world.until(first[0], "launching").await;
    let (run, jobs) = world.push(vec![JobSpec::new("build", &["gpu-set"])]).await;
    world.until(jobs[0], "launching").await;
    world.twin.advance(Duration::from_secs(10)).await;
    let demand = eventually("the message is bound to the job", || async {
        let farm = world.plane.app.core.read();
        let demand = farm.demand_of(&name("github"), jobs[0])?;
        demand.scale_set.is_some().then(|| demand.clone())
    })
    .await;
    assert!(demand.seen.contains_key(&Source::Webhook), "{:?}", demand.seen);
    assert_eq!(world.calls_about(&format!("/actions/runs/{run}/attempts")), 0);
    world.plane.stop().await;
}

/// Rows 6 and 7: ARC #3209, #4285. A session that another listener holds is waited for; a message that comes broken comes
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn arc_3209_second_listener_waits_and_arc_4285_broken_message_comes_again() {
    let world = World::with(scale_set()).await;
    listening(&world).await;
    let app = &world.plane.app;
    let connection = app.forges.of(&name("github")).unwrap();
    let second = Listener::open(app, connection, &connection.scale_sets()[0]).await.unwrap();
    assert!(second.is_none());
    world.twin.with(|state| {
        state.plan_call_fault(CallFault::next("GET", "/message", Misbehaviour::CutBody).times(2));
    });
    let (_, jobs) = world.push(vec![JobSpec::new("build", &["gpu-set"])]).await;
    world.until(jobs[0], "launching").await;
    world.plane.stop().await;
}

/// Row 4: ARC #4027. A new session knows nothing of what waits.
#[tokio::test(flavor = "multi_thread")]
async fn arc_4027_new_session_begins_with_a_poll() {
    let world = World::with(scale_set()).await;
    listening(&world).await;
    let (person, repository) = (world.person.clone(), world.repository);
    let mut job = 0;
    let world = world
        .restart_after(|twin| {
            twin.with(|state| {
                state.setup_mut().sessions_forget = true;
                let spec = RunSpec::push(repository, &person, vec![JobSpec::new("build", &["gpu-set"])]);
                let run = state.start_run(spec);
                job = state.current_jobs(run)[0].id;
            });
        })
        .await;
    let demand = world.until(job, "launching").await;
    assert!(demand.seen.contains_key(&Source::Poll), "{:?}", demand.seen);
    world.plane.stop().await;
}

/// The scale set, once its listener has asked for messages. It is the first one of this GitHub.
async fn listening(world: &World) -> u64 {
    eventually("the queue of the scale set is listened to", || async {
        let capacity = world.twin.with(|state| state.scale_set(1)?.capacity);
        capacity.map(|_| 1)
    })
    .await
}
