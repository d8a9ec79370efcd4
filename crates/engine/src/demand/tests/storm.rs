//! Anything in any order: the invariants of the desk hold, and whoever stays queued is served in the end.

use super::desk::*;
use forgeyard_model::demand::Source;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::Input;
use forgeyard_model::{AttemptId, EffectId};
use proptest::prelude::*;

/// Does what two bytes say. What the farm refuses, it refuses without a change; the desk checks that.
fn step(desk: &mut Desk, what: u8, which: u8) {
    let job = JOB + u64::from(which % 4);
    let live: Vec<AttemptId> = desk.farm.index.live_attempts.iter().copied().collect();
    let attempt = live.get(usize::from(which) % live.len().max(1)).copied();
    let outbox: Vec<EffectId> = desk.farm.index.outbox.iter().copied().collect();
    let effect = outbox.get(usize::from(which) % outbox.len().max(1)).copied();
    match what % 12 {
        0 | 1 => {
            let action = ["queued", "waiting", "in_progress", "completed"][usize::from(which / 4) % 4];
            let runner_name = attempt
                .and_then(|attempt| {
                    desk.runner_of(attempt)
                        .registration
                        .as_ref()
                        .map(|registration| registration.name.clone())
                })
                .filter(|_| which.is_multiple_of(3));
            let runner_name =
                if action == "in_progress" || action == "completed" { runner_name } else { None };
            let conclusion = (action == "completed").then(|| "cancelled".to_owned());
            let source = [Source::Poll, Source::ScaleSet][usize::from(which) % 2];
            let report = WorkflowJob { runner_name, conclusion, ..report(job, action) };
            if what.is_multiple_of(2) {
                desk.webhook(report);
            } else {
                let _ = desk.offer(Input::DemandReported { source, jobs: vec![report] });
            }
        }
        2..=4 => {
            let Some(id) = effect else { return };
            let result = match (&desk.farm.effects[&id].effect, which % 5) {
                (_, 0) if what.is_multiple_of(2) => {
                    let until = desk.now.plus(std::time::Duration::from_secs(u64::from(which) * 20));
                    let reason = forgeyard_model::Explanation::new("forge.limited", "a limit");
                    let _ = desk.offer(Input::EffectDeferred { effect: id, until, reason });
                    return;
                }
                (_, 0) => {
                    let _ = desk.offer(Input::EffectTroubled { effect: id, trouble: "429".to_owned() });
                    return;
                }
                (Effect::LookUpRun { .. }, 1) => EffectResult::RunMissing,
                (Effect::LookUpRun { run_attempt, .. }, _) => {
                    let run_attempt = *run_attempt;
                    EffectResult::Run {
                        facts: Box::new(forgeyard_model::demand::RunFacts { run_attempt, ..facts() }),
                    }
                }
                (Effect::ReadJob { .. }, 1) => EffectResult::JobMissing,
                (Effect::ReadJob { job, .. }, _) => {
                    EffectResult::Job { job: Box::new(report(*job, "queued")) }
                }
                (Effect::MintRunner { .. }, 1) => EffectResult::NameTaken,
                (Effect::MintRunner { .. }, 2) => {
                    EffectResult::Refused { reason: forgeyard_model::Explanation::new("forge.no", "no") }
                }
                (Effect::MintRunner { .. }, _) => EffectResult::Minted { runner: u64::from(which) + 1 },
                (Effect::Deregister { .. }, 1 | 2) => EffectResult::RunnerBusy,
                (Effect::Deregister { .. }, _) => EffectResult::Deregistered,
                _ => return,
            };
            desk.offer(Input::EffectSettled { effect: id, result: Box::new(result) }).unwrap();
        }
        5 | 6 => {
            let Some(attempt) = attempt else { return };
            let _ = desk.offer(Input::TokenRedeemed { attempt, nonce: "nonce-nonce".to_owned() });
        }
        7 => {
            let Some(attempt) = attempt else { return };
            let fence = desk.farm.attempts[&attempt].fence;
            let _ = desk.offer(Input::RunnerConfigFetched { attempt, fence });
            let _ = desk.offer(Input::AgentHeard { attempt, fence, step: Some("runner".to_owned()) });
        }
        8 => {
            let Some(attempt) = attempt else { return };
            let fence = desk.farm.attempts[&attempt].fence;
            let (repository, actor) =
                if which.is_multiple_of(2) { (REPOSITORY, MAINTAINER) } else { (OTHER, STRANGER) };
            let job = taken(repository, RUN + u64::from(which % 2), actor);
            let _ = desk.offer(Input::RunnerTook { attempt, fence, job });
            if which.is_multiple_of(7) {
                let _ = desk.offer(Input::RunnerConfigLost { attempt, fence });
            }
        }
        9 => {
            let Some(attempt) = attempt else { return };
            if desk.farm.attempts[&attempt].started_at.is_some() {
                desk.finished(attempt, i32::from(which % 2) * 7);
            }
        }
        10 => desk.pass(u64::from(which) * 4),
        _ => match which % 4 {
            0 => drop(desk.offer(Input::DemandGone { forge: "github".parse().unwrap(), job })),
            1 => {
                let launch = desk.farm.jobs.keys().nth(usize::from(which / 4)).copied();
                if let Some(job) = launch {
                    let _ = desk.offer(Input::CancelJob { job });
                }
            }
            _ => desk.report_site(),
        },
    }
}

