//! Claims about the gate.

mod holes;
mod properties;

use super::*;
use forgeyard_model::Lane;
use forgeyard_model::access::{EventClass, GrantRepository};
use forgeyard_model::forge::{Repository, Trigger};
use forgeyard_model::who::{ForgeId, Ids};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const HEAD: &str = "00112233445566778899aabbccddeeff00112233";
const MAINTAINER: u64 = 1;
const STRANGER: u64 = 2;
const REPOSITORY: u64 = 100;

fn person(id: u64) -> Person {
    let login = match id {
        MAINTAINER => "maintainer".to_owned(),
        STRANGER => "stranger".to_owned(),
        other => format!("person-{other}"),
    };
    Person { id, login }
}

fn has(access: &Access, ids: &Ids, id: u64) -> bool {
    access.holds(ids, &"github".parse().unwrap(), id)
}

fn repository() -> RepositoryConfig {
    RepositoryConfig {
        forge: "github".parse().unwrap(),
        id: REPOSITORY,
        name: "widgets/widget".to_owned(),
        source: "/srv/widget.git".to_owned(),
        protected: vec!["main".to_owned()],
        channel: "gpu".parse().unwrap(),
        sites: Default::default(),
    }
}

fn event(trigger: Trigger, sender: u64, author: Option<u64>) -> ForgeEvent {
    ForgeEvent {
        repository: Repository {
            forge: "github".parse().unwrap(),
            id: REPOSITORY,
            name: "widgets/widget".to_owned(),
        },
        trigger,
        head_sha: HEAD.to_owned(),
        sender: person(sender),
        author: author.map(person),
    }
}

fn push(branch: &str) -> Trigger {
    Trigger::Push { git_ref: format!("refs/heads/{branch}") }
}

fn pull_request(head_repository: u64) -> Trigger {
    Trigger::PullRequest {
        number: 7,
        base: "main".to_owned(),
        base_sha: HEAD.to_owned(),
        head_repository,
        fork: head_repository != REPOSITORY,
    }
}

fn all_events() -> BTreeSet<EventClass> {
    BTreeSet::from([
        EventClass::Push,
        EventClass::PullRequest,
        EventClass::ForkPullRequest,
        EventClass::Schedule,
        EventClass::Dispatch,
        EventClass::Rerun,
    ])
}

/// A grant for the maintainer, for everything.
fn grant() -> Grant {
    Grant {
        id: "g".to_owned(),
        repository: GrantRepository { forge: None, id: Some(REPOSITORY), name: "widgets/widget".to_owned() },
        resources: BTreeSet::from(["gpu".to_owned()]),
        events: all_events(),
        users: forgeyard_model::who::Ids::from([MAINTAINER]),
        lists: BTreeSet::new(),
        teams: BTreeSet::new(),
        roles: BTreeSet::new(),
        isolation: None,
        approvers: None,
    }
}

fn access(grants: impl IntoIterator<Item = Grant>) -> Access {
    Access { grants: grants.into_iter().collect(), ..Access::default() }
}

fn names(items: &[&str]) -> BTreeSet<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

fn run(event: &ForgeEvent, access: &Access) -> Decision {
    decide(event, Some(&repository()), "gpu", access, None)
}

fn approval() -> Approval {
    Approval {
        repository: REPOSITORY,
        head_sha: HEAD.to_owned(),
        by: person(MAINTAINER),
        forge: None,
        role: None,
    }
}

fn denied(decision: Decision) -> Explanation {
    match decision {
        Decision::Deny { reason } => reason,
        Decision::Allow { .. } => panic!("expected a refusal, found {decision:?}"),
    }
}

fn allowed(decision: Decision) -> (Vec<String>, Lane, Isolation) {
    match decision {
        Decision::Allow { by, lane, isolation, .. } => (by, lane, isolation),
        Decision::Deny { reason } => panic!("expected to be allowed, found {reason}"),
    }
}

/// What is decided, without the words.
fn outcome(decision: &Decision) -> String {
    match decision {
        Decision::Allow { by, lane, isolation, .. } => format!("{by:?} {} {isolation:?}", lane.as_str()),
        Decision::Deny { reason } => reason.code.clone(),
    }
}

#[test]
fn unknown_repository_is_refused() {
    let event = event(push("main"), MAINTAINER, None);
    let reason = denied(decide(&event, None, "gpu", &access([grant()]), None));
    assert_eq!(reason.code, "gate.repository_unknown");
    let other = RepositoryConfig { id: 5, ..repository() };
    let reason = denied(decide(&event, Some(&other), "gpu", &access([grant()]), None));
    assert_eq!(reason.code, "gate.repository_unknown");
}

#[test]
fn push_to_a_protected_branch_is_promotable_and_to_another_is_not() {
    let access = access([grant()]);
    let (_, lane, isolation) = allowed(run(&event(push("main"), MAINTAINER, None), &access));
    assert_eq!((lane, isolation), (Lane::Protected, Isolation::SharedKernel));
    let decision = run(&event(push("topic"), MAINTAINER, None), &access);
    let Decision::Allow { lane, evidence, .. } = decision else { panic!("{decision:?}") };
    assert!(!lane.promotable());
    assert!(
        evidence.iter().any(|line| line.contains("`refs/heads/topic` is not a protected branch")),
        "{evidence:?}"
    );
}

