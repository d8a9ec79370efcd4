//! Sources, order, labels, pauses: the ledger itself.

use super::desk::*;
use forgeyard_model::demand::{DemandState, Source};
use forgeyard_model::effect::EffectResult;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Explanation, Owner};

#[test]
fn a_queued_job_is_looked_up_allowed_and_launched() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    assert_eq!(desk.state(JOB), "unread");
    desk.found(facts());
    assert_eq!(desk.state(JOB), "launching");
    let job = desk.launch(JOB);
    assert_eq!(job.owner, Owner::Demand(desk.demand(JOB).id));
    let runner = job.spec.as_ref().unwrap().forge_runner.as_ref().unwrap();
    assert_eq!(runner.labels, ["self-hosted", "Linux", "x64"], "labels are kept as they were written");
    assert_eq!(runner.program, [format!("/opt/{}/run.sh", desk.runner(JOB).pool)], "that of its pool");
    assert_eq!(desk.demand(JOB).admission.as_ref().unwrap().by, ["demo"]);
}

#[test]
fn the_same_job_from_every_hook_level_and_every_source_is_one_demand() {
    let mut desk = Desk::new();
    for _ in 0..3 {
        desk.webhook(report(JOB, "queued"));
    }
    desk.give(Input::DemandReported { source: Source::ScaleSet, jobs: vec![report(JOB, "queued")] });
    desk.poll(report(JOB, "queued"));
    assert_eq!(desk.poll(report(JOB, "queued")), Reply::Unchanged);
    assert_eq!((desk.farm.demands.len(), desk.waiting("look").len()), (1, 1));
    let seen: Vec<Source> = desk.demand(JOB).seen.keys().copied().collect();
    assert_eq!(seen, [Source::Webhook, Source::Poll, Source::ScaleSet]);
    desk.found(facts());
    assert_eq!((desk.launches(), desk.machines()), (1, 1));
}

#[test]
fn a_delivery_that_came_twice_before_it_was_read_counts_as_sent_again() {
    let mut desk = Desk::new();
    let received = || Input::DeliveryReceived {
        guid: "g".to_owned(),
        event: "workflow_job".to_owned(),
        body: forgeyard_model::Digest::of(b"g"),
    };
    desk.give(received());
    desk.give(received());
    let meaning = Ok(forgeyard_model::forge::Meaning::Demand(Box::new(report(JOB, "queued"))));
    desk.give(Input::DeliveryRead { guid: "g".to_owned(), meaning, asked: false });
    assert!(desk.demand(JOB).seen.contains_key(&Source::Redelivery));
}

#[test]
fn what_comes_late_changes_nothing() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.webhook(report(JOB, "queued"));
    desk.webhook(report(JOB, "waiting"));
    assert_eq!(desk.state(JOB), "running");
    desk.completed(JOB, "success");
    desk.in_progress(JOB, attempt);
    desk.webhook(report(JOB, "queued"));
    assert_eq!(desk.demand(JOB).state, DemandState::Ended);
    assert_eq!(desk.demand(JOB).conclusion.as_deref(), Some("success"));
}

#[test]
fn completed_before_queued_launches_nothing() {
    let mut desk = Desk::new();
    desk.completed(JOB, "cancelled");
    desk.webhook(report(JOB, "queued"));
    assert_eq!((desk.state(JOB), desk.launches()), ("withdrawn", 0));
    assert!(desk.waiting("look").is_empty());
}

#[test]
fn a_canceled_job_launches_no_fleet_tf_aws_1853() {
    let mut desk = Desk::new();
    for job in 0..5 {
        desk.webhook(report(JOB + job, "queued"));
    }
    for job in 0..5 {
        desk.completed(JOB + job, "cancelled");
    }
    desk.found(facts());
    assert_eq!((desk.launches(), desk.machines()), (0, 0));
    // Also between the queue and the machine.
    desk.launched(JOB + 9);
    desk.completed(JOB + 9, "skipped");
    assert_eq!((desk.state(JOB + 9), desk.machines()), ("withdrawn", 0));
}

