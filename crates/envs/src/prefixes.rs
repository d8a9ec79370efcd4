//! The folder of all prefixes, and how a prefix appears in it: whole or not at all.
//!
//! ```text
//! <32 characters of base 32>/             a prefix; complete when its marker says so
//!     .forgeyard-complete                 marker: the lock's digest; written last, before the rename
//!     conda-meta/frozen                   CEP 22: package managers leave it alone
//! .staging/<name>-<process>-<number>/     a prefix in the making
//! .staging/<name>-<process>-<number>.lock held (flock) by the process that makes it
//! ```
//!
//! A prefix is installed in its staging folder with its final path baked in, compared with its lock, synced, marked and
//! renamed. Two that make the same prefix at the same time do not disturb each other: the second rename finds the first
//! prefix, and what it made is dropped. Staging folders whose lock nobody holds are what a crash left; [`Root::sweep`]
//! removes them.

use crate::Lock;
use crate::conda::{installed, same_as};
use crate::explain::{at, because};
use crate::lock::{NAME_LENGTH, is_prefix_name};
use forgeyard_model::{Digest, Explanation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MARKER: &str = ".forgeyard-complete";
const STAGING: &str = ".staging";

/// Longest prefix. Packages reserve 255 characters for it; the rest is room for what programs append.
const MAX_PREFIX: usize = 220;

/// Numbers staging folders of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The folder of all prefixes.
#[derive(Debug, Clone)]
pub struct Root {
    path: PathBuf,
}

/// What the marker says.
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    lock_digest: Digest,
}

