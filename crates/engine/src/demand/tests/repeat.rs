//! Jobs that were lost with their machine are run again, and no others.

use super::desk::*;
use crate::why;
use forgeyard_model::demand::Repeat;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::Input;
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::{AttemptId, EffectId, Explanation};
use std::time::Duration;

const BOT: u64 = 7_000_000_099;

impl Desk {
    /// A job that a machine of ours works on.
    fn at_work(&mut self, job: u64) -> AttemptId {
        self.launched(job);
        let attempt = self.registered(job, job);
        self.in_progress(job, attempt);
        attempt
    }

    /// The machine of an attempt is gone.
    fn breaks(&mut self, attempt: AttemptId) {
        let runner = self.farm.attempts[&attempt].runner;
        let mut report = self.report();
        report.runners.retain(|seen| seen.runner != runner);
        report.runners.push(ObservedRunner {
            runner,
            state: ObservedState::Exited {
                reason: Explanation::new("machine.gone", "the kernel of the host is gone"),
            },
            enforced: Default::default(),
        });
        self.give(Input::SiteReported { site: self.site, report: Box::new(report) });
        assert!(!self.farm.attempts[&attempt].state.live());
    }

    fn intents(&self) -> Vec<EffectId> {
        let repeats = |effect: &Effect| matches!(effect, Effect::RepeatJobs { .. });
        self.outbox().into_iter().filter(|(_, effect)| repeats(effect)).map(|(id, _)| id).collect()
    }

    fn told(&self, job: u64) -> (String, String) {
        let answer = why::why_demand(&self.foresight(), self.demand(job));
        (answer.reason.code, answer.next)
    }

    fn run_goes_on(&mut self) {
        let until = self.now.plus(Duration::from_secs(120));
        let reason = Explanation::new("repeat.run_active", "its run goes on");
        let effect = self.intents()[0];
        self.give(Input::EffectDeferred { effect, until, reason });
    }
}

#[test]
fn runs_on_259_all_jobs_that_were_lost_with_their_machines_are_run_again_once_when_the_run_is_over() {
    let mut desk = Desk::new();
    let attempts = [desk.at_work(JOB), desk.at_work(JOB + 1)];
    desk.breaks(attempts[0]);
    desk.completed(JOB, "failure");
    assert_eq!(desk.intents().len(), 1);
    assert_eq!(desk.told(JOB).0, "repeat.wanted");
    // The run goes on with the other job, for hours, and over a restart.
    for _ in 0..60 {
        desk.run_goes_on();
        desk.pass(120);
    }
    let mut loaded = crate::Farm::load(desk.farm.rows());
    (loaded.epoch, loaded.resumed_at) = (desk.farm.epoch, desk.farm.resumed_at);
    desk.farm = loaded;
    // Here the forge speaks first.
    desk.completed(JOB + 1, "failure");
    assert_eq!(desk.demand(JOB + 1).repeat, None, "nobody knows yet that its machine is gone");
    desk.breaks(attempts[1]);
    assert_eq!(desk.told(JOB + 1).0, "repeat.wanted");
    let [effect] = desk.intents()[..] else { panic!("{:?}", desk.outbox()) };
    assert_eq!(desk.farm.effects[&effect].tries, 0, "waiting is no failure");
    let result = Box::new(EffectResult::Repeated { jobs: vec![JOB, JOB + 1] });
    desk.give(Input::EffectSettled { effect, result });
    for job in [JOB, JOB + 1] {
        assert!(matches!(desk.demand(job).repeat, Some(Repeat::Done { .. })));
        assert_eq!(desk.told(job).0, "repeat.done");
        desk.completed(job, "failure");
    }
    assert!(desk.intents().is_empty(), "once");
}

