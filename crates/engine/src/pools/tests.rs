//! Pools through the one door: launches, breaker, drain, canary, machines that wait.

use super::schedule;
use crate::Farm;
use crate::demand::tests::desk::Desk;
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::device::{DeviceFacts, DeviceState};
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::{Input, RefusalKind, Reply};
use forgeyard_model::job::JobState;
use forgeyard_model::pool::{Breaker, BreakerRule, Canary, Keep, LaunchRate};
use forgeyard_model::resources::{DeviceKind, GpuRequest};
use forgeyard_model::runner::{ObservedRunner, ObservedState, Runner, RunnerState, RunnerWork};
use forgeyard_model::site::SiteReport;
use forgeyard_model::{DemandId, Explanation, PoolName, RunnerId};

fn name(text: &str) -> PoolName {
    text.parse().unwrap()
}

/// A farm whose pool `small` is as the test wants it.
fn desk_with(change: impl FnOnce(&mut forgeyard_model::config::FarmConfig)) -> Desk {
    let mut desk = Desk::new();
    change(&mut desk.config);
    super::check::pools(&desk.config).unwrap();
    desk.give(Input::Ticked);
    desk
}

/// Jobs of the forge that wait or are placed, allowed by the gate.
fn want(desk: &mut Desk, jobs: impl IntoIterator<Item = u64>) -> Vec<DemandId> {
    jobs.into_iter().map(|job| desk.wanted(job)).collect()
}

fn live(farm: &Farm) -> Vec<&Runner> {
    farm.index.live_runners.iter().map(|(_, id)| &farm.runners[id]).collect()
}

fn waiting(farm: &Farm) -> Vec<&Runner> {
    live(farm).into_iter().filter(|runner| runner.work.is_warm() && runner.state.wanted()).collect()
}

fn reasons(farm: &Farm) -> Vec<&Explanation> {
    farm.index.queue.iter().filter_map(|(_, id)| farm.jobs[id].waiting.as_ref()).collect()
}

/// The site says of these machines that they could not be made.
fn not_made(desk: &mut Desk, failed: &[RunnerId]) {
    let text = "No valid host was found. There are not enough hosts available.";
    not_made_because(desk, failed, text);
}

fn not_made_because(desk: &mut Desk, failed: &[RunnerId], text: &str) {
    let mut report = desk.report();
    for seen in &mut report.runners {
        if failed.contains(&seen.runner) {
            let reason = Explanation::new("provider.create", text);
            seen.state = ObservedState::Failed { reason };
        }
    }
    desk.give(Input::SiteReported { site: desk.site, report: Box::new(report) });
}

fn gone(desk: &mut Desk) {
    for _ in 0..2 {
        let report = desk.report();
        desk.give(Input::SiteReported { site: desk.site, report: Box::new(report) });
    }
}

fn breaker(desk: &Desk, pool: &str) -> Breaker {
    desk.farm.pools.get(&name(pool)).map(|record| record.breaker.clone()).unwrap_or_default()
}

fn call(desk: &mut Desk, runner: RunnerId, nonce: &str) -> Result<Reply, forgeyard_model::input::Refusal> {
    desk.offer(Input::WarmCalled { runner, nonce: nonce.to_owned() })
}

#[test]
fn pytorch_ci_infra_527_a_burst_of_jobs_starts_machines_no_faster_than_the_bucket_refills() {
    let mut desk = desk_with(|config| config.pools[0].launches = LaunchRate { burst: 2, per_minute: 6 });
    want(&mut desk, 1..=5);
    assert_eq!(live(&desk.farm).len(), 2);
    let reason = reasons(&desk.farm)[0].clone();
    assert_eq!(reason.code, "queue.launch_pace");
    assert!(reason.message.contains("it goes on before 2023-") && reason.fix.is_some(), "{reason}");
    desk.pass(9);
    assert_eq!(live(&desk.farm).len(), 2);
    desk.pass(1);
    assert_eq!(live(&desk.farm).len(), 3);
    desk.pass(25);
    assert_eq!(live(&desk.farm).len(), 5);
}

