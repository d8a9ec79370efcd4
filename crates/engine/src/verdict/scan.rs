//! One pass over a log: where do rules match?

use super::lines::{harmless, normalise, retrying};
use super::rules::Rules;
use forgeyard_model::verdict::{Hit, LogLine};
use regex::Regex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

/// Lines around a line that can change what it means.
const AROUND: usize = 3;
/// Id of the mark that tests did pass; no rule of the data.
pub(super) const PASSED: &str = "passed";
/// The rule for device errors of the kernel that have no rule of their own.
const ANY_XID: &str = "X00";
/// `No space left on device`, and what it is when shared memory is meant.
const NO_SPACE: [&str; 2] = ["H07", "C08"];

static TESTS_PASSED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"\b[1-9]\d* passed\b|^Ran [1-9]\d* tests? in |^\[  PASSED  \] [1-9]|100% tests passed").ok()
});
static SHARED_MEMORY: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)nccl|/dev/shm|\bshm\b").ok());

/// Scans a log that comes line by line. Holds a few lines and at most two hits per rule, whatever the log's length.
#[derive(Debug)]
pub struct Scanner<'a> {
    rules: &'a Rules,
    number: u64,
    /// The last lines and the next ones of the line in the middle, normalised.
    window: VecDeque<(u64, String)>,
    /// How many lines of the window have been looked at.
    done: usize,
    found: BTreeMap<&'a str, (LogLine, Option<LogLine>)>,
    passed: Option<LogLine>,
    /// Hits of a line that announces another try; they count only when nothing follows.
    pending: Vec<(&'a str, LogLine)>,
}

impl<'a> Scanner<'a> {
    /// A scanner at the beginning of a log.
    pub fn new(rules: &'a Rules) -> Self {
        Self {
            rules,
            number: 0,
            window: VecDeque::new(),
            done: 0,
            found: BTreeMap::new(),
            passed: None,
            pending: Vec::new(),
        }
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        self.number += 1;
        self.window.push_back((self.number, normalise(line)));
        if self.window.len() > self.done + AROUND {
            self.look(self.done);
            self.done += 1;
        }
        if self.done > AROUND {
            self.window.pop_front();
            self.done -= 1;
        }
    }

    /// The hits, by line number.
    pub fn finish(mut self) -> Vec<Hit> {
        while self.done < self.window.len() {
            self.look(self.done);
            self.done += 1;
        }
        for (rule, line) in std::mem::take(&mut self.pending) {
            self.keep(rule, line);
        }
        let mut hits: Vec<Hit> = Vec::new();
        for (rule, (first, last)) in self.found {
            hits.extend(
                [Some(first), last].into_iter().flatten().map(|line| Hit { rule: rule.to_owned(), line }),
            );
        }
        hits.extend(self.passed.map(|line| Hit { rule: PASSED.to_owned(), line }));
        hits.sort_by(|a, b| (a.line.number, &a.rule).cmp(&(b.line.number, &b.rule)));
        hits
    }

    fn look(&mut self, at: usize) {
        let Some((number, text)) = self.window.get(at) else { return };
        if text.is_empty() {
            return;
        }
        // Something follows, so the announced try was made.
        self.pending.clear();
        if harmless(text) {
            return;
        }
        let line = || LogLine { number: *number, text: text.chars().take(500).collect() };
        if self.passed.is_none() && TESTS_PASSED.as_ref().is_some_and(|regex| regex.is_match(text)) {
            self.passed = Some(line());
        }
        let mut ids: Vec<&'a str> = self.rules.matching(text).map(|rule| rule.id.as_str()).collect();
        if ids.is_empty() {
            return;
        }
        // The rule for any other Xid number says nothing beside the rule for this one.
        if ids.len() > 1 {
            ids.retain(|id| *id != ANY_XID);
        }
        if let Some(place) = ids.iter().position(|id| *id == NO_SPACE[0])
            && self.near_shared_memory(at)
            && let Some(shared) = self.rules.get(NO_SPACE[1])
        {
            ids[place] = &shared.id;
        }
        let (line, waits) = (line(), retrying(text));
        for id in ids {
            if waits {
                self.pending.push((id, line.clone()));
            } else {
                self.keep(id, line.clone());
            }
        }
    }

    fn near_shared_memory(&self, at: usize) -> bool {
        let around = at.saturating_sub(AROUND)..=(at + AROUND).min(self.window.len().saturating_sub(1));
        let speaks =
            |(_, text): &(u64, String)| SHARED_MEMORY.as_ref().is_some_and(|regex| regex.is_match(text));
        self.window.range(around).any(speaks)
    }

    fn keep(&mut self, rule: &'a str, line: LogLine) {
        match self.found.get_mut(rule) {
            None => {
                self.found.insert(rule, (line, None));
            }
            Some((first, last)) if first.number != line.number => *last = Some(line),
            Some(_) => {}
        }
    }
}

/// Scans all lines of a log.
pub fn scan<'l>(rules: &Rules, lines: impl IntoIterator<Item = &'l str>) -> Vec<Hit> {
    let mut scanner = Scanner::new(rules);
    for line in lines {
        scanner.line(line);
    }
    scanner.finish()
}
