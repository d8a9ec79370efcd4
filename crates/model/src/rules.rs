//! Rules of the queue: caps, budgets, prices, the order of classes, fair share. The section `[queue]` of `forgeyard.toml`.
//!
//! What is absent does not limit. Names of owners are compared without regard to case; people and repositories are meant
//! by their numeric ids.

use crate::account::{Account, RepositoryKey, WorkClass};
use crate::{FlavorName, ForgeName, PoolName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many attempts may run at once on one account.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Caps {
    /// For each owner of repositories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<u32>,
    /// For each repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<u32>,
    /// For each person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<u32>,
    /// For single owners, by name, instead of `organisation`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub organisations: BTreeMap<String, u32>,
    /// For single people, by numeric id, instead of `person`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub people: BTreeMap<crate::who::ForgeId, u32>,
}

/// Rules of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RepositoryRules {
    /// The forge.
    pub forge: ForgeName,
    /// Numeric id at the forge.
    pub id: u64,
    /// Attempts at once, instead of `caps.repository`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// Its share when others wait as well: 2 gets twice as much as 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its order of classes, first to last; empty = that of the farm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<WorkClass>,
}

/// An amount of money in millionths, written as a decimal: `2.50`. In whatever currency the operator thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(pub u64);

#[cfg(feature = "openapi")]
crate::openapi::text_schema!(Money, "An amount, like `2.50`", r"^[0-9]+(\.[0-9]{1,6})?$");

impl Money {
    /// What so much time costs, when an hour costs this.
    pub fn for_millis(self, millis: u64) -> Self {
        let millionths = u128::from(self.0) * u128::from(millis) / 3_600_000;
        Self(u64::try_from(millionths).unwrap_or(u64::MAX))
    }

    /// To the hundredth, for an amount that is an estimate.
    #[must_use]
    pub const fn rounded(self) -> Self {
        Self((self.0.saturating_add(5_000)) / 10_000 * 10_000)
    }
}

/// Text that is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an amount: write digits, and at most six of them after a point, like \"2.50\"")]
pub struct MoneyError(String);

impl std::str::FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let wrong = || MoneyError(text.chars().take(40).collect());
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > 6 {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let part: u64 = format!("{part:0<6}").parse().map_err(|_| wrong())?;
        let millionths = whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(part));
        millionths.map(Money).ok_or_else(wrong)
    }
}

impl std::fmt::Display for Money {
    /// With two digits after the point, or as many as it has.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, part) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if part.is_multiple_of(10_000) {
            write!(f, "{whole}.{:02}", part / 10_000)
        } else {
            write!(f, "{whole}.{}", format!("{part:06}").trim_end_matches('0'))
        }
    }
}

impl Serialize for Money {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl serde::de::Visitor<'_> for Read {
            type Value = Money;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an amount like \"2.50\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Money, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, whole: u64) -> Result<Money, E> {
                whole.to_string().parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, whole: i64) -> Result<Money, E> {
                whole.to_string().parse().map_err(E::custom)
            }
            // A decimal that was written without quotes: its shortest spelling is what was written.
            fn visit_f64<E: serde::de::Error>(self, amount: f64) -> Result<Money, E> {
                amount.to_string().parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Read)
    }
}

/// What an hour of a machine costs. The first one that fits counts; what fits none costs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Price {
    /// Only in this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Only of this shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<FlavorName>,
    /// How much.
    pub per_hour: Money,
}

/// What a budget is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Budget {
    /// Name, for people.
    pub name: String,
    /// Only work of this owner's repositories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<String>,
    /// Only work of this repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryKey>,
    /// Only what runs in this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Minutes of machines in a calendar month (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minutes: Option<u64>,
    /// Minutes of devices in a calendar month (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_minutes: Option<u64>,
    /// Money in a calendar month (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
}

impl Budget {
    /// Whether work on this account is paid from it, in some pool.
    pub fn covers(&self, account: &Account) -> bool {
        self.repository.as_ref().is_none_or(|repository| *repository == account.repository)
            && self.organisation.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(&account.organisation))
    }

    /// Whose it is, for sentences.
    pub fn of(&self) -> String {
        let mut text = match (&self.repository, &self.organisation) {
            (Some(repository), _) => format!("repository {repository}"),
            (None, Some(name)) => format!("organisation {name}"),
            (None, None) => "the farm".to_owned(),
        };
        if let Some(pool) = &self.pool {
            text.push_str(&format!(" in pool {pool}"));
        }
        text
    }
}

/// All rules of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct QueueRules {
    /// Attempts at once.
    pub caps: Caps,
    /// Rules of single repositories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<RepositoryRules>,
    /// Budgets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Budget>,
    /// Prices, first to last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prices: Vec<Price>,
    /// Classes, first to last.
    pub order: Vec<WorkClass>,
    /// After each so many minutes of waiting, work counts as one class earlier; 0 = never.
    pub age_minutes: u32,
    /// After so many minutes what was used counts half, for fair share.
    pub half_life_minutes: u32,
    /// After so many minutes of waiting, work that needs several devices goes first, one at a time; 0 = never.
    pub patience_minutes: u32,
    /// How many attempts of a run of a forge are repeated for jobs that were lost with their machine; 0 = none.
    pub repeat_lost: u32,
    /// How many runners may be registered at a forge each minute; for a GitHub that is not written here, what its Apps may.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub registrations_per_minute: BTreeMap<ForgeName, u32>,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self {
            caps: Caps::default(),
            repositories: Vec::new(),
            budgets: Vec::new(),
            prices: Vec::new(),
            order: WorkClass::ALL.into(),
            age_minutes: 120,
            half_life_minutes: 60,
            patience_minutes: 60,
            repeat_lost: 1,
            registrations_per_minute: BTreeMap::new(),
        }
    }
}

