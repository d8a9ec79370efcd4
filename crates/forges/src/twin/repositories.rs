//! Repositories of the simulated GitHub: who may do what in them, their files, pull requests and environments.

use super::clock::iso;
use super::state::State;
use forgeyard_formats::webhook::compose::ComposedRepository;
use forgeyard_model::forge::Person;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What holds a job that names an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentRule {
    /// Nothing.
    Open,
    /// It waits until somebody approves.
    Reviewers,
    /// It waits this long.
    Wait(Duration),
}

/// An environment of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Numeric id.
    pub id: u64,
    /// Its rule.
    pub rule: EnvironmentRule,
}

/// A pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// Number in its repository.
    pub number: u64,
    /// Who opened it.
    pub author: Person,
    /// Repository that its commits come from.
    pub head_repository: u64,
    /// Branch that they come from.
    pub head: String,
    /// Head commit.
    pub head_sha: String,
    /// Branch that it wants to change.
    pub base: String,
    /// Commit of the base.
    pub base_sha: String,
    /// Whether it is open.
    pub open: bool,
}

/// A repository.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Numeric id.
    pub id: u64,
    /// Account that owns it.
    pub owner: u64,
    /// Name without the owner.
    pub name: String,
    /// Default branch.
    pub default_branch: String,
    /// Whether it is private.
    pub private: bool,
    /// The repository that it is a fork of.
    pub fork_of: Option<u64>,
    /// Whether workflows may run.
    pub actions_enabled: bool,
    /// Whether it may have runners of its own.
    pub own_runners: bool,
    /// Permission by account: `admin`, `maintain`, `write`, `triage`, `read`.
    pub permissions: BTreeMap<u64, String>,
    /// Files of the default branch.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Environments by name.
    pub environments: BTreeMap<String, Environment>,
    /// Pull requests by number.
    pub pulls: BTreeMap<u64, Pull>,
    /// Commits of each branch on which something ran, the newest last.
    pub branches: BTreeMap<String, Vec<String>>,
    pub(super) run_number: u64,
    pub(super) workflows: BTreeSet<String>,
}

impl State {
    /// Adds a repository, `owner/name`; the owner becomes an organisation when it is not there yet.
    pub fn add_repository(&mut self, full_name: &str) -> u64 {
        let (owner, name) = full_name.split_once('/').unwrap_or(("simulated", full_name));
        let owner = match self.account_by_login(owner) {
            Some(account) => account.id,
            None => self.add_organization(owner),
        };
        self.insert_repository(owner, name, None)
    }

    /// Adds a fork of a repository for this person.
    pub fn add_fork(&mut self, of: u64, owner: &Person) -> u64 {
        let name = self.repositories.get(&of).map(|of| of.name.clone()).unwrap_or_default();
        self.insert_repository(owner.id, &name, Some(of))
    }

    fn insert_repository(&mut self, owner: u64, name: &str, fork_of: Option<u64>) -> u64 {
        self.numbers.repository += 1;
        let id = self.numbers.repository;
        let repository = Repository {
            id,
            owner,
            name: name.to_owned(),
            default_branch: "main".to_owned(),
            private: false,
            fork_of,
            actions_enabled: true,
            own_runners: true,
            permissions: BTreeMap::from([(owner, "admin".to_owned())]),
            files: BTreeMap::new(),
            environments: BTreeMap::new(),
            pulls: BTreeMap::new(),
            branches: BTreeMap::new(),
            run_number: 0,
            workflows: BTreeSet::new(),
        };
        self.repositories.insert(id, repository);
        id
    }

    /// A repository, to be changed.
    pub fn repository_mut(&mut self, id: u64) -> Option<&mut Repository> {
        self.repositories.get_mut(&id)
    }

    /// The repository `owner/name`, whatever the letter case.
    pub fn repository_by_name(&self, full_name: &str) -> Option<&Repository> {
        let (owner, name) = full_name.split_once('/')?;
        let owner = self.account_by_login(owner)?.id;
        self.repositories.values().find(|one| one.owner == owner && one.name.eq_ignore_ascii_case(name))
    }

    /// `owner/name` of a repository.
    pub fn full_name(&self, id: u64) -> String {
        let Some(repository) = self.repositories.get(&id) else { return "ghost/ghost".to_owned() };
        let owner = self.accounts.get(&repository.owner).map_or("ghost", |owner| owner.login.as_str());
        format!("{owner}/{}", repository.name)
    }

    /// Gives a person a permission in a repository.
    pub fn set_permission(&mut self, repository: u64, person: &Person, permission: &str) {
        if let Some(repository) = self.repositories.get_mut(&repository) {
            repository.permissions.insert(person.id, permission.to_owned());
        }
    }

    /// Puts an environment with a rule into a repository.
    pub fn add_environment(&mut self, repository: u64, name: &str, rule: EnvironmentRule) {
        self.numbers.hook += 1;
        let id = self.numbers.hook;
        if let Some(repository) = self.repositories.get_mut(&repository) {
            repository.environments.insert(name.to_owned(), Environment { id, rule });
        }
    }

