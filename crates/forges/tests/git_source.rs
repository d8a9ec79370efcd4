//! Claims about fetching, shown with the real `git` program on real repositories in temporary folders.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use forgeyard_forges::{Commit, FetchRequest, GitError, GitSource};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A bare repository as a forge keeps it, a clone to write with, and a cache.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        fixture
            .git(fixture.folder.path(), &["init", "--quiet", "--bare", "--initial-branch=main", "forge.git"]);
        fixture.git(fixture.folder.path(), &["clone", "--quiet", "forge.git", "work"]);
        fixture.git(&fixture.work(), &["checkout", "--quiet", "-B", "main"]);
        fixture.write("forgeyard.toml", "recipe = 'honest/recipe.yaml'\n");
        fixture.write("honest/recipe.yaml", "one\n");
        fixture.commit("first");
        fixture.git(&fixture.work(), &["push", "--quiet", "origin", "main"]);
        fixture
    }

    fn git(&self, folder: &Path, arguments: &[&str]) -> String {
        let out = Command::new("git")
            .args([
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@example.invalid",
                "-c",
                "protocol.file.allow=always",
            ])
            .args(arguments)
            .current_dir(folder)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(out.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn forge(&self) -> PathBuf {
        self.folder.path().join("forge.git")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.work().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn commit(&self, message: &str) -> String {
        self.git(&self.work(), &["add", "--all", "."]);
        self.git(&self.work(), &["commit", "--quiet", "--allow-empty", "-m", message]);
        self.head()
    }

    fn head(&self) -> String {
        self.git(&self.work(), &["rev-parse", "HEAD"])
    }

    /// Pushes what is checked out as the head of pull request 1.
    fn push_pull_request(&self) {
        self.git(&self.work(), &["push", "--quiet", "--force", "origin", "HEAD:refs/pull/1/head"]);
    }

    fn source(&self) -> GitSource {
        GitSource::new(self.folder.path().join("cache"))
    }

    fn config(&self) -> RepositoryConfig {
        RepositoryConfig {
            forge: "github".parse().unwrap(),
            id: 1,
            name: "widgets/widget".to_owned(),
            source: self.forge().to_str().unwrap().to_owned(),
            protected: vec!["main".to_owned()],
            channel: "gpu".parse().unwrap(),
            sites: Default::default(),
        }
    }

    fn event(&self, trigger: Trigger, head: &str) -> ForgeEvent {
        ForgeEvent {
            repository: Repository {
                forge: "github".parse().unwrap(),
                id: 1,
                name: "widgets/widget".to_owned(),
            },
            trigger,
            head_sha: head.to_owned(),
            sender: Person { id: 2, login: "stranger".to_owned() },
            author: None,
        }
    }

    fn push(&self, git_ref: &str, head: &str) -> Result<FetchRequest, GitError> {
        let trigger = Trigger::Push { git_ref: git_ref.to_owned() };
        FetchRequest::for_event(&self.event(trigger, head), &self.config())
    }

    fn pull_request(&self, base_sha: &str, head: &str) -> FetchRequest {
        let trigger = Trigger::PullRequest {
            number: 1,
            base: "main".to_owned(),
            base_sha: base_sha.to_owned(),
            head_repository: 9,
            fork: true,
        };
        FetchRequest::for_event(&self.event(trigger, head), &self.config()).unwrap()
    }

    fn tar(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn commit(text: &str) -> Commit {
    text.parse().unwrap()
}

#[tokio::test]
async fn pushed_commit_is_fetched_and_its_own_pipeline_file_counts() {
    let fixture = Fixture::new();
    let source = fixture.source();
    let head = fixture.head();
    let fetched = source.fetch(&fixture.push("refs/heads/main", &head).unwrap()).await.unwrap();
    assert_eq!(fetched.pipeline_file_commit().as_str(), head);
    assert_eq!(source.pipeline_file(&fetched).await.unwrap().recipe, "honest/recipe.yaml");
    // Again, on the cache that is there now.
    source.fetch(&fixture.push("refs/heads/main", &head).unwrap()).await.unwrap();
    assert!(source.version().await.unwrap().starts_with("git version "));
}

#[tokio::test]
async fn pipeline_file_of_a_pull_request_is_read_from_its_base_and_not_from_its_head() {
    let fixture = Fixture::new();
    let base = fixture.head();
    fixture.git(&fixture.work(), &["checkout", "--quiet", "-b", "topic"]);
    fixture.write("forgeyard.toml", "recipe = 'evil/recipe.yaml'\n");
    let head = fixture.commit("evil");
    fixture.push_pull_request();

    let source = fixture.source();
    let fetched = source.fetch(&fixture.pull_request(&base, &head)).await.unwrap();
    assert_eq!(source.pipeline_file(&fetched).await.unwrap().recipe, "honest/recipe.yaml");
    assert_eq!(fetched.pipeline_file_commit().as_str(), base);
    let evil = source.read_file(&fetched, &fetched.head, "forgeyard.toml", 1000).await.unwrap().unwrap();
    assert_eq!(evil, b"recipe = 'evil/recipe.yaml'\n");
}

#[tokio::test]
async fn pull_request_that_adds_a_pipeline_file_does_not_get_it_used() {
    let fixture = Fixture::new();
    std::fs::remove_file(fixture.work().join("forgeyard.toml")).unwrap();
    let base = fixture.commit("none");
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "main"]);
    fixture.write("forgeyard.toml", "recipe = 'evil/recipe.yaml'\n");
    let head = fixture.commit("evil");
    fixture.push_pull_request();
    let source = fixture.source();
    let fetched = source.fetch(&fixture.pull_request(&base, &head)).await.unwrap();
    assert_eq!(source.pipeline_file(&fetched).await.unwrap().recipe, "recipe/recipe.yaml");
}

#[tokio::test]
async fn commit_that_is_not_part_of_the_ref_is_refused_although_it_exists() {
    let fixture = Fixture::new();
    let base = fixture.head();
    fixture.git(&fixture.work(), &["checkout", "--quiet", "-b", "topic"]);
    let foreign = fixture.commit("only in the pull request");
    fixture.push_pull_request();
    let source = fixture.source();
    source.fetch(&fixture.pull_request(&base, &foreign)).await.unwrap();
    // Now the cache holds it. It still is not part of main, neither as head nor as base.
    let error = source.fetch(&fixture.push("refs/heads/main", &foreign).unwrap()).await.unwrap_err();
    assert!(matches!(error, GitError::NotReachable { .. }), "{error}");
    let error = source.fetch(&fixture.pull_request(&foreign, &foreign)).await.unwrap_err();
    assert!(matches!(error, GitError::NotReachable { .. }), "{error}");
    assert!(!error.transient());
}

#[tokio::test]
async fn missing_commit_ref_and_source_are_named() {
    let fixture = Fixture::new();
    let (source, head) = (fixture.source(), fixture.head());
    let nowhere = "1".repeat(40);
    let error = source.fetch(&fixture.push("refs/heads/main", &nowhere).unwrap()).await.unwrap_err();
    assert!(matches!(error, GitError::CommitMissing { .. }), "{error}");
    let error = source.fetch(&fixture.push("refs/heads/gone", &head).unwrap()).await.unwrap_err();
    assert!(matches!(error, GitError::RefMissing { .. }), "{error}");
    assert!(error.to_string().starts_with("refs/heads/gone does not exist at "), "{error}");
    let tree = fixture.git(&fixture.work(), &["rev-parse", "HEAD^{tree}"]);
    let error = source.fetch(&fixture.push("refs/heads/main", &tree).unwrap()).await.unwrap_err();
    assert!(matches!(error, GitError::CommitMissing { .. }), "a tree is no commit: {error}");

    let lost = RepositoryConfig { id: 2, source: "/does/not/exist.git".to_owned(), ..fixture.config() };
    let trigger = Trigger::Push { git_ref: "refs/heads/main".to_owned() };
    let request = FetchRequest::for_event(&fixture.event(trigger, &head), &lost).unwrap();
    let error = source.fetch(&request).await.unwrap_err();
    assert!(matches!(error, GitError::Failed { step: "fetch", .. }) && error.transient(), "{error}");
    assert!(error.to_string().contains("/does/not/exist.git"), "{error}");
}

#[tokio::test]
async fn head_replaced_by_a_force_push_is_refused() {
    let fixture = Fixture::new();
    let base = fixture.head();
    fixture.git(&fixture.work(), &["checkout", "--quiet", "-b", "topic"]);
    let old = fixture.commit("old");
    fixture.push_pull_request();
    fixture.git(&fixture.work(), &["reset", "--quiet", "--hard", &base]);
    fixture.write("new", "new");
    fixture.commit("new");
    fixture.push_pull_request();
    let error = fixture.source().fetch(&fixture.pull_request(&base, &old)).await.unwrap_err();
    assert!(matches!(error, GitError::CommitMissing { .. } | GitError::NotReachable { .. }), "{error}");
}

#[tokio::test]
async fn branch_that_becomes_a_folder_of_branches_is_fetched() {
    let fixture = Fixture::new();
    let (source, head) = (fixture.source(), fixture.head());
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "HEAD:refs/heads/a"]);
    source.fetch(&fixture.push("refs/heads/a", &head).unwrap()).await.unwrap();
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", ":refs/heads/a", "HEAD:refs/heads/a/b"]);
    source.fetch(&fixture.push("refs/heads/a/b", &head).unwrap()).await.unwrap();
}

