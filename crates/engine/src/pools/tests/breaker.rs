//! A pool whose machines do not come up is left alone for a while.

use super::*;

#[test]
fn arc_1646_machines_that_never_come_up_open_the_breaker_and_a_probe_closes_it() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 3 });
    want(&mut desk, 1..=4);
    let made: Vec<RunnerId> = live(&desk.farm).iter().map(|runner| runner.id).collect();
    not_made(&mut desk, &made[..3]);
    let Breaker::Open { until, trips: 1 } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    assert_eq!(until.since(desk.now).as_secs(), 60);
    gone(&mut desk);
    // Whoever comes now waits, is told until when, and what the provider said last.
    want(&mut desk, [5]);
    let reason = (*reasons(&desk.farm).last().unwrap()).clone();
    assert_eq!(reason.code, "queue.breaker_open");
    assert!(reason.message.contains(&until.to_string()), "{reason}");
    assert!(reason.evidence.iter().any(|line| line.contains("No valid host was found")), "{reason}");
    assert!(reason.fix.as_ref().unwrap().contains("forgeyard pool reset small"), "{reason}");
    // One machine is the probe, whatever else waits.
    desk.pass(61);
    let Breaker::Probing { runner, .. } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    want(&mut desk, [6]);
    assert!(reasons(&desk.farm).iter().any(|reason| reason.code == "queue.breaker_probing"));
    // It fails too: the pause doubles.
    not_made(&mut desk, &[runner]);
    let Breaker::Open { until, trips: 2 } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    assert_eq!(until.since(desk.now).as_secs(), 120);
    gone(&mut desk);
    desk.pass(121);
    let Breaker::Probing { runner, .. } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    let attempt = desk.farm.runners[&runner].work.attempt().unwrap();
    desk.give(Input::TokenRedeemed { attempt, nonce: "a-nonce".to_owned() });
    assert_eq!(breaker(&desk, "small"), Breaker::default());
    desk.give(Input::Ticked);
    assert!(reasons(&desk.farm).iter().all(|reason| !reason.code.starts_with("queue.breaker")));
}

/// wr #69, #38: whoever asks again and again makes a hot loop of refusals; one refusal says it all.
#[test]
fn wr_69_a_quota_that_is_used_up_pauses_the_pool_at_once_until_a_machine_is_given_back() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 5 });
    let demands = want(&mut desk, [1, 2]);
    let attempt_of = |desk: &Desk, demand: DemandId| {
        let launch = desk.farm.demands[&demand].launch.unwrap();
        desk.farm.jobs[&launch].state.attempt().unwrap()
    };
    let (first, second) = (attempt_of(&desk, demands[0]), attempt_of(&desk, demands[1]));
    desk.give(Input::TokenRedeemed { attempt: first, nonce: "a-nonce".to_owned() });
    let refused = desk.farm.attempts[&second].runner;
    let text = "Quota exceeded for cores: Requested 8, but already used 8 of 8 cores (HTTP 403)";
    not_made_because(&mut desk, &[refused], text);
    let Breaker::Open { until, trips: 1 } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    gone(&mut desk);
    desk.pass(5);
    want(&mut desk, [3]);
    for reason in reasons(&desk.farm) {
        assert_eq!(reason.code, "queue.quota");
        assert!(reason.message.contains("cores: 8 asked for, 8 of 8 used"), "{reason}");
        assert!(reason.message.contains(&until.to_string()), "{reason}");
        assert!(reason.evidence.iter().any(|line| line.contains("Quota exceeded for cores")), "{reason}");
        assert!(reason.fix.as_ref().unwrap().contains("8 more of cores"), "{reason}");
    }
    // What was never there gives nothing back.
    let before = desk.farm.runners.len();
    desk.pass(20);
    assert_eq!(desk.farm.runners.len(), before, "nothing is tried meanwhile");
    assert!(matches!(breaker(&desk, "small"), Breaker::Open { trips: 1, .. }));
    // A machine that was up is gone: one is tried, long before the pause is over.
    let machine = desk.farm.attempts[&first].runner;
    desk.give(Input::AttemptFinished {
        attempt: first,
        fence: desk.farm.attempts[&first].fence,
        facts: Box::default(),
        hits: Vec::new(),
        tail: Vec::new(),
    });
    for _ in 0..3 {
        gone(&mut desk);
        desk.give(Input::Ticked);
    }
    assert_eq!(desk.farm.runners[&machine].state, RunnerState::Deleted);
    assert!(desk.now < until);
    let Breaker::Probing { runner, trips: 1, .. } = breaker(&desk, "small") else {
        panic!("{:?}", breaker(&desk, "small"))
    };
    // Still full: the pause doubles.
    not_made_because(&mut desk, &[runner], text);
    assert!(matches!(breaker(&desk, "small"), Breaker::Open { trips: 2, .. }));
}

/// wr #38: an account that may not is not asked again in a loop.
#[test]
fn wr_38_a_provider_that_forbids_is_asked_again_only_after_a_pause_that_grows() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 5 });
    want(&mut desk, 1..=2);
    let text = "Policy doesn't allow os_compute_api:servers:create to be performed. (HTTP 403)";
    let mut asked = 0;
    for _ in 0..60 {
        let made: Vec<RunnerId> = live(&desk.farm).iter().map(|runner| runner.id).collect();
        let fresh: Vec<RunnerId> =
            made.into_iter().filter(|id| desk.farm.runners[id].state.being_made()).collect();
        asked += fresh.len();
        not_made_because(&mut desk, &fresh, text);
        gone(&mut desk);
        desk.pass(30);
    }
    assert!((2..=8).contains(&asked), "{asked} machines were asked for in half an hour");
    let reason = reasons(&desk.farm)[0].clone();
    assert!(reason.code == "queue.breaker_open" || reason.code == "queue.breaker_probing", "{reason}");
    assert!(reason.evidence.iter().any(|line| line.contains("forbids it (status 403)")), "{reason}");
    assert!(reason.fix.as_ref().unwrap().contains("right to make machines"), "{reason}");
}

#[test]
fn a_job_that_was_stopped_before_its_machine_came_up_is_no_failure_of_the_pool() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 1 });
    let demand = want(&mut desk, [1])[0];
    let launch = desk.farm.demands[&demand].launch.unwrap();
    desk.give(Input::CancelJob { job: launch });
    desk.pass(61);
    assert_eq!(breaker(&desk, "small"), Breaker::default());
}

#[test]
fn an_operator_has_a_pool_start_machines_again_at_once() {
    let mut desk = desk_with(|config| config.pools[0].breaker = BreakerRule { failures: 1 });
    want(&mut desk, [1]);
    let made = live(&desk.farm)[0].id;
    not_made(&mut desk, &[made]);
    assert_eq!(breaker(&desk, "small").name(), "open");
    let reset = Input::ResetPool { pool: name("small") };
    assert_eq!(desk.give(reset.clone()), Reply::Done);
    assert_eq!(desk.give(reset), Reply::Unchanged);
    assert_eq!(breaker(&desk, "small"), Breaker::default());
    let refused = desk.offer(Input::ResetPool { pool: name("other") }).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::NotFound);
}
