//! Holes that operators of such gates have reported, and what they are to others; tests name them.

use super::*;

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
