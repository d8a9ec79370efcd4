//! The hit rate that a scope is to have, whether it has it, and why not. Pure, but for the list of [`History`].
//!
//! A budget says: of at least so many reads within so many minutes, so many percent hit. What is looked at are differences
//! of counters: now, against the oldest sample that is not older than the window. A service that has run for less than the
//! window, or saw too few reads, has no opinion yet; so has a scope without parents that was empty when the window began.
//!
//! Counters of several causes may grow together; the first one of [`Cause`] that fits is named, so that what is plainly
//! broken comes before what is only likely.

use forgeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Samples in a window.
const SAMPLES: u32 = 60;
/// Longest window, in minutes: a week.
pub const LONGEST: u32 = 7 * 24 * 60;

/// What is asked of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Budget {
    /// So many percent of the reads hit, in the scope or its parents.
    pub hit_percent: u8,
    /// Fewer reads say nothing.
    pub of_at_least: u64,
    /// What happened so long ago counts.
    pub within_minutes: u32,
}

impl Budget {
    /// Whether it can be met and missed.
    pub const fn is_sensible(&self) -> bool {
        self.hit_percent >= 1
            && self.hit_percent <= 100
            && self.of_at_least >= 1
            && self.within_minutes >= 1
            && self.within_minutes <= LONGEST
    }
}

/// Counters of a scope, all surfaces together, and how many entries it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "as in figures::Counters")]
pub struct Tally {
    pub hits: u64,
    pub misses: u64,
    pub writes: u64,
    pub repeats: u64,
    pub denied: u64,
    pub malformed: u64,
    pub failures: u64,
    pub entries: u64,
}

impl Tally {
    /// What was counted since. Entries stay what they are.
    fn since(self, then: Tally) -> Tally {
        Tally {
            hits: self.hits.saturating_sub(then.hits),
            misses: self.misses.saturating_sub(then.misses),
            writes: self.writes.saturating_sub(then.writes),
            repeats: self.repeats.saturating_sub(then.repeats),
            denied: self.denied.saturating_sub(then.denied),
            malformed: self.malformed.saturating_sub(then.malformed),
            failures: self.failures.saturating_sub(then.failures),
            entries: self.entries,
        }
    }
}

/// What happened in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// What was counted in it, and the entries now.
    pub tally: Tally,
    /// How much of the window was seen, in minutes.
    pub minutes: u32,
    /// Entries when it began.
    pub entries_then: u64,
    /// Most entries in it.
    pub most_entries: u64,
}

/// What else is known of the scope and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Around {
    /// Whether the scope has parents, in which reads may hit.
    pub parents: bool,
    /// Minutes since the last use of what goes next, where the disk that the cache may use is full.
    pub full_tail_minutes: Option<u32>,
}

/// Why a cache is cold, plainest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Nobody asks.
    NoClient,
    /// The store fails.
    Failing,
    /// Writes are denied.
    Denied,
    /// Writes are refused for what they are.
    Malformed,
    /// The scope is empty and nobody writes.
    NeverWritten,
    /// It holds something, and nobody writes what is missing.
    NotWritten,
    /// What was here has gone.
    Evicted,
    /// Each build asks for other keys, and writes them.
    KeyChurn,
    /// None of these.
    Unclear,
}

impl Cause {
    /// The word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::NoClient => "no-client",
            Cause::Failing => "failing",
            Cause::Denied => "denied",
            Cause::Malformed => "malformed",
            Cause::NeverWritten => "never-written",
            Cause::NotWritten => "not-written",
            Cause::Evicted => "evicted",
            Cause::KeyChurn => "key-churn",
            Cause::Unclear => "unclear",
        }
    }

    /// What it means, and what to do.
    const fn advice(self) -> &'static str {
        match self {
            Cause::NoClient => {
                "no client comes: look at the address, the proxy and the environment of the job, and whether the \
                 compiler is started through the client at all"
            }
            Cause::Failing => "the store fails requests: look at the log of the cache and at its disk",
            Cause::Denied => {
                "writes are denied: the token of the job may only read, has expired, or is of another scope"
            }
            Cause::Malformed => {
                "writes are refused because they are not what their protocol says: the log of the cache names each, \
                 and something on the way may change or cut them"
            }
            Cause::NeverWritten => {
                "the scope is empty and nobody writes to it: give the job that fills it a token that may write"
            }
            Cause::NotWritten => {
                "what is missing is not written by anybody: the jobs that come only read, and the one that fills the \
                 scope does not run, or builds something else"
            }
            Cause::Evicted => {
                "what was here has gone: the quota, the age or the capacity is too small for one round of builds, or \
                 somebody removed it"
            }
            Cause::KeyChurn => {
                "misses are followed by writes and nothing is found again: keys change in every build; look for another \
                 compiler, absolute paths, `__DATE__` or a random prefix"
            }
            Cause::Unclear => "no single cause fits: see `forgeyard cache stat`",
        }
    }
}

