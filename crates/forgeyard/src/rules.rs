//! The files that a farm's rules are read from while it runs: `forgeyard.toml` and the access file that it names.
//!
//! Everything that decisions are made under can change: access, terms, members, repositories, pools, flavors, images, the
//! queue with its caps and budgets, `max-running`. What the program is built around cannot, and is named when it differs:
//! addresses, TLS, the database, connections to forges with their keys, the cache.

use crate::config::{FileConfig, HostSize};
use crate::output::Wrong;
use anyhow::Result;
use forgeyard_control::rules::{Read, RuleSource};
use forgeyard_model::{Digest, Explanation};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A configuration file, as it was when the farm was started.
pub struct FileRules {
    path: PathBuf,
    host: HostSize,
    started: FileConfig,
    stamp: Digest,
}

impl FileRules {
    /// Reads the file for the first time. Without a file there is nothing to read again.
    pub fn open(path: Option<&Path>, host: HostSize) -> Result<(FileConfig, Option<Self>)> {
        let Some(path) = path else { return Ok((FileConfig::read(None)?, None)) };
        // The bytes first: a change that comes between them and the reading is seen as one.
        let stamp = stamp(path);
        let started = FileConfig::read(Some(path))?;
        let rules = Self { path: path.to_owned(), host, started: started.clone(), stamp };
        Ok((started, Some(rules)))
    }
}

/// Keys that differ and count from a start alone.
fn only_at_a_start(old: &FileConfig, new: &FileConfig) -> Vec<String> {
    let cases = [
        ("listen", old.listen != new.listen),
        ("local-listen", old.local_listen != new.local_listen),
        ("public-url", old.public_url != new.public_url),
        ("database", old.database != new.database),
        ("tls", old.tls != new.tls),
        ("webhook-secret-file", old.webhook_secret_file != new.webhook_secret_file),
        ("forges", old.forges != new.forges),
        ("artifact-limit-mib", old.artifact_limit_mib != new.artifact_limit_mib),
        ("simulated-beside-real", old.simulated_beside_real != new.simulated_beside_real),
        ("cache", old.cache != new.cache),
    ];
    cases.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key.to_owned()).collect()
}

/// The files that belong to a configuration file.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    // A file that cannot be read names no access file; the mistake is in its own bytes.
    all.extend(FileConfig::read(Some(path)).ok().and_then(|file| file.access));
    all
}

fn stamp(path: &Path) -> Digest {
    let mut parts = Vec::new();
    for file in files(path) {
        let content = match fs_err::read(&file) {
            Ok(bytes) => Digest::of(&bytes).to_string(),
            Err(error) => format!("unreadable: {:?}", error.kind()),
        };
        parts.push(format!("{} {content}", file.display()));
    }
    Digest::of(parts.join("\n").as_bytes())
}

/// An error of the command line as an explanation: every cause, once.
fn explain(error: &anyhow::Error) -> Explanation {
    let explanation = Explanation::new("config.wrong", format!("{error:#}"));
    let how = error.downcast_ref::<Wrong>().and_then(Wrong::how);
    explanation.fix(how.unwrap_or("correct the file; it is read again by itself"))
}

impl RuleSource for FileRules {
    fn stamp(&self) -> Digest {
        stamp(&self.path)
    }

    fn started_with(&self) -> Digest {
        self.stamp
    }

    fn read(&self) -> Result<Read, Explanation> {
        let read = || -> Result<Read> {
            let file = FileConfig::read(Some(&self.path))?;
            let config = file.farm(self.host)?;
            Ok(Read { config, restart: only_at_a_start(&self.started, &file) })
        };
        read().map_err(|error| explain(&error))
    }

    fn changed_by(&self) -> String {
        let known = files(&self.path).into_iter().filter_map(|file| {
            let facts = fs_err::metadata(&file).ok()?;
            Some((facts.mtime(), facts.mtime_nsec(), file, facts.uid()))
        });
        match known.max() {
            Some((_, _, file, owner)) => format!("{}, of the host's user {owner}", file.display()),
            None => self.path.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostSize = HostSize { cpus: 2, memory_mib: 8192 };

    #[test]
    fn a_mistake_names_file_line_and_key_and_the_access_file_is_read_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let (file, access) = (folder.path().join("forgeyard.toml"), folder.path().join("access.toml"));
        fs_err::write(&access, "terms-version = 1\n").unwrap();
        fs_err::write(&file, format!("access = \"{}\"\n", access.display())).unwrap();
        let (_, rules) = FileRules::open(Some(&file), HOST).unwrap();
        let rules = rules.unwrap();
        assert_eq!(rules.stamp(), rules.started_with());
        fs_err::write(&access, "terms-version = 2\n").unwrap();
        assert_ne!(rules.stamp(), rules.started_with());
        assert_eq!(rules.read().unwrap().config.access.terms_version, 2);
        fs_err::write(&access, "terms-version = 2\nterms-versoin = 3\n").unwrap();
        let reason = rules.read().unwrap_err();
        for part in ["access.toml, line 2", "terms-versoin", "terms-version"] {
            assert!(reason.message.contains(part), "{reason}");
        }
        assert!(reason.fix.is_some());
        assert!(rules.changed_by().contains("access.toml"), "{}", rules.changed_by());
    }

    #[test]
    fn what_counts_from_a_start_alone_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("forgeyard.toml");
        fs_err::write(&file, "max-running = 1\n").unwrap();
        let (_, rules) = FileRules::open(Some(&file), HOST).unwrap();
        let rules = rules.unwrap();
        fs_err::write(&file, "max-running = 2\nlisten = \"127.0.0.1:9000\"\n[cache]\ncapacity-gib = 1\n")
            .unwrap();
        let read = rules.read().unwrap();
        assert_eq!(read.config.max_running, 2);
        assert_eq!(read.restart, ["listen", "cache"]);
    }
}
