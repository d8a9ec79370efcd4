//! Scale sets: the whole chain, and what goes wrong in it.

use super::world::{World, minutes, org, words};
use forgeyard_forges::github::scaleset::{
    JobEvent, Message, NewScaleSet, Opened, ScaleSet, ScaleSets, Session,
};
use forgeyard_forges::github::{Cause, Deleted, Jit};
use forgeyard_forges::twin::{CallFault, Conclusion, JobSpec, Misbehaviour, Setup};
use std::time::Duration;

fn setup() -> Setup {
    // Polls with nothing to say end at once in real time.
    Setup { poll_hold_real: Duration::from_millis(20), ..Setup::default() }
}

fn wanted() -> NewScaleSet {
    NewScaleSet { name: "gpu".into(), runner_group_id: 1, labels: vec!["gpu".into(), "cuda".into()] }
}

async fn set(world: &World) -> (ScaleSets, ScaleSet) {
    let sets = world.client().scale_sets(org());
    let made = sets.ensure(&wanted()).await.unwrap();
    (sets, made)
}

async fn session(sets: &ScaleSets, set: u64) -> Session {
    match sets.open_session(set, "farm").await.unwrap() {
        Opened::Session(session) => *session,
        Opened::Conflict => panic!("the session is taken"),
    }
}

async fn next(session: &mut Session, last: Option<u64>) -> Message {
    poll_with(session, last, 10).await
}

async fn poll_with(session: &mut Session, last: Option<u64>, capacity: u32) -> Message {
    for _ in 0..5 {
        if let Some(message) = session.poll(last, capacity).await.unwrap() {
            return message;
        }
    }
    panic!("no message");
}

