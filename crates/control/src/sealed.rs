//! Sealed configurations of runners: the one secret that the control plane keeps for a machine.
//!
//! One file for each machine, `jit/RUNNER` in the data folder, readable by its owner only:
//!
//! ```text
//! name of the runner at the forge
//! its numeric id there
//! the configuration
//! ```
//!
//! It is in no row, event, journal entry or log. It is removed when the machine has begun to use it, and when the forge
//! has forgotten the runner; [`Sealed::sweep`] removes what a crash left behind. The name stands in it because a machine
//! may be given a second configuration under another name; one of an old name is as if it were not there.

use forgeyard_model::{RunnerId, Secret};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The folder of sealed configurations.
#[derive(Debug, Clone)]
pub struct Sealed {
    folder: PathBuf,
}

/// A configuration with what it is for.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// Name of the runner at the forge.
    pub name: String,
    /// Its numeric id there.
    pub id: u64,
    /// What its program is started with.
    pub secret: Secret,
}

impl Sealed {
    /// Opens the folder; makes it when it is not there.
    pub fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("jit");
        fs_err::create_dir_all(&folder)?;
        fs_err::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
        Ok(Self { folder })
    }

    fn path(&self, runner: RunnerId) -> PathBuf {
        self.folder.join(runner.to_string())
    }

    /// Keeps the configuration of a machine; an older one of the same machine goes.
    pub fn put(&self, runner: RunnerId, configuration: &Configuration) -> io::Result<()> {
        let path = self.path(runner);
        let part = path.with_extension("part");
        let _ = fs_err::remove_file(&part);
        let mut file = fs_err::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        let Configuration { name, id, secret } = configuration;
        file.write_all(format!("{name}\n{id}\n{}", secret.expose()).as_bytes())?;
        file.sync_all()?;
        fs_err::rename(&part, &path)
    }

    /// The configuration of a machine under this name. One that cannot be read is as if it were not there: another is
    /// minted then.
    pub fn read(&self, runner: RunnerId, name: &str) -> io::Result<Option<Configuration>> {
        let text = match fs_err::read_to_string(self.path(runner)) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut parts = text.splitn(3, '\n');
        let (Some(kept), Some(id), Some(secret)) = (parts.next(), parts.next(), parts.next()) else {
            return Ok(None);
        };
        let fits = kept == name && !secret.is_empty();
        let id = id.parse().ok().filter(|_| fits);
        Ok(id.map(|id| Configuration { name: kept.to_owned(), id, secret: Secret::new(secret) }))
    }

    /// Removes the configuration of a machine, when there is one.
    pub fn remove(&self, runner: RunnerId) -> io::Result<()> {
        match fs_err::remove_file(self.path(runner)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes every configuration that nobody waits for; answers how many there were.
    pub fn sweep(&self, wanted: impl Fn(RunnerId) -> bool) -> io::Result<usize> {
        let mut gone = 0;
        for entry in fs_err::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            // A half-written one belongs to nobody yet; whoever writes it begins anew.
            if name.and_then(|name| name.parse().ok()).is_some_and(&wanted) || path.extension().is_some() {
                continue;
            }
            fs_err::remove_file(&path)?;
            gone += 1;
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::Id as _;

    fn configuration(name: &str) -> Configuration {
        Configuration { name: name.to_owned(), id: 23, secret: Secret::new("hunter2\nline two") }
    }

    #[test]
    fn sealed_configuration_is_of_one_machine_and_one_name_and_readable_by_its_owner_only() {
        let data = tempfile::tempdir().unwrap();
        let sealed = Sealed::open(data.path()).unwrap();
        let (one, other) = (RunnerId::from_bits(1), RunnerId::from_bits(2));
        sealed.put(one, &configuration("a")).unwrap();
        let read = sealed.read(one, "a").unwrap().unwrap();
        assert_eq!((read.id, read.secret.expose()), (23, "hunter2\nline two"));
        assert!(sealed.read(one, "b").unwrap().is_none(), "another name is another registration");
        assert!(sealed.read(other, "a").unwrap().is_none());
        for (path, mode) in [(sealed.path(one), 0o600), (sealed.folder.clone(), 0o700)] {
            assert_eq!(fs_err::metadata(path).unwrap().permissions().mode() & 0o777, mode);
        }
        assert!(!format!("{read:?}").contains("hunter2"));
    }

    #[test]
    fn sweep_removes_what_nobody_waits_for() {
        let data = tempfile::tempdir().unwrap();
        let sealed = Sealed::open(data.path()).unwrap();
        let (one, other) = (RunnerId::from_bits(1), RunnerId::from_bits(2));
        sealed.put(one, &configuration("a")).unwrap();
        sealed.put(other, &configuration("b")).unwrap();
        assert_eq!(sealed.sweep(|runner| runner == other).unwrap(), 1);
        assert!(sealed.read(one, "a").unwrap().is_none());
        assert!(sealed.read(other, "b").unwrap().is_some());
        sealed.remove(other).unwrap();
        sealed.remove(other).unwrap();
        assert!(sealed.read(other, "b").unwrap().is_none());
    }
}
