//! What can go wrong with the store, sorted by what the caller does about it.

use std::path::PathBuf;
use std::time::Duration;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database does not answer. Try again later; the store recovers without a restart.
    ///
    /// From [`crate::Store::commit`] it means that the outcome is unknown: the journal tells whether the batch is
    /// there.
    #[error("{operation}: the database is not available: {reason}")]
    Unavailable {
        /// What was being done.
        operation: &'static str,
        /// What the database or the connection said.
        reason: String,
    },
    /// The database has no room left. Nothing was written.
    #[error("{operation}: the database has no space left: {reason}")]
    NoSpace {
        /// What was being done.
        operation: &'static str,
        /// What the database said.
        reason: String,
    },
    /// A row is not at the generation that the writer decided on. Nothing of the batch was written.
    #[error("the {kind} `{key}` was changed by somebody else")]
    Conflict {
        /// Kind of the row.
        kind: &'static str,
        /// Its key.
        key: String,
    },
    /// A constraint of the schema refused the batch. Nothing of it was written.
    #[error("the constraint `{name}` of the database refused the write")]
    Constraint {
        /// Name of the constraint, as in the migrations.
        name: String,
    },
    /// The writer's epoch is over: another core works now. Nothing was written.
    #[error("epoch {epoch} is over: the farm is at epoch {current}")]
    Superseded {
        /// Epoch of the writer.
        epoch: u64,
        /// Epoch of the farm.
        current: u64,
    },
    /// Another core holds the lease.
    #[error("`{holder}` runs the core of this farm; its lease ends in {} ms unless renewed", remaining.as_millis())]
    Held {
        /// Who.
        holder: String,
        /// How long its lease still lasts.
        remaining: Duration,
    },
    /// Something in the database cannot be read.
    #[error("the database holds something that cannot be read: {what}")]
    Corrupt {
        /// What, and why.
        what: String,
    },
    /// A newer program has written the database.
    #[error(
        "the database is at schema version {found}, this program knows versions up to {known}: \
         use the newer program, or restore the backup taken before the upgrade"
    )]
    Newer {
        /// Schema version of the database.
        found: i64,
        /// Last schema version that this program knows.
        known: i64,
    },
    /// Another process uses the data folder.
    #[error(
        "the data folder `{}` is in use by another process: stop that process, or use another data folder",
        folder.display()
    )]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// The request makes no sense.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
}

impl Error {
    /// A thing that cannot be read.
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Error::Corrupt { what: what.into() }
    }

    /// A request that makes no sense.
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// Whether the same call may succeed later without anything else being changed.
    pub const fn transient(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::NoSpace { .. } | Error::Held { .. })
    }
}
