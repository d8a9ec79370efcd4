//! Puts inputs and files of the job into `/in`. Every download is verified by digest before it is used.
//!
//! Downloads are kept by digest and taken up again where they were cut off. A restart in the middle empties `/in` and
//! unpacks anew; `/in` is complete before the first step and never changes afterwards.

use crate::error::Error;
use crate::inside::relative;
use crate::untar::{Bounds, unpack};
use forgeyard_api::client::Backoff;
use forgeyard_api::client::agent::{AgentClient, Session, transient};
use forgeyard_model::Digest;
use forgeyard_model::job::{JobInput, JobSpec};
use forgeyard_model::machine::{MachineFile, MachineFolder};
use sha2::{Digest as _, Sha256};
use std::fs::{File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// Entries of an archive, at most. The largest public source trees have under a tenth of it.
const ENTRIES: u64 = 2_000_000;
/// Whole downloads of one input that turned out to be other bytes.
const MISMATCHES: u32 = 3;

/// Downloads, verifies and places everything. Waits as long as the farm has trouble of its own.
pub(crate) async fn prepare(
    client: &AgentClient,
    session: &Session,
    machine: &MachineFile,
    folder: &MachineFolder,
    spec: &JobSpec,
) -> Result<(), Error> {
    let downloads = folder.agent().join("downloads");
    std::fs::create_dir_all(&downloads).map_err(|source| Error::file("make", &downloads, source))?;
    let most = machine.flavor.disk_mib.saturating_mul(1 << 20);
    for input in &spec.inputs {
        fetch(client, session, &downloads, input.digest, most).await?;
    }
    let (folder, spec) = (folder.clone(), spec.clone());
    let placed = tokio::task::spawn_blocking(move || place(&folder, &downloads, &spec, most)).await;
    placed.unwrap_or(Err(Error::Stopped))
}

fn kept(downloads: &Path, digest: Digest) -> PathBuf {
    downloads.join(digest.hex())
}

async fn fetch(
    client: &AgentClient,
    session: &Session,
    downloads: &Path,
    digest: Digest,
    most: u64,
) -> Result<(), Error> {
    let path = kept(downloads, digest);
    if path.exists() {
        return Ok(());
    }
    let part = path.with_extension("part");
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
    let mut mismatches = 0;
    loop {
        match piece(client, session, digest, &part, most).await {
            Ok(()) => {}
            Err(Error::Farm { source, .. }) if transient(&source) => {
                tracing::warn!(%digest, error = forgeyard_api::client::http::causes(&source), "download broke off");
                backoff.sleep().await;
                continue;
            }
            Err(error) => return Err(error),
        }
        let file = part.clone();
        let found =
            tokio::task::spawn_blocking(move || digest_of(&file)).await.unwrap_or(Err(Error::Stopped))?;
        if found == digest {
            return std::fs::rename(&part, &path).map_err(|source| Error::file("keep", &path, source));
        }
        std::fs::remove_file(&part).map_err(|source| Error::file("remove", &part, source))?;
        mismatches += 1;
        if mismatches == MISMATCHES {
            return Err(Error::Input {
                object: digest.to_string(),
                reason: format!("the farm sent bytes with {found}"),
            });
        }
    }
}

/// Downloads from where the part file ends.
async fn piece(
    client: &AgentClient,
    session: &Session,
    digest: Digest,
    part: &Path,
    most: u64,
) -> Result<(), Error> {
    let broken = |source| Error::file("write", part, source);
    let from = std::fs::metadata(part).map(|meta| meta.len()).unwrap_or(0);
    let farm = |source| Error::Farm { action: format!("download {digest}"), source };
    let mut download = match client.blob(session, digest, from).await {
        Ok(download) => download,
        // All bytes are there already.
        Err(error) if error.refusal() == Some(forgeyard_api::error::ErrorKind::Range) && from > 0 => {
            return Ok(());
        }
        Err(error) => return Err(farm(error)),
    };
    let mut at = download.starts_at();
    let mut file =
        tokio::fs::OpenOptions::new().create(true).append(true).open(part).await.map_err(broken)?;
    file.set_len(at).await.map_err(broken)?;
    loop {
        match download.chunk().await {
            Ok(Some(chunk)) => {
                at += chunk.len() as u64;
                if at > most {
                    let reason = format!("larger than the {most} bytes of disk that the machine has");
                    return Err(Error::Input { object: digest.to_string(), reason });
                }
                file.write_all(&chunk).await.map_err(broken)?;
            }
            Ok(None) => return file.flush().await.map_err(broken),
            Err(error) => {
                file.flush().await.map_err(broken)?;
                return Err(farm(error));
            }
        }
    }
}

/// Digest of a file of ours.
fn digest_of(path: &Path) -> Result<Digest, Error> {
    File::open(path)
        .and_then(|file| digest_of_open(file).map(|(digest, _)| digest))
        .map_err(|source| Error::file("read", path, source))
}

/// Digest and size of an open file, from where it stands.
pub(crate) fn digest_of_open(mut file: File) -> std::io::Result<(Digest, u64)> {
    let (mut hash, mut buffer, mut size) = (Sha256::new(), vec![0u8; 256 << 10], 0u64);
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok((Digest::from_bytes(hash.finalize().into()), size));
        }
        hash.update(&buffer[..length]);
        size += length as u64;
    }
}

