//! Demands that ended and left memory.

use super::desk::*;
use crate::demand::past::KEPT;
use forgeyard_model::demand::{ScaleSetRequest, Source};
use forgeyard_model::effect::EffectResult;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::Input;

impl Desk {
    /// A job is served from its webhook to its destroyed machine.
    fn served(&mut self, job: u64) {
        self.launched(job);
        let attempt = self.registered(job, 5);
        self.in_progress(job, attempt);
        self.completed(job, "success");
        self.finished(attempt, 0);
        self.pass(31);
        let report = forgeyard_model::site::SiteReport { runners: Vec::new(), ..self.report() };
        self.give(Input::SiteReported { site: self.site, report: Box::new(report) });
        assert!(!self.runner_of(attempt).state.live(), "{:?}", self.runner_of(attempt).state);
    }

    fn rows(&self) -> [usize; 5] {
        let farm = &self.farm;
        [farm.demands.len(), farm.jobs.len(), farm.attempts.len(), farm.runners.len(), farm.effects.len()]
    }
}

#[test]
fn a_demand_that_ended_leaves_memory_with_all_that_belongs_to_it() {
    let mut desk = Desk::new();
    desk.served(JOB);
    desk.pass(KEPT.as_secs() - 60);
    assert_eq!(desk.state(JOB), "ended", "late words of it still find it");
    desk.pass(61);
    assert_eq!(desk.rows(), [0; 5]);
}

#[test]
fn a_word_of_a_job_that_ended_long_ago_makes_no_demand() {
    let mut desk = Desk::new();
    desk.served(JOB);
    desk.pass(KEPT.as_secs() + 1);
    assert_eq!(desk.rows(), [0; 5]);
    for action in ["queued", "waiting", "in_progress", "completed"] {
        desk.webhook(report(JOB, action));
        desk.poll(report(JOB, action));
        let scale_set = Some(ScaleSetRequest { set: 7, request: 9 });
        let jobs = vec![WorkflowJob { scale_set, ..report(JOB, action) }];
        desk.give(Input::DemandReported { source: Source::ScaleSet, jobs });
    }
    assert_eq!(desk.rows(), [0; 5]);
    let told = desk.farm.deliveries.values().last().unwrap();
    assert!(format!("{told:?}").contains("demand.ended_before"), "{told:?}");
    // A job of the same number at no other forge is meant, and a run again is another job.
    desk.wanted(JOB + 1);
    assert_eq!(desk.state(JOB + 1), "launching");
}

#[test]
fn a_demand_of_which_something_lives_stays() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.completed(JOB, "success");
    desk.finished(attempt, 1);
    // The forge cannot be asked to forget the runner, so its machine stands.
    desk.pass(KEPT.as_secs() + 1);
    assert_eq!(desk.rows()[0], 1);
    desk.settle("forget", EffectResult::Deregistered);
    desk.pass(31);
    let report = forgeyard_model::site::SiteReport { runners: Vec::new(), ..desk.report() };
    desk.give(Input::SiteReported { site: desk.site, report: Box::new(report) });
    desk.give(Input::Ticked);
    assert_eq!(desk.rows()[0], 0);
}

#[test]
fn a_refused_decision_brings_back_what_it_took_out() {
    let mut desk = Desk::new();
    desk.served(JOB);
    let before = desk.farm.clone();
    let id = desk.demand(JOB).id;
    let config = desk.config.clone();
    let ctx = crate::Ctx {
        seq: 99,
        now: desk.now,
        entropy: [0; 16],
        by: forgeyard_model::principal::Principal {
            id: forgeyard_model::Id::from_bits(1),
            name: "farm".to_owned(),
            kind: forgeyard_model::principal::PrincipalKind::Farm,
        },
        config: &config,
        config_digest: config.digest(),
    };
    let mut tx = crate::tx::Tx::new(&mut desk.farm, &ctx);
    tx.retire(id);
    assert!(tx.farm().demands.is_empty());
    tx.roll_back();
    assert!(desk.farm == before);
}
