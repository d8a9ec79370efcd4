//! Machines that are there before the job.

use super::*;

#[test]
fn a_machine_that_waits_is_there_before_the_job_and_takes_exactly_one() {
    let mut desk = desk_with(|config| config.pools[0].warm = 1);
    let id = waiting(&desk.farm)[0].id;
    // One whose agent has not called is no capacity (ARC 4602): the job gets a machine of its own.
    want(&mut desk, [1]);
    assert_eq!(live(&desk.farm).len(), 2);
    call(&mut desk, id, "nonce-of-one").unwrap();
    assert_eq!(desk.farm.runners[&id].state, RunnerState::Ready);
    want(&mut desk, [2]);
    let RunnerWork::Handed { attempt, .. } = desk.farm.runners[&id].work else {
        panic!("{:?}", desk.farm.runners[&id])
    };
    assert_eq!(desk.farm.attempts[&attempt].runner, id);
    assert_eq!(desk.farm.attempts[&attempt].state, AttemptState::Placed);
    // Another takes its place.
    desk.give(Input::Ticked);
    assert_eq!(waiting(&desk.farm).len(), 1);
    assert_ne!(waiting(&desk.farm)[0].id, id);
    // It goes on as any other machine, and is gone after its one job.
    desk.give(Input::TokenRedeemed { attempt, nonce: "nonce-of-one".to_owned() });
    assert_eq!(desk.farm.runners[&id].state, RunnerState::Registered);
    assert!(desk.farm.runners[&id].registration.is_some(), "its configuration is asked for only now");
    let job = desk.farm.attempts[&attempt].job;
    desk.give(Input::CancelJob { job });
    desk.pass(61);
    assert!(!desk.farm.runners[&id].state.wanted(), "{:?}", desk.farm.runners[&id].state);
}

#[test]
fn the_first_agent_has_a_machine_that_waits_and_nobody_else_gets_its_attempt() {
    let mut desk = desk_with(|config| config.pools[0].warm = 1);
    let id = waiting(&desk.farm)[0].id;
    assert_eq!(call(&mut desk, id, "first-nonce").unwrap(), Reply::Done);
    assert_eq!(call(&mut desk, id, "first-nonce").unwrap(), Reply::Unchanged);
    assert_eq!(call(&mut desk, id, "other-nonce").unwrap_err().reason.code, "token.replayed");
    want(&mut desk, [1]);
    let attempt = desk.farm.runners[&id].work.attempt().unwrap();
    let redeem = |nonce: &str| Input::TokenRedeemed { attempt, nonce: nonce.to_owned() };
    assert_eq!(desk.offer(redeem("other-nonce")).unwrap_err().reason.code, "token.replayed");
    assert_eq!(call(&mut desk, id, "other-nonce").unwrap_err().reason.code, "token.replayed");
    desk.give(redeem("first-nonce"));
}

#[test]
fn buildbot_4413_a_machine_of_another_shape_is_not_given_to_a_job() {
    let mut desk = desk_with(|config| config.pools[0].warm = 1);
    let id = waiting(&desk.farm)[0].id;
    call(&mut desk, id, "first-nonce").unwrap();
    desk.config.flavors[0].memory_mib *= 2;
    want(&mut desk, [1]);
    assert!(desk.farm.runners[&id].work.is_warm(), "it is too small now");
    desk.give(Input::Ticked);
    assert!(!desk.farm.runners[&id].state.wanted(), "and is replaced");
    desk.give(Input::Ticked);
    let shape = waiting(&desk.farm)[0].shape.clone();
    assert_eq!(shape, desk.config.flavors[0]);
}

#[test]
fn arc_3704_so_many_wait_beside_those_that_are_busy_and_never_more_than_the_pool_may_have() {
    let mut desk = desk_with(|config| (config.pools[0].warm, config.pools[0].max) = (2, 4));
    assert_eq!(waiting(&desk.farm).len(), 2);
    want(&mut desk, [1, 2, 3]);
    desk.give(Input::Ticked);
    let taken = live(&desk.farm).iter().filter(|runner| runner.state.takes_a_place()).count();
    assert_eq!(taken, 4);
}