impl QueueRules {
    /// Whether nothing is written.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Rules of a repository.
    pub fn repository(&self, key: &RepositoryKey) -> Option<&RepositoryRules> {
        self.repositories.iter().find(|rules| rules.id == key.id && rules.forge == key.forge)
    }

    /// The place of a class in the order that holds for a repository; 0 is first.
    pub fn level(&self, repository: &RepositoryKey, class: WorkClass) -> u32 {
        let own = self.repository(repository).map(|rules| &rules.order);
        let order = own.filter(|order| !order.is_empty()).unwrap_or(&self.order);
        let place = order.iter().position(|known| *known == class).unwrap_or(order.len());
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    /// The share of a repository.
    pub fn weight(&self, key: &RepositoryKey) -> u32 {
        self.repository(key).and_then(|rules| rules.weight).unwrap_or(1).max(1)
    }

    /// What an hour of a shape in a pool costs.
    pub fn per_hour(&self, pool: &PoolName, flavor: &FlavorName) -> Money {
        let fits = |price: &&Price| {
            price.pool.as_ref().is_none_or(|name| name == pool)
                && price.flavor.as_ref().is_none_or(|name| name == flavor)
        };
        self.prices.iter().find(fits).map(|price| price.per_hour).unwrap_or_default()
    }

    /// What is wrong with the rules by themselves: each a sentence that names the place.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (at, rules) in self.repositories.iter().enumerate() {
            let key = RepositoryKey { forge: rules.forge.clone(), id: rules.id };
            if self.repositories[..at].iter().any(|other| other.id == rules.id && other.forge == rules.forge)
            {
                found.push(format!("[[queue.repositories]] has two entries for {key}"));
            }
            if rules.weight == Some(0) {
                found.push(format!("[[queue.repositories]] {key}: `weight` must be at least 1"));
            }
            if let Some(class) = twice(&rules.order) {
                found.push(format!("[[queue.repositories]] {key}: `order` names {class} twice"));
            }
        }
        if let Some(class) = twice(&self.order) {
            found.push(format!("[queue]: `order` names {class} twice"));
        }
        if self.half_life_minutes == 0 {
            found.push("[queue]: `half-life-minutes` must be at least 1".to_owned());
        }
        for (forge, _) in self.registrations_per_minute.iter().filter(|(_, rate)| **rate == 0) {
            found.push(format!("[queue.registrations-per-minute]: {forge} must be at least 1"));
        }
        for (at, budget) in self.budgets.iter().enumerate() {
            let name = &budget.name;
            if self.budgets[..at].iter().any(|other| other.name == *name) {
                found.push(format!("[[queue.budgets]] has two entries named `{name}`"));
            }
            if budget.minutes.is_none() && budget.gpu_minutes.is_none() && budget.money.is_none() {
                found.push(format!(
                    "[[queue.budgets]] `{name}` limits nothing: write `minutes`, `gpu-minutes` or `money`"
                ));
            }
            if budget.repository.is_some() && budget.organisation.is_some() {
                found.push(format!(
                    "[[queue.budgets]] `{name}` names a repository and an organisation: write two budgets"
                ));
            }
            if budget.money.is_some() && self.prices.is_empty() {
                found.push(format!(
                    "[[queue.budgets]] `{name}` limits money, and nothing has a price: write [[queue.prices]]"
                ));
            }
        }
        found
    }
}

fn twice(order: &[WorkClass]) -> Option<&'static str> {
    let again = |(at, class): &(usize, &WorkClass)| order[..*at].contains(class);
    order.iter().enumerate().find(again).map(|(_, class)| class.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_exact() {
        for (text, millionths) in [("2.50", 2_500_000), ("0.000001", 1), ("7", 7_000_000), ("0.1", 100_000)] {
            assert_eq!(text.parse(), Ok(Money(millionths)));
        }
        assert_eq!(Money(2_500_000).to_string(), "2.50");
        assert_eq!(Money(1).to_string(), "0.000001");
        for wrong in ["", ".", "1.", "-1", "1e3", "1.1234567", "99999999999999999999"] {
            assert!(wrong.parse::<Money>().is_err(), "{wrong}");
        }
        assert_eq!(serde_json::from_str::<Money>("0.1").unwrap(), Money(100_000));
    }

    proptest! {
        #[test]
        fn an_amount_that_is_read_prints_as_itself(text in "\\PC{0,12}") {
            if let Ok(money) = text.parse::<Money>() {
                prop_assert_eq!(money.to_string().parse::<Money>(), Ok(money));
            }
        }
    }

    #[test]
    fn rules_that_contradict_themselves_are_named() {
        let budget = Budget {
            name: "b".to_owned(),
            organisation: Some("octo".to_owned()),
            repository: Some(RepositoryKey { forge: "github".parse().unwrap(), id: 1 }),
            pool: None,
            minutes: None,
            gpu_minutes: None,
            money: Some(Money(1)),
        };
        let rules = QueueRules {
            order: vec![WorkClass::Nightly, WorkClass::Nightly],
            half_life_minutes: 0,
            budgets: vec![budget.clone(), budget],
            ..QueueRules::default()
        };
        let problems = rules.problems().join("\n");
        for part in ["twice", "half-life", "two entries named `b`", "two budgets", "[[queue.prices]]"] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert!(QueueRules::default().problems().is_empty());
    }
}
