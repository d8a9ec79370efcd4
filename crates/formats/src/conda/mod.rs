//! conda packages and channels: a hardened reader of `.conda` files and a writer of `repodata.json`.
//!
//! A `.conda` file (CEP 35) is a zip archive of exactly three *stored* members: `metadata.json`, `info-STEM.tar.zst`
//! and `pkg-STEM.tar.zst`. Whatever an outsider can write into one is refused by name or bounded by [`Limits`];
//! reading one never panics and never allocates more than its limits allow.
//!
//! The older `.tar.bz2` format is refused: to read its metadata means to unpack all of it.

mod archive;
mod elf;
mod links;
mod package;
mod repodata;

pub use archive::Limits;
pub use package::{Package, read_package};
pub use repodata::{Repodata, RepodataError, record};

/// Why a package is refused.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// The file name is no name of a `.conda` package.
    #[error("`{name}` is not read: {why}")]
    FileName {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// The zip archive is broken or is not laid out as CEP 35 says.
    #[error("package `{package}`: {what}")]
    Layout {
        /// File name of the package.
        package: String,
        /// What is wrong.
        what: String,
    },
    /// An entry of a member is broken or dangerous.
    #[error("member `{member}`, entry `{entry}`: {what}")]
    Entry {
        /// The member of the zip archive.
        member: String,
        /// Path of the entry.
        entry: String,
        /// What is wrong.
        what: String,
    },
    /// A member is broken as a whole.
    #[error("member `{member}`: {what}")]
    Member {
        /// The member of the zip archive.
        member: String,
        /// What is wrong.
        what: String,
    },
    /// A metadata file is missing or cannot be read.
    #[error("metadata `{file}`: {what}")]
    Metadata {
        /// Path of the file in the package.
        file: String,
        /// What is wrong.
        what: String,
    },
}
