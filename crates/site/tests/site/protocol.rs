//! Joining, reporting, leases and faults, over the real HTTP contract.

use crate::farm::{Farm, JOIN_TOKEN};
use crate::sim::{Crash, Fault, Host, device, facts, lease, releasing, runner, wanted};
use forgeyard_model::runner::ObservedState;
use forgeyard_model::site::{ObservedLease, SiteReport};
use forgeyard_model::{RunnerId, Secret};
use forgeyard_site::inventory::ChildProbe;
use forgeyard_site::{CancellationToken, Error, Options};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub fn options(farm: &Farm, host: &Host) -> Options {
    let provider = Arc::new(host.clone());
    let mut options =
        Options::new("box1".parse().unwrap(), &farm.url, &host.state_dir, vec![provider.clone()], provider);
    options.join_token = Some(Secret::new(JOIN_TOKEN));
    options.poll_wait = Duration::from_secs(2);
    options.observe_every = Duration::from_millis(50);
    options
}

/// A farm, a host and a site that runs.
struct Running {
    farm: Farm,
    host: Host,
    stop: CancellationToken,
    site: tokio::task::JoinHandle<Result<(), Error>>,
    _folder: tempfile::TempDir,
}

impl Running {
    async fn start(devices: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let farm = Farm::start(Crash::never()).await;
        let host = Host::new(folder.path().join("state"), devices, Crash::never());
        let stop = CancellationToken::new();
        let site = tokio::spawn(forgeyard_site::run(options(&farm, &host), stop.clone()));
        Self { farm, host, stop, site, _folder: folder }
    }

    async fn restart(&mut self) {
        self.stop.cancel();
        (&mut self.site).await.unwrap().unwrap();
        self.stop = CancellationToken::new();
        self.site = tokio::spawn(forgeyard_site::run(options(&self.farm, &self.host), self.stop.clone()));
    }

    async fn end(self) {
        self.stop.cancel();
        self.site.await.unwrap().unwrap();
        assert_eq!(self.host.with(|world| world.violations.clone()), Vec::<String>::new());
    }
}

fn state(report: &SiteReport, of: RunnerId) -> Option<&ObservedState> {
    report.runners.iter().find(|row| row.runner == of).map(|row| &row.state)
}

fn running(report: &SiteReport, n: u32) -> bool {
    state(report, runner(n)) == Some(&ObservedState::Running)
}

fn released(report: &SiteReport, n: u32) -> bool {
    report.leases.iter().any(|told| matches!(told, ObservedLease::Released { lease: of, .. } if *of == lease(n)))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_site_joins_once_with_its_own_key_and_keeps_its_secrets_to_itself() {
    let mut running = Running::start(1).await;
    let report = running.farm.report_where("it is there", |_| true).await;
    assert_eq!((report.epoch, report.generation), (1, 1));
    assert_eq!(report.devices, [facts(0)]);
    assert_eq!(report.host.cannot.len(), 1);
    assert!(report.host.cpu_millis >= 1000 && report.host.providers.len() == 1);
    running.restart().await;
    running.farm.next_report().await;
    let folder = running.host.state_dir.clone();
    assert_eq!(mode(&folder), 0o700);
    for name in ["key.pem", "identity.json", "leases.journal"] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
    let identity = std::fs::read_to_string(folder.join("identity.json")).unwrap();
    assert!(!identity.contains(JOIN_TOKEN));
    let joins = running.farm.state.joins.lock().unwrap().clone();
    assert_eq!(joins.len(), 1, "a later start reuses what the first one got");
    assert_eq!(joins[0].public_key.len(), 64);
    running.end().await;
}

#[tokio::test]
async fn a_site_that_the_farm_no_longer_knows_joins_again_with_the_same_key() {
    let running = Running::start(0).await;
    running.farm.report_where("it is there", |_| true).await;
    // The farm's database is a new one: an unknown token, and epochs that begin again.
    *running.farm.state.token.lock().unwrap() = "another".to_owned();
    running.farm.change(|set| set.epoch = 7);
    while running.farm.state.joins.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let joins = running.farm.state.joins.lock().unwrap().clone();
    assert_eq!(joins[0].public_key, joins[1].public_key);
    running.farm.report_where("it works from the new farm", |report| report.epoch == 7).await;
    running.end().await;
}

#[tokio::test]
async fn without_a_join_token_or_with_a_wrong_one_the_error_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let farm = Farm::start(Crash::never()).await;
    let host = Host::new(folder.path().join("state"), 0, Crash::never());
    let mut without = options(&farm, &host);
    without.join_token = None;
    let error = forgeyard_site::run(without, CancellationToken::new()).await.unwrap_err().to_string();
    assert!(error.contains("join token") && error.contains("box1"), "{error}");
    let mut wrong = options(&farm, &host);
    wrong.join_token = Some(Secret::new("guess"));
    let error = forgeyard_site::run(wrong, CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, Error::JoinRefused { .. }), "{error}");
}

