//! The books: what was used this month and lately, what runs may use yet, how long work takes.
//!
//! The decision that ends an attempt writes its usage facts and adds them to the ledger rows of its repository, so rows and
//! facts cannot part. What an attempt may use at most is its [`Stake`], fixed when it is placed. [`Books`] sums both up by
//! repository, owner and farm, by pool; it changes with single rows and a start makes it anew from them.
//!
//! Machines count from being placed to the end of the attempt. Devices count for the same time: what the site needs to reset
//! them afterwards is not the work's.

use crate::farm::Farm;
use crate::tx::Tx;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::job::Job;
use forgeyard_model::ledger::{Entry, LedgerRow, RepositoryUse, RunTimes, Stake, Sums};
use forgeyard_model::resources::{Flavor, Pool};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{Account, FlavorName, Owner, PoolName, Timestamp, deadline};
use std::collections::BTreeMap;
use std::time::Duration;

/// Works of one repository that are remembered, in all shapes; what comes after them is not known in advance.
const WORKS: usize = 500;

/// Whose sums.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Of all work.
    Farm,
    /// Of an owner of repositories, by name.
    Organisation(String),
    /// Of a repository.
    Repository(RepositoryKey),
}

/// Sums over rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Books {
    spent: BTreeMap<(String, Scope, PoolName), Sums>,
    at_stake: BTreeMap<(Scope, PoolName), Sums>,
    works: BTreeMap<RepositoryKey, usize>,
}

fn change<K: Ord>(map: &mut BTreeMap<K, Sums>, key: K, sums: &Sums, add: bool) {
    if add {
        map.entry(key).or_default().add(sums);
    } else if let Some(known) = map.get_mut(&key) {
        known.sub(sums);
        if *known == Sums::default() {
            map.remove(&key);
        }
    }
}

fn scopes(repository: &RepositoryKey, organisation: &str) -> [Scope; 3] {
    [Scope::Farm, Scope::Organisation(organisation.to_owned()), Scope::Repository(repository.clone())]
}

impl Books {
    /// Enters a row of the ledger, or takes it out.
    pub(crate) fn enter(&mut self, row: &LedgerRow, add: bool) {
        match &row.entry {
            Entry::Use(used) => {
                for (month, pools) in &used.months {
                    for (pool, sums) in pools {
                        for scope in scopes(&used.repository, &used.organisation) {
                            change(&mut self.spent, (month.clone(), scope, pool.clone()), sums, add);
                        }
                    }
                }
            }
            Entry::Times(times) => {
                let count = self.works.entry(times.repository.clone()).or_default();
                *count = if add { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    self.works.remove(&times.repository);
                }
            }
        }
    }

    /// Enters what a live attempt may use at most, or takes it out.
    pub(crate) fn stake(&mut self, account: &Account, stake: Option<&Stake>, add: bool) {
        let Some(stake) = stake else { return };
        let sums = stake.at_most();
        for scope in scopes(&account.repository, &account.organisation) {
            change(&mut self.at_stake, (scope, stake.pool.clone()), &sums, add);
        }
    }

    /// What was used in a month, in one pool or in all.
    pub fn spent(&self, month: &str, scope: &Scope, pool: Option<&PoolName>) -> Sums {
        let mut sums = Sums::default();
        let pools = self.spent.iter().filter(|((known, of, name), _)| {
            known == month && of == scope && pool.is_none_or(|pool| pool == name)
        });
        pools.for_each(|(_, part)| sums.add(part));
        sums
    }

    /// What running work may use at most, in one pool or in all.
    pub fn at_stake(&self, scope: &Scope, pool: Option<&PoolName>) -> Sums {
        let mut sums = Sums::default();
        let pools = self
            .at_stake
            .iter()
            .filter(|((of, name), _)| of == scope && pool.is_none_or(|pool| pool == name));
        pools.for_each(|(_, part)| sums.add(part));
        sums
    }
}

/// What a job would have in use in this place.
pub(crate) fn stake(
    farm: &Farm,
    config: &FarmConfig,
    job: &Job,
    pool: &Pool,
    flavor: &Flavor,
    devices: u32,
) -> Stake {
    Stake {
        pool: pool.name.clone(),
        flavor: flavor.name.clone(),
        devices,
        seconds: at_most(job.owner, flavor).as_secs(),
        expected: usual(farm, job, &flavor.name),
        per_hour: config.queue.per_hour(&pool.name, &flavor.name),
    }
}

