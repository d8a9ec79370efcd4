//! What was used this month, put together from the ledger of the replica for API and command line.

use forgeyard_api::usage::{BudgetUsage, MonthUsage, RepositoryUsage, WarmUsage};
use forgeyard_engine::Farm;
use forgeyard_engine::pools::view;
use forgeyard_engine::queue::{budget, ledger::Scope};
use forgeyard_model::Timestamp;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::ledger::{Entry, Sums};
use std::collections::BTreeSet;

/// Usage of the month of this time.
pub fn month(farm: &Farm, config: &FarmConfig, now: Timestamp) -> MonthUsage {
    let month = now.month();
    let used = farm.ledger.values().filter_map(|row| match &row.entry {
        Entry::Use(used) => Some(used.repository.clone()),
        Entry::Times(_) => None,
    });
    let running = &farm.index.running.repository;
    let keys: BTreeSet<RepositoryKey> = used.chain(running.keys().cloned()).collect();
    let mut repositories: Vec<RepositoryUsage> = keys
        .into_iter()
        .map(|repository| {
            let known = config.repository(&repository.forge, repository.id);
            let name = match (repository.id, known) {
                (0, _) => "recipe folders".to_owned(),
                (_, Some(known)) => known.name.clone(),
                (_, None) => "no longer configured".to_owned(),
            };
            let own = config.queue.repository(&repository).and_then(|rules| rules.max_running);
            let live = running.get(&repository).map_or(0, BTreeSet::len);
            RepositoryUsage {
                used: farm.index.books.spent(&month, &Scope::Repository(repository.clone()), None),
                running: u32::try_from(live).unwrap_or(u32::MAX),
                cap: own.or(config.queue.caps.repository),
                repository,
                name,
            }
        })
        .filter(|row| row.running > 0 || row.used != Sums::default())
        .collect();
    repositories
        .sort_by_key(|row| std::cmp::Reverse((row.used.gpu_micros, row.used.runner_micros, row.running)));
    let budgets = budget::standings(farm, config, now).into_iter().map(|standing| BudgetUsage {
        name: standing.budget.name.clone(),
        of: standing.budget.of(),
        unit: standing.unit.fact().to_owned(),
        limit: standing.limit,
        spent: standing.spent,
        at_stake: standing.at_stake,
        left: standing.limit.saturating_sub(standing.spent).saturating_sub(standing.at_stake),
    });
    let warm = farm.pools.values().filter_map(|record| {
        let used = record.warm_use.get(&month).copied().unwrap_or_default();
        let counts = view::counts(farm.runners.values().filter(|runner| runner.pool == record.name));
        let waiting = counts.ready + counts.coming;
        (waiting > 0 || used != Sums::default()).then(|| WarmUsage {
            pool: record.name.clone(),
            used,
            waiting,
        })
    });
    let warm = warm.collect();
    MonthUsage { turns_at: now.next_month(), repositories, warm, budgets: budgets.collect(), month }
}
