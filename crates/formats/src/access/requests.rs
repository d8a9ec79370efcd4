//! Import of *admin-requests*: small files with which maintainers ask that a feedstock may, or may no longer, use a resource.
//!
//! ```yaml
//! action: cirun                   # other actions are none of a farm's business and are reported
//! feedstocks: [NAME..]            # without `-feedstock`
//! resources: [cirun-NAME..]       # required
//! pull_request: BOOL              # false: pushes alone
//! revoke: BOOL                    # false; true takes the resources back
//! send_pr: BOOL                   # about a pull request that the asking service opens; read, and without meaning here
//! ```
//!
//! Each feedstock has one grant, `request-NAME` and `request-NAME-pr` for those that cover pull requests, so that requests
//! that repeat or widen each other become one rule. Of all requests together the outcome counts, in the order in which they
//! are given: what was granted and then revoked is gone, what was revoked and then granted again is there. A revocation takes
//! the resources from **every** grant of the repository, however that came to be, and a grant that opens nothing any more is
//! removed. Importing the same files twice changes nothing.
//!
//! A request never says who may use what it asks for, so a grant needs people or roles from whoever imports
//! ([`RequestOptions::lists`], [`RequestOptions::roles`]); without them it is open to [`NOBODY`](super::NOBODY).

use super::cirun::{ImportError, NOBODY};
use super::yaml::{Mapping, Notes, Texts};
use forgeyard_model::access::{Access, EventClass, Grant, GrantRepository, HOME};
use forgeyard_model::who::Ids;
use serde_norway::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How requests are imported.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// Owner of the feedstocks.
    pub owner: Option<String>,
    /// Numeric ids by name, with or without the owner.
    pub repository_ids: BTreeMap<String, u64>,
    /// Lists of people who may use what is granted.
    pub lists: BTreeSet<String>,
    /// Roles at the forge, one of which is needed as well.
    pub roles: BTreeSet<String>,
    /// Whether `pull_request: true` covers pull requests from forks, too. They still need isolation `vm`.
    pub forks: bool,
}

const KNOWN: [&str; 6] = ["action", "feedstocks", "resources", "pull_request", "revoke", "send_pr"];

/// What all requests together come to, for one resource of one feedstock.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    granted: bool,
    pulls: bool,
    /// A revocation stands somewhere before: what was there is taken back, whatever follows.
    revoked: bool,
}

/// Outcomes by feedstock, in the order in which they were first named, and by resource.
type Outcomes = Vec<(String, BTreeMap<String, Outcome>)>;

/// Applies request files, by name and text, to access rules. Equal rules come back when there is nothing new.
pub fn apply_requests(
    mut access: Access,
    files: &[(String, &str)],
    options: &RequestOptions,
) -> Result<Access, ImportError> {
    let mut notes = Notes::default();
    let mut outcomes = Outcomes::new();
    for (file, text) in files {
        let value: Value = serde_norway::from_str(text)
            .map_err(|error| ImportError::Yaml { file: file.clone(), message: error.to_string() })?;
        let Some(request) = Mapping::new(format!("{file}:"), &value, &mut notes) else { continue };
        read(&request, &mut outcomes, &mut notes);
    }
    for (feedstock, resources) in &outcomes {
        for (resource, outcome) in resources {
            apply(&mut access, feedstock, resource, *outcome, options, &mut notes);
        }
    }
    for note in notes.0 {
        if !access.notes.contains(&note) {
            access.notes.push(note);
        }
    }
    Ok(access)
}

