//! Fetches commits with the `git` program into one bare cache per repository, and reads trees out of it.
//!
//! Layout: `CACHE/FORGE/ID.git`, bare. The ref `refs/heads/main` of the source is kept as `refs/forgeyard/` and the
//! SHA-256 of its name in hexadecimal, so that no foreign name becomes a path here and names can never get in each
//! other's way.
//!
//! Invariants:
//! - sources come from the operator's configuration, never from a webhook, and only over `file`, `ssh` or `https`;
//! - a commit is used only when it is reachable from the ref that the event names. Hosts serve every commit of a fork
//!   network from every member of it, so that a commit exists proves nothing;
//! - git runs without shell, prompts, hooks, submodules, the user's or the system's configuration, and under a time
//!   limit that ends its whole process group;
//! - nothing of a tree is ever checked out. [`GitSource::export`] gives equal bytes for equal trees, and refuses symbolic
//!   links that leave the tree;
//! - the pipeline file of a pull request is read from its base.
//!
//! One process uses a cache at a time; inside it, fetches into one repository wait for each other. Nothing is collected:
//! deleting a repository's folder while no fetch runs is safe and costs one full fetch.

mod command;
mod names;
mod tree;

pub use names::{Commit, GitRef, NameError, Source};
pub use tree::ExportedTree;

use command::Git;
use forgeyard_formats::pipeline_file::{self, PipelineFileError};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::{ForgeEvent, Trigger};
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::{Digest, ForgeName};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why something about a repository could not be done.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// A source, ref or commit is not well formed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event names no ref, so that no commit can be shown to belong to it.
    #[error(
        "an event by hand names no ref of {repository}: there is nothing that a commit could be checked against"
    )]
    NoRef {
        /// The repository.
        repository: String,
    },
    /// The `git` program could not be started.
    #[error("cannot start `{program}`: {error}")]
    Start {
        /// Its path.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It took too long and was ended.
    #[error("git {step} of {object} took longer than {} s and was ended", limit.as_secs())]
    Timeout {
        /// What it was doing.
        step: &'static str,
        /// With what.
        object: String,
        /// The limit.
        limit: Duration,
    },
    /// It failed.
    #[error("git {step} of {object} failed: {message}")]
    Failed {
        /// What it was doing.
        step: &'static str,
        /// With what.
        object: String,
        /// The end of what it said.
        message: String,
    },
    /// It gave more than is taken.
    #[error("git {step} of {object} gave more than {limit} bytes")]
    TooMuch {
        /// What it was doing.
        step: &'static str,
        /// With what.
        object: String,
        /// The limit.
        limit: u64,
    },
    /// The source has no such ref.
    #[error("{git_ref} does not exist at {origin}: it was deleted, or never was")]
    RefMissing {
        /// The ref.
        git_ref: GitRef,
        /// The source.
        origin: String,
    },
    /// The source gave no such commit.
    #[error(
        "commit {commit} is not in the history of {git_ref} at {origin}: it was replaced by a force push, or never was there"
    )]
    CommitMissing {
        /// The commit.
        commit: Commit,
        /// The ref.
        git_ref: GitRef,
        /// The source.
        origin: String,
    },
    /// The commit exists and is not part of the ref.
    #[error("commit {commit} exists, but is not part of {git_ref} at {origin}: refused")]
    NotReachable {
        /// The commit.
        commit: Commit,
        /// The ref.
        git_ref: GitRef,
        /// The source.
        origin: String,
    },
    /// A symbolic link points out of the tree.
    #[error("`{path}` of commit {commit} is a symbolic link to `{target}`, which leaves the tree: refused")]
    LinkLeavesTree {
        /// The commit.
        commit: Commit,
        /// The link.
        path: String,
        /// Where it points.
        target: String,
    },
    /// The tree holds a name that cannot be written safely.
    #[error("commit {commit} holds the path `{path}`, which is not a plain relative path: refused")]
    BadPath {
        /// The commit.
        commit: Commit,
        /// The path.
        path: String,
    },
    /// What is at a path is no file.
    #[error("`{path}` of commit {commit} is {kind}, not a file")]
    NotAFile {
        /// The commit.
        commit: Commit,
        /// The path.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// The pipeline file cannot be used.
    #[error("commit {commit}: {error}")]
    PipelineFile {
        /// The commit that it was read from.
        commit: Commit,
        /// Why.
        error: PipelineFileError,
    },
    /// The cache folder could not be used.
    #[error("cannot {step} {path}: {error}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl GitError {
    /// Whether trying again can help: the source was out of reach or slow, not wrong.
    pub fn transient(&self) -> bool {
        matches!(
            self,
            GitError::Timeout { .. } | GitError::Failed { step: "fetch", .. } | GitError::Io { .. }
        )
    }
}

