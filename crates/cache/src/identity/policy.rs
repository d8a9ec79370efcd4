//! What a job of a forge may do, from what its believed token says. Pure, and by numeric ids: names of repositories and the
//! `sub` of a token can be had by others later (caches.md §4.2).
//!
//! | event | scope | writes |
//! |---|---|---|
//! | GitHub `push`, `schedule`, `workflow_dispatch` on the protected default branch | `main` | yes |
//! | GitHub `pull_request` | `pulls`/number | yes |
//! | GitLab `push`, `schedule`, `web` on the protected default branch | `main` | yes |
//! | GitLab `merge_request_event` | `pulls`/number | yes |
//! | everything else: `pull_request_target`, `issue_comment`, `workflow_run`, other branches, tags | `main` | no |
//! | a runtime token of GitHub that writes to a pull request | `pulls`/number | yes |
//! | any other runtime token of GitHub | `main` | no |
//!
//! The events of the last but two lines run with the rights of the base branch on what somebody else wrote; that is how
//! caches were poisoned in 2026.

use super::jwt::Claims;
use crate::github::Backend;
use crate::scope::{ScopePath, ScopeTree};
use crate::token::Access;
use serde::{Deserialize, Serialize};

/// Which tokens an issuer makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IssuerKind {
    /// Identity tokens of GitHub Actions.
    Github,
    /// Identity tokens of GitLab.
    Gitlab,
    /// `ACTIONS_RUNTIME_TOKEN` of GitHub Actions, the one credential that a job of a fork has. Undocumented by GitHub, so
    /// it is off unless it is declared, and never gives more than the scope of a pull request.
    GithubRuntime,
}

/// An issuer whose tokens are exchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Issuer {
    /// Which tokens it makes.
    pub kind: IssuerKind,
    /// Its name, exactly as its tokens carry it: `https://token.actions.githubusercontent.com`.
    pub issuer: String,
    /// Address of its keys; below the issuer when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// For whom tokens must be made. Needed for identity tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// How long a token of the cache holds that is given for one.
    #[serde(default = "four")]
    pub hours: u32,
    /// Whose tokens.
    #[serde(default)]
    pub projects: Vec<Project>,
}

const fn four() -> u32 {
    4
}

fn main_branch() -> String {
    "main".to_owned()
}

/// A repository or project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Project {
    /// Its number at the forge: `repository_id` or `project_id`.
    pub id: u64,
    /// The number of its owner: `repository_owner_id` or `namespace_id`.
    pub owner: u64,
    /// Scope of its default branch.
    pub main: ScopePath,
    /// Family of scopes of its pull requests.
    pub pulls: ScopePath,
    /// Name of its default branch.
    #[serde(default = "main_branch")]
    pub default_branch: String,
}

impl Issuer {
    /// Address of the keys.
    pub fn key_url(&self) -> String {
        let below = match self.kind {
            IssuerKind::Github | IssuerKind::GithubRuntime => "/.well-known/jwks",
            IssuerKind::Gitlab => "/oauth/discovery/keys",
        };
        self.keys.clone().unwrap_or_else(|| format!("{}{below}", self.issuer.trim_end_matches('/')))
    }

    /// What is wrong with it, if anything is.
    pub fn wrong(&self, tree: &ScopeTree) -> Option<String> {
        let url = self.key_url();
        let loopback = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"];
        if !url.starts_with("https://") && !loopback.iter().any(|begin| url.starts_with(begin)) {
            return Some(format!(
                "its keys are fetched from `{url}`, which is neither https nor this machine"
            ));
        }
        if self.kind != IssuerKind::GithubRuntime && self.audience.as_deref().is_none_or(str::is_empty) {
            return Some("it has no audience, so tokens made for anybody else would do".to_owned());
        }
        self.projects.iter().find_map(|project| {
            let Project { id, main, pulls, .. } = project;
            if tree.of(main).is_none() {
                return Some(format!("project {id} names the scope `{main}`, which is not declared"));
            }
            let family = tree.rules().any(|rule| rule.family && rule.path == *pulls && !rule.trusted);
            (!family).then(|| format!("project {id} names `{pulls}`, which is no untrusted family of scopes"))
        })
    }
}

