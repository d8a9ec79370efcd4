//! Pools with several sites, why fewer machines wait than should, and what they use.

use crate::demand::tests::desk::Desk;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::pool::{Breaker, BreakerRule};
use forgeyard_model::runner::{ObservedState, Runner};
use forgeyard_model::{Digest, Explanation, PoolName, RunnerId, SiteId};

fn small() -> PoolName {
    "small".parse().unwrap()
}

fn at(desk: &Desk, site: SiteId) -> Vec<&Runner> {
    let live = desk.farm.index.live_runners.iter().filter(|(of, _)| *of == site);
    live.map(|(_, id)| &desk.farm.runners[id]).filter(|runner| runner.state.wanted()).collect()
}

/// What a site says of its own machines; those of `broken` could not be made.
fn says(desk: &mut Desk, site: SiteId, broken: &[RunnerId]) {
    let mut report = desk.report();
    report.generation = desk.farm.sites[&site].desired_generation;
    report.runners.retain(|seen| desk.farm.runners[&seen.runner].site == site);
    for seen in report.runners.iter_mut().filter(|seen| broken.contains(&seen.runner)) {
        let reason = Explanation::new("provider.failed", "the disk of this host is read-only");
        seen.state = ObservedState::Failed { reason };
    }
    desk.give(Input::SiteReported { site, report: Box::new(report) });
}

fn two_sites() -> (Desk, SiteId, SiteId) {
    let mut desk = Desk::new();
    desk.config.pools[0].breaker = BreakerRule { failures: 2 };
    let joined = Input::SiteJoined {
        name: "barn".parse().unwrap(),
        token: Digest::of(b"another token"),
        public_key: "01".to_owned(),
    };
    let Reply::Site { site } = desk.give(joined) else { panic!("a site joins") };
    let first = desk.site;
    says(&mut desk, site, &[]);
    (desk, first, site)
}

#[test]
fn a_broken_site_is_stopped_by_itself_and_the_healthy_one_goes_on() {
    let (mut desk, first, second) = two_sites();
    for job in 1..=4 {
        desk.wanted(job);
    }
    let broken = if at(&desk, first).is_empty() { second } else { first };
    let healthy = if broken == first { second } else { first };
    let made: Vec<RunnerId> = at(&desk, broken).iter().map(|runner| runner.id).collect();
    assert!(made.len() >= 2, "{made:?}");
    says(&mut desk, broken, &made[..2]);
    let record = desk.farm.pools[&small()].clone();
    assert_eq!(record.breaker, Breaker::default(), "the pool itself is open");
    assert_eq!(record.sites[&broken].breaker.name(), "open");
    for _ in 0..2 {
        says(&mut desk, broken, &[]);
    }
    // Whoever comes next gets a machine at the healthy site, at once.
    let before = at(&desk, broken).len();
    for job in 5..=7 {
        desk.wanted(job);
    }
    assert!(
        at(&desk, healthy).len() >= 3,
        "{:?}",
        desk.farm.jobs.values().map(|job| &job.waiting).collect::<Vec<_>>()
    );
    assert!(at(&desk, broken).len() <= before, "nothing more is started there");
    let trouble = super::view::now(&desk.farm, &desk.config, &desk.config.pools[0], desk.now).trouble;
    assert_eq!(trouble, None, "a pool that serves is in no trouble");
    // When the healthy one is drained, the reason names the site that is stopped.
    desk.give(Input::DrainSite { site: healthy, drain: true });
    desk.wanted(8);
    let reason = desk.launch(8).waiting.clone().unwrap();
    let all = format!("{reason}");
    assert!(all.contains("starts no machine at site"), "{all}");
    // After the pause one machine there is the probe, and it opens the site again.
    for _ in 0..7 {
        desk.pass(10);
        for site in [broken, healthy] {
            says(&mut desk, site, &[]);
        }
    }
    let record = desk.farm.pools[&small()].clone();
    let Breaker::Probing { runner, .. } = record.sites[&broken].breaker else {
        panic!("{:?}", record.sites[&broken])
    };
    let attempt = desk.farm.runners[&runner].work.attempt().unwrap();
    desk.give(Input::TokenRedeemed { attempt, nonce: "a-nonce".to_owned() });
    assert_eq!(desk.farm.pools[&small()].sites[&broken].breaker, Breaker::default());
}