fn read(request: &Mapping<'_>, outcomes: &mut Outcomes, notes: &mut Notes) {
    let action = request.text("action", notes).unwrap_or_default();
    if action != "cirun" {
        notes.add(&request.at("action"), format!("`{action}` is not `cirun`; the request is left out"));
        return;
    }
    request.note_unknown(&KNOWN, notes);
    let feedstocks = texts(request, "feedstocks", notes);
    let resources: BTreeSet<String> = texts(request, "resources", notes)
        .into_iter()
        .filter(|name| {
            let fits = name.starts_with("cirun-");
            if !fits {
                notes.add(
                    &request.at("resources"),
                    format!("`{name}` does not begin with `cirun-`; left out"),
                );
            }
            fits
        })
        .collect();
    if feedstocks.is_empty() || resources.is_empty() {
        notes.add(&request.place, "asks for nothing: `feedstocks` and `resources` are both needed");
        return;
    }
    // What cannot be read opens nothing; a revocation that cannot be read is left to a person, by its note.
    let (Some(pulls), Some(revoke), Some(_)) = (
        flag(request, "pull_request", notes),
        flag(request, "revoke", notes),
        flag(request, "send_pr", notes),
    ) else {
        return;
    };
    for feedstock in feedstocks {
        // Some requests write the suffix, which their own rules forbid.
        let short = feedstock.strip_suffix("-feedstock").unwrap_or(&feedstock).to_ascii_lowercase();
        let place = match outcomes.iter().position(|(known, _)| *known == short) {
            Some(place) => place,
            None => {
                outcomes.push((short, BTreeMap::new()));
                outcomes.len() - 1
            }
        };
        let Some((_, of_feedstock)) = outcomes.get_mut(place) else { continue };
        for resource in &resources {
            let outcome = of_feedstock.entry(resource.clone()).or_default();
            if revoke {
                *outcome = Outcome { granted: false, pulls: false, revoked: true };
            } else {
                outcome.pulls |= pulls;
                outcome.granted = true;
            }
        }
    }
}

fn apply(
    access: &mut Access,
    feedstock: &str,
    resource: &str,
    outcome: Outcome,
    options: &RequestOptions,
    notes: &mut Notes,
) {
    let name = match &options.owner {
        Some(owner) => format!("{owner}/{feedstock}-feedstock"),
        None => format!("{feedstock}-feedstock"),
    };
    let id = format!("request-{feedstock}{}", if outcome.pulls { "-pr" } else { "" });
    if outcome.revoked {
        let but = outcome.granted.then_some(id.as_str());
        take_back(access, &name, id_of(&name, options), resource, but);
    }
    if outcome.granted {
        grant(access, id, name, resource, outcome.pulls, options, notes);
    }
}

fn texts(request: &Mapping<'_>, key: &str, notes: &mut Notes) -> Vec<String> {
    match request.texts(key, notes) {
        Texts::Given(texts) => texts,
        Texts::Absent | Texts::Unreadable => Vec::new(),
    }
}

/// A flag that is false when it is absent; `None` when it is there and is no flag.
fn flag(request: &Mapping<'_>, key: &str, notes: &mut Notes) -> Option<bool> {
    match request.get(key) {
        None => Some(false),
        Some(Value::Bool(flag)) => Some(*flag),
        Some(_) => {
            notes.add(&request.at(key), "is neither true nor false; the request is left out");
            None
        }
    }
}

/// Numeric id of a repository, by any of its names.
fn id_of(name: &str, options: &RequestOptions) -> Option<u64> {
    let short = name.rsplit('/').next().unwrap_or(name);
    let bare = short.strip_suffix("-feedstock").unwrap_or(short);
    [name, short, bare].iter().find_map(|name| options.repository_ids.get(*name)).copied()
}

fn grant(
    access: &mut Access,
    id: String,
    name: String,
    resource: &str,
    pulls: bool,
    options: &RequestOptions,
    notes: &mut Notes,
) {
    let repository_id = id_of(&name, options);
    let mut events = BTreeSet::from([EventClass::Push]);
    if pulls {
        events.insert(EventClass::PullRequest);
        if options.forks {
            events.insert(EventClass::ForkPullRequest);
        }
    }
    let closed = options.lists.is_empty() && options.roles.is_empty();
    if closed {
        notes.add(
            &format!("grant `{id}`"),
            "a request says nothing about people, so it is open to nobody: name a list or a role",
        );
        access.lists.entry(NOBODY.to_owned()).or_default();
    }
    if let Some(known) = access.grants.iter_mut().find(|grant| grant.id == id) {
        known.resources.insert(resource.to_owned());
        known.events.extend(events);
        known.repository.id = known.repository.id.or(repository_id);
        return;
    }
    let lists = if closed { BTreeSet::from([NOBODY.to_owned()]) } else { options.lists.clone() };
    access.grants.push(Grant {
        id,
        repository: GrantRepository { forge: requested_at(access), id: repository_id, name },
        resources: BTreeSet::from([resource.to_owned()]),
        events,
        users: Ids::default(),
        lists,
        teams: BTreeSet::new(),
        roles: options.roles.clone(),
        isolation: None,
        approvers: None,
    });
}

