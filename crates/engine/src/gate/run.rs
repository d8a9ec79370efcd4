//! The gate for jobs of a forge that want a runner.
//!
//! A job's own payload does not say whose work it is, so the run is looked up first ([`RunFacts`]). Then the same
//! questions are asked as of every event, with these differences:
//!
//! - **subjects** are the sender of the webhook, the one who caused the event, the one who started this attempt of the
//!   run (another one after a re-run), who pushed the head and who opened the pull request, where there is one. One that
//!   must exist and is not known refuses;
//! - **class**: by the name of the event and, before everything, by where the head commit comes from: a commit of another
//!   repository is a fork's, whatever the event is called and whoever runs it again. An event that the farm has no class
//!   for refuses;
//! - **a re-run** needs a grant that covers both the class and `rerun`: that a maintainer may run things again does not
//!   say that foreign code may run.
//!
//! Where only the people do not pass, an approval of the head would do: the job is held, not refused.

use super::class::Class;
use super::{Approval, Asked, check, known, of_repository, opening};
use forgeyard_model::access::{Access, EventClass};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::demand::RunFacts;
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Explanation, Lane};

/// A run whose job wants a runner.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Where.
    pub repository: &'a Repository,
    /// What the forge says of it.
    pub facts: &'a RunFacts,
    /// Who sent the webhook, when one came.
    pub sender: Option<&'a Person>,
    /// Who started it, by the word of the runner that took its job.
    pub hook_actor: Option<&'a Person>,
}

/// What the gate says of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Admitted {
    /// It may use the resource.
    Allow {
        /// Rules that allowed it.
        by: Vec<String>,
        /// How far its event is trusted.
        lane: Lane,
        /// Least isolation that the work needs.
        isolation: Isolation,
        /// What was looked at, in order.
        evidence: Vec<String>,
    },
    /// It may, once somebody approves its head.
    Hold {
        /// What is missing.
        reason: Explanation,
    },
    /// It may not.
    Deny {
        /// Why.
        reason: Explanation,
    },
}

/// Decides about a run.
pub fn decide_run(
    run: &Run<'_>,
    repository: Option<&RepositoryConfig>,
    resource: &str,
    access: &Access,
    approval: Option<&Approval>,
) -> Admitted {
    let decided = known(run.repository, repository).and_then(|repository| {
        let class = class(run, repository)?;
        let rerun = (run.facts.run_attempt > 1)
            .then(|| format!("attempt {} of the run: it was run again", run.facts.run_attempt));
        let subjects = subjects(run, class.event, rerun.is_some())?;
        let asked = Asked {
            repository: run.repository,
            known: repository,
            head_sha: &run.facts.head_sha,
            class,
            rerun,
            subjects,
        };
        check(&asked, resource, access, approval)
    });
    super::admitted(decided)
}

/// A refusal that no fact of the run can change: then nobody needs to ask the forge for them.
pub fn foreseen(
    asked: &Repository,
    repository: Option<&RepositoryConfig>,
    resource: &str,
    access: &Access,
) -> Option<Explanation> {
    let looked = known(asked, repository)
        .and_then(|_| of_repository(asked, access))
        .and_then(|grants| opening(&grants, resource, asked));
    looked.err().map(|refused| refused.reason)
}

fn class(run: &Run<'_>, repository: &RepositoryConfig) -> Result<Class, Explanation> {
    let facts = run.facts;
    let own = facts.head_repository == Some(run.repository.id);
    let request = facts
        .pull_request
        .map_or_else(|| "the pull request".to_owned(), |number| format!("pull request {number}"));
    let of_request = facts.event.starts_with("pull_request");
    // Whatever the event is called: commits of another repository are a stranger's.
    if !own {
        let from = facts.head_repository.map_or_else(
            || "a repository that is gone".to_owned(),
            |id| format!("repository {id}, not from {}", run.repository.id),
        );
        let what = if of_request { request } else { format!("`{}`", facts.event) };
        return Ok(Class {
            event: EventClass::ForkPullRequest,
            lane: Lane::ForkPr,
            why: format!("the head of {what} comes from {from}: a fork"),
        });
    }
    let inside = |event, why: String| Class { event, lane: Lane::SameRepoPr, why };
    Ok(match facts.event.as_str() {
        "push" => match &facts.head_branch {
            Some(branch) => Class::push(&format!("refs/heads/{branch}"), repository),
            None => inside(
                EventClass::Push,
                "a push of a tag, or of a commit that is on no branch as far as is known".to_owned(),
            ),
        },
        "merge_group" => inside(EventClass::Push, "the merge queue tries a merge".to_owned()),
        _ if of_request => inside(
            EventClass::PullRequest,
            format!("{request} comes from a branch of the repository itself (`{}`)", facts.event),
        ),
        "schedule" => inside(EventClass::Schedule, "a timer of the repository".to_owned()),
        "workflow_dispatch" | "repository_dispatch" => {
            inside(EventClass::Dispatch, format!("asked for by hand (`{}`)", facts.event))
        }
        other => {
            let text = format!("the gate has no class for the event `{other}`, so it allows nothing");
            return Err(Explanation::new("gate.event_unknown", text)
                .fix("start the workflow from a push, a pull request, a schedule or a dispatch"));
        }
    })
}

/// Everybody who takes part, each once. One who must be known and is not refuses the run.
fn subjects<'a>(
    run: &Run<'a>,
    event: EventClass,
    rerun: bool,
) -> Result<Vec<(&'a Person, String)>, Explanation> {
    let facts = run.facts;
    let of_request = matches!(event, EventClass::PullRequest | EventClass::ForkPullRequest);
    let parts = [
        (run.sender, "sender", false),
        (facts.actor.as_ref(), "actor", true),
        (facts.triggering_actor.as_ref(), "starter of this attempt", rerun),
        (run.hook_actor, "actor by the word of the runner", false),
        (facts.pusher.as_ref(), "pusher of the head", false),
        (facts.author.as_ref(), "author of the pull request", of_request),
    ];
    let mut found: Vec<(&Person, String)> = Vec::new();
    for (person, part, needed) in parts {
        match person {
            Some(person) => match found.iter_mut().find(|(known, _)| known.id == person.id) {
                Some((_, parts)) => parts.push_str(&format!(" and {part}")),
                None => found.push((person, part.to_owned())),
            },
            None if needed => {
                let text = format!("the {part} is not known, and whoever is not known is not allowed");
                return Err(Explanation::new("gate.subject_unknown", text)
                    .fix("see that the farm's app may read pull requests and actions of the repository"));
            }
            None => {}
        }
    }
    Ok(found)
}
