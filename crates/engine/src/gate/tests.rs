//! Claims about the gate. Holes are those that operators of such gates have reported; tests name them.

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

/// Hole 1: matching by login let somebody take over a freed login (admin-requests#1781).
#[test]
fn hole_01_freed_login_taken_by_somebody_else_is_refused_admin_requests_1781() {
    let mut access = access([grant()]);
    access.logins.insert(MAINTAINER.into(), "maintainer".to_owned());
    let mut event = event(push("main"), STRANGER, None);
    event.sender.login = "Maintainer".to_owned();
    let reason = denied(run(&event, &access));
    assert_eq!(reason.code, "gate.person_not_allowed");
    assert!(reason.to_string().contains("same login is on record for id 1"), "{reason}");
}

/// Hole 1, the other way: a renamed account keeps its rights.
#[test]
fn hole_01_renamed_maintainer_is_still_allowed() {
    let mut event = event(push("main"), MAINTAINER, None);
    event.sender.login = "a-new-name".to_owned();
    event.repository.name = "moved/elsewhere".to_owned();
    allowed(run(&event, &access([grant()])));
}

/// Hole 1 for repositories: a grant by name alone never allows, and says what to write.
#[test]
fn hole_01_grant_without_a_repository_id_never_allows() {
    let unnumbered = Grant {
        repository: GrantRepository { forge: None, id: None, name: "widgets/widget".to_owned() },
        ..grant()
    };
    let reason = denied(run(&event(push("main"), MAINTAINER, None), &access([unnumbered])));
    assert_eq!(reason.code, "gate.no_grant");
    assert_eq!(reason.fix.unwrap(), "write `id = 100` into the repository of grant `g`");
}

/// Holes 4 and 5: "not authorized" without naming rule, person or fix kept users waiting for days.
#[test]
fn hole_04_refusal_names_rule_person_and_fix() {
    let reason = denied(run(&event(pull_request(200), STRANGER, Some(STRANGER)), &access([grant()])));
    insta::assert_snapshot!("refusal_names_rule_person_and_fix", reason.to_string());
}

/// Hole 6: only the first policy of a repository was looked at.
#[test]
fn hole_06_every_grant_of_a_repository_is_tried() {
    let other =
        Grant { id: "other".to_owned(), users: forgeyard_model::who::Ids::from([STRANGER]), ..grant() };
    let (by, ..) = allowed(run(&event(push("main"), STRANGER, None), &access([grant(), other.clone()])));
    assert_eq!(by, ["other"]);
    // Each by itself: two people who pass two different grants do not pass together.
    let both = event(pull_request(REPOSITORY), MAINTAINER, Some(STRANGER));
    assert_eq!(denied(run(&both, &access([grant(), other]))).code, "gate.person_not_allowed");
}

/// Hole 7: policies that do not resolve. A list or team that does not exist has no members.
#[test]
fn hole_07_list_that_does_not_exist_allows_nobody() {
    let lost = Grant { users: forgeyard_model::who::Ids::default(), lists: names(&["lost"]), ..grant() };
    let reason = denied(run(&event(push("main"), MAINTAINER, None), &access([lost])));
    assert!(reason.to_string().contains("the list `lost`, which does not exist"), "{reason}");
}

