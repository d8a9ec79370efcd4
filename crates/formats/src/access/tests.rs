//! Claims about access files. Own fixtures are small; the corpus, where it is given, is real.

use super::*;
use forgeyard_model::access::{Approvers, EventClass, Grant, GrantRepository, Member};
use forgeyard_model::principal::Role;
use forgeyard_model::resources::Isolation;
use forgeyard_model::who::{ForgeId, Ids};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const USERS: &str = r#"{"users": [{"github": "Ada", "id": 1}, {"github": "bob", "id": 2}]}"#;

fn import(access: &str) -> Access {
    import_with(access, &ImportOptions::default())
}

fn import_with(access: &str, options: &ImportOptions) -> Access {
    let users = BTreeMap::from([("users.json".to_owned(), USERS)]);
    import_cirun(&CirunFiles { access, runners: None, users }, options).unwrap().access
}

fn policy(fields: &str) -> Access {
    import(&format!(
        "version: 1\npolicies:\n  - {{id: p, repo: r, {fields}}}\naccess_control:\n  - {{resource: gpu, policies: [p]}}"
    ))
}

fn has_note(access: &Access, parts: &[&str]) -> bool {
    access.notes.iter().any(|note| parts.iter().all(|part| note.contains(part)))
}

/// Whether a grant is open to everybody who passes its roles.
fn open(grant: &Grant) -> bool {
    grant.users.is_empty() && grant.lists.is_empty() && grant.teams.is_empty()
}

#[test]
fn native_file_is_read() {
    let text = "terms-version = 2\n[[grants]]\nid = \"g\"\nrepository = { id = 1, name = \"a/b\" }\nresources = [\"gpu\"]\n\
                events = [\"push\", \"fork-pull-request\"]\nusers = [7]\nisolation = \"shared-kernel\"\n\
                [roles.1]\n7 = \"admin\"\n[terms-accepted]\n7 = 2\n";
    let access = read("access.toml", text).unwrap();
    assert_eq!(access.grants[0].isolation, Some(Isolation::SharedKernel));
    assert_eq!(access.roles[&1.into()][&7.into()], "admin");
    assert_eq!(access.terms_accepted[&7.into()], 2);
}

#[test]
fn unknown_key_of_a_native_file_names_line_and_nearest_key() {
    let text = "[[grants]]\nid = \"g\"\nrepository = { id = 1, name = \"a/b\" }\nresourses = [\"gpu\"]\nevents = []\n";
    let error = read("access.toml", text).unwrap_err();
    assert_eq!((error.line, error.column), (4, 1));
    assert!(error.message.contains("unknown key `resourses`; did you mean `resources`?"), "{error}");
    let error = read("access.toml", "[[grnats]]\n").unwrap_err();
    assert!(error.message.contains("did you mean `grants`?"), "{error}");
}

#[test]
fn grant_that_stands_twice_is_refused() {
    let one =
        "[[grants]]\nid = \"g\"\nrepository = { id = 1, name = \"a/b\" }\nresources = []\nevents = []\n";
    let error = read("access.toml", &format!("{one}{one}")).unwrap_err();
    assert_eq!(error.line, 7);
}

#[test]
fn policy_becomes_a_grant_of_the_same_id() {
    let access = policy("roles: [admin], users: [ada], users_from_json: users.json, pull_request: true");
    let grant = &access.grants[0];
    assert_eq!((grant.id.as_str(), grant.repository.name.as_str()), ("p", "r"));
    assert_eq!(grant.resources, BTreeSet::from(["gpu".to_owned()]));
    assert_eq!(grant.users, Ids::from([1]), "logins are looked up without regard to case");
    assert_eq!(access.lists["users.json"], Ids::from([1, 2]));
    assert!(grant.events.contains(&EventClass::PullRequest));
    assert!(!grant.events.contains(&EventClass::ForkPullRequest), "the format says nothing about forks");
    assert!(has_note(&access, &["says nothing about forks"]));
}

#[test]
fn forks_are_covered_only_when_asked_for() {
    let text =
        "version: 1\npolicies: [{id: p, repo: r, roles: [admin], pull_request: true}]\naccess_control: []";
    let options = ImportOptions { forks: true, ..ImportOptions::default() };
    assert!(import_with(text, &options).grants[0].events.contains(&EventClass::ForkPullRequest));
    assert!(
        !policy("roles: [admin], pull_request: false").grants[0].events.contains(&EventClass::PullRequest)
    );
}

