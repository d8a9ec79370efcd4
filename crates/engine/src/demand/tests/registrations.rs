//! What a machine is at the forge: names, configurations, refusals, being forgotten.

use super::desk::*;
use forgeyard_model::demand::{ScaleSetRequest, Source};
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::site::SiteReport;
use forgeyard_model::{Explanation, deadline};

fn minted(runner: u64) -> EffectResult {
    EffectResult::Minted { runner }
}

#[test]
fn the_configuration_is_asked_for_only_when_the_machine_is_up() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    assert!(desk.waiting("mint").is_empty());
    desk.report_site();
    assert!(desk.waiting("mint").is_empty(), "a machine that boots is not up");
    desk.up(JOB);
    assert_eq!(desk.waiting("mint").len(), 1);
    let (_, effect) = desk.outbox().into_iter().next().unwrap();
    let Effect::MintRunner { name, labels, installation, .. } = effect else { panic!("{effect:?}") };
    assert!(name.starts_with("forgeyard-") && name.len() <= 64, "{name}");
    assert_eq!((labels.len(), installation), (3, Some(11)));
}

#[test]
fn a_label_with_a_suffix_is_matched_without_it_and_registered_with_it() {
    let mut desk = Desk::new();
    let labels = vec!["self-hosted".to_owned(), "x64--8123".to_owned()];
    desk.webhook(WorkflowJob { labels: labels.clone(), ..report(JOB, "queued") });
    desk.found(facts());
    desk.up(JOB);
    assert_eq!(registered(desk.runner(JOB)).labels, labels);
}

#[test]
fn every_attempt_has_a_name_of_its_own_garm_79_arc_4148() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let first = desk.registered(JOB, 5);
    let name = desk.name(first);
    desk.finished(first, 1);
    desk.settle("forget", EffectResult::Deregistered);
    desk.pass(5);
    assert_eq!(desk.state(JOB), "launching", "it was not served, so it is tried again");
    let second = desk.registered(JOB, 6);
    assert_ne!(first, second);
    assert_ne!(desk.name(second), name, "a used configuration is never used again");
}

#[test]
fn a_taken_name_is_answered_with_another_and_not_for_ever() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    let mut names = vec![desk.name(attempt)];
    desk.settle("mint", EffectResult::NameTaken);
    names.push(desk.name(attempt));
    desk.settle("mint", EffectResult::NameTaken);
    names.push(desk.name(attempt));
    names.dedup();
    assert_eq!(names.len(), 3);
    desk.settle("mint", EffectResult::NameTaken);
    assert_eq!((desk.state(JOB), desk.launch(JOB).state.name()), ("wanted", "held"));
}

#[test]
fn a_refused_configuration_is_named_parked_and_not_looped_arc_1646() {
    let mut desk = Desk::new();
    let reason = || {
        Explanation::new(
            "forge.runners_disabled",
            "runners of repositories are disabled in this organisation",
        )
        .fix("allow them in the settings of the organisation")
    };
    desk.launched(JOB);
    desk.up(JOB);
    desk.settle("mint", EffectResult::Refused { reason: reason() });
    assert_eq!(desk.state(JOB), "held");
    let shown = desk.demand(JOB).reason().unwrap().clone();
    assert_eq!(shown.code, "forge.runners_disabled");
    assert!(shown.fix.is_some());
    // A day of this makes few machines.
    for _ in 0..24 * 60 {
        desk.pass(60);
        if desk.state(JOB) == "launching"
            && desk.waiting("mint").is_empty()
            && desk.launch(JOB).state.name() == "placed"
        {
            desk.up(JOB);
            desk.settle("mint", EffectResult::Refused { reason: reason() });
        }
    }
    assert!(desk.farm.runners.len() < 15, "{} machines in a day", desk.farm.runners.len());
    assert!(!desk.demand(JOB).state.ended(), "and it is never forgotten");
}

#[test]
fn a_runner_that_is_too_old_stops_and_is_not_tried_at_once() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.finished(attempt, 7);
    assert_eq!(
        desk.farm.attempts[&attempt].verdict.as_ref().unwrap().class.as_deref(),
        Some("image.runner_too_old")
    );
    assert_eq!(desk.state(JOB), "held");
    assert!(desk.demand(JOB).reason().unwrap().fix.as_ref().unwrap().contains("image"));
}

