//! Whether the people behind an event pass one grant.

use super::{Approval, Asked, listed, number};
use forgeyard_model::ForgeName;
use forgeyard_model::access::{Access, Grant};
use forgeyard_model::forge::{ForgeEvent, Person};
use forgeyard_model::who::Ids;
use std::collections::BTreeMap;

/// What one grant says about everybody who takes part.
pub(super) enum Verdict {
    /// All pass, or somebody who does vouches for them. With what was looked at.
    Pass(Vec<String>),
    /// Somebody does not.
    Fail(Failure),
}

pub(super) struct Failure {
    /// What was looked at and what is missing.
    pub(super) lines: Vec<String>,
    /// How to get what is missing.
    pub(super) fix: String,
    /// Whether accepting the terms is all that is missing.
    pub(super) terms_only: bool,
}

/// What one person lacks.
struct Lack {
    what: String,
    fix: String,
    terms: bool,
}

pub(super) fn check(
    asked: &Asked<'_>,
    grant: &Grant,
    access: &Access,
    approval: Option<&Approval>,
) -> Verdict {
    let forge = &asked.repository.forge;
    let repository = (forge, asked.repository.id);
    let (mut lines, mut lacks) = (Vec::new(), Vec::new());
    for (person, part) in &asked.subjects {
        match passes(person, forge, repository, grant, access) {
            Ok(how) => lines.push(format!("{} ({part}) {how}", shown(person))),
            Err(person_lacks) => {
                for lack in person_lacks {
                    lines.push(format!("{} ({part}) {}", shown(person), lack.what));
                    lacks.push(lack);
                }
            }
        }
    }
    if lacks.is_empty() {
        return Verdict::Pass(lines);
    }
    if let Some(approval) = approval {
        match approved(asked, approval, grant, access) {
            Ok(how) => {
                lines.push(how);
                return Verdict::Pass(lines);
            }
            Err(why) => lines.push(why),
        }
    }
    let mut fixes: Vec<String> = lacks.iter().map(|lack| lack.fix.clone()).collect();
    fixes.dedup();
    Verdict::Fail(Failure { lines, fix: fixes.join(", "), terms_only: lacks.iter().all(|lack| lack.terms) })
}

/// Everybody who takes part, each once.
pub(super) fn subjects(event: &ForgeEvent) -> Vec<(&Person, String)> {
    let part = str::to_owned;
    match &event.author {
        Some(author) if author.id == event.sender.id => vec![(author, part("sender and author"))],
        Some(author) => {
            vec![(&event.sender, part("sender")), (author, part("author of the pull request"))]
        }
        None => vec![(&event.sender, part("sender"))],
    }
}

/// Whether a grant is closed to some: only then does passing it mean anything about a person.
pub(super) fn names_somebody(grant: &Grant) -> bool {
    names_people(grant) || !grant.roles.is_empty()
}

fn names_people(grant: &Grant) -> bool {
    !(grant.users.is_empty() && grant.lists.is_empty() && grant.teams.is_empty())
}

fn approved(
    asked: &Asked<'_>,
    approval: &Approval,
    grant: &Grant,
    access: &Access,
) -> Result<String, String> {
    let by = match approval.by.id {
        0 => format!("the token `{}`", approval.by.login),
        _ => shown(&approval.by),
    };
    if approval.repository != asked.repository.id {
        return Err(format!("the approval by {by} is for repository {}", approval.repository));
    }
    if approval.head_sha != asked.head_sha {
        return Err(format!(
            "the approval by {by} is for commit {}, the head is {}: look again and approve that",
            approval.head_sha, asked.head_sha
        ));
    }
    let Some(forge) = access.forge_of(approval.forge.as_ref()) else {
        return Err(format!("the approval by {by} does not say of which forge {by} is"));
    };
    match super::approve::under(grant, asked.known, access, (&approval.by, &forge), approval.role) {
        Ok(how) => Ok(format!("{by} approved commit {} and {how}", asked.head_sha)),
        Err(why) => Err(format!("the approval by {by} does not count: {by} {why}")),
    }
}

/// How a person passes, or all that is lacking.
/// A repository by its forge and number.
type At<'a> = (&'a ForgeName, u64);

