//! What can go wrong with blobs.

use forgeyard_model::{Digest, Explanation};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An error of a blob store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such blob.
    #[error("blob {digest} is not here")]
    NotFound {
        /// Which one.
        digest: Digest,
    },
    /// The bytes of a put are not those that the caller announced. Nothing was stored.
    #[error("the bytes are {found}, not {expected} as announced")]
    Mismatch {
        /// What the caller announced.
        expected: Digest,
        /// What the bytes are.
        found: Digest,
    },
    /// The stored bytes are no longer those that were put.
    #[error("blob {digest} is corrupt: its bytes are {found}")]
    Corrupt {
        /// Its name.
        digest: Digest,
        /// What its bytes are now.
        found: Digest,
    },
    /// The stored bytes end before the size that the blob had when it was opened.
    #[error("blob {digest} ends {missing} bytes early")]
    Short {
        /// Its name.
        digest: Digest,
        /// How many bytes are missing.
        missing: u64,
    },
    /// The range does not lie within the blob.
    #[error("range {start}..{end} is not within the {size} bytes of blob {digest}")]
    Range {
        /// Its name.
        digest: Digest,
        /// First byte.
        start: u64,
        /// First byte behind the range.
        end: u64,
        /// Size of the blob.
        size: u64,
    },
    /// The store is full. Nothing was stored.
    #[error("no space left in {place}")]
    NoSpace {
        /// The folder, or the name of the backend.
        place: String,
    },
    /// The folder of the store cannot be used.
    #[error("blob folder {folder} cannot be used: {action} failed")]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Another process has opened the folder.
    #[error("blob folder {folder} is in use by another process")]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// The bytes of a put could not be read from where they came. Nothing was stored.
    #[error("the bytes to store could not be read")]
    Source {
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Another step failed.
    #[error("{action} failed for {object}")]
    Failed {
        /// What was being done.
        action: &'static str,
        /// To what.
        object: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The error of a step on a path, with a full disk told apart.
    pub(crate) fn at(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Error::NoSpace { place: path.parent().unwrap_or(path).display().to_string() }
            }
            _ => Error::Failed { action, object: path.display().to_string(), source },
        }
    }

    /// Finds our own error again in one that a [`crate::Reader`] gave.
    pub fn from_reading(source: std::io::Error) -> Self {
        match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => Error::Failed { action: "reading", object: "a blob".into(), source },
        }
    }

    /// The same for people, with causes as evidence and a fix where there is one.
    pub fn explanation(&self) -> Explanation {
        let (code, fix): (_, Option<String>) = match self {
            Error::NotFound { .. } => ("blob.not_found", None),
            Error::Mismatch { .. } => {
                ("blob.mismatch", Some("upload the bytes again; they changed on the way".into()))
            }
            Error::Corrupt { .. } | Error::Short { .. } => {
                ("blob.corrupt", Some("put the same bytes again to heal it, and check the disk".into()))
            }
            Error::Range { .. } => ("blob.range", Some("ask for a range within the size of the blob".into())),
            Error::NoSpace { place } => (
                "blob.no_space",
                Some(format!("free space in {place}, or let the collector remove blobs sooner")),
            ),
            Error::Folder { folder, .. } => (
                "blob.folder",
                Some(format!(
                    "create {} and let the user that runs forgeyard own it (chown, chmod u+rwx), or name another folder",
                    folder.display()
                )),
            ),
            Error::InUse { .. } => {
                ("blob.in_use", Some("stop the other process, or give this one a folder of its own".into()))
            }
            Error::Source { .. } => ("blob.source", Some("send the bytes again".into())),
            Error::Failed { .. } => ("blob.failed", None),
        };
        let mut explanation = Explanation::new(code, self.to_string());
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            explanation = explanation.with(cause.to_string());
            source = cause.source();
        }
        explanation.fix = fix;
        explanation
    }
}
