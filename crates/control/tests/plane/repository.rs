//! A real git repository, as a forge keeps it, and webhook bodies about it. The bodies are *simulated*: composed here.

use super::webhook_secret;
use forgeyard_formats::webhook::compose::{ComposedPullRequest, ComposedPush, ComposedRepository, Signed};
use forgeyard_model::forge::Person;
use forgeyard_testkit::build::{REPOSITORY, person};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const AT: &str = "2026-01-31T12:00:00Z";

/// A bare repository and a clone to write with.
pub struct Repository {
    folder: TempDir,
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let out = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.invalid"])
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(out.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

impl Repository {
    /// One with a recipe and a pipeline file on `main`.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet", "--bare", "--initial-branch=main", "forge.git"]);
        git(folder.path(), &["clone", "--quiet", "forge.git", "work"]);
        let repository = Self { folder };
        git(&repository.work(), &["checkout", "--quiet", "-B", "main"]);
        repository.write("forgeyard.toml", "recipe = 'recipe/recipe.yaml'\n");
        repository.write("recipe/recipe.yaml", "package:\n  name: fy-tiny\n");
        repository.commit("first");
        repository
    }

    pub fn source(&self) -> PathBuf {
        self.folder.path().join("forge.git")
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.work().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Commits to `main` and pushes it.
    pub fn commit(&self, message: &str) -> String {
        git(&self.work(), &["add", "--all", "."]);
        git(&self.work(), &["commit", "--quiet", "--allow-empty", "-m", message]);
        git(&self.work(), &["push", "--quiet", "origin", "main"]);
        self.head()
    }

    pub fn head(&self) -> String {
        git(&self.work(), &["rev-parse", "HEAD"])
    }

    /// Commits a change that is only on pull request 1.
    pub fn pull_request_commit(&self, message: &str) -> String {
        git(&self.work(), &["checkout", "--quiet", "-B", "topic"]);
        git(&self.work(), &["commit", "--quiet", "--allow-empty", "-m", message]);
        git(&self.work(), &["push", "--quiet", "--force", "origin", "HEAD:refs/pull/1/head"]);
        let head = self.head();
        git(&self.work(), &["checkout", "--quiet", "main"]);
        head
    }

    /// The webhook of a push of `main` to this commit.
    pub fn pushed(&self, sha: &str) -> Signed {
        push(sha)
    }

    /// The webhook of pull request 1 at this commit.
    pub fn pull_request(&self, action: &str, sha: &str) -> Signed {
        let body = ComposedPullRequest {
            action: action.to_owned(),
            repository: repository(),
            number: 1,
            title: "a change".to_owned(),
            base: "main".to_owned(),
            base_sha: self.head(),
            head_repository: repository(),
            head: "topic".to_owned(),
            head_sha: sha.to_owned(),
            before: self.head(),
            author: person(),
            sender: person(),
            installation: 1,
            at: AT.to_owned(),
        };
        body.signed(&webhook_secret()).unwrap()
    }
}

/// The repository that the configuration of the builders works for.
pub fn repository() -> ComposedRepository {
    ComposedRepository {
        id: REPOSITORY,
        full_name: "octo/demo".to_owned(),
        owner: Person { id: 1, login: "octo".to_owned() },
        default_branch: "main".to_owned(),
        fork: false,
    }
}

/// The webhook of a push to `main`.
pub fn push(sha: &str) -> Signed {
    let body = ComposedPush {
        repository: repository(),
        git_ref: "refs/heads/main".to_owned(),
        before: Some("1".repeat(40)),
        after: Some(sha.to_owned()),
        message: "a change".to_owned(),
        sender: person(),
        installation: 1,
        at: AT.to_owned(),
    };
    body.signed(&webhook_secret()).unwrap()
}
