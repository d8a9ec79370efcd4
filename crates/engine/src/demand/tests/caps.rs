//! Launches for jobs of forges are counted like any other work.

use super::desk::*;

#[test]
fn a_launch_waits_for_the_cap_of_its_repository_and_its_demand_says_so() {
    let mut desk = Desk::new();
    desk.config.queue.caps.repository = Some(1);
    desk.launched(JOB);
    desk.webhook(report(JOB + 1, "queued"));
    assert_eq!(desk.state(JOB + 1), "wanted");
    let why = crate::why::why_demand(&desk.farm, desk.demand(JOB + 1));
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
