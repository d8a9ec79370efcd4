//! Scopes: where entries are visible and who may write them. Pure.
//!
//! A scope has a path (`iree/main`) and parents. A job reads its own scope and then its parents, in order, and writes its
//! own scope only. A *family* (`iree/pr`) is a rule for scopes that come and go: each path right below it (`iree/pr/7`) is
//! a scope with the parents and limits of the family, without being declared.
//!
//! Invariants, held by property tests:
//! - a caller writes at most one scope, the one that its token names;
//! - what a caller reads is in the chain of its own scope, or is readable without any token;
//! - a trusted scope has trusted scopes above it only, so nothing untrusted flows into it;
//! - without a token only scopes are read that are public and redistributable, parents included.

use crate::budget::{self, Budget};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Longest path, in bytes.
const LONGEST: usize = 200;
/// Most steps from a scope up to a parent.
pub const DEEPEST: usize = 4;
/// Most scopes that one read looks at. Every one costs a lookup.
pub const WIDEST: usize = 8;

/// Path of a scope: words of letters, digits, `.`, `_` and `-`, with `/` between them. No word is `.`, `..` or `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScopePath(Box<str>);

/// What is wrong with scopes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A path that is none.
    #[error(
        "`{0}` is not a scope path: words of letters, digits, `.`, `_`, `-` with `/` between, at most {LONGEST} bytes"
    )]
    Path(String),
    /// Two rules for one path.
    #[error("scope `{0}` is declared twice")]
    Twice(ScopePath),
    /// A parent that does not exist.
    #[error("scope `{scope}` names the parent `{parent}`, which is not declared")]
    NoParent {
        /// The scope.
        scope: ScopePath,
        /// The parent.
        parent: ScopePath,
    },
    /// A parent that is a family and so is no scope itself.
    #[error("scope `{scope}` names the parent `{parent}`, which is a family and holds no entries itself")]
    FamilyParent {
        /// The scope.
        scope: ScopePath,
        /// The parent.
        parent: ScopePath,
    },
    /// An untrusted scope above a trusted one.
    #[error(
        "scope `{scope}` is trusted and its parent `{parent}` is not: whoever writes the parent could poison it"
    )]
    Untrusted {
        /// The scope.
        scope: ScopePath,
        /// The parent.
        parent: ScopePath,
    },
    /// A circle, or too many steps.
    #[error("the parents of scope `{0}` form a circle or more than {DEEPEST} steps")]
    Deep(ScopePath),
    /// A budget that is always met or never.
    #[error(
        "the budget of scope `{0}` is none: 1 to 100 percent, of at least 1, within 1 to {longest} minutes",
        longest = budget::LONGEST
    )]
    Budget(ScopePath),
    /// Too many scopes to look at.
    #[error("scope `{0}` reads more than {WIDEST} scopes")]
    Wide(ScopePath),
}

impl ScopePath {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path without its last word.
    pub fn above(&self) -> Option<ScopePath> {
        self.0.rsplit_once('/').map(|(above, _)| Self(above.into()))
    }
}

impl std::str::FromStr for ScopePath {
    type Err = ScopeError;
    fn from_str(text: &str) -> Result<Self, ScopeError> {
        let word = |word: &str| {
            !word.is_empty()
                && !matches!(word, "." | ".." | "-")
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        if text.len() > LONGEST || !text.split('/').all(word) {
            return Err(ScopeError::Path(text.chars().take(80).collect()));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for ScopePath {
    type Error = ScopeError;
    fn try_from(text: String) -> Result<Self, ScopeError> {
        text.parse()
    }
}

impl From<ScopePath> for String {
    fn from(path: ScopePath) -> String {
        path.0.into()
    }
}

impl std::fmt::Display for ScopePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who may read a scope without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// Everybody.
    Public,
    /// Only tokens of the scope and of scopes below it.
    #[default]
    Members,
}

/// A declared scope, or a family of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ScopeRule {
    /// Its path.
    pub path: ScopePath,
    /// Each path right below is a scope by this rule; the path itself is none.
    #[serde(default)]
    pub family: bool,
    /// Read after the scope itself, in this order.
    #[serde(default)]
    pub parents: Vec<ScopePath>,
    /// Who may read it without a token.
    #[serde(default)]
    pub read: Reading,
    /// Only code that was reviewed writes here: the first writer of a key wins, and another content for it is an alarm.
    #[serde(default)]
    pub trusted: bool,
    /// May be handed to strangers. CUDA libraries may not; then a reader needs a token even where `read` is public.
    #[serde(default = "yes")]
    pub redistributable: bool,
    /// Most bytes, counting shared ones in full.
    #[serde(default)]
    pub quota_mib: Option<u64>,
    /// Entries that nobody used for so many days go.
    #[serde(default)]
    pub ttl_days: Option<u32>,
    /// The hit rate that it is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// File of the key that signs what Nix reads from here, see [`crate::signature`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign_key_file: Option<PathBuf>,
}

const fn yes() -> bool {
    true
}

impl ScopeRule {
    /// A private scope without parents and limits.
    pub const fn new(path: ScopePath) -> Self {
        Self {
            path,
            family: false,
            parents: Vec::new(),
            read: Reading::Members,
            trusted: false,
            redistributable: true,
            quota_mib: None,
            ttl_days: None,
            budget: None,
            sign_key_file: None,
        }
    }

    fn open(&self) -> bool {
        self.read == Reading::Public && self.redistributable
    }
}

/// All scopes, checked.
#[derive(Debug, Clone, Default)]
pub struct ScopeTree {
    rules: BTreeMap<ScopePath, ScopeRule>,
}

/// Who asks, as far as scopes are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// Nobody in particular.
    Anonymous,
    /// A caller with a token.
    Member {
        /// The scope of the token.
        scope: ScopePath,
        /// Whether it may write there.
        writes: bool,
        /// Release mode: reads no parents.
        cold: bool,
    },
}

/// What a caller may do with one request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// Scopes to read, in order.
    pub reads: Vec<ScopePath>,
    /// The scope to write.
    pub writes: Option<ScopePath>,
    /// Whether the scope to write is trusted.
    pub trusted: bool,
}

