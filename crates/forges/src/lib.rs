//! Code hosts: where commits come from, and where runners and verdicts go.
//!
//! What a forge says by itself is read by `forgeyard_formats::webhook`; this crate fetches what it speaks of
//! ([`git`]) and calls the forges' own interfaces ([`github`], [`forgejo`]).

pub mod forgejo;
pub mod git;
pub mod github;
#[cfg(feature = "twin")]
pub mod twin;

pub use git::{Commit, ExportedTree, FetchRequest, Fetched, GitError, GitRef, GitSource, Source};