fn offers(message: &Message) -> Vec<u64> {
    message
        .events
        .iter()
        .filter_map(|event| match event {
            JobEvent::Available { job } => Some(job.runner_request_id),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn a_scale_set_is_made_once_found_again_changed_and_deleted() {
    let world = World::with(Setup { byte_order_mark: true, ..setup() }).await;
    let sets = world.client().scale_sets(org());
    assert_eq!(sets.group("Default").await.unwrap().map(|group| (group.id, group.default)), Some((1, true)));
    assert_eq!(sets.group("nobody's").await.unwrap(), None);
    assert_eq!(sets.find(1, "gpu").await.unwrap(), None);
    let made = sets.ensure(&wanted()).await.unwrap();
    assert!(made.lacks(&wanted().labels).is_empty());
    assert_eq!(sets.ensure(&wanted()).await.unwrap().id, made.id);
    assert_eq!(sets.create(&wanted()).await.unwrap_err().cause(), Some(&Cause::ScaleSetExists));
    let renamed = NewScaleSet { name: "gpu-2".into(), ..wanted() };
    assert_eq!(sets.update(made.id, &renamed).await.unwrap().name, "gpu-2");
    assert_eq!(sets.get(made.id).await.unwrap().map(|set| set.name), Some("gpu-2".to_owned()));
    assert!(sets.delete(made.id).await.unwrap());
    assert!(!sets.delete(made.id).await.unwrap());
    assert_eq!(sets.get(made.id).await.unwrap(), None);
    assert_eq!(world.count("POST", "/runner-registration"), 1, "one admin connection serves all");
}

#[tokio::test]
async fn a_job_goes_from_offer_to_end_through_the_queue() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let mut session = session(&sets, set.id).await;
    assert_eq!(session.poll(None, 10).await.unwrap(), None);
    let (run, _) = world.push(vec![JobSpec::new("build", &["GPU"])]);

    let offer = next(&mut session, None).await;
    let requests = offers(&offer);
    let job = offer.events[0].job().unwrap();
    assert_eq!((job.repository_name.as_str(), job.owner_name.as_str()), ("feedstock", "conda"));
    assert_eq!((job.event_name.as_str(), job.workflow_run_id), ("push", Some(run)));
    assert_eq!(session.acquire(&requests).await.unwrap(), requests);
    session.acknowledge(offer.id).await.unwrap();

    let assigned = next(&mut session, Some(offer.id)).await;
    assert!(matches!(assigned.events[0], JobEvent::Assigned { .. }));
    assert_eq!(assigned.statistics.map(|numbers| numbers.total_assigned_jobs), Some(1));
    session.acknowledge(assigned.id).await.unwrap();

    let Jit::Minted { runner, config } = sets.mint_jit(set.id, "gpu-1", "_work").await.unwrap() else {
        panic!("the name is free")
    };
    assert!(matches!(sets.mint_jit(set.id, "gpu-1", "_work").await.unwrap(), Jit::NameTaken));
    let agent = sets.agent_by_name("gpu-1").await.unwrap().unwrap();
    assert_eq!((agent.id, agent.scale_set), (runner.id, Some(set.id)));
    world.twin.with(|state| {
        let id = state.connect(config.expose()).unwrap();
        assert!(state.begin_job(id));
    });
    assert_eq!(sets.delete_agent(runner.id).await.unwrap(), Deleted::Busy);

    let started = next(&mut session, Some(assigned.id)).await;
    assert!(
        matches!(&started.events[0], JobEvent::Started { runner_name: Some(name), .. } if name == "gpu-1"),
        "{started:?}"
    );
    session.acknowledge(started.id).await.unwrap();
    world.twin.with(|state| assert!(state.end_job(runner.id, Conclusion::Success)));
    let ended = next(&mut session, Some(started.id)).await;
    assert!(matches!(&ended.events[0], JobEvent::Completed { result, .. } if result == "succeeded"));
    assert_eq!(sets.agent(runner.id).await.unwrap(), None);
    assert_eq!(sets.agent_by_name("gpu-1").await.unwrap(), None);
    session.close().await.unwrap();
}

/// The order persist, acquire, acknowledge: a crash before the acknowledgement brings the offer again, and acquiring
/// twice gives the job once.
#[tokio::test]
async fn a_message_that_was_not_acknowledged_comes_again_and_acquiring_twice_is_harmless() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let mut before = session(&sets, set.id).await;
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    let offer = next(&mut before, None).await;
    assert_eq!(before.acquire(&offers(&offer)).await.unwrap().len(), 1);
    // The crash: neither acknowledged nor closed. The next listener waits for the session to lapse.
    assert!(matches!(sets.open_session(set.id, "next").await.unwrap(), Opened::Conflict));
    world.clock_forward(minutes(2));
    let mut after = session(&sets, set.id).await;
    let again = next(&mut after, None).await;
    assert_eq!(offers(&again), offers(&offer));
    assert_eq!(after.acquire(&offers(&again)).await.unwrap(), Vec::<u64>::new(), "it is ours already");
    after.acknowledge(again.id).await.unwrap();
    assert!(matches!(next(&mut after, Some(again.id)).await.events[0], JobEvent::Assigned { .. }));
}

/// ARC #3209: a session that another listener holds is told as such, and is free when that one closes it.
#[tokio::test]
async fn arc_3209_a_held_session_is_a_conflict_and_no_error() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let held = session(&sets, set.id).await;
    assert!(matches!(sets.open_session(set.id, "other").await.unwrap(), Opened::Conflict));
    held.close().await.unwrap();
    session(&sets, set.id).await;
}

#[tokio::test]
async fn a_queue_token_that_ended_is_refreshed_in_passing() {
    let world = World::with(Setup { session_lapse: minutes(600), ..setup() }).await;
    let (sets, set) = set(&world).await;
    let mut session = session(&sets, set.id).await;
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    world.clock_forward(minutes(61));
    let offer = next(&mut session, None).await;
    world.clock_forward(minutes(61));
    assert_eq!(session.acquire(&offers(&offer)).await.unwrap().len(), 1);
    world.clock_forward(minutes(61));
    session.acknowledge(offer.id).await.unwrap();
    assert!(world.count("POST", "/runner-registration") >= 2, "the admin connection was renewed too");
}

