use super::yard::{Wish, Yard, config};
use crate::queue::ledger::Scope;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::rules::{Budget, Price};

fn budget() -> Budget {
    Budget {
        name: "monthly".to_owned(),
        organisation: None,
        repository: None,
        pool: None,
        minutes: None,
        gpu_minutes: None,
        money: None,
    }
}

fn repository(id: u64) -> RepositoryKey {
    RepositoryKey { forge: "github".parse().unwrap(), id }
}

/// A job of the yard can take 82 minutes: an hour, a grace, and the time to come up.
const ONE: u64 = 82;

#[test]
fn nothing_starts_that_could_exceed_a_budget_and_the_reason_says_what_is_left() {
    let mut settings = config();
    settings.queue.budgets =
        vec![Budget { repository: Some(repository(1)), minutes: Some(2 * ONE + 5), ..budget() }];
    let mut yard = Yard::new(settings, 0);
    let jobs: Vec<_> = (0..3).map(|_| yard.submit(&Wish::of(1))).collect();
    let other = yard.submit(&Wish::of(2));
    yard.pass(1);
    assert!(yard.runs(jobs[0]) && yard.runs(jobs[1]) && yard.runs(other));
    // Nothing is spent, but what runs could spend it.
    assert_eq!(yard.waits(jobs[2]), "queue.budget");
    let reason = yard.job(jobs[2]).waiting.clone().unwrap().to_string();
    for part in ["what runs could use it up", "169 min left", "0 min of 169 min", "2023-12-01", "`minutes`"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    // Ten minutes each are used, and the rest is free again.
    yard.pass(600);
    yard.end(jobs[0]);
    yard.end(jobs[1]);
    assert!(yard.runs(jobs[2]));
    yard.pass(6 * 600);
    yard.end(jobs[2]);
    let next = yard.submit(&Wish::of(1));
    yard.pass(1);
    assert!(yard.runs(next), "80 of 169 are spent, and one can take 82");
    yard.pass(1200);
    yard.end(next);
    let last = yard.submit(&Wish::of(1));
    yard.pass(1);
    assert_eq!(yard.waits(last), "queue.budget");
    // The month turns.
    yard.pass(20 * 86_400);
    assert!(yard.runs(last));
}

#[test]
fn a_budget_that_one_job_could_exceed_says_so() {
    let mut settings = config();
    settings.queue.budgets = vec![Budget { minutes: Some(10), ..budget() }];
    let mut yard = Yard::new(settings, 0);
    let job = yard.submit(&Wish::of(1));
    yard.pass(1);
    let reason = yard.job(job).waiting.clone().unwrap();
    assert!(reason.message.contains("one job of small can use"), "{reason}");
}

#[test]
fn money_and_device_minutes_of_owners_and_pools_stop_as_well() {
    let mut settings = config();
    settings.queue.prices =
        vec![Price { pool: None, flavor: Some("gpu".parse().unwrap()), per_hour: "3".parse().unwrap() }];
    // An hour and 22 minutes at 3 an hour are 4.10.
    settings.queue.budgets = vec![Budget {
        organisation: Some("Octo".to_owned()),
        money: Some("4.20".parse().unwrap()),
        ..budget()
    }];
    let mut yard = Yard::new(settings.clone(), 2);
    let (first, second, free) =
        (yard.submit(&Wish::gpus(1, 1)), yard.submit(&Wish::gpus(2, 1)), yard.submit(&Wish::of(3)));
    yard.pass(1);
    assert!(yard.runs(first) && yard.runs(free), "what has no price is not stopped by a budget of money");
    assert_eq!(yard.waits(second), "queue.budget");
    yard.pass(1800);
    yard.end(first);
    let spent = yard.farm.index.books.spent(&yard.now.month(), &Scope::Organisation("octo".to_owned()), None);
    assert_eq!(spent.money, 3_000_000 * (1800) / 3600);

    let pool = Some("pool".parse().unwrap());
    settings.queue.budgets = vec![Budget { pool, gpu_minutes: Some(2 * ONE), ..budget() }];
    let mut yard = Yard::new(settings, 4);
    let (two, one, none) =
        (yard.submit(&Wish::gpus(1, 2)), yard.submit(&Wish::gpus(1, 1)), yard.submit(&Wish::of(1)));
    yard.pass(1);
    assert!(yard.runs(two) && yard.runs(none));
    assert_eq!(yard.waits(one), "queue.budget");
}

#[test]
fn the_ledger_is_the_sum_of_the_usage_facts_and_a_start_restores_it() {
    let mut settings = config();
    settings.queue.prices = vec![Price { pool: None, flavor: None, per_hour: "1.25".parse().unwrap() }];
    let mut yard = Yard::new(settings, 3);
    for round in 0..6 {
        let job = yard.submit(&Wish::gpus(1 + round % 2, (round % 3) as u32));
        yard.pass(1);
        yard.pass(60 * (1 + round));
        yard.end(job);
    }
    let month = yard.now.month();
    for id in [1, 2] {
        let sum = |what: &str| -> u64 {
            let facts = yard.usage.iter().filter(|fact| fact.repository == id && fact.what == what);
            facts.map(|fact| fact.amount).sum()
        };
        let sums = yard.farm.index.books.spent(&month, &Scope::Repository(repository(id)), None);
        assert_eq!(sums.runner_micros, sum("runner_micros"));
        assert_eq!(sums.gpu_micros, sum("gpu_micros"));
        assert_eq!(sums.money, sum("money_millionths"));
        assert_eq!(sums.jobs, 3);
        assert!(sums.runner_micros > 0 && sums.gpu_micros > 0 && sums.money > 0);
    }
    let mut loaded = crate::Farm::load(yard.farm.rows());
    (loaded.epoch, loaded.resumed_at) = (yard.farm.epoch, yard.farm.resumed_at);
    assert!(loaded == yard.farm);
}
