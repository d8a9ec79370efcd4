//! What people say once and the farm remembers: that a head commit may run, and that they accept the terms of service.
//!
//! An approval is bound to one commit of one repository ([`HeadApproval::key`]). It is never inherited by another commit,
//! and it is void as soon as its pull request has another head, even when the old head comes back. Who may approve is
//! asked of the gate when the approval is given, and again whenever it is relied on.
//!
//! Terms are accepted by version and by numeric id: a newer version binds nobody who has not accepted it.

use crate::access::HOME;
use crate::forge::{Person, Repository};
use crate::principal::Role;
use crate::who::ForgeId;
use crate::{Explanation, ForgeName, PrincipalId, Timestamp};
use serde::{Deserialize, Serialize};

/// By which way somebody spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// A button of the check run at the forge.
    CheckRun,
    /// A button of the console.
    Console,
    /// The command line.
    Cli,
    /// A program that calls the API.
    Api,
}

impl Way {
    /// For sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Way::CheckRun => "the check run",
            Way::Console => "the console",
            Way::Cli => "the command line",
            Way::Api => "the API",
        }
    }
}

/// Who judges a head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Approver {
    /// The person, by numeric id. For a token that speaks for nobody at a forge: id 0 and the token's name.
    pub person: Person,
    /// The forge of the person; absent in rows of before there could be several, and then the home forge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<ForgeName>,
    /// The token, when one that speaks for nobody at a forge was used: its own role decides then, as long as it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<PrincipalId>,
    /// For a person: the role in this farm that followed from the role at the forge, as read when the person signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

impl Approver {
    /// For sentences.
    pub fn shown(&self) -> String {
        match self.token {
            Some(_) => format!("the token `{}`", self.person.login),
            None => {
                format!("{} (id {}{})", self.person.login, self.person.id, elsewhere(self.forge.as_ref()))
            }
        }
    }
}

/// The forge of somebody, for sentences, where it is not the usual one.
pub fn elsewhere(forge: Option<&ForgeName>) -> String {
    forge.filter(|forge| forge.as_str() != HOME).map(|forge| format!(" at {forge}")).unwrap_or_default()
}

/// What somebody said of a head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Judgement {
    /// It may run (`true`), or it may not.
    pub approve: bool,
    /// Why not, in the words of whoever refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who.
    pub by: Approver,
    /// By which way.
    pub how: Way,
    /// When.
    pub at: Timestamp,
}

/// A head row: what was said of one commit of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeadApproval {
    /// Where.
    pub repository: Repository,
    /// The commit that was looked at.
    pub head_sha: String,
    /// Pull request that it was the head of, when it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<u64>,
    /// The last word of somebody who may speak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judgement>,
    /// Why the judgement no longer counts, when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<Explanation>,
    /// What was answered to the last person who tried and may not. Shown in the check run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turned_away: Option<Explanation>,
    /// When it was last written.
    pub at: Timestamp,
    /// Row version.
    pub generation: u64,
}

/// The key of a head: forge, numeric id of the repository, commit.
pub fn head_key(repository: &Repository, head_sha: &str) -> String {
    format!("{}/{}/{head_sha}", repository.forge, repository.id)
}

impl HeadApproval {
    /// Primary key.
    pub fn key(&self) -> String {
        head_key(&self.repository, &self.head_sha)
    }

    /// The judgement, when it counts.
    pub fn counts(&self) -> Option<&Judgement> {
        self.judged.as_ref().filter(|_| self.void.is_none())
    }
}

/// An acceptance row: the newest version of the terms of service that a person accepted. The key is the person's
/// id, after the forge where that is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Acceptance {
    /// Who.
    pub person: Person,
    /// The forge of the person; absent in rows of before there could be several, and then the home forge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<ForgeName>,
    /// Version that was accepted; a newer one needs its own acceptance.
    pub version: u32,
    /// By which way.
    pub how: Way,
    /// When.
    pub at: Timestamp,
    /// Row version.
    pub generation: u64,
}

impl Acceptance {
    /// Who, with the forge.
    pub fn who(&self) -> ForgeId {
        ForgeId { forge: self.forge.clone(), id: self.person.id }
    }
}

/// A configuration row: what the farm was run with from a time on. Rows are added and never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigVersion {
    /// Number, from 1.
    pub number: u64,
    /// Digest that decisions are journalled with.
    pub digest: crate::Digest,
    /// Since when.
    pub at: Timestamp,
    /// Who started the farm with it or had it read again, as far as that is known.
    pub by: String,
    /// The version that it repeats, when it is an older one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
    /// What is different from the version before, when it was read while the farm ran: a line for each thing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// The configuration as JSON text, so that one of an older program can still be read. It never holds a secret: those
    /// are in no [`FarmConfig`](crate::config::FarmConfig).
    pub config: String,
    /// Row version.
    pub generation: u64,
}

impl ConfigVersion {
    /// Primary key: the number, so that keys sort as numbers do.
    pub fn key(number: u64) -> String {
        format!("{number:012}")
    }
}
