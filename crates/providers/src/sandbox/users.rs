//! Which machine has which users of the host, over all farms of this host.
//!
//! Layout: `RUN/users/N` holds the path of the machine folder that has range N; `RUN/users/lock` is held while a range
//! is chosen. A claim lasts as long as that folder exists, so that removing a machine frees its users with its last
//! file, and a crash in between leaves nothing to clean up.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Chooses the lowest range that no other machine of this host has, and writes the choice down. `machine` must exist.
/// Answers `None` when all are taken. Waits while another farm chooses.
pub(crate) fn choose(users: &Path, machine: &Path, ranges: u32) -> io::Result<Option<u32>> {
    let lock = open(&users.join("lock"))?;
    lock.lock()?;
    for range in 0..ranges {
        let claim = users.join(range.to_string());
        let holder = match std::fs::read(&claim) {
            Ok(text) => Some(PathBuf::from(std::ffi::OsStr::from_bytes(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // A claim that was cut short by a crash names no folder: nobody got an answer for it.
        if holder.is_some_and(|holder| holder != machine && holder.is_absolute() && holder.exists()) {
            continue;
        }
        let fresh = users.join("new");
        let mut file = open(&fresh)?;
        file.set_len(0)?;
        file.write_all(machine.as_os_str().as_bytes())?;
        std::fs::rename(&fresh, &claim)?;
        return Ok(Some(range));
    }
    Ok(None)
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_two_farms_on_one_host_have_different_users() {
        let host = tempfile::tempdir().unwrap();
        let (users, one, two) =
            (host.path().join("users"), host.path().join("farm-1/rnr"), host.path().join("farm-2/rnr"));
        for folder in [&users, &one, &two] {
            std::fs::create_dir_all(folder).unwrap();
        }
        assert_eq!(choose(&users, &one, 2).unwrap(), Some(0));
        assert_eq!(choose(&users, &two, 2).unwrap(), Some(1));
        assert_eq!(choose(&users, &one, 2).unwrap(), Some(0), "the same machine keeps its users");
        let three = host.path().join("farm-2/other");
        std::fs::create_dir_all(&three).unwrap();
        assert_eq!(choose(&users, &three, 2).unwrap(), None);
        std::fs::remove_dir_all(&one).unwrap();
        assert_eq!(choose(&users, &three, 2).unwrap(), Some(0), "a machine that is gone frees its users");
    }
}
