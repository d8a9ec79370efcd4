//! The state folder: the site's key, its identity, its lease journal and the lock that keeps a second site out.
//!
//! Invariants: folder 0700, files 0600; a file is replaced whole or not at all; the lock is held as long as anything
//! of this process may still write.

use crate::error::Error;
use fs_err as fs;
use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often and how long a lock is waited for: the one who holds it may just be ending.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(200);

/// The opened and locked state folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes the folder if need be and locks it.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let failed = |action: &str| {
            let (action, folder) = (action.to_owned(), path.to_path_buf());
            move |source| Error::State { action, folder, source }
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed("create the folder"))?;
        let lock = private().create(true).truncate(false).open(path.join("lock")).map_err(failed("open the lock"))?;
        for _ in 0..LOCK_TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_path_buf(), _lock: lock }),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
                Err(TryLockError::Error(source)) => return Err(failed("lock the folder")(source)),
            }
        }
        Err(Error::Locked { folder: path.to_path_buf() })
    }

    /// Where a file of the folder is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// An error about this folder.
    pub fn failed(&self, action: impl Into<String>, source: io::Error) -> Error {
        Error::State { action: action.into(), folder: self.path.clone(), source }
    }

    /// Reads a file, if it is there.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        match fs::read(self.file(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(format!("read {name}"), error)),
        }
    }

    /// Replaces a file as a whole and makes sure that it is on the disk.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        replace(&self.path, name, bytes).map_err(|error| self.failed(format!("write {name}"), error))
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        match fs::remove_file(self.file(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed(format!("remove {name}"), error))
            }
            _ => Ok(()),
        }
    }
}

/// Options of a file that only its owner can read.
pub(crate) fn private() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Writes a new file beside the old one, then takes its place.
pub(crate) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (new, file) = (folder.join(format!("{name}.new")), folder.join(name));
    let mut out = private().create(true).truncate(true).open(&new)?;
    out.write_all(bytes)?;
    out.sync_all()?;
    std::fs::rename(&new, &file)?;
    File::open(folder)?.sync_all()
}