/// What came of a look at a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is met.
    Met,
    /// Too little was seen to say.
    Undecided,
    /// It is missed.
    Cold(Cause),
}

/// A verdict, with its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// The scope.
    pub scope: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Reads in the window.
    pub reads: u64,
    /// Those that hit.
    pub hits: u64,
    /// Entries stored.
    pub writes: u64,
    /// Writes denied.
    pub denied: u64,
    /// All of it, for people.
    pub text: String,
}

/// Looks at a budget.
pub fn judge(budget: &Budget, window: &Window, around: &Around) -> Verdict {
    let Tally { hits, misses, writes, repeats, denied, malformed, failures, entries } = window.tally;
    let reads = hits + misses;
    if reads == 0 && failures == 0 && window.minutes >= budget.within_minutes {
        return Verdict::Cold(Cause::NoClient);
    }
    if reads < budget.of_at_least {
        return Verdict::Undecided;
    }
    if u128::from(hits) * 100 >= u128::from(reads) * u128::from(budget.hit_percent) {
        return Verdict::Met;
    }
    let written = writes + repeats;
    let lost = window.most_entries.saturating_sub(entries);
    let short_lived = around.full_tail_minutes.is_some_and(|minutes| minutes < budget.within_minutes);
    Verdict::Cold(match () {
        () if failures.saturating_mul(10) >= reads => Cause::Failing,
        () if denied > written => Cause::Denied,
        () if malformed > written => Cause::Malformed,
        () if written == 0 && entries == 0 && lost == 0 => Cause::NeverWritten,
        () if lost > 0 && lost.saturating_mul(20) >= window.most_entries || short_lived => Cause::Evicted,
        () if written == 0 => Cause::NotWritten,
        () if window.entries_then == 0 && !around.parents => return Verdict::Undecided,
        () if written.saturating_mul(2) >= misses => Cause::KeyChurn,
        () => Cause::Unclear,
    })
}

/// Looks at a budget and says so.
pub fn report(scope: &str, budget: &Budget, window: &Window, around: &Around) -> Report {
    let verdict = judge(budget, window, around);
    let Tally { hits, misses, writes, denied, .. } = window.tally;
    let reads = hits + misses;
    let asked = format!("{} % of at least {} are asked for", budget.hit_percent, budget.of_at_least);
    let within = budget.within_minutes;
    let minutes =
        if window.minutes < within { format!("{} of {within}", window.minutes) } else { within.to_string() };
    let rate = (u128::from(hits) * 100).checked_div(u128::from(reads)).unwrap_or_default();
    let seen = format!(
        "{scope}: {rate} % of {reads} reads hit in the last {minutes} minutes, {asked}; {writes} writes, {denied} denied"
    );
    let text = match verdict {
        Verdict::Met => format!("{seen}: met"),
        Verdict::Undecided => format!("{seen}: too little was seen to say"),
        Verdict::Cold(cause) => format!("{seen}: cold ({}). {}", cause.as_str(), cause.advice()),
    };
    Report { scope: scope.to_owned(), verdict, reads, hits, writes, denied, text }
}

/// Samples of counters, for the scopes that have budgets.
#[derive(Debug, Default)]
pub struct History {
    samples: BTreeMap<String, VecDeque<(Timestamp, Tally)>>,
}

impl History {
    /// Takes note of the counters of a scope. Of a scope that was not known, what was counted before is taken as having
    /// been counted now.
    pub fn note(&mut self, scope: &str, budget: &Budget, now: Timestamp, tally: Tally) {
        let window = Duration::from_secs(u64::from(budget.within_minutes) * 60);
        let Some(samples) = self.samples.get_mut(scope) else {
            let start = Tally { entries: tally.entries, ..Tally::default() };
            self.samples.insert(scope.to_owned(), [(now, start)].into());
            return;
        };
        if samples.back().is_none_or(|(last, _)| last.plus(window / SAMPLES) <= now) {
            samples.push_back((now, tally));
        }
        // the one at the edge of the window stays
        while samples.get(1).is_some_and(|(next, _)| next.plus(window) <= now) {
            samples.pop_front();
        }
    }

    /// Forgets scopes that are not among these.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.samples.retain(|scope, _| keep(scope));
    }

    /// What happened in the window of a scope, whose counters are these now. Nothing for a scope that was never noted.
    pub fn window(&self, scope: &str, now: Timestamp, tally: Tally) -> Option<Window> {
        let samples = self.samples.get(scope)?;
        let (begin, then) = samples.front()?;
        let minutes = now.as_micros().saturating_sub(begin.as_micros()) / 60_000_000;
        let most = samples.iter().map(|(_, tally)| tally.entries).max().unwrap_or_default();
        Some(Window {
            tally: tally.since(*then),
            minutes: u32::try_from(minutes).unwrap_or_default(),
            entries_then: then.entries,
            most_entries: most.max(tally.entries),
        })
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