impl Root {
    /// Opens the folder and makes it when it is missing.
    pub fn open(path: &Path) -> Result<Self, Explanation> {
        let refuse = |why: &str| {
            let message = format!("{} cannot be the folder of environments: {why}", path.display());
            let fix = "name an absolute path of letters, digits and `/._-`, the same on every host that uses environments";
            Explanation::new("environment.root_unusable", message).fix(fix)
        };
        let text = path.to_str().ok_or_else(|| refuse("its path is not UTF-8"))?;
        if !path.is_absolute() || path.components().any(|part| matches!(part, Component::ParentDir)) {
            return Err(refuse("its path is not absolute"));
        }
        // The path is written into scripts and, after `#!`, read by the kernel, which knows no quoting.
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@".contains(&byte)) {
            return Err(refuse("its path has characters that scripts would have to quote"));
        }
        let length = text.len() + 1 + NAME_LENGTH;
        if length > MAX_PREFIX {
            return Err(refuse(&format!(
                "a prefix in it has {length} characters, and {MAX_PREFIX} is the most"
            )));
        }
        // Without `.` parts and doubled slashes, so that equal folders bake equal paths.
        let path: PathBuf = path.components().collect();
        let staging = path.join(STAGING);
        std::fs::create_dir_all(&staging).map_err(|error| at("making", &staging, &error))?;
        Ok(Self { path })
    }

    /// Where the prefix of a lock is or will be.
    pub fn prefix(&self, lock: &Lock) -> Result<PathBuf, Explanation> {
        Ok(self.path.join(lock.prefix_name()))
    }

    /// Begins to make the prefix of a lock; `None` when it is complete already. A prefix that a crash of the machine
    /// damaged is moved away first.
    pub async fn begin(&self, lock: &Lock) -> Result<Option<Staging>, Explanation> {
        let (root, lock) = (self.clone(), lock.clone());
        blocking(move || root.begin_now(&lock)).await
    }

    fn begin_now(&self, lock: &Lock) -> Result<Option<Staging>, Explanation> {
        let prefix = self.prefix(lock)?;
        if self.complete(&prefix, lock)? {
            return Ok(None);
        }
        let staging = self.stage(lock)?;
        if prefix.symlink_metadata().is_ok() {
            tracing::warn!(prefix = %prefix.display(), "the prefix has no valid marker; it is made anew");
            let aside = staging.folder.with_extension("damaged");
            std::fs::rename(&prefix, &aside).map_err(|error| at("moving away", &prefix, &error))?;
            if let Err(error) = std::fs::remove_dir_all(&aside) {
                tracing::warn!(folder = %aside.display(), %error, "a damaged prefix could not be removed; the next sweep tries again");
            }
        }
        Ok(Some(staging))
    }

    fn stage(&self, lock: &Lock) -> Result<Staging, Explanation> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{}-{number}", lock.prefix_name(), std::process::id());
            let folder = self.path.join(STAGING).join(&name);
            let path = folder.with_extension("lock");
            let open = File::options().create_new(true).write(true).open(&path);
            let held = match open {
                Ok(file) => file,
                // Left by an earlier process with our number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(at("creating", &path, &error)),
            };
            let locked = held.try_lock().is_ok();
            // A sweep may have found the file between its creation and the lock; then it is no longer the one there.
            let there = std::fs::metadata(&path).map(|found| found.ino()).ok();
            if !locked || there != held.metadata().map(|ours| ours.ino()).ok() {
                continue;
            }
            std::fs::create_dir(&folder).map_err(|error| at("making", &folder, &error))?;
            return Ok(Staging { root: self.clone(), lock: lock.clone(), folder, _held: Arc::new(held) });
        }
    }

    /// Whether the prefix is there and is what the lock says.
    fn complete(&self, prefix: &Path, lock: &Lock) -> Result<bool, Explanation> {
        let path = prefix.join(MARKER);
        let marker = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Marker>(&bytes).ok(),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(error) => return Err(at("reading", &path, &error)),
        };
        let Some(marker) = marker else { return Ok(false) };
        let difference = if marker.lock_digest != lock.digest() {
            Err(format!("its marker names the lock {}", marker.lock_digest))
        } else {
            same_as(lock, &installed(prefix)?)
        };
        difference.map(|()| true).map_err(|difference| {
            let message = format!("the environment in {} was changed after it was made", prefix.display());
            let fix = "stop what uses it and remove it; it is made anew when it is asked for next";
            Explanation::new("environment.prefix_damaged", message).with(difference).fix(fix)
        })
    }

    /// Names of the complete prefixes, sorted.
    pub fn list(&self) -> Result<Vec<String>, Explanation> {
        let mut names = Vec::new();
        let listing = |error| at("listing", &self.path, &error);
        for entry in std::fs::read_dir(&self.path).map_err(listing)? {
            let entry = entry.map_err(listing)?;
            if let Ok(name) = entry.file_name().into_string()
                && is_prefix_name(&name)
                && entry.path().join(MARKER).is_file()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Removes a prefix: it is gone from its place at once, its files after that. Answers whether it was there.
    pub async fn remove(&self, name: &str) -> Result<bool, Explanation> {
        if !is_prefix_name(name) {
            return Err(Explanation::new(
                "environment.request_invalid",
                format!("`{name}` is not the name of a prefix"),
            ));
        }
        let (root, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let prefix = root.path.join(&name);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let aside =
                root.path.join(STAGING).join(format!("{name}-{}-{number}.removed", std::process::id()));
            match std::fs::rename(&prefix, &aside) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(at("removing", &prefix, &error)),
            }
            std::fs::remove_dir_all(&aside).map_err(|error| at("removing", &aside, &error))?;
            Ok(true)
        })
        .await
    }

    /// Removes what crashes left in staging. Answers how many folders went.
    pub async fn sweep(&self) -> Result<u64, Explanation> {
        let root = self.clone();
        blocking(move || root.sweep_now()).await
    }

    fn sweep_now(&self) -> Result<u64, Explanation> {
        let staging = self.path.join(STAGING);
        let listing = |error| at("listing", &staging, &error);
        let mut folders = Vec::new();
        let mut live = BTreeSet::new();
        for entry in std::fs::read_dir(&staging).map_err(listing)? {
            let path = entry.map_err(listing)?.path();
            if path.extension().is_none_or(|extension| extension != "lock") {
                folders.push(path);
                continue;
            }
            // Whoever is at work holds the lock. One that went away since the listing is none of ours.
            match File::options().write(true).open(&path) {
                Ok(file) if file.try_lock().is_ok() => {
                    let folder = path.with_extension("");
                    if removed(&folder)? {
                        std::fs::remove_file(&path).map_err(|error| at("removing", &path, &error))?;
                    } else {
                        live.insert(folder);
                    }
                }
                _ => {
                    live.insert(path.with_extension(""));
                }
            }
        }
        let mut swept = 0;
        for folder in folders {
            // A folder beside a lock went with it; one that is being removed or moved away belongs to a live one.
            if live.contains(&folder) || live.contains(&folder.with_extension("")) {
                continue;
            }
            swept += u64::from(removed(&folder)?);
        }
        if swept > 0 {
            tracing::info!(root = %self.path.display(), swept, "removed unfinished environments of an earlier run");
        }
        Ok(swept)
    }
}