/// Takes a resource from every grant of a repository but this one, and removes grants that open nothing then.
fn take_back(access: &mut Access, name: &str, id: Option<u64>, resource: &str, but: Option<&str>) {
    // By every id under which the name is known: a revocation that misses a grant is worse than one that is told twice.
    let mut ids: BTreeSet<u64> = access
        .grants
        .iter()
        .filter(|grant| grant.repository.name.eq_ignore_ascii_case(name))
        .filter_map(|grant| grant.repository.id)
        .collect();
    ids.extend(id);
    let hits = |grant: &Grant| {
        but != Some(grant.id.as_str())
            && (grant.repository.name.eq_ignore_ascii_case(name)
                || grant.repository.id.is_some_and(|id| ids.contains(&id)))
    };
    for grant in access.grants.iter_mut().filter(|grant| hits(grant)) {
        grant.resources.remove(resource);
    }
    access.grants.retain(|grant| !(hits(grant) && grant.resources.is_empty()));
}

/// Requests are about GitHub, whatever forge the numbers of the file are of.
fn requested_at(access: &Access) -> Option<forgeyard_model::ForgeName> {
    if access.home() == HOME { None } else { HOME.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options() -> RequestOptions {
        RequestOptions {
            owner: Some("conda-forge".to_owned()),
            repository_ids: BTreeMap::from([("pytorch-cpu".to_owned(), 7), ("faiss".to_owned(), 8)]),
            lists: BTreeSet::from(["users".to_owned()]),
            ..RequestOptions::default()
        }
    }

    fn applied(access: Access, texts: &[&str]) -> Access {
        let files: Vec<(String, &str)> =
            texts.iter().enumerate().map(|(place, text)| (format!("{place}.yml"), *text)).collect();
        apply_requests(access, &files, &options()).unwrap()
    }

    const PUSH: &str = "action: cirun\nfeedstocks: [pytorch-cpu]\nresources: [cirun-gpu]\n";
    const PULLS: &str = "action: cirun\nfeedstocks: [pytorch-cpu-feedstock]\nresources: [cirun-gpu, cirun-big]\npull_request: true\n";
    const REVOKE: &str = "action: cirun\nfeedstocks: [pytorch-cpu]\nresources: [cirun-gpu]\nrevoke: true\n";

    fn opens(access: &Access) -> Vec<(String, Vec<String>)> {
        access
            .grants
            .iter()
            .map(|grant| (grant.id.clone(), grant.resources.iter().cloned().collect()))
            .collect()
    }

    #[test]
    fn request_becomes_a_grant_by_id_for_the_people_that_the_importer_names() {
        let access = applied(Access::default(), &[PUSH]);
        let grant = &access.grants[0];
        assert_eq!(
            (grant.repository.id, grant.repository.name.as_str()),
            (Some(7), "conda-forge/pytorch-cpu-feedstock")
        );
        assert_eq!(grant.events, BTreeSet::from([EventClass::Push]));
        assert_eq!(grant.lists, BTreeSet::from(["users".to_owned()]));
        let nobody = RequestOptions { lists: BTreeSet::new(), ..options() };
        let access = apply_requests(Access::default(), &[("a.yml".to_owned(), PUSH)], &nobody).unwrap();
        assert_eq!(access.grants[0].lists, BTreeSet::from([NOBODY.to_owned()]), "never everybody");
    }

    #[test]
    fn duplicates_merge_and_a_second_import_changes_nothing() {
        let once = applied(Access::default(), &[PUSH, PUSH, PULLS]);
        assert_eq!(
            opens(&once),
            [("request-pytorch-cpu-pr".to_owned(), vec!["cirun-big".to_owned(), "cirun-gpu".to_owned()])]
        );
        assert_eq!(applied(once.clone(), &[PUSH, PUSH, PULLS]), once);
    }

    #[test]
    fn revocation_takes_the_resource_from_every_grant_of_the_repository() {
        let mut access = applied(Access::default(), &[PULLS]);
        access.grants.push(Grant { id: "by-hand".to_owned(), ..access.grants[0].clone() });
        let after = applied(access, &[REVOKE]);
        assert!(
            after.grants.iter().all(|grant| !grant.resources.contains("cirun-gpu")),
            "{:?}",
            opens(&after)
        );
        assert_eq!(after.grants.len(), 2, "what still opens something stays");
        let gone = applied(applied(Access::default(), &[PUSH]), &[REVOKE]);
        assert_eq!(gone.grants, []);
    }

    #[test]
    fn order_counts_and_a_narrower_grant_after_a_revocation_is_narrower() {
        assert_eq!(applied(Access::default(), &[PUSH, REVOKE]).grants, []);
        let once = applied(applied(Access::default(), &[PULLS]), &[PULLS, REVOKE, PUSH]);
        assert_eq!(opens(&once)[1], ("request-pytorch-cpu".to_owned(), vec!["cirun-gpu".to_owned()]));
        assert_eq!(opens(&once)[0].1, ["cirun-big"]);
        assert_eq!(applied(once.clone(), &[PULLS, REVOKE, PUSH]), once);
    }

    #[test]
    fn what_is_not_understood_opens_nothing_and_is_reported() {
        for (text, note) in [
            ("action: travis\nfeedstocks: [a]\n", "is not `cirun`"),
            ("action: cirun\nfeedstocks: [a]\nresources: [gpu]\n", "does not begin with `cirun-`"),
            (
                "action: cirun\nfeedstocks: [a]\nresources: [cirun-x]\nrevoke: perhaps\n",
                "neither true nor false",
            ),
            ("action: cirun\nfeedstocks: []\nresources: [cirun-x]\n", "asks for nothing"),
            ("[]", "must be a mapping"),
        ] {
            let access = applied(Access::default(), &[text]);
            assert_eq!(access.grants, [], "{text}");
            assert!(access.notes.iter().any(|line| line.contains(note)), "{:?}", access.notes);
        }
        let access = applied(
            Access::default(),
            &["action: cirun\nfeedstocks: [a]\nresources: [cirun-x]\nmatrix: 3\n"],
        );
        assert!(
            access.notes.iter().any(|line| line.contains("matrix") && line.contains('3')),
            "{:?}",
            access.notes
        );
        assert!(apply_requests(Access::default(), &[("x".to_owned(), ": : :")], &options()).is_err());
    }

    #[test]
    fn real_request_of_the_corpus_is_read_whole() {
        let Some(folder) = std::env::var_os("FORGEYARD_CORPUS") else {
            println!("SKIPPED: FORGEYARD_CORPUS is not set");
            return;
        };
        let folder = std::path::Path::new(&folder).join("admin-requests");
        let mut texts = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            texts.push((
                path.file_name().unwrap().to_string_lossy().into_owned(),
                std::fs::read_to_string(&path).unwrap(),
            ));
        }
        texts.sort();
        let files: Vec<(String, &str)> =
            texts.iter().map(|(name, text)| (name.clone(), text.as_str())).collect();
        let once = apply_requests(Access::default(), &files, &options()).unwrap();
        assert_eq!(
            opens(&once),
            [("request-pytorch-cpu".to_owned(), vec!["cirun-azure-windows-2xlarge".to_owned()])]
        );
        // Every other action is named as left out.
        assert_eq!(once.notes.iter().filter(|note| note.contains("is not `cirun`")).count(), files.len() - 1);
        assert_eq!(apply_requests(once.clone(), &files, &options()).unwrap(), once);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_a_second_import_changes_nothing(
            texts in prop::collection::vec(
                prop_oneof![
                    3 => prop::sample::select(vec![PUSH, PULLS, REVOKE]).prop_map(str::to_owned),
                    1 => "[ -~\n]{0,60}",
                ],
                0..6,
            ),
        ) {
            let files: Vec<(String, &str)> =
                texts.iter().enumerate().map(|(place, text)| (format!("{place}.yml"), text.as_str())).collect();
            if let Ok(once) = apply_requests(Access::default(), &files, &options()) {
                prop_assert_eq!(apply_requests(once.clone(), &files, &options()).unwrap(), once);
            }
        }
    }
}