#[test]
fn login_that_cannot_be_found_never_opens_the_grant() {
    let access = policy("users: [ghost]");
    assert!(!open(&access.grants[0]));
    assert_eq!(access.lists[NOBODY], Ids::default());
    assert!(has_note(&access, &[".access.yml: policies[0].users: ", "`ghost`", "matches nobody"]));
}

#[test]
fn policy_that_names_nobody_or_cannot_be_read_allows_nobody() {
    for fields in
        ["", "users: []", "users: ada", "users_from_json: [x]", "users: ~", "roles: [admin], users: ~"]
    {
        let access = policy(fields);
        assert!(access.grants[0].lists.contains(NOBODY), "{fields}: {access:?}");
    }
    for fields in
        ["roles: []", "users: [ada], roles: admin", "users: [ada], roles: ~", "users: [ada], roles: [[]]"]
    {
        let access = policy(fields);
        assert_eq!(access.grants[0].roles, BTreeSet::from([NOBODY.to_owned()]), "{fields}: {access:?}");
    }
}

#[test]
fn users_file_that_was_not_given_is_an_empty_list() {
    let access = policy("users_from_json: https://example.invalid/lost.json");
    assert_eq!(access.lists["https://example.invalid/lost.json"], Ids::default());
    assert!(has_note(&access, &["was not given"]));
    let access = policy("users_from_json: https://example.invalid/users.json");
    assert_eq!(access.lists["https://example.invalid/users.json"], Ids::from([1, 2]));
}

#[test]
fn resource_that_stands_twice_is_merged_and_noted() {
    let access = import(
        "version: 1\npolicies: [{id: p, repo: r, roles: [admin]}, {id: q, repo: s, roles: [admin]}]\n\
         access_control: [{resource: gpu, policies: [p]}, {resource: gpu, policies: [q, lost]}]",
    );
    assert!(access.grants.iter().all(|grant| grant.resources.contains("gpu")));
    assert!(has_note(&access, &["access_control[1]", "merged"]));
    assert!(has_note(&access, &["policy `lost`", "does not exist"]));
}

#[test]
fn unknown_keys_are_noted_with_place_and_value() {
    let access = policy("roles: [admin], max_minutes: 30");
    assert!(has_note(&access, &["policies[0].max_minutes", "unknown key", "30"]));
    assert!(has_note(&import("version: 2\nextra: {a: 1}"), &["extra", "unknown key", "{\"a\":1}"]));
    assert!(has_note(&import("version: 2"), &["is not 1"]));
}

#[test]
fn repository_gets_its_id_from_the_map_and_its_owner_from_the_options() {
    let options = ImportOptions {
        owner: Some("forge".to_owned()),
        repository_ids: BTreeMap::from([("forge/r".to_owned(), 9)]),
        forks: false,
    };
    let text = "version: 1\npolicies: [{id: p, repo: r, roles: [admin]}, {id: q, repo: s, roles: [admin]}]";
    let access = import_with(text, &options);
    assert_eq!(
        access.grants[0].repository,
        GrantRepository { forge: None, id: Some(9), name: "forge/r".to_owned() }
    );
    assert_eq!(
        access.grants[1].repository,
        GrantRepository { forge: None, id: None, name: "forge/s".to_owned() }
    );
    assert!(has_note(&access, &["forge/s", "allows nothing without one"]));
}

#[test]
fn policy_id_that_stands_twice_is_kept_apart_and_opens_nothing() {
    let access = import(
        "version: 1\npolicies: [{id: p, repo: r, users: [ada]}, {id: p, repo: s, users: [bob]}]\n\
         access_control: [{resource: gpu, policies: [p]}]",
    );
    assert_eq!(access.grants[1].id, "p#2");
    assert!(access.grants[1].resources.is_empty());
}

#[test]
fn login_with_two_ids_matches_nobody() {
    let users = r#"{"users": [{"github": "ada", "id": 1}, {"github": "ADA", "id": 3}, {"github": 5}]}"#;
    let files = CirunFiles {
        access: "version: 1\npolicies: [{id: p, repo: r, users: [ada]}]",
        runners: None,
        users: BTreeMap::from([("u".to_owned(), users)]),
    };
    let access = import_cirun(&files, &ImportOptions::default()).unwrap().access;
    assert!(access.grants[0].users.is_empty() && access.grants[0].lists.contains(NOBODY));
    assert!(has_note(&access, &["users[2]", "matches nobody"]));
}

