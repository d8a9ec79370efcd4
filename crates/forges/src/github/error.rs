//! What can go wrong in a call to GitHub: always with the call's method and path, never with a token.

use super::budget::Limit;
use super::cause::Cause;
use forgeyard_model::Timestamp;

/// Why a call to GitHub did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum GithubError {
    /// An option cannot be used.
    #[error("cannot set up the GitHub client: {what}: {reason}")]
    Setup {
        /// Which option.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The App's private key cannot be used.
    #[error("the App's private key cannot be used: {reason}")]
    Key {
        /// Why not.
        reason: String,
    },
    /// There was no answer, so the outcome of a call that changes something is not known.
    #[error("{call}: no answer from GitHub")]
    Transport {
        /// Method and path.
        call: String,
        /// The cause.
        #[source]
        source: Silence,
    },
    /// The answer is not what GitHub's documentation says.
    #[error("{call}: cannot understand the answer: field `{field}`: {reason}")]
    Answer {
        /// Method and path.
        call: String,
        /// Path of the field inside the answer; `.` for the whole.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// GitHub refused.
    #[error("{call}: GitHub refused with status {status}: {cause}{}", in_words(.request))]
    Refused {
        /// Method and path.
        call: String,
        /// HTTP status.
        status: u16,
        /// What it means.
        cause: Cause,
        /// GitHub's name for the exchange, for its support.
        request: Option<String>,
    },
    /// The call would break a limit, or did: it is to be made again, not before `until`.
    #[error("{call}: {limit}, wait until {until}")]
    Limited {
        /// Method and path.
        call: String,
        /// Which limit.
        limit: Limit,
        /// When it may be tried again.
        until: Timestamp,
    },
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// The connection.
    #[error(transparent)]
    Connection(reqwest::Error),
    /// A simulated GitHub gave none, as its script says.
    #[cfg(feature = "twin")]
    #[error("the simulated answer is lost")]
    Simulated,
}

impl Silence {
    /// Whether nothing was ever sent.
    fn before_sending(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_connect(),
            #[cfg(feature = "twin")]
            Self::Simulated => false,
        }
    }
}

fn in_words(id: &Option<String>) -> String {
    id.as_ref().map(|id| format!(" (request {id})")).unwrap_or_default()
}

impl GithubError {
    /// What GitHub's refusal means, if it refused.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Refused { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// Whether the call may have had its effect although it failed: its outcome is to be read back.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Transport { source, .. } => !source.before_sending(),
            Self::Answer { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}