fn passes(
    person: &Person,
    forge: &ForgeName,
    repository: At<'_>,
    grant: &Grant,
    access: &Access,
) -> Result<String, Vec<Lack>> {
    let mut lacks = Vec::new();
    let mut how = match membership(person, forge, grant, access) {
        Some(how) => how,
        None => {
            lacks.push(not_a_member(person, forge, grant, access));
            String::new()
        }
    };
    if !grant.roles.is_empty() {
        let role = access.role(repository, forge, person.id);
        match role.filter(|role| grant.roles.contains(*role)) {
            Some(role) => how.push_str(&format!(" and has the role `{role}`")),
            None => lacks.push(Lack {
                what: format!(
                    "has {} in the repository; the grant asks for one of {}",
                    role.map_or_else(|| "no known role".to_owned(), |role| format!("the role `{role}`")),
                    listed(&grant.roles)
                ),
                fix: format!(
                    "give id {} one of the roles {}",
                    number(access, forge, person.id),
                    listed(&grant.roles)
                ),
                terms: false,
            }),
        }
    }
    lacks.extend(unaccepted(person, forge, access));
    if lacks.is_empty() { Ok(how) } else { Err(lacks) }
}

/// Whether a person passes a grant, in words.
pub(super) fn member(
    person: &Person,
    forge: &ForgeName,
    repository: At<'_>,
    grant: &Grant,
    access: &Access,
) -> Result<String, String> {
    passes(person, forge, repository, grant, access)
        .map_err(|lacks| lacks.into_iter().map(|lack| lack.what).collect::<Vec<_>>().join(" and "))
}

/// What a person lacks as to the terms.
pub(super) fn terms(person: &Person, forge: &ForgeName, access: &Access) -> Option<String> {
    unaccepted(person, forge, access).map(|lack| lack.what)
}

fn unaccepted(person: &Person, forge: &ForgeName, access: &Access) -> Option<Lack> {
    let accepted = access.accepted(forge, person.id);
    (accepted < access.terms_version).then(|| {
        let before = if accepted == 0 { String::new() } else { format!(", only {accepted}") };
        Lack {
            what: format!(
                "has not accepted version {} of the terms of service{before}",
                access.terms_version
            ),
            fix: format!(
                "{} accepts version {} of the terms of service",
                shown(person),
                access.terms_version
            ),
            terms: true,
        }
    })
}

/// Where the person stands in the grant.
fn membership(person: &Person, forge: &ForgeName, grant: &Grant, access: &Access) -> Option<String> {
    if !names_people(grant) {
        return Some("passes, as the grant is open to everybody".to_owned());
    }
    if access.holds(&grant.users, forge, person.id) {
        return Some("is in `users`".to_owned());
    }
    let inside = |groups: &BTreeMap<String, Ids>, name: &String| {
        groups.get(name).is_some_and(|members| access.holds(members, forge, person.id))
    };
    if let Some(list) = grant.lists.iter().find(|name| inside(&access.lists, name)) {
        return Some(format!("is in the list `{list}`"));
    }
    let team = grant.teams.iter().find(|name| inside(&access.teams, name))?;
    Some(format!("is in the team `{team}`"))
}

fn not_a_member(person: &Person, forge: &ForgeName, grant: &Grant, access: &Access) -> Lack {
    let mut looked = Vec::new();
    if !grant.users.is_empty() {
        looked.push(format!("`users` ({} ids)", grant.users.len()));
    }
    let groups = [("list", &grant.lists, &access.lists), ("team", &grant.teams, &access.teams)];
    for (kind, names, known) in groups {
        for name in names {
            looked.push(match known.get(name) {
                Some(members) => format!("the {kind} `{name}` ({} ids)", members.len()),
                None => format!("the {kind} `{name}`, which does not exist"),
            });
        }
    }
    let mut what = format!("is not in {}", looked.join(" nor in "));
    // A login that is known under another id is the sign of a renamed or reused account, worth a word.
    if let Some((other, _)) = access.logins.iter().find(|(id, login)| {
        !id.is(access.home(), forge.as_str(), person.id) && login.eq_ignore_ascii_case(&person.login)
    }) {
        what.push_str(&format!("; the same login is on record for id {other}, and logins do not count"));
    }
    let place = match (grant.lists.first(), grant.teams.first()) {
        (Some(list), _) if grant.users.is_empty() => format!("the list `{list}`"),
        (None, Some(team)) if grant.users.is_empty() => format!("the team `{team}`"),
        _ => "`users`".to_owned(),
    };
    Lack { what, fix: format!("add id {} to {place}", number(access, forge, person.id)), terms: false }
}

pub(super) fn shown(person: &Person) -> String {
    format!("{} (id {})", person.login, person.id)
}