/// ARC: exit code 7 marks the set as outdated. The image stops, and another one goes on.
#[test]
fn a_runner_program_that_is_too_old_stops_its_image_and_no_other() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.finished(attempt, 7);
    desk.settle("forget", EffectResult::Deregistered);
    let machines = desk.farm.runners.len();
    let waits = |desk: &Desk| desk.launch(JOB).waiting.as_ref().map(|reason| reason.code.clone());
    // The pause of the demand ends, again and again.
    for _ in 0..60 {
        desk.pass(60);
    }
    assert_eq!(desk.farm.runners.len(), machines, "no machine is made from it");
    assert_eq!(waits(&desk).as_deref(), Some("queue.image_outdated"));
    // The operator builds another image.
    desk.config.images[0].root =
        forgeyard_model::resources::ImageRoot::Host { allow: vec!["/opt/newer-runner".to_owned()] };
    desk.pass(10);
    assert_eq!(desk.farm.runners.len(), machines + 1);
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_machine_is_made_and_registered_before_the_forge_gives_the_job_away_arc_4602() {
    let placed = deadline::forge_attempt(forgeyard_model::attempt::AttemptState::Placed, Default::default());
    let starting =
        deadline::forge_attempt(forgeyard_model::attempt::AttemptState::Starting, Default::default());
    assert!((placed.unwrap() + starting.unwrap()).as_secs() < 300);
    // One that is too slow is replaced, and counts for nothing.
    let mut desk = Desk::new();
    desk.launched(JOB);
    let slow = desk.attempt(JOB);
    for _ in 0..19 {
        desk.pass(10);
    }
    assert!(!desk.farm.attempts[&slow].state.live());
    desk.pass(5);
    assert_eq!(desk.state(JOB), "launching");
    assert_ne!(desk.attempt(JOB), slow);
}

#[test]
fn a_machine_that_never_registers_is_named_and_replaced_tf_aws_3493_arc_4452_buildbot_3459() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    for _ in 0..10 {
        desk.trouble("mint");
        desk.pass(10);
    }
    let verdict = desk.farm.attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("infra.not-prepared"));
    // The forge may have made the runner and lost its answer.
    desk.trouble("mint");
    assert_eq!(desk.waiting("forget").len(), 1);
    let failed = desk.farm.runners.values().filter(|runner| runner.state.wanted()).count();
    assert!(failed <= 1, "a failed machine is no capacity (ARC 4168)");
}

/// A configuration is good for one job, and the forge drops the runner with it: asking would be a call for each job.
#[test]
fn a_runner_that_ended_well_and_whose_job_the_forge_calls_over_is_not_asked_about() {
    for told_first in [true, false] {
        let mut desk = Desk::new();
        desk.launched(JOB);
        let attempt = desk.registered(JOB, 5);
        desk.in_progress(JOB, attempt);
        if told_first {
            desk.completed(JOB, "success");
            desk.finished(attempt, 0);
        } else {
            desk.finished(attempt, 0);
            let effect = desk.waiting("forget")[0];
            assert!(desk.farm.effects[&effect].not_before > desk.now, "the forge's own word is waited for");
            desk.completed(JOB, "success");
        }
        assert!(desk.waiting("forget").is_empty(), "nobody is asked");
        assert_eq!(registered(desk.runner_of(attempt)).state.name(), "gone");
        assert_eq!(desk.runner_of(attempt).state.name(), "draining");
        assert_eq!(desk.state(JOB), "ended");
    }
}

#[test]
fn a_runner_whose_job_nobody_calls_over_is_asked_about_after_a_moment() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.finished(attempt, 0);
    let effect = desk.waiting("forget")[0];
    assert!(desk.farm.effects[&effect].not_before <= desk.now.plus(std::time::Duration::from_secs(10)));
    desk.settle("forget", EffectResult::Deregistered);
    assert_eq!(desk.runner_of(attempt).state.name(), "draining");
}

#[test]
fn a_machine_is_destroyed_only_after_the_forge_has_forgotten_it_garm_455() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.completed(JOB, "success");
    // It did not end well, so the forge's word about the job is not enough.
    desk.finished(attempt, 1);
    assert_eq!(desk.runner_of(attempt).state.name(), "leaving");
    assert!(desk.runner_of(attempt).state.wanted(), "the machine stands");
    desk.trouble("forget");
    desk.pass(700);
    assert_eq!(
        desk.runner_of(attempt).state.name(),
        "leaving",
        "and is kept while the forge does not answer"
    );
    desk.settle("forget", EffectResult::Deregistered);
    assert_eq!(desk.runner_of(attempt).state.name(), "draining");
    assert_eq!(desk.state(JOB), "ended");
}

