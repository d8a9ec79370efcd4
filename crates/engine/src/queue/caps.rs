//! Caps: how many attempts may run at once, in the whole farm and for each owner, repository and person.
//!
//! An attempt counts from the moment it is placed until it is over; the machine that it leaves behind counts against its
//! pool alone. The check comes right before a job is placed and sees what the same decision placed already, so a cap is
//! never exceeded, whatever arrives together. A cap that is lowered ends nothing: it is reached by waiting.

use crate::farm::Farm;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::who::find;
use forgeyard_model::{Account, AttemptId, Explanation};
use std::collections::BTreeSet;

/// Holders that are named as evidence.
const NAMED: usize = 5;

/// A cap that is reached.
pub(crate) enum Reached<'f> {
    /// Of the whole farm.
    Farm,
    /// Of a repository: the cap, whether it is the repository's own, and who runs.
    Repository(u32, bool, &'f BTreeSet<AttemptId>),
    /// Of an owner of repositories.
    Organisation(u32, bool, &'f BTreeSet<AttemptId>),
    /// Of a person.
    Person(u32, bool, &'f BTreeSet<AttemptId>),
}

/// The cap that keeps a job on this account from starting now, if one does. It is asked for each job of the queue after most
/// decisions, so it makes no text.
pub(crate) fn reached<'f>(
    farm: &'f Farm,
    config: &FarmConfig,
    account: Option<&Account>,
) -> Option<Reached<'f>> {
    if farm.index.live_attempts.len() >= config.max_running as usize {
        return Some(Reached::Farm);
    }
    let account = account?;
    let running = &farm.index.running;
    let (caps, forge) = (&config.queue.caps, &account.repository.forge);
    let own = config.queue.repository(&account.repository).and_then(|rules| rules.max_running);
    if let Some(cap) = own.or(caps.repository)
        && let Some(live) = full(running.repository.get(&account.repository), cap)
    {
        return Some(Reached::Repository(cap, own.is_some(), live));
    }
    let own = caps
        .organisations
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(&account.organisation))
        .map(|(_, cap)| *cap);
    if let Some(cap) = own.or(caps.organisation)
        && !account.organisation.is_empty()
        && let Some(live) = full(of_organisation(farm, account), cap)
    {
        return Some(Reached::Organisation(cap, own.is_some(), live));
    }
    let own = find(&caps.people, config.access.home(), forge, account.person).copied();
    if let Some(cap) = own.or(caps.person)
        && account.person != 0
        && let Some(live) = full(running.person.get(&(forge.clone(), account.person)), cap)
    {
        return Some(Reached::Person(cap, own.is_some(), live));
    }
    None
}

fn of_organisation<'f>(farm: &'f Farm, account: &Account) -> Option<&'f BTreeSet<AttemptId>> {
    farm.index.running.organisation.get(&account.repository.forge)?.get(&account.organisation)
}

impl Reached<'_> {
    /// The code of its reason.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Farm => "queue.farm_full",
            Self::Repository(..) => "queue.cap_repository",
            Self::Organisation(..) => "queue.cap_organisation",
            Self::Person(..) => "queue.cap_person",
        }
    }

    /// The reason, for the account that it was found for.
    pub(crate) fn explain(&self, farm: &Farm, config: &FarmConfig, account: Option<&Account>) -> Explanation {
        let say = |text: String, fix: String, live| {
            held_by(farm, Explanation::new(self.code(), text).fix(fix), live)
        };
        let (Some(account), true) = (account, !matches!(self, Self::Farm)) else {
            let text = format!("{} attempts run, which is the cap of the farm", config.max_running);
            let fix = "raise `max-running` in forgeyard.toml, or wait until one of them ends";
            return say(text, fix.to_owned(), &farm.index.live_attempts);
        };
        let (repository, forge) = (&account.repository, &account.repository.forge);
        match self {
            Self::Farm => Explanation::new(self.code(), "the farm is full"),
            Self::Repository(cap, own, live) => {
                let known = config.repository(forge, repository.id);
                let name = known.map_or("this repository", |known| &known.name);
                let text = format!("{name} ({repository}) runs {} jobs; its cap is {cap}", live.len());
                let fix = if *own {
                    format!("raise `max-running` of repository {repository} under [[queue.repositories]]")
                } else {
                    format!(
                        "raise `repository` under [queue.caps], or give {repository} its own `max-running` under [[queue.repositories]]"
                    )
                };
                say(text, fix, live)
            }
            Self::Organisation(cap, own, live) => {
                let name = &account.organisation;
                let text =
                    format!("repositories of {name} run {} jobs; the cap of {name} is {cap}", live.len());
                let fix = if *own {
                    format!("raise `{name}` under [queue.caps.organisations] in forgeyard.toml")
                } else {
                    format!(
                        "raise `organisation` under [queue.caps], or write `{name}` under [queue.caps.organisations], in forgeyard.toml"
                    )
                };
                say(text, fix, live)
            }
            Self::Person(cap, own, live) => {
                let id = account.person;
                let login =
                    config.access.login(forge, id).map_or_else(|| format!("person {id}"), Clone::clone);
                let text =
                    format!("{} jobs of {login} (id {id}) run; the cap for a person is {cap}", live.len());
                let fix = if *own {
                    format!("raise `{id}` under [queue.caps.people] in forgeyard.toml")
                } else {
                    format!(
                        "raise `person` under [queue.caps], or write `{id}` under [queue.caps.people], in forgeyard.toml"
                    )
                };
                say(text, fix, live)
            }
        }
    }
}

/// Whether a reason is that of a cap.
pub(crate) fn is_cap(code: &str) -> bool {
    code == "queue.farm_full" || code.starts_with("queue.cap_")
}

/// Who holds the cap of this code.
pub(crate) fn holders<'a>(
    farm: &'a Farm,
    account: Option<&Account>,
    code: &str,
) -> Option<&'a BTreeSet<AttemptId>> {
    let running = &farm.index.running;
    match (code, account) {
        ("queue.farm_full", _) => Some(&farm.index.live_attempts),
        ("queue.cap_repository", Some(account)) => running.repository.get(&account.repository),
        ("queue.cap_organisation", Some(account)) => of_organisation(farm, account),
        ("queue.cap_person", Some(account)) => {
            running.person.get(&(account.repository.forge.clone(), account.person))
        }
        _ => None,
    }
}

/// Those who run, when there are as many as the cap allows.
fn full(live: Option<&BTreeSet<AttemptId>>, cap: u32) -> Option<&BTreeSet<AttemptId>> {
    static NOBODY: BTreeSet<AttemptId> = BTreeSet::new();
    let live = live.unwrap_or(&NOBODY);
    (live.len() >= cap as usize).then_some(live)
}

/// Adds who holds a cap.
fn held_by(farm: &Farm, mut reason: Explanation, live: &BTreeSet<AttemptId>) -> Explanation {
    for attempt in live.iter().take(NAMED).filter_map(|id| farm.attempts.get(id)) {
        let key = farm.jobs.get(&attempt.job).map_or("a job", |job| job.key.as_str());
        reason = reason.with(format!("{} ({key}) runs since {}", attempt.id, attempt.placed_at));
    }
    if live.len() > NAMED {
        reason = reason.with(format!("and {} more", live.len() - NAMED));
    }
    reason
}
