//! What a job may do in the build cache: which scope it writes, and from where it reads upwards. Pure.
//!
//! ```text
//! push, timer, by hand, on a protected branch of the repository   writes main
//! pull request, of the repository or of a fork                    writes its own scope, reads main
//! anything else                                                   reads main
//! ```
//!
//! Invariants, held by a property test: main is written only by work whose head is of the repository itself, on a protected
//! branch; what a pull request writes is below the family of pull requests and has its number. The rules are those for tokens
//! by exchange (`docs/cache-github.md`), so a job gets the same wherever its token comes from.
//!
//! A runner of a forge may take another job than the one that it was made for. What it gets is therefore decided from what the
//! second gate read ([`of_run`]), and not before that gate has let the job pass.

use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::demand::RunFacts;
use forgeyard_model::forge::{ForgeEvent, Trigger};
use forgeyard_model::{ForgeName, Lane};
use serde::{Deserialize, Serialize};

/// Where the entries of a repository are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scopes {
    /// The forge.
    pub forge: ForgeName,
    /// Numeric id of the repository.
    pub id: u64,
    /// Scope of its protected branches.
    pub main: String,
    /// Family of scopes of its pull requests.
    pub pulls: String,
}

impl Scopes {
    /// Those of a repository for which nothing is declared. By numbers, which are never given to somebody else.
    pub fn usual(forge: &ForgeName, id: u64) -> Self {
        let below = |word: &str| format!("{forge}/{id}/{word}");
        Self { forge: forge.clone(), id, main: below("main"), pulls: below("pr") }
    }

    /// The scope of a pull request.
    pub fn pull(&self, number: u64) -> String {
        format!("{}/{number}", self.pulls)
    }

    fn read(&self, reason: &'static str) -> Given {
        Given { scope: self.main.clone(), writes: false, reason }
    }

    fn write(&self, scope: String, reason: &'static str) -> Given {
        Given { scope, writes: true, reason }
    }
}

/// What a job gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The scope from which it reads upwards.
    pub scope: String,
    /// Whether it writes there as well.
    pub writes: bool,
    /// Why, and why not more.
    pub reason: &'static str,
}

const PROTECTED: &str = "a protected branch writes main";
const PULL: &str = "a pull request writes its own scope and reads main";
const UNPROTECTED: &str = "only protected branches write main";

/// What a job of a pipeline gets; nothing when it is of no repository.
pub fn of_event(event: &ForgeEvent, lane: Lane, scopes: &Scopes) -> Option<Given> {
    if event.repository.forge != scopes.forge || event.repository.id != scopes.id {
        return None;
    }
    match &event.trigger {
        Trigger::Push { .. } if lane == Lane::Protected => Some(scopes.write(scopes.main.clone(), PROTECTED)),
        Trigger::Push { .. } => Some(scopes.read(UNPROTECTED)),
        Trigger::PullRequest { number, .. } => Some(scopes.write(scopes.pull(*number), PULL)),
        Trigger::Manual => None,
    }
}

