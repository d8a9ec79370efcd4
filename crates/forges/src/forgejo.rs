//! Forgejo and Gitea, as a client: jobs that wait, whose work a run is, and runners of one use.
//!
//! **Mode.** The farm boots a machine, and the machine runs the forge's own program for one job (`forgejo-runner one-job`,
//! runners.md §3.7, mode (a)). The farm fetches no task itself, so the idempotent key of `FetchTask` (report 47) is that
//! program's affair; that a server ignored the key is found by what the machine then does not do.
//!
//! **Binding.** A job that waits has a *handle* (Forgejo 15), and a runner that is given it takes that job and no other:
//! what GitHub cannot do. The handle is handed over with the registration ([`OneJob`]), which is a secret until used. That
//! the list of jobs tells a handle is the probe for it; a server that tells none (Gitea) binds late, as GitHub does.
//!
//! **Names.** A runner's name need not be unique there: registering again after a lost answer makes a second one. So
//! whoever registers looks for those of the name first.
//!
//! Invariants: the token goes to `https` or to this machine only and is in no error; ids are 64 bits wide; an attempt of a
//! job has a number of its own ([`job_number`]), since a job that is run again keeps its id.
//!
//! Facts come from Forgejo's published integration tests and structures (`ActionRunJob`, `ActionRun`,
//! `RegisterRunnerOptions`) and from runners.md §3.7. It was tested against a *simulated* Forgejo and never against a server.

mod handover;
mod wire;

pub use handover::{OneJob, UnreadableHandover};
pub use wire::{Registered, Run, Runner, WaitingJob, job_number};

use crate::github::error::Silence;
use crate::github::{HttpOptions, RepositoryPath};
use forgeyard_model::Secret;
use wire::Wire;

/// Pages of 50 runners that are looked through.
const PAGES: u32 = 40;

/// Why a call to a Forgejo did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ForgejoError {
    /// An option cannot be used.
    #[error("cannot set up the Forgejo client: {what}: {reason}")]
    Setup {
        /// Which option.
        what: String,
        /// Why not.
        reason: String,
    },
    /// There was no answer, so the outcome of a call that changes something is not known.
    #[error("{call}: no answer from the forge")]
    Transport {
        /// Method and path.
        call: String,
        /// The cause.
        #[source]
        source: Silence,
    },
    /// The answer is not what was expected.
    #[error("{call}: cannot understand the answer: field `{field}`: {reason}")]
    Answer {
        /// Method and path.
        call: String,
        /// Path of the field inside the answer.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The forge refused.
    #[error("{call}: the forge refused with status {status}: {text}")]
    Refused {
        /// Method and path.
        call: String,
        /// HTTP status.
        status: u16,
        /// Its text.
        text: String,
    },
    /// The server registers no runners of one use.
    #[error("the forge does not register runners of one use")]
    NotOfOneUse,
}

impl ForgejoError {
    /// What a person does about it; none where waiting is all.
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            Self::Refused { status: 401, .. } => {
                Some("make a new access token for the farm, and put it into `token-file`")
            }
            Self::Refused { status: 403, .. } => Some(
                "give the token the scope write:repository, and its owner the right to administer the repository",
            ),
            Self::Refused { status: 404, .. } => Some(
                "see that the repository is there, that Actions are on, and that the server is new enough (Forgejo 15)",
            ),
            Self::NotOfOneUse => Some("use Gitea 1.24 or later, or Forgejo 15 or later"),
            _ => None,
        }
    }
}

/// A Forgejo or Gitea with the farm's token. Clones share connections.
#[derive(Clone)]
pub struct Forgejo {
    wire: Wire,
}

impl Forgejo {
    /// A client. Nothing is called yet.
    pub fn new(web: &str, token: Secret, http: &HttpOptions) -> Result<Self, ForgejoError> {
        Ok(Self { wire: Wire::new(web, token, http)? })
    }

    /// Address of its pages, without a slash at the end.
    pub fn web(&self) -> &str {
        self.wire.web()
    }

    /// Jobs of a repository that wait or run and ask for no other labels than these.
    pub async fn jobs(
        &self,
        repository: &RepositoryPath,
        labels: &[String],
    ) -> Result<Vec<WaitingJob>, ForgejoError> {
        let path = format!("/repos/{repository}/actions/runners/jobs");
        let query = if labels.is_empty() { Vec::new() } else { vec![("labels", labels.join(","))] };
        // A list without entries is `null`.
        let jobs: Option<Vec<WaitingJob>> = self.wire.get(&path, &query).await?;
        Ok(jobs.unwrap_or_default())
    }

