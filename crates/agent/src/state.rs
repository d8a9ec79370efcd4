//! What the agent knows, on disk before it acts on it: `agent/state.json`, replaced as a whole.

use crate::cache::CacheRecord;
use crate::error::Error;
use crate::stop::Cause;
use forgeyard_api::agent::Redeemed;
use forgeyard_model::registration::TakenJob;
use forgeyard_model::verdict::{ExitFacts, StepFacts};
use forgeyard_model::{Explanation, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// One step as far as it is known.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StepRecord {
    pub(crate) facts: StepFacts,
    /// Whether its end has been recorded.
    pub(crate) ended: bool,
}

/// What the agent of a runner of a forge knows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RunnerRecord {
    /// The configuration, as the forge encoded it; dropped when the runner program is over.
    pub(crate) config: Option<String>,
    /// What the hook said that was taken. The first word counts.
    pub(crate) taken: Option<TakenJob>,
    /// What the hook is told.
    pub(crate) word: Option<Word>,
}

/// What the hook of a runner is told about the job that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(crate) enum Word {
    /// It may run.
    Allowed {
        /// Rules that allowed it.
        by: Vec<String>,
    },
    /// The farm refuses it.
    Refused {
        /// Why.
        reason: Explanation,
    },
    /// There is no answer, and that is not the job's fault.
    Unanswered {
        /// Why.
        reason: Explanation,
    },
}

/// The content of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct AgentState {
    /// Sent with the one-shot token; written before the first try, so that a restart redeems as the same client.
    pub(crate) nonce: String,
    /// The job, once the token has been redeemed. Holds the session token: the file is for root only.
    pub(crate) redeemed: Option<Redeemed>,
    /// When the job was received; the wall clock limit counts from here.
    pub(crate) started_at: Timestamp,
    /// The same on the clock of the kernel's log.
    pub(crate) started_uptime_micros: u64,
    /// Inputs and files are in place.
    pub(crate) prepared: bool,
    /// The steps that began.
    pub(crate) steps: Vec<StepRecord>,
    /// What is known of a runner of a forge.
    #[serde(default)]
    pub(crate) runner: RunnerRecord,
    /// Where the build cache is for the job.
    #[serde(default)]
    pub(crate) cache: Option<CacheRecord>,
    /// Why the job was stopped, written before anything is killed.
    pub(crate) stop: Option<Cause>,
    /// Out-of-memory kills in containers that are gone.
    pub(crate) oom_kills: u64,
    /// What of the agent's own part went wrong.
    pub(crate) supervisor_error: Option<String>,
    /// Device nodes that the job was seen to have open.
    pub(crate) nodes_open: BTreeSet<String>,
    /// Everything observed, once the steps are over and the machine has been read.
    pub(crate) facts: Option<ExitFacts>,
}

impl AgentState {
    /// Reads the state of a folder; a new one gets a nonce and is written at once.
    pub(crate) fn load(path: &Path) -> Result<Self, Error> {
        if let Some(state) = read_json(path)? {
            return Ok(state);
        }
        let mut random = [0u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(|source| Error::file("read", Path::new("/dev/urandom"), source))?;
        let state = Self { nonce: hex::encode(random), ..Self::default() };
        state.save(path)?;
        Ok(state)
    }

    /// Replaces the file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        write_json(path, self)
    }
}

/// Where the state of a machine folder is.
pub(crate) fn path(agent: &Path) -> PathBuf {
    agent.join("state.json")
}

/// Reads a JSON file of ours; `None` when there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::file("read", path, source)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Error::Content { object: path.display().to_string(), reason: error.to_string() })
}

/// Replaces a JSON file of ours, for root only. A reader sees the old or the new content, never a part.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| Error::Content { object: path.display().to_string(), reason: error.to_string() })?;
    let fresh = path.with_extension("new");
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(&bytes))
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|source| Error::file("write", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_the_same_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path());
        let first = AgentState::load(&path).unwrap();
        assert_eq!(first.nonce.len(), 32);
        assert_eq!(AgentState::load(&path).unwrap().nonce, first.nonce);
    }

    #[test]
    fn a_broken_state_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path());
        std::fs::write(&path, "{").unwrap();
        assert!(AgentState::load(&path).unwrap_err().to_string().contains("state.json"));
    }
}
