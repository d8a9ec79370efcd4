//! The tour is killed again and again and still ends as if nothing had happened.
//!
//! `FORGEYARD_KILLS` sets how often (10), `FORGEYARD_SEED` which moments; the seed is printed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails")]

mod chain;

use chain::{Life, Place, attempts_at_work, possible, rows::Rows, traces};
use forgeyard_model::verdict::Outcome;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Kills of one tour, at most: each costs the attempts that it hits, and their pauses grow.
const OF_ONE_TOUR: u32 = 4;
/// Latest moment of a kill after a start, in milliseconds.
const LATEST: u64 = 14_000;

/// Numbers that look random and are the same for the same seed (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// The claims that must hold of a tour that was killed.
fn holds(place: &Place) -> Rows {
    let said = place.said();
    assert!(!said.contains("BROKEN"), "a claim is broken:\n{said}");
    let rows = Rows::read(&place.data);
    assert_eq!(rows.broken(), Vec::<String>::new(), "{said}");
    assert_eq!(traces::of(&place.data, &rows.machines()), Vec::<String>::new(), "{said}");
    rows
}

/// Goes on until the tour is over.
fn go_on(place: &Place) -> Duration {
    let begun = Instant::now();
    let ended = place.tour(&[]).end(place);
    assert!(ended.success(), "{ended}:\n{}", place.said());
    begun.elapsed()
}

#[test]
fn a_tour_that_is_killed_at_any_moment_ends_as_if_it_had_not_been() {
    if !possible() {
        return;
    }
    let seed = setting("FORGEYARD_SEED").unwrap_or_else(|| {
        #[allow(clippy::disallowed_methods, reason = "a seed that is printed")]
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos().into()
    });
    let kills = setting("FORGEYARD_KILLS").unwrap_or(10);
    println!("FORGEYARD_SEED={seed} FORGEYARD_KILLS={kills}");
    let mut numbers = Numbers(seed);
    let (mut done, mut survived, mut hit, mut lost) = (0, 0, 0, 0);
    while done < kills {
        let place = Place::new();
        // Attempts that ran when the program alone was killed.
        let mut orphans: BTreeSet<String> = BTreeSet::new();
        let mut everything = false;
        for _ in 0..OF_ONE_TOUR {
            if done == kills {
                break;
            }
            let moment = Duration::from_millis(numbers.below(LATEST));
            let all = numbers.below(2) == 1;
            let mut life = place.tour(&[]);
            if let Some(ended) = life.over_within(moment) {
                assert!(ended.success(), "{ended}:\n{}", place.said());
                break;
            }
            let at_work = attempts_at_work(&place.data);
            println!(
                "kill {} after {:5} ms: {}; at work: {}",
                done + 1,
                moment.as_millis(),
                if all { "everything" } else { "the program alone" },
                at_work.iter().map(|(_, step)| step.as_str()).collect::<Vec<_>>().join(", "),
            );
            if all {
                everything = true;
                place.kill_all(life);
            } else {
                life.kill();
                orphans.extend(at_work.into_iter().map(|(attempt, _)| attempt));
            }
            done += 1;
            std::thread::sleep(Duration::from_millis(numbers.below(2000)));
        }
        let took = go_on(&place);
        let rows = holds(&place);
        let tried: usize = rows.attempts.len() - rows.jobs.len();
        println!("held after {:.1} s; {tried} attempts were lost", took.as_secs_f64());
        lost += tried;
        for attempt in rows.attempts.iter().filter(|attempt| orphans.contains(&attempt.id.to_string())) {
            hit += 1;
            let good = attempt.outcome == Some(Outcome::Succeeded);
            survived += u32::from(good);
            assert!(
                good || everything,
                "{} ran when the program alone was killed, and is {:?}: {:?}",
                attempt.id,
                attempt.outcome,
                attempt.verdict
            );
        }
    }
    println!("{done} kills; {survived} of {hit} attempts outlived the program; {lost} attempts were lost");
}

/// Waits until an attempt runs this step.
fn at_step(place: &Place, life: &mut Life, wanted: &str) -> String {
    loop {
        let at_work = attempts_at_work(&place.data);
        if let Some((attempt, _)) = at_work.into_iter().find(|(_, step)| step == wanted) {
            return attempt;
        }
        assert!(life.over().is_none(), "no attempt came to step {wanted}:\n{}", place.said());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_attempt_outlives_the_farm_and_is_not_tried_again() {
    if !possible() {
        return;
    }
    let place = Place::new();
    let mut life = place.tour(&[]);
    let attempt = at_step(&place, &mut life, "build");
    life.kill();
    println!("killed while {attempt} ran; restart after 2 s");
    std::thread::sleep(Duration::from_secs(2));
    let took = go_on(&place);
    let rows = holds(&place);
    let row = rows.attempts.iter().find(|row| row.id.to_string() == attempt).unwrap();
    assert_eq!(row.outcome, Some(Outcome::Succeeded), "{:?}", row.verdict);
    assert_eq!(row.fence, 1);
    assert_eq!(rows.attempts.len(), rows.jobs.len(), "an attempt was tried again");
    println!("held after {:.1} s", took.as_secs_f64());
}
