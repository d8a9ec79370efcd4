//! `/agent/v1`: between the farm and the agent of one attempt.
//!
//! An agent starts with a one-shot token that names its attempt and fence. It redeems the token with a nonce of its
//! own and gets the job and a session token. The same nonce may redeem again until the first heartbeat; after that,
//! and for any other nonce, the token is closed. Every later call carries the session token and the fence; a
//! superseded attempt is answered 410 and must stop.

use forgeyard_model::device::DeviceFacts;
use forgeyard_model::job::JobSpec;
use forgeyard_model::resources::Flavor;
use forgeyard_model::verdict::ExitFacts;
use forgeyard_model::{AttemptId, Lane, Timestamp};
use serde::{Deserialize, Serialize};

/// `POST` of [`Redeem`], answers [`Redeemed`].
pub const REDEEM: &str = "/agent/v1/redeem";
/// `POST` of [`Wait`], answers [`Waited`]; waits until there is work. Only for a machine that was made before there was an
/// attempt for it; after that it redeems its token as any other.
pub const WAIT: &str = "/agent/v1/wait";
/// `POST` of [`Heartbeat`], answers [`HeartbeatAnswer`].
pub const HEARTBEAT: &str = "/agent/v1/attempts/{attempt}/heartbeat";
/// `POST` of raw log bytes with `?offset=N`, answers [`LogAnswer`]. Idempotent by offset.
pub const LOG: &str = "/agent/v1/attempts/{attempt}/log";
/// `GET` of an input of the job, by digest; ranges are honoured.
pub const BLOB: &str = "/agent/v1/attempts/{attempt}/blobs/{digest}";
/// `PUT` of the bytes of an output with `?digest=…`; answers the artifact record.
pub const ARTIFACT: &str = "/agent/v1/attempts/{attempt}/artifacts/{kind}/{name}";
/// `POST` of [`Finish`]; empty answer.
pub const FINISH: &str = "/agent/v1/attempts/{attempt}/finish";
/// `POST` of [`RunnerConfigRequest`], answers [`RunnerConfig`]; waits until it is there. Only for jobs of the kind
/// `runner`.
pub const RUNNER_CONFIG: &str = "/agent/v1/attempts/{attempt}/runner-config";
/// `POST` of [`RunnerTook`], answers a [`TakenAnswer`](forgeyard_model::registration::TakenAnswer); waits until it is
/// decided. Only for jobs of the kind `runner`.
pub const RUNNER_TOOK: &str = "/agent/v1/attempts/{attempt}/runner-took";

/// `GET`, answers [`CacheAccess`]: what the job may do in the build cache. For a runner of a forge only once what it took may
/// run.
pub const CACHE: &str = "/agent/v1/attempts/{attempt}/cache";

/// Version of this contract that both sides must share.
pub const VERSION: u32 = 1;

/// A request to redeem a one-shot token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redeem {
    /// Version of the contract that the agent speaks.
    pub version: u32,
    /// The one-shot token.
    pub token: String,
    /// Chosen by the agent once and kept over its own restarts.
    pub nonce: String,
}

/// How the one-shot token of a machine begins that was made before there was an attempt for it.
pub const WAITING: &str = "rnr_";

/// A machine asks for work.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Wait {
    /// Version of the contract that the agent speaks.
    pub version: u32,
    /// The one-shot token of the machine.
    pub token: String,
    /// Chosen by the agent once and kept over its own restarts; the first one has the machine.
    pub nonce: String,
    /// Wait at most this long, in seconds; 25 at most.
    #[serde(default)]
    pub wait_seconds: u64,
}

/// Whether there is work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Waited {
    /// Not yet: ask again.
    Nothing,
    /// There is: redeem the token.
    Work,
}

/// The job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redeemed {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence.
    pub fence: u32,
    /// Token for every later call.
    pub session: String,
    /// How far the event is trusted.
    pub lane: Lane,
    /// What to do.
    pub spec: JobSpec,
    /// Shape and limits of the machine.
    pub flavor: Flavor,
    /// Devices that were leased.
    pub devices: Vec<DeviceFacts>,
    /// Speak at least this often.
    pub heartbeat_seconds: u64,
    /// Keep at most this many log bytes; count the rest.
    pub log_cap_bytes: u64,
    /// Whether the farm has a build cache: then the job gets a way to it.
    #[serde(default)]
    pub cache: bool,
    /// Texts to mask in the log, beside the tokens that the agent holds itself.
    #[serde(default)]
    pub mask: Vec<String>,
}