#[test]
fn a_full_pool_remembers_demand_garm_47() {
    let mut desk = Desk::new();
    desk.config.pools[0].max = 1;
    desk.launched(JOB);
    desk.webhook(report(JOB + 1, "queued"));
    assert_eq!(desk.state(JOB + 1), "wanted");
    assert_eq!(desk.launch(JOB + 1).waiting.as_ref().unwrap().code, "queue.pool_full");
    desk.completed(JOB, "cancelled");
    desk.pass(40);
    desk.pass(1);
    assert_eq!(desk.state(JOB + 1), "launching");
}

#[test]
fn a_forge_that_says_not_queued_is_not_believed_tf_aws_2459() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    desk.settle("look", EffectResult::RunMissing);
    assert_eq!(desk.state(JOB), "held");
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "forge.run_missing");
    desk.pass(31);
    desk.found(facts());
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_forge_that_does_not_answer_is_asked_ever_more_seldom() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    let mut asked = 0;
    for _ in 0..24 * 60 {
        asked += desk.waiting("look").len();
        desk.trouble("look");
        desk.pass(60);
    }
    assert_eq!(desk.state(JOB), "held");
    assert!(asked < 60, "asked {asked} times in a day");
    // The outbox is not full of questions that nobody needs.
    assert!(desk.outbox().len() <= 1);
}

#[test]
fn a_lost_webhook_is_made_good_by_the_poll_arc_2788() {
    let mut desk = Desk::new();
    desk.poll(report(JOB, "queued"));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_rerun_that_no_queue_announced_is_found_by_the_poll_ci_infra_900_arc_4027() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let attempt = desk.registered(JOB, 5);
    desk.in_progress(JOB, attempt);
    desk.completed(JOB, "failure");
    desk.finished(attempt, 0);
    // A new job of the same run, with the next attempt.
    desk.poll(WorkflowJob { run_attempt: 2, ..report(JOB + 1, "queued") });
    desk.found(forgeyard_model::demand::RunFacts { run_attempt: 2, ..facts() });
    assert_eq!(desk.state(JOB + 1), "launching");
    assert_eq!((desk.demand(JOB + 1).run, desk.demand(JOB + 1).run_attempt), (RUN, 2));
    assert_eq!(desk.state(JOB), "ended");
}

#[test]
fn jobs_of_two_number_spaces_are_never_mixed_garm_590() {
    let mut desk = Desk::new();
    let by_set = WorkflowJob {
        scale_set: Some(forgeyard_model::demand::ScaleSetRequest { set: 3, request: JOB + 1 }),
        ..report(JOB, "queued")
    };
    desk.give(Input::DemandReported { source: Source::ScaleSet, jobs: vec![by_set] });
    desk.webhook(report(JOB, "queued"));
    desk.webhook(report(JOB + 1, "queued"));
    assert_eq!(desk.farm.demands.len(), 2);
    assert_eq!(desk.demand(JOB).scale_set.unwrap().request, JOB + 1);
    assert!(desk.demand(JOB + 1).scale_set.is_none());
}

#[test]
fn a_job_that_the_forge_forgot_does_not_stay_for_ever_garm_590() {
    let mut desk = Desk::new();
    desk.config.pools[0].max = 0;
    desk.webhook(report(JOB, "queued"));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "wanted");
    desk.pass(3601);
    desk.settle("read", EffectResult::JobMissing);
    assert_eq!((desk.state(JOB), desk.launch(JOB).state.name()), ("withdrawn", "canceled"));
    assert_eq!(desk.demand(JOB).reason().unwrap().code, "demand.gone");
}

