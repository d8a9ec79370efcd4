//! What the index of the store cannot tell: which keys begin so, and which artifacts a run has.
//!
//! ```text
//! <store>/github/catalog.log    a line for each change: CRC-32 in hexadecimal, a space, JSON of [`Line`]
//! ```
//!
//! - It is a hint beside the store and is never believed without it: what it names and the store no longer has is a miss,
//!   and is forgotten. What the store has and it does not name is still found by its whole key.
//! - A line that a crash cut off, or that is damaged, is read over. The file is written anew at a start when most of it is
//!   history; a crash in between leaves the old one.
//! - Objects of sccache are not in it. There is one for each object file, and sccache never searches; their keys would fill
//!   the memory for nothing.

use crate::scope::ScopePath;
use crate::store::StoreError;
use forgeyard_model::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries that one search looks at, so that one that mostly finds evicted ones ends.
const MOST_TRIED: usize = 64;

/// An artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Scope of the job that made it.
    pub scope: ScopePath,
    /// Its run.
    pub run: String,
    /// Its job.
    pub job: String,
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: i64,
    /// Its bytes.
    pub size: u64,
    /// Their digest.
    pub digest: Digest,
    /// Type of the content.
    pub mime: String,
    /// When it was stored.
    pub at: Timestamp,
    /// When it may go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// An entry of the cache is there.
    Entry {
        /// Its scope.
        scope: ScopePath,
        /// Its version.
        version: String,
        /// Its key.
        key: String,
        /// Since when.
        at: Timestamp,
    },
    /// An artifact is there.
    Artifact(Artifact),
    /// An artifact is gone.
    Gone {
        /// Its scope.
        scope: ScopePath,
        /// Its run.
        run: String,
        /// Its name.
        name: String,
    },
    /// The number that the next artifact gets.
    Next(i64),
}