#[test]
fn a_busy_runner_is_left_alone_when_its_demand_is_canceled_garm_455_gitlab_37643() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.completed(JOB, "cancelled");
    assert!(desk.farm.attempts[&attempt].state.live(), "the forge is asked before the machine is stopped");
    desk.settle("forget", EffectResult::RunnerBusy);
    for _ in 0..100 {
        desk.pass(60);
    }
    assert!(desk.farm.attempts[&attempt].state.live(), "it works for somebody");
    assert!(desk.farm.jobs[&desk.farm.attempts[&attempt].job].cancel_requested_at.is_none());
    // Its job is heard of later, and all is well.
    desk.in_progress(JOB + 1, attempt);
    assert_eq!(desk.state(JOB + 1), "running");
}

#[test]
fn an_idle_runner_whose_demand_is_canceled_is_forgotten_and_then_goes() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.completed(JOB, "cancelled");
    desk.settle("forget", EffectResult::Deregistered);
    assert!(!desk.farm.attempts[&attempt].state.live());
    assert_eq!(desk.runner_of(attempt).state.name(), "draining");
    assert_eq!(desk.launches(), 1, "nothing is launched for nobody");
}

#[test]
fn a_dead_runner_is_forgotten_at_the_forge_by_a_sweep_of_its_own_arc_3953() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let runner = desk.runner_of(attempt).id;
    let reason = Explanation::new("runner.oom", "the machine ran out of memory");
    let report = SiteReport {
        epoch: 1,
        generation: desk.farm.sites[&desk.site].desired_generation,
        host: desk.farm.sites[&desk.site].host.clone().unwrap(),
        devices: Vec::new(),
        runners: vec![ObservedRunner {
            runner,
            state: ObservedState::Exited { reason },
            enforced: Default::default(),
        }],
        leases: Vec::new(),
    };
    desk.give(Input::SiteReported { site: desk.site, report: Box::new(report) });
    assert!(!desk.farm.attempts[&attempt].state.live());
    assert_eq!(desk.waiting("forget").len(), 1);
    // Asked until the forge answers, whatever became of the machine.
    for _ in 0..20 {
        desk.trouble("forget");
        desk.pass(300);
    }
    assert_eq!(desk.waiting("forget").len(), 1);
    desk.settle("forget", EffectResult::Deregistered);
    assert!(desk.demand(JOB).state.owed(), "and its demand is served by another");
}

#[test]
fn a_runner_that_waits_in_vain_is_replaced() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.pass(deadline::RUNNER_IDLE.as_secs() - 1);
    assert!(desk.waiting("forget").is_empty());
    desk.pass(2);
    desk.settle("forget", EffectResult::Deregistered);
    assert!(!desk.farm.attempts[&attempt].state.live());
    desk.pass(2);
    assert_eq!(desk.state(JOB), "launching");
    assert_ne!(desk.attempt(JOB), attempt);
}

#[test]
fn a_lost_configuration_is_asked_for_again_under_another_name() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    desk.settle("mint", minted(5));
    let before = desk.name(attempt);
    desk.give(Input::RunnerConfigLost { attempt, fence: 1 });
    assert_ne!(desk.name(attempt), before);
    assert_eq!((desk.waiting("mint").len(), desk.waiting("forget").len()), (1, 1));
    let refusal = desk.offer(Input::RunnerConfigFetched { attempt, fence: 1 }).unwrap_err();
    assert_eq!(refusal.reason.code, "registration.not_minted");
    desk.settle("forget", EffectResult::Deregistered);
    desk.settle("mint", minted(6));
    desk.give(Input::RunnerConfigFetched { attempt, fence: 1 });
}

#[test]
fn a_configuration_that_comes_too_late_is_forgotten_at_once() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    desk.completed(JOB, "cancelled");
    assert!(!desk.farm.attempts[&attempt].state.live());
    desk.settle("mint", minted(5));
    desk.settle("forget", EffectResult::Deregistered);
    assert!(desk.outbox().is_empty());
}

#[test]
fn a_forge_that_can_never_be_asked_does_not_keep_a_machine_for_ever() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.finished(attempt, 0);
    let reason = Explanation::new("forge.not_connected", "no connection to this forge is configured");
    desk.settle("forget", EffectResult::Refused { reason });
    assert_eq!(desk.runner_of(attempt).state.name(), "draining");
}

#[test]
fn a_runner_whose_job_is_over_goes_within_ten_minutes() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.pass(3000);
    desk.completed(JOB, "success");
    // Its agent is well and says nothing of an end.
    for _ in 0..11 {
        desk.pass(30);
    }
    assert_eq!(
        desk.farm.attempts[&attempt].verdict.as_ref().unwrap().class.as_deref(),
        Some("runner.did_not_leave")
    );
    desk.settle("forget", EffectResult::Deregistered);
    assert_eq!(desk.runner_of(attempt).state.name(), "draining");
}