/// A sign of life.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// The fence.
    pub fence: u32,
    /// The step that runs; absent while preparing.
    pub step: Option<String>,
    /// In a machine that is a runner of a forge: for how many seconds its program has been alone, without any process of a
    /// job beside it. Absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_seconds: Option<u64>,
}

/// Answer to a sign of life.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatAnswer {
    /// Stop the job.
    pub cancel: bool,
}

/// Answer to log bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogAnswer {
    /// Bytes that are durable from the beginning of the log. Send from here next.
    pub durable: u64,
}

/// The end of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finish {
    /// The fence.
    pub fence: u32,
    /// What the supervisor saw.
    pub facts: ExitFacts,
}

/// Asks for the configuration of the forge's runner program.
///
/// Answered with an error of the code
/// - `registration.not_minted` (conflict): not there yet; ask again;
/// - `registration.consumed` (conflict): the program was started with it once, which is all that it is good for: end;
/// - `attempt.superseded`, `registration.over`: nobody wants this machine any more: end.
///
/// Until the first sign of life that names a step, asking again gives the same configuration, so that an answer may be
/// lost. With that sign of life it is destroyed: give it just before the program is started.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerConfigRequest {
    /// The fence.
    pub fence: u32,
    /// Wait for it at most this long, in seconds; 25 at most.
    #[serde(default)]
    pub wait_seconds: u64,
}

/// The configuration of the forge's runner program: a secret, good for one job.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerConfig {
    /// Name of the runner at the forge.
    pub name: String,
    /// What the program is started with (`--jitconfig`, or `ACTIONS_RUNNER_INPUT_JITCONFIG`).
    pub config: String,
}

impl std::fmt::Debug for RunnerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerConfig").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The build cache for one attempt. The agent keeps the token; the job reaches the cache through the agent.
///
/// Not there: an error of the code
/// - `cache.none` (missing): the farm has no cache, or none for this job;
/// - `cache.not_yet` (conflict): it is not known yet whose work the machine will do.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheAccess {
    /// Address of the cache.
    pub address: String,
    /// The token. It ends with the attempt.
    pub token: String,
    /// The scope from which is read upwards.
    pub scope: String,
    /// Whether that scope is written as well.
    pub writes: bool,
    /// Why, and why not more.
    pub reason: String,
    /// When the token ends at the latest.
    pub expires_at: Timestamp,
    /// Public keys of what Nix reads from there, where its scopes have some.
    #[serde(default)]
    pub nix_keys: Vec<String>,
    /// Certificate authorities to trust at that address beside those of the system, in PEM: where the operators have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

impl std::fmt::Debug for CacheAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, scope, writes, .. } = self;
        f.debug_struct("CacheAccess")
            .field("address", address)
            .field("scope", scope)
            .field("writes", writes)
            .finish_non_exhaustive()
    }
}

/// What the job-started hook of the runner program found in its environment: the job that was really taken.
///
/// Answered with `asked` (not decided yet: ask again, and run no step meanwhile), `allowed`, or `refused` with a reason:
/// then the hook fails, so that no step runs, and the machine ends. Another job than the one that was told first is
/// refused with `registration.one_job` (conflict).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerTook {
    /// The fence.
    pub fence: u32,
    /// Wait for the decision at most this long, in seconds; 25 at most.
    #[serde(default)]
    pub wait_seconds: u64,
    /// `GITHUB_REPOSITORY_ID`.
    pub repository_id: u64,
    /// `GITHUB_REPOSITORY`, `owner/name`.
    pub repository: String,
    /// `GITHUB_RUN_ID`.
    pub run: u64,
    /// `GITHUB_RUN_ATTEMPT`.
    pub run_attempt: u32,
    /// `GITHUB_JOB`: key of the job in its workflow.
    pub job: String,
    /// `GITHUB_ACTOR_ID`.
    #[serde(default)]
    pub actor_id: Option<u64>,
    /// `GITHUB_ACTOR`.
    #[serde(default)]
    pub actor: Option<String>,
}
