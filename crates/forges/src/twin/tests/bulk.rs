use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A farm that starts a runner for each webhook that tells of a queued job, and nothing else.
fn farm(world: &mut World, minutes: u32, per_minute: usize) -> BTreeMap<u64, u32> {
    let mut begun = BTreeMap::new();
    let mut number = 0;
    for minute in 0..minutes {
        let runs = if minute < minutes / 2 { per_minute / 4 } else { 0 };
        for run in 0..runs {
            let jobs = (0..4).map(|n| JobSpec::new(&format!("job {minute} {run} {n}"), &["gpu"]));
            world.run(jobs.collect());
        }
        world.state.advance(MINUTE);
        for one in world.state.take_due_deliveries() {
            let body: Value = serde_json::from_slice(&one.body).unwrap();
            world.state.delivery_answered(one.delivery, Ok(202));
            match body["action"].as_str() {
                Some("queued") => {
                    number += 1;
                    let encoded = world.mint(&format!("r{number}"), &["gpu"]);
                    world.state.start_stand_in(&encoded, Behaviour::default());
                }
                Some("in_progress") => {
                    *begun.entry(body["workflow_job"]["id"].as_u64().unwrap()).or_default() += 1;
                }
                _ => {}
            }
        }
    }
    begun
}

#[test]
fn thousands_of_jobs_are_each_begun_once_and_leave_no_runner() {
    let setup = Setup { links_in_webhooks: false, keep_accepted_bodies: false, ..Setup::default() };
    let mut world = World::with(setup);
    let begun = farm(&mut world, 60, 100);
    assert_eq!(begun.len(), 3000);
    assert!(begun.values().all(|times| *times == 1));
    assert!(world.state.jobs().all(|job| job.status() == JobStatus::Completed));
    assert_eq!(world.state.runners().count(), 0);
}

#[test]
fn lost_webhooks_leave_jobs_queued_for_those_who_rely_on_them() {
    // ARC #2788: the planted mistake of a farm that only listens.
    let mut world = World::new();
    world.state.set_hook_chaos(HookChaos { lost: 100, ..HookChaos::default() });
    farm(&mut world, 30, 12);
    let left = world.state.jobs().filter(|job| job.status() == JobStatus::Queued).count();
    assert!(left > 0);
}

fn path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("repos"),
        Just("lab"),
        Just("solver"),
        Just("orgs"),
        Just("actions"),
        Just("runners"),
        Just("runs"),
        Just("jobs"),
        Just("app"),
        Just("hook"),
        Just("deliveries"),
        Just("installations"),
        Just("access_tokens"),
        Just("generate-jitconfig"),
        Just("check-runs"),
        Just("-1"),
        Just("18446744073709551616"),
        Just("1"),
        Just("_services"),
        Just("actions-simulated"),
        Just("_apis"),
        Just("runtime"),
        Just("runnerscalesets"),
        Just("sessions"),
        Just("_simulated"),
        Just("runner"),
        Just("connect"),
        Just(""),
        Just("é"),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| format!("/{}", parts.join("/")))
}

proptest! {
    #[test]
    fn no_call_makes_it_panic(
        method in prop_oneof![Just("GET"), Just("POST"), Just("PATCH"), Just("DELETE"), Just("BREW")],
        path in path(),
        body in prop::collection::vec(any::<u8>(), 0..60),
        authorization in ".{0,60}",
        number in ".{0,8}",
    ) {
        let mut world = World::new();
        let mut request = Request::new(method, &path).header("authorization", &authorization);
        request.query.insert("page".to_owned(), number.clone());
        request.query.insert("cursor".to_owned(), number);
        request.body = body;
        world.state.serve(&request);
        let bearer = format!("Bearer {}", world.token());
        let reply = world.state.serve(&request.header("authorization", &bearer));
        if let Outcome::Answer(reply) = reply.outcome {
            prop_assert!(reply.status < 500, "{}", reply.value());
        }
    }
}