#[test]
fn arc_1646_machines_that_never_come_up_open_the_breaker_and_a_probe_closes_it() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 3 });
    want(&mut desk, 1..=4);
    let made: Vec<RunnerId> = live(&desk.farm).iter().map(|runner| runner.id).collect();
    not_made(&mut desk, &made[..3]);
    let Breaker::Open { until, trips: 1 } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    assert_eq!(until.since(desk.now).as_secs(), 60);
    gone(&mut desk);
    // Whoever comes now waits, is told until when, and what the provider said last.
    want(&mut desk, [5]);
    let reason = (*reasons(&desk.farm).last().unwrap()).clone();
    assert_eq!(reason.code, "queue.breaker_open");
    assert!(reason.message.contains(&until.to_string()), "{reason}");
    assert!(reason.evidence.iter().any(|line| line.contains("No valid host was found")), "{reason}");
    assert!(reason.fix.as_ref().unwrap().contains("forgeyard pool reset small"), "{reason}");
    // One machine is the probe, whatever else waits.
    desk.pass(61);
    let Breaker::Probing { runner, .. } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    want(&mut desk, [6]);
    assert!(reasons(&desk.farm).iter().any(|reason| reason.code == "queue.breaker_probing"));
    // It fails too: the pause doubles.
    not_made(&mut desk, &[runner]);
    let Breaker::Open { until, trips: 2 } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    assert_eq!(until.since(desk.now).as_secs(), 120);
    gone(&mut desk);
    desk.pass(121);
    let Breaker::Probing { runner, .. } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    let attempt = desk.farm.runners[&runner].work.attempt().unwrap();
    desk.give(Input::TokenRedeemed { attempt, nonce: "a-nonce".to_owned() });
    assert_eq!(breaker(&desk, "small"), Breaker::default());
    desk.give(Input::Ticked);
    assert!(reasons(&desk.farm).iter().all(|reason| !reason.code.starts_with("queue.breaker")));
}

/// wr #69, #38: whoever asks again and again makes a hot loop of refusals; one refusal says it all.
#[test]
fn wr_69_a_quota_that_is_used_up_pauses_the_pool_at_once_until_a_machine_is_given_back() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 5 });
    let demands = want(&mut desk, [1, 2]);
    let attempt_of = |desk: &Desk, demand: DemandId| {
        let launch = desk.farm.demands[&demand].launch.unwrap();
        desk.farm.jobs[&launch].state.attempt().unwrap()
    };
    let (first, second) = (attempt_of(&desk, demands[0]), attempt_of(&desk, demands[1]));
    desk.give(Input::TokenRedeemed { attempt: first, nonce: "a-nonce".to_owned() });
    let refused = desk.farm.attempts[&second].runner;
    let text = "Quota exceeded for cores: Requested 8, but already used 8 of 8 cores (HTTP 403)";
    not_made_because(&mut desk, &[refused], text);
    let Breaker::Open { until, trips: 1 } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    gone(&mut desk);
    desk.pass(5);
    want(&mut desk, [3]);
    for reason in reasons(&desk.farm) {
        assert_eq!(reason.code, "queue.quota");
        assert!(reason.message.contains("cores: 8 asked for, 8 of 8 used"), "{reason}");
        assert!(reason.message.contains(&until.to_string()), "{reason}");
        assert!(reason.evidence.iter().any(|line| line.contains("Quota exceeded for cores")), "{reason}");
        assert!(reason.fix.as_ref().unwrap().contains("8 more of cores"), "{reason}");
    }
    // What was never there gives nothing back.
    let before = desk.farm.runners.len();
    desk.pass(20);
    assert_eq!(desk.farm.runners.len(), before, "nothing is tried meanwhile");
    assert!(matches!(breaker(&desk, "small"), Breaker::Open { trips: 1, .. }));
    // A machine that was up is gone: one is tried, long before the pause is over.
    let machine = desk.farm.attempts[&first].runner;
    desk.give(Input::AttemptFinished {
        attempt: first,
        fence: desk.farm.attempts[&first].fence,
        facts: Box::default(),
        hits: Vec::new(),
        tail: Vec::new(),
    });
    for _ in 0..3 {
        gone(&mut desk);
        desk.give(Input::Ticked);
    }
    assert_eq!(desk.farm.runners[&machine].state, RunnerState::Deleted);
    assert!(desk.now < until);
    let Breaker::Probing { runner, trips: 1, .. } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    // Still full: the pause doubles.
    not_made_because(&mut desk, &[runner], text);
    assert!(matches!(breaker(&desk, "small"), Breaker::Open { trips: 2, .. }));
}

