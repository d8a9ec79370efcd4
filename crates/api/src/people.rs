//! `/api/v1`: for people and programs. Rows are those of the model; this module adds what is put together for reading.

use forgeyard_model::approval::Way;
use forgeyard_model::artifact::Artifact;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::commit::EventRecord;
use forgeyard_model::demand::Demand;
use forgeyard_model::device::Device;
use forgeyard_model::environment::Environment;
use forgeyard_model::job::Job;
use forgeyard_model::lease::Lease;
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::plan::PipelineFile;
use forgeyard_model::principal::Role;
use forgeyard_model::runner::Runner;
use forgeyard_model::who::{ForgeId, Ids};
use forgeyard_model::{Explanation, ForgeName, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

/// A pipeline with all that belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PipelineView {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// Its jobs, in the order of the chain.
    pub jobs: Vec<Job>,
    /// All attempts of its jobs.
    pub attempts: Vec<Attempt>,
    /// Its artifacts.
    pub artifacts: Vec<Artifact>,
    /// Leases of its attempts.
    pub leases: Vec<Lease>,
    /// Its environment.
    pub environment: Option<Environment>,
}

/// A job with all that belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    /// The job.
    pub job: Job,
    /// Its pipeline, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Pipeline>,
    /// The job of a forge that it was made for, when it is a runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<Demand>,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Machines of its attempts.
    pub runners: Vec<Runner>,
    /// Claims of its attempts.
    pub leases: Vec<Lease>,
    /// What it made.
    pub artifacts: Vec<Artifact>,
    /// Its history.
    pub events: Vec<EventRecord>,
}

/// A job of a forge with all that belongs to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DemandView {
    /// The job of the forge.
    pub demand: Demand,
    /// Why it is where it is.
    pub why: Why,
    /// Jobs of this farm that were to bring it a runner, oldest first.
    pub launches: Vec<Job>,
}

/// Something that waits, was held or was refused.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueRow {
    /// `job_…` of this farm, or `dem_…` of a forge.
    pub id: String,
    /// What it is, for people.
    pub what: String,
    /// `owner/name` of its repository.
    pub repository: String,
    /// Numeric id of its repository; 0 for work that a person handed in.
    #[serde(default)]
    pub repository_id: u64,
    /// The forge of its repository.
    pub forge: ForgeName,
    /// State.
    pub state: String,
    /// The commit whose approval would let it in, when one would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approve_head: Option<String>,
    /// The pipeline that it belongs to, when it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineId>,
    /// Since when it waits.
    pub since: Timestamp,
    /// Place in the queue, from 1, when it waits for capacity.
    pub position: Option<u32>,
    /// Why, with evidence and fix.
    pub reason: Explanation,
    /// What happens next without anybody's doing.
    pub next: String,
    /// What is foreseen, when it waits for capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
}

/// What is foreseen for something that waits for capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outlook {
    /// Class of the work: presubmit, postsubmit or nightly.
    pub class: forgeyard_model::account::WorkClass,
    /// When it will probably start, where that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Timestamp>,
    /// What that is said from, or why it cannot be said.
    pub basis: String,
}

/// Why a job is where it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    /// State of the job.
    pub state: String,
    /// The reason, with evidence and fix.
    pub reason: Explanation,
    /// Place in the queue, from 1, when it is queued.
    pub position: Option<u32>,
    /// What happens next without anybody's doing.
    pub next: String,
    /// What is foreseen, when it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    /// Lines of the log that decided, when it failed.
    pub lines: Vec<forgeyard_model::verdict::LogLine>,
    /// Rules that allowed the pipeline.
    pub allowed_by: Vec<String>,
    /// What its last attempt had of the build cache: the sum, each client, why it is cold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache: Vec<String>,
}

/// State of the farm, for the status page.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// Name of the farm.
    pub farm: String,
    /// Version of the program.
    pub version: String,
    /// Time of this answer.
    pub at: Timestamp,
    /// Jobs by state.
    pub jobs: std::collections::BTreeMap<String, u64>,
    /// Machines by state.
    pub runners: std::collections::BTreeMap<String, u64>,
    /// All devices.
    pub devices: Vec<Device>,
    /// Sites: name, seconds since the last report, draining.
    pub sites: Vec<SiteStatus>,
    /// Trouble that an operator should know of.
    pub alarms: Vec<Explanation>,
}

/// A site, for the status page.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteStatus {
    /// Its id.
    pub id: forgeyard_model::SiteId,
    /// Its name.
    pub name: String,
    /// Last report.
    pub heard_at: Option<Timestamp>,
    /// No new work goes there.
    pub draining: bool,
    /// What its host offers.
    pub host: Option<forgeyard_model::site::HostFacts>,
}

/// Request to run a recipe folder. The source is uploaded first, to `/api/v1/sources`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunRequest {
    /// Chosen by the client, so that it can ask twice.
    pub guid: String,
    /// Name for people.
    pub name: String,
    /// Digest of the uploaded source archive.
    pub digest: forgeyard_model::Digest,
    /// Size, in bytes.
    pub size: u64,
    /// The pipeline file.
    pub file: PipelineFile,
}

/// Answer to a run request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunAnswer {
    /// The pipeline.
    pub pipeline: PipelineId,
}

/// Request for a new API token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenRequest {
    /// Name for people.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Ends after this many seconds; absent = never.
    pub expires_in_seconds: Option<u64>,
    /// Repositories that its role is limited to; empty = the whole farm. `"lab:7"` is number 7 of the forge `lab`; a number
    /// alone is of the home forge.
    #[serde(default, skip_serializing_if = "Ids::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub repositories: Ids,
}

