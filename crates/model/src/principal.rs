//! Principals: who acts. Written on every event, so the events are the audit trail.

use crate::who::Ids;
use crate::{ForgeName, PrincipalId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a principal may do, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reruns, cancels, approves.
    Maintainer,
    /// Drains, quarantines, clears, writes off.
    Operator,
    /// Everything, tokens included.
    Admin,
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "viewer" => Ok(Role::Viewer),
            "maintainer" => Ok(Role::Maintainer),
            "operator" => Ok(Role::Operator),
            "admin" => Ok(Role::Admin),
            other => Err(format!("`{other}` is not a role: viewer, maintainer, operator or admin")),
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Role::Viewer => "viewer",
            Role::Maintainer => "maintainer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        })
    }
}

/// What kind of principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PrincipalKind {
    /// A person or program with an API token.
    Token {
        /// What it may do.
        role: Role,
    },
    /// A person at a forge.
    Person {
        /// Numeric id at the forge. Spelled `person`, because `id` is the principal's own.
        #[serde(rename = "person")]
        id: u64,
        /// The forge; absent in rows of before there could be several, and then the home forge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forge: Option<ForgeName>,
    },
    /// A site.
    Site,
    /// An agent.
    Agent,
    /// The farm itself.
    Farm,
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Principal {
    /// Its id.
    pub id: PrincipalId,
    /// Name for people.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: PrincipalKind,
}

/// Where somebody may do what. Nothing by default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Standing {
    /// Role in the whole farm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub farm: Option<Role>,
    /// Roles in single repositories, by forge and numeric id: a number is one repository at one forge and another one at
    /// another.
    #[serde(default)]
    pub repositories: BTreeMap<ForgeName, BTreeMap<u64, Role>>,
}

impl Standing {
    /// The role in a repository.
    pub fn role_in(&self, forge: &ForgeName, id: u64) -> Option<Role> {
        self.farm.max(self.repositories.get(forge).and_then(|there| there.get(&id)).copied())
    }

    /// The highest role anywhere.
    pub fn highest(&self) -> Option<Role> {
        self.farm.max(self.repositories.values().flat_map(BTreeMap::values).copied().max())
    }

    /// Adds a role in a repository, when it is more than was there.
    pub fn raise(&mut self, forge: &ForgeName, id: u64, role: Role) {
        let place = self.repositories.entry(forge.clone()).or_default().entry(id).or_insert(role);
        *place = (*place).max(role);
    }
}

/// An API token row. Only the digest of the token is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// The principal that it speaks for.
    pub principal: Principal,
    /// SHA-256 of the token.
    pub digest: crate::Digest,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// Repositories that its role is limited to; empty = its role counts in the whole farm. A number that stands alone, as
    /// in rows of before, is of the home forge.
    #[serde(default, skip_serializing_if = "Ids::is_empty")]
    pub repositories: Ids,
    /// For the session of a person: roles at the person's own forge by repository, as they were read at sign-in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forge_roles: BTreeMap<u64, String>,
    /// Row version.
    pub generation: u64,
}
