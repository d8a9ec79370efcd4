//! A real git repository for the tour: a protected branch, and a pull request with one commit.

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository and the commits that the webhooks speak of.
pub struct Repository {
    /// The bare repository.
    pub path: PathBuf,
    /// Commit of the protected branch before the merge.
    pub base: String,
    /// Commit of the pull request, and of the protected branch after the merge.
    pub head: String,
}

fn git(folder: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "Tour")
        .env("GIT_AUTHOR_EMAIL", "tour@forgeyard.invalid")
        .env("GIT_COMMITTER_NAME", "Tour")
        .env("GIT_COMMITTER_EMAIL", "tour@forgeyard.invalid")
        .output()
        .context("git cannot be run; install it")?;
    if !output.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes the repository from a folder of sources.
pub fn make(root: &Path, write: impl Fn(&Path) -> Result<()>) -> Result<Repository> {
    let (work, bare) = (root.join("work"), root.join("repository.git"));
    for old in [&work, &bare] {
        if old.exists() {
            fs_err::remove_dir_all(old)?;
        }
    }
    fs_err::create_dir_all(&work)?;
    write(&work)?;
    git(&work, &["init", "--quiet", "--initial-branch=main"])?;
    git(&work, &["add", "--all"])?;
    git(&work, &["commit", "--quiet", "--message", "First version"])?;
    let base = git(&work, &["rev-parse", "HEAD"])?;
    git(&work, &["checkout", "--quiet", "-b", "faster"])?;
    fs_err::write(work.join("NOTES"), "Measured on the farm.\n")?;
    git(&work, &["add", "--all"])?;
    git(&work, &["commit", "--quiet", "--message", "Say where it is measured"])?;
    let head = git(&work, &["rev-parse", "HEAD"])?;
    git(root, &["clone", "--quiet", "--bare", "work", "repository.git"])?;
    git(&bare, &["update-ref", "refs/heads/main", &base])?;
    git(&bare, &["update-ref", "refs/pull/1/head", &head])?;
    git(&bare, &["update-ref", "-d", "refs/heads/faster"])?;
    Ok(Repository { path: bare, base, head })
}

impl Repository {
    /// Merges the pull request: the protected branch moves to its commit.
    pub fn merge(&self) -> Result<()> {
        // Nobody else works here, so a lock is left from a git that was killed.
        let lock = self.path.join("refs/heads/main.lock");
        if lock.exists() {
            fs_err::remove_file(lock)?;
        }
        git(&self.path, &["update-ref", "refs/heads/main", &self.head, &self.base]).map(|_| ())
    }
}