#[test]
fn a_demand_of_which_nobody_speaks_is_asked_about_and_the_answer_counts() {
    let mut desk = Desk::new();
    desk.config.pools[0].max = 0;
    desk.webhook(report(JOB, "queued"));
    desk.found(facts());
    desk.pass(3601);
    assert_eq!(desk.waiting("read").len(), 1);
    desk.pass(60);
    assert_eq!(desk.waiting("read").len(), 1, "not again at once");
    let over =
        WorkflowJob { conclusion: Some("cancelled".to_owned()), sender: None, ..report(JOB, "completed") };
    desk.settle("read", EffectResult::Job { job: Box::new(over) });
    assert_eq!(desk.state(JOB), "withdrawn");
}

#[test]
fn a_poll_that_finds_a_job_gone_withdraws_it() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let gone = || Input::DemandGone { forge: "github".parse().unwrap(), job: JOB };
    desk.give(gone());
    assert_eq!((desk.state(JOB), desk.machines()), ("withdrawn", 0));
    assert_eq!(desk.give(gone()), Reply::Unchanged);
}

#[test]
fn a_job_that_an_environment_holds_is_no_demand_until_it_is_queued() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "waiting"));
    assert_eq!(desk.state(JOB), "waiting");
    assert!(desk.waiting("look").is_empty());
    desk.webhook(report(JOB, "queued"));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "launching");
    // Told late: the machine that is being made stays.
    desk.webhook(report(JOB, "waiting"));
    assert_eq!(desk.state(JOB), "launching");
}

#[test]
fn a_waiting_that_overtook_queued_is_cleared_up_by_asking() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    desk.webhook(report(JOB, "waiting"));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "waiting");
    desk.pass(601);
    desk.settle("read", EffectResult::Job { job: Box::new(report(JOB, "queued")) });
    assert_eq!(desk.state(JOB), "launching", "what was looked up meanwhile is used");
}

#[test]
fn jobs_for_the_forges_own_runners_are_settled_by_label_and_cost_nothing() {
    let mut desk = Desk::new();
    let hosted = WorkflowJob { labels: vec!["ubuntu-latest".to_owned()], ..report(JOB, "queued") };
    desk.webhook(hosted.clone());
    assert!(desk.farm.demands.is_empty() && desk.outbox().is_empty());
    let delivery = desk.farm.deliveries.values().next().unwrap();
    let shown = format!("{:?}", delivery.state);
    assert!(shown.contains("demand.not_ours") && shown.contains("ubuntu-latest"), "{shown}");
    assert_eq!(desk.poll(hosted), Reply::Unchanged);
}

#[test]
fn labels_match_without_case_as_a_subset_and_without_their_suffix() {
    let offer = |exact| {
        pool("p", Isolation::Vm, &["self-hosted", "Linux", "cirun-gpu"], exact, "small").runners.unwrap()
    };
    let labels = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>();
    let open = offer(false);
    assert!(super::super::labels::suits(&open, &labels(&["SELF-HOSTED", "linux"])));
    assert!(super::super::labels::suits(&open, &labels(&["cirun-gpu--8123"])));
    assert!(!super::super::labels::suits(&open, &labels(&["self-hosted", "arm64"])));
    assert!(!super::super::labels::suits(&open, &labels(&[])));
    assert!(!super::super::labels::suits(&open, &labels(&["--8123"])));
    let exact = offer(true);
    assert!(!super::super::labels::suits(&exact, &labels(&["linux"])));
    assert!(super::super::labels::suits(&exact, &labels(&["linux", "self-hosted", "cirun-gpu--1"])));
}

