//! Reads trees out of the cache: single files, and whole trees as archives that depend on nothing but the tree.

use super::{Commit, Fetched, GitError, GitSource};
use forgeyard_model::Digest;
use sha2::{Digest as _, Sha256};
use std::io::Read as _;
use std::path::Path;

/// What git may list or say of one tree.
const LIST_LIMIT: u64 = 64 * 1024 * 1024;

/// A tree as a tar archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedTree {
    /// Digest of the archive. Equal for equal trees, whatever commit they belong to.
    pub digest: Digest,
    /// Size of the archive, in bytes.
    pub size: u64,
    /// How many files and links it holds.
    pub files: u64,
    /// Paths of submodules: empty folders in the archive, as nothing is fetched for them.
    pub submodules: Vec<String>,
}

/// One entry of a tree.
struct Entry {
    mode: String,
    object: String,
    path: String,
}

impl Entry {
    fn kind(&self) -> Kind {
        match self.mode.as_str() {
            "120000" => Kind::Link,
            "160000" => Kind::Submodule,
            "040000" => Kind::Folder,
            _ => Kind::File,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Link,
    Submodule,
    Folder,
}

impl GitSource {
    /// Writes the tree of a commit to a file as a tar archive. All entries have time 0 and belong to root; attributes of
    /// the tree (`export-ignore`, `export-subst`, line ends) change nothing.
    pub async fn export(
        &self,
        fetched: &Fetched,
        commit: &Commit,
        to: &Path,
    ) -> Result<ExportedTree, GitError> {
        let entries = self.entries(fetched, commit, None).await?;
        for entry in &entries {
            if entry.path.split('/').any(|part| matches!(part, "" | "." | "..")) {
                return Err(GitError::BadPath { commit: commit.clone(), path: entry.path.clone() });
            }
        }
        self.check_links(fetched, commit, &entries).await?;

        let object = commit.to_string();
        let mut output = std::ffi::OsString::from("--output=");
        output.push(std::path::absolute(to).map_err(|error| io("find", to, error))?);
        self.git
            .run("archive", &object, self.limits.local)
            .git_dir(&fetched.cache)
            .args(["archive", "--format=tar", "--mtime=@0 +0000"])
            .arg(output)
            .arg("--end-of-options")
            // The tree and not the commit: an archive of a commit carries its id.
            .arg(format!("{commit}^{{tree}}"))
            .output()
            .await?
            .ok()?;
        let path = to.to_owned();
        let (digest, size) = tokio::task::spawn_blocking(move || digest_of(&path))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| io("read", to, error))?;
        let of_kind = |kind| entries.iter().filter(move |entry| entry.kind() == kind);
        Ok(ExportedTree {
            digest,
            size,
            files: (of_kind(Kind::File).count() + of_kind(Kind::Link).count()) as u64,
            submodules: of_kind(Kind::Submodule).map(|entry| entry.path.clone()).collect(),
        })
    }

    /// Reads one file of a commit; `None` when there is nothing at the path. Links are not followed.
    pub async fn read_file(
        &self,
        fetched: &Fetched,
        commit: &Commit,
        path: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, GitError> {
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) || path.contains('\0') {
            return Err(GitError::BadPath { commit: commit.clone(), path: path.to_owned() });
        }
        let entries = self.entries(fetched, commit, Some(path)).await?;
        let Some(entry) = entries.into_iter().find(|entry| entry.path == path) else { return Ok(None) };
        let kind = match entry.kind() {
            Kind::File => None,
            Kind::Link => Some("a symbolic link"),
            Kind::Submodule => Some("a submodule"),
            Kind::Folder => Some("a folder"),
        };
        if let Some(kind) = kind {
            return Err(GitError::NotAFile { commit: commit.clone(), path: path.to_owned(), kind });
        }
        let object = format!("{commit}:{path}");
        let out = self
            .git
            .run("cat-file", &object, self.limits.local)
            .git_dir(&fetched.cache)
            .output_limit(limit)
            .args(["cat-file", "blob"])
            .arg(&entry.object)
            .output()
            .await?;
        Ok(Some(out.ok()?.stdout))
    }

    /// Entries of a tree: all of them, folders opened, or what is at one path.
    async fn entries(
        &self,
        fetched: &Fetched,
        commit: &Commit,
        path: Option<&str>,
    ) -> Result<Vec<Entry>, GitError> {
        let object = commit.to_string();
        let mut call = self
            .git
            .run("ls-tree", &object, self.limits.local)
            .git_dir(&fetched.cache)
            .output_limit(LIST_LIMIT)
            .args(["ls-tree", "-z", "--full-tree"]);
        if path.is_none() {
            call = call.arg("-r");
        }
        call = call.args(["--end-of-options", commit.as_str()]);
        if let Some(path) = path {
            call = call.args(["--", path]);
        }
        let out = call.output().await?.ok()?;
        let text = String::from_utf8_lossy(&out.stdout);
        let lines = text.split('\0').filter(|line| !line.is_empty());
        lines
            .map(|line| {
                // `MODE TYPE OBJECT<TAB>PATH`
                let (facts, path) = line.split_once('\t')?;
                let mut facts = facts.split(' ');
                let (mode, _, object) = (facts.next()?, facts.next()?, facts.next()?);
                Some(Entry { mode: mode.to_owned(), object: object.to_owned(), path: path.to_owned() })
            })
            .collect::<Option<Vec<Entry>>>()
            .ok_or_else(|| GitError::Failed {
                step: "ls-tree",
                object,
                message: "a line of its output cannot be read".to_owned(),
            })
    }

    /// Refuses links that leave the tree.
    async fn check_links(
        &self,
        fetched: &Fetched,
        commit: &Commit,
        entries: &[Entry],
    ) -> Result<(), GitError> {
        let links: Vec<&Entry> = entries.iter().filter(|entry| entry.kind() == Kind::Link).collect();
        if links.is_empty() {
            return Ok(());
        }
        let object = commit.to_string();
        let asked: String = links.iter().map(|link| format!("{}\n", link.object)).collect();
        let out = self
            .git
            .run("cat-file", &object, self.limits.local)
            .git_dir(&fetched.cache)
            .output_limit(LIST_LIMIT)
            .args(["cat-file", "--batch=%(objectsize)"])
            .input(asked.into_bytes())
            .output()
            .await?
            .ok()?;
        let mut rest = out.stdout.as_slice();
        for link in links {
            let Some((target, after)) = next_blob(rest) else {
                let message = format!("no target for the link `{}`", link.path);
                return Err(GitError::Failed { step: "cat-file", object, message });
            };
            rest = after;
            if !stays_inside(&link.path, target) {
                return Err(GitError::LinkLeavesTree {
                    commit: commit.clone(),
                    path: link.path.clone(),
                    target: String::from_utf8_lossy(target).chars().take(200).collect(),
                });
            }
        }
        Ok(())
    }
}

/// One answer of `cat-file --batch=%(objectsize)`: the size, a line end, the bytes, a line end.
fn next_blob(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let size: usize = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    let rest = &bytes[end + 1..];
    let after = rest.get(size..)?.strip_prefix(b"\n")?;
    Some((&rest[..size], after))
}

/// Whether a link stays in the tree, whatever other links do: `..` may only lead, and not above the root. A `..` behind
/// a name could climb out of wherever a link of that name leads.
fn stays_inside(path: &str, target: &[u8]) -> bool {
    let depth = path.matches('/').count();
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let parts: Vec<&[u8]> =
        target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    let climbs = parts.iter().take_while(|part| **part == b"..").count();
    climbs <= depth && parts[climbs..].iter().all(|part| *part != b"..")
}

fn digest_of(path: &Path) -> std::io::Result<(Digest, u64)> {
    let mut file = std::fs::File::open(path)?;
    let (mut hash, mut size, mut chunk) = (Sha256::new(), 0u64, vec![0u8; 128 * 1024]);
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok((Digest::from_bytes(hash.finalize().into()), size));
        }
        hash.update(&chunk[..read]);
        size += read as u64;
    }
}

fn io(step: &'static str, path: &Path, error: std::io::Error) -> GitError {
    GitError::Io { step, path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn links_that_could_climb_out_are_told_apart() {
        let inside = |path: &str, target: &str| stays_inside(path, target.as_bytes());
        assert!(inside("a", "b/c") && inside("x/a", "../b") && inside("x/y/a", "../../b/./c"));
        for (path, target) in
            [("a", "/etc"), ("a", ".."), ("x/a", "../../b"), ("x/a", "b/../c"), ("a", ""), ("a", "./../b")]
        {
            assert!(!inside(path, target), "{path} -> {target}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_of_git_panics(bytes: Vec<u8>) {
            let _ = next_blob(&bytes);
        }

        #[test]
        fn link_that_stays_inside_never_climbs_above_the_root(path in "[ab]{1,2}(/[ab]{1,2}){0,3}", target in "[./ab]{0,12}") {
            if stays_inside(&path, target.as_bytes()) {
                let mut depth = path.matches('/').count() as i64;
                for part in target.split('/') {
                    depth += match part { "" | "." => 0, ".." => -1, _ => 1 };
                    prop_assert!(depth >= 0);
                }
            }
        }
    }
}