/// A farm with GitHub and a Forgejo: their numbers have nothing to do with each other, wherever they stand.
#[test]
fn id_7_of_a_forgejo_is_never_id_7_of_github() {
    let lab: ForgeName = "lab".parse().unwrap();
    let here = |forge: &ForgeName| RepositoryConfig { forge: forge.clone(), ..repository() };
    let asked = |forge: &ForgeName| {
        let mut event = event(push("main"), 7, None);
        event.repository.forge = forge.clone();
        event
    };
    let github: ForgeName = "github".parse().unwrap();
    let seven = ForgeId::at(&github, 7);
    type Write = fn(&mut Access, ForgeId);
    let places: [(&str, Write); 6] = [
        ("users", |access, who| access.grants[0].users = [who].into()),
        ("list", |access, who| {
            access.grants[0].lists = names(&["l"]);
            access.lists.insert("l".to_owned(), [who].into());
        }),
        ("team", |access, who| {
            access.grants[0].teams = names(&["t"]);
            access.teams.insert("t".to_owned(), [who].into());
        }),
        ("roles", |access, who| {
            access.grants[0].roles = names(&["write"]);
            access.roles = [(
                ForgeId::at(&"lab".parse().unwrap(), REPOSITORY),
                [(who.clone(), "write".to_owned())].into(),
            )]
            .into();
            let here = access.roles.values().next().unwrap().clone();
            access.roles.insert(REPOSITORY.into(), here);
        }),
        ("terms", |access, who| {
            (access.terms_version, access.grants[0].users) =
                (1, [7.into(), ForgeId::at(&"lab".parse().unwrap(), 7)].into());
            access.terms_accepted.insert(who, 1);
        }),
        ("repository", |access, who| {
            (access.grants[0].repository.forge, access.grants[0].repository.id) =
                (who.forge, Some(REPOSITORY));
        }),
    ];
    for (place, write) in places {
        for who in [seven.clone(), 7.into(), ForgeId::at(&lab, 7)] {
            let mut access = access([Grant { users: Ids::default(), ..grant() }]);
            write(&mut access, who.clone());
            if place != "repository" {
                // Both repositories are opened, so that people alone decide.
                let mut other = access.grants[0].clone();
                (other.id, other.repository.forge) = ("lab".to_owned(), Some(lab.clone()));
                access.grants.push(other);
            }
            for forge in [&github, &lab] {
                let decision = decide(&asked(forge), Some(&here(forge)), "gpu", &access, None);
                let same = who.is("github", forge.as_str(), 7);
                assert_eq!(
                    matches!(decision, Decision::Allow { .. }),
                    same,
                    "{place} {who} {forge}: {decision:?}"
                );
            }
        }
    }
    // The same for whoever approves, and for roles in the farm.
    let mut rules = access([grant()]);
    rules.grants[0].approvers =
        Some(forgeyard_model::access::Approvers { users: [7].into(), ..Default::default() });
    let of = |forge: &ForgeName| Approval { by: person(7), forge: Some(forge.clone()), ..approval() };
    let event = event(push("main"), STRANGER, None);
    let said = |forge| decide(&event, Some(&repository()), "gpu", &rules, Some(&of(forge)));
    assert!(matches!(said(&github), Decision::Allow { .. }));
    assert!(matches!(said(&lab), Decision::Deny { .. }), "{:?}", said(&lab));
    let config: Access =
        serde_json::from_str(r#"{"members":[{"id":"m","role":"admin","users":[7],"whole-farm":true}]}"#)
            .unwrap();
    let role = |forge| standing::in_repository(&config, &repository(), forge, 7, &BTreeMap::new());
    assert!(role(&github).is_some() && role(&lab).is_none());
}

/// Hole 8: people and roles, which was documented nowhere. People are united, roles are needed as well.
#[test]
fn hole_08_people_are_united_and_roles_are_needed_as_well() {
    let mut table = String::new();
    type Case<'a> = (&'a str, fn(&mut Grant));
    let people: [Case<'_>; 7] = [
        ("nobody written", |grant| grant.users.clear()),
        ("users", |_| {}),
        ("list", |grant| (grant.users, grant.lists) = (Ids::default(), names(&["in"]))),
        ("team", |grant| (grant.users, grant.teams) = (Ids::default(), names(&["in"]))),
        ("other users, list", |grant| (grant.users, grant.lists) = (Ids::from([9]), names(&["in"]))),
        ("other users, other list, team", |grant| {
            (grant.users, grant.lists, grant.teams) = (Ids::from([9]), names(&["out"]), names(&["in"]));
        }),
        ("only others", |grant| (grant.users, grant.lists) = (Ids::from([9]), names(&["out"]))),
    ];
    let asked: [&[&str]; 4] = [&[], &["admin"], &["admin", "write"], &["triage"]];
    for (name, change) in people {
        for roles in asked {
            for role in [None, Some("write"), Some("admin")] {
                for (terms, accepted) in [(0, 0), (2, 1), (2, 2)] {
                    let mut grant = grant();
                    change(&mut grant);
                    grant.roles = names(roles);
                    let mut access = access([grant]);
                    access.lists = BTreeMap::from([
                        ("in".to_owned(), Ids::from([MAINTAINER])),
                        ("out".to_owned(), Ids::from([9])),
                    ]);
                    access.teams = BTreeMap::from([("in".to_owned(), Ids::from([MAINTAINER]))]);
                    if let Some(role) = role {
                        access
                            .roles
                            .entry(REPOSITORY.into())
                            .or_default()
                            .insert(MAINTAINER.into(), role.to_owned());
                    }
                    access.roles.entry(999.into()).or_default().insert(MAINTAINER.into(), "admin".to_owned());
                    access.terms_version = terms;
                    access.terms_accepted.insert(MAINTAINER.into(), accepted);
                    let decision = run(&event(push("main"), MAINTAINER, None), &access);
                    let line = format!(
                        "people: {name:<30} roles asked: {:<14} has: {:<6} terms: {accepted}/{terms}  {}",
                        roles.join(","),
                        role.unwrap_or("-"),
                        outcome(&decision)
                    );
                    writeln!(table, "{line}").unwrap();
                }
            }
        }
    }
    insta::assert_snapshot!("people_roles_terms", table);
}

