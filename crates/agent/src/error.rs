//! What can go wrong in the agent's own part. None of it is ever the job's fault.

use forgeyard_api::client::ClientError;
use std::path::Path;

/// An error of the agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {object}")]
    File {
        /// What was being done.
        action: &'static str,
        /// To what.
        object: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file of ours does not hold what it should.
    #[error("cannot understand {object}: {reason}")]
    Content {
        /// Which file.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The farm could not be asked, or refused.
    #[error("cannot {action}")]
    Farm {
        /// What was being done.
        action: String,
        /// The cause.
        #[source]
        source: ClientError,
    },
    /// A program of the container runtime failed.
    #[error("{program} cannot {action}: {reason}")]
    Runtime {
        /// Which program.
        program: &'static str,
        /// What it was to do.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// An input is not what the job says it is.
    #[error("input {object}: {reason}")]
    Input {
        /// Which input.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The machine cannot be made a runner of its forge.
    #[error("{object}: {reason}")]
    Runner {
        /// What of it.
        object: &'static str,
        /// Why not.
        reason: String,
    },
    /// Another agent has the machine.
    #[error("another agent works in {0}")]
    Taken(String),
    /// The job is being stopped; what was begun is left as it is.
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// A failed file operation.
    pub(crate) fn file(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Error::File { action, object: path.display().to_string(), source }
    }

    /// The error with all its causes in one line.
    pub fn line(&self) -> String {
        forgeyard_api::client::http::causes(self)
    }
}
