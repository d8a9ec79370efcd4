//! Unpacks a tar archive from outside into a folder of ours, as root.
//!
//! Refused: absolute names, `..`, a name twice, links whose target is outside, anything below a link, hard links to
//! something that is not a file of this archive, devices and pipes, more entries or bytes than the bounds. Owners are
//! ours; set-id bits and write permission of others are dropped.

use crate::error::Error;
use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use tar::EntryType;

/// Bounds of an archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Link,
}

/// Unpacks into `folder`, which must exist and be empty.
pub(crate) fn unpack(archive: impl Read, folder: &Path, bounds: Bounds) -> Result<(), Error> {
    let refuse = |reason: String| Error::Input { object: "archive".to_owned(), reason };
    let broken = |error: io::Error| refuse(format!("cannot be read: {error}"));
    let mut archive = tar::Archive::new(archive);
    let mut known: HashMap<PathBuf, Kind> = HashMap::new();
    let (mut entries, mut bytes) = (0u64, 0u64);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        let shown = || -> String { name.display().to_string().chars().take(200).collect() };
        let header_only =
            matches!(entry.header().entry_type(), EntryType::XGlobalHeader | EntryType::XHeader);
        if header_only {
            continue;
        }
        entries += 1;
        bytes = bytes.saturating_add(entry.size());
        if entries > bounds.entries || bytes > bounds.bytes {
            return Err(refuse(format!("more than {} entries or {} bytes", bounds.entries, bounds.bytes)));
        }
        let path = plain(&name).ok_or_else(|| refuse(format!("`{}` leads out of the folder", shown())))?;
        let kind = match entry.header().entry_type() {
            EntryType::Directory => Kind::Folder,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => Kind::File,
            EntryType::Symlink => Kind::Link,
            other => return Err(refuse(format!("`{}` is of kind {other:?}, which is not allowed", shown()))),
        };
        if path.as_os_str().is_empty() {
            if kind == Kind::Folder {
                continue;
            }
            return Err(refuse("an entry without a name".to_owned()));
        }
        parents(&path, folder, &mut known).map_err(refuse)?;
        match known.get(&path) {
            Some(Kind::Folder) if kind == Kind::Folder => continue,
            Some(_) => return Err(refuse(format!("`{}` is there twice", shown()))),
            None => {}
        }
        let target = folder.join(&path);
        let mode = entry.header().mode().map_err(broken)?;
        let made = match kind {
            Kind::Folder => std::fs::create_dir(&target),
            Kind::Link => {
                let to = entry.link_name().map_err(broken)?.unwrap_or_default().into_owned();
                if !stays(&path, &to) {
                    return Err(refuse(format!("link `{}` leads out of the folder", shown())));
                }
                symlink(&to, &target)
            }
            Kind::File if entry.header().entry_type() == EntryType::Link => {
                let to = entry.link_name().map_err(broken)?.unwrap_or_default().into_owned();
                let to = plain(&to).filter(|to| known.get(to) == Some(&Kind::File));
                let to = to
                    .ok_or_else(|| refuse(format!("hard link `{}` names no file of the archive", shown())))?;
                std::fs::hard_link(folder.join(to), &target)
            }
            Kind::File => File::create_new(&target).and_then(|mut file| {
                io::copy(&mut entry, &mut file)?;
                file.set_permissions(Permissions::from_mode(if mode & 0o111 == 0 { 0o644 } else { 0o755 }))
            }),
        };
        made.map_err(|source| Error::file("unpack", &target, source))?;
        known.insert(path, kind);
    }
    Ok(())
}

/// The name without `.` parts; `None` if it has other parts than plain names.
fn plain(name: &Path) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(path)
}

/// Makes the folders above `path`. A parent that is no folder of ours, a link above all, is refused.
fn parents(path: &Path, folder: &Path, known: &mut HashMap<PathBuf, Kind>) -> Result<(), String> {
    let mut above: Vec<&Path> =
        path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
    above.reverse();
    for parent in above {
        match known.get(parent) {
            Some(Kind::Folder) => {}
            Some(_) => return Err(format!("`{}` is below something that is not a folder", path.display())),
            None => {
                std::fs::create_dir(folder.join(parent))
                    .map_err(|error| format!("`{}`: {error}", parent.display()))?;
                known.insert(parent.to_owned(), Kind::Folder);
            }
        }
    }
    Ok(())
}

/// Whether a link at `path` with this target stays inside, read without following other links.
fn stays(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count() - 1;
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    !target.as_os_str().is_empty()
}

#[cfg(test)]
mod tests;
