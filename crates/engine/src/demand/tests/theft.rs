//! Late binding: the runner that was made for one job takes another. Launches change hands; the second gate.

use super::desk::*;
use forgeyard_model::demand::RunFacts;
use forgeyard_model::effect::EffectResult;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::Input;
use forgeyard_model::registration::TakenAnswer;

#[test]
fn two_jobs_that_take_each_others_runners_exchange_their_launches_runner_2147() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    desk.launched(JOB + 1);
    let (one, other) = (desk.registered(JOB, 5), desk.registered(JOB + 1, 6));
    let (launch_one, launch_other) = (desk.launch(JOB).id, desk.launch(JOB + 1).id);
    desk.in_progress(JOB + 1, one);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("launching", "running"));
    assert_eq!((desk.launch(JOB).id, desk.launch(JOB + 1).id), (launch_other, launch_one));
    desk.in_progress(JOB, other);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("running", "running"));
    assert_eq!(desk.launches(), 2, "nobody was robbed, so nothing more was launched");
    assert_eq!(desk.demand(JOB).taken_by.as_ref().unwrap().name, desk.name(other));
}

/// Found by the replayed afternoon: the launch that came in exchange was let go, because the job still counted as running.
#[test]
fn a_job_that_was_only_guessed_to_run_is_owed_the_launch_that_it_gets_in_exchange() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    desk.launched(JOB + 1);
    let (one, other) = (desk.registered(JOB, 5), desk.registered(JOB + 1, 6));
    // Some runner has it, nobody says which: it is thought to be the one that was made for it.
    desk.webhook(WorkflowJob { runner_name: None, ..report(JOB, "in_progress") });
    assert_eq!(desk.state(JOB), "running");
    desk.in_progress(JOB + 1, one);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("launching", "running"));
    assert!(desk.farm.attempts[&other].state.live());
    assert_eq!((desk.attempt(JOB), desk.launches()), (other, 2));
}

#[test]
fn a_queued_launch_goes_to_whoever_was_robbed_tf_aws_3130() {
    let mut desk = Desk::new();
    desk.config.pools[0].max = 1;
    desk.launched(JOB);
    desk.webhook(report(JOB + 1, "queued"));
    let attempt = desk.registered(JOB, 5);
    // The younger job takes the older one's runner.
    desk.in_progress(JOB + 1, attempt);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("wanted", "running"));
    assert_eq!(desk.launches(), 2);
}

#[test]
fn a_job_of_another_kind_that_takes_a_runner_costs_a_new_launch_and_no_place_runs_on_337() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let name = desk.name(attempt);
    // Its labels are a subset of the runner's: the forge gives it to it.
    let thief = WorkflowJob {
        labels: vec!["self-hosted".to_owned()],
        run: RUN + 1,
        runner_name: Some(name),
        ..report(JOB + 1, "in_progress")
    };
    desk.webhook(thief);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("launching", "running"));
    assert_eq!(desk.launches(), 2);
    assert_ne!(desk.attempt(JOB), attempt);
    assert_eq!(desk.launch(JOB).key, "runner/2");
    // The thief's end says nothing about the robbed.
    desk.completed(JOB + 1, "success");
    desk.finished(attempt, 0);
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_job_that_a_runner_elsewhere_took_lets_its_launch_go() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    desk.webhook(WorkflowJob {
        runner_name: Some("somebody-elses".to_owned()),
        ..report(JOB, "in_progress")
    });
    assert_eq!((desk.state(JOB), desk.machines()), ("running", 0));
    desk.completed(JOB, "success");
    assert_eq!(desk.state(JOB), "ended");
}

#[test]
fn the_last_report_may_be_the_only_one() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let over = WorkflowJob {
        conclusion: Some("success".to_owned()),
        runner_name: Some(desk.name(attempt)),
        ..report(JOB, "completed")
    };
    desk.webhook(over);
    assert_eq!(desk.state(JOB), "ended");
    desk.finished(attempt, 0);
    assert_eq!((desk.launches(), desk.launch(JOB).state.name()), (1, "succeeded"));
}

#[test]
fn a_runner_that_is_busy_with_what_nobody_named_is_replaced_for_its_demand() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.pass(320);
    desk.settle("forget", EffectResult::RunnerBusy);
    desk.settle("read", EffectResult::Job { job: Box::new(report(JOB, "queued")) });
    assert!(desk.farm.attempts[&attempt].state.live(), "the busy one is left alone");
    assert_eq!(desk.state(JOB), "launching");
    assert_ne!(desk.attempt(JOB), attempt);
}

#[test]
fn the_hook_of_a_known_job_is_answered_at_once_and_always_the_same() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let job = taken(REPOSITORY, RUN, MAINTAINER);
    let answer = desk.hook(attempt, job.clone());
    assert_eq!(answer, TakenAnswer::Allowed { by: vec!["demo".to_owned()] });
    assert_eq!(desk.hook(attempt, job.clone()), answer);
    assert_eq!(desk.state(JOB), "running", "with one candidate there is no need to wait for the forge");
    let second = Input::RunnerTook { attempt, fence: 1, job: taken(REPOSITORY, RUN + 1, MAINTAINER) };
    assert_eq!(desk.offer(second).unwrap_err().reason.code, "registration.one_job");
}