#[test]
fn arc_3468_a_minimum_is_kept_and_what_failed_does_not_count() {
    let mut desk = desk_with(|config| config.pools[0].min = 2);
    let made: Vec<RunnerId> = waiting(&desk.farm).iter().map(|runner| runner.id).collect();
    assert_eq!(made.len(), 2);
    not_made(&mut desk, &made[..1]);
    desk.give(Input::Ticked);
    assert_eq!(waiting(&desk.farm).len(), 2, "a fresh one takes the place of the one that failed");
    assert!(waiting(&desk.farm).iter().all(|runner| runner.id != made[0]));
}

#[test]
fn machines_are_kept_for_some_minutes_after_use_and_then_let_go() {
    let mut desk = desk_with(|config| config.pools[0].keep = Some(Keep { count: 1, minutes: 5 }));
    assert!(waiting(&desk.farm).is_empty(), "nobody used it yet");
    want(&mut desk, [1]);
    desk.give(Input::Ticked);
    assert_eq!(waiting(&desk.farm).len(), 1);
    let id = waiting(&desk.farm)[0].id;
    call(&mut desk, id, "first-nonce").unwrap();
    desk.pass(4 * 60);
    let kept = desk.farm.runners[&id].state.wanted();
    assert!(kept, "the job still waits or has ended lately");
    for _ in 0..8 {
        desk.pass(60);
    }
    desk.farm.pools.get(&name("small")).unwrap();
    let used = desk.farm.pools[&name("small")].used_at.unwrap();
    assert_eq!(waiting(&desk.farm).len(), usize::from(desk.now.since(used).as_secs() < 300));
}

#[test]
fn a_schedule_ends_idle_machines_only() {
    let mut desk = desk_with(|config| config.pools[0].warm = 3);
    let ids: Vec<RunnerId> = waiting(&desk.farm).iter().map(|runner| runner.id).collect();
    call(&mut desk, ids[0], "first-nonce").unwrap();
    call(&mut desk, ids[1], "second-nonce").unwrap();
    want(&mut desk, [1]);
    desk.give(Input::Ticked);
    let busy = ids.iter().find(|id| desk.farm.runners[id].work.attempt().is_some()).copied().unwrap();
    desk.config.pools[0].warm = 1;
    desk.give(Input::Ticked);
    assert!(desk.farm.runners[&busy].state.wanted(), "gitlab_runner_37643: what is busy is not touched");
    let left = waiting(&desk.farm);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].state, RunnerState::Ready, "those that are not there yet go first");
}

#[test]
fn while_a_job_waits_for_room_machines_that_wait_in_its_way_are_given_up() {
    let mut desk = desk_with(|config| (config.pools[0].warm, config.pools[0].max) = (2, 2));
    assert_eq!(waiting(&desk.farm).len(), 2);
    // Neither has called, so the job cannot have one, and the pool is full.
    want(&mut desk, [1]);
    assert_eq!(reasons(&desk.farm)[0].code, "queue.pool_full");
    desk.give(Input::Ticked);
    assert_eq!(waiting(&desk.farm).len(), 1, "one at a time");
    desk.give(Input::Ticked);
    assert_eq!(waiting(&desk.farm).len(), 1);
    for _ in 0..3 {
        gone(&mut desk);
        desk.give(Input::Ticked);
    }
    assert!(desk.farm.index.queue.is_empty(), "the job has the room");
}

