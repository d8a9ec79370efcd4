//! `forgeyard access diff`: what a change of an access file opens and closes, by asking the gate under both.
//!
//! The gate is asked for every repository, resource, class of events and person that either file names, and for one
//! person whom neither names: so a change of a list, a team, a role or the terms shows for everybody whom it touches,
//! whatever it looks like as text.

use forgeyard_api::people::AccessQuestion;
use forgeyard_control::http::people::ask;
use forgeyard_model::ForgeName;
use forgeyard_model::access::{Access, Decision, EventClass};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::who::ForgeId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for everybody whom no file names. Forges number people from 1.
const SOMEBODY_ELSE: u64 = 0;

const EVENTS: [EventClass; 6] = [
    EventClass::Push,
    EventClass::PullRequest,
    EventClass::ForkPullRequest,
    EventClass::Schedule,
    EventClass::Dispatch,
    EventClass::Rerun,
];

/// How a decision changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub(super) enum Change {
    /// It was refused and is allowed.
    Opened {
        /// Rules that allow it now.
        by: Vec<String>,
    },
    /// It was allowed and is refused.
    Closed {
        /// Why it is refused now.
        because: String,
    },
    /// It is allowed before and after, at another least isolation.
    Isolation {
        /// Before.
        from: String,
        /// After.
        to: String,
    },
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Opened { by } => write!(f, "opens, by {}", by.join(", ")),
            Change::Closed { because } => write!(f, "closes: {because}"),
            Change::Isolation { from, to } => write!(f, "isolation {from} becomes {to}"),
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let event = super::super::word(&self.event);
        let (repository, resource, people) = (&self.repository, &self.resource, self.people.join(", "));
        write!(f, "{repository}, `{resource}` on {event}, for {people}: {}", self.change)
    }
}

/// One change, with everybody whom it touches.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct Line {
    /// Name of the repository.
    pub(super) repository: String,
    /// Resource.
    pub(super) resource: String,
    /// Class of events.
    pub(super) event: EventClass,
    /// How it changes.
    #[serde(flatten)]
    pub(super) change: Change,
    /// People: `login (id)`, or `anybody else`.
    pub(super) people: Vec<String>,
}

/// Everything that changes from one configuration to the other.
pub(super) fn changes(old: &FarmConfig, new: &FarmConfig) -> Vec<Line> {
    let both = [&old.access, &new.access];
    let repositories: BTreeMap<(&str, u64), &str> = both
        .iter()
        .flat_map(|access| access.grants.iter().map(|grant| (access.home(), &grant.repository)))
        .filter_map(|(home, repository)| {
            let forge = repository.forge.as_ref().map_or(home, ForgeName::as_str);
            Some(((forge, repository.id?), repository.name.as_str()))
        })
        .collect();
    let resources: BTreeSet<&String> =
        both.iter().flat_map(|access| &access.grants).flat_map(|grant| &grant.resources).collect();
    let people: BTreeSet<(String, u64)> = both.iter().flat_map(|access| named(access)).collect();
    let mut lines = Vec::new();
    for ((forge, repository), name) in &repositories {
        // The gate is asked about people of the repository's own forge: nobody else takes part there.
        let people: Vec<u64> =
            people.iter().filter(|(of, _)| of == forge).map(|(_, id)| *id).chain([SOMEBODY_ELSE]).collect();
        for resource in &resources {
            for event in EVENTS {
                let mut touched: BTreeMap<Change, Vec<String>> = BTreeMap::new();
                for person in &people {
                    let question = AccessQuestion {
                        repository: ForgeId { forge: forge.parse().ok(), id: *repository },
                        person: *person,
                        event,
                        resource: (*resource).clone(),
                    };
                    if let Some(change) = change(&ask(old, &question), &ask(new, &question)) {
                        touched.entry(change).or_default().push(shown(forge, *person, both));
                    }
                }
                lines.extend(touched.into_iter().map(|(change, people)| Line {
                    repository: (*name).to_owned(),
                    resource: (*resource).clone(),
                    event,
                    change,
                    people,
                }));
            }
        }
    }
    lines
}

/// Everybody whom a file names.
fn named(access: &Access) -> impl Iterator<Item = (String, u64)> + '_ {
    let grants = access.grants.iter().flat_map(|grant| grant.users.iter());
    let lists = access.lists.values().chain(access.teams.values()).flatten();
    let roles = access.roles.values().flat_map(|people| people.keys());
    let all = grants.chain(lists).chain(roles).chain(access.terms_accepted.keys());
    all.map(|who| (who.forge_or(access.home()).to_owned(), who.id))
}

fn shown(forge: &str, person: u64, files: [&Access; 2]) -> String {
    if person == SOMEBODY_ELSE {
        return "anybody else".to_owned();
    }
    match files.iter().rev().find_map(|access| access.login(&forge.parse().ok()?, person)) {
        Some(login) => format!("{login} ({person})"),
        None => person.to_string(),
    }
}

fn change(before: &Decision, after: &Decision) -> Option<Change> {
    match (before, after) {
        (Decision::Deny { .. }, Decision::Allow { by, .. }) => Some(Change::Opened { by: by.clone() }),
        (Decision::Allow { .. }, Decision::Deny { reason }) => {
            Some(Change::Closed { because: reason.message.clone() })
        }
        (Decision::Allow { isolation: from, .. }, Decision::Allow { isolation: to, .. }) if from != to => {
            Some(Change::Isolation { from: super::super::word(from), to: super::super::word(to) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::access::configured;
    use forgeyard_formats::access;

    fn farm(text: &str) -> FarmConfig {
        configured(access::read("access.toml", text).unwrap()).unwrap()
    }

    const BEFORE: &str = "[[grants]]\nid = \"w\"\nrepository = { id = 7, name = \"o/w\" }\nresources = [\"gpu\"]\n\
                          events = [\"push\"]\nlists = [\"crew\"]\n[lists]\ncrew = [1, 2]\n[logins]\n1 = \"ada\"\n";

    #[test]
    fn the_same_access_changes_nothing() {
        assert_eq!(changes(&farm(BEFORE), &farm(BEFORE)), []);
    }

    #[test]
    fn person_who_leaves_a_list_loses_and_person_who_joins_gains() {
        let after = BEFORE.replace("crew = [1, 2]", "crew = [2, 3]");
        let lines = changes(&farm(BEFORE), &farm(&after));
        let told: Vec<(EventClass, Vec<String>, bool)> = lines
            .into_iter()
            .map(|line| (line.event, line.people, matches!(line.change, Change::Opened { .. })))
            .collect();
        assert_eq!(
            told,
            [
                (EventClass::Push, vec!["3".to_owned()], true),
                (EventClass::Push, vec!["ada (1)".to_owned()], false)
            ]
        );
    }

    #[test]
    fn grant_without_people_opens_for_everybody_and_is_told_so() {
        let after = BEFORE.replace("lists = [\"crew\"]\n", "");
        let lines = changes(&farm(BEFORE), &farm(&after));
        assert!(lines.iter().any(|line| line.people.contains(&"anybody else".to_owned())), "{lines:?}");
    }
}