#[tokio::test]
async fn refs_and_bases_that_are_options_never_reach_git() {
    let fixture = Fixture::new();
    let head = fixture.head();
    for git_ref in
        ["--upload-pack=touch /tmp/x", "refs/heads/--output=x", "refs/heads/a:refs/heads/b", "refs/heads/*"]
    {
        assert!(matches!(fixture.push(git_ref, &head), Err(GitError::Name(_))), "{git_ref}");
    }
    assert!(matches!(fixture.push("refs/heads/main", "--output=x"), Err(GitError::Name(_))));
    let event = fixture.event(Trigger::Manual, &head);
    assert!(matches!(FetchRequest::for_event(&event, &fixture.config()), Err(GitError::NoRef { .. })));
}

#[tokio::test]
async fn equal_trees_give_equal_archives_whatever_commit_they_belong_to() {
    let fixture = Fixture::new();
    let source = fixture.source();
    let first = fixture.head();
    fixture.write("honest/recipe.yaml", "two\n");
    let second = fixture.commit("changed");
    fixture.write("honest/recipe.yaml", "one\n");
    let third = fixture.commit("changed back");
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "main"]);
    let fetched = source.fetch(&fixture.push("refs/heads/main", &third).unwrap()).await.unwrap();
    let a = source.export(&fetched, &commit(&first), &fixture.tar("a.tar")).await.unwrap();
    let b = source.export(&fetched, &commit(&second), &fixture.tar("b.tar")).await.unwrap();
    let c = source.export(&fetched, &commit(&third), &fixture.tar("c.tar")).await.unwrap();
    assert_eq!((a.digest, a.size, a.files), (c.digest, c.size, 2));
    assert_ne!(a.digest, b.digest);
    assert_eq!(std::fs::read(fixture.tar("a.tar")).unwrap(), std::fs::read(fixture.tar("c.tar")).unwrap());
    assert_eq!(forgeyard_model::Digest::of(&std::fs::read(fixture.tar("a.tar")).unwrap()), a.digest);
}