/// Removes a folder of nobody; whether it is gone. One in which something is still written, by a task whose environment was refused
/// meanwhile, is left to the next sweep.
fn removed(folder: &Path) -> Result<bool, Explanation> {
    match std::fs::remove_dir_all(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            tracing::info!(folder = %folder.display(), "something is still written there; the next sweep removes it");
            Ok(false)
        }
        Err(error) => Err(at("removing", folder, &error)),
    }
}

/// A prefix in the making. Dropping it drops what was made.
#[derive(Debug)]
pub struct Staging {
    root: Root,
    lock: Lock,
    folder: PathBuf,
    _held: Arc<File>,
}

impl Staging {
    /// Where to install to.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Compares what was installed with the lock, marks it complete and gives it its name.
    pub async fn commit(self) -> Result<(), Explanation> {
        blocking(move || self.commit_now()).await
    }

    fn commit_now(self) -> Result<(), Explanation> {
        same_as(&self.lock, &installed(&self.folder)?).map_err(|difference| {
            let message = "what was installed is not what was locked";
            let fix = "try again; when it stays, look at the package cache and at the index of the channel";
            Explanation::new("environment.digest_mismatch", message).with(difference).fix(fix)
        })?;
        self.freeze()?;
        let open = |path: &Path| File::open(path).map_err(|error| at("opening", path, &error));
        // One call for all files of the prefix; syncing 100,000 of them one by one would take minutes.
        nix::unistd::syncfs(open(&self.folder)?)
            .map_err(|errno| at("syncing", &self.folder, &errno.into()))?;
        let marker = serde_json::to_vec(&Marker { lock_digest: self.lock.digest() }).map_err(|error| {
            because(Explanation::new("environment.internal", "the marker could not be written"), &error)
        })?;
        let path = self.folder.join(MARKER);
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(&marker)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| at("writing", &path, &error))?;

        let prefix = self.root.prefix(&self.lock)?;
        match std::fs::rename(&self.folder, &prefix) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                // Somebody else was first. Theirs is as good as ours, or it is damaged and the caller hears of it.
                if !self.root.complete(&prefix, &self.lock)? {
                    return Err(at("naming", &prefix, &error));
                }
            }
            Err(error) => return Err(at("naming", &prefix, &error)),
        }
        open(&self.root.path)?.sync_all().map_err(|error| at("syncing", &self.root.path, &error))
    }

    /// Tells package managers to leave the prefix alone: CEP 22 for conda, PEP 668 for pip.
    fn freeze(&self) -> Result<(), Explanation> {
        let message = "this environment is immutable; ask the farm for another one";
        let path = self.folder.join("conda-meta/frozen");
        let frozen = serde_json::json!({ "message": message }).to_string();
        std::fs::write(&path, frozen).map_err(|error| at("writing", &path, &error))?;
        let Ok(entries) = std::fs::read_dir(self.folder.join("lib")) else { return Ok(()) };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with("python")
                && entry.path().join("os.py").exists()
            {
                let path = entry.path().join("EXTERNALLY-MANAGED");
                let text = format!("[externally-managed]\nError={message}\n");
                std::fs::write(&path, text).map_err(|error| at("writing", &path, &error))?;
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is swept later: the lock is let go with this value.
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = std::fs::remove_file(self.folder.with_extension("lock"));
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Explanation> + Send + 'static,
) -> Result<T, Explanation> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        because(
            Explanation::new("environment.internal", "a step on the disk ended without an answer"),
            &error,
        )
    })?
}

#[cfg(test)]
#[path = "prefixes_tests.rs"]
mod tests;