/// A new API token. Shown once.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenAnswer {
    /// The token.
    pub token: String,
}

/// A token as it is listed: never the token itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenView {
    /// Whom it speaks for; its id names the token.
    pub principal: forgeyard_model::principal::Principal,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// Repositories that its role is limited to; empty = the whole farm. `"lab:7"` is number 7 of the forge `lab`; a number
    /// alone is of the home forge.
    #[serde(default, skip_serializing_if = "Ids::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub repositories: Ids,
}

/// What the farm is set up with. Neither access nor the addresses that sources are fetched from are part of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigView {
    /// Name of the farm.
    pub farm: String,
    /// Digest of the whole configuration, as the journal names it.
    pub digest: forgeyard_model::Digest,
    /// Pools, in order of preference.
    pub pools: Vec<forgeyard_model::resources::Pool>,
    /// Shapes of machines.
    pub flavors: Vec<forgeyard_model::resources::Flavor>,
    /// What machines boot.
    pub images: Vec<forgeyard_model::resources::Image>,
    /// Which flavor each kind of job gets.
    pub use_flavors: forgeyard_model::config::Flavors,
    /// Repositories that the farm works for.
    pub repositories: Vec<RepositoryView>,
    /// Attempts at once in the whole farm.
    pub max_running: u32,
}

/// A repository that the farm works for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryView {
    /// The forge.
    pub forge: forgeyard_model::ForgeName,
    /// Numeric id at the forge.
    pub id: u64,
    /// `owner/name`, for display.
    pub name: String,
    /// Branches that are protected, without `refs/heads/`.
    pub protected: Vec<String>,
    /// Channel that its packages are promoted to.
    pub channel: forgeyard_model::ChannelName,
}

/// A configuration that the farm ran with.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigVersionView {
    /// Number, from 1.
    pub number: u64,
    /// Digest that decisions are journalled with.
    pub digest: forgeyard_model::Digest,
    /// Since when.
    pub at: Timestamp,
    /// Who started the farm with it or had it read again, as far as that is known.
    pub by: String,
    /// What is different from the version before, when it was read while the farm ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// The version that it repeats, when it is an older one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
    /// The configuration itself, as JSON text for people; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A piece of a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogPiece {
    /// Offset of the text in the log, in bytes.
    pub offset: u64,
    /// The text; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Offset to ask for next.
    pub next: u64,
    /// The log is complete.
    pub complete: bool,
    /// The attempt that the log belongs to. Another one than before: read from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<forgeyard_model::AttemptId>,
}

/// Result of making an environment, sent by the environment service.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EnvironmentResult {
    /// Ready or failed.
    pub state: forgeyard_model::environment::EnvironmentState,
}

/// Request to run an ended job again.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RerunRequest {
    /// Refuse anything but a test on its kept artifact.
    #[serde(default)]
    pub test_only: bool,
}

/// Somebody says whether a head may run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JudgeRequest {
    /// The commit that was looked at. Another one than the head is refused.
    pub head_sha: String,
    /// Why, for the audit trail and the check run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// By which way it is said.
    #[serde(default = "by_api")]
    pub how: Way,
}

const fn by_api() -> Way {
    Way::Api
}

/// Somebody accepts the terms of service.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TermsRequest {
    /// The version that was read. Only the one that counts now can be accepted.
    pub version: u32,
    /// For whom, by numeric id: an admin records what a person said elsewhere. Absent = the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<u64>,
    /// The forge of that person; the home forge of the farm's access file when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<forgeyard_model::ForgeName>,
    /// By which way it is said.
    #[serde(default = "by_api")]
    pub how: Way,
}

/// What terms of service there are, and where the caller stands.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TermsView {
    /// The version that counts; 0 = there are no terms.
    pub version: u32,
    /// Where they can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The caller, when it is a person of a forge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<forgeyard_model::forge::Person>,
    /// The forge of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<forgeyard_model::ForgeName>,
    /// The newest version that the caller accepted; 0 = none.
    pub accepted: u32,
}

/// A request that needs a reason.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReasonRequest {
    /// Why, for the audit trail.
    pub reason: String,
}

/// Request to stop or resume giving work to a site.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DrainRequest {
    /// Stop (`true`) or resume.
    pub drain: bool,
}

/// A question to the gate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessQuestion {
    /// The repository: its number, or `"lab:7"` for number 7 of the forge `lab`. A number alone is of the home forge, and
    /// where that has none of it, of the one forge that does.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub repository: ForgeId,
    /// Numeric id of the person.
    pub person: u64,
    /// Class of the event.
    pub event: forgeyard_model::access::EventClass,
    /// Pool or resource.
    pub resource: String,
}

/// Answer of the gate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessAnswer {
    /// What it decides, with evidence.
    #[serde(flatten)]
    pub decision: forgeyard_model::access::Decision,
    /// Whether the person may approve commits of others there.
    pub approval: ApprovalAnswer,
    /// The person's role in this farm for the repository, and the rule that gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Whether somebody may approve commits of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAnswer {
    /// Whether.
    pub may: bool,
    /// By which rule, or why not.
    pub evidence: Vec<String>,
    /// What to do, when not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// The farm's public key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublicKey {
    /// Id of the key, as in statements.
    pub key_id: String,
    /// The key, PEM.
    pub pem: String,
}