/// ARC #4356: the refresh says 404 for ever. The error says that the session is gone, and a new one works.
#[tokio::test]
async fn arc_4356_a_session_that_cannot_be_refreshed_is_gone_and_can_be_made_anew() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let mut lost = session(&sets, set.id).await;
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    world.twin.with(|state| state.drop_session(set.id));
    world.clock_forward(minutes(61));
    let error = lost.poll(None, 10).await.unwrap_err();
    assert_eq!(error.cause(), Some(&Cause::SessionGone), "{}", words(&error));
    let mut anew = session(&sets, set.id).await;
    assert_eq!(offers(&next(&mut anew, None).await).len(), 1);
}

/// ARC #4285: 200 with an empty body, and a connection that ends, are nothing to die of.
#[tokio::test]
async fn arc_4285_an_empty_answer_and_a_lost_one_leave_the_message_in_the_queue() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let mut session = session(&sets, set.id).await;
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    world.fault(CallFault::next("GET", "/messages", Misbehaviour::EmptyBody));
    assert_eq!(session.poll(None, 10).await.unwrap(), None);
    world.fault(CallFault::next("GET", "/messages", Misbehaviour::AnswerLost));
    let error = session.poll(None, 10).await.unwrap_err();
    assert!(error.outcome_unknown(), "{}", words(&error));
    world.fault(CallFault::next("GET", "/messages", Misbehaviour::server_error(503)));
    let error = session.poll(None, 10).await.unwrap_err();
    assert!(matches!(error.cause(), Some(Cause::Unavailable { .. })), "{error}");
    assert_eq!(offers(&next(&mut session, None).await).len(), 1);
}

#[tokio::test]
async fn the_capacity_that_is_named_is_heard_and_the_scale_set_stands_in_the_user_agent() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let mut session = session(&sets, set.id).await;
    // Nothing is there yet, and the twin records calls that it answered with something.
    session.poll(None, 3).await.unwrap();
    world.push(vec![JobSpec::new("build", &["gpu"])]);
    poll_with(&mut session, None, 3).await;
    let heard = world.twin.with(|state| state.scale_set(set.id).and_then(|set| set.capacity));
    assert_eq!(heard, Some(3));
    let agents = world.twin.with(|state| {
        let of_queue = state.calls().filter(|call| call.request.path.ends_with("/messages"));
        of_queue.filter_map(|call| call.request.headers.get("user-agent").cloned()).collect::<Vec<_>>()
    });
    let agent: serde_json::Value = serde_json::from_str(&agents[0]).unwrap();
    assert_eq!((agent["system"].as_str(), agent["scale_set_id"].as_u64()), (Some("forgeyard"), Some(set.id)));
}

#[tokio::test]
async fn an_admin_token_that_is_not_taken_is_replaced_once() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    let refusal = Misbehaviour::Status { status: 401, message: "no".into(), retry_after: None };
    world.next_fails("GET", "/runnerscalesets", refusal.clone());
    assert!(sets.get(set.id).await.unwrap().is_some());
    assert_eq!(world.count("POST", "/runner-registration"), 2);
    world.fault(CallFault::next("GET", "/runnerscalesets", refusal).always());
    assert_eq!(sets.get(set.id).await.unwrap_err().cause(), Some(&Cause::BadCredentials));
}

#[tokio::test]
async fn a_registration_token_that_is_not_known_everywhere_yet_is_tried_anew() {
    let world = World::with(setup()).await;
    let refusal = Misbehaviour::Status { status: 403, message: "not yet".into(), retry_after: None };
    world.next_fails("POST", "/runner-registration", refusal);
    set(&world).await;
    assert_eq!(world.count("POST", "/registration-token"), 2);
}

#[tokio::test]
async fn a_429_of_the_actions_service_is_a_wait() {
    let world = World::with(setup()).await;
    let (sets, set) = set(&world).await;
    world.next_fails("GET", "/runnerscalesets", Misbehaviour::too_many(30));
    let error = sets.get(set.id).await.unwrap_err();
    let until = world.twin.clock().now().plus(Duration::from_secs(30));
    assert!(
        matches!(&error, forgeyard_forges::github::GithubError::Limited { until: told, .. } if *told == until),
        "{error}"
    );
}