/// wr #38: an account that may not is not asked again in a loop.
#[test]
fn wr_38_a_provider_that_forbids_is_asked_again_only_after_a_pause_that_grows() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 5 });
    want(&mut desk, 1..=2);
    let text = "Policy doesn't allow os_compute_api:servers:create to be performed. (HTTP 403)";
    let mut asked = 0;
    for _ in 0..60 {
        let made: Vec<RunnerId> = live(&desk.farm).iter().map(|runner| runner.id).collect();
        let fresh: Vec<RunnerId> =
            made.into_iter().filter(|id| desk.farm.runners[id].state.being_made()).collect();
        asked += fresh.len();
        not_made_because(&mut desk, &fresh, text);
        gone(&mut desk);
        desk.pass(30);
    }
    assert!((2..=8).contains(&asked), "{asked} machines were asked for in half an hour");
    let reason = reasons(&desk.farm)[0].clone();
    assert!(reason.code == "queue.breaker_open" || reason.code == "queue.breaker_probing", "{reason}");
    assert!(reason.evidence.iter().any(|line| line.contains("forbids it (status 403)")), "{reason}");
    assert!(reason.fix.as_ref().unwrap().contains("right to make machines"), "{reason}");
}

#[test]
fn a_job_that_was_stopped_before_its_machine_came_up_is_no_failure_of_the_pool() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 1 });
    let demand = want(&mut desk, [1])[0];
    let launch = desk.farm.demands[&demand].launch.unwrap();
    desk.give(Input::CancelJob { job: launch });
    desk.pass(61);
    assert_eq!(breaker(&desk, "small"), Breaker::default());
}

#[test]
fn an_operator_has_a_pool_start_machines_again_at_once() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 1 });
    want(&mut desk, [1]);
    let made = live(&desk.farm)[0].id;
    not_made(&mut desk, &[made]);
    assert_eq!(breaker(&desk, "small").name(), "open");
    let reset = Input::ResetPool { pool: name("small") };
    assert_eq!(desk.give(reset.clone()), Reply::Done);
    assert_eq!(desk.give(reset), Reply::Unchanged);
    assert_eq!(breaker(&desk, "small"), Breaker::default());
    let refused = desk.offer(Input::ResetPool { pool: name("other") }).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::NotFound);
}

#[test]
fn arc_4168_a_machine_that_is_kept_for_an_autopsy_takes_no_place_of_its_pool() {
    let mut desk = desk_with(|config| config.pools[0].max = 1);
    want(&mut desk, [1, 2]);
    assert_eq!(reasons(&desk.farm)[0].code, "queue.pool_full");
    let made = live(&desk.farm)[0].id;
    desk.give(Input::KeepRunner { runner: made, reason: "odd".to_owned() });
    assert_eq!(live(&desk.farm).iter().filter(|runner| runner.state.takes_a_place()).count(), 1);
    // One that failed takes a place until its host says that it is gone, and no longer.
    let second = live(&desk.farm).iter().find(|runner| runner.id != made).unwrap().id;
    want(&mut desk, [3]);
    not_made(&mut desk, &[second]);
    assert!(reasons(&desk.farm).iter().any(|reason| reason.code == "queue.pool_full"));
    gone(&mut desk);
    assert!(live(&desk.farm).iter().any(|runner| runner.state.takes_a_place() && runner.id != second));
}

#[test]
fn a_drained_pool_gets_no_new_work_and_what_runs_there_goes_on() {
    let mut desk = desk_with(|_| {});
    want(&mut desk, [1]);
    let drain = |drain| Input::DrainPool { pool: name("small"), drain };
    assert_eq!(desk.give(drain(true)), Reply::Done);
    assert_eq!(desk.give(drain(true)), Reply::Unchanged);
    want(&mut desk, [2]);
    let reason = reasons(&desk.farm)[0].clone();
    assert_eq!(reason.code, "queue.pool_draining");
    assert!(reason.fix.as_ref().unwrap().contains("forgeyard pool resume small"), "{reason}");
    let busy = live(&desk.farm);
    assert!(busy.len() == 1 && busy[0].state.wanted(), "what runs there goes on");
    // What another pool serves too goes there.
    let labels = vec!["self-hosted".to_owned()];
    desk.webhook(WorkflowJob { labels, ..crate::demand::tests::desk::report(3, "queued") });
    assert_eq!(desk.runner(3).pool, name("large"));
    // A control plane that starts again knows.
    desk.farm = Farm::load(desk.farm.rows());
    desk.give(Input::FarmStarted { epoch: 2 });
    assert!(desk.farm.pools[&name("small")].drain.is_some());
    assert_eq!(desk.give(drain(false)), Reply::Done);
    assert_eq!(live(&desk.farm).len(), 3);
}

