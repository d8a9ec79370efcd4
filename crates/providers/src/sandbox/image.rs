//! Images of kind `rootfs`: a tar archive by digest, unpacked once and shared by all machines that boot it.
//!
//! The tree is `IMAGES/HEX/tree`, owned by root and readable by everybody: the machines' own users differ, so owners
//! cannot be kept, and set-id bits are dropped. Each machine puts an overlay of its own over the tree; what is changed
//! there goes with the machine. `IMAGES/HEX/ready` is written last.

use crate::Error;
use forgeyard_model::Digest;
use sha2::{Digest as _, Sha256};
use std::fs::{File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tar::EntryType;

/// Where the bytes of images come from.
#[async_trait::async_trait]
pub trait ImageSource: Send + Sync {
    /// Writes the archive with this digest to a new file. The provider verifies the digest.
    async fn fetch(&self, digest: Digest, to: &Path) -> io::Result<()>;
}

/// A source without images.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoImages;

#[async_trait::async_trait]
impl ImageSource for NoImages {
    async fn fetch(&self, digest: Digest, _to: &Path) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("no source of images is set up for {digest}")))
    }
}

/// Fetches and unpacks the image if that has not been done; gives the folder of its tree.
pub(crate) async fn ready(images: &Path, digest: Digest, source: &dyn ImageSource) -> Result<PathBuf, Error> {
    let folder = images.join(digest.hex());
    let tree = folder.join("tree");
    if folder.join("ready").exists() {
        return Ok(tree);
    }
    let broken = |reason: String| Error::Image { image: digest.to_string(), reason };
    // What an earlier try left is not known to be whole.
    remove(&folder)?;
    std::fs::create_dir_all(&tree).map_err(|source| failed("make", &tree, source))?;
    let archive = folder.join("archive");
    source.fetch(digest, &archive).await.map_err(|error| broken(error.to_string()))?;
    let (marker, into) = (folder.join("ready"), tree.clone());
    let unpacked = tokio::task::spawn_blocking(move || {
        let found = digest_of(&archive)?;
        if found != digest {
            return Err(io::Error::other(format!("the bytes have the digest {found}")));
        }
        unpack(&archive, &into)?;
        std::fs::remove_file(&archive)?;
        std::fs::write(marker, "")
    });
    match unpacked.await {
        Ok(Ok(())) => Ok(tree),
        Ok(Err(error)) => {
            remove(&folder)?;
            Err(broken(error.to_string()))
        }
        Err(error) => Err(broken(error.to_string())),
    }
}

fn remove(folder: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", folder, error)),
        _ => Ok(()),
    }
}

fn digest_of(path: &Path) -> io::Result<Digest> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0u8; 256 << 10]);
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(Digest::from_bytes(hash.finalize().into()));
        }
        hash.update(&buffer[..length]);
    }
}

/// Unpacks below `tree`. The library refuses what leads out of it; devices and pipes are left out.
fn unpack(archive: &Path, tree: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(io::BufReader::new(File::open(archive)?));
    archive.set_preserve_permissions(false);
    archive.set_unpack_xattrs(false);
    archive.set_overwrite(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::Block | EntryType::Char | EntryType::Fifo) {
            continue;
        }
        let name = entry.path()?.into_owned();
        let mode = entry.header().mode()?;
        if !entry.unpack_in(tree)? {
            return Err(io::Error::other(format!("`{}` leads out of the tree", name.display())));
        }
        let path = tree.join(name.strip_prefix("/").unwrap_or(&name));
        match kind {
            EntryType::Directory => std::fs::set_permissions(&path, Permissions::from_mode(0o755))?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
                std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Failed { action, object: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>);

    #[async_trait::async_trait]
    impl ImageSource for Bytes {
        async fn fetch(&self, _digest: Digest, to: &Path) -> io::Result<()> {
            std::fs::write(to, &self.0)
        }
    }

    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o4700);
        builder.append_data(&mut header, "bin/tool", &b"hi"[..]).unwrap();
        builder.into_inner().unwrap()
    }

    #[tokio::test]
    async fn an_image_is_unpacked_once_readable_by_all() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = archive();
        let digest = Digest::of(&bytes);
        let tree = ready(dir.path(), digest, &Bytes(bytes)).await.unwrap();
        let mode = std::fs::metadata(tree.join("bin/tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(ready(dir.path(), digest, &NoImages).await.unwrap(), tree);
    }

    #[tokio::test]
    async fn other_bytes_than_the_digest_says_are_refused_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let result = ready(dir.path(), Digest::of(b"x"), &Bytes(archive())).await;
        assert!(matches!(result, Err(Error::Image { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
