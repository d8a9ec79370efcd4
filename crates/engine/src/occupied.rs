//! How full pools and hosts are: sums over the machines that may exist.
//!
//! They change with each row of a machine, so that a job that looks for a place does not count machines. With ten thousand
//! of them that counting was most of a decision.

use forgeyard_model::runner::Runner;
use forgeyard_model::{PoolName, RunnerId, SiteId};
use std::collections::{BTreeMap, BTreeSet};

/// Machines of each pool, and memory of each site.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Occupied {
    machines: BTreeMap<PoolName, BTreeSet<RunnerId>>,
    places: BTreeMap<PoolName, u64>,
    memory_mib: BTreeMap<SiteId, u64>,
}

fn change<K: Ord + Clone>(map: &mut BTreeMap<K, u64>, key: &K, amount: u64, add: bool) {
    let sum = match map.get_mut(key) {
        Some(sum) => sum,
        None => map.entry(key.clone()).or_default(),
    };
    *sum = if add { sum.saturating_add(amount) } else { sum.saturating_sub(amount) };
    if *sum == 0 {
        map.remove(key);
    }
}

impl Occupied {
    /// Enters a machine, or takes it out.
    pub(crate) fn enter(&mut self, runner: &Runner, add: bool) {
        if runner.state.takes_a_place() {
            change(&mut self.places, &runner.pool, 1, add);
        }
        if runner.state.live() {
            match self.machines.get_mut(&runner.pool) {
                Some(machines) if add => drop(machines.insert(runner.id)),
                Some(machines) => {
                    machines.remove(&runner.id);
                    if machines.is_empty() {
                        self.machines.remove(&runner.pool);
                    }
                }
                None if add => drop(self.machines.insert(runner.pool.clone(), [runner.id].into())),
                None => {}
            }
            change(&mut self.memory_mib, &runner.site, runner.shape.memory_mib, add);
        }
    }

    /// Machines of a pool that may exist.
    pub fn machines(&self, pool: &PoolName) -> impl Iterator<Item = RunnerId> {
        self.machines.get(pool).into_iter().flatten().copied()
    }

    /// How many machines take a place of a pool.
    pub fn places(&self, pool: &PoolName) -> u64 {
        self.places.get(pool).copied().unwrap_or_default()
    }

    /// Memory that machines of a site have, in MiB.
    pub fn memory_mib(&self, site: SiteId) -> u64 {
        self.memory_mib.get(&site).copied().unwrap_or_default()
    }
}
