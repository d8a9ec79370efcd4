use super::yard::{Wish, Yard, config};
use crate::queue::order::order;
use forgeyard_model::JobId;
use forgeyard_model::account::WorkClass;
use forgeyard_model::rules::RepositoryRules;

fn of(repository: u64, class: WorkClass) -> Wish {
    Wish { class, ..Wish::of(repository) }
}

/// The order of everything that waits, while nothing may start.
fn ids(yard: &Yard) -> Vec<JobId> {
    order(&yard.farm, &yard.config, yard.now).iter().map(|placed| placed.job).collect()
}

fn full() -> Yard {
    let mut settings = config();
    settings.max_running = 0;
    Yard::new(settings, 0)
}

#[test]
fn classes_come_in_order_and_first_in_is_first_out_within_them() {
    let mut yard = full();
    let nightly = yard.submit(&of(1, WorkClass::Nightly));
    let post = [yard.submit(&of(1, WorkClass::Postsubmit)), yard.submit(&of(1, WorkClass::Postsubmit))];
    let pre = yard.submit(&of(1, WorkClass::Presubmit));
    assert_eq!(ids(&yard), [pre, post[0], post[1], nightly]);
    // Another order for the farm, and one of its own for a repository.
    yard.config.queue.order = vec![WorkClass::Nightly, WorkClass::Postsubmit, WorkClass::Presubmit];
    assert_eq!(ids(&yard), [nightly, post[0], post[1], pre]);
    yard.config.queue.repositories.push(RepositoryRules {
        forge: "github".parse().unwrap(),
        id: 1,
        max_running: None,
        weight: None,
        order: vec![WorkClass::Postsubmit, WorkClass::Presubmit, WorkClass::Nightly],
    });
    assert_eq!(ids(&yard), [post[0], post[1], pre, nightly]);
}

#[test]
fn waiting_work_of_the_last_class_is_in_the_first_after_twice_the_age() {
    let mut yard = full();
    let nightly = yard.submit(&of(1, WorkClass::Nightly));
    yard.pass(2 * 120 * 60 - 30);
    let pre = yard.submit(&of(1, WorkClass::Presubmit));
    assert_eq!(ids(&yard), [pre, nightly]);
    yard.pass(60);
    assert_eq!(ids(&yard), [nightly, pre]);
    yard.config.queue.age_minutes = 0;
    assert_eq!(ids(&yard), [pre, nightly], "without ageing classes are strict");
}

#[test]
fn repositories_take_turns_by_weight_and_by_what_they_used_lately() {
    let mut yard = full();
    let many: Vec<_> = (0..4).map(|_| yard.submit(&Wish::of(1))).collect();
    let few: Vec<_> = (0..2).map(|_| yard.submit(&Wish::of(2))).collect();
    assert_eq!(ids(&yard), [many[0], few[0], many[1], few[1], many[2], many[3]]);
    yard.config.queue.repositories.push(RepositoryRules {
        forge: "github".parse().unwrap(),
        id: 1,
        max_running: None,
        weight: Some(2),
        order: Vec::new(),
    });
    assert_eq!(ids(&yard), [many[0], few[0], many[1], many[2], few[1], many[3]]);
    // Who used the farm a while ago comes after who did not.
    yard.config.queue.repositories.clear();
    yard.config.max_running = 1;
    yard.pass(1);
    yard.pass(100);
    yard.config.max_running = 0;
    yard.end(many[0]);
    assert_eq!(ids(&yard)[0], few[0]);
    // And after many half-lives it is forgotten.
    yard.pass(3600 * 48);
    yard.config.queue.age_minutes = 0;
    assert_eq!(ids(&yard)[0], many[1]);
}

#[test]
fn a_large_request_whose_patience_is_over_is_first_and_alone() {
    let mut yard = full();
    yard.config.queue.age_minutes = 0;
    let large = [yard.submit(&Wish::gpus(1, 2)), yard.submit(&Wish::gpus(1, 2))];
    let before = yard.submit(&Wish { class: WorkClass::Presubmit, ..Wish::of(2) });
    assert_eq!(ids(&yard), [before, large[0], large[1]]);
    yard.pass(3600);
    assert_eq!(ids(&yard), [large[0], before, large[1]]);
}