#[test]
fn a_pool_that_finds_no_room_for_warm_machines_says_why() {
    let mut desk = Desk::new();
    desk.config.flavors[0].memory_mib = 100 << 10;
    desk.config.pools[0].warm = 2;
    desk.give(Input::Ticked);
    let now = |desk: &Desk| super::view::now(&desk.farm, &desk.config, &desk.config.pools[0], desk.now);
    let seen = now(&desk);
    assert_eq!((seen.machines.coming, seen.wanted), (1, 2), "the host has room for one");
    let reason = seen.warm_lacks.unwrap();
    assert_eq!(reason.code, "queue.host_full");
    assert!(
        reason.message.contains("fewer than 2 machines wait") && reason.message.contains("MiB"),
        "{reason}"
    );
    // It is written once, and not with every tick.
    let before = desk.farm.pools[&small()].generation;
    desk.give(Input::Ticked);
    assert_eq!(desk.farm.pools[&small()].generation, before);
    desk.config.pools[0].warm = 1;
    desk.give(Input::Ticked);
    assert_eq!(now(&desk).warm_lacks, None);
}

#[test]
fn what_a_machine_used_while_it_waited_is_kept_with_its_pool_and_charged_to_nobody() {
    let mut desk = Desk::new();
    desk.config.pools[0].warm = 1;
    desk.give(Input::Ticked);
    let site = desk.site;
    let id = at(&desk, site)[0].id;
    desk.pass(120);
    desk.offer(Input::WarmCalled { runner: id, nonce: "first-nonce".to_owned() }).unwrap();
    desk.wanted(1);
    assert!(desk.farm.runners[&id].work.attempt().is_some(), "the job has it");
    let used = |desk: &Desk| {
        let record = &desk.farm.pools[&small()];
        record.warm_use.get(&desk.now.month()).copied().unwrap_or_default()
    };
    let first = used(&desk);
    assert_eq!(first.jobs, 1);
    assert_eq!(first.runner_micros, 120_000_000);
    // A machine that is let go without work is counted as well, once.
    desk.config.pools[0].warm = 0;
    for _ in 0..3 {
        desk.pass(1);
    }
    assert!(used(&desk).jobs <= 2, "{:?}", used(&desk));
    let months = desk.farm.ledger.len();
    assert_eq!(months, 0, "no repository is charged before its attempt ends");
}

/// A job of a forge that is killed at its memory says which pool would do, with what was measured.
#[test]
fn ogs_28_a_job_that_starves_is_told_which_labels_to_ask_for_with_the_measured_figures() {
    use forgeyard_model::verdict::{ExitFacts, OomFacts};
    let mut desk = Desk::new();
    let mut large = desk.config.flavors[0].clone();
    (large.name, large.memory_mib) = ("roomy".parse().unwrap(), 4096);
    desk.config.flavors.push(large);
    let mut pool = desk.config.pools[0].clone();
    pool.name = "roomy".parse().unwrap();
    pool.flavors = ["roomy".parse().unwrap()].into();
    let offer = pool.runners.as_mut().unwrap();
    (offer.flavor, offer.labels) =
        ("roomy".parse().unwrap(), ["self-hosted".to_owned(), "roomy".to_owned()].into());
    desk.config.pools.push(pool);
    desk.wanted(1);
    let attempt = desk.launch(1).state.attempt().unwrap();
    let row = desk.farm.attempts[&attempt].clone();
    let job = desk.farm.jobs[&row.job].clone();
    let oom = OomFacts { kills: 1, peak_bytes: 1000 << 20, limit_bytes: 1024 << 20, victim: None };
    let facts = ExitFacts { oom: Some(oom), cpu_micros: Some(90_000_000), ..ExitFacts::default() };
    let mut verdict =
        crate::ending::lost("host.oom", "out of memory", forgeyard_model::verdict::RetryPolicy::R0);
    crate::advice::add(&desk.config, &job, &row, Some(&facts), &mut verdict);
    let fix = verdict.fix.unwrap();
    for part in [
        "labels roomy, self-hosted of pool roomy",
        "4096 MiB",
        "1000 MiB of memory at most",
        "90 s of CPU time",
    ] {
        assert!(fix.contains(part), "{part}: {fix}");
    }
    // A supervisor that fell silent gets the same advice, as a guess.
    let mut verdict =
        crate::ending::lost("infra.agent-lost", "silent", forgeyard_model::verdict::RetryPolicy::R1);
    crate::advice::add(&desk.config, &job, &row, None, &mut verdict);
    assert!(verdict.fix.unwrap().contains("what its supervisor needs"));
    // What has nothing to do with limits gets none.
    let mut verdict =
        crate::ending::lost("infra.runner-lost", "gone", forgeyard_model::verdict::RetryPolicy::R1);
    crate::advice::add(&desk.config, &job, &row, None, &mut verdict);
    assert_eq!(verdict.fix, None);
}