/// Hole 9: some resources could not be opened with a plain list of users (admin-requests#1819, #1237).
#[test]
fn hole_09_any_resource_can_be_opened_with_plain_users() {
    let windows = Grant { resources: names(&["windows"]), ..grant() };
    let event = event(push("main"), MAINTAINER, None);
    allowed(decide(&event, Some(&repository()), "windows", &access([windows.clone()]), None));
    let reason = denied(run(&event, &access([windows])));
    assert_eq!(reason.code, "gate.resource_not_granted");
    assert!(reason.fix.unwrap().contains("add \"gpu\" to `resources` of grant `g`"));
}

/// Hole 10: a maintainer who touched a foreign pull request let its code run.
#[test]
fn hole_10_maintainer_as_sender_does_not_vouch_for_a_foreign_author() {
    let reason = denied(run(&event(pull_request(200), MAINTAINER, Some(STRANGER)), &access([grant()])));
    assert_eq!(reason.code, "gate.person_not_allowed");
    let reason = denied(run(&event(pull_request(200), STRANGER, Some(MAINTAINER)), &access([grant()])));
    assert_eq!(reason.code, "gate.person_not_allowed");
}

/// Hole 10: allowing pull requests said nothing about forks.
#[test]
fn hole_10_grant_for_pull_requests_does_not_cover_forks() {
    let mut grant = grant();
    grant.events.remove(&EventClass::ForkPullRequest);
    let reason = denied(run(&event(pull_request(200), MAINTAINER, Some(MAINTAINER)), &access([grant])));
    assert_eq!(reason.code, "gate.event_not_granted");
    assert!(reason.fix.unwrap().contains("\"fork-pull-request\""));
}

/// Hole 13: accepted terms bound people to later versions.
#[test]
fn hole_13_older_terms_do_not_count_for_newer_ones() {
    let mut access = access([grant()]);
    access.terms_version = 2;
    access.terms_accepted.insert(MAINTAINER.into(), 1);
    let reason = denied(run(&event(push("main"), MAINTAINER, None), &access));
    assert_eq!(reason.code, "gate.terms_not_accepted");
    assert_eq!(
        reason.fix.unwrap(),
        "maintainer (id 1) accepts version 2 of the terms of service; sign in to the console and accept them under Terms, \
         or run `forgeyard terms accept --version 2`"
    );
    access.terms_accepted.insert(MAINTAINER.into(), 2);
    allowed(run(&event(push("main"), MAINTAINER, None), &access));
}