#[tokio::test]
async fn attributes_of_the_tree_hide_and_change_nothing() {
    let fixture = Fixture::new();
    let text = "* text=auto eol=crlf\nsecret export-ignore\nversion export-subst ident\n";
    fixture.write(".gitattributes", text);
    fixture.write("secret", "hidden?\n");
    fixture.write("version", "$Format:%H$ $Id$\n");
    let head = fixture.commit("attributes");
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "main"]);
    let source = fixture.source();
    let fetched = source.fetch(&fixture.push("refs/heads/main", &head).unwrap()).await.unwrap();
    source.export(&fetched, &fetched.head, &fixture.tar("a.tar")).await.unwrap();
    let out = fixture.folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let status =
        Command::new("tar").arg("-xf").arg(fixture.tar("a.tar")).arg("-C").arg(&out).status().unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(out.join("secret")).unwrap(), "hidden?\n");
    assert_eq!(std::fs::read_to_string(out.join("version")).unwrap(), "$Format:%H$ $Id$\n");
}

#[tokio::test]
async fn links_inside_the_tree_are_kept_and_links_out_of_it_are_refused() {
    let fixture = Fixture::new();
    std::os::unix::fs::symlink("../honest/recipe.yaml", fixture.work().join("honest/again")).unwrap();
    let inside = fixture.commit("link inside");
    std::os::unix::fs::symlink("/etc", fixture.work().join("honest/evil")).unwrap();
    let outside = fixture.commit("link outside");
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "main"]);
    let source = fixture.source();
    let fetched = source.fetch(&fixture.push("refs/heads/main", &outside).unwrap()).await.unwrap();
    let tree = source.export(&fetched, &commit(&inside), &fixture.tar("a.tar")).await.unwrap();
    assert_eq!(tree.files, 3);
    let error = source.export(&fetched, &commit(&outside), &fixture.tar("b.tar")).await.unwrap_err();
    assert!(matches!(error, GitError::LinkLeavesTree { .. }), "{error}");
    assert!(!fixture.tar("b.tar").exists());
    // A pipeline file that is a link is refused, not followed; behind a link to a folder there is nothing.
    let read = |path| source.read_file(&fetched, &fetched.head, path, 100);
    assert!(matches!(read("honest/again").await, Err(GitError::NotAFile { kind: "a symbolic link", .. })));
    assert!(matches!(read("honest").await, Err(GitError::NotAFile { kind: "a folder", .. })));
    assert_eq!(read("honest/evil/passwd").await.unwrap(), None);
    assert!(matches!(read("../x").await, Err(GitError::BadPath { .. })));
    assert_eq!(read("*").await.unwrap(), None, "paths are no patterns");
    assert_eq!(read(":(top)forgeyard.toml").await.unwrap(), None, "paths are no patterns");
    let error = source.read_file(&fetched, &fetched.head, "forgeyard.toml", 3).await.unwrap_err();
    assert!(matches!(error, GitError::TooMuch { limit: 3, .. }), "{error}");
}

