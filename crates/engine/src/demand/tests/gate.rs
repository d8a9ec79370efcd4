//! Who may have a runner: the first gate.

use super::desk::*;
use forgeyard_model::access::EventClass;
use forgeyard_model::demand::RunFacts;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::resources::Isolation;

pub(super) fn large(job: u64) -> WorkflowJob {
    WorkflowJob { labels: vec!["self-hosted".to_owned(), "gpu".to_owned()], ..report(job, "queued") }
}

pub(super) fn of_fork(author: Option<u64>, starter: u64, run_attempt: u32) -> RunFacts {
    RunFacts {
        event: "pull_request".to_owned(),
        actor: author.map(person),
        triggering_actor: Some(person(starter)),
        head_repository: Some(FORK),
        author: author.map(person),
        run_attempt,
        ..facts()
    }
}

pub(super) fn allow_forks(desk: &mut Desk) {
    desk.config.access.grants[0].events.insert(EventClass::ForkPullRequest);
}

#[test]
fn the_sender_alone_does_not_decide() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    // The sender of the webhook is the maintainer; the one whose event it is, is not.
    desk.found(RunFacts { actor: Some(person(STRANGER)), ..facts() });
    assert_eq!(desk.state(JOB), "held");
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.person_not_allowed");
}

#[test]
fn a_maintainer_who_runs_a_forks_code_again_does_not_open_the_gate() {
    let mut desk = Desk::new();
    let again = |job| WorkflowJob { run_attempt: 2, ..large(job) };
    desk.webhook(again(JOB));
    desk.found(of_fork(Some(STRANGER), MAINTAINER, 2));
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.event_not_granted");
    // Where forks are covered, the author still has to pass.
    allow_forks(&mut desk);
    desk.poll(again(JOB));
    assert_eq!(desk.state(JOB), "held");
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.person_not_allowed");
}

#[test]
fn a_rerun_needs_a_grant_for_reruns_and_for_what_is_run_again() {
    let mut desk = Desk::new();
    desk.config.access.grants[0].events.remove(&EventClass::Rerun);
    desk.webhook(WorkflowJob { run_attempt: 2, ..report(JOB, "queued") });
    desk.found(RunFacts { run_attempt: 2, ..facts() });
    let reason = desk.demand(JOB).reason().unwrap();
    assert_eq!(reason.code, "gate.event_not_granted");
    assert!(reason.fix.as_ref().unwrap().contains("\"rerun\""), "{reason}");
}

#[test]
fn whoever_is_not_known_is_not_allowed() {
    for unknown in [
        RunFacts { actor: None, ..facts() },
        RunFacts { event: "pull_request".to_owned(), author: None, ..facts() },
    ] {
        let mut desk = Desk::new();
        desk.webhook(report(JOB, "queued"));
        desk.found(unknown);
        assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.subject_unknown");
        assert_eq!(desk.state(JOB), "refused");
    }
    let mut desk = Desk::new();
    allow_forks(&mut desk);
    desk.webhook(large(JOB));
    desk.found(of_fork(None, MAINTAINER, 1));
    assert_eq!(desk.state(JOB), "refused");
}

#[test]
fn an_event_without_a_class_is_refused_and_a_foreign_head_is_a_fork_whatever_the_event() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    desk.found(RunFacts { event: "gollum".to_owned(), ..facts() });
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.event_unknown");

    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    desk.found(RunFacts {
        event: "workflow_run".to_owned(),
        head_repository: Some(FORK),
        author: Some(person(MAINTAINER)),
        ..facts()
    });
    let reason = desk.demand(JOB).reason().unwrap();
    assert_eq!(reason.code, "gate.event_not_granted");
    assert!(reason.evidence.iter().any(|line| line.contains("a fork")), "{reason}");
}

#[test]
fn a_fork_needs_a_machine_of_its_own_unless_an_operator_writes_otherwise() {
    let mut desk = Desk::new();
    allow_forks(&mut desk);
    desk.webhook(report(JOB, "queued"));
    desk.found(of_fork(Some(MAINTAINER), MAINTAINER, 1));
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.isolation");
    // What both pools serve goes to the one that keeps it apart.
    desk.webhook(WorkflowJob { labels: vec!["self-hosted".to_owned()], ..report(JOB + 1, "queued") });
    assert_eq!(desk.runner(JOB + 1).pool.as_str(), "large");
    desk.config.access.grants[0].isolation = Some(Isolation::SharedKernel);
    desk.poll(report(JOB, "queued"));
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_repository_without_a_grant_is_refused_without_asking_the_forge() {
    let mut desk = Desk::new();
    desk.webhook(WorkflowJob { repository: repository(OTHER), ..report(JOB, "queued") });
    desk.webhook(WorkflowJob { repository: repository(OTHER + 5), ..report(JOB + 1, "queued") });
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "gate.no_grant");
    assert_eq!(desk.demand(JOB + 1).reason().unwrap().code, "gate.repository_unknown");
    assert!(desk.outbox().is_empty());
}

#[test]
fn a_new_grant_lets_a_refused_job_in_when_it_is_next_heard_of() {
    let mut desk = Desk::new();
    let job = WorkflowJob { repository: repository(OTHER), ..report(JOB, "queued") };
    desk.webhook(job.clone());
    assert_eq!(desk.state(JOB), "refused");
    let mut grant = desk.config.access.grants[0].clone();
    grant.id = "other".to_owned();
    grant.repository.id = Some(OTHER);
    desk.config.access.grants.push(grant);
    desk.poll(job);
    desk.found(RunFacts { head_repository: Some(OTHER), ..facts() });
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_renamed_login_neither_opens_nor_closes_the_gate() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    let mut renamed = person(MAINTAINER);
    renamed.login = "Somebody-Else".to_owned();
    desk.found(RunFacts { actor: Some(renamed), ..facts() });
    assert_eq!(desk.state(JOB), "launching");
    let mut squatter = person(STRANGER);
    squatter.login = person(MAINTAINER).login;
    desk.webhook(WorkflowJob { run: RUN + 1, ..report(JOB + 1, "queued") });
    desk.found(RunFacts { actor: Some(squatter), ..facts() });
    assert_eq!(desk.state(JOB + 1), "held");
}