fn place(folder: &MachineFolder, downloads: &Path, spec: &JobSpec, most: u64) -> Result<(), Error> {
    let input = folder.input();
    for entry in std::fs::read_dir(&input).map_err(|source| Error::file("read", &input, source))?.flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(|source| Error::file("remove", &path, source))?;
    }
    let mut uses: std::collections::BTreeMap<Digest, usize> = std::collections::BTreeMap::new();
    for item in &spec.inputs {
        *uses.entry(item.digest).or_default() += 1;
    }
    for item in &spec.inputs {
        let target = target(&input, &item.path)?;
        let source = kept(downloads, item.digest);
        if item.unpack {
            unpack_input(item, &source, &target, most)?;
        } else if uses[&item.digest] > 1 {
            std::fs::copy(&source, &target).map_err(|error| Error::file("copy to", &target, error))?;
            readable(&target)?;
        } else {
            // A second name and not a move, so that a restart in the middle finds the download again.
            std::fs::hard_link(&source, &target).map_err(|error| Error::file("link to", &target, error))?;
            readable(&target)?;
        }
    }
    for file in &spec.files {
        let target = target(&input, &file.path)?;
        std::fs::write(&target, &file.text).map_err(|source| Error::file("write", &target, source))?;
        readable(&target)?;
    }
    Ok(())
}

fn unpack_input(item: &JobInput, source: &Path, target: &Path, most: u64) -> Result<(), Error> {
    std::fs::create_dir_all(target).map_err(|error| Error::file("make", target, error))?;
    let archive = File::open(source).map_err(|error| Error::file("open", source, error))?;
    unpack(std::io::BufReader::new(archive), target, Bounds { entries: ENTRIES, bytes: most }).map_err(
        |error| match error {
            Error::Input { reason, .. } => {
                Error::Input { object: format!("{} ({})", item.path, item.digest), reason }
            }
            other => other,
        },
    )
}

/// Path below `/in`, with its parents made.
fn target(input: &Path, text: &str) -> Result<PathBuf, Error> {
    let path = relative(text).filter(|path| !path.as_os_str().is_empty()).ok_or_else(|| Error::Input {
        object: text.chars().take(200).collect(),
        reason: "not a path below /in".to_owned(),
    })?;
    let target = input.join(path);
    if let Some(parent) = target.parent() {
        // An archive placed before may hold a link there; what is placed must not follow it.
        let mut at = input.to_owned();
        for part in parent.strip_prefix(input).unwrap_or(Path::new("")).components() {
            at.push(part);
            if at.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
                return Err(Error::Input {
                    object: text.to_owned(),
                    reason: "below something that is not a folder".to_owned(),
                });
            }
        }
        std::fs::create_dir_all(parent).map_err(|source| Error::file("make", parent, source))?;
    }
    if target.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
        return Err(Error::Input {
            object: text.to_owned(),
            reason: "there is something of that name".to_owned(),
        });
    }
    Ok(target)
}

fn readable(path: &Path) -> Result<(), Error> {
    std::fs::set_permissions(path, Permissions::from_mode(0o644))
        .map_err(|source| Error::file("open up", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(files: &[(&str, &str)]) -> JobSpec {
        serde_json::from_value(serde_json::json!({
            "flavor": "small", "steps": [],
            "files": files.iter().map(|(path, text)| serde_json::json!({"path": path, "text": text})).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    fn placed(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<(), Error>) {
        let dir = tempfile::tempdir().unwrap();
        let folder = MachineFolder::new(dir.path());
        std::fs::create_dir(folder.input()).unwrap();
        std::os::unix::fs::symlink("/etc", folder.input().join("old")).unwrap();
        let result = place(&folder, dir.path(), &spec(files), 1 << 20);
        (dir, result)
    }

    #[test]
    fn files_are_placed_and_what_was_there_before_is_gone() {
        let (dir, result) = placed(&[("a/b.txt", "text"), ("c", "")]);
        result.unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("in/a/b.txt")).unwrap(), "text");
        assert!(dir.path().join("in/old").symlink_metadata().is_err());
    }

    #[test]
    fn a_path_that_leads_out_or_is_taken_is_refused() {
        for bad in [
            &[("../x", "")][..],
            &[("/x", "")],
            &[("", "")],
            &[("a", ""), ("a/b", "")],
            &[("a", ""), ("a", "")],
        ] {
            assert!(matches!(placed(bad).1, Err(Error::Input { .. })), "{bad:?}");
        }
    }
}
