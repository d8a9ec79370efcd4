//! Explanations: why something waits, was refused or failed. The same text reaches CLI, API, console and check run.

use serde::{Deserialize, Serialize};

/// A reason with its evidence and its fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Stable dotted code for programs, for example `gate.no_grant`.
    pub code: String,
    /// One sentence for people.
    pub message: String,
    /// What was looked at: rules, ids, lines, figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// What to do about it, when there is something to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Explanation {
    /// A reason without evidence yet.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), evidence: Vec::new(), fix: None }
    }

    /// Adds one piece of evidence.
    #[must_use]
    pub fn with(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)?;
        for line in &self.evidence {
            write!(f, "\n  - {line}")?;
        }
        if let Some(fix) = &self.fix {
            write!(f, "\n  fix: {fix}")?;
        }
        Ok(())
    }
}
