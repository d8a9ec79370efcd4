//! What class an event is, how far it is trusted, and how it must be kept apart.

use super::default_isolation;
use forgeyard_model::Lane;
use forgeyard_model::access::{EventClass, Grant};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::{ForgeEvent, Trigger};
use forgeyard_model::resources::Isolation;

pub(super) struct Class {
    pub(super) event: EventClass,
    pub(super) lane: Lane,
    /// What class and lane were read from.
    pub(super) why: String,
}

impl Class {
    pub(super) fn of(event: &ForgeEvent, repository: &RepositoryConfig) -> Self {
        match &event.trigger {
            Trigger::Push { git_ref } => Self::push(git_ref, repository),
            // The flag and the ids are two statements of one fact. Where they differ, the one that trusts less counts.
            Trigger::PullRequest { number, head_repository, fork, .. }
                if *fork || *head_repository != event.repository.id =>
            {
                Self {
                    event: EventClass::ForkPullRequest,
                    lane: Lane::ForkPr,
                    why: format!(
                        "pull request {number} comes from repository {head_repository}, not from {}: a fork",
                        event.repository.id
                    ),
                }
            }
            Trigger::PullRequest { number, .. } => Self {
                event: EventClass::PullRequest,
                lane: Lane::SameRepoPr,
                why: format!("pull request {number} comes from a branch of the repository itself"),
            },
            Trigger::Manual => Self {
                event: EventClass::Dispatch,
                lane: Lane::SameRepoPr,
                why: "asked for by hand: no protected ref vouches for the commit, so nothing is promoted"
                    .to_owned(),
            },
        }
    }

    pub(super) fn push(git_ref: &str, repository: &RepositoryConfig) -> Self {
        let branch = git_ref.strip_prefix("refs/heads/");
        let protected = branch.is_some_and(|branch| repository.protected.iter().any(|known| known == branch));
        let (lane, why) = if protected {
            (Lane::Protected, format!("`{git_ref}` is a protected branch"))
        } else {
            let known = super::listed(&repository.protected);
            let why =
                format!("`{git_ref}` is not a protected branch (protected: {known}), so nothing is promoted");
            (Lane::SameRepoPr, why)
        };
        Self { event: EventClass::Push, lane, why }
    }

    /// The class for sentences.
    pub(super) const fn name(&self) -> &'static str {
        match self.event {
            EventClass::Push => "pushes",
            EventClass::PullRequest => "pull requests of the same repository",
            EventClass::ForkPullRequest => "pull requests from forks",
            EventClass::Schedule => "schedules",
            EventClass::Dispatch => "requests by hand",
            EventClass::Rerun => "reruns",
        }
    }

    /// One event of the class.
    pub(super) const fn noun(&self) -> &'static str {
        match self.event {
            EventClass::Push => "push",
            EventClass::PullRequest | EventClass::ForkPullRequest => "pull request",
            EventClass::Schedule => "schedule",
            EventClass::Dispatch => "request",
            EventClass::Rerun => "rerun",
        }
    }

    pub(super) fn isolation(&self, grant: &Grant) -> Isolation {
        grant.isolation.unwrap_or(default_isolation(self.lane == Lane::ForkPr))
    }

    pub(super) fn isolation_reason(&self, grant: &Grant) -> String {
        let isolation = match self.isolation(grant) {
            Isolation::Vm => "vm",
            Isolation::SharedKernel => "shared-kernel",
        };
        match (grant.isolation, self.lane) {
            (Some(_), Lane::ForkPr) if isolation != "vm" => {
                format!("writes `isolation = \"{isolation}\"`, which lifts the rule that forks need `vm`")
            }
            (Some(_), _) => format!("writes `isolation = \"{isolation}\"`"),
            (None, Lane::ForkPr) => format!("least isolation `{isolation}`, because it comes from a fork"),
            (None, _) => format!("least isolation `{isolation}`"),
        }
    }
}

/// The class as access files spell it.
pub(super) const fn spelling(event: EventClass) -> &'static str {
    match event {
        EventClass::Push => "push",
        EventClass::PullRequest => "pull-request",
        EventClass::ForkPullRequest => "fork-pull-request",
        EventClass::Schedule => "schedule",
        EventClass::Dispatch => "dispatch",
        EventClass::Rerun => "rerun",
    }
}