    pub(super) fn composed(&self, id: u64) -> Option<ComposedRepository> {
        let repository = self.repositories.get(&id)?;
        Some(ComposedRepository {
            id,
            full_name: self.full_name(id),
            owner: self.accounts.get(&repository.owner)?.person(),
            default_branch: repository.default_branch.clone(),
            fork: repository.fork_of.is_some(),
        })
    }

    /// A repository in full (`repository` of the description).
    pub(super) fn repository_json(&self, id: u64) -> Value {
        let mut body = self.minimal_repository_json(id);
        let page = format!("{}/{}", self.urls.html, self.full_name(id));
        let Some(repository) = self.repositories.get(&id) else { return body };
        let more = json!({
            "clone_url": format!("{page}.git"), "git_url": format!("{page}.git"),
            "ssh_url": format!("{page}.git"), "svn_url": page, "mirror_url": null, "homepage": null,
            "default_branch": repository.default_branch, "language": null, "license": null,
            "forks": 0, "forks_count": 0, "open_issues": 0, "open_issues_count": 0, "size": 0,
            "stargazers_count": 0, "watchers": 0, "watchers_count": 0,
            "has_downloads": true, "has_issues": true, "has_projects": false, "has_wiki": false,
            "has_pages": false, "has_discussions": false, "archived": false, "disabled": false,
            "visibility": if repository.private { "private" } else { "public" },
            "pushed_at": iso(self.setup.now), "created_at": iso(self.setup.now), "updated_at": iso(self.setup.now),
        });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        body
    }

    /// What of a repository is read by those who count and decide; for simulations with many webhooks.
    pub(super) fn short_repository_json(&self, id: u64) -> Value {
        let full_name = self.full_name(id);
        let repository = self.repositories.get(&id);
        let owner = repository.and_then(|one| self.accounts.get(&one.owner));
        json!({
            "id": id,
            "name": full_name.split('/').nth(1),
            "full_name": full_name,
            "private": repository.is_some_and(|one| one.private),
            "fork": repository.is_some_and(|one| one.fork_of.is_some()),
            "default_branch": repository.map(|one| one.default_branch.clone()),
            "owner": {
                "login": owner.map(|owner| owner.login.clone()),
                "id": owner.map(|owner| owner.id),
                "type": if owner.is_some_and(|owner| owner.organization) { "Organization" } else { "User" },
            },
        })
    }

    /// A repository as it stands inside other answers (`minimal-repository`).
    pub(super) fn minimal_repository_json(&self, id: u64) -> Value {
        let full_name = self.full_name(id);
        let url = format!("{}/repos/{full_name}", self.urls.api);
        let owner = self.repositories.get(&id).map_or(0, |repository| repository.owner);
        let mut body = json!({
            "id": id,
            "node_id": format!("simulated-repository-{id}"),
            "name": full_name.split('/').nth(1),
            "full_name": full_name,
            "private": self.repositories.get(&id).is_some_and(|repository| repository.private),
            "owner": self.account_json(owner),
            "html_url": format!("{}/{full_name}", self.urls.html),
            "description": null,
            "fork": self.repositories.get(&id).is_some_and(|repository| repository.fork_of.is_some()),
            "url": url,
        });
        if let Some(fields) = body.as_object_mut() {
            for (field, path) in LINKS {
                fields.insert((*field).to_owned(), json!(format!("{url}{path}")));
            }
        }
        body
    }
}

/// Links of a repository that other answers must carry.
const LINKS: &[(&str, &str)] = &[
    ("archive_url", "/{archive_format}{/ref}"),
    ("assignees_url", "/assignees{/user}"),
    ("blobs_url", "/git/blobs{/sha}"),
    ("branches_url", "/branches{/branch}"),
    ("collaborators_url", "/collaborators{/collaborator}"),
    ("comments_url", "/comments{/number}"),
    ("commits_url", "/commits{/sha}"),
    ("compare_url", "/compare/{base}...{head}"),
    ("contents_url", "/contents/{+path}"),
    ("contributors_url", "/contributors"),
    ("deployments_url", "/deployments"),
    ("downloads_url", "/downloads"),
    ("events_url", "/events"),
    ("forks_url", "/forks"),
    ("git_commits_url", "/git/commits{/sha}"),
    ("git_refs_url", "/git/refs{/sha}"),
    ("git_tags_url", "/git/tags{/sha}"),
    ("hooks_url", "/hooks"),
    ("issue_comment_url", "/issues/comments{/number}"),
    ("issue_events_url", "/issues/events{/number}"),
    ("issues_url", "/issues{/number}"),
    ("keys_url", "/keys{/key_id}"),
    ("labels_url", "/labels{/name}"),
    ("languages_url", "/languages"),
    ("merges_url", "/merges"),
    ("milestones_url", "/milestones{/number}"),
    ("notifications_url", "/notifications{?since,all,participating}"),
    ("pulls_url", "/pulls{/number}"),
    ("releases_url", "/releases{/id}"),
    ("stargazers_url", "/stargazers"),
    ("statuses_url", "/statuses/{sha}"),
    ("subscribers_url", "/subscribers"),
    ("subscription_url", "/subscription"),
    ("tags_url", "/tags"),
    ("teams_url", "/teams"),
    ("trees_url", "/git/trees{/sha}"),
];
