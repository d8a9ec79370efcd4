//! Pools through the one door: launches, breaker, drain, canary, machines that wait.

mod breaker;
mod canary;
mod waiting;

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
