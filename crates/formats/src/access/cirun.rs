//! Import of policy files in the form that Cirun reads: `.access.yml`, `.cirun.global.yml` and users JSON.
//!
//! ```yaml
//! version: 1
//! policies:        # → one grant each, of the same id
//!   - {id: TEXT, repo: NAME, roles: [..], teams: [..], users: [LOGIN..], users_from_json: FILE, pull_request: BOOL}
//! access_control:  # → the grant's resources; a resource that stands twice is merged
//!   - {resource: NAME, policies: [ID..]}
//! ```
//!
//! How the open points of that format are settled here, always to the narrower side:
//! - people are `users` ∪ `users_from_json` ∪ `teams`, **and** one of `roles` when roles are given;
//! - people that were asked for and cannot be found are nobody: the grant then names the empty list [`NOBODY`], because
//!   a grant without any people would be open to everybody; a key with nothing behind it asks for nobody, too;
//! - a policy that names neither people nor roles is open to nobody;
//! - `pull_request: true` covers pull requests of the same repository; forks only with [`ImportOptions::forks`], since
//!   the format says nothing about them;
//! - a policy for a repository whose numeric id is not given never allows anything until somebody writes the id.

use super::runners::{self, ImportedRunner};
use super::users::{Directory, Found};
use super::yaml::{Mapping, Notes, Texts};
use forgeyard_model::access::{Access, EventClass, Grant, GrantRepository};
use forgeyard_model::who::Ids;
use serde_norway::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Name of the list without members that stands in for people who cannot be found, and of the role that nobody holds
/// and that stands in for roles that cannot be read.
pub const NOBODY: &str = "nobody";

const KNOWN_ROLES: [&str; 5] = ["admin", "maintain", "write", "triage", "read"];

/// The files.
#[derive(Debug, Clone, Default)]
pub struct CirunFiles<'a> {
    /// Text of `.access.yml`.
    pub access: &'a str,
    /// Text of `.cirun.global.yml`.
    pub runners: Option<&'a str>,
    /// Texts of users files, by the name or the last part of the URL that policies call them.
    pub users: BTreeMap<String, &'a str>,
}

/// How to import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Owner of the repositories; policies name repositories without one.
    pub owner: Option<String>,
    /// Numeric ids by name, with or without the owner.
    pub repository_ids: BTreeMap<String, u64>,
    /// Whether `pull_request: true` covers pull requests from forks, too. They still need isolation `vm`.
    pub forks: bool,
}

/// What an import gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The access, with notes on everything that was not carried over.
    pub access: Access,
    /// The runner definitions.
    pub runners: Vec<ImportedRunner>,
}

/// Files that cannot be read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// A file is not YAML.
    #[error("{file} is not YAML: {message}")]
    Yaml {
        /// Which.
        file: String,
        /// Why.
        message: String,
    },
    /// A users file is not JSON of the known form.
    #[error("users file {file} cannot be read: {message}")]
    Json {
        /// Which.
        file: String,
        /// Why.
        message: String,
    },
    /// The access file is not a mapping.
    #[error("{file} is not a mapping with `policies` and `access_control`")]
    Shape {
        /// Which.
        file: String,
    },
}

/// Imports.
pub fn import_cirun(files: &CirunFiles<'_>, options: &ImportOptions) -> Result<Imported, ImportError> {
    let mut notes = Notes::default();
    let directory = Directory::read(&files.users, &mut notes)?;
    let runners = match files.runners {
        Some(text) => runners::read(".cirun.global.yml", text, &mut notes)?,
        None => Vec::new(),
    };
    let file = ".access.yml";
    let value: Value = serde_norway::from_str(files.access)
        .map_err(|error| ImportError::Yaml { file: file.to_owned(), message: error.to_string() })?;
    let root = Mapping::new(format!("{file}:"), &value, &mut notes)
        .ok_or_else(|| ImportError::Shape { file: file.to_owned() })?;
    root.note_unknown(&["version", "policies", "access_control"], &mut notes);
    if root.text("version", &mut notes).as_deref() != Some("1") {
        notes.add(&root.at("version"), "is not 1; read as if it were");
    }

    let mut import = Import { options, directory, notes, access: Access::default() };
    let policies = root.mappings("policies", &mut import.notes);
    policies.iter().for_each(|policy| import.policy(policy));
    let resources = root.mappings("access_control", &mut import.notes);
    import.resources(&resources);
    if files.runners.is_some() {
        import.compare_with_runners(&runners);
    }
    Ok(Imported { access: import.finish(), runners })
}

