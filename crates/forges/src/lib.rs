//! Code hosts: where commits come from.
//!
//! What a forge says is read by `forgeyard_formats::webhook`; this crate fetches what it speaks of.

pub mod git;
#[cfg(feature = "twin")]
pub mod twin;

pub use git::{Commit, ExportedTree, FetchRequest, Fetched, GitError, GitRef, GitSource, Source};
