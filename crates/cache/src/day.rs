//! The last day of the whole cache, in quarters of an hour: what a chart is drawn from. In memory alone, from the start of
//! the service on.

use crate::figures::Counted;
use forgeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Length of a quarter, in microseconds.
const QUARTER: i64 = 900_000_000;
/// Quarters that are kept: a day, and the one that has begun.
const KEPT: usize = 97;

/// A quarter of an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moment {
    /// When it began.
    pub at: Timestamp,
    /// Reads that found something.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Entries stored.
    pub writes: u64,
}

/// Quarters of the last day in which something was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Day {
    moments: VecDeque<Moment>,
    /// The counters when they were last looked at.
    seen: Moment,
}

impl Day {
    /// Takes note of the counters now: what was added since belongs to the quarter that runs.
    pub(crate) fn note(&mut self, counted: &[Counted], now: Timestamp) {
        let sum = |of: fn(&Counted) -> u64| counted.iter().map(of).fold(0, u64::saturating_add);
        let all = Moment {
            at: Timestamp::from_micros(now.as_micros().div_euclid(QUARTER) * QUARTER),
            hits: sum(|one| one.hits.saturating_add(one.parent_hits)),
            misses: sum(|one| one.misses),
            writes: sum(|one| one.writes),
        };
        let added = Moment {
            at: all.at,
            hits: all.hits.saturating_sub(self.seen.hits),
            misses: all.misses.saturating_sub(self.seen.misses),
            writes: all.writes.saturating_sub(self.seen.writes),
        };
        self.seen = all;
        if added.hits + added.misses + added.writes == 0 {
            return;
        }
        match self.moments.back_mut() {
            Some(last) if last.at == added.at => {
                last.hits += added.hits;
                last.misses += added.misses;
                last.writes += added.writes;
            }
            _ => self.moments.push_back(added),
        }
        let oldest = all.at.as_micros() - QUARTER * (KEPT as i64 - 1);
        self.moments.retain(|moment| moment.at.as_micros() >= oldest);
    }

    /// The quarters, oldest first.
    pub(crate) fn moments(&self) -> Vec<Moment> {
        self.moments.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(hits: u64, misses: u64) -> Vec<Counted> {
        vec![Counted { hits, parent_hits: 1, misses, ..Counted::default() }]
    }

    fn at(quarter: i64, rest: i64) -> Timestamp {
        Timestamp::from_micros(quarter * QUARTER + rest)
    }

    #[test]
    fn day_holds_what_was_added_in_each_quarter_and_forgets_older_ones() {
        let mut day = Day::default();
        day.note(&counted(4, 2), at(1000, 5));
        day.note(&counted(4, 2), at(1000, 10));
        day.note(&counted(9, 3), at(1000, 20));
        day.note(&counted(10, 3), at(1003, 0));
        let moments = day.moments();
        assert_eq!(moments.len(), 2, "a quarter without reads is left out");
        assert_eq!((moments[0].at, moments[0].hits, moments[0].misses), (at(1000, 0), 10, 3));
        assert_eq!((moments[1].at, moments[1].hits, moments[1].misses), (at(1003, 0), 1, 0));
        day.note(&counted(11, 3), at(1000 + KEPT as i64, 0));
        assert_eq!(day.moments().iter().map(|it| it.at).collect::<Vec<_>>(), [at(1003, 0), at(1097, 0)]);
    }
}