/// Reads a line; nothing for one that is damaged.
pub fn read_line(line: &str) -> Option<Line> {
    let (crc, json) = line.split_once(' ')?;
    let crc = u32::from_str_radix(crc, 16).ok().filter(|_| crc.len() == 8)?;
    if crc32fast::hash(json.as_bytes()) != crc {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn written(line: &Line) -> String {
    let json = serde_json::to_string(line).unwrap_or_default();
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

type Keys = BTreeMap<String, Timestamp>;

#[derive(Default)]
struct Known {
    entries: BTreeMap<(ScopePath, String), Keys>,
    artifacts: BTreeMap<(ScopePath, String), BTreeMap<String, Artifact>>,
    next: i64,
}

impl Known {
    fn apply(&mut self, line: Line) {
        match line {
            Line::Entry { scope, version, key, at } => {
                self.entries.entry((scope, version)).or_default().insert(key, at);
            }
            Line::Artifact(artifact) => {
                self.next = self.next.max(artifact.id + 1);
                let run = (artifact.scope.clone(), artifact.run.clone());
                self.artifacts.entry(run).or_default().insert(artifact.name.clone(), artifact);
            }
            Line::Gone { scope, run, name } => {
                let run = (scope, run);
                if let Some(artifacts) = self.artifacts.get_mut(&run) {
                    artifacts.remove(&name);
                    if artifacts.is_empty() {
                        self.artifacts.remove(&run);
                    }
                }
            }
            Line::Next(next) => self.next = self.next.max(next),
        }
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        let entries = self.entries.iter().flat_map(|((scope, version), keys)| {
            keys.iter().map(|(key, at)| Line::Entry {
                scope: scope.clone(),
                version: version.clone(),
                key: key.clone(),
                at: *at,
            })
        });
        let artifacts = self.artifacts.values().flat_map(BTreeMap::values);
        std::iter::once(Line::Next(self.next))
            .chain(entries)
            .chain(artifacts.map(|artifact| Line::Artifact(artifact.clone())))
    }
}

/// The catalog.
pub(crate) struct Catalog {
    known: Mutex<Known>,
    file: Mutex<File>,
    path: PathBuf,
    sync: bool,
}

impl Catalog {
    /// Opens the catalog in this folder. With `sync` every change is on the disk before it counts.
    pub(crate) fn open(folder: &Path, sync: bool) -> Result<Self, StoreError> {
        let path = folder.join("catalog.log");
        let text = match fs_err::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StoreError::io("reading", &path)(error)),
        };
        let mut known = Known { next: 1, ..Known::default() };
        let mut read = 0usize;
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            read += 1;
            match std::str::from_utf8(line).ok().and_then(read_line) {
                Some(line) => known.apply(line),
                None => tracing::warn!("a damaged line of {} is read over", path.display()),
            }
        }
        let live = known.lines().count();
        if read > 1000 + 2 * live || text.last().is_some_and(|byte| *byte != b'\n') {
            let beside = path.with_extension("new");
            let lines: String = known.lines().map(|line| written(&line)).collect();
            let failed = StoreError::io("writing", &beside);
            let write = || {
                let mut file = File::create(&beside)?;
                file.write_all(lines.as_bytes())?;
                file.sync_data()?;
                std::fs::rename(&beside, &path)
            };
            write().map_err(failed)?;
        }
        let file = File::options().create(true).append(true).open(&path);
        let file = Mutex::new(file.map_err(StoreError::io("opening", &path))?);
        Ok(Self { known: Mutex::new(known), file, path, sync })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a change down, then makes it. Blocks where changes are synced.
    fn change(&self, line: Line) -> Result<(), StoreError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(written(&line).as_bytes()).map_err(StoreError::io("writing", &self.path))?;
        if self.sync {
            file.sync_data().map_err(StoreError::io("syncing", &self.path))?;
        }
        drop(file);
        self.known().apply(line);
        Ok(())
    }

    /// An entry is there.
    pub(crate) fn entry(
        &self,
        scope: &ScopePath,
        version: &str,
        key: &str,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let (scope, version, key) = (scope.clone(), version.to_owned(), key.to_owned());
        self.change(Line::Entry { scope, version, key, at })
    }

    /// The newest entry whose key begins so and which is there, as `there` says. Those that are not are forgotten.
    pub(crate) fn newest(
        &self,
        scope: &ScopePath,
        version: &str,
        prefix: &str,
        mut there: impl FnMut(&str) -> bool,
    ) -> Option<String> {
        let place = (scope.clone(), version.to_owned());
        for _ in 0..MOST_TRIED {
            let newest = {
                let known = self.known();
                let keys = known.entries.get(&place)?.range(prefix.to_owned()..);
                let some = keys.take_while(|(key, _)| key.starts_with(prefix));
                some.max_by_key(|(_, at)| **at).map(|(key, _)| key.clone())
            }?;
            if there(&newest) {
                return Some(newest);
            }
            // history is left in the file: a start finds the same
            if let Some(keys) = self.known().entries.get_mut(&place) {
                keys.remove(&newest);
            }
        }
        None
    }

    /// Number for a new artifact.
    pub(crate) fn number(&self) -> i64 {
        let mut known = self.known();
        known.next += 1;
        known.next - 1
    }

    /// An artifact is there.
    pub(crate) fn add(&self, artifact: Artifact) -> Result<(), StoreError> {
        self.change(Line::Artifact(artifact))
    }

    /// An artifact is gone.
    pub(crate) fn drop_artifact(&self, artifact: &Artifact) -> Result<(), StoreError> {
        let Artifact { scope, run, name, .. } = artifact.clone();
        self.change(Line::Gone { scope, run, name })
    }

    /// Artifacts of a run, by number.
    pub(crate) fn artifacts(&self, scope: &ScopePath, run: &str) -> Vec<Artifact> {
        let known = self.known();
        let run = known.artifacts.get(&(scope.clone(), run.to_owned()));
        let mut all: Vec<Artifact> = run.into_iter().flat_map(BTreeMap::values).cloned().collect();
        all.sort_by_key(|artifact| artifact.id);
        all
    }

    /// One artifact of a run.
    pub(crate) fn artifact(&self, scope: &ScopePath, run: &str, name: &str) -> Option<Artifact> {
        self.known().artifacts.get(&(scope.clone(), run.to_owned()))?.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VERSION: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn scope() -> ScopePath {
        "p/main".parse().unwrap()
    }

    fn artifact(id: i64, name: &str) -> Artifact {
        Artifact {
            scope: scope(),
            run: "r".to_owned(),
            job: "j".to_owned(),
            name: name.to_owned(),
            id,
            size: 1,
            digest: Digest::of(b"x"),
            mime: String::new(),
            at: Timestamp::from_micros(1),
            expires_at: None,
        }
    }

    #[test]
    fn newest_key_that_begins_so_is_found_also_after_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), true).unwrap();
        for (key, at) in [("linux-a", 3), ("linux-b", 5), ("linux-c", 4), ("mac-a", 9)] {
            catalog.entry(&scope(), VERSION, key, Timestamp::from_micros(at)).unwrap();
        }
        catalog.entry(&scope(), "another version", "linux-z", Timestamp::from_micros(99)).unwrap();
        for catalog in [catalog, Catalog::open(folder.path(), false).unwrap()] {
            let find = |prefix: &str| catalog.newest(&scope(), VERSION, prefix, |_| true);
            assert_eq!(find("linux-").as_deref(), Some("linux-b"));
            assert_eq!(find("").as_deref(), Some("mac-a"));
            assert_eq!(find("windows"), None);
            let evicted = catalog.newest(&scope(), VERSION, "linux-", |key| key != "linux-b");
            assert_eq!(evicted.as_deref(), Some("linux-c"));
            assert_eq!(find("linux-z"), None);
        }
    }

    #[test]
    fn line_that_a_crash_cut_off_is_read_over_and_numbers_are_never_given_twice() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), false).unwrap();
        let (first, second) = (catalog.number(), catalog.number());
        assert_eq!((first, second), (1, 2));
        catalog.add(artifact(first, "a")).unwrap();
        catalog.add(artifact(second, "b")).unwrap();
        catalog.drop_artifact(&artifact(second, "b")).unwrap();
        drop(catalog);
        let path = folder.path().join("catalog.log");
        let mut bytes = fs_err::read(&path).unwrap();
        bytes.extend_from_slice(&written(&Line::Artifact(artifact(9, "cut"))).as_bytes()[..30]);
        fs_err::write(&path, bytes).unwrap();
        for _ in 0..2 {
            let catalog = Catalog::open(folder.path(), false).unwrap();
            assert_eq!(catalog.artifacts(&scope(), "r"), [artifact(1, "a")]);
            assert!(catalog.number() >= 3);
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in "\\PC{0,80}", at in 0usize..60, with: u8) {
            let _ = read_line(&line);
            let good = written(&Line::Artifact(artifact(1, "a")));
            prop_assert!(read_line(good.trim_end()).is_some());
            let mut changed = good.clone().into_bytes();
            changed[at] = with;
            if let Ok(changed) = String::from_utf8(changed) && changed != good && at > 8 {
                prop_assert_eq!(read_line(changed.trim_end()), None);
            }
        }
    }
}