/// What is given for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The scope.
    pub scope: ScopePath,
    /// Read or write.
    pub access: Access,
    /// Who, for provenance.
    pub principal: String,
    /// The run.
    pub run: String,
    /// Why not more, in a sentence; for the log and the caller.
    pub reason: &'static str,
}

/// Why nothing is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The project is not declared, or belongs to somebody else now.
    #[error("no project with this number and owner is declared for this issuer")]
    Project,
}

/// What a believed token gets.
pub fn decide(issuer: &Issuer, claims: &Claims) -> Result<Decision, Refused> {
    let (id, owner, run, job) = match issuer.kind {
        IssuerKind::Github | IssuerKind::GithubRuntime => {
            ("repository_id", "repository_owner_id", "run_id", "check_run_id")
        }
        IssuerKind::Gitlab => ("project_id", "namespace_id", "pipeline_id", "job_id"),
    };
    let id = claims.number(id).ok_or(Refused::Project)?;
    // a runtime token does not say who owns the repository
    let owned = |project: &&Project| match (issuer.kind, claims.number(owner)) {
        (IssuerKind::GithubRuntime, None) => true,
        (_, owner) => owner == Some(project.owner),
    };
    let project = issuer.projects.iter().filter(|project| project.id == id).find(owned);
    let project = project.ok_or(Refused::Project)?;
    let (scope, access, reason) = match issuer.kind {
        IssuerKind::Github => github(project, claims),
        IssuerKind::Gitlab => gitlab(project, claims),
        IssuerKind::GithubRuntime => runtime(project, claims),
    };
    let forge = if issuer.kind == IssuerKind::Gitlab { "gitlab" } else { "github" };
    let number = |name: &str| claims.number(name).map_or_else(String::new, |number| number.to_string());
    // a runtime token names run and job with other ids
    let (run, job) = match Backend::read(claims.text("scp")) {
        Some(ids) if issuer.kind == IssuerKind::GithubRuntime => (ids.run, ids.job),
        _ => (format!("{}.{}", number(run), claims.number("run_attempt").unwrap_or(1)), number(job)),
    };
    let principal = if job.is_empty() { format!("{forge}/{id}") } else { format!("{forge}/{id}/{job}") };
    Ok(Decision { scope, access, principal, run, reason })
}