impl ScopeTree {
    /// Checks the rules.
    pub fn new(rules: impl IntoIterator<Item = ScopeRule>) -> Result<Self, ScopeError> {
        let mut tree = Self::default();
        for rule in rules {
            let path = rule.path.clone();
            if tree.rules.insert(path.clone(), rule).is_some() {
                return Err(ScopeError::Twice(path));
            }
        }
        for rule in tree.rules.values() {
            if rule.budget.is_some_and(|budget| !budget.is_sensible()) {
                return Err(ScopeError::Budget(rule.path.clone()));
            }
            for parent in &rule.parents {
                let (scope, parent) = (rule.path.clone(), parent.clone());
                match tree.rule(&parent) {
                    None => return Err(ScopeError::NoParent { scope, parent }),
                    Some(above) if above.family && above.path == parent => {
                        return Err(ScopeError::FamilyParent { scope, parent });
                    }
                    Some(above) if rule.trusted && !above.trusted => {
                        return Err(ScopeError::Untrusted { scope, parent });
                    }
                    Some(_) => {}
                }
            }
            if !tree.shallow(&rule.path, DEEPEST) {
                return Err(ScopeError::Deep(rule.path.clone()));
            }
            if tree.climb(&rule.path).len() > WIDEST {
                return Err(ScopeError::Wide(rule.path.clone()));
            }
        }
        Ok(tree)
    }

    /// The declared rules.
    pub fn rules(&self) -> impl Iterator<Item = &ScopeRule> {
        self.rules.values()
    }

    fn rule(&self, path: &ScopePath) -> Option<&ScopeRule> {
        let family = || self.rules.get(&path.above()?).filter(|rule| rule.family);
        self.rules.get(path).or_else(family)
    }

    /// The rule of a scope: its own, or that of its family. Nothing for a path that is no scope.
    pub fn of(&self, path: &ScopePath) -> Option<&ScopeRule> {
        self.rule(path).filter(|rule| !(rule.family && rule.path == *path))
    }

    fn shallow(&self, path: &ScopePath, steps: usize) -> bool {
        let Some(rule) = self.rule(path) else { return true };
        rule.parents.iter().all(|parent| steps > 0 && self.shallow(parent, steps - 1))
    }

    /// The path and what stands above it, each once, nearest first. Ends for circles too.
    fn climb(&self, path: &ScopePath) -> Vec<ScopePath> {
        let mut chain = vec![path.clone()];
        let mut at = 0;
        while let Some(here) = chain.get(at).cloned() {
            for parent in self.rule(&here).into_iter().flat_map(|rule| &rule.parents) {
                if !chain.contains(parent) {
                    chain.push(parent.clone());
                }
            }
            at += 1;
        }
        chain
    }

    /// The scope and its parents, in the order in which they are read. Empty for a path that is no scope.
    pub fn chain(&self, path: &ScopePath) -> Vec<ScopePath> {
        if self.of(path).is_none() { Vec::new() } else { self.climb(path) }
    }

    /// What a caller may do who addresses this scope, or none in particular.
    ///
    /// A job of a fork is configured like any other and so addresses the scope of its project (`iree/main`); that its own
    /// scope is another one (`iree/pr/7`) is known from its token alone.
    pub fn grant(&self, who: &Who, asked: Option<&ScopePath>) -> Grant {
        if let Who::Member { scope, writes, cold } = who
            && let Some(rule) = self.of(scope)
        {
            let chain = self.chain(scope);
            if asked.is_none_or(|asked| chain.contains(asked)) {
                return Grant {
                    reads: if *cold { vec![scope.clone()] } else { chain },
                    writes: writes.then(|| scope.clone()),
                    trusted: rule.trusted,
                };
            }
        }
        let cold = matches!(who, Who::Member { cold: true, .. });
        let open = |path: &ScopePath| self.of(path).is_some_and(ScopeRule::open);
        match asked {
            Some(asked) if !cold && open(asked) => {
                let reads = self.chain(asked).into_iter().filter(open).collect();
                Grant { reads, writes: None, trusted: false }
            }
            _ => Grant::default(),
        }
    }
}

#[cfg(test)]
#[path = "scope_tests.rs"]
mod tests;