/// A forge, a site and machines that do what they should, for an hour.
fn calm(desk: &mut Desk, jobs: &[u64]) {
    for _ in 0..24 * 60 {
        if jobs.iter().all(|job| desk.state(*job) == "running") {
            return;
        }
        for (id, effect) in desk.outbox() {
            if desk.farm.effects[&id].not_before > desk.now || desk.farm.effects[&id].done_at.is_some() {
                continue;
            }
            let result = match effect {
                Effect::LookUpRun { run_attempt, .. } => EffectResult::Run {
                    facts: Box::new(forgeyard_model::demand::RunFacts { run_attempt, ..facts() }),
                },
                Effect::ReadJob { job, .. } => EffectResult::Job { job: Box::new(report(job, "queued")) },
                Effect::MintRunner { .. } => EffectResult::Minted { runner: desk.now.as_micros() as u64 },
                _ => EffectResult::Deregistered,
            };
            desk.give(Input::EffectSettled { effect: id, result: Box::new(result) });
        }
        for job in jobs {
            desk.poll(report(*job, "queued"));
            if desk.state(*job) != "launching" {
                continue;
            }
            let attempt = desk.attempt(*job);
            let fence = desk.farm.attempts[&attempt].fence;
            let _ = desk.offer(Input::TokenRedeemed { attempt, nonce: "nonce-nonce".to_owned() });
            if desk.offer(Input::RunnerConfigFetched { attempt, fence }).is_ok() {
                let _ = desk.offer(Input::AgentHeard { attempt, fence, step: Some("runner".to_owned()) });
                desk.in_progress(*job, attempt);
            }
        }
        desk.pass(60);
    }
    panic!("not served in a day: {:?}", jobs.iter().map(|job| desk.demand(*job)).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_the_ledger_is_whole_and_whoever_waits_is_served(
        steps in prop::collection::vec((any::<u8>(), any::<u8>()), 0..120)
    ) {
        let mut desk = Desk::new();
        for (what, which) in steps {
            step(&mut desk, what, which);
        }
        // Fresh jobs that come after the storm, and old ones that the forge still calls queued.
        let mut jobs: Vec<u64> = (JOB..JOB + 4)
            .filter(|job| desk.farm.demand_of(&"github".parse().unwrap(), *job).is_some_and(|demand| {
                !demand.state.ended() && demand.rank == forgeyard_model::demand::ForgeRank::Queued
                    && demand.state.name() != "running"
            }))
            .collect();
        jobs.push(JOB + 100);
        desk.webhook(report(JOB + 100, "queued"));
        calm(&mut desk, &jobs);
    }
}