#[test]
fn what_the_farm_had_run_again_is_still_the_work_of_whoever_began_it_and_is_not_repeated_again() {
    let mut desk = Desk::new();
    let attempt = desk.at_work(JOB);
    desk.breaks(attempt);
    desk.completed(JOB, "failure");
    let effect = desk.intents()[0];
    let result = Box::new(EffectResult::Repeated { jobs: vec![JOB] });
    desk.give(Input::EffectSettled { effect, result });
    let again =
        |action: &str| WorkflowJob { run_attempt: 2, sender: Some(person(BOT)), ..report(JOB + 7, action) };
    desk.webhook(again("queued"));
    assert!(desk.waiting("look").is_empty(), "whose work it is is known");
    assert_eq!(desk.state(JOB + 7), "launching");
    let attempt = desk.registered(JOB + 7, 8);
    let hook = forgeyard_model::registration::TakenJob { run_attempt: 2, ..taken(REPOSITORY, RUN, BOT) };
    let answer = desk.hook(attempt, hook);
    assert!(matches!(answer, forgeyard_model::registration::TakenAnswer::Allowed { .. }), "{answer:?}");
    desk.webhook(WorkflowJob { runner_name: Some(desk.name(attempt)), ..again("in_progress") });
    desk.breaks(attempt);
    desk.webhook(WorkflowJob { conclusion: Some("failure".to_owned()), ..again("completed") });
    assert!(desk.intents().is_empty());
    let (code, next) = desk.told(JOB + 7);
    assert_eq!((code.as_str(), next.contains("by hand")), ("repeat.dropped", true));
}

#[test]
fn a_run_that_somebody_else_began_again_is_asked_about_them() {
    let mut desk = Desk::new();
    let attempt = desk.at_work(JOB);
    desk.breaks(attempt);
    desk.completed(JOB, "failure");
    let effect = desk.intents()[0];
    let reason = Explanation::new("repeat.begun", "its run was begun again by somebody meanwhile");
    desk.give(Input::EffectSettled { effect, result: Box::new(EffectResult::Refused { reason }) });
    assert_eq!(desk.told(JOB).0, "repeat.dropped");
    desk.webhook(WorkflowJob { run_attempt: 2, sender: Some(person(STRANGER)), ..report(JOB + 7, "queued") });
    let facts = forgeyard_model::demand::RunFacts {
        run_attempt: 2,
        triggering_actor: Some(person(STRANGER)),
        ..facts()
    };
    desk.found(facts);
    assert_ne!(desk.state(JOB + 7), "launching");
}

#[test]
fn a_job_that_failed_by_itself_or_was_cancelled_is_never_run_again() {
    let mut desk = Desk::new();
    let attempt = desk.at_work(JOB);
    desk.completed(JOB, "failure");
    desk.finished(attempt, 0);
    assert_eq!((desk.intents().len(), &desk.demand(JOB).repeat), (0, &None));
    let attempt = desk.at_work(JOB + 1);
    desk.breaks(attempt);
    desk.completed(JOB + 1, "cancelled");
    assert_eq!((desk.intents().len(), &desk.demand(JOB + 1).repeat), (0, &None));
}

#[test]
fn a_farm_that_repeats_nothing_says_so() {
    let mut desk = Desk::new();
    desk.config.queue.repeat_lost = 0;
    let attempt = desk.at_work(JOB);
    desk.breaks(attempt);
    desk.completed(JOB, "failure");
    assert!(desk.intents().is_empty());
    let answer = why::why_demand(&desk.foresight(), desk.demand(JOB));
    assert!(answer.reason.message.contains("repeat-lost"), "{:?}", answer.reason);
}

#[test]
fn an_intent_whose_run_never_ends_is_given_up_after_a_day() {
    let mut desk = Desk::new();
    let attempt = desk.at_work(JOB);
    desk.breaks(attempt);
    desk.completed(JOB, "failure");
    desk.pass(23 * 3600);
    desk.run_goes_on();
    assert_eq!(desk.told(JOB).0, "repeat.wanted", "what is wanted stays in memory");
    desk.pass(2 * 3600);
    desk.run_goes_on();
    assert!(desk.intents().is_empty());
    assert_eq!(desk.told(JOB).0, "repeat.dropped");
}