#[test]
fn broken_files_are_named() {
    let error = |files| import_cirun(&files, &ImportOptions::default()).unwrap_err().to_string();
    assert!(
        error(CirunFiles { access: "a: [", ..CirunFiles::default() }).starts_with(".access.yml is not YAML")
    );
    assert!(error(CirunFiles { access: "- 1", ..CirunFiles::default() }).contains("is not a mapping"));
    let users = BTreeMap::from([("u.json".to_owned(), "{}")]);
    assert!(error(CirunFiles { access: "a: 1", runners: None, users }).contains("u.json"));
}

#[test]
fn lists_of_a_runner_are_zipped_into_choices() {
    let runners = "runners: [{name: r, cloud: aws, labels: [r], instance_type: [a, b], region: [x, y], \
                   preemptible: [true, false], machine_image: i, idle: {replicas: 1}, extra_config: {k: v}}]";
    let files = CirunFiles { access: "version: 1", runners: Some(runners), users: BTreeMap::new() };
    let imported = import_cirun(&files, &ImportOptions::default()).unwrap();
    let [first, second] = imported.runners[0].choices.as_slice() else { panic!("{imported:?}") };
    assert_eq!((first.instance_type.as_deref(), first.region.as_deref()), (Some("a"), Some("x")));
    assert_eq!((second.machine_image.as_deref(), second.preemptible.as_deref()), (Some("i"), Some("false")));
    assert_eq!(imported.runners[0].extra_config, Some(serde_json::json!({"k": "v"})));
    assert!(has_note(&imported.access, &["no policy opens runner `r`"]));
}

#[test]
fn merging_keeps_what_was_written_by_hand() {
    let mut by_hand = Access { terms_version: 3, ..Access::default() };
    by_hand.teams.insert("t".to_owned(), Ids::from([5]));
    let merged = merge(by_hand, policy("teams: [t]"));
    assert_eq!((merged.terms_version, &merged.teams["t"]), (3, &Ids::from([5])));
}

/// The corpus as texts; `None` when it is not given, which is said aloud.
fn corpus() -> Option<[String; 3]> {
    let Some(folder) = std::env::var_os("FORGEYARD_CORPUS") else {
        // Not `println!`, which the test harness swallows when a test passes.
        std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: FORGEYARD_CORPUS is not set\n").unwrap();
        return None;
    };
    let folder = std::path::Path::new(&folder).join("access");
    Some(
        ["access.yml", "cirun.global.yml", "users.json"]
            .map(|name| std::fs::read_to_string(folder.join(name)).unwrap()),
    )
}

