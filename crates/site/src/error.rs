//! Why a site cannot start or go on.

use forgeyard_api::client::ClientError;
use std::path::PathBuf;

/// An error that ends the site. What can be retried is retried and never gets here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state folder cannot be used.
    #[error(
        "cannot {action} in the site's state folder {folder}: {source}; \
         check that the folder belongs to the user that runs the site, is writable and has free space, \
         or name another folder"
    )]
    State {
        /// What was being done, to which file.
        action: String,
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Another site runs on the same folder.
    #[error("another site uses the state folder {folder}; stop it, or name another folder")]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// The lease journal is damaged.
    #[error(
        "the lease journal {file} is damaged: {reason}; it says which devices are given away, so it is not guessed at: \
         stop all machines of this site, move the file away and start again"
    )]
    Journal {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The key or the identity cannot be read.
    #[error("{file} is damaged: {reason}; move it away and start again with a join token")]
    Identity {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The site is not known to the farm and has no join token.
    #[error(
        "site {name} has not joined {farm_url} yet (or the farm no longer knows it) and has no join token; \
         take the join token from the farm's operator and give it to the site"
    )]
    NotJoined {
        /// Name of the site.
        name: String,
        /// Where the farm is.
        farm_url: String,
    },
    /// The farm does not let the site join.
    #[error("the farm refused to let site {name} join")]
    JoinRefused {
        /// Name of the site.
        name: String,
        /// What it said.
        #[source]
        source: ClientError,
    },
    /// The client could not be set up.
    #[error("cannot talk to the farm")]
    Client(#[from] ClientError),
    /// A part of the site broke by a fault of its own.
    #[error("a part of the site stopped: {0}")]
    Broken(String),
}