#[tokio::test]
async fn submodules_are_listed_and_never_fetched() {
    let fixture = Fixture::new();
    let inner = fixture.head();
    fixture.write(".gitmodules", "[submodule \"m\"]\n\tpath = m\n\turl = /does/not/exist\n");
    fixture.git(&fixture.work(), &["update-index", "--add", "--cacheinfo", &format!("160000,{inner},m")]);
    fixture.git(&fixture.work(), &["add", ".gitmodules"]);
    fixture.git(&fixture.work(), &["commit", "--quiet", "-m", "submodule"]);
    let head = fixture.head();
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "main"]);
    let source = fixture.source();
    let fetched = source.fetch(&fixture.push("refs/heads/main", &head).unwrap()).await.unwrap();
    let tree = source.export(&fetched, &fetched.head, &fixture.tar("a.tar")).await.unwrap();
    assert_eq!(tree.submodules, ["m"]);
    let read = source.read_file(&fetched, &fetched.head, "m", 10).await;
    assert!(matches!(read, Err(GitError::NotAFile { kind: "a submodule", .. })));
}

#[tokio::test]
async fn hooks_and_configuration_of_the_cache_do_not_run() {
    let fixture = Fixture::new();
    let (source, head) = (fixture.source(), fixture.head());
    let request = fixture.push("refs/heads/main", &head).unwrap();
    source.fetch(&request).await.unwrap();
    let cache = fixture.folder.path().join("cache/github/1.git");
    std::fs::create_dir_all(cache.join("hooks")).unwrap();
    let witness = fixture.folder.path().join("witness");
    let hook = cache.join("hooks/reference-transaction");
    std::fs::write(&hook, format!("#!/bin/sh\ntouch '{}'\n", witness.display())).unwrap();
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Lock files of a killed git do not block the next fetch.
    std::fs::write(cache.join("packed-refs.lock"), "").unwrap();
    fixture.git(&fixture.work(), &["push", "--quiet", "origin", "HEAD:refs/heads/other"]);
    source.fetch(&fixture.push("refs/heads/other", &head).unwrap()).await.unwrap();
    assert!(!witness.exists());
}

#[tokio::test]
async fn git_that_hangs_is_ended_with_its_children() {
    let fixture = Fixture::new();
    let program = fixture.folder.path().join("hanging-git");
    let child = fixture.folder.path().join("child");
    // The first calls go to the real git; the fetch starts a child and hangs.
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *' fetch '*) sleep 1000 & echo $! > '{}'; wait;; *) exec git \"$@\";; esac\n",
        child.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let source = fixture.source().with_program(&program).with_fetch_limit(Duration::from_secs(4));
    let error = source.fetch(&fixture.push("refs/heads/main", &fixture.head()).unwrap()).await.unwrap_err();
    assert!(matches!(error, GitError::Timeout { step: "fetch", .. }) && error.transient(), "{error}");
    let pid = std::fs::read_to_string(&child).unwrap();
    let stat = Path::new("/proc").join(pid.trim()).join("stat");
    for _ in 0..200 {
        // Gone, or a zombie that its new parent has not yet waited for.
        if std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z ")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the child {pid} of the ended git still runs");
}

#[tokio::test]
async fn git_that_is_not_there_is_named() {
    let fixture = Fixture::new();
    let source = fixture.source().with_program("/does/not/exist/git");
    let error = source.fetch(&fixture.push("refs/heads/main", &fixture.head()).unwrap()).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot start `/does/not/exist/git`"), "{error}");
}

#[tokio::test]
async fn fetches_at_once_into_one_repository_all_succeed() {
    let fixture = Fixture::new();
    let (source, head) = (fixture.source(), fixture.head());
    let mut tasks = Vec::new();
    for number in 0..6 {
        fixture.git(&fixture.work(), &["push", "--quiet", "origin", &format!("HEAD:refs/heads/b{number}")]);
        let (source, request) =
            (source.clone(), fixture.push(&format!("refs/heads/b{number}"), &head).unwrap());
        tasks.push(tokio::spawn(async move { source.fetch(&request).await }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}
