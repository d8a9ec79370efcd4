//! Lanes: how far an event is trusted. Only [`Lane::Protected`] is promotable.

use serde::{Deserialize, Serialize};

/// How far an event is trusted, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// A pull request from another repository.
    ForkPr,
    /// A pull request from a branch of the same repository.
    SameRepoPr,
    /// A push to a protected ref.
    Protected,
}

impl Lane {
    /// Whether artifacts of this lane may reach a channel.
    pub const fn promotable(self) -> bool {
        matches!(self, Lane::Protected)
    }

    /// The persisted spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Lane::ForkPr => "fork_pr",
            Lane::SameRepoPr => "same_repo_pr",
            Lane::Protected => "protected",
        }
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lane::ForkPr => "pull request from a fork",
            Lane::SameRepoPr => "pull request of the same repository",
            Lane::Protected => "protected ref",
        })
    }
}
