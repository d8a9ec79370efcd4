//! Budgets: minutes of machines, minutes of devices and money in a calendar month (UTC), with a hard stop.
//!
//! A job starts only when what was spent, what already runs and this job itself, both taken to their time limits, stay within
//! every budget that covers it. So a budget is never exceeded, and work that runs is never stopped for it. The price is
//! that the last part of a budget, smaller than one job can use, is not given out.
//!
//! What an attempt used counts in the month in which it ends; what runs over the turn of a month is held back from both.

use crate::farm::Farm;
use crate::queue::ledger::Scope;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::ledger::{Stake, Sums};
use forgeyard_model::rules::{Budget, Money};
use forgeyard_model::{Account, Explanation, Timestamp};

/// Something that a budget limits.
#[derive(Clone, Copy)]
enum Unit {
    Minutes,
    GpuMinutes,
    Money,
}

impl Unit {
    const ALL: [Unit; 3] = [Unit::Minutes, Unit::GpuMinutes, Unit::Money];

    const fn of(self, sums: &Sums) -> u64 {
        match self {
            Unit::Minutes => sums.runner_micros,
            Unit::GpuMinutes => sums.gpu_micros,
            Unit::Money => sums.money,
        }
    }

    fn limit(self, budget: &Budget) -> Option<u64> {
        match self {
            Unit::Minutes => budget.minutes.map(|minutes| minutes.saturating_mul(60_000_000)),
            Unit::GpuMinutes => budget.gpu_minutes.map(|minutes| minutes.saturating_mul(60_000_000)),
            Unit::Money => budget.money.map(|money| money.0),
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Unit::Minutes => "minutes",
            Unit::GpuMinutes => "gpu-minutes",
            Unit::Money => "money",
        }
    }

    /// An amount for people.
    fn say(self, amount: u64) -> String {
        match self {
            Unit::Minutes => format!("{} min", amount / 60_000_000),
            Unit::GpuMinutes => format!("{} GPU min", amount / 60_000_000),
            Unit::Money => Money(amount).to_string(),
        }
    }
}

/// Whose sums a budget is held against.
pub(crate) fn scope(budget: &Budget) -> Scope {
    match (&budget.repository, &budget.organisation) {
        (Some(repository), _) => Scope::Repository(repository.clone()),
        (None, Some(name)) => Scope::Organisation(name.to_lowercase()),
        (None, None) => Scope::Farm,
    }
}

/// Whether a job with this stake may start now, as far as budgets go.
pub(crate) fn check(
    farm: &Farm,
    config: &FarmConfig,
    now: Timestamp,
    account: Option<&Account>,
    stake: &Stake,
) -> Result<(), Explanation> {
    let Some(account) = account else { return Ok(()) };
    let covers = |budget: &&Budget| {
        budget.covers(account) && budget.pool.as_ref().is_none_or(|pool| *pool == stake.pool)
    };
    for budget in config.queue.budgets.iter().filter(covers) {
        let scope = scope(budget);
        let spent = farm.index.books.spent(&now.month(), &scope, budget.pool.as_ref());
        let held = farm.index.books.at_stake(&scope, budget.pool.as_ref());
        let asks = stake.at_most();
        for unit in Unit::ALL {
            let (spent, held, asks) = (unit.of(&spent), unit.of(&held), unit.of(&asks));
            if let Some(limit) = unit.limit(budget)
                && asks > 0
                && spent.saturating_add(held).saturating_add(asks) > limit
            {
                return Err(refuse(budget, unit, [limit, spent, held, asks], stake, now));
            }
        }
    }
    Ok(())
}

fn refuse(
    budget: &Budget,
    unit: Unit,
    [limit, spent, held, asks]: [u64; 4],
    stake: &Stake,
    now: Timestamp,
) -> Explanation {
    let (name, of) = (&budget.name, budget.of());
    let left = limit.saturating_sub(spent);
    let text = if asks > limit {
        format!(
            "budget `{name}` of {of} is {} a month, and one job of {} can use {} up to its time limit",
            unit.say(limit),
            stake.flavor,
            unit.say(asks)
        )
    } else if spent >= limit {
        format!("budget `{name}` of {of} is spent: {} of {}", unit.say(spent), unit.say(limit))
    } else {
        format!(
            "budget `{name}` of {of} has {} left, and what runs could use it up at its time limits",
            unit.say(left)
        )
    };
    Explanation::new("queue.budget", text)
        .with(format!("{} of {} spent in {}", unit.say(spent), unit.say(limit), now.month()))
        .with(format!("{} left; work that runs can use {} of it", unit.say(left), unit.say(held)))
        .with(format!("a job of {} can use {} up to its time limit", stake.flavor, unit.say(asks)))
        .with(format!("the month turns at {}", now.next_month()))
        .fix(format!(
            "raise `{}` of budget `{name}` under [[queue.budgets]] in forgeyard.toml, shorten the time limit of {}, \
             or wait for the month to turn; work that runs goes on",
            unit.key(),
            stake.flavor
        ))
}
