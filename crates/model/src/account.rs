//! Accounts: on whose account work runs. Caps, budgets and fair share are counted by them.
//!
//! An account is written into a job when it is made, and copied into its attempts, so that what runs can be counted by
//! account without asking what a job belonged to. It does not change with late binding: a runner that takes another job
//! than the one it was made for stays on the account that asked for it.

use crate::ForgeName;
use crate::forge::{ForgeEvent, Repository, Trigger};
use serde::{Deserialize, Serialize};

/// A class of work, by what caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WorkClass {
    /// Before a change is taken in: a pull request, a merge queue, or a person who asked and waits.
    Presubmit,
    /// After it was taken in: a push.
    #[default]
    Postsubmit,
    /// By a timer: nobody waits.
    Nightly,
}

impl WorkClass {
    /// All of them, in the order that holds when nothing is configured.
    pub const ALL: [WorkClass; 3] = [WorkClass::Presubmit, WorkClass::Postsubmit, WorkClass::Nightly];

    /// The spelling in configuration and tables.
    pub const fn name(self) -> &'static str {
        match self {
            WorkClass::Presubmit => "presubmit",
            WorkClass::Postsubmit => "postsubmit",
            WorkClass::Nightly => "nightly",
        }
    }

    /// Of an event of native work.
    pub const fn of_trigger(trigger: &Trigger) -> Self {
        match trigger {
            Trigger::Push { .. } => WorkClass::Postsubmit,
            Trigger::PullRequest { .. } | Trigger::Manual => WorkClass::Presubmit,
        }
    }

    /// Of an event as forges spell it.
    pub fn of_event(event: &str) -> Self {
        match event {
            "schedule" => WorkClass::Nightly,
            "merge_group" | "workflow_dispatch" => WorkClass::Presubmit,
            event if event.starts_with("pull_request") => WorkClass::Presubmit,
            _ => WorkClass::Postsubmit,
        }
    }
}

/// A repository by its ids; what a repository is called does not count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryKey {
    /// The forge.
    pub forge: ForgeName,
    /// Numeric id at the forge; 0 = recipe folders that people handed in.
    pub id: u64,
}

impl RepositoryKey {
    /// The key of a repository.
    pub fn of(repository: &Repository) -> Self {
        Self { forge: repository.forge.clone(), id: repository.id }
    }
}

impl std::fmt::Display for RepositoryKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.forge, self.id)
    }
}

/// On whose account work runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    /// The repository.
    pub repository: RepositoryKey,
    /// Owner of the repository, the part of its name before `/`, in lower case; empty when it has none.
    #[serde(default)]
    pub organisation: String,
    /// Whose work it is, by numeric id: who opened the pull request, else who caused the event; 0 = not known.
    #[serde(default)]
    pub person: u64,
    /// Its class.
    #[serde(default)]
    pub class: WorkClass,
}

impl Account {
    /// Of an event of native work.
    pub fn of_event(event: &ForgeEvent) -> Self {
        Self {
            repository: RepositoryKey::of(&event.repository),
            // What a person called a folder is not the name of an owner.
            organisation: if event.repository.id == 0 {
                String::new()
            } else {
                organisation_of(&event.repository.name)
            },
            person: event.author.as_ref().unwrap_or(&event.sender).id,
            class: WorkClass::of_trigger(&event.trigger),
        }
    }
}

/// The owner of a repository, from its name `owner/name`.
pub fn organisation_of(name: &str) -> String {
    name.split_once('/').map_or_else(String::new, |(owner, _)| owner.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_forges_have_a_class() {
        let cases = [
            ("pull_request", WorkClass::Presubmit),
            ("pull_request_target", WorkClass::Presubmit),
            ("merge_group", WorkClass::Presubmit),
            ("workflow_dispatch", WorkClass::Presubmit),
            ("push", WorkClass::Postsubmit),
            ("release", WorkClass::Postsubmit),
            ("schedule", WorkClass::Nightly),
        ];
        for (event, class) in cases {
            assert_eq!(WorkClass::of_event(event), class, "{event}");
        }
    }

    #[test]
    fn owners_are_compared_without_case_and_folders_have_none() {
        assert_eq!(organisation_of("Octo/Demo"), "octo");
        assert_eq!(organisation_of("a folder"), "");
    }
}