/// How long an attempt can take, from being placed to being ended by the farm.
pub(crate) fn at_most(owner: Owner, flavor: &Flavor) -> Duration {
    let limit = Duration::from_secs(flavor.time_limit_seconds);
    let state = |state| match owner {
        Owner::Pipeline(_) => deadline::attempt(state, limit),
        Owner::Demand(_) => deadline::forge_attempt(state, limit),
    };
    let states = [AttemptState::Placed, AttemptState::Starting, AttemptState::Running];
    states.into_iter().filter_map(state).fold(Duration::ZERO, Duration::saturating_add)
}

/// What tells works of a repository apart.
pub(crate) fn work(farm: &Farm, job: &Job) -> String {
    let demand = job.owner.demand().and_then(|id| farm.demands.get(&id));
    demand.map_or_else(
        || job.key.clone(),
        |demand| format!("{} / {}", demand.workflow.as_deref().unwrap_or("workflow"), demand.name),
    )
}

/// How long this work usually takes in a shape, in seconds.
pub(crate) fn usual(farm: &Farm, job: &Job, flavor: &FlavorName) -> Option<u64> {
    let account = job.account.as_ref()?;
    let key = LedgerRow::times_key(&account.repository, &work(farm, job), flavor);
    match &farm.ledger.get(&key)?.entry {
        Entry::Times(times) => times.usual(),
        Entry::Use(_) => None,
    }
}

/// When a job would be over if it began now, in the flavor that it asks for.
pub(crate) fn would_end(farm: &Farm, config: &FarmConfig, job: &Job, now: Timestamp) -> Timestamp {
    let flavor = job.spec.as_ref().and_then(|spec| config.flavor(&spec.flavor));
    let Some(flavor) = flavor else { return now };
    let usual = usual(farm, job, &flavor.name).map(Duration::from_secs);
    now.plus(usual.unwrap_or_else(|| at_most(job.owner, flavor)))
}

/// When an attempt is expected to be over: by its history while that holds, else when the farm would end it.
pub(crate) fn ends(attempt: &Attempt, now: Timestamp) -> Option<Timestamp> {
    let stake = attempt.stake.as_ref()?;
    let after = |seconds| attempt.placed_at.plus(Duration::from_secs(seconds));
    stake.expected.map(after).filter(|end| *end > now).or_else(|| Some(after(stake.seconds)))
}

/// An attempt is over: writes what it used, and how long it took where that says something of the work.
pub(crate) fn settle(tx: &mut Tx<'_>, attempt: &Attempt, job: &Job, outcome: Outcome, used: Duration) {
    let repository = tx.farm().repository_of(attempt.owner).map(RepositoryKey::of);
    let repository = repository.as_ref();
    let micros = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
    tx.usage("runner_micros", micros, attempt.id, repository);
    let (Some(account), Some(stake)) = (&attempt.account, &attempt.stake) else { return };
    let sums = stake.used(micros);
    if sums.gpu_micros > 0 {
        tx.usage("gpu_micros", sums.gpu_micros, attempt.id, repository);
    }
    if sums.money > 0 {
        tx.usage("money_millionths", sums.money, attempt.id, repository);
    }
    let now = tx.now();
    let half_life = tx.config().queue.half_life_minutes;
    let key = LedgerRow::use_key(&account.repository);
    let known = tx.farm().ledger.get(&key).and_then(|row| match &row.entry {
        Entry::Use(used) => Some(used.clone()),
        Entry::Times(_) => None,
    });
    let mut row = known
        .unwrap_or_else(|| RepositoryUse::new(account.repository.clone(), account.organisation.clone(), now));
    row.organisation.clone_from(&account.organisation);
    row.charge(now, &stake.pool, &sums, half_life);
    tx.put(LedgerRow { key, entry: Entry::Use(row), generation: 0 });
    if matches!(outcome, Outcome::Succeeded | Outcome::Failed) {
        note(tx, account, job, &stake.flavor, used);
    }
}

fn note(tx: &mut Tx<'_>, account: &Account, job: &Job, flavor: &FlavorName, took: Duration) {
    let work = work(tx.farm(), job);
    let key = LedgerRow::times_key(&account.repository, &work, flavor);
    let known = tx.farm().ledger.get(&key).and_then(|row| match &row.entry {
        Entry::Times(times) => Some(times.clone()),
        Entry::Use(_) => None,
    });
    let works = tx.farm().index.books.works.get(&account.repository).copied().unwrap_or(0);
    if known.is_none() && works >= WORKS {
        return;
    }
    let (repository, flavor) = (account.repository.clone(), flavor.clone());
    let mut times = known.unwrap_or(RunTimes { repository, work, flavor, seconds: Vec::new() });
    times.note(u32::try_from(took.as_secs()).unwrap_or(u32::MAX));
    tx.put(LedgerRow { key, entry: Entry::Times(times), generation: 0 });
}