/// Hole 15, the part that is the gate's: without the grant the next decision refuses.
#[test]
fn hole_15_removed_grant_refuses_the_next_event() {
    assert_eq!(denied(run(&event(push("main"), MAINTAINER, None), &access([]))).code, "gate.no_grant");
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

fn some_trigger() -> impl Strategy<Value = Trigger> {
    prop_oneof![
        "(refs/heads/)?(main|topic)".prop_map(|git_ref| Trigger::Push { git_ref }),
        (99u64..102, any::<bool>()).prop_map(|(head_repository, fork)| Trigger::PullRequest {
            number: 7,
            base: "main".to_owned(),
            base_sha: HEAD.to_owned(),
            head_repository,
            fork,
        }),
        Just(Trigger::Manual),
    ]
}

fn some_event() -> impl Strategy<Value = ForgeEvent> {
    (some_trigger(), 1u64..4, prop::option::of(1u64..4))
        .prop_map(|(trigger, sender, author)| event(trigger, sender, author))
}

/// A person, written in every way that files allow.
fn some_id() -> impl Strategy<Value = ForgeId> {
    let forge = prop::sample::select(vec![None, Some("github"), Some("lab")]);
    (forge, 1u64..4).prop_map(|(forge, id)| ForgeId { forge: forge.map(|name| name.parse().unwrap()), id })
}

fn some_people() -> impl Strategy<Value = Ids> {
    prop::collection::vec(some_id(), 0..3).prop_map(Ids::from_iter)
}

fn some_grant() -> impl Strategy<Value = Grant> {
    let few =
        || prop::collection::btree_set(prop::sample::select(vec!["x".to_owned(), "y".to_owned()]), 0..2);
    let event = prop::sample::select(all_events().into_iter().collect::<Vec<_>>());
    let repository = prop_oneof![4 => Just(Some(REPOSITORY)), 1 => Just(Some(5)), 1 => Just(None)];
    let isolation = prop::option::of(prop::sample::select(vec![Isolation::Vm, Isolation::SharedKernel]));
    let users = some_people();
    let resources =
        prop::collection::btree_set(prop::sample::select(vec!["gpu".to_owned(), "cpu".to_owned()]), 0..3);
    let events = prop::collection::btree_set(event, 0..6);
    (repository, resources, events, users, (few(), few(), few()), isolation).prop_map(
        |(id, resources, events, users, (lists, teams, roles), isolation)| Grant {
            repository: GrantRepository { forge: None, id, name: "widgets/widget".to_owned() },
            resources,
            events,
            users,
            lists,
            teams,
            roles,
            isolation,
            ..grant()
        },
    )
}

fn some_access() -> impl Strategy<Value = Access> {
    let people = some_people;
    let roles = prop::collection::btree_map(
        some_id(),
        prop::sample::select(vec!["x".to_owned(), "z".to_owned()]),
        0..3,
    );
    let terms = prop::collection::btree_map(some_id(), 0u32..3, 0..3);
    (prop::collection::vec(some_grant(), 0..5), people(), people(), roles, 0u32..2, terms).prop_map(
        |(mut grants, list, team, roles, terms_version, terms_accepted)| {
            grants.iter_mut().enumerate().for_each(|(place, grant)| grant.id = format!("g{place}"));
            Access {
                grants,
                lists: BTreeMap::from([("x".to_owned(), list)]),
                teams: BTreeMap::from([("y".to_owned(), team)]),
                roles: BTreeMap::from([(REPOSITORY.into(), roles)]),
                terms_version,
                terms_accepted,
                ..Access::default()
            }
        },
    )
}

fn some_approval() -> impl Strategy<Value = Option<Approval>> {
    prop::option::of((1u64..4, 99u64..102, any::<bool>()).prop_map(|(by, repository, same)| Approval {
        repository,
        head_sha: if same { HEAD.to_owned() } else { HEAD.replace('0', "1") },
        by: person(by),
        forge: None,
        role: None,
    }))
}

proptest! {
    #[test]
    fn empty_access_denies_everything(event in some_event(), approval in some_approval(), resource in ".{0,8}") {
        let decision = decide(&event, Some(&repository()), &resource, &Access::default(), approval.as_ref());
        let refused = matches!(decision, Decision::Deny { .. });
        prop_assert!(refused);
    }

    #[test]
    fn one_more_grant_never_takes_anything_away(
        event in some_event(), access in some_access(), approval in some_approval(), more in some_grant(), place: prop::sample::Index,
    ) {
        let before = decide(&event, Some(&repository()), "gpu", &access, approval.as_ref());
        let mut wider = access;
        let place = place.index(wider.grants.len() + 1);
        wider.grants.insert(place, Grant { id: "more".to_owned(), ..more });
        let after = decide(&event, Some(&repository()), "gpu", &wider, approval.as_ref());
        if let Decision::Allow { by, lane, isolation, .. } = before {
            let (by_after, lane_after, isolation_after) = allowed(after);
            prop_assert!(by.iter().all(|rule| by_after.contains(rule)));
            prop_assert_eq!(lane, lane_after);
            prop_assert!(isolation_after <= isolation);
        }
    }

    #[test]
    fn names_and_logins_never_matter(event in some_event(), access in some_access(), approval in some_approval(), text in ".{0,8}") {
        let before = outcome(&decide(&event, Some(&repository()), "gpu", &access, approval.as_ref()));
        let (mut event, mut access, mut approval) = (event, access, approval);
        event.sender.login = text.clone();
        event.repository.name = text.clone();
        if let Some(author) = &mut event.author {
            author.login = text.clone();
        }
        if let Some(approval) = &mut approval {
            approval.by.login = text.clone();
        }
        access.logins.insert(1.into(), text.clone());
        access.grants.iter_mut().for_each(|grant| grant.repository.name = text.clone());
        let renamed = RepositoryConfig { name: text, ..repository() };
        prop_assert_eq!(outcome(&decide(&event, Some(&renamed), "gpu", &access, approval.as_ref())), before);
    }

    #[test]
    fn allow_is_never_given_without_a_numbered_grant_for_resource_event_and_people(
        event in some_event(), access in some_access(),
    ) {
        if let Decision::Allow { by, .. } = run(&event, &access) {
            for rule in by {
                let grant = access.grants.iter().find(|grant| grant.id == rule).unwrap();
                prop_assert_eq!(grant.repository.id, Some(REPOSITORY));
                prop_assert!(grant.resources.contains("gpu"));
                for id in std::iter::once(event.sender.id).chain(event.author.iter().map(|author| author.id)) {
                    let closed = people::names_somebody(grant) && !grant.users.is_empty();
                    let listed = grant.lists.contains("x") && has(&access, &access.lists["x"], id);
                    let teamed = grant.teams.contains("y") && has(&access, &access.teams["y"], id);
                    prop_assert!(!closed || has(&access, &grant.users, id) || listed || teamed);
                }
            }
        }
    }

    #[test]
    fn every_refusal_says_what_to_do(event in some_event(), access in some_access(), approval in some_approval()) {
        if let Decision::Deny { reason } = decide(&event, Some(&repository()), "gpu", &access, approval.as_ref()) {
            prop_assert!(reason.fix.is_some_and(|fix| !fix.is_empty()) && !reason.evidence.is_empty());
        }
    }

    #[test]
    fn fork_is_kept_in_a_virtual_machine_unless_a_grant_that_allows_writes_otherwise(event in some_event(), access in some_access()) {
        if let Decision::Allow { by, lane: Lane::ForkPr, isolation: Isolation::SharedKernel, .. } = run(&event, &access) {
            let lifted = |grant: &Grant| by.contains(&grant.id) && grant.isolation == Some(Isolation::SharedKernel);
            prop_assert!(access.grants.iter().any(lifted));
        }
    }
}
