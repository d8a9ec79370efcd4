//! The gate: whether an event may use a resource, in which lane and at which least isolation.
//!
//! [`decide`] is pure and total, and denies by default. In order, it asks:
//!
//! 1. Is the repository one of the farm's, by forge and numeric id?
//! 2. Which grants name it by its numeric id, and which of those open the resource? All of them count; each is tried by
//!    itself and one is enough.
//! 3. Which of those cover the class of the event? Pull requests of the same repository and from forks are different
//!    classes.
//! 4. Does every **subject** pass? Subjects are the sender and the author of the pull request. The sender of a push and
//!    of a pull request that got new commits is the one who pushed the head; for one that was opened or reopened the
//!    forge does not say who pushed.
//!
//! A subject passes a grant when all of these hold, by numeric id alone; logins and names are only ever printed:
//! - **people**: the id is in `users`, **or** in one of `lists`, **or** in one of `teams`. A grant in which all three are
//!   empty is open to everybody. A list or team that does not exist has no members;
//! - **roles**, when the grant names any: the person's role in this repository is one of them, by exact name. Roles are
//!   no ladder: whoever means `admin` and `write` writes both;
//! - **terms of service**: the newest version was accepted, when there are terms.
//!
//! Where subjects do not pass, an [`Approval`] of exactly this head commit stands in for all of them, when the approver
//! may approve. That is, for each grant by itself: whoever is in the grant's `approvers`; without `approvers`, whoever
//! passes the grant, when it names people or roles (in a grant that is open to everybody everybody could approve); and
//! always whoever has the role maintainer in this farm for the repository ([`standing`]). Accepted terms are needed of an
//! approver as of everybody. An approval stands in for people, never for a class of events that is not covered.
//!
//! Isolation is what the grant writes; where it writes nothing, forks need `vm`. Of several grants that allow, the least
//! demanding counts, so that adding a grant never takes anything away.
//!
//! Jobs of a forge that want a runner go through the same questions ([`decide_run`]); what is different there is who
//! takes part and how the class is read, see `gate/run.rs`.
//!
//! Caps on concurrency and minutes are not decided here: they make work wait, they do not refuse it.

mod approve;
mod class;
mod people;
mod run;
pub mod standing;

pub use approve::{Approvers, may_approve};
pub use run::{Admitted, Run, decide_run, foreseen};

use class::Class;
use forgeyard_model::access::{Access, Decision, EventClass, Grant};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::{ForgeEvent, Person, Repository};
use forgeyard_model::principal::Role;
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Explanation, ForgeName};
use people::Verdict;
use serde::{Deserialize, Serialize};

/// Somebody looked at a head commit and vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Numeric id of the repository.
    pub repository: u64,
    /// The commit that was looked at. A newer one needs a new approval.
    pub head_sha: String,
    /// Who looked.
    pub by: Person,
    /// The forge of whoever looked, when a person did; the home forge where it is not written.
    pub forge: Option<ForgeName>,
    /// The role in this farm that was brought along (by a token, or read at sign-in); roles that the access file gives are
    /// found there.
    pub role: Option<Role>,
}

/// Decides. `repository` is the farm's own record of the event's repository, when there is one.
pub fn decide(
    event: &ForgeEvent,
    repository: Option<&RepositoryConfig>,
    resource: &str,
    access: &Access,
    approval: Option<&Approval>,
) -> Decision {
    match admit(event, repository, resource, access, approval) {
        Admitted::Allow { by, lane, isolation, evidence } => {
            Decision::Allow { by, lane, isolation, evidence }
        }
        Admitted::Hold { reason } | Admitted::Deny { reason } => Decision::Deny { reason },
    }
}

/// The same, telling apart what an approval of the head would open.
pub fn admit(
    event: &ForgeEvent,
    repository: Option<&RepositoryConfig>,
    resource: &str,
    access: &Access,
    approval: Option<&Approval>,
) -> Admitted {
    let decided = known(&event.repository, repository).and_then(|repository| {
        let asked = Asked {
            repository: &event.repository,
            known: repository,
            head_sha: &event.head_sha,
            class: Class::of(event, repository),
            rerun: None,
            subjects: people::subjects(event),
        };
        check(&asked, resource, access, approval)
    });
    admitted(decided)
}

fn admitted(decided: Checked<Decision>) -> Admitted {
    match decided {
        Ok(Decision::Allow { by, lane, isolation, evidence }) => {
            Admitted::Allow { by, lane, isolation, evidence }
        }
        Ok(Decision::Deny { reason }) => Admitted::Deny { reason },
        Err(refused) if refused.approvable => Admitted::Hold { reason: refused.reason },
        Err(refused) => Admitted::Deny { reason: refused.reason },
    }
}

