use super::yard::{Wish, Yard, config};
use crate::why::why;
use forgeyard_model::rules::{Caps, RepositoryRules};

#[test]
fn a_job_that_waits_for_a_cap_says_which_its_value_who_holds_it_and_how_to_change_it() {
    let mut settings = config();
    settings.queue.caps.repository = Some(2);
    let mut yard = Yard::new(settings, 0);
    let jobs: Vec<_> = (0..3).map(|_| yard.submit(&Wish::of(1))).collect();
    let other = yard.submit(&Wish::of(2));
    yard.pass(1);
    assert!(yard.runs(jobs[0]) && yard.runs(jobs[1]) && yard.runs(other));
    assert_eq!(yard.waits(jobs[2]), "queue.cap_repository");
    let reason = why(&yard.foresight(), yard.job(jobs[2])).reason;
    assert!(reason.message.contains("octo/r1") && reason.message.contains("its cap is 2"), "{reason}");
    assert_eq!(reason.evidence.len(), 3, "two holders and the time limit: {reason}");
    assert!(reason.evidence[0].contains("att_"), "{reason}");
    assert!(reason.fix.unwrap().contains("max-running"));
    yard.end(jobs[0]);
    assert!(yard.runs(jobs[2]), "the place goes to who waited for it");
}

#[test]
fn caps_of_owners_people_and_the_farm_hold_and_own_figures_come_first() {
    let rules = |caps: Caps| {
        let mut settings = config();
        settings.queue.caps = caps;
        settings
    };
    let started = |settings, wishes: &[Wish]| {
        let mut yard = Yard::new(settings, 0);
        let jobs: Vec<_> = wishes.iter().map(|wish| yard.submit(wish)).collect();
        yard.pass(1);
        let waits: Vec<String> =
            jobs.iter().filter(|id| !yard.runs(**id)).map(|id| yard.waits(*id).to_owned()).collect();
        (wishes.len() - waits.len(), waits)
    };
    // Two repositories of one owner share its cap.
    let two = [Wish::of(1), Wish::of(2), Wish::of(1)];
    let (count, waits) = started(rules(Caps { organisation: Some(2), ..Caps::default() }), &two);
    assert_eq!((count, waits[0].as_str()), (2, "queue.cap_organisation"));
    let own =
        Caps { organisation: Some(2), organisations: [("Octo".to_owned(), 3)].into(), ..Caps::default() };
    assert_eq!(started(rules(own), &two).0, 3);
    // One person in two repositories.
    let person = [Wish { person: 7, ..Wish::of(1) }, Wish { person: 7, ..Wish::of(2) }, Wish::of(3)];
    let (count, waits) = started(rules(Caps { person: Some(1), ..Caps::default() }), &person);
    assert_eq!((count, waits[0].as_str()), (2, "queue.cap_person"));
    let own = Caps { person: Some(1), people: [(7.into(), 2)].into(), ..Caps::default() };
    assert_eq!(started(rules(own), &person).0, 3);
    // A repository with a figure of its own; nothing may start with a cap of zero.
    let mut settings = rules(Caps { repository: Some(5), ..Caps::default() });
    settings.queue.repositories.push(RepositoryRules {
        forge: "github".parse().unwrap(),
        id: 1,
        max_running: Some(0),
        weight: None,
        order: Vec::new(),
    });
    assert_eq!(started(settings, &two).0, 1);
    // The farm.
    let mut settings = config();
    settings.max_running = 1;
    let (count, waits) = started(settings, &two);
    assert_eq!((count, waits[0].as_str()), (1, "queue.farm_full"));
}

#[test]
fn a_cap_is_not_exceeded_by_what_arrives_in_one_decision_nor_after_a_restart() {
    let mut settings = config();
    settings.queue.caps.repository = Some(3);
    let mut yard = Yard::new(settings, 0);
    let jobs: Vec<_> = (0..20).map(|_| yard.submit(&Wish::of(1))).collect();
    yard.pass(1);
    let running = |yard: &Yard| jobs.iter().filter(|id| yard.runs(**id)).count();
    assert_eq!(running(&yard), 3);
    let (epoch, resumed) = (yard.farm.epoch, yard.farm.resumed_at);
    yard.farm = crate::Farm::load(yard.farm.rows());
    (yard.farm.epoch, yard.farm.resumed_at) = (epoch, resumed);
    yard.pass(1);
    assert_eq!(running(&yard), 3);
}