/// What to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// The forge.
    pub forge: ForgeName,
    /// Numeric id of the repository.
    pub repository: u64,
    /// Where from.
    pub source: Source,
    /// The commit to build.
    pub head: Commit,
    /// The ref that it must be part of.
    pub head_ref: GitRef,
    /// For a pull request: the base commit and the ref that it must be part of.
    pub base: Option<(Commit, GitRef)>,
}

impl FetchRequest {
    /// What an event asks for. The source comes from the farm's own record of the repository.
    pub fn for_event(event: &ForgeEvent, repository: &RepositoryConfig) -> Result<Self, GitError> {
        let (head_ref, base) = match &event.trigger {
            Trigger::Push { git_ref } => (git_ref.parse()?, None),
            Trigger::PullRequest { number, base, base_sha, .. } => {
                let base_ref: GitRef = format!("refs/heads/{base}").parse()?;
                (GitRef::pull_request(*number), Some((base_sha.parse()?, base_ref)))
            }
            Trigger::Manual => return Err(GitError::NoRef { repository: repository.name.clone() }),
        };
        Ok(Self {
            forge: repository.forge.clone(),
            repository: repository.id,
            source: repository.source.parse()?,
            head: event.head_sha.parse()?,
            head_ref,
            base,
        })
    }
}

/// A fetched and checked head, with its base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    cache: PathBuf,
    /// The commit to build.
    pub head: Commit,
    /// The base commit of a pull request.
    pub base: Option<Commit>,
}

impl Fetched {
    /// The commit that the pipeline file is read from: the base of a pull request, or the pushed commit itself.
    pub fn pipeline_file_commit(&self) -> &Commit {
        self.base.as_ref().unwrap_or(&self.head)
    }
}

/// Time limits.
#[derive(Debug, Clone, Copy)]
struct Limits {
    fetch: Duration,
    local: Duration,
}

/// Repositories fetched with `git`.
#[derive(Debug, Clone)]
pub struct GitSource {
    cache_dir: PathBuf,
    git: Git,
    limits: Limits,
    locks: Arc<Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>>,
}