#[test]
fn a_denied_job_of_another_repository_that_takes_the_machine_runs_no_step_runner_494() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let job = taken(OTHER, RUN + 7, STRANGER);
    assert_eq!(desk.hook(attempt, job.clone()), TakenAnswer::Asked, "no step runs meanwhile");
    assert_eq!(desk.state(JOB), "launching", "the robbed one gets another machine at once");
    assert_ne!(desk.attempt(JOB), attempt);
    desk.found(RunFacts { head_repository: Some(OTHER), actor: Some(person(STRANGER)), ..facts() });
    let TakenAnswer::Refused { reason } = desk.hook(attempt, job) else { panic!("refused") };
    assert_eq!(reason.code, "gate.no_grant");
    // The program fails the job at the forge and ends; the machine goes.
    desk.finished(attempt, 1);
    let verdict = desk.farm.attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("gate.refused_at_start"));
    desk.settle("forget", EffectResult::Deregistered);
    assert_eq!(desk.runner_of(attempt).state.name(), "draining");
    assert!(desk.demand(JOB).state.owed());
}

#[test]
fn a_refused_machine_that_does_not_end_is_ended() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let actor = TakenAnswer::Asked;
    assert_eq!(desk.hook(attempt, taken(OTHER, RUN + 7, STRANGER)), actor);
    desk.found(RunFacts { head_repository: Some(OTHER), ..facts() });
    for _ in 0..4 {
        desk.pass(20);
    }
    let verdict = desk.farm.attempts[&attempt].verdict.clone().unwrap();
    assert_eq!(verdict.class.as_deref(), Some("gate.refused_at_start"));
}

#[test]
fn a_run_that_cannot_be_read_runs_no_step() {
    for result in [
        Some(EffectResult::RunMissing),
        Some(EffectResult::Run { facts: Box::new(RunFacts { run_attempt: 9, ..facts() }) }),
        None,
    ] {
        let mut desk = Desk::new();
        desk.launched(JOB);
        let attempt = desk.registered(JOB, 5);
        let job = taken(REPOSITORY, RUN + 7, MAINTAINER);
        desk.hook(attempt, job.clone());
        match result {
            Some(result) => desk.settle("look", result),
            None => (0..5).for_each(|_| desk.trouble("look")),
        }
        let TakenAnswer::Refused { reason } = desk.hook(attempt, job) else { panic!("refused") };
        assert_eq!(reason.code, "gate.run_unknown");
    }
}

#[test]
fn the_second_gate_asks_for_the_one_who_ran_it_again_by_the_runners_own_word() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    let TakenAnswer::Refused { reason } = desk.hook(attempt, taken(REPOSITORY, RUN, STRANGER)) else {
        panic!("refused")
    };
    assert_eq!(reason.code, "gate.person_not_allowed");
}

#[test]
fn a_grant_that_was_taken_back_meanwhile_counts_at_the_second_gate() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.config.access.grants.clear();
    assert!(matches!(desk.hook(attempt, taken(REPOSITORY, RUN, MAINTAINER)), TakenAnswer::Refused { .. }));
}

#[test]
fn a_wrong_guess_is_put_right_when_the_forge_names_the_runner() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.hook(attempt, taken(REPOSITORY, RUN, MAINTAINER));
    assert_eq!(desk.state(JOB), "running");
    // A sibling of which no webhook came took it.
    desk.in_progress(JOB + 1, attempt);
    assert_eq!((desk.state(JOB), desk.state(JOB + 1)), ("launching", "running"));
    assert_ne!(desk.attempt(JOB), attempt);
}

/// Other jobs take every runner that is made for the job, until it pauses.
fn rob(desk: &mut Desk) {
    desk.launched(JOB);
    let mut thief = JOB + 1;
    while desk.state(JOB) == "launching" {
        let attempt = desk.registered(JOB, thief);
        let runner_name = Some(desk.name(attempt));
        let labels = vec!["self-hosted".to_owned()];
        desk.webhook(WorkflowJob { labels, run: thief, runner_name, ..report(thief, "in_progress") });
        thief += 1;
        assert!(thief < JOB + 20);
    }
}

/// Found by the replay: thirty machines in four hours for a job that was over.
#[test]
fn a_robbed_demand_whose_job_is_over_unheard_is_found_out_at_its_first_pause() {
    let mut desk = Desk::new();
    rob(&mut desk);
    let over = WorkflowJob { conclusion: Some("success".to_owned()), ..report(JOB, "completed") };
    desk.settle("read", EffectResult::Job { job: Box::new(over) });
    assert_eq!(desk.state(JOB), "withdrawn", "it is over, by no runner that the farm knows of");
    desk.pass(3600);
    assert_eq!(desk.state(JOB), "withdrawn", "and no machine is made for it any more");
}

#[test]
fn a_demand_that_is_robbed_again_and_again_pauses_and_says_why() {
    let mut desk = Desk::new();
    rob(&mut desk);
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "demand.no_runner_stays");
    desk.pass(31);
    assert_eq!(desk.state(JOB), "launching", "and it is never forgotten");
}