#[test]
fn a_small_job_does_not_take_the_large_runner_tf_aws_3013_runs_on_127() {
    let mut desk = Desk::new();
    // The overlap is named when the configuration is loaded.
    let overlaps = super::super::labels::overlaps(&desk.config);
    assert_eq!(overlaps.len(), 1);
    assert!(overlaps[0].message.contains("small") && overlaps[0].message.contains("large"));
    // A job that asks for what both have gets the operator's first.
    let vague =
        WorkflowJob { labels: vec!["self-hosted".to_owned(), "linux".to_owned()], ..report(JOB, "queued") };
    desk.webhook(vague.clone());
    desk.found(facts());
    assert_eq!(desk.runner(JOB).pool.as_str(), "small");
    // In exact mode the large one is not even a fallback.
    for pool in &mut desk.config.pools {
        pool.runners.as_mut().unwrap().exact = true;
    }
    assert!(super::super::labels::overlaps(&desk.config).is_empty());
    desk.webhook(WorkflowJob { job: JOB + 1, ..vague });
    assert!(desk.farm.demand_of(&"github".parse().unwrap(), JOB + 1).is_none());
}

#[test]
fn a_full_pool_falls_back_to_the_next_in_order_tf_aws_2566() {
    let mut desk = Desk::new();
    let labels = vec!["self-hosted".to_owned(), "linux".to_owned()];
    desk.config.pools[0].max = 0;
    desk.webhook(WorkflowJob { labels, ..report(JOB, "queued") });
    desk.found(facts());
    assert_eq!(desk.runner(JOB).pool.as_str(), "large");
    assert_eq!(desk.runner(JOB).flavor.as_str(), "large", "each pool gives its own shape");
}

#[test]
fn two_hundred_jobs_of_one_run_ask_the_forge_once_arc_206() {
    let mut desk = Desk::new();
    for job in 0..200 {
        desk.webhook(report(JOB + job, "queued"));
    }
    assert_eq!(desk.waiting("look").len(), 1);
    desk.found(facts());
    assert!((0..200).all(|job| desk.demand(JOB + job).state.owed()));
    assert!(desk.waiting("look").is_empty());
}

#[test]
fn a_forge_that_is_not_connected_refuses_with_that_reason() {
    let mut desk = Desk::new();
    desk.webhook(report(JOB, "queued"));
    let reason = Explanation::new("forge.not_connected", "no connection to this forge is configured");
    desk.settle("look", EffectResult::Refused { reason: reason.clone() });
    assert_eq!(desk.demand(JOB).state, DemandState::Refused { reason });
    desk.poll(report(JOB, "queued"));
    assert!(desk.waiting("look").is_empty(), "not asked again as things are");
    desk.config.max_running = 63;
    desk.poll(report(JOB, "queued"));
    desk.found(facts());
    assert_eq!(desk.state(JOB), "launching", "another configuration asks again");
}

#[test]
fn a_person_may_stop_a_launch_and_may_not_run_it_again_here() {
    let mut desk = Desk::new();
    desk.launched(JOB);
    let launch = desk.launch(JOB).id;
    desk.give(Input::CancelJob { job: launch });
    assert_eq!((desk.state(JOB), desk.machines()), ("withdrawn", 0));
    let refusal = desk.offer(Input::RerunJob { job: launch }).unwrap_err();
    assert_eq!(refusal.reason.code, "job.of_a_forge");
}

#[test]
fn why_says_what_a_job_of_a_forge_waits_for_ogs_61() {
    let mut desk = Desk::new();
    desk.config.pools[0].max = 0;
    desk.webhook(report(JOB, "queued"));
    let why_of = |desk: &Desk, job| crate::why::why_demand(&desk.foresight(), desk.demand(job));
    let why = |desk: &Desk| why_of(desk, JOB);
    assert_eq!(why(&desk).reason.code, "demand.unread");
    desk.found(facts());
    let answer = why(&desk);
    assert_eq!(
        (answer.reason.code.as_str(), answer.outlook.map(|seen| seen.position)),
        ("queue.pool_full", Some(1))
    );
    desk.webhook(WorkflowJob { repository: repository(OTHER), ..report(JOB + 1, "queued") });
    let refused = why_of(&desk, JOB + 1);
    assert_eq!(refused.reason.code, "gate.no_grant");
    assert!(refused.reason.fix.is_some(), "and how to get it");
}