type Given = (ScopePath, Access, &'static str);

fn reads(project: &Project, reason: &'static str) -> Given {
    (project.main.clone(), Access::Read, reason)
}

/// The scope of a pull request, by its number.
fn pull(project: &Project, reference: &str, before: &str, after: &[&str]) -> Option<ScopePath> {
    let (number, rest) = reference.strip_prefix(before)?.split_once('/')?;
    let plain = !number.is_empty() && number.len() < 12 && number.bytes().all(|b| b.is_ascii_digit());
    (plain && after.contains(&rest)).then(|| format!("{}/{number}", project.pulls).parse().ok())?
}

fn github(project: &Project, claims: &Claims) -> Given {
    let reference = claims.text("ref");
    match claims.text("event_name") {
        "push" | "schedule" | "workflow_dispatch" | "merge_group" => {
            let main = reference.strip_prefix("refs/heads/") == Some(&project.default_branch);
            if main && claims.truth("ref_protected") {
                return (project.main.clone(), Access::Write, "the protected default branch");
            }
            reads(project, "only the protected default branch writes here")
        }
        "pull_request" => match pull(project, reference, "refs/pull/", &["merge", "head"]) {
            Some(scope) => (scope, Access::Write, "a pull request writes its own scope"),
            None => reads(project, "the reference is not that of a pull request"),
        },
        _ => reads(
            project,
            "this event may run on what somebody else wrote, with the rights of the base branch",
        ),
    }
}

fn gitlab(project: &Project, claims: &Claims) -> Given {
    match claims.text("pipeline_source") {
        "push" | "schedule" | "web" => {
            let main = claims.text("ref_type") == "branch" && claims.text("ref") == project.default_branch;
            if main && claims.truth("ref_protected") {
                return (project.main.clone(), Access::Write, "the protected default branch");
            }
            reads(project, "only the protected default branch writes here")
        }
        "merge_request_event" => {
            let reference = claims.text("ref_path");
            match pull(project, reference, "refs/merge-requests/", &["merge", "head", "train"]) {
                Some(scope) => (scope, Access::Write, "a merge request writes its own scope"),
                None => reads(project, "the reference is not that of a merge request"),
            }
        }
        _ => reads(project, "this source of pipelines writes nothing here"),
    }
}

/// Permission bits of the claim `ac`: 1 reads, 2 writes.
fn runtime(project: &Project, claims: &Claims) -> Given {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Scope {
        scope: String,
        permission: u64,
    }
    let scopes: Vec<Scope> = serde_json::from_str(claims.text("ac")).unwrap_or_default();
    let mut written = scopes.iter().filter(|scope| scope.permission & 2 != 0);
    match (written.next(), written.next()) {
        (Some(one), None) => match pull(project, &one.scope, "refs/pull/", &["merge", "head"]) {
            Some(scope) => (scope, Access::Write, "a pull request writes its own scope"),
            None => reads(project, "a runtime token writes to pull requests only"),
        },
        _ => reads(project, "the runtime token does not say which one scope it writes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn issuer(kind: IssuerKind) -> Issuer {
        let project = Project {
            id: 100,
            owner: 7,
            main: "p/main".parse().unwrap(),
            pulls: "p/pr".parse().unwrap(),
            default_branch: "main".to_owned(),
        };
        Issuer {
            kind,
            issuer: "https://issuer".to_owned(),
            keys: None,
            audience: Some("cache".to_owned()),
            hours: 4,
            projects: vec![project],
        }
    }

    fn given(kind: IssuerKind, claims: Value) -> Option<(String, Access)> {
        let decision = decide(&issuer(kind), &Claims::from_json(claims).unwrap()).ok()?;
        Some((decision.scope.to_string(), decision.access))
    }

    fn github(event: &str, reference: &str, protected: &str) -> Option<(String, Access)> {
        let claims = json!({"repository_id": "100", "repository_owner_id": "7", "event_name": event, "ref": reference,
            "ref_protected": protected, "run_id": "4711", "run_attempt": "2"});
        given(IssuerKind::Github, claims)
    }

    #[test]
    fn only_trusted_events_on_the_protected_default_branch_write_main() {
        let main = |access| Some(("p/main".to_owned(), access));
        for event in ["push", "schedule", "workflow_dispatch"] {
            assert_eq!(github(event, "refs/heads/main", "true"), main(Access::Write), "{event}");
            assert_eq!(github(event, "refs/heads/main", "false"), main(Access::Read), "{event}");
            for other in ["refs/heads/main2", "refs/tags/main", "refs/heads/x/main", "main", ""] {
                assert_eq!(github(event, other, "true"), main(Access::Read), "{event} {other}");
            }
        }
        for event in ["pull_request_target", "issue_comment", "workflow_run", "release", "Push", ""] {
            assert_eq!(github(event, "refs/heads/main", "true"), main(Access::Read), "{event}");
        }
    }

    #[test]
    fn pull_request_writes_its_own_scope_and_no_other() {
        let pull = github("pull_request", "refs/pull/7/merge", "false");
        assert_eq!(pull, Some(("p/pr/7".to_owned(), Access::Write)));
        for wrong in [
            "refs/pull/../merge",
            "refs/pull/7/../8/merge",
            "refs/pull/7",
            "refs/heads/main",
            "refs/pull//merge",
        ] {
            assert_eq!(
                github("pull_request", wrong, "true"),
                Some(("p/main".to_owned(), Access::Read)),
                "{wrong}"
            );
        }
    }

    #[test]
    fn name_of_a_repository_is_worth_nothing() {
        let claims = |id: &str, owner: &str| {
            json!({"repository_id": id, "repository_owner_id": owner, "repository": "octo/p", "sub": "repo:octo/p:ref:refs/heads/main",
                "event_name": "push", "ref": "refs/heads/main", "ref_protected": "true"})
        };
        assert!(given(IssuerKind::Github, claims("100", "7")).is_some());
        assert_eq!(given(IssuerKind::Github, claims("101", "7")), None, "a new repository with the old name");
        assert_eq!(given(IssuerKind::Github, claims("100", "8")), None, "transferred to somebody else");
        assert_eq!(given(IssuerKind::Github, json!({"repository": "octo/p"})), None);
    }

    #[test]
    fn gitlab_is_decided_by_source_and_protection() {
        let of = |source: &str, kind: &str, reference: &str, path: &str| {
            given(
                IssuerKind::Gitlab,
                json!({"project_id": "100", "namespace_id": "7", "pipeline_source": source,
                "ref_type": kind, "ref": reference, "ref_path": path, "ref_protected": "true"}),
            )
        };
        assert_eq!(of("push", "branch", "main", ""), Some(("p/main".to_owned(), Access::Write)));
        assert_eq!(of("push", "tag", "main", ""), Some(("p/main".to_owned(), Access::Read)));
        assert_eq!(of("trigger", "branch", "main", ""), Some(("p/main".to_owned(), Access::Read)));
        let merge = of("merge_request_event", "branch", "main", "refs/merge-requests/3/head");
        assert_eq!(merge, Some(("p/pr/3".to_owned(), Access::Write)));
        assert_eq!(
            of("merge_request_event", "branch", "main", "refs/heads/main"),
            Some(("p/main".to_owned(), Access::Read))
        );
    }

    #[test]
    fn runtime_token_never_writes_more_than_one_pull_request() {
        let of = |ac: Value| {
            given(IssuerKind::GithubRuntime, json!({"repository_id": "100", "ac": ac.to_string()}))
        };
        let fork = json!([{"Scope": "refs/pull/7/merge", "Permission": 3}, {"Scope": "refs/heads/main", "Permission": 1}]);
        assert_eq!(of(fork), Some(("p/pr/7".to_owned(), Access::Write)));
        let read = Some(("p/main".to_owned(), Access::Read));
        assert_eq!(of(json!([{"Scope": "refs/heads/main", "Permission": 3}])), read);
        let two = json!([{"Scope": "refs/pull/7/merge", "Permission": 3}, {"Scope": "refs/pull/8/merge", "Permission": 2}]);
        assert_eq!(of(two), read);
        assert_eq!(of(json!("rubbish")), read);
    }

    #[test]
    fn issuer_without_audience_or_with_open_scopes_is_refused() {
        let rule = |path: &str| crate::scope::ScopeRule::new(path.parse().unwrap());
        let family = crate::scope::ScopeRule { family: true, ..rule("p/pr") };
        let tree = ScopeTree::new([rule("p/main"), family]).unwrap();
        assert_eq!(issuer(IssuerKind::Github).wrong(&tree), None);
        let changed = |change: fn(&mut Issuer)| {
            let mut issuer = issuer(IssuerKind::Github);
            change(&mut issuer);
            issuer.wrong(&tree).is_some()
        };
        assert!(changed(|issuer| issuer.audience = None));
        assert!(changed(|issuer| issuer.keys = Some("http://example.com/keys".to_owned())));
        assert!(changed(|issuer| issuer.projects[0].main = "p/other".parse().unwrap()));
        assert!(changed(|issuer| issuer.projects[0].pulls = "p/main".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn whatever_a_token_says_main_is_written_by_the_protected_branch_only(
            event in "(push|schedule|pull_request|pull_request_target|workflow_run|[a-z_]{0,9})",
            reference in "(refs/heads/main|refs/pull/[0-9]{1,3}/merge|\\PC{0,20})",
            protected in "(true|false|)", ac in "\\PC{0,40}", kind in 0..3usize,
        ) {
            let kind = [IssuerKind::Github, IssuerKind::Gitlab, IssuerKind::GithubRuntime][kind];
            let claims = json!({"repository_id": 100, "repository_owner_id": 7, "project_id": 100, "namespace_id": 7,
                "event_name": event, "pipeline_source": event, "ref": reference, "ref_path": reference, "ref_type": "branch",
                "ref_protected": protected, "ac": ac});
            let (scope, access) = given(kind, claims).unwrap();
            if scope == "p/main" && access == Access::Write {
                prop_assert!(protected == "true" && kind != IssuerKind::GithubRuntime && reference.ends_with("main"));
            }
            prop_assert!(scope == "p/main" || scope.strip_prefix("p/pr/").is_some_and(|n| n.parse::<u64>().is_ok()));
        }
    }
}
