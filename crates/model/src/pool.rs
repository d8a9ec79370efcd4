//! Pools beyond their shape: when they hold how many machines, how fast they start them, and what the farm remembers
//! of each.
//!
//! What an operator writes ([`Schedule`], [`Keep`], [`Canary`], [`LaunchRate`], [`BreakerRule`]) is configuration. What
//! the farm remembers ([`PoolRecord`]) is one row for each pool, written when it changes. A pool without a row has its
//! burst, a closed breaker and is open.
//!
//! Breaker: `Closed → Open → HalfOpen → Probing → Closed`, or from `Probing` back to `Open` with a longer pause. `Open` and
//! `Probing` have an end in time; `HalfOpen` rests until a job or a warm machine wants a launch.

use crate::ledger::Sums;
use crate::name::PoolName;
use crate::{Explanation, RunnerId, SiteId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Day {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Day {
    /// The whole week.
    pub const ALL: [Day; 7] = [Day::Mon, Day::Tue, Day::Wed, Day::Thu, Day::Fri, Day::Sat, Day::Sun];
}

fn every_day() -> BTreeSet<Day> {
    Day::ALL.into()
}

/// A time on the clock of a place, in minutes from midnight; written `08:30`. `24:00` is the end of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockTime(u16);

impl ClockTime {
    /// Minutes from midnight; 1440 is the end of the day.
    pub const fn minutes(self) -> u16 {
        self.0
    }
}

/// A text that is no time on a clock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time of day: write hours and minutes with two digits each, from `00:00` to `24:00`")]
pub struct ClockTimeError(String);

impl std::str::FromStr for ClockTime {
    type Err = ClockTimeError;
    fn from_str(text: &str) -> Result<Self, ClockTimeError> {
        let two = |part: &str| {
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            if digits { part.parse::<u16>().ok() } else { None }
        };
        let read = || {
            let (hours, minutes) = text.split_once(':')?;
            let (hours, minutes) = (two(hours)?, two(minutes)?);
            let all = hours * 60 + minutes;
            (minutes < 60 && all <= 24 * 60).then_some(ClockTime(all))
        };
        read().ok_or_else(|| ClockTimeError(text.chars().take(40).collect()))
    }
}

impl std::fmt::Display for ClockTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl Serialize for ClockTime {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClockTime {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
crate::openapi::text_schema!(ClockTime, "A time of day, `08:30`", "^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$");

/// Other numbers for a part of the week. The first entry that covers a moment is in force; where none does, the numbers
/// of the pool itself hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Schedule {
    /// Days on which it begins.
    #[serde(default = "every_day")]
    pub days: BTreeSet<Day>,
    /// When it begins.
    pub from: ClockTime,
    /// When it ends; not after `from` = on the next day.
    pub to: ClockTime,
    /// IANA name of the time zone whose clock is meant.
    pub zone: String,
    /// Machines at least, busy ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Machines that wait for work, beside those that have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<u32>,
    /// Machines at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// Keep some machines waiting for a while after the pool was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Keep {
    /// How many.
    pub count: u32,
    /// How long after the last job began or ended.
    pub minutes: u32,
}

/// A pool that takes a share of the jobs of another, so that a move is watched before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Canary {
    /// The pool whose jobs it takes.
    pub of: PoolName,
    /// How many of a hundred jobs; the same jobs each time.
    pub percent: u8,
}

/// How fast a pool starts machines: a bucket of launches that refills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LaunchRate {
    /// Machines that may be started at once.
    pub burst: u32,
    /// Machines for which the bucket refills in a minute.
    pub per_minute: u32,
}

impl Default for LaunchRate {
    /// Far above what one host starts, far below what an endless loop does (ARC 1646).
    fn default() -> Self {
        Self { burst: 100, per_minute: 300 }
    }
}

/// When a pool stops starting machines, because they do not come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BreakerRule {
    /// Launches in a row that did not come up, for our own reason.
    pub failures: u32,
}

impl Default for BreakerRule {
    fn default() -> Self {
        Self { failures: 5 }
    }
}

/// Whether a pool starts machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "breaker", rename_all = "snake_case")]
pub enum Breaker {
    /// It does.
    Closed {
        /// Launches in a row that did not come up.
        failures: u32,
    },
    /// It does not.
    Open {
        /// When one is tried again.
        until: Timestamp,
        /// How often in a row it opened; the pause grows with it.
        trips: u32,
    },
    /// The pause is over; the next launch is the probe.
    HalfOpen {
        /// How often in a row it opened.
        trips: u32,
    },
    /// One machine is being started, and no other.
    Probing {
        /// The machine.
        runner: RunnerId,
        /// When the probe counts as failed at the latest.
        until: Timestamp,
        /// How often in a row it opened.
        trips: u32,
    },
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker::Closed { failures: 0 }
    }
}

impl Breaker {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            Breaker::Closed { .. } => "closed",
            Breaker::Open { .. } => "open",
            Breaker::HalfOpen { .. } => "half_open",
            Breaker::Probing { .. } => "probing",
        }
    }
}