/// What is asked, whatever it came from.
struct Asked<'a> {
    repository: &'a Repository,
    /// The farm's own record of it.
    known: &'a RepositoryConfig,
    head_sha: &'a str,
    class: Class,
    /// For a run again: what that was read from. Its grants must cover both the class and reruns.
    rerun: Option<String>,
    /// Everybody who takes part, each once, with the part.
    subjects: Vec<(&'a Person, String)>,
}

/// A refusal.
struct Refused {
    reason: Explanation,
    /// Whether an approval of the head would do.
    approvable: bool,
}

impl From<Explanation> for Box<Refused> {
    fn from(reason: Explanation) -> Self {
        Box::new(Refused { reason, approvable: false })
    }
}

/// A refusal is boxed only because it is much larger than what it stands beside.
type Checked<T> = Result<T, Box<Refused>>;

fn check(
    asked: &Asked<'_>,
    resource: &str,
    access: &Access,
    approval: Option<&Approval>,
) -> Checked<Decision> {
    let class = &asked.class;
    let grants = of_repository(asked.repository, access)?;
    let grants = opening(&grants, resource, asked.repository)?;
    let grants = covering(&grants, asked)?;

    let verdicts: Vec<(&Grant, Verdict)> =
        grants.iter().map(|grant| (*grant, people::check(asked, grant, access, approval))).collect();
    let allowing: Vec<(&Grant, &Vec<String>)> = verdicts
        .iter()
        .filter_map(|(grant, verdict)| match verdict {
            Verdict::Pass(evidence) => Some((*grant, evidence)),
            Verdict::Fail(_) => None,
        })
        .collect();
    let Some(isolation) = allowing.iter().map(|(grant, _)| class.isolation(grant)).min() else {
        return Err(refused_people(asked, &verdicts, access));
    };

    let mut evidence = vec![
        format!("{} is repository {} of this farm", asked.repository.name, asked.repository.id),
        class.why.clone(),
    ];
    evidence.extend(asked.rerun.clone());
    for (grant, people) in &allowing {
        evidence.push(format!("grant `{}` opens `{resource}` for {}", grant.id, class.name()));
        evidence.extend(people.iter().map(|line| format!("grant `{}`: {line}", grant.id)));
        evidence.push(format!("grant `{}`: {}", grant.id, class.isolation_reason(grant)));
    }
    Ok(Decision::Allow {
        by: allowing.iter().map(|(grant, _)| grant.id.clone()).collect(),
        lane: class.lane,
        isolation,
        evidence,
    })
}

fn known<'a>(asked: &Repository, repository: Option<&'a RepositoryConfig>) -> Checked<&'a RepositoryConfig> {
    let refusal = || {
        Explanation::new(
            "gate.repository_unknown",
            format!("{} (id {} at {}) is not a repository of this farm", asked.name, asked.id, asked.forge),
        )
        .fix(format!(
            "add a repository with forge \"{}\" and id {} to the farm's configuration",
            asked.forge, asked.id
        ))
    };
    match repository {
        None => Err(refusal().into()),
        Some(known) if known.id == asked.id && known.forge == asked.forge => Ok(known),
        Some(known) => {
            let at_hand =
                format!("the record at hand is of {} (id {} at {})", known.name, known.id, known.forge);
            Err(refusal().with(at_hand).into())
        }
    }
}

/// Grants that name the repository by its id.
fn of_repository<'a>(asked: &Repository, access: &'a Access) -> Checked<Vec<&'a Grant>> {
    let grants: Vec<&Grant> = access
        .grants
        .iter()
        .filter(|grant| grant.repository.is(access.home(), &asked.forge, asked.id))
        .collect();
    if !grants.is_empty() {
        return Ok(grants);
    }
    let mut reason =
        Explanation::new("gate.no_grant", format!("no grant names {} by its id {}", asked.name, asked.id))
            .with(format!("{} grants were looked at", access.grants.len()))
            .fix(format!(
                "ask an operator for a grant with `repository = {{ {}id = {}, name = \"{}\" }}`",
                forge_key(access, &asked.forge),
                asked.id,
                asked.name
            ));
    for grant in access.grants.iter().filter(|grant| grant.repository.name == asked.name) {
        match grant.repository.id {
            None => {
                reason = reason
                    .with(format!(
                        "grant `{}` names {} without an id, so it allows nothing",
                        grant.id, asked.name
                    ))
                    .fix(format!("write `id = {}` into the repository of grant `{}`", asked.id, grant.id));
            }
            Some(other) if other == asked.id => {
                reason = reason.with(format!(
                    "grant `{}` is for id {other} at {}, which is another repository than id {other} at {}",
                    grant.id,
                    grant.repository.forge.as_ref().map_or(access.home(), ForgeName::as_str),
                    asked.forge
                ));
            }
            Some(other) => {
                reason = reason.with(format!(
                    "grant `{}` is for id {other}, which has or had the same name; names do not count",
                    grant.id
                ));
            }
        }
    }
    Err(reason.into())
}

