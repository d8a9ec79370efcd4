//! Waits for what a forge allows: no failures, no tries, no growing pauses.

use super::desk::*;
use crate::why;
use forgeyard_model::Explanation;
use forgeyard_model::effect::EffectResult;
use forgeyard_model::input::Input;
use std::time::Duration;

impl Desk {
    /// A limit holds every effect of a kind for so long.
    fn limited(&mut self, kind: &str, seconds: u64) {
        let until = self.now.plus(Duration::from_secs(seconds));
        let reason = Explanation::new("forge.limited", "the hourly limit `core` is used up");
        for effect in self.waiting(kind) {
            self.give(Input::EffectDeferred { effect, until, reason: reason.clone() });
        }
    }

    fn why(&self, job: u64) -> Explanation {
        let seen = self.foresight();
        why::why_demand(&seen, self.demand(job)).reason
    }
}

#[test]
fn a_limit_of_the_forge_is_a_wait_with_its_reason_and_uses_up_no_try_arc_206() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    for _ in 0..20 {
        desk.limited("look", 300);
        let reason = desk.why(JOB);
        assert_eq!(reason.code, "forge.limited");
        assert!(reason.message.contains("the hourly limit `core` is used up; it goes on at "), "{reason}");
        desk.pass(300);
        assert_eq!(desk.state(JOB), "unread", "nothing failed, so nothing is parked");
    }
    let (id, _) = desk.outbox().remove(0);
    assert_eq!((desk.farm.effects[&id].tries, desk.demand(JOB).pauses), (0, 0));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_limit_that_ends_soon_is_waited_out_by_the_machine() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    desk.limited("mint", 40);
    assert_eq!(desk.why(JOB).code, "forge.limited");
    desk.pass(40);
    assert_eq!(desk.attempt(JOB), attempt);
    desk.settle("mint", EffectResult::Minted { runner: 5 });
    assert_eq!(registered(desk.runner(JOB)).state.name(), "minted");
}

#[test]
fn a_machine_that_may_not_register_in_time_is_let_go_and_its_launch_waits_without_a_retry() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    desk.limited("mint", 1800);
    assert!(!desk.farm.attempts[&attempt].state.live(), "a machine that serves nobody is let go");
    assert!(desk.waiting("mint").is_empty() && desk.waiting("forget").is_empty(), "the forge made nothing");
    let launch = desk.launch(JOB).clone();
    assert_eq!((desk.state(JOB), launch.retries, desk.demand(JOB).launches), ("wanted", 0, 1));
    assert!(launch.avoid.is_empty(), "the site did nothing wrong");
    let reason = desk.why(JOB);
    assert_eq!(reason.code, "queue.forge_limit");
    assert!(reason.message.contains("registers no runner for it before "), "{reason}");
    // Who comes meanwhile gets no machine that could not register either.
    desk.wanted(JOB + 1);
    assert_eq!((desk.state(JOB + 1), desk.why(JOB + 1).code.as_str()), ("wanted", "queue.forge_limit"));
    desk.pass(1800);
    assert_eq!([desk.state(JOB), desk.state(JOB + 1)], ["launching"; 2]);
}

#[test]
fn a_name_that_the_forge_may_have_taken_before_the_limit_is_forgotten() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    desk.up(JOB);
    desk.trouble("mint");
    desk.limited("mint", 1800);
    assert_eq!(desk.waiting("forget").len(), 1, "an answer was lost, and the forge may have made the runner");
    assert_eq!(desk.state(JOB), "wanted");
}

/// GitHub takes some 180 registrations of an App each minute (runners.md §3.5).
#[test]
fn machines_are_launched_no_faster_than_runners_may_be_registered_tf_aws_2566() {
    let mut desk = Desk::new();
    desk.config.queue.registrations_per_minute.insert("github".parse().unwrap(), 3);
    for number in 0..5 {
        desk.wanted(JOB + number);
    }
    let states = |desk: &Desk| (0..5).map(|number| desk.state(JOB + number)).collect::<Vec<_>>();
    assert_eq!(states(&desk), ["launching", "launching", "launching", "wanted", "wanted"]);
    let reason = desk.why(JOB + 4);
    assert_eq!(reason.code, "queue.registration_pace");
    assert!(reason.message.contains("no faster than 3 each minute"), "{reason}");
    assert_eq!(desk.launch(JOB + 4).retries, 0);
    desk.pass(61);
    assert_eq!(states(&desk), ["launching"; 5]);
}

#[test]
fn a_scale_set_registers_elsewhere_and_is_not_paced_by_the_rest_interface() {
    let mut desk = Desk::new();
    desk.config.queue.registrations_per_minute.insert("github".parse().unwrap(), 1);
    for number in 0..3 {
        let set = forgeyard_model::demand::ScaleSetRequest { set: 7, request: number };
        let job =
            forgeyard_model::forge::WorkflowJob { scale_set: Some(set), ..report(JOB + number, "queued") };
        desk.webhook(job);
        if !desk.waiting("look").is_empty() {
            desk.found(facts());
        }
        assert_eq!(desk.state(JOB + number), "launching");
    }
}