#[tokio::test]
async fn a_state_folder_that_cannot_be_used_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let farm = Farm::start(Crash::never()).await;
    let blocked = folder.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    let host = Host::new(blocked.join("state"), 0, Crash::never());
    let error = forgeyard_site::run(options(&farm, &host), CancellationToken::new()).await.unwrap_err().to_string();
    assert!(error.contains(&host.state_dir.display().to_string()) && error.contains("writable"), "{error}");
}

#[tokio::test]
async fn a_lease_goes_through_every_step_and_never_ends_before_its_machine() {
    let running = Running::start(2).await;
    running.farm.change(|set| set.runners.push(wanted(1, &[0, 1])));
    let report = running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    assert!(report.runners[0].enforced.contains(&forgeyard_model::resources::Limit::Memory));
    running.farm.report_where("the lease is held", |r| r.leases == [ObservedLease::Held { lease: lease(1) }]).await;
    // Something of the machine is left: the lease stays, and the farm hears why.
    running.host.with(|world| world.destroy_leaves = Some("a mount".to_owned()));
    running.farm.change(|set| {
        set.runners.clear();
        set.releasing.push(releasing(1, &[0, 1]));
    });
    for _ in 0..3 {
        running.farm.next_report().await;
        assert!(!released(&running.farm.last().unwrap(), 1));
    }
    assert_eq!(running.host.with(|world| world.resets.len()), 0);
    running.host.with(|world| world.destroy_leaves = None);
    let report = running.farm.report_where("the lease is released", |report| released(report, 1)).await;
    assert_eq!(report.leases, [ObservedLease::Released { lease: lease(1), sick: Vec::new() }]);
    assert_eq!(running.host.with(|world| (world.machines.len(), world.resets.len())), (0, 2));
    // The farm knows; the site may forget.
    running.farm.change(|set| set.releasing.clear());
    running.farm.report_where("the lease is forgotten", |report| report.leases.is_empty()).await;
    // No report ever told the lease as released beside its machine.
    for report in running.farm.state.reports.lock().unwrap().iter() {
        let gone = matches!(state(report, runner(1)), None | Some(ObservedState::Absent));
        assert!(gone || !released(report, 1), "{report:?}");
    }
    running.end().await;
}

#[tokio::test]
async fn a_device_that_does_not_come_back_is_told_as_sick_with_what_was_seen() {
    let running = Running::start(3).await;
    running.farm.change(|set| set.runners.push(wanted(1, &[0, 1, 2])));
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    running.host.with(|world| {
        world.devices.remove(1);
        world.devices[1].uuid = Some("another".to_owned());
        world.notes = vec!["gpu is lost".to_owned()];
    });
    running.farm.change(|set| {
        set.runners.clear();
        set.releasing.push(releasing(1, &[0, 1, 2]));
    });
    let report = running.farm.report_where("the lease is released", |report| released(report, 1)).await;
    let ObservedLease::Released { sick, .. } = &report.leases[0] else { panic!("{report:?}") };
    let mut sick = sick.clone();
    sick.sort_by_key(|(id, _)| *id != device(1));
    assert_eq!(sick.len(), 2, "{sick:?}");
    assert!(sick[0].0 == device(1) && sick[0].1.contains("gpu is lost"), "{sick:?}");
    assert!(sick[1].0 == device(2) && sick[1].1.contains("another device"), "{sick:?}");
    assert_eq!(report.devices.len(), 2);
    running.end().await;
}

#[tokio::test]
async fn an_error_after_the_machine_was_made_is_settled_by_the_list() {
    let running = Running::start(0).await;
    running.host.with(|world| world.creations.push_back(Fault::MadeAndFails));
    running.farm.change(|set| set.runners.push(wanted(1, &[])));
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    assert_eq!(running.host.with(|world| (world.asked, world.made[&runner(1)])), (1, 1));
    running.end().await;
}

#[tokio::test]
async fn a_request_that_can_never_be_met_is_told_at_once_and_not_tried_again() {
    let mut running = Running::start(0).await;
    running.host.with(|world| world.creations.push_back(Fault::CannotEnforce));
    running.farm.change(|set| set.runners.push(wanted(1, &[])));
    let failed = |report: &SiteReport| matches!(state(report, runner(1)), Some(ObservedState::Failed { .. }));
    let report = running.farm.report_where("the machine failed", failed).await;
    let Some(ObservedState::Failed { reason }) = state(&report, runner(1)) else { panic!() };
    assert_eq!(reason.code, "provider.cannot_enforce");
    running.restart().await;
    running.farm.next_report().await;
    running.farm.report_where("it still failed", failed).await;
    assert_eq!(running.host.with(|world| world.asked), 1);
    running.end().await;
}

