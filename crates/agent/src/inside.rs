//! Reading what a job has written, as root, without being led out of its folders.
//!
//! The kernel resolves each path below the folder and refuses every link on the way (`openat2` with `RESOLVE_BENEATH`
//! and `RESOLVE_NO_SYMLINKS`); only regular files are read, up to a bound.

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// Opens a regular file below `root`.
pub(crate) fn open(root: &Path, relative: &Path) -> io::Result<File> {
    // A pipe would block and a device would act: neither may happen before the kind is known.
    let file = resolve(root, relative, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Reads a regular file below `root` if it has at most `most` bytes.
pub(crate) fn read(root: &Path, relative: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(root, relative)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {most} bytes")));
    }
    Ok(bytes)
}

/// Names in a folder below `root`, sorted, at most `most`.
pub(crate) fn list(root: &Path, relative: &Path, most: usize) -> io::Result<Vec<OsString>> {
    let folder = resolve(root, relative, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    // The open folder is listed, whatever its name means by now.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&folder));
    let mut names = std::fs::read_dir(path)?
        .take(most)
        .map(|entry| entry.map(|e| e.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Whether a name in a folder is a folder itself, links not followed.
pub(crate) fn is_folder(root: &Path, relative: &Path) -> bool {
    resolve(root, relative, OFlag::O_PATH | OFlag::O_DIRECTORY).is_ok()
}

/// A path of the job spec as a path below a folder: no root, no `..`, nothing that is not a plain name.
pub(crate) fn relative(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && !text.contains('\0')).then(|| path.to_owned())
}

fn resolve(root: &Path, relative: &Path, flags: OFlag) -> io::Result<File> {
    let folder = File::open(root)?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS,
    );
    Ok(File::from(openat2(&folder, relative, how)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_out_of_the_folder_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, secret) = (dir.path().join("out"), dir.path().join("secret"));
        std::fs::create_dir(&root).unwrap();
        std::fs::write(&secret, "s3cret").unwrap();
        symlink(&secret, root.join("file")).unwrap();
        symlink(dir.path(), root.join("folder")).unwrap();
        assert!(read(&root, Path::new("file"), 100).is_err());
        assert!(read(&root, Path::new("folder/secret"), 100).is_err());
        assert!(read(&root, Path::new("../secret"), 100).is_err());
        assert!(list(&root, Path::new("folder"), 10).is_err());
        assert!(!is_folder(&root, Path::new("folder")));
    }

    #[test]
    fn a_pipe_is_refused_and_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open(dir.path(), Path::new("pipe")).is_err());
    }

    #[test]
    fn a_large_file_is_refused_and_a_small_one_is_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "12345").unwrap();
        assert!(read(dir.path(), Path::new("f"), 4).is_err());
        assert_eq!(read(dir.path(), Path::new("f"), 5).unwrap(), b"12345");
        assert_eq!(list(dir.path(), Path::new(""), 10).unwrap(), ["f"]);
    }

    #[test]
    fn only_plain_paths_of_a_spec_are_taken() {
        for bad in ["/etc/passwd", "../x", "a/../../x", "./..", "a\0b"] {
            assert_eq!(relative(bad), None, "{bad:?}");
        }
        assert_eq!(relative("a/b"), Some(PathBuf::from("a/b")));
    }
}
