//! The ledger: running sums of what was used, and how long work took. Rows of it are written by the decision that ends an
//! attempt, with the usage facts that they sum up, and are read back whole when a farm starts.
//!
//! - [`RepositoryUse`]: one row for each repository. Sums of three calendar months (UTC) by pool, and a decaying sum for
//!   fair share. What an attempt used counts in the month in which it ended.
//! - [`RunTimes`]: one row for each work of a repository in one shape: its last durations.

use crate::account::RepositoryKey;
use crate::rules::Money;
use crate::{FlavorName, PoolName, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Months that are kept.
const MONTHS: usize = 3;

/// Durations that are kept.
const DURATIONS: usize = 20;

/// Sums of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sums {
    /// Attempts.
    pub jobs: u64,
    /// Time of machines, in microseconds.
    pub runner_micros: u64,
    /// Time of devices, in microseconds.
    pub gpu_micros: u64,
    /// Money, in millionths.
    pub money: u64,
}

impl Sums {
    /// Adds.
    pub fn add(&mut self, other: &Sums) {
        self.jobs = self.jobs.saturating_add(other.jobs);
        self.runner_micros = self.runner_micros.saturating_add(other.runner_micros);
        self.gpu_micros = self.gpu_micros.saturating_add(other.gpu_micros);
        self.money = self.money.saturating_add(other.money);
    }

    /// Takes away.
    pub fn sub(&mut self, other: &Sums) {
        self.jobs = self.jobs.saturating_sub(other.jobs);
        self.runner_micros = self.runner_micros.saturating_sub(other.runner_micros);
        self.gpu_micros = self.gpu_micros.saturating_sub(other.gpu_micros);
        self.money = self.money.saturating_sub(other.money);
    }
}

/// What an attempt has in use, and what it may use at most: written when it is placed, so that neither a later price nor a
/// later history changes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stake {
    /// Pool of its machine.
    pub pool: PoolName,
    /// Shape of its machine.
    pub flavor: FlavorName,
    /// Devices that it has.
    pub devices: u32,
    /// How long it can take, preparation and time limit together, in seconds.
    pub seconds: u64,
    /// How long it was expected to take, in seconds, where there was a history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
    /// What an hour of the machine costs.
    #[serde(default)]
    pub per_hour: Money,
}

impl Stake {
    /// What it used when it took so long.
    pub fn used(&self, runner_micros: u64) -> Sums {
        let money = u128::from(runner_micros) * u128::from(self.per_hour.0) / 3_600_000_000;
        Sums {
            jobs: 1,
            runner_micros,
            gpu_micros: runner_micros.saturating_mul(self.devices.into()),
            money: u64::try_from(money).unwrap_or(u64::MAX),
        }
    }

    /// What it can use at most.
    pub fn at_most(&self) -> Sums {
        self.used(self.seconds.saturating_mul(1_000_000))
    }
}

/// What a repository used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryUse {
    /// The repository.
    pub repository: RepositoryKey,
    /// Its owner, as it was last seen.
    pub organisation: String,
    /// By month (`2026-11`) and pool.
    pub months: BTreeMap<String, BTreeMap<PoolName, Sums>>,
    /// Time of machines, those with devices counted by device, decayed up to `recent_at`, in microseconds.
    pub recent_micros: u64,
    /// When `recent_micros` was right.
    pub recent_at: Timestamp,
}

impl RepositoryUse {
    /// Nothing yet.
    pub const fn new(repository: RepositoryKey, organisation: String, at: Timestamp) -> Self {
        Self { repository, organisation, months: BTreeMap::new(), recent_micros: 0, recent_at: at }
    }

    /// Recent use at this time: half of it is left after each half-life, in straight lines between.
    pub fn recent(&self, at: Timestamp, half_life_minutes: u32) -> u64 {
        let half_life = u128::from(half_life_minutes.max(1)) * 60_000_000;
        let passed = at.since(self.recent_at).as_micros();
        let halves = u32::try_from(passed / half_life).unwrap_or(u32::MAX);
        let whole = self.recent_micros.checked_shr(halves).unwrap_or(0);
        let rest = u128::from(whole / 2) * (passed % half_life) / half_life;
        whole.saturating_sub(u64::try_from(rest).unwrap_or(0))
    }

