//! Fair share under a flood, by a *simulated* afternoon: seeded arrivals and durations, a manual clock, the real engine.

use super::yard::{Wish, Yard, config};
use forgeyard_model::{JobId, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A small generator (splitmix64), so that a seed names one run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const PLACES: u32 = 8;
/// Seconds in which work arrives.
const SPAN: f64 = 12_000.0;

/// Waiting times of each repository, sorted, in seconds. `flood` is how much more than the others the last one asks for.
fn waits(seed: u64, flood: u32) -> BTreeMap<u64, Vec<u64>> {
    let mut settings = config();
    settings.max_running = PLACES;
    let mut yard = Yard::new(settings, 0);
    let start = yard.now;
    // Four repositories that together ask for nine tenths of what there is.
    let mean = 330.0;
    let rate = 0.9 * f64::from(PLACES) / mean / 4.0;
    let mut arrivals = BinaryHeap::new();
    for repository in 1..=4 {
        // Each repository has dice of its own: a flood by one changes nothing in what the others ask for.
        let mut dice = Dice(seed * 31 + repository);
        let times = if repository == 4 { f64::from(flood) } else { 1.0 };
        let mut at = 0.0;
        loop {
            at += -(1.0 - dice.unit()).ln() / (rate * times);
            if at > SPAN {
                break;
            }
            arrivals.push(Reverse(((at * 1e6) as i64, repository, 60 + dice.next() % 541)));
        }
    }
    let mut known: BTreeMap<JobId, (u64, i64, u64)> = BTreeMap::new();
    let mut ends: BinaryHeap<Reverse<(i64, JobId)>> = BinaryHeap::new();
    let mut waits: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut reported = 0;
    // What still waits when the last arrival is in is not looked at, except that the flood may never end.
    while let Some(Reverse((arrives, _, _))) = arrivals.peek() {
        let ended = ends.peek().map_or(i64::MAX, |Reverse((at, _))| *at);
        let now = ended.min(*arrives);
        yard.now = Timestamp::from_micros((start.as_micros() + now).max(yard.now.as_micros()));
        // A site that is silent gets no work.
        if now - reported > 30_000_000 {
            reported = now;
            yard.report();
        }
        if ended <= *arrives {
            let Some(Reverse((_, job))) = ends.pop() else { break };
            yard.finish(job);
        } else if let Some(Reverse((at, repository, lasts))) = arrivals.pop() {
            let job = yard.submit(&Wish::of(repository));
            known.insert(job, (repository, at, lasts));
            yard.report();
        }
        // Whoever was placed just now.
        let started: Vec<JobId> = known.keys().copied().filter(|job| yard.runs(*job)).collect();
        for job in started {
            let Some((repository, at, lasts)) = known.remove(&job) else { continue };
            waits.entry(repository).or_default().push(((now - at) / 1_000_000) as u64);
            ends.push(Reverse((now + (lasts * 1_000_000) as i64, job)));
        }
    }
    waits.values_mut().for_each(|waits| waits.sort_unstable());
    waits
}

fn p95(waits: &[u64]) -> u64 {
    waits[waits.len() * 95 / 100]
}

#[test]
fn a_repository_that_floods_ten_times_at_most_doubles_the_p95_of_another() {
    for seed in [1, 2] {
        let (calm, flooded) = (waits(seed, 1), waits(seed, 10));
        for repository in 1..=3 {
            let (before, after) = (p95(&calm[&repository]), p95(&flooded[&repository]));
            println!(
                "seed {seed}, repository {repository}: p95 of waiting {before} s, under a tenfold flood by another {after} s ({:.2}×)",
                after as f64 / before as f64
            );
            assert!(after <= 2 * before, "seed {seed}, repository {repository}: {before} s became {after} s");
        }
        println!(
            "seed {seed}, the flood itself: p95 of waiting {} s, then {} s",
            p95(&calm[&4]),
            p95(&flooded[&4])
        );
    }
}
