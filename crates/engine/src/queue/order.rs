//! The order in which queued jobs are looked at: priority, fair share, first in first out.
//!
//! 1. **Priority.** Classes of work (presubmit, postsubmit, nightly, or as configured, for single repositories otherwise) come
//!    one after the other.
//! 2. **Ageing.** Where a repository has waiting work of a class and none of it runs, its oldest job counts as one class
//!    earlier for each `age-minutes` that it has waited, up to the first. So work of the last class waits at most twice that
//!    long behind better classes; then its repository gets a place for it by fair share, and the next one when that is
//!    over. It is one place at a time, because a flood ages as a whole and would else pass everybody.
//! 3. **Fair share.** Within a class the repository with the fewest running attempts comes first, by weight; each job that
//!    the order takes counts as though it ran. Among equals, the one that used less lately (decayed by half in each
//!    `half-life-minutes`). This is max-min fairness over places: a repository that asks for ten times as much fills
//!    only what the others leave.
//! 4. **First in, first out** among jobs of one repository and class.
//! 5. **Large requests.** A job that needs several devices and has waited for `patience-minutes` comes first of all, the
//!    oldest alone, so that the places which it needs together are kept for it ([`reserve`](super::reserve)).
//!
//! Costs one pass over the queue with a heap of its rows; nothing here looks at machines.

use crate::farm::Farm;
use forgeyard_model::JobId;
use forgeyard_model::Timestamp;
use forgeyard_model::account::{RepositoryKey, WorkClass};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::ledger::{Entry, LedgerRow};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What jobs are compared by; the least comes first.
type Rank = (u32, u64, u64, Timestamp, JobId);

/// What a repository has already.
struct Share {
    /// Attempts that run, and jobs that the order took.
    has: u64,
    weight: u64,
    recent: u64,
}

struct Row<'a> {
    share: usize,
    level: u32,
    /// Attempts of its repository and class that run, and jobs of it that the order took.
    served: usize,
    jobs: std::iter::Peekable<std::collections::btree_set::Iter<'a, (Timestamp, JobId)>>,
}

/// A job in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The job.
    pub job: JobId,
    /// Its class, counted from 0, ageing included.
    pub level: u32,
}

/// Every queued job, the first first.
pub fn order(farm: &Farm, config: &FarmConfig, now: Timestamp) -> Vec<Placed> {
    let mut shares = Vec::new();
    let mut rows = rows(farm, config, now, &mut shares);
    let mut heap: BinaryHeap<Reverse<(Rank, usize)>> = BinaryHeap::with_capacity(rows.len());
    let age = u64::from(config.queue.age_minutes) * 60;
    let rank = |row: &mut Row<'_>, shares: &[Share]| -> Option<Rank> {
        let (since, job) = **row.jobs.peek()?;
        let aged = now.since(since).as_secs().checked_div(age).unwrap_or(0);
        let aged = if row.served == 0 { u32::try_from(aged).unwrap_or(u32::MAX) } else { 0 };
        let level = row.level.saturating_sub(aged);
        let share = shares.get(row.share)?;
        Some((level, share.has * 1000 / share.weight, share.recent / share.weight, since, job))
    };
    for (at, row) in rows.iter_mut().enumerate() {
        heap.extend(rank(row, &shares).map(|rank| Reverse((rank, at))));
    }
    let mut order = Vec::with_capacity(farm.index.queue.len());
    let first = patient(farm, config, now);
    order.extend(first.map(|job| Placed { job, level: 0 }));
    while let Some(Reverse((old, at))) = heap.pop() {
        let Some(row) = rows.get_mut(at) else { continue };
        let Some(new) = rank(row, &shares) else { continue };
        // Another row of the repository was served meanwhile: this one comes later than it thought.
        if new > old {
            heap.push(Reverse((new, at)));
            continue;
        }
        row.jobs.next();
        row.served += 1;
        if Some(new.4) != first {
            order.push(Placed { job: new.4, level: new.0 });
        }
        if let Some(share) = shares.get_mut(row.share) {
            share.has += 1;
        }
        heap.extend(rank(row, &shares).map(|rank| Reverse((rank, at))));
    }
    order
}

/// The oldest large request whose patience is over.
fn patient(farm: &Farm, config: &FarmConfig, now: Timestamp) -> Option<JobId> {
    let patience = u64::from(config.queue.patience_minutes) * 60;
    let (since, job) = farm.index.large.first()?;
    (patience > 0 && now.since(*since).as_secs() >= patience).then_some(*job)
}

fn rows<'a>(farm: &'a Farm, config: &FarmConfig, now: Timestamp, shares: &mut Vec<Share>) -> Vec<Row<'a>> {
    let rules = &config.queue;
    let mut known: BTreeMap<Option<&RepositoryKey>, usize> = BTreeMap::new();
    let mut rows = Vec::with_capacity(farm.index.waiting.len());
    for (row, jobs) in &farm.index.waiting {
        let repository = row.as_ref().map(|(repository, _)| repository);
        let share = *known.entry(repository).or_insert_with(|| {
            shares.push(share(farm, config, now, repository));
            shares.len() - 1
        });
        let level = match row {
            Some((repository, class)) => rules.level(repository, *class),
            // Work of an older program, whose account was not written down.
            None => rules.order.iter().position(|class| *class == WorkClass::Postsubmit).unwrap_or(0) as u32,
        };
        let served =
            row.as_ref().and_then(|row| farm.index.running.row.get(row)).map_or(0, |live| live.len());
        rows.push(Row { share, level, served, jobs: jobs.iter().peekable() });
    }
    rows
}

fn share(farm: &Farm, config: &FarmConfig, now: Timestamp, repository: Option<&RepositoryKey>) -> Share {
    let Some(repository) = repository else { return Share { has: 0, weight: 1, recent: 0 } };
    let running = farm.index.running.repository.get(repository).map_or(0, |live| live.len() as u64);
    let recent = farm.ledger.get(&LedgerRow::use_key(repository)).map_or(0, |row| match &row.entry {
        Entry::Use(used) => used.recent(now, config.queue.half_life_minutes),
        Entry::Times(_) => 0,
    });
    Share { has: running, weight: config.queue.weight(repository).into(), recent }
}