#[test]
fn ref_that_only_ends_like_a_protected_branch_is_not_protected() {
    for git_ref in
        ["refs/tags/main", "main", "refs/heads/x/main", "refs/heads/refs/heads/main", "refs/heads/Main"]
    {
        let event = event(Trigger::Push { git_ref: git_ref.to_owned() }, MAINTAINER, None);
        assert!(!allowed(run(&event, &access([grant()]))).1.promotable(), "{git_ref}");
    }
}

#[test]
fn request_by_hand_is_never_promotable() {
    assert!(!allowed(run(&event(Trigger::Manual, MAINTAINER, None), &access([grant()]))).1.promotable());
}

#[test]
fn fork_needs_a_virtual_machine_unless_the_grant_writes_otherwise() {
    let event = event(pull_request(200), MAINTAINER, Some(MAINTAINER));
    assert_eq!(allowed(run(&event, &access([grant()]))).2, Isolation::Vm);
    let written = Grant { isolation: Some(Isolation::SharedKernel), ..grant() };
    assert_eq!(allowed(run(&event, &access([written]))).2, Isolation::SharedKernel);
}

#[test]
fn pull_request_whose_flag_and_ids_differ_is_a_fork() {
    for (head_repository, fork) in [(200, false), (REPOSITORY, true)] {
        let trigger = Trigger::PullRequest {
            number: 7,
            base: "main".to_owned(),
            base_sha: HEAD.to_owned(),
            head_repository,
            fork,
        };
        let (_, lane, isolation) =
            allowed(run(&event(trigger, MAINTAINER, Some(MAINTAINER)), &access([grant()])));
        assert_eq!((lane, isolation), (Lane::ForkPr, Isolation::Vm));
    }
}

#[test]
fn approval_counts_for_exactly_this_commit_by_somebody_who_passes() {
    let foreign = event(pull_request(200), STRANGER, Some(STRANGER));
    let with = |approval: &Approval, grant: Grant| {
        outcome(&decide(&foreign, Some(&repository()), "gpu", &access([grant]), Some(approval)))
    };
    assert_eq!(with(&approval(), grant()), "[\"g\"] fork_pr Vm");
    let refused = "gate.person_not_allowed";
    assert_eq!(with(&Approval { head_sha: HEAD.replace('0', "1"), ..approval() }, grant()), refused);
    assert_eq!(with(&Approval { repository: 5, ..approval() }, grant()), refused);
    assert_eq!(with(&Approval { by: person(STRANGER), forge: None, ..approval() }, grant()), refused);
    let mut without_forks = grant();
    without_forks.events.remove(&EventClass::ForkPullRequest);
    assert_eq!(with(&approval(), without_forks), "gate.event_not_granted");
}

#[test]
fn nobody_approves_where_the_grant_is_open_to_everybody() {
    let mut access = access([Grant { users: forgeyard_model::who::Ids::default(), ..grant() }]);
    access.terms_version = 1;
    access.terms_accepted.insert(MAINTAINER.into(), 1);
    let foreign = event(pull_request(200), STRANGER, Some(STRANGER));
    let decision = decide(&foreign, Some(&repository()), "gpu", &access, Some(&approval()));
    assert_eq!(denied(decision).code, "gate.terms_not_accepted");
}

#[test]
fn every_combination_of_event_people_approval_and_isolation() {
    let mut table = String::new();
    let triggers = [
        ("push to main", push("main"), None),
        ("push to topic", push("topic"), None),
        ("pull request, same", pull_request(REPOSITORY), Some(())),
        ("pull request, fork", pull_request(200), Some(())),
        ("by hand", Trigger::Manual, None),
    ];
    for (name, trigger, has_author) in &triggers {
        for sender in [MAINTAINER, STRANGER] {
            let authors =
                if has_author.is_some() { vec![Some(MAINTAINER), Some(STRANGER)] } else { vec![None] };
            for author in authors {
                for approved in [false, true] {
                    for (covered, isolation) in [
                        (true, None),
                        (true, Some(Isolation::SharedKernel)),
                        (true, Some(Isolation::Vm)),
                        (false, None),
                    ] {
                        let events = if covered { all_events() } else { BTreeSet::from([EventClass::Rerun]) };
                        let access = access([Grant { isolation, events, ..grant() }]);
                        let approval = approved.then(approval);
                        let event = event(trigger.clone(), sender, author);
                        let decision = decide(&event, Some(&repository()), "gpu", &access, approval.as_ref());
                        let who = |id: Option<u64>| id.map_or("-".to_owned(), |id| person(id).login);
                        writeln!(
                            table,
                            "{name:<19} sender: {:<11} author: {:<11} approved: {approved:<6} covered: {covered:<6} \
                             isolation: {:<13} {}",
                            who(Some(sender)),
                            who(author),
                            isolation.map_or("-".to_owned(), |isolation| format!("{isolation:?}")),
                            outcome(&decision)
                        )
                        .unwrap();
                    }
                }
            }
        }
    }
    insta::assert_snapshot!("event_people_approval_isolation", table);
}
