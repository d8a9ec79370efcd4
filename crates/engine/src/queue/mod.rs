//! What comes before a place is searched: in which order jobs are looked at, and which may not start yet.
//!
//! Work runs on an [`Account`], which is written into a job when it is made and into its attempts when they are placed.
//! [`caps`] and [`budget`]s are counted by accounts, [`order`] shares by them, [`reserve`] keeps places for large requests,
//! [`ledger`] keeps the sums and durations that all of them look at, [`predict`] says when it will be whose turn. Both kinds of work, pipelines of ours and launches for jobs of forges, go through the
//! same rules.
//!
//! Everything here is a function of farm, configuration and time; what it needs to know fast is kept in indexes
//! ([`Running`], [`Waiting`]) that change with single rows.

pub mod budget;
pub mod caps;
pub mod ledger;
pub mod order;
pub mod predict;
pub mod reserve;

use crate::farm::Farm;
use forgeyard_model::account::{RepositoryKey, WorkClass, organisation_of};
use forgeyard_model::{Account, AttemptId, ForgeName, JobId, Owner, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts that are not over, by account.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Running {
    /// By repository and class.
    pub row: BTreeMap<(RepositoryKey, WorkClass), BTreeSet<AttemptId>>,
    /// By repository.
    pub repository: BTreeMap<RepositoryKey, BTreeSet<AttemptId>>,
    /// By owner of repositories.
    pub organisation: BTreeMap<ForgeName, BTreeMap<String, BTreeSet<AttemptId>>>,
    /// By person.
    pub person: BTreeMap<(ForgeName, u64), BTreeSet<AttemptId>>,
}

fn toggle<K: Ord, T: Ord>(map: &mut BTreeMap<K, BTreeSet<T>>, key: K, value: T, add: bool) {
    if add {
        map.entry(key).or_default().insert(value);
    } else if let Some(set) = map.get_mut(&key) {
        set.remove(&value);
        if set.is_empty() {
            map.remove(&key);
        }
    }
}

impl Running {
    /// Enters an attempt, or takes it out.
    pub(crate) fn toggle(&mut self, account: &Account, id: AttemptId, add: bool) {
        let forge = &account.repository.forge;
        toggle(&mut self.row, (account.repository.clone(), account.class), id, add);
        toggle(&mut self.repository, account.repository.clone(), id, add);
        if !account.organisation.is_empty() {
            let owners = self.organisation.entry(forge.clone()).or_default();
            toggle(owners, account.organisation.clone(), id, add);
            if owners.is_empty() {
                self.organisation.remove(forge);
            }
        }
        if account.person != 0 {
            toggle(&mut self.person, (forge.clone(), account.person), id, add);
        }
    }
}

/// Queued jobs by account and age: within one of these rows, first in is first out.
pub type Waiting = BTreeMap<Option<(RepositoryKey, WorkClass)>, BTreeSet<(Timestamp, JobId)>>;

/// Enters a queued job, or takes it out.
pub(crate) fn enter(waiting: &mut Waiting, account: Option<&Account>, place: (Timestamp, JobId), add: bool) {
    let row = account.map(|account| (account.repository.clone(), account.class));
    toggle(waiting, row, place, add);
}

/// On whose account an owner's work runs.
pub(crate) fn account_of(farm: &Farm, owner: Owner) -> Option<Account> {
    match owner {
        Owner::Pipeline(id) => farm.pipelines.get(&id).map(|pipeline| Account::of_event(&pipeline.event)),
        Owner::Demand(id) => {
            let demand = farm.demands.get(&id)?;
            let facts = demand.facts.as_ref();
            let person = facts.and_then(|facts| facts.author.as_ref().or(facts.actor.as_ref()));
            Some(Account {
                repository: RepositoryKey::of(&demand.repository),
                organisation: organisation_of(&demand.repository.name),
                person: person.or(demand.sender.as_ref()).map_or(0, |person| person.id),
                class: facts.map(|facts| WorkClass::of_event(&facts.event)).unwrap_or_default(),
            })
        }
    }
}

#[cfg(test)]
mod tests;
