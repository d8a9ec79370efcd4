//! Access: who may use what, on which events, at which least isolation. Deny by default; people and repositories by
//! numeric id.

use crate::principal::Role;
use crate::resources::Isolation;
use crate::who::{ForgeId, Ids, find};
use crate::{Explanation, ForgeName, Lane};
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
    /// The forge; the home forge of the file when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<ForgeName>,
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
    pub users: Ids,
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
    #[serde(default, skip_serializing_if = "Ids::is_empty")]
    pub users: Ids,
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
    #[serde(default, skip_serializing_if = "Ids::is_empty")]
    pub users: Ids,
    /// Names of user lists.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lists: BTreeSet<String>,
    /// Names of teams.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub teams: BTreeSet<String>,
    /// Repositories, by numeric id.
    #[serde(default, skip_serializing_if = "Ids::is_empty")]
    pub repositories: Ids,
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
    /// The home forge: of which forge numbers are that stand alone. `github` when absent; a farm with another forge alone
    /// fills it in, and one with several refuses a file that leaves it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<ForgeName>,
    /// The grants.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Lists of people by name: numeric ids.
    #[serde(default)]
    pub lists: BTreeMap<String, Ids>,
    /// Members of teams by name: numeric ids.
    #[serde(default)]
    pub teams: BTreeMap<String, Ids>,
    /// Roles of people in repositories: `repository id → person id → role`.
    #[serde(default)]
    pub roles: BTreeMap<ForgeId, BTreeMap<ForgeId, String>>,
    /// Terms of service that must have been accepted; 0 = none.
    #[serde(default)]
    pub terms_version: u32,
    /// Accepted terms by person: the newest version.
    #[serde(default)]
    pub terms_accepted: BTreeMap<ForgeId, u32>,
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
    pub logins: BTreeMap<ForgeId, String>,
    /// What an import could not carry over, each with the place.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl GrantRepository {
    /// Whether it is this one. Without an id it is none.
    pub fn is(&self, home: &str, forge: &ForgeName, id: u64) -> bool {
        self.id == Some(id) && self.forge.as_ref().map_or(home, ForgeName::as_str) == forge.as_str()
    }
}

/// The home forge of a farm where nothing is written.
pub const HOME: &str = "github";

impl Access {
    /// The forge of numbers that stand alone.
    pub fn home(&self) -> &str {
        self.forge.as_ref().map_or(HOME, ForgeName::as_str)
    }

    /// The forge that a row names, or the home forge where it was written before there could be several.
    pub fn forge_of(&self, written: Option<&ForgeName>) -> Option<ForgeName> {
        written.cloned().or_else(|| self.home().parse().ok())
    }

    /// Whether a set names somebody.
    pub fn holds(&self, ids: &Ids, forge: &ForgeName, person: u64) -> bool {
        ids.holds(self.home(), forge, person)
    }

    /// The role of somebody in a repository, where it is written. Person and repository may be of different forges.
    pub fn role(&self, repository: (&ForgeName, u64), forge: &ForgeName, person: u64) -> Option<&String> {
        let people = find(&self.roles, self.home(), repository.0, repository.1)?;
        find(people, self.home(), forge, person)
    }

    /// The newest version of the terms that somebody accepted.
    pub fn accepted(&self, forge: &ForgeName, person: u64) -> u32 {
        let known = self.terms_accepted.iter().filter(|(who, _)| who.is(self.home(), forge.as_str(), person));
        known.map(|(_, version)| *version).max().unwrap_or(0)
    }

    /// The login of somebody, for display.
    pub fn login(&self, forge: &ForgeName, person: u64) -> Option<&String> {
        find(&self.logins, self.home(), forge, person)
    }

    /// The same, with the forge written at every number.
    #[must_use]
    pub fn spelled_out(mut self) -> Self {
        let Ok(home) = self.home().parse::<ForgeName>() else { return self };
        let one = |id: ForgeId| ForgeId { forge: Some(id.forge.unwrap_or_else(|| home.clone())), id: id.id };
        let all = |ids: &mut Ids| *ids = std::mem::take(ids).into_iter().map(one).collect();
        for grant in &mut self.grants {
            grant.repository.forge.get_or_insert_with(|| home.clone());
            all(&mut grant.users);
            grant.approvers.iter_mut().for_each(|approvers| all(&mut approvers.users));
        }
        self.lists.values_mut().chain(self.teams.values_mut()).for_each(all);
        for rule in &mut self.members {
            all(&mut rule.users);
            all(&mut rule.repositories);
        }
        let roles = std::mem::take(&mut self.roles).into_iter();
        self.roles = roles
            .map(|(at, people)| (one(at), people.into_iter().map(|(who, role)| (one(who), role)).collect()))
            .collect();
        let accepted = std::mem::take(&mut self.terms_accepted).into_iter();
        self.terms_accepted = accepted.map(|(who, version)| (one(who), version)).collect();
        self.logins =
            std::mem::take(&mut self.logins).into_iter().map(|(who, login)| (one(who), login)).collect();
        self
    }

    /// Every number that the rules name, with where it stands; logins, which are only shown, are left out.
    pub fn numbers(&self) -> Vec<(String, ForgeId)> {
        let mut all = Vec::new();
        let mut take = |place: String, ids: &mut dyn Iterator<Item = &ForgeId>| {
            all.extend(ids.map(|id| (place.clone(), id.clone())));
        };
        for grant in &self.grants {
            let repository =
                grant.repository.id.map(|id| ForgeId { forge: grant.repository.forge.clone(), id });
            take(format!("grant `{}`, `repository`", grant.id), &mut repository.iter());
            take(format!("grant `{}`, `users`", grant.id), &mut grant.users.iter());
            let approvers = grant.approvers.iter().flat_map(|approvers| approvers.users.iter());
            take(format!("grant `{}`, `approvers`", grant.id), &mut approvers.into_iter());
        }
        for (name, people) in &self.lists {
            take(format!("list `{name}`"), &mut people.iter());
        }
        for (name, people) in &self.teams {
            take(format!("team `{name}`"), &mut people.iter());
        }
        for (repository, people) in &self.roles {
            take("`roles`".to_owned(), &mut std::iter::once(repository));
            take(format!("`roles` of {repository}"), &mut people.keys());
        }
        take("`terms-accepted`".to_owned(), &mut self.terms_accepted.keys());
        for rule in &self.members {
            take(format!("member rule `{}`, `users`", rule.id), &mut rule.users.iter());
            take(format!("member rule `{}`, `repositories`", rule.id), &mut rule.repositories.iter());
        }
        all
    }
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