/// Everything that the files say is found again in the import, read by another path through the YAML.
#[test]
fn import_of_the_corpus_loses_nothing() {
    let Some([access_text, runners_text, users_text]) = corpus() else { return };
    let files = CirunFiles {
        access: &access_text,
        runners: Some(&runners_text),
        users: BTreeMap::from([("users.json".to_owned(), users_text.as_str())]),
    };
    let imported = import_cirun(&files, &ImportOptions::default()).unwrap();
    let access = &imported.access;
    let yaml: serde_norway::Value = serde_norway::from_str(&access_text).unwrap();
    let policies = yaml["policies"].as_sequence().unwrap();
    assert_eq!(access.grants.len(), policies.len());
    let texts = |value: &serde_norway::Value| -> BTreeSet<String> {
        value.as_sequence().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    for (policy, grant) in policies.iter().zip(&access.grants) {
        assert_eq!(policy["id"].as_str().unwrap(), grant.id);
        assert_eq!(policy["repo"].as_str().unwrap(), grant.repository.name);
        assert_eq!(texts(&policy["roles"]), grant.roles);
        let by_login: BTreeSet<String> = grant.users.iter().map(|id| access.logins[id].clone()).collect();
        assert_eq!(texts(&policy["users"]), by_login, "{}", grant.id);
        assert_eq!(policy["users_from_json"].as_str(), grant.lists.first().map(String::as_str));
        assert_eq!(
            policy["pull_request"].as_bool().unwrap(),
            grant.events.contains(&EventClass::PullRequest)
        );
        assert!(!open(grant));
    }
    let pairs = |rows: &mut dyn Iterator<Item = (String, String)>| rows.collect::<BTreeSet<_>>();
    let in_yaml = pairs(&mut yaml["access_control"].as_sequence().unwrap().iter().flat_map(|entry| {
        let resource = entry["resource"].as_str().unwrap().to_owned();
        texts(&entry["policies"]).into_iter().map(move |id| (resource.clone(), id))
    }));
    let in_access = pairs(
        &mut access
            .grants
            .iter()
            .flat_map(|grant| grant.resources.iter().map(|r| (r.clone(), grant.id.clone()))),
    );
    assert_eq!(in_yaml, in_access);
    let runners: serde_norway::Value = serde_norway::from_str(&runners_text).unwrap();
    assert_eq!(imported.runners.len(), runners["runners"].as_sequence().unwrap().len());
    assert!(has_note(access, &["cirun-macos-m4-large", "merged"]), "{:#?}", access.notes);
    assert!(has_note(access, &["no runner is defined for resource `cirun-macos-m4-large`"]));
    assert!(!access.notes.iter().any(|note| note.contains("unknown key")), "{:#?}", access.notes);
    println!(
        "{} policies, {} pairs of resource and policy, {} runners, {} people, {} notes",
        policies.len(),
        in_yaml.len(),
        imported.runners.len(),
        access.logins.len(),
        access.notes.len()
    );

    assert_eq!(import_cirun(&files, &ImportOptions::default()).unwrap(), imported);
    assert_eq!(read("access.toml", &export(access).unwrap()).unwrap(), *access);
    assert_eq!(merge(access.clone(), access.clone()), *access);
}

fn some_access() -> impl Strategy<Value = Access> {
    let name = || "[a-z][a-z0-9/.-]{0,8}";
    let id = || 1u64..=i64::MAX as u64;
    let names = || prop::collection::btree_set("[a-z][a-z0-9/.-]{0,8}", 0..3);
    let forge = || prop::sample::select(vec![None, Some("github"), Some("lab")]);
    let who = move || {
        (forge(), 1u64..=i64::MAX as u64)
            .prop_map(|(forge, id)| ForgeId { forge: forge.map(|name| name.parse().unwrap()), id })
    };
    let ids = move || prop::collection::vec(who(), 0..3).prop_map(Ids::from_iter);
    let event = prop::sample::select(vec![EventClass::Push, EventClass::ForkPullRequest, EventClass::Rerun]);
    let isolation = prop::option::of(prop::sample::select(vec![Isolation::Vm, Isolation::SharedKernel]));
    let grant = (
        (prop::option::of(id()), ".{0,12}"),
        names(),
        prop::collection::btree_set(event, 0..3),
        (ids(), names(), names(), names()),
        (isolation, prop::option::of((ids(), names()))),
    )
        .prop_map(
            |((id, repository), resources, events, (users, lists, teams, roles), (isolation, approvers))| {
                Grant {
                    id: String::new(),
                    repository: GrantRepository { forge: None, id, name: repository },
                    resources,
                    events,
                    users,
                    lists,
                    teams,
                    roles,
                    isolation,
                    approvers: approvers.map(|(users, lists)| Approvers {
                        users,
                        lists,
                        ..Approvers::default()
                    }),
                }
            },
        );
    let member = (ids(), ids(), any::<bool>()).prop_map(|(users, repositories, whole_farm)| Member {
        id: String::new(),
        role: Role::Maintainer,
        users,
        lists: Default::default(),
        teams: Default::default(),
        repositories,
        organisations: Default::default(),
        whole_farm,
    });
    let members = (prop::collection::vec(member, 0..3), prop::option::of(".{0,8}"), any::<bool>());
    let people = move || prop::collection::btree_map(name(), ids(), 0..3);
    (
        prop::collection::vec(grant, 0..4),
        people(),
        people(),
        prop::collection::btree_map(who(), prop::collection::btree_map(who(), name(), 0..3), 0..3),
        (any::<u32>(), prop::collection::btree_map(who(), any::<u32>(), 0..3)),
        prop::collection::btree_map(who(), ".{0,8}", 0..3),
        prop::collection::vec(".{0,20}", 0..3),
        members,
    )
        .prop_map(
            |(
                mut grants,
                lists,
                teams,
                roles,
                (terms_version, terms_accepted),
                logins,
                mut notes,
                (mut members, terms_url, maps),
            )| {
                members.iter_mut().enumerate().for_each(|(place, rule)| rule.id = format!("m{place}"));
                let forge_roles =
                    if maps { [("admin".to_owned(), Role::Operator)].into() } else { Default::default() };
                grants.iter_mut().enumerate().for_each(|(place, grant)| grant.id = format!("g{place}"));
                notes.sort();
                notes.dedup();
                Access {
                    forge: maps.then(|| "lab".parse().unwrap()),
                    grants,
                    lists,
                    teams,
                    roles,
                    terms_version,
                    terms_accepted,
                    terms_url,
                    members,
                    forge_roles,
                    logins,
                    notes,
                }
            },
        )
}

/// What is imported is GitHub's. In a file whose numbers are another forge's it must not become that forge's.
#[test]
fn imported_numbers_stay_those_of_github_in_a_file_of_another_forge() {
    let by_hand = Access { forge: Some("lab".parse().unwrap()), ..Access::default() };
    let merged = merge(by_hand, policy("users_from_json: users.json"));
    let at = |forge: &str| merged.holds(&merged.lists["users.json"], &forge.parse().unwrap(), 1);
    assert!(at("github") && !at("lab"));
    assert_eq!(merged.home(), "lab");
}

/// Hole 2: one listed person who renamed or deleted their account broke the check of everybody's requests.
#[test]
fn hole_02_an_entry_that_cannot_be_read_costs_nobody_else_anything() {
    let users = r#"{"users":[{"github":"gone"},{"github":"ada","id":7},{"github":"ghost","id":null},"?"]}"#;
    let policy = "version: 1\npolicies:\n  - {id: p, repo: widget, users_from_json: users.json}\n\
                  access_control:\n  - {resource: cirun-gpu, policies: [p]}\n";
    let files =
        CirunFiles { access: policy, runners: None, users: [("users.json".to_owned(), users)].into() };
    let access = import_cirun(&files, &ImportOptions::default()).unwrap().access;
    let people: Vec<u64> = access.lists.values().flatten().map(|who| who.id).collect();
    assert_eq!(people, [7]);
    assert!(access.notes.iter().any(|note| note.contains("matches nobody")), "{:?}", access.notes);
}

/// Hole 3: the list was fetched from a mutable address when somebody asked. Here an address is only a name, for a file that
/// the importer hands over; without the file the policy is nobody's.
#[test]
fn hole_03_a_list_behind_an_address_is_a_file_that_was_read_once_or_nobody() {
    let policy = "version: 1\npolicies:\n  - {id: p, repo: widget, users_from_json: 'https://example.org/main/users.json'}\n\
                  access_control:\n  - {resource: cirun-gpu, policies: [p]}\n";
    let read = |users| {
        let files = CirunFiles { access: policy, runners: None, users };
        import_cirun(&files, &ImportOptions::default()).unwrap().access
    };
    let given = read([("users.json".to_owned(), r#"{"users":[{"github":"ada","id":7}]}"#)].into());
    assert_eq!(given.lists.values().flatten().map(|who| who.id).collect::<Vec<u64>>(), [7]);
    let absent = read(Default::default());
    // The grant still asks for a list, and that has no member: never a grant that is open to everybody.
    assert!(
        !absent.grants[0].lists.is_empty() && absent.lists.values().all(|ids| ids.is_empty()),
        "{absent:?}"
    );
}

proptest! {
    #[test]
    fn exported_access_reads_back_the_same(access in some_access()) {
        let text = export(&access).unwrap();
        prop_assert_eq!(&read("x", &text).unwrap(), &access);
        prop_assert_eq!(export(&read("x", &text).unwrap()).unwrap(), text);
    }

    #[test]
    fn merging_twice_is_merging_once(a in some_access(), b in some_access()) {
        let once = merge(a, b.clone());
        prop_assert_eq!(merge(once.clone(), b), once);
    }

    #[test]
    fn no_text_panics(access in ".*", runners in ".*", users in ".*") {
        let files = CirunFiles {
            access: &access, runners: Some(&runners), users: BTreeMap::from([("u".to_owned(), users.as_str())]),
        };
        let _ = import_cirun(&files, &ImportOptions::default());
        let _ = read("x", &access);
    }

    /// Whatever stands in a policy, the imported grant is never open to everybody unless roles close it.
    #[test]
    fn imported_grant_is_never_open_to_everybody(
        fields in prop::collection::vec(
            (prop::sample::select(vec!["users", "teams", "roles", "users_from_json", "pull_request", "x"]),
             prop::sample::select(vec!["[]", "[ghost]", "[ada]", "ada", "users.json", "true", "~", "{a: b}", "[[]]", "3"])),
            0..5),
    ) {
        let fields: BTreeMap<_, _> = fields.into_iter().collect();
        let fields: Vec<_> = fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let access = policy(&fields.join(", "));
        let grant = &access.grants[0];
        prop_assert!(!open(grant) || !grant.roles.is_empty(), "{:?}", access);
    }
}