/// What a job of a forge gets, by what the forge says of its run.
pub fn of_run(facts: &RunFacts, repository: &RepositoryConfig, scopes: &Scopes) -> Given {
    let own = facts.head_repository == Some(repository.id);
    let request = matches!(facts.event.as_str(), "pull_request");
    match (own, facts.pull_request) {
        // Whatever the event is called: commits of another repository are a stranger's.
        (false, Some(number)) => return scopes.write(scopes.pull(number), PULL),
        (false, None) => return scopes.read("it comes from a fork, and its pull request is not known"),
        (true, Some(number)) if request => return scopes.write(scopes.pull(number), PULL),
        (true, None) if request => return scopes.read("the number of its pull request is not known"),
        (true, _) => {}
    }
    // Only one that the forge vouched for may be called like a protected branch, see `RunFacts::head_branch`.
    let branch = facts.head_branch.as_ref().filter(|branch| repository.protected.contains(branch));
    match facts.event.as_str() {
        "push" | "schedule" | "workflow_dispatch" if branch.is_some() => {
            scopes.write(scopes.main.clone(), PROTECTED)
        }
        "push" | "schedule" | "workflow_dispatch" | "merge_group" => scopes.read(UNPROTECTED),
        _ => {
            scopes.read("this event may run on what somebody else wrote, with the rights of the base branch")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scopes() -> Scopes {
        Scopes::usual(&"github".parse().unwrap(), 42)
    }

    fn repository() -> RepositoryConfig {
        RepositoryConfig {
            forge: "github".parse().unwrap(),
            id: 42,
            name: "octo/demo".to_owned(),
            source: "/x".to_owned(),
            protected: vec!["main".to_owned(), "release".to_owned()],
            channel: "main".parse().unwrap(),
            sites: Default::default(),
        }
    }

    fn facts(event: &str, head: Option<u64>, branch: &str, number: Option<u64>) -> RunFacts {
        RunFacts {
            event: event.to_owned(),
            actor: None,
            triggering_actor: None,
            head_repository: head,
            head_sha: "0".repeat(40),
            head_branch: Some(branch.to_owned()),
            pull_request: number,
            author: None,
            pusher: None,
            run_attempt: 1,
        }
    }

    fn given(event: &str, head: Option<u64>, branch: &str, number: Option<u64>) -> (String, bool) {
        let given = of_run(&facts(event, head, branch, number), &repository(), &scopes());
        (given.scope, given.writes)
    }

    fn main(writes: bool) -> (String, bool) {
        ("github/42/main".to_owned(), writes)
    }

    #[test]
    fn trusted_events_on_a_protected_branch_write_main_and_no_others() {
        for event in ["push", "schedule", "workflow_dispatch"] {
            assert_eq!(given(event, Some(42), "main", None), main(true), "{event}");
            assert_eq!(given(event, Some(42), "feature", None), main(false), "{event}");
        }
        for event in
            ["pull_request_target", "issue_comment", "workflow_run", "repository_dispatch", "merge_group", ""]
        {
            assert_eq!(given(event, Some(42), "main", Some(7)), main(false), "{event}");
        }
    }

    #[test]
    fn pull_request_writes_its_own_scope_whether_of_a_fork_or_not() {
        let own = ("github/42/pr/7".to_owned(), true);
        assert_eq!(given("pull_request", Some(42), "feature", Some(7)), own);
        assert_eq!(given("pull_request", Some(9), "main", Some(7)), own, "the fork's branch is called main");
        assert_eq!(given("pull_request", None, "main", Some(7)), own, "the fork is gone");
        assert_eq!(given("push", Some(9), "main", None), main(false), "a fork's push");
    }

    #[test]
    fn pipelines_go_by_their_lane_and_trigger() {
        let repository = forgeyard_model::forge::Repository {
            forge: "github".parse().unwrap(),
            id: 42,
            name: "octo/demo".to_owned(),
        };
        let sender = forgeyard_model::forge::Person { id: 1, login: "one".to_owned() };
        let event = |trigger| ForgeEvent {
            repository: repository.clone(),
            trigger,
            head_sha: String::new(),
            sender: sender.clone(),
            author: None,
        };
        let push = event(Trigger::Push { git_ref: "refs/heads/main".to_owned() });
        let pull = event(Trigger::PullRequest {
            number: 7,
            base: "main".to_owned(),
            base_sha: String::new(),
            head_repository: 9,
            fork: true,
        });
        let of = |event: &ForgeEvent, lane| {
            of_event(event, lane, &scopes()).map(|given| (given.scope, given.writes))
        };
        assert_eq!(of(&push, Lane::Protected), Some(main(true)));
        assert_eq!(of(&push, Lane::SameRepoPr), Some(main(false)));
        assert_eq!(of(&pull, Lane::ForkPr), Some(("github/42/pr/7".to_owned(), true)));
        assert_eq!(of(&event(Trigger::Manual), Lane::SameRepoPr), None);
        let other = Scopes::usual(&"github".parse().unwrap(), 43);
        assert_eq!(of_event(&push, Lane::Protected, &other), None, "scopes of another repository");
    }

    proptest! {
        #[test]
        fn whatever_a_run_says_main_is_written_by_protected_branches_of_the_repository_only(
            event in "(push|schedule|workflow_dispatch|pull_request|pull_request_target|[a-z_]{0,9})",
            head in prop::option::of(prop_oneof![Just(42u64), any::<u64>()]),
            branch in "(main|release|\\PC{0,12})",
            number in prop::option::of(any::<u64>()),
        ) {
            let (scope, writes) = given(&event, head, &branch, number);
            if scope == "github/42/main" && writes {
                prop_assert!(head == Some(42) && (branch == "main" || branch == "release") && !event.starts_with("pull_request"));
            } else if writes {
                prop_assert_eq!(scope, format!("github/42/pr/{}", number.unwrap()));
            } else {
                prop_assert_eq!(scope, "github/42/main");
            }
        }
    }
}
