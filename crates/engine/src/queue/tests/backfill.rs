use super::fair::Dice;
use super::yard::{Wish, Yard, config};
use forgeyard_model::account::WorkClass;
use forgeyard_model::{JobId, Timestamp};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn wish(gpus: u32, seconds: u32) -> Wish {
    Wish { key: format!("for-{seconds}"), ..Wish::gpus(1, gpus) }
}

#[test]
fn small_work_passes_a_large_request_only_when_it_is_over_in_time() {
    let mut yard = Yard::new(config(), 4);
    for seconds in [60, 600, 1200] {
        yard.teach(1, &format!("for-{seconds}"), seconds);
    }
    // Three devices are taken for ten minutes; one is free.
    let running: Vec<JobId> = (0..3).map(|_| yard.submit(&wish(1, 600))).collect();
    yard.pass(1);
    assert!(running.iter().all(|job| yard.runs(*job)));
    let large = yard.submit(&Wish { class: WorkClass::Presubmit, ..wish(4, 600) });
    let (long, short) = (yard.submit(&wish(1, 1200)), yard.submit(&wish(1, 60)));
    yard.pass(1);
    assert_eq!(yard.waits(large), "queue.device_busy");
    assert!(yard.runs(short), "it is over before the large request could start");
    assert_eq!(yard.waits(long), "queue.reserved");
    let reason = yard.job(long).waiting.clone().unwrap();
    assert!(reason.message.contains(&large.to_string()), "{reason}");
    // What needs no device is not concerned.
    let cpu = yard.submit(&Wish { key: "for-1200".to_owned(), ..Wish::of(1) });
    yard.pass(58);
    assert!(yard.runs(cpu));
    yard.end(short);
    assert!(!yard.runs(long));
    yard.pass(540);
    running.iter().for_each(|job| yard.end(*job));
    assert!(yard.runs(large) && !yard.runs(long));
}

#[test]
fn work_without_a_history_is_taken_to_its_time_limit() {
    let mut yard = Yard::new(config(), 2);
    let first = yard.submit(&Wish::gpus(1, 1));
    yard.pass(1);
    let large = yard.submit(&Wish { class: WorkClass::Presubmit, ..Wish::gpus(1, 2) });
    yard.pass(600);
    let small = yard.submit(&Wish::gpus(2, 1));
    yard.pass(1);
    assert!(yard.runs(first) && !yard.runs(large));
    assert_eq!(yard.waits(small), "queue.reserved", "nobody knows that it is shorter");
}

/// Memory is kept as well: a job that needs most of a host would otherwise never find it empty.
#[test]
fn memory_is_kept_for_the_first_that_lacks_it() {
    let mut settings = config();
    settings.flavors[0].memory_mib = 1 << 28;
    let big = forgeyard_model::resources::Flavor {
        name: "big".parse().unwrap(),
        memory_mib: 1 << 30,
        ..settings.flavors[0].clone()
    };
    settings.pools[0].flavors.insert(big.name.clone());
    settings.flavors.push(big);
    let mut yard = Yard::new(settings, 0);
    yard.teach(2, "short", 30);
    let small = yard.submit(&Wish::of(1));
    yard.pass(1);
    let large = yard.submit(&Wish { flavor: "big", class: WorkClass::Presubmit, ..Wish::of(1) });
    let (other, short) =
        (yard.submit(&Wish::of(2)), yard.submit(&Wish { key: "short".to_owned(), ..Wish::of(2) }));
    yard.pass(1);
    assert!(yard.runs(small) && yard.runs(short));
    assert_eq!((yard.waits(large), yard.waits(other)), ("queue.host_full", "queue.reserved"));
    yard.end(short);
    yard.end(small);
    assert!(yard.runs(large));
}

/// Jobs of a run, and when they end.
struct Run {
    yard: Yard,
    waiting: Vec<(JobId, u64)>,
    ends: BTreeMap<JobId, Timestamp>,
}

impl Run {
    /// Time passes; whatever ends meanwhile ends at its own time.
    fn pass(&mut self, seconds: u64) {
        let until = self.yard.now.plus(Duration::from_secs(seconds));
        loop {
            self.started();
            let next = self.ends.iter().map(|(job, end)| (*end, *job)).min().filter(|(end, _)| *end <= until);
            let Some((end, job)) = next else { break };
            self.ends.remove(&job);
            self.yard.now = self.yard.now.max(end);
            self.yard.end(job);
        }
        self.yard.now = until;
        self.yard.report();
        self.started();
    }

    fn started(&mut self) {
        let (yard, ends) = (&self.yard, &mut self.ends);
        self.waiting.retain(|(job, lasts)| match yard.job(*job).state.attempt() {
            Some(attempt) => {
                let end = yard.farm.attempts[&attempt].placed_at.plus(Duration::from_secs(*lasts));
                ends.insert(*job, end);
                false
            }
            None => true,
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Predictions are upper bounds here: each work ends when it is predicted to, or earlier.
    #[test]
    fn backfill_never_moves_the_reserved_start_back(seed in any::<u64>(), wanted in 2u32..=4) {
        let mut dice = Dice(seed);
        let mut run = Run { yard: Yard::new(config(), 4), waiting: Vec::new(), ends: BTreeMap::new() };
        let lengths = [60u32, 200, 500, 900];
        for seconds in lengths {
            run.yard.teach(1, &format!("for-{seconds}"), seconds);
        }
        let mut large = None;
        let mut promised: Option<Timestamp> = None;
        for round in 0..60 {
            let predicted = lengths[(dice.next() % 4) as usize];
            let lasts = 1 + dice.next() % u64::from(predicted);
            let job = run.yard.submit(&wish(1 + (dice.next() % 2) as u32, predicted));
            run.waiting.push((job, lasts));
            if round == 8 {
                large = Some(run.yard.submit(&Wish { class: WorkClass::Presubmit, ..wish(wanted, 900) }));
            }
            run.pass(1 + dice.next() % 40);
            let Some(job) = large else { continue };
            if let Some(attempt) = run.yard.job(job).state.attempt() {
                let began = run.yard.farm.attempts[&attempt].placed_at;
                prop_assert!(promised.is_none_or(|promised| began <= promised), "{began} after {promised:?}");
                return Ok(());
            }
            let kept = run.yard.reservation(job).expect("it is kept a place");
            prop_assert!(
                promised.is_none_or(|promised| kept.start <= promised.max(run.yard.now)),
                "promised {promised:?}, now {}", kept.start
            );
            promised = Some(kept.start);
        }
        // 52 rounds of 20 seconds: whatever ran is over.
        prop_assert!(false, "it never began; promised {promised:?}, now {}", run.yard.now);
    }
}