    /// Adds what an attempt used.
    pub fn charge(&mut self, at: Timestamp, pool: &PoolName, used: &Sums, half_life_minutes: u32) {
        let recent = self.recent(at, half_life_minutes);
        self.recent_micros = recent.saturating_add(used.runner_micros.max(used.gpu_micros));
        self.recent_at = at;
        let months = &mut self.months;
        months.entry(at.month()).or_default().entry(pool.clone()).or_default().add(used);
        while months.len() > MONTHS {
            months.pop_first();
        }
    }
}

/// How long a work of a repository took lately, in one shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunTimes {
    /// The repository.
    pub repository: RepositoryKey,
    /// The work: the key of a job of ours, or workflow and name of a job of a forge.
    pub work: String,
    /// The shape.
    pub flavor: FlavorName,
    /// From being placed to being over, in seconds, the newest last.
    pub seconds: Vec<u32>,
}

impl RunTimes {
    /// Adds a duration; the oldest goes.
    pub fn note(&mut self, seconds: u32) {
        self.seconds.push(seconds);
        if self.seconds.len() > DURATIONS {
            self.seconds.remove(0);
        }
    }

    /// A duration that nine of ten did not exceed; known from five on. One that hung does not move it.
    pub fn usual(&self) -> Option<u64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_unstable();
        let place = (sorted.len() * 9).div_ceil(10).checked_sub(1)?;
        (sorted.len() >= 5).then(|| sorted.get(place).copied().map(u64::from)).flatten()
    }
}

/// What a row of the ledger says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    /// What a repository used.
    Use(RepositoryUse),
    /// How long a work takes.
    Times(RunTimes),
}

/// A row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LedgerRow {
    /// Its key, made from what it is about.
    pub key: String,
    /// What it says.
    #[serde(flatten)]
    pub entry: Entry,
    /// Row version.
    pub generation: u64,
}

impl LedgerRow {
    /// Key of what a repository used.
    pub fn use_key(repository: &RepositoryKey) -> String {
        format!("use/{repository}")
    }

    /// Key of how long a work takes. The work may be any text of any length, so its hash stands for it.
    pub fn times_key(repository: &RepositoryKey, work: &str, flavor: &FlavorName) -> String {
        format!("times/{repository}/{flavor}/{}", crate::Digest::of(work.as_bytes()).hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn used() -> RepositoryUse {
        let repository = RepositoryKey { forge: "github".parse().unwrap(), id: 1 };
        RepositoryUse::new(repository, "octo".to_owned(), Timestamp::from_micros(0))
    }

    #[test]
    fn use_halves_with_time_and_three_months_are_kept() {
        let pool: PoolName = "pool".parse().unwrap();
        let mut row = used();
        let day = |days: u64| Timestamp::from_micros(0).plus(Duration::from_secs(days * 86_400));
        let an_hour = Sums { jobs: 1, runner_micros: 3_600_000_000, ..Sums::default() };
        for days in [0, 40, 80, 120] {
            row.charge(day(days), &pool, &an_hour, 60);
        }
        assert_eq!(row.months.keys().cloned().collect::<Vec<_>>(), ["1970-02", "1970-03", "1970-05"]);
        let after = |minutes: u64| row.recent(day(120).plus(Duration::from_secs(minutes * 60)), 60);
        assert_eq!(after(0), 3_600_000_000);
        assert_eq!(after(60), 1_800_000_000);
        assert_eq!(after(90), 1_350_000_000);
        assert_eq!(after(60 * 400), 0);
    }

    #[test]
    fn one_job_that_hung_does_not_move_what_is_usual() {
        let mut times = RunTimes {
            repository: used().repository,
            work: "build".to_owned(),
            flavor: "small".parse().unwrap(),
            seconds: Vec::new(),
        };
        (0..4).for_each(|_| times.note(60));
        assert_eq!(times.usual(), None, "four are too few");
        (0..8).for_each(|_| times.note(60));
        times.note(86_400);
        assert_eq!(times.usual(), Some(60));
        (0..40).for_each(|second| times.note(second));
        assert_eq!((times.seconds.len(), times.usual()), (20, Some(37)));
    }

    proptest! {
        #[test]
        fn use_never_grows_by_waiting(micros in any::<u64>(), a in 0u64..1 << 50, b in 0u64..1 << 50) {
            let row = RepositoryUse { recent_micros: micros, ..used() };
            let at = |micros: u64| row.recent(Timestamp::from_micros(micros as i64), 60);
            prop_assert!(at(a.max(b)) <= at(a.min(b)));
        }
    }
}