#[test]
fn a_machine_that_waits_holds_its_device_and_gives_it_to_its_job() {
    let mut desk = Desk::new();
    let gpu = GpuRequest { count: 1, kind: None, min_memory_mib: 0, min_compute_capability: 0 };
    desk.config.flavors[0].gpu = Some(gpu);
    desk.config.pools[0].warm = 1;
    let device = DeviceFacts {
        key: "simulated:0".to_owned(),
        kind: DeviceKind::OpenclCpu,
        model: "simulated".to_owned(),
        uuid: None,
        driver: "simulated".to_owned(),
        memory_mib: 1024,
        compute_capability: 0,
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    };
    let mut report = desk.report();
    report.devices.push(device);
    desk.give(Input::SiteReported { site: desk.site, report: Box::new(report.clone()) });
    desk.give(Input::Ticked);
    let id = waiting(&desk.farm)[0].id;
    let lease = desk.farm.leases.values().next().unwrap().clone();
    assert_eq!((lease.runner, lease.attempt), (id, None));
    assert!(desk.farm.devices.values().all(|device| device.state == DeviceState::Leased { lease: lease.id }));
    // What the site is told: the devices, and a token that is the machine's.
    let told = crate::desired::desired(&desk.farm, desk.site, |of| match of {
        crate::desired::TokenOf::Attempt(_) => "attempt".to_owned(),
        crate::desired::TokenOf::Runner(runner) => runner.id.to_string(),
    })
    .unwrap();
    assert_eq!((told.runners[0].devices.len(), told.runners[0].token.clone()), (1, id.to_string()));
    let report = |desk: &Desk| SiteReport { devices: report.devices.clone(), ..desk.report() };
    call(&mut desk, id, "first-nonce").unwrap();
    want(&mut desk, [1]);
    let attempt = desk.farm.runners[&id].work.attempt().unwrap();
    assert_eq!(desk.farm.leases[&lease.id].attempt, Some(attempt));
    assert_eq!(desk.farm.attempts[&attempt].lease, Some(lease.id));
    let after = crate::desired::desired(&desk.farm, desk.site, |_| "same".to_owned()).unwrap();
    assert_eq!((after.runners[0].runner, after.runners[0].devices.len()), (id, 1));
    // A device that is taken out costs the machine its place in waiting.
    let full = report(&desk);
    desk.give(Input::SiteReported { site: desk.site, report: Box::new(full) });
    assert_eq!(desk.farm.jobs.values().filter(|job| matches!(job.state, JobState::Placed { .. })).count(), 1);
}

#[test]
fn nothing_of_what_waits_is_lost_when_the_control_plane_starts_again() {
    let mut desk = desk_with(|config| config.pools[0].warm = 1);
    let id = waiting(&desk.farm)[0].id;
    call(&mut desk, id, "first-nonce").unwrap();
    desk.farm = Farm::load(desk.farm.rows());
    desk.give(Input::FarmStarted { epoch: 2 });
    desk.report_site();
    desk.give(Input::Ticked);
    assert_eq!(waiting(&desk.farm).iter().map(|runner| runner.id).collect::<Vec<_>>(), [id]);
    want(&mut desk, [1]);
    assert!(matches!(desk.farm.runners[&id].work, RunnerWork::Handed { .. }));
}

#[test]
fn a_machine_that_waited_long_is_replaced_and_one_that_broke_is_not_counted() {
    let mut desk = desk_with(|config| config.pools[0].warm = 1);
    let id = waiting(&desk.farm)[0].id;
    call(&mut desk, id, "first-nonce").unwrap();
    for _ in 0..(6 * 60 + 2) {
        desk.pass(60);
    }
    assert!(!desk.farm.runners[&id].state.wanted());
    let id = waiting(&desk.farm)[0].id;
    call(&mut desk, id, "second-nonce").unwrap();
    let mut report = desk.report();
    report.runners.retain(|seen: &ObservedRunner| seen.runner != id);
    desk.give(Input::SiteReported { site: desk.site, report: Box::new(report) });
    assert_eq!(desk.farm.runners[&id].state.name(), "failed");
    assert_eq!(breaker(&desk, "small"), Breaker::default(), "it had come up, so the pool works");
}
