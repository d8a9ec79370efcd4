use super::yard::{Wish, Yard, config};
use crate::why::why;
use std::time::Duration;

#[test]
fn the_expected_start_comes_from_the_history_of_what_is_before() {
    let mut yard = Yard::new(config(), 1);
    yard.teach(1, "work", 600);
    let first = yard.submit(&Wish::gpus(1, 1));
    yard.pass(1);
    let began = yard.farm.attempts[&yard.job(first).state.attempt().unwrap()].placed_at;
    let (second, third) = (yard.submit(&Wish::gpus(1, 1)), yard.submit(&Wish::gpus(1, 1)));
    yard.pass(100);
    let seen = yard.foresight();
    let after = |seconds| Some(began.plus(Duration::from_secs(seconds)));
    let outlook = |job| why(&seen, yard.job(job)).outlook.unwrap();
    assert_eq!((outlook(second).position, outlook(second).expected), (1, after(600)));
    assert_eq!((outlook(third).position, outlook(third).expected), (2, after(1200)));
    assert!(outlook(third).basis.contains("took the last times"));
}

#[test]
fn without_a_history_the_time_limit_counts_and_what_no_waiting_brings_is_not_foreseen() {
    let mut yard = Yard::new(config(), 1);
    let first = yard.submit(&Wish::gpus(1, 1));
    yard.pass(1);
    let (second, never) = (yard.submit(&Wish::gpus(1, 1)), yard.submit(&Wish::gpus(1, 3)));
    yard.pass(1);
    let seen = yard.foresight();
    let outlook = why(&seen, yard.job(second)).outlook.unwrap();
    assert!(outlook.basis.starts_with("at the latest"), "{outlook:?}");
    let began = yard.farm.attempts[&yard.job(first).state.attempt().unwrap()].placed_at;
    assert!(outlook.expected > Some(began.plus(Duration::from_secs(3600))));
    let outlook = why(&seen, yard.job(never)).outlook.unwrap();
    assert_eq!(outlook.expected, None);
    assert!(outlook.basis.starts_with("not known yet"), "{outlook:?}");
}

#[test]
fn work_that_waits_for_a_cap_is_expected_when_a_holder_ends() {
    let mut settings = config();
    settings.queue.caps.repository = Some(1);
    let mut yard = Yard::new(settings, 0);
    yard.teach(1, "work", 300);
    let first = yard.submit(&Wish::of(1));
    let second = yard.submit(&Wish::of(1));
    yard.pass(1);
    let began = yard.farm.attempts[&yard.job(first).state.attempt().unwrap()].placed_at;
    let outlook = why(&yard.foresight(), yard.job(second)).outlook.unwrap();
    assert_eq!(outlook.expected, Some(began.plus(Duration::from_secs(300))));
}
