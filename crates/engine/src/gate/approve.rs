//! Who may approve a head that a grant holds, and why, in words: the same for the gate, for `access explain`, and for the
//! answer to somebody who tried.

use super::people::{member, names_somebody, shown, terms};
use super::{known, listed, of_repository, opening, standing};
use forgeyard_model::access::{Access, Grant};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::principal::Role;
use forgeyard_model::who::Ids;
use forgeyard_model::{Explanation, ForgeName};
use std::collections::{BTreeMap, BTreeSet};

/// Rules by which somebody may approve, with how.
pub type Approvers = Vec<(String, String)>;

/// Whether somebody may approve heads of a repository for a resource: by which grants, or why not. A grant that holds
/// nobody, because everybody may use it, has nothing to approve.
pub fn may_approve(
    asked: &Repository,
    repository: Option<&RepositoryConfig>,
    resource: &str,
    access: &Access,
    (person, forge): (&Person, &ForgeName),
    role: Option<Role>,
) -> Result<Approvers, Explanation> {
    let repository = known(asked, repository).map_err(|refused| refused.reason)?;
    let grants = of_repository(asked, access).map_err(|refused| refused.reason)?;
    let grants = opening(&grants, resource, asked).map_err(|refused| refused.reason)?;
    let (mut by, mut lines) = (Approvers::new(), Vec::new());
    for grant in &grants {
        match under(grant, repository, access, (person, forge), role) {
            Ok(how) => by.push((grant.id.clone(), how)),
            Err(why) => lines.push(format!("grant `{}`: {} {why}", grant.id, named(person))),
        }
    }
    if !by.is_empty() {
        return Ok(by);
    }
    let text = format!("{} may not approve commits of {}", named(person), asked.name);
    let mut reason = Explanation::new("approval.not_authorised", text);
    reason.evidence = lines;
    let who: BTreeSet<String> = grants.iter().filter_map(|grant| who(grant, repository, access)).collect();
    let who: Vec<String> = who.into_iter().collect();
    Err(match who.as_slice() {
        [] => reason.fix("ask an operator to write `approvers` into a grant of the repository"),
        who => reason.fix(format!("ask {} to look at the commit", who.join(", or "))),
    })
}

fn named(person: &Person) -> String {
    match person.id {
        0 => format!("the token `{}`", person.login),
        _ => shown(person),
    }
}

/// How somebody may approve under one grant, or why not.
pub(super) fn under(
    grant: &Grant,
    repository: &RepositoryConfig,
    access: &Access,
    (person, forge): (&Person, &ForgeName),
    role: Option<Role>,
) -> Result<String, String> {
    // A token that speaks for nobody has no terms to accept; its role is an admin's word.
    if let Some(role) = role.filter(|role| *role >= Role::Maintainer) {
        return Ok(format!("has the role {role} in this farm"));
    }
    if person.id == 0 {
        return Err("has not the role maintainer in this farm".to_owned());
    }
    if let Some(lack) = terms(person, forge, access) {
        return Err(lack);
    }
    let held = standing::in_repository(access, repository, forge, person.id, &BTreeMap::new());
    if let Some((role, rule)) = held.filter(|(role, _)| *role >= Role::Maintainer) {
        return Ok(format!("has the role {role} in this farm by {rule}"));
    }
    let Some(approvers) = &grant.approvers else {
        if !names_somebody(grant) {
            return Err("would have to be named: the grant names nobody who may approve".to_owned());
        }
        return member(person, forge, (&repository.forge, repository.id), grant, access);
    };
    if access.holds(&approvers.users, forge, person.id) {
        return Ok("is in `approvers.users`".to_owned());
    }
    let inside = |groups: &BTreeMap<String, Ids>, names: &BTreeSet<String>| {
        let holds = |name: &&String| groups.get(*name).is_some_and(|ids| access.holds(ids, forge, person.id));
        names.iter().find(holds).cloned()
    };
    if let Some(list) = inside(&access.lists, &approvers.lists) {
        return Ok(format!("is in the list `{list}` of `approvers`"));
    }
    if let Some(team) = inside(&access.teams, &approvers.teams) {
        return Ok(format!("is in the team `{team}` of `approvers`"));
    }
    let at_forge = access.role((&repository.forge, repository.id), forge, person.id);
    match at_forge.filter(|role| approvers.roles.contains(*role)) {
        Some(role) => Ok(format!("has the role `{role}` of `approvers`")),
        None => Err("is not among its `approvers`".to_owned()),
    }
}

/// Who may approve under a grant, for sentences; none when nobody may.
pub(super) fn who(grant: &Grant, repository: &RepositoryConfig, access: &Access) -> Option<String> {
    let mut ways = Vec::new();
    match &grant.approvers {
        Some(approvers) => {
            let mut of = |what: &str, names: Vec<String>| {
                if !names.is_empty() {
                    ways.push(format!("{what} {}", listed(names)));
                }
            };
            of("one of the people", approvers.users.iter().map(ToString::to_string).collect());
            of("somebody of the list", approvers.lists.iter().cloned().collect());
            of("somebody of the team", approvers.teams.iter().cloned().collect());
            of("somebody with the role", approvers.roles.iter().cloned().collect());
        }
        None if names_somebody(grant) => ways.push(format!("somebody who passes grant `{}`", grant.id)),
        None => {}
    }
    if standing::anybody(access, repository, Role::Maintainer) {
        ways.push(format!("somebody with the role maintainer for {}", repository.name));
    }
    (!ways.is_empty()).then(|| ways.join(", or "))
}

/// How terms are accepted, for the fix of a refusal.
pub(super) fn how_to_accept(access: &Access) -> String {
    let version = access.terms_version;
    let read = access.terms_url.as_ref().map(|url| format!("read them at {url}, then ")).unwrap_or_default();
    format!(
        "{read}sign in to the console and accept them under Terms, or run `forgeyard terms accept --version {version}`"
    )
}
