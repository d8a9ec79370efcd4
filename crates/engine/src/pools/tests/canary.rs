//! A pool that takes a share of the jobs of another one.

use super::*;

/// A canary beside `small` that is the same, for so many of a hundred jobs.
fn with_canary(config: &mut forgeyard_model::config::FarmConfig, percent: u8) {
    let mut new = config.pools[0].clone();
    new.name = name("new");
    new.breaker = BreakerRule { failures: 1 };
    new.canary = Some(Canary { of: name("small"), percent });
    config.pools.push(new);
    config.pools[0].max = 100;
    config.pools[2].max = 100;
    config.max_running = 200;
}

#[test]
fn a_canary_takes_its_share_of_the_jobs_and_none_when_it_does_not_work() {
    for (percent, expected) in [(0, "small"), (100, "new")] {
        let mut desk = desk_with(|config| with_canary(config, percent));
        want(&mut desk, 1..=3);
        assert!(live(&desk.farm).iter().all(|runner| runner.pool == name(expected)), "{percent}");
    }
    let mut desk = desk_with(|config| with_canary(config, 100));
    want(&mut desk, [1]);
    let made = live(&desk.farm)[0].id;
    not_made(&mut desk, &[made]);
    assert_eq!(breaker(&desk, "new").name(), "open");
    want(&mut desk, [2]);
    assert!(live(&desk.farm).iter().any(|runner| runner.pool == name("small")), "all goes to the old pool");
    desk.give(Input::ResetPool { pool: name("new") });
    desk.give(Input::DrainPool { pool: name("new"), drain: true });
    let before = live(&desk.farm).iter().filter(|runner| runner.pool == name("small")).count();
    want(&mut desk, [3]);
    let after = live(&desk.farm).iter().filter(|runner| runner.pool == name("small")).count();
    assert_eq!(after, before + 1);
}

#[test]
fn who_may_use_a_pool_may_use_its_canary_and_the_second_gate_knows() {
    use crate::demand::tests::desk;
    let mut desk = desk_with(|config| with_canary(config, 100));
    want(&mut desk, [1]);
    let attempt = desk.registered(1, 7);
    assert_eq!(desk.runner_of(attempt).pool, name("new"));
    let answer = desk.hook(attempt, desk::taken(desk::REPOSITORY, desk::RUN, desk::MAINTAINER));
    assert!(matches!(answer, forgeyard_model::registration::TakenAnswer::Allowed { .. }), "{answer:?}");
}

#[test]
fn a_job_never_flips_between_a_pool_and_its_canary() {
    let mut desk = desk_with(|config| with_canary(config, 50));
    // All jobs of the desk have one name, so all go one way.
    want(&mut desk, 1..=6);
    let pools: std::collections::BTreeSet<&PoolName> =
        live(&desk.farm).iter().map(|runner| &runner.pool).collect();
    assert_eq!(pools.len(), 1, "{pools:?}");
}