/// Those of them that open the resource.
fn opening<'a>(grants: &[&'a Grant], resource: &str, asked: &Repository) -> Checked<Vec<&'a Grant>> {
    let open: Vec<&Grant> =
        grants.iter().copied().filter(|grant| grant.resources.contains(resource)).collect();
    if !open.is_empty() {
        return Ok(open);
    }
    let mut reason = Explanation::new(
        "gate.resource_not_granted",
        format!("no grant opens `{resource}` for {}", asked.name),
    );
    for grant in grants {
        reason = reason.with(format!("grant `{}` opens {}", grant.id, listed(&grant.resources)));
    }
    let ids: Vec<&str> = grants.iter().map(|grant| grant.id.as_str()).collect();
    Err(reason
        .fix(format!("ask an operator to add \"{resource}\" to `resources` of {}", one_of(&ids)))
        .into())
}

/// Those of them that cover the class of the event.
fn covering<'a>(grants: &[&'a Grant], asked: &Asked<'_>) -> Checked<Vec<&'a Grant>> {
    let class = &asked.class;
    let rerun = asked.rerun.is_some();
    let covers = |grant: &&Grant| {
        grant.events.contains(&class.event) && (!rerun || grant.events.contains(&EventClass::Rerun))
    };
    let cover: Vec<&Grant> = grants.iter().copied().filter(covers).collect();
    if !cover.is_empty() {
        return Ok(cover);
    }
    let what = if rerun { format!("reruns of {}", class.name()) } else { class.name().to_owned() };
    let mut reason =
        Explanation::new("gate.event_not_granted", format!("no grant covers {what}")).with(&class.why);
    reason.evidence.extend(asked.rerun.clone());
    for grant in grants {
        let events = grant.events.iter().map(|event| class::spelling(*event));
        reason = reason.with(format!("grant `{}` covers {}", grant.id, listed(events)));
    }
    let ids: Vec<&str> = grants.iter().map(|grant| grant.id.as_str()).collect();
    let mut events = format!("\"{}\"", class::spelling(class.event));
    if rerun {
        events.push_str(" and \"rerun\"");
    }
    Err(reason.fix(format!("ask an operator to add {events} to `events` of {}", one_of(&ids))).into())
}

fn refused_people(asked: &Asked<'_>, verdicts: &[(&Grant, Verdict)], access: &Access) -> Box<Refused> {
    let class = &asked.class;
    let failures = || {
        verdicts.iter().filter_map(|(grant, verdict)| match verdict {
            Verdict::Fail(failure) => Some((*grant, failure)),
            Verdict::Pass(_) => None,
        })
    };
    // Where terms are all that is missing somewhere, that is the shortest way in.
    let terms = failures().find(|(_, failure)| failure.terms_only);
    let (code, message) = match terms {
        Some(_) => (
            "gate.terms_not_accepted",
            format!("the terms of service (version {}) must be accepted first", access.terms_version),
        ),
        None => (
            "gate.person_not_allowed",
            format!("no grant allows everybody who takes part in this {}", class.noun()),
        ),
    };
    let mut reason = Explanation::new(code, message).with(&class.why);
    for (grant, failure) in failures() {
        for line in &failure.lines {
            reason = reason.with(format!("grant `{}`: {line}", grant.id));
        }
    }
    let approvers: Vec<String> =
        failures().filter_map(|(grant, _)| approve::who(grant, asked.known, access)).collect();
    let approvable = !approvers.is_empty();
    let fix = match terms {
        Some((_, failure)) => format!("{}; {}", failure.fix, approve::how_to_accept(access)),
        None => {
            let ways: Vec<String> = failures()
                .map(|(grant, failure)| format!("for grant `{}`: {}", grant.id, failure.fix))
                .collect();
            let approve = if approvable {
                format!(
                    "; or commit {} is approved by {} (`forgeyard approve`, or the button of the check run)",
                    asked.head_sha,
                    approvers.join("; or by ")
                )
            } else {
                String::new()
            };
            format!("ask an operator to change one grant: {}{approve}", ways.join("; "))
        }
    };
    Box::new(Refused { reason: reason.fix(fix), approvable })
}

/// The least isolation where a grant writes none.
const fn default_isolation(fork: bool) -> Isolation {
    if fork { Isolation::Vm } else { Isolation::SharedKernel }
}

/// How a repository of this forge is written, where the forge must be said.
fn forge_key(access: &Access, forge: &ForgeName) -> String {
    if forge.as_str() == access.home() { String::new() } else { format!("forge = \"{forge}\", ") }
}

/// How a person of this forge is written.
fn number(access: &Access, forge: &ForgeName, id: u64) -> String {
    if forge.as_str() == access.home() { id.to_string() } else { format!("\"{forge}:{id}\"") }
}

fn listed<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| format!("`{}`", item.as_ref())).collect();
    if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }
}

fn one_of(ids: &[&str]) -> String {
    match ids {
        [one] => format!("grant `{one}`"),
        many => format!("one of the grants {}", listed(many)),
    }
}

#[cfg(test)]
mod tests;
