//! Claims about jobs that start containers of their own.

use super::desk::{Desk, report};
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::resources::Isolation;

fn asks(job: u64, labels: &[&str]) -> WorkflowJob {
    WorkflowJob { labels: labels.iter().map(|label| (*label).to_owned()).collect(), ..report(job, "queued") }
}

#[test]
fn a_job_that_needs_docker_is_refused_from_a_sandbox_pool_with_that_reason() {
    let mut desk = Desk::new();
    desk.webhook(asks(1, &["self-hosted", "Linux", "Docker"]));
    assert_eq!(desk.state(1), "refused");
    let reason = desk.demand(1).reason().unwrap().clone();
    assert_eq!(reason.code, "demand.needs_docker");
    assert!(
        reason.message.contains("small") && reason.fix.as_ref().unwrap().contains("virtual machines"),
        "{reason}"
    );
    assert!(desk.waiting("look").is_empty(), "the forge is not asked for what cannot change that");
}

#[test]
fn a_job_that_needs_docker_gets_a_machine_of_its_own_where_a_pool_offers_docker() {
    let mut desk = Desk::new();
    let pool = desk.config.pools.iter_mut().find(|pool| pool.isolation == Isolation::Vm).unwrap();
    pool.runners.as_mut().unwrap().labels.insert("docker".to_owned());
    desk.webhook(asks(1, &["self-hosted", "linux", "docker"]));
    desk.found(super::desk::facts());
    assert_eq!(desk.state(1), "launching");
    assert_eq!(desk.runner(1).pool.as_str(), "large");
}

#[test]
fn a_job_for_somebody_elses_machines_is_not_ours_because_it_needs_docker() {
    let mut desk = Desk::new();
    desk.webhook(asks(1, &["docker"]));
    desk.webhook(asks(2, &["windows", "docker"]));
    assert!(desk.farm.demands.is_empty());
}

#[test]
fn a_refused_job_is_wanted_when_a_pool_offers_docker_later() {
    let mut desk = Desk::new();
    desk.webhook(asks(1, &["self-hosted", "linux", "docker"]));
    assert_eq!(desk.state(1), "refused");
    desk.config.pools[1].runners.as_mut().unwrap().labels.insert("docker".to_owned());
    desk.poll(asks(1, &["self-hosted", "linux", "docker"]));
    desk.found(super::desk::facts());
    assert_eq!(desk.state(1), "launching");
}
