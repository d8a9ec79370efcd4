//! What holds for any event, rules and approval.

use super::*;

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
