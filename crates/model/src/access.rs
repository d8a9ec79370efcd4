//! Access: who may use what, on which events, at which least isolation. Deny by default; people and repositories by
//! numeric id.

use crate::principal::Role;
use crate::resources::Isolation;
use crate::{Explanation, Lane};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A class of events, as grants distinguish them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EventClass {
    /// Commits pushed to the repository itself.
    Push,
    /// A pull request of the same repository.
    PullRequest,
    /// A pull request from a fork.
    ForkPullRequest,
    /// A timer.
    Schedule,
    /// A person asked by hand.
    Dispatch,
    /// A person asked to run something again.
    Rerun,
}

/// A repository as a grant names it. The id decides; the name is for people, and for imports whose ids are not yet
/// known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GrantRepository {
    /// Numeric id; a grant without one never allows anything and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// `owner/name`.
    pub name: String,
}

/// A grant: one repository, one resource, who and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Grant {
    /// Name of the rule, shown in every decision.
    pub id: String,
    /// The repository.
    pub repository: GrantRepository,
    /// Pools or resources that it opens.
    pub resources: BTreeSet<String>,
    /// Event classes that it covers.
    pub events: BTreeSet<EventClass>,
    /// People, by numeric id. Empty together with `lists` and `teams` = everybody who passes the roles.
    #[serde(default)]
    pub users: BTreeSet<u64>,
    /// Names of user lists.
    #[serde(default)]
    pub lists: BTreeSet<String>,
    /// Names of teams.
    #[serde(default)]
    pub teams: BTreeSet<String>,
    /// Roles at the forge, when given one of them is needed as well.
    #[serde(default)]
    pub roles: BTreeSet<String>,
    /// Least isolation; forks need `vm` unless this is written otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Who may approve a head that this grant holds. Absent = whoever passes the grant, when it names people or roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Approvers>,
}

/// Who may approve: anybody who is named in one of the four ways. Accepted terms are needed as well.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Approvers {
    /// People, by numeric id.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub users: BTreeSet<u64>,
    /// Names of user lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lists: BTreeSet<String>,
    /// Names of teams.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub teams: BTreeSet<String>,
    /// Roles at the forge, in the repository of the grant.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
}

/// A rule that gives people a role in this farm: what they may see and do in console and API. It counts where it says so,
/// and nowhere when it names no place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Member {
    /// Name of the rule, shown wherever it counts.
    pub id: String,
    /// The role.
    pub role: Role,
    /// People, by numeric id.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub users: BTreeSet<u64>,
    /// Names of user lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lists: BTreeSet<String>,
    /// Names of teams.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub teams: BTreeSet<String>,
    /// Repositories, by numeric id.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub repositories: BTreeSet<u64>,
    /// Organisations: every repository of the farm whose own `[[repositories]]` entry is named `organisation/…`. What a
    /// forge calls a repository does not count.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub organisations: BTreeSet<String>,
    /// Everywhere, machines and audit trail included.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_farm: bool,
}

/// All that the gate knows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Access {
    /// The grants.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Lists of people by name: numeric ids.
    #[serde(default)]
    pub lists: BTreeMap<String, BTreeSet<u64>>,
    /// Members of teams by name: numeric ids.
    #[serde(default)]
    pub teams: BTreeMap<String, BTreeSet<u64>>,
    /// Roles of people in repositories: `repository id → person id → role`.
    #[serde(default)]
    pub roles: BTreeMap<u64, BTreeMap<u64, String>>,
    /// Terms of service that must have been accepted; 0 = none.
    #[serde(default)]
    pub terms_version: u32,
    /// Accepted terms by person: the newest version.
    #[serde(default)]
    pub terms_accepted: BTreeMap<u64, u32>,
    /// Where the terms can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms_url: Option<String>,
    /// Who has which role in this farm.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Which role in this farm a role at the forge gives, in its repository: `admin = "maintainer"`. Empty = none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forge_roles: BTreeMap<String, Role>,
    /// Logins by id, for display only.
    #[serde(default)]
    pub logins: BTreeMap<u64, String>,
    /// What an import could not carry over, each with the place.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What the gate decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// Allowed.
    Allow {
        /// Rules that allowed it.
        by: Vec<String>,
        /// How far the event is trusted.
        lane: Lane,
        /// Least isolation that the work needs.
        isolation: Isolation,
        /// What was looked at, in order.
        evidence: Vec<String>,
    },
    /// Refused.
    Deny {
        /// Why, with what is missing and how to get it.
        reason: Explanation,
    },
}
