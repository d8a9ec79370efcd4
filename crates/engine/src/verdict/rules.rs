//! The rules of text, read from data once.

use forgeyard_model::verdict::{Blame, RetryPolicy};
use regex::{RegexSet, RegexSetBuilder};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const BUILTIN: &str = include_str!("../../data/signatures.jsonl");

/// Why rules could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A line is no rule.
    #[error("rule in line {line}: {error}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Why.
        error: serde_json::Error,
    },
    /// A regular expression is wrong or too large.
    #[error("cannot compile the rules: {0}")]
    Regex(#[from] regex::Error),
    /// Two rules have one id.
    #[error("rule `{0}` stands twice")]
    Twice(String),
}

/// One known line.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its id, `H07`.
    pub id: String,
    /// Failure class, `host.disk-full`.
    pub klass: String,
    /// Who prints it.
    pub ecosystem: String,
    /// An example.
    pub literal: String,
    /// What is searched for in a normalised line.
    pub regex: String,
    /// What it means.
    pub cause: String,
    /// Where it points.
    pub blame: Blame,
    /// What to do.
    pub retry: RetryPolicy,
    /// 90 = decides whatever else is there, 50 = specific, 20 = a wrapper, 10 = generic.
    pub priority: u32,
    /// Public report that it comes from.
    pub source: String,
}

impl Rule {
    /// Whether the kernel prints it.
    pub fn kernel(&self) -> bool {
        self.ecosystem == "amdgpu" || self.ecosystem.contains("kernel")
    }

    /// Whether it counts only when it comes from the kernel's own log. Other lines of the kernel reach the output
    /// of programs as error texts.
    pub fn kernel_only(&self) -> bool {
        matches!(self.ecosystem.as_str(), "amdgpu" | "NVIDIA kernel")
            || matches!(self.id.as_str(), "H01" | "H02" | "D03")
    }

    /// Whether its first line counts, because later ones are consequences of it. Elsewhere the last one counts: a
    /// build tool that goes on has recovered.
    pub fn first_counts(&self) -> bool {
        self.kernel() || self.klass.starts_with("coll.") || self.klass.starts_with("gpu.")
    }

    /// Whether it never decides alone: it follows another failure, or only records something.
    pub fn companion(&self) -> bool {
        matches!(self.id.as_str(), "X45" | "X63" | "X92" | "X154")
    }

    /// Whether it says that something was killed from outside, which is lack of memory only with evidence.
    pub fn killed(&self) -> bool {
        matches!(self.id.as_str(), "H03" | "H04" | "H06")
    }
}

/// All rules, compiled into one automaton.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    by_id: BTreeMap<String, usize>,
    set: RegexSet,
}

impl Rules {
    /// Reads rules, one JSON object in a line.
    ///
    /// # Errors
    /// When a line is no rule, an id stands twice, or a regular expression does not compile.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let mut rules: Vec<Rule> = Vec::new();
        let mut by_id = BTreeMap::new();
        for (line, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let rule: Rule =
                serde_json::from_str(text).map_err(|error| RulesError::Json { line: line + 1, error })?;
            if by_id.insert(rule.id.clone(), rules.len()).is_some() {
                return Err(RulesError::Twice(rule.id));
            }
            rules.push(rule);
        }
        let set = RegexSetBuilder::new(rules.iter().map(|rule| rule.regex.as_str()))
            .size_limit(64 << 20)
            .dfa_size_limit(32 << 20)
            .build()?;
        Ok(Self { rules, by_id, set })
    }

    /// The rules that are part of the program.
    pub fn builtin() -> &'static Rules {
        // A test proves that the data parses; without rules every verdict would only abstain.
        static RULES: LazyLock<Rules> = LazyLock::new(|| {
            Rules::parse(BUILTIN).unwrap_or(Rules {
                rules: Vec::new(),
                by_id: BTreeMap::new(),
                set: RegexSet::empty(),
            })
        });
        &RULES
    }

    /// All rules, in the order of the data.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule with this id.
    pub fn get(&self, id: &str) -> Option<&Rule> {
        self.by_id.get(id).and_then(|index| self.rules.get(*index))
    }

    /// The rules that match a normalised line.
    pub fn matching(&self, line: &str) -> impl Iterator<Item = &Rule> {
        self.set.matches(line).into_iter().filter_map(|index| self.rules.get(index))
    }
}
