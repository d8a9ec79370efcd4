//! What was used this month, beside the caps and budgets that limit it.

use forgeyard_model::account::RepositoryKey;
use forgeyard_model::ledger::Sums;
use forgeyard_model::{PoolName, Timestamp};
use serde::{Deserialize, Serialize};

/// Usage of the current calendar month (UTC).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MonthUsage {
    /// The month, `2026-11`.
    pub month: String,
    /// When the next one begins.
    pub turns_at: Timestamp,
    /// Repositories that used something or run something, the largest user of devices first.
    pub repositories: Vec<RepositoryUsage>,
    /// What machines used while they waited for work, by pool. No repository and no budget is charged for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<WarmUsage>,
    /// Budgets, one entry for each amount that they limit.
    pub budgets: Vec<BudgetUsage>,
}

/// What machines of a pool used while they waited for work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WarmUsage {
    /// The pool.
    pub pool: PoolName,
    /// What those used that wait no longer; `jobs` counts machines.
    pub used: Sums,
    /// Machines that wait now.
    pub waiting: u32,
}

/// What a repository used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryUsage {
    /// The repository; id 0 = recipe folders that people handed in.
    pub repository: RepositoryKey,
    /// `owner/name`, for people.
    pub name: String,
    /// What attempts that ended this month used.
    pub used: Sums,
    /// Attempts that run now.
    pub running: u32,
    /// How many may, when that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<u32>,
}

/// How a budget stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetUsage {
    /// Its name.
    pub name: String,
    /// Whose it is, for people.
    pub of: String,
    /// Unit of the amounts: `runner_micros`, `gpu_micros` or `money_millionths`.
    pub unit: String,
    /// How much there is in a month.
    pub limit: u64,
    /// How much of that is spent.
    pub spent: u64,
    /// How much of the rest running work can use up to its time limits.
    pub at_stake: u64,
    /// How much is left that nothing holds.
    pub left: u64,
}