/// A canary beside `small` that is the same, for so many of a hundred jobs.
fn with_canary(config: &mut forgeyard_model::config::FarmConfig, percent: u8) {
    let mut new = config.pools[0].clone();
    new.name = name("new");
    new.breaker = BreakerRule { failures: 1 };
    new.canary = Some(Canary { of: name("small"), percent });
    config.pools.push(new);
    config.pools[0].max = 100;
    config.pools[2].max = 100;
    config.max_running = 200;
}

#[test]
fn a_canary_takes_its_share_of_the_jobs_and_none_when_it_does_not_work() {
    for (percent, expected) in [(0, "small"), (100, "new")] {
        let mut desk = desk_with(|config| with_canary(config, percent));
        want(&mut desk, 1..=3);
        assert!(live(&desk.farm).iter().all(|runner| runner.pool == name(expected)), "{percent}");
    }
    let mut desk = desk_with(|config| with_canary(config, 100));
    want(&mut desk, [1]);
    let made = live(&desk.farm)[0].id;
    not_made(&mut desk, &[made]);
    assert_eq!(breaker(&desk, "new").name(), "open");
    want(&mut desk, [2]);
    assert!(live(&desk.farm).iter().any(|runner| runner.pool == name("small")), "all goes to the old pool");
    desk.give(Input::ResetPool { pool: name("new") });
    desk.give(Input::DrainPool { pool: name("new"), drain: true });
    let before = live(&desk.farm).iter().filter(|runner| runner.pool == name("small")).count();
    want(&mut desk, [3]);
    let after = live(&desk.farm).iter().filter(|runner| runner.pool == name("small")).count();
    assert_eq!(after, before + 1);
}

#[test]
fn who_may_use_a_pool_may_use_its_canary_and_the_second_gate_knows() {
    use crate::demand::tests::desk;
    let mut desk = desk_with(|config| with_canary(config, 100));
    want(&mut desk, [1]);
    let attempt = desk.registered(1, 7);
    assert_eq!(desk.runner_of(attempt).pool, name("new"));
    let answer = desk.hook(attempt, desk::taken(desk::REPOSITORY, desk::RUN, desk::MAINTAINER));
    assert!(matches!(answer, forgeyard_model::registration::TakenAnswer::Allowed { .. }), "{answer:?}");
}

#[test]
fn a_job_never_flips_between_a_pool_and_its_canary() {
    let mut desk = desk_with(|config| with_canary(config, 50));
    // All jobs of the desk have one name, so all go one way.
    want(&mut desk, 1..=6);
    let pools: std::collections::BTreeSet<&PoolName> =
        live(&desk.farm).iter().map(|runner| &runner.pool).collect();
    assert_eq!(pools.len(), 1, "{pools:?}");
}

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

#[test]
fn what_cannot_work_is_refused_when_the_configuration_is_read() {
    type Change<'a> = &'a dyn Fn(&mut forgeyard_model::config::FarmConfig);
    let wrong = |change: Change<'_>| {
        let mut config = Desk::new().config;
        change(&mut config);
        super::check::pools(&config).unwrap_err().to_string()
    };
    let cases: [(Change<'_>, &str); 7] = [
        (&|config| config.pools[0].launches.burst = 0, "never start a machine"),
        (&|config| config.pools[0].min = 9, "at most"),
        (
            &|config| config.pools[0].canary = Some(Canary { of: name("nowhere"), percent: 1 }),
            "no other pool",
        ),
        (&|config| config.pools[0].canary = Some(Canary { of: name("large"), percent: 1 }), "less apart"),
        (
            &|config| {
                config.pools[0].warm = 1;
                config.pools[0].runners = None;
                config.pools[0].flavors.insert("large".parse().unwrap());
            },
            "warm-flavor",
        ),
        (
            &|config| {
                let offer = config.pools[0].runners.as_mut().unwrap();
                offer.labels.insert("Docker".to_owned());
            },
            "no job can start containers",
        ),
        (
            &|config| {
                config.pools[0].schedule = vec![forgeyard_model::pool::Schedule {
                    days: forgeyard_model::pool::Day::ALL.into(),
                    from: "00:00".parse().unwrap(),
                    to: "24:00".parse().unwrap(),
                    zone: "Mars/Olympus".to_owned(),
                    min: None,
                    warm: Some(1),
                    max: None,
                }];
            },
            "Mars/Olympus",
        ),
    ];
    for (change, text) in cases {
        let error = wrong(change);
        assert!(error.contains(text) && error.contains("fix: "), "{error}");
    }
    assert!(schedule::zone("Europe/Berlin").is_some());
}