    /// A run; none if there is none of this number.
    pub async fn run(&self, repository: &RepositoryPath, run: u64) -> Result<Option<Run>, ForgejoError> {
        let path = format!("/repos/{repository}/actions/runs/{run}");
        absent(self.wire.get(&path, &[]).await)
    }

    /// Writes a commit status. One of the same context replaces what was said before.
    pub async fn set_status(
        &self,
        repository: &RepositoryPath,
        sha: &str,
        status: &CommitStatus,
    ) -> Result<(), ForgejoError> {
        let path = format!("/repos/{repository}/statuses/{sha}");
        let body = serde_json::json!({
            "state": status.state.word(), "context": status.context, "description": status.description,
            "target_url": status.target_url,
        });
        let _: serde_json::Value = self.wire.post(&path, body).await?;
        Ok(())
    }

    /// Registers a runner of one use. A server without that call (Gitea) has a token of the repository for it instead, and
    /// the call of the runner protocol.
    pub async fn register(
        &self,
        repository: &RepositoryPath,
        name: &str,
        labels: &[String],
    ) -> Result<Registered, ForgejoError> {
        let path = format!("/repos/{repository}/actions/runners");
        let description = "one job for Forgeyard";
        let body = serde_json::json!({ "name": name, "description": description, "ephemeral": true });
        match self.wire.post(&path, body).await {
            Err(ForgejoError::Refused { status: 404 | 405, .. }) => {
                self.register_by_token(repository, name, labels).await
            }
            answer => answer,
        }
    }

    async fn register_by_token(
        &self,
        repository: &RepositoryPath,
        name: &str,
        labels: &[String],
    ) -> Result<Registered, ForgejoError> {
        let path = format!("/repos/{repository}/actions/runners/registration-token");
        let wire::RegistrationToken { token } = self.wire.get(&path, &[]).await?;
        let body = serde_json::json!({
            "name": name, "token": token.expose(), "version": "forgeyard", "labels": labels, "ephemeral": true,
        });
        let wire::RegisteredByToken { runner } = self.wire.runner_service("Register", body).await?;
        if !runner.ephemeral {
            // It would take job after job.
            self.delete_runner(repository, runner.id).await?;
            return Err(ForgejoError::NotOfOneUse);
        }
        Ok(Registered { id: runner.id, uuid: runner.uuid, token: runner.token })
    }

    /// A runner; none once it did its job, or was deleted.
    pub async fn runner(&self, repository: &RepositoryPath, id: u64) -> Result<Option<Runner>, ForgejoError> {
        absent(self.wire.get(&format!("/repos/{repository}/actions/runners/{id}"), &[]).await)
    }

    /// The runners of a name that the repository has itself.
    pub async fn runners_named(
        &self,
        repository: &RepositoryPath,
        name: &str,
    ) -> Result<Vec<Runner>, ForgejoError> {
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let query = [("page", page.to_string()), ("limit", "50".to_owned())];
            let path = format!("/repos/{repository}/actions/runners");
            let all: Option<Vec<Runner>> = self.wire.get(&path, &query).await?;
            let all = all.unwrap_or_default();
            let last = all.is_empty();
            found.extend(all.into_iter().filter(|runner| runner.name == name));
            if last {
                break;
            }
        }
        Ok(found)
    }

    /// Deletes a runner; `false` when there was none.
    pub async fn delete_runner(&self, repository: &RepositoryPath, id: u64) -> Result<bool, ForgejoError> {
        let gone = self.wire.delete(&format!("/repos/{repository}/actions/runners/{id}")).await;
        Ok(absent(gone.map(Some))?.is_some())
    }
}

/// What a commit status says, as far as the farm says anything (`CommitStatusState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusState {
    /// Not decided: something waits or runs.
    Pending,
    /// Nothing is wanted any more.
    Success,
    /// Refused.
    Failure,
}

impl StatusState {
    /// The forge's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

/// A commit status (`CreateStatusOption`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// What it says.
    pub state: StatusState,
    /// Whose it is; there is one of each context.
    pub context: String,
    /// The text beside it.
    pub description: String,
    /// Where it leads.
    pub target_url: String,
}

/// 404 is an answer.
fn absent<T>(answer: Result<Option<T>, ForgejoError>) -> Result<Option<T>, ForgejoError> {
    match answer {
        Err(ForgejoError::Refused { status: 404, .. }) => Ok(None),
        other => other,
    }
}
