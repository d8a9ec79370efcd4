//! Pools: how many machines, how fast, for whom, and when not.
//!
//! - [`schedule`]: what a pool should have at a moment.
//! - [`launch`]: the bucket of launches and the breaker.
//! - [`canary`]: which pools may serve a job, in which order.
//! - [`warm`]: machines that are made before there is work.
//! - [`check`]: what a configuration may say of pools.
//! - [`view`]: a pool as people see it, and what it had over the last day.

pub mod canary;
pub mod check;
pub(crate) mod known;
pub(crate) mod launch;
pub mod schedule;
#[cfg(test)]
mod site_tests;
#[cfg(test)]
mod tests;
pub mod view;
pub(crate) mod warm;

use crate::farm::Farm;
use crate::tx::Tx;
use forgeyard_model::input::{Refusal, Reply};
use forgeyard_model::pool::{PoolDrain, PoolRecord};
use forgeyard_model::resources::Pool;
use forgeyard_model::runner::Runner;
use forgeyard_model::{Explanation, PoolName};

/// What is remembered of a pool.
pub fn record(farm: &Farm, name: &PoolName) -> PoolRecord {
    farm.pools.get(name).cloned().unwrap_or_else(|| PoolRecord::new(name.clone()))
}

/// Machines of a pool that may exist.
pub(crate) fn machines<'a>(farm: &'a Farm, pool: &PoolName) -> impl Iterator<Item = &'a Runner> {
    farm.index.occupied.machines(pool).filter_map(|id| farm.runners.get(&id))
}

/// Why a pool gets no work, when an operator drains it.
pub(crate) fn drained(farm: &Farm, pool: &Pool) -> Option<Explanation> {
    let drain = farm.pools.get(&pool.name)?.drain.as_ref()?;
    let text = format!("pool {} gets no new work since {}", pool.name, drain.since);
    Some(
        Explanation::new("queue.pool_draining", text)
            .with(format!("drained by {}", drain.by))
            .fix(format!("`forgeyard pool resume {}` gives it work again", pool.name)),
    )
}

/// An operator stops or resumes giving work to a pool. What runs there goes on.
pub(crate) fn drain(tx: &mut Tx<'_>, name: &PoolName, drain: bool) -> Result<Reply, Refusal> {
    launch::configured(tx, name)?;
    let record = record(tx.farm(), name);
    if record.drain.is_some() == drain {
        return Ok(Reply::Unchanged);
    }
    let (event, from, to) =
        if drain { ("PoolDrained", "open", "draining") } else { ("PoolResumed", "draining", "open") };
    let by = tx.ctx.by.name.clone();
    tx.event(event, name, Some(from), to, None);
    let drain = drain.then(|| PoolDrain { since: tx.now(), by });
    tx.put(PoolRecord { drain, ..record });
    Ok(Reply::Done)
}

/// A job of a pool began or ended: what it keeps warm by use counts from here.
pub(crate) fn used(tx: &mut Tx<'_>, name: &PoolName) {
    if tx.config().pool(name).is_some_and(|pool| pool.keep.is_some()) {
        let record = record(tx.farm(), name);
        tx.put(PoolRecord { used_at: Some(tx.now()), ..record });
    }
}

/// What time does to pools.
pub(crate) fn ticked(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    launch::ticked(tx);
    view::sample(tx);
    warm::ticked(tx)
}