/// Public report: a runner controller asked for the same instance 3,071 times in a day.
#[tokio::test]
async fn a_machine_that_cannot_be_made_is_tried_three_times_and_then_told_as_failed() {
    let running = Running::start(0).await;
    running.host.with(|world| world.always_fails = true);
    running.farm.change(|set| set.runners.push(wanted(1, &[])));
    let failed = |report: &SiteReport| matches!(state(report, runner(1)), Some(ObservedState::Failed { .. }));
    running.farm.report_where("the machine failed", failed).await;
    assert_eq!(running.host.with(|world| world.asked), 3);
    running.end().await;
}

#[tokio::test]
async fn a_graceful_stop_leaves_machines_running_and_the_next_start_adopts_them() {
    let mut running = Running::start(1).await;
    running.farm.change(|set| set.runners.push(wanted(1, &[0])));
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    running.restart().await;
    running.farm.next_report().await;
    let report = running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    assert_eq!(report.leases, [ObservedLease::Held { lease: lease(1) }]);
    assert_eq!(running.host.with(|world| world.made[&runner(1)]), 1);
    running.end().await;
}

#[tokio::test]
async fn a_machine_that_vanished_is_told_and_not_made_a_second_time() {
    let running = Running::start(0).await;
    running.farm.change(|set| set.runners.push(wanted(1, &[])));
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    running.host.with(|world| world.machines.clear());
    let vanished = |report: &SiteReport| {
        matches!(state(report, runner(1)), Some(ObservedState::Exited { reason }) if reason.code == "site.machine_vanished")
    };
    running.farm.report_where("the machine vanished", vanished).await;
    assert_eq!(running.host.with(|world| world.made[&runner(1)]), 1);
    running.end().await;
}

#[tokio::test]
async fn a_machine_with_our_tag_that_nobody_wants_is_destroyed_and_told_as_absent() {
    let running = Running::start(0).await;
    running.farm.report_where("it is there", |_| true).await;
    running.host.with(|world| world.machines.insert(runner(9), (Vec::new(), ObservedState::Running)));
    let absent = |report: &SiteReport| state(report, runner(9)) == Some(&ObservedState::Absent);
    running.farm.report_where("the machine is gone", absent).await;
    running.farm.report_where("the report is clean again", |report| report.runners.is_empty()).await;
    running.end().await;
}

#[tokio::test]
async fn while_the_provider_does_not_answer_its_machines_are_not_told_as_gone() {
    let mut running = Running::start(1).await;
    running.farm.change(|set| set.runners.push(wanted(1, &[0])));
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    running.host.with(|world| world.list_fails = true);
    running.farm.next_report().await;
    running.farm.next_report().await;
    assert!(self::running(&running.farm.last().unwrap(), 1));
    // After a restart nothing is known, so nothing is told at all.
    running.restart().await;
    running.farm.state.reports.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(running.farm.last(), None);
    running.host.with(|world| world.list_fails = false);
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    running.end().await;
}

#[tokio::test]
async fn a_desired_set_of_an_older_epoch_is_refused_also_after_a_restart() {
    let mut running = Running::start(0).await;
    running.farm.change(|set| {
        set.epoch = 5;
        set.runners.push(wanted(1, &[]));
    });
    running.farm.report_where("the machine runs", |report| self::running(report, 1)).await;
    // An old replica of the farm comes back and knows of no machine.
    running.farm.change(|set| {
        set.epoch = 4;
        set.runners.clear();
    });
    running.farm.next_report().await;
    running.farm.next_report().await;
    let report = running.farm.last().unwrap();
    assert!(report.epoch == 5 && self::running(&report, 1), "{report:?}");
    running.restart().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(running.host.with(|world| world.machines.len()), 1, "the machine of the newer epoch stays");
    running.farm.change(|set| set.epoch = 6);
    running.farm.report_where("the newest epoch counts", |report| report.epoch == 6).await;
    running.end().await;
}

#[tokio::test]
async fn a_hung_driver_hangs_neither_the_site_nor_its_reports() {
    let folder = tempfile::tempdir().unwrap();
    let farm = Farm::start(Crash::never()).await;
    let host = Host::new(folder.path().join("state"), 0, Crash::never());
    let mut options = options(&farm, &host);
    let hangs = ["sh", "-c", "sleep 1000"].map(str::to_owned).to_vec();
    options.devices = Arc::new(ChildProbe::new(hangs, Duration::from_millis(300)));
    let stop = CancellationToken::new();
    let site = tokio::spawn(forgeyard_site::run(options, stop.clone()));
    farm.change(|set| set.runners.extend([wanted(1, &[]), wanted(2, &[0])]));
    let report = farm.report_where("the machine without devices runs", |report| running(report, 1)).await;
    assert!(report.devices.is_empty());
    let failed = |report: &SiteReport| matches!(state(report, runner(2)), Some(ObservedState::Failed { .. }));
    let report = farm.report_where("the other one cannot run", failed).await;
    let Some(ObservedState::Failed { reason }) = state(&report, runner(2)) else { panic!() };
    assert!(reason.to_string().contains("a driver hangs"), "{reason}");
    stop.cancel();
    site.await.unwrap().unwrap();
}
