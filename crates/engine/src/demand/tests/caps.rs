//! Launches for jobs of forges are counted like any other work.

use super::desk::*;

#[test]
fn a_launch_waits_for_the_cap_of_its_repository_and_its_demand_says_so() {
    let mut desk = Desk::new();
    desk.config.queue.caps.repository = Some(1);
    desk.launched(JOB);
    desk.webhook(report(JOB + 1, "queued"));
    assert_eq!(desk.state(JOB + 1), "wanted");
    let why = crate::why::why_demand(&desk.foresight(), desk.demand(JOB + 1));
    assert_eq!(why.reason.code, "queue.cap_repository", "{}", why.reason);
    let account = desk.launch(JOB + 1).account.clone().unwrap();
    assert_eq!((account.repository.id, account.organisation.as_str()), (REPOSITORY, "octo"));
    assert_eq!(account.person, MAINTAINER);
    // The place is given when the first is over.
    let attempt = desk.registered(JOB, 1);
    desk.in_progress(JOB, attempt);
    desk.completed(JOB, "success");
    desk.finished(attempt, 0);
    assert_eq!(desk.state(JOB + 1), "launching");
}

/// A runner of a forge has the time limit of its flavor, however long the forge would let its job run.
#[test]
fn a_runner_of_a_forge_is_ended_at_the_time_limit_of_its_flavor_and_why_says_so() {
    let mut desk = Desk::new();
    desk.config.flavors[0].time_limit_seconds = 3600;
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 1);
    desk.in_progress(JOB, attempt);
    let reason = crate::why::why(&desk.foresight(), desk.launch(JOB)).reason;
    assert!(
        reason.evidence.iter().any(|line| line.contains("time limit of 60 min; it is ended at")),
        "{reason}"
    );
    for _ in 0..60 {
        desk.pass(60);
    }
    assert!(desk.farm.attempts[&attempt].state.live());
    (0..3).for_each(|_| desk.pass(40));
    let verdict = desk.farm.attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("limit.wall"));
}