struct Import<'a> {
    options: &'a ImportOptions,
    directory: Directory,
    notes: Notes,
    access: Access,
}

impl Import<'_> {
    fn policy(&mut self, policy: &Mapping<'_>) {
        let keys = ["id", "repo", "teams", "roles", "users", "users_from_json", "pull_request"];
        policy.note_unknown(&keys, &mut self.notes);
        let (Some(id), Some(repo)) =
            (policy.text("id", &mut self.notes), policy.text("repo", &mut self.notes))
        else {
            self.notes.add(&policy.place, "needs `id` and `repo`; left out");
            return;
        };
        let mut grant = Grant {
            id: self.unused_id(&id, &policy.place),
            repository: self.repository(&repo, &policy.at("repo")),
            resources: BTreeSet::new(),
            events: self.events(policy),
            users: Ids::default(),
            lists: BTreeSet::new(),
            teams: BTreeSet::new(),
            roles: self.roles(policy),
            isolation: None,
            approvers: None,
        };
        let asked = self.people(policy, &mut grant);
        let open = grant.users.is_empty() && grant.lists.is_empty() && grant.teams.is_empty();
        if open && (asked || grant.roles.is_empty()) {
            self.notes
                .add(&policy.place, format!("policy `{id}` names nobody who can be found: it allows nobody"));
            self.access.lists.entry(NOBODY.to_owned()).or_default();
            grant.lists.insert(NOBODY.to_owned());
        }
        self.access.grants.push(grant);
    }

    fn unused_id(&mut self, id: &str, place: &str) -> String {
        if self.access.grants.iter().all(|grant| grant.id != id) {
            return id.to_owned();
        }
        let other = (2u32..)
            .map(|number| format!("{id}#{number}"))
            .find(|name| self.access.grants.iter().all(|grant| grant.id != *name))
            .unwrap_or_else(|| id.to_owned());
        self.notes.add(
            place,
            format!("policy id `{id}` stands twice: this one is kept as `{other}`, opens nothing"),
        );
        other
    }

    fn repository(&mut self, repo: &str, place: &str) -> GrantRepository {
        let name = match &self.options.owner {
            Some(owner) if !repo.contains('/') => format!("{owner}/{repo}"),
            _ => repo.to_owned(),
        };
        let ids = &self.options.repository_ids;
        let id = ids.get(&name).or_else(|| ids.get(repo)).copied();
        if id.is_none() {
            self.notes.add(
                place,
                format!("no numeric id is known for `{name}`: the grant allows nothing without one"),
            );
        }
        GrantRepository { forge: None, id, name }
    }

    fn events(&mut self, policy: &Mapping<'_>) -> BTreeSet<EventClass> {
        let mut events =
            BTreeSet::from([EventClass::Push, EventClass::Schedule, EventClass::Dispatch, EventClass::Rerun]);
        match policy.get("pull_request") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => {
                events.insert(EventClass::PullRequest);
                if self.options.forks {
                    events.insert(EventClass::ForkPullRequest);
                }
            }
            Some(_) => self.notes.add(&policy.at("pull_request"), "must be true or false; read as false"),
        }
        events
    }

    fn roles(&mut self, policy: &Mapping<'_>) -> BTreeSet<String> {
        if !policy.has("roles") {
            return BTreeSet::new();
        }
        let roles = match policy.texts("roles", &mut self.notes) {
            Texts::Given(roles) => roles,
            Texts::Absent | Texts::Unreadable => Vec::new(),
        };
        if roles.is_empty() {
            // Read as "no role needed", a slip of the pen would open the grant.
            self.notes.add(&policy.at("roles"), "names no role: nobody holds one of them");
            return BTreeSet::from([NOBODY.to_owned()]);
        }
        for role in roles.iter().filter(|role| !KNOWN_ROLES.contains(&role.as_str())) {
            self.notes.add(&policy.at("roles"), format!("`{role}` is not a role of the forge; kept"));
        }
        roles.into_iter().collect()
    }

    /// Fills in the people; says whether any were asked for.
    fn people(&mut self, policy: &Mapping<'_>, grant: &mut Grant) -> bool {
        let users = policy.texts("users", &mut self.notes);
        let teams = policy.texts("teams", &mut self.notes);
        let list = policy.get("users_from_json");
        let asked = ["users", "teams", "users_from_json"].iter().any(|key| policy.has(key));
        if let Texts::Given(logins) = users {
            for login in logins {
                match self.directory.find(&login) {
                    Found::One(id) => {
                        grant.users.insert(id);
                    }
                    Found::None => self.notes.add(
                        &policy.at("users"),
                        format!("login `{login}` is in no users file, so it has no id and matches nobody"),
                    ),
                    Found::Ambiguous(ids) => self.notes.add(
                        &policy.at("users"),
                        format!("login `{login}` has more than one id, {ids:?}, and matches nobody"),
                    ),
                }
            }
        }
        if let Texts::Given(teams) = teams {
            for team in teams {
                self.notes
                    .add(&policy.at("teams"), format!("members of team `{team}` are not in these files"));
                self.access.teams.entry(team.clone()).or_default();
                grant.teams.insert(team);
            }
        }
        if list.is_some()
            && let Some(name) = policy.text("users_from_json", &mut self.notes)
        {
            let members = self.directory.members(&name).cloned();
            if members.is_none() {
                let place = policy.at("users_from_json");
                self.notes.add(&place, format!("users file `{name}` was not given: the list is empty"));
            }
            self.access.lists.insert(name.clone(), members.unwrap_or_default().into_iter().collect());
            grant.lists.insert(name);
        }
        asked
    }

    fn resources(&mut self, resources: &[Mapping<'_>]) {
        let mut seen = BTreeMap::new();
        for entry in resources {
            entry.note_unknown(&["resource", "policies"], &mut self.notes);
            let Some(resource) = entry.text("resource", &mut self.notes) else {
                self.notes.add(&entry.place, "names no resource; left out");
                continue;
            };
            if let Some(first) = seen.insert(resource.clone(), entry.place.clone()) {
                self.notes.add(&entry.place, format!("resource `{resource}` stands at {first}, too; merged"));
            }
            let Texts::Given(ids) = entry.texts("policies", &mut self.notes) else {
                self.notes
                    .add(&entry.place, format!("resource `{resource}` names no policies: nobody may use it"));
                continue;
            };
            for id in ids {
                match self.access.grants.iter_mut().find(|grant| grant.id == id) {
                    Some(grant) => {
                        grant.resources.insert(resource.clone());
                    }
                    None => self.notes.add(
                        &entry.at("policies"),
                        format!("policy `{id}` for resource `{resource}` does not exist: it opens nothing"),
                    ),
                }
            }
        }
    }

    fn compare_with_runners(&mut self, runners: &[ImportedRunner]) {
        let opened: BTreeSet<String> =
            self.access.grants.iter().flat_map(|grant| grant.resources.clone()).collect();
        let defines = |runner: &ImportedRunner, name: &str| {
            runner.name == name || runner.labels.iter().any(|l| l == name)
        };
        for name in &opened {
            if !runners.iter().any(|runner| defines(runner, name)) {
                self.notes.add(".cirun.global.yml", format!("no runner is defined for resource `{name}`"));
            }
        }
        for runner in runners {
            if !opened.iter().any(|name| defines(runner, name)) {
                self.notes.add(".cirun.global.yml", format!("no policy opens runner `{}`", runner.name));
            }
        }
    }

    fn finish(mut self) -> Access {
        if !self.options.forks
            && self.access.grants.iter().any(|grant| grant.events.contains(&EventClass::PullRequest))
        {
            self.notes.add(
                ".access.yml",
                "`pull_request: true` says nothing about forks: imported for pull requests of the same repository \
                 only; import with forks, or add \"fork-pull-request\" to a grant's events, to cover them",
            );
        }
        self.access.logins =
            self.directory.logins.into_iter().map(|(id, login)| (id.into(), login)).collect();
        self.access.notes = self.notes.0;
        self.access
    }
}