impl GitSource {
    /// Uses this folder, which is made when it is not there.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        let cache_dir = cache_dir.into();
        Self {
            // git runs in the root folder, so a relative path would mean another place to it. Only an empty path has no
            // absolute form, and that one fails by name when the folder is made.
            cache_dir: std::path::absolute(&cache_dir).unwrap_or(cache_dir),
            git: Git::new("git"),
            limits: Limits { fetch: Duration::from_secs(600), local: Duration::from_secs(120) },
            locks: Arc::default(),
        }
    }

    /// Uses another `git` program.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.git = Git::new(program);
        self
    }

    /// Gives a fetch this long.
    #[must_use]
    pub const fn with_fetch_limit(mut self, limit: Duration) -> Self {
        self.limits.fetch = limit;
        self
    }

    /// What `git version` says. Versions from 2.40 on can do everything that is used here.
    pub async fn version(&self) -> Result<String, GitError> {
        let out = self.git.run("version", "the program", self.limits.local).arg("version").output().await?;
        Ok(out.ok()?.text())
    }

    /// Fetches head and base and checks that each is part of its ref.
    pub async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, GitError> {
        let cache = self.cache_dir.join(request.forge.as_str()).join(format!("{}.git", request.repository));
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(cache.clone()).or_default())
        };
        let _only_one = lock.lock().await;
        self.prepare(&cache).await?;
        self.fetch_refs(&cache, request).await?;
        self.check(&cache, &request.source, &request.head, &request.head_ref).await?;
        if let Some((commit, git_ref)) = &request.base {
            self.check(&cache, &request.source, commit, git_ref).await?;
        }
        Ok(Fetched {
            cache,
            head: request.head.clone(),
            base: request.base.as_ref().map(|(commit, _)| commit.clone()),
        })
    }

    /// The pipeline file: from the base of a pull request, never from its head. Where there is none, the defaults.
    pub async fn pipeline_file(&self, fetched: &Fetched) -> Result<PipelineFile, GitError> {
        let commit = fetched.pipeline_file_commit();
        let limit = pipeline_file::LIMIT as u64;
        match self.read_file(fetched, commit, pipeline_file::NAME, limit).await? {
            None => Ok(PipelineFile::default()),
            Some(bytes) => pipeline_file::read(&bytes)
                .map_err(|error| GitError::PipelineFile { commit: commit.clone(), error }),
        }
    }

    /// Makes the bare cache, and makes it good again after a crash.
    async fn prepare(&self, cache: &Path) -> Result<(), GitError> {
        let io = |step, path: &Path| {
            let path = path.to_owned();
            move |error| GitError::Io { step, path, error }
        };
        std::fs::create_dir_all(cache).map_err(io("make", cache))?;
        // Under the lock of this repository nobody else is at work, so lock files here are left from a killed git.
        for place in [cache.to_owned(), cache.join("refs"), cache.join("refs/forgeyard")] {
            let Ok(entries) = std::fs::read_dir(&place) else { continue };
            for entry in
                entries.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "lock"))
            {
                std::fs::remove_file(entry.path()).map_err(io("remove", &entry.path()))?;
            }
        }
        let object = cache.display().to_string();
        // Doing this again changes nothing. No template: no sample hooks, no `info/exclude`.
        let init = self.git.run("init", &object, self.limits.local);
        init.args(["init", "--quiet", "--bare", "--template=", "--initial-branch=none"])
            .arg("--end-of-options")
            .arg(cache)
            .output()
            .await?
            .ok()?;
        // These outrank the attributes of the tree: an archive holds every file, byte for byte.
        let info = cache.join("info");
        std::fs::create_dir_all(&info).map_err(io("make", &info))?;
        let attributes = info.join("attributes");
        let text = "* -text -eol -ident -filter !working-tree-encoding -export-ignore -export-subst\n";
        std::fs::write(&attributes, text).map_err(io("write", &attributes))
    }

    async fn fetch_refs(&self, cache: &Path, request: &FetchRequest) -> Result<(), GitError> {
        let source = &request.source;
        let mut refs = vec![&request.head_ref];
        refs.extend(
            request.base.iter().map(|(_, git_ref)| git_ref).filter(|git_ref| **git_ref != request.head_ref),
        );
        let specs = refs.iter().map(|git_ref| OsString::from(format!("+{git_ref}:{}", kept_as(git_ref))));
        let object = source.to_string();
        let out = self
            .git
            .run("fetch", &object, self.limits.fetch)
            .git_dir(cache)
            .protocol(source.protocol())
            .args([
                "fetch",
                "--quiet",
                "--no-tags",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
                "--no-auto-gc",
            ])
            .args(["--force", "--end-of-options"])
            .arg(source.argument())
            .args(specs)
            .output()
            .await?;
        if let Some(missing) = refs.iter().find(|git_ref| out.says_missing(git_ref.as_str())) {
            return Err(GitError::RefMissing { git_ref: (*missing).clone(), origin: object });
        }
        out.ok().map(|_| ())
    }

    /// Whether a commit is part of a ref that was just fetched.
    async fn check(
        &self,
        cache: &Path,
        source: &Source,
        commit: &Commit,
        git_ref: &GitRef,
    ) -> Result<(), GitError> {
        let object = commit.to_string();
        let local = |step| self.git.run(step, &object, self.limits.local).git_dir(cache);
        // `^{commit}` refuses ids of trees, blobs and tags.
        let exists =
            local("cat-file").args(["cat-file", "-e"]).arg(format!("{commit}^{{commit}}")).output().await?;
        if !exists.success() {
            return Err(GitError::CommitMissing {
                commit: commit.clone(),
                git_ref: git_ref.clone(),
                origin: source.to_string(),
            });
        }
        let out = local("merge-base")
            .args(["merge-base", "--is-ancestor", "--end-of-options"])
            .arg(commit.as_str())
            .arg(kept_as(git_ref))
            .output()
            .await?;
        match out.code() {
            Some(0) => Ok(()),
            Some(1) => Err(GitError::NotReachable {
                commit: commit.clone(),
                git_ref: git_ref.clone(),
                origin: source.to_string(),
            }),
            _ => out.ok().map(|_| ()),
        }
    }
}

/// The name in the cache of a ref of the source.
fn kept_as(git_ref: &GitRef) -> String {
    format!("refs/forgeyard/{}", Digest::of(git_ref.as_str().as_bytes()).hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_folder_is_the_same_place_for_git_and_for_the_farm() {
        assert!(GitSource::new("cache").cache_dir.is_absolute());
    }
}
