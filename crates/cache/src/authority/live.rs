//! The list of tokens that hold only while they are listed: those of attempts.
//!
//! ```text
//! live.json      {"tokens":["att_…","att_…"]}         beside the authority, replaced as a whole
//! ```
//!
//! A token with `listed` among its claims ([`Claims`](crate::token::Claims)) holds while its id stands here, so whoever ends an
//! attempt leaves it out and need not remember it. The file holds as many ids as attempts are live, and nothing of the past.
//! A file that is not there lists nobody.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LiveTokens {
    /// Ids of the tokens.
    pub tokens: BTreeSet<String>,
}

/// Where the list is, beside this file of an authority.
pub fn path_beside(authority: &Path) -> PathBuf {
    authority.with_file_name("live.json")
}
