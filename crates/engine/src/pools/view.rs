//! A pool as people see it, and what it had over the last day.

use super::{canary, launch, machines, record, schedule, warm};
use crate::farm::Farm;
use crate::tx::Tx;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::pool::{PoolRecord, PoolSample, Terms};
use forgeyard_model::resources::Pool;
use forgeyard_model::runner::Runner;
use forgeyard_model::{Explanation, Timestamp};

/// Time between two samples, in seconds.
pub const SAMPLE_SECONDS: u64 = 15 * 60;
/// Samples that are kept: a day of them.
const SAMPLES: usize = 96;

/// Machines of a pool, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those with an attempt.
    pub busy: u32,
    /// Those that wait for one and whose agent has called.
    pub ready: u32,
    /// Those that are being made to wait for one.
    pub coming: u32,
    /// Those that serve nobody any more: failed, being removed, kept for an autopsy.
    pub leaving: u32,
}

/// A pool as it is now.
#[derive(Debug, Clone)]
pub struct PoolNow {
    /// What is remembered of it.
    pub record: PoolRecord,
    /// Its machines.
    pub machines: Counts,
    /// Jobs that wait and might get a place there.
    pub waiting: u32,
    /// What it should have now.
    pub terms: Terms,
    /// Machines that should wait for work now, use and minimum counted in.
    pub wanted: u32,
    /// Why fewer wait.
    pub warm_lacks: Option<Explanation>,
    /// The next change of the schedule.
    pub next: Option<(Timestamp, Terms)>,
    /// Launches that it may make at once now.
    pub launches: u32,
    /// Why it gets no work or starts no machine now.
    pub trouble: Option<Explanation>,
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Counts machines.
pub fn counts<'a>(machines: impl Iterator<Item = &'a Runner>) -> Counts {
    let mut counts = Counts::default();
    for runner in machines {
        let count = match (runner.state.serves(), runner.work.is_warm()) {
            (false, _) => &mut counts.leaving,
            (true, false) => &mut counts.busy,
            (true, true) if runner.state.being_made() => &mut counts.coming,
            (true, true) => &mut counts.ready,
        };
        *count += 1;
    }
    counts
}

/// A pool as it is now.
pub fn now(farm: &Farm, config: &FarmConfig, pool: &Pool, at: Timestamp) -> PoolNow {
    let record = record(farm, &pool.name);
    let terms = schedule::terms(pool, at);
    let trouble = super::drained(farm, pool)
        .or_else(|| launch::stopped(farm, pool, at).err())
        .or_else(|| launch::lets(Some(&record), pool, at).err());
    let wanted = warm::wanted(farm, pool, terms, at);
    let machines = counts(machines(farm, &pool.name));
    // The reason is noted by ticks, and stands no longer when machines or wishes changed since.
    let lacking = machines.ready + machines.coming < wanted;
    let warm_lacks = record.warm_lacks.clone().filter(|_| lacking);
    PoolNow {
        machines,
        waiting: waiting(farm, config, pool, at),
        wanted,
        warm_lacks,
        next: schedule::next_change(pool, at),
        launches: small((launch::level(record.bucket, pool.launches, at) / 1000) as usize),
        terms,
        trouble,
        record,
    }
}

fn waiting(farm: &Farm, config: &FarmConfig, pool: &Pool, at: Timestamp) -> u32 {
    let queued = farm.index.queue.iter().filter_map(|(_, id)| farm.jobs.get(id));
    let might = queued.filter(|job| {
        let Some(spec) = &job.spec else { return false };
        let Some(flavor) = config.flavor(&spec.flavor) else { return false };
        let candidates = canary::candidates(farm, config, job, flavor, spec, at);
        candidates.iter().any(|(candidate, _)| candidate.name == pool.name)
    });
    small(might.count())
}

/// Notes what each pool has, every quarter of an hour.
pub(crate) fn sample(tx: &mut Tx<'_>) {
    let now = tx.now();
    let config = tx.config();
    for pool in &config.pools {
        let mut record = record(tx.farm(), &pool.name);
        let last = record.samples.last().map(|sample| sample.at);
        if last.is_some_and(|last| now.since(last).as_secs() < SAMPLE_SECONDS) {
            continue;
        }
        let counts = counts(machines(tx.farm(), &pool.name));
        // To the second, as it is stored.
        let at = Timestamp::from_micros(now.as_micros().div_euclid(1_000_000) * 1_000_000);
        let waiting = waiting(tx.farm(), config, pool, now);
        record.samples.push(PoolSample {
            at,
            busy: counts.busy,
            warm: counts.ready + counts.coming,
            waiting,
        });
        let most = record.samples.len().saturating_sub(SAMPLES);
        record.samples.drain(..most);
        tx.put(record);
    }
}