#[test]
fn a_restart_kills_no_busy_runner_gitlab_37526() {
    let mut desk = Desk::new();
    for job in 0..5 {
        desk.launched(JOB + job);
        let attempt = desk.registered(JOB + job, job + 1);
        desk.in_progress(JOB + job, attempt);
    }
    let epoch = desk.farm.epoch + 1;
    desk.farm = crate::Farm::load(desk.farm.rows());
    desk.now = desk.now.plus(std::time::Duration::from_secs(1800));
    desk.give(Input::FarmStarted { epoch });
    desk.give(Input::Ticked);
    assert_eq!(desk.machines(), 5);
    assert!((0..5).all(|job| desk.state(JOB + job) == "running"));
}

/// Found by the replayed afternoon: the webhook came first and the runner was registered by REST; then the scale set told
/// of the same job, its service was asked to forget a runner that it never had, and the other one stayed at the forge.
#[test]
fn a_runner_is_forgotten_where_it_was_registered_although_a_scale_set_told_of_its_job_since() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let request = ScaleSetRequest { set: 3, request: 9 };
    let by_set = WorkflowJob { scale_set: Some(request), ..report(JOB, "queued") };
    desk.give(Input::DemandReported { source: Source::ScaleSet, jobs: vec![by_set] });
    assert_eq!(desk.demand(JOB).scale_set, Some(request));
    desk.finished(attempt, 1);
    let asked = desk.outbox().into_iter().find_map(|(_, effect)| match effect {
        Effect::Deregister { scale_set, forge_runner, .. } => Some((scale_set, forge_runner)),
        _ => None,
    });
    assert_eq!(asked, Some((None, Some(5))));
}

/// Report 47: a forge that gives a lost task no second time calls the job running, and nobody has it.
#[test]
fn a_task_that_was_lost_on_its_way_is_found_by_a_program_that_does_nothing_and_is_told_gitea_fetch_task() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    let fence = desk.farm.attempts[&attempt].fence;
    let quiet = |desk: &mut Desk, seconds| desk.give(Input::RunnerQuiet { attempt, fence, seconds });
    // Either voice alone says nothing.
    desk.pass(100);
    assert_eq!(quiet(&mut desk, 100), Reply::Unchanged);
    desk.pass(100);
    assert_eq!(quiet(&mut desk, 20), Reply::Unchanged, "something ran a moment ago");
    assert!(desk.farm.attempts[&attempt].state.live());
    assert_eq!(quiet(&mut desk, 200), Reply::Done);
    let verdict = desk.farm.attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("runner.task_lost"));
    assert!(verdict.cause.contains("never given it") && verdict.fix.is_some(), "{verdict:?}");
    // Its forge is asked to forget it, and the machine stands until then; nothing is launched for a job that it calls running.
    assert!(desk.outbox().iter().any(|(_, effect)| matches!(effect, Effect::Deregister { .. })));
    assert_eq!((desk.state(JOB), desk.launches()), ("running", 1));
    // The forge gives up by itself; then the job is to be run again, and whether the forge can do that is told.
    desk.completed(JOB, "failure");
    assert!(desk.demand(JOB).repeat.is_some());
}

#[test]
fn a_runner_that_waits_for_its_job_or_said_what_it_took_has_lost_nothing() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let fence = desk.farm.attempts[&attempt].fence;
    let quiet = |desk: &mut Desk| desk.give(Input::RunnerQuiet { attempt, fence, seconds: 4000 });
    desk.pass(200);
    assert_eq!(quiet(&mut desk), Reply::Unchanged, "the forge does not say that it has a job");
    desk.hook(attempt, taken(REPOSITORY, RUN, MAINTAINER));
    desk.in_progress(JOB, attempt);
    desk.pass(200);
    assert_eq!(quiet(&mut desk), Reply::Unchanged, "a job that sleeps");
}

#[test]
fn sign_of_life_right_after_another_is_not_written_and_a_later_one_or_a_new_step_is() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.up(JOB);
    let written = |desk: &Desk| desk.farm.attempts[&attempt].generation;
    let hear = |desk: &mut Desk, step: &str| {
        let fence = desk.farm.attempts[&attempt].fence;
        let step = Some(step.to_owned());
        assert_eq!(
            desk.give(Input::AgentHeard { attempt, fence, step }),
            Reply::Agent { cancel: false },
            "the agent is answered all the same"
        );
    };
    hear(&mut desk, "runner");
    let first = written(&desk);
    desk.pass(5);
    hear(&mut desk, "runner");
    assert_eq!(written(&desk), first);
    hear(&mut desk, "upload");
    assert_eq!(written(&desk), first + 1, "it says something new");
    desk.pass(10);
    hear(&mut desk, "upload");
    assert_eq!(written(&desk), first + 2, "or else it would count as silent");
}