/// What is left of the launches that a pool may make at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bucket {
    /// Launches, in thousandths.
    pub millis: u64,
    /// When that was so.
    pub at: Timestamp,
}

/// Somebody stopped giving work to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolDrain {
    /// Since when.
    pub since: Timestamp,
    /// Who.
    pub by: String,
}

/// A launch that did not come up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LaunchError {
    /// When.
    pub at: Timestamp,
    /// The machine.
    pub runner: RunnerId,
    /// What the provider, the site or a deadline said.
    pub reason: Explanation,
}

/// Machines and jobs of a pool at one moment. Written as a list of four numbers, since a row holds a day of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(i64, u32, u32, u32)", into = "(i64, u32, u32, u32)")]
pub struct PoolSample {
    /// When.
    pub at: Timestamp,
    /// Machines that have an attempt.
    pub busy: u32,
    /// Machines that wait for one, or are being made to.
    pub warm: u32,
    /// Jobs that wait for a place and might get one there.
    pub waiting: u32,
}

impl From<(i64, u32, u32, u32)> for PoolSample {
    fn from((seconds, busy, warm, waiting): (i64, u32, u32, u32)) -> Self {
        Self { at: Timestamp::from_micros(seconds.saturating_mul(1_000_000)), busy, warm, waiting }
    }
}

impl From<PoolSample> for (i64, u32, u32, u32) {
    fn from(sample: PoolSample) -> Self {
        (sample.at.as_micros().div_euclid(1_000_000), sample.busy, sample.warm, sample.waiting)
    }
}

/// What the farm remembers of a pool at one of its sites, where it has several: a site that is broken stops by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteLaunches {
    /// Whether the pool starts machines there.
    #[serde(flatten)]
    pub breaker: Breaker,
    /// The last launch there that did not come up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LaunchError>,
}

/// What the farm remembers of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Which.
    pub name: PoolName,
    /// No new work goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<PoolDrain>,
    /// Launches that are left; absent = the whole burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bucket>,
    /// Whether it starts machines.
    #[serde(flatten)]
    pub breaker: Breaker,
    /// The last launch that did not come up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LaunchError>,
    /// The same by site, where the pool has several; then the pool itself is not stopped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sites: BTreeMap<SiteId, SiteLaunches>,
    /// Why fewer machines wait for work than should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_lacks: Option<Explanation>,
    /// What machines used while they waited for work, by month (UTC). No repository is charged for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub warm_use: BTreeMap<String, Sums>,
    /// When a job last began or ended there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Timestamp>,
    /// The last day, one sample each quarter of an hour, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<PoolSample>,
    /// Row version.
    pub generation: u64,
}

/// Months of which is kept what waiting machines used.
const WARM_MONTHS: usize = 3;

impl PoolRecord {
    /// Adds what a machine used while it waited.
    pub fn charge_warm(&mut self, at: Timestamp, used: &Sums) {
        self.warm_use.entry(at.month()).or_default().add(used);
        while self.warm_use.len() > WARM_MONTHS {
            self.warm_use.pop_first();
        }
    }

    /// A pool of which nothing is remembered.
    pub fn new(name: PoolName) -> Self {
        Self {
            name,
            drain: None,
            bucket: None,
            breaker: Breaker::default(),
            last_error: None,
            sites: BTreeMap::new(),
            warm_lacks: None,
            warm_use: BTreeMap::new(),
            used_at: None,
            samples: Vec::new(),
            generation: 0,
        }
    }
}

/// How many machines a pool should have now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Terms {
    /// Machines at least, busy ones included.
    pub min: u32,
    /// Machines that wait for work, beside those that have some.
    pub warm: u32,
    /// Machines at most.
    pub max: u32,
    /// The entry of the schedule that says so, from 0; absent = the pool itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_a_time_of_day_that_is_written_the_same_or_is_refused(text in ".{0,8}|[0-2][0-9]:[0-5][0-9]") {
            if let Ok(time) = text.parse::<ClockTime>() {
                prop_assert_eq!(time.to_string(), text);
                prop_assert!(time.minutes() <= 24 * 60);
            }
        }
    }

    #[test]
    fn a_time_that_no_clock_shows_is_refused_by_name() {
        for text in ["8:00", "24:01", "12:60", "noon", "12:000", "+1:00"] {
            let error = text.parse::<ClockTime>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert_eq!("24:00".parse::<ClockTime>().unwrap().minutes(), 1440);
    }

    #[test]
    fn a_sample_is_four_numbers() {
        let sample = PoolSample { at: Timestamp::from_micros(7_000_000), busy: 1, warm: 2, waiting: 3 };
        let text = serde_json::to_string(&sample).unwrap();
        assert_eq!(text, "[7,1,2,3]");
        assert_eq!(serde_json::from_str::<PoolSample>(&text).unwrap(), sample);
    }
}
