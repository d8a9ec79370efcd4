//! Inputs: everything that can make the engine decide. Each accepted input is one journal entry, so that the past can
//! be replayed bit for bit.

use crate::approval::{Approver, Way};
use crate::artifact::Artifact;
use crate::demand::{RunFacts, Source};
use crate::effect::EffectResult;
use crate::forge::{Meaning, Person, Repository, WorkflowJob};
use crate::principal::{ApiToken, Principal};
use crate::registration::{TakenAnswer, TakenJob};
use crate::site::SiteReport;
use crate::verdict::{ExitFacts, Hit};
use crate::{
    AttemptId, DeviceId, Digest, EffectId, ForgeName, JobId, LeaseId, PipelineId, PoolName, RunnerId, SiteId,
    SiteName, Timestamp,
};
use serde::{Deserialize, Serialize};

/// Something that happened, or that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "input", rename_all = "snake_case")]
pub enum Input {
    /// A webhook body arrived. Stored before anything else.
    DeliveryReceived {
        /// The sender's GUID.
        guid: String,
        /// Event name.
        event: String,
        /// Digest of the raw body.
        body: Digest,
    },
    /// A stored delivery was read.
    DeliveryRead {
        /// Which.
        guid: String,
        /// What it says, or why it cannot be read.
        meaning: Result<Meaning, crate::Explanation>,
        /// Whether we had asked the forge to send it again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asked: bool,
    },
    /// An outbox effect came out, one way or the other.
    EffectSettled {
        /// Which.
        effect: EffectId,
        /// How.
        result: Box<EffectResult>,
    },
    /// An outbox effect did not come out and will be tried again.
    EffectTroubled {
        /// Which.
        effect: EffectId,
        /// What happened.
        trouble: String,
    },
    /// An outbox effect was not even tried, or not heard out: a limit of the forge, or our own pace below it, lets it be
    /// done at a later time. That is no failure and uses up no try.
    EffectDeferred {
        /// Which.
        effect: EffectId,
        /// Not before.
        until: Timestamp,
        /// Which limit, in words.
        reason: crate::Explanation,
    },
    /// A site joined or joined again under the same name.
    SiteJoined {
        /// Its name.
        name: SiteName,
        /// SHA-256 of its token.
        token: Digest,
        /// Its public key, in hexadecimal.
        public_key: String,
    },
    /// A site reports.
    SiteReported {
        /// Which.
        site: SiteId,
        /// What it sees.
        report: Box<SiteReport>,
    },
    /// An agent redeemed the token of an attempt.
    TokenRedeemed {
        /// Which.
        attempt: AttemptId,
        /// The client's nonce.
        nonce: String,
    },
    /// An agent speaks.
    AgentHeard {
        /// Which attempt.
        attempt: AttemptId,
        /// The fence that it holds.
        fence: u32,
        /// The step that runs; absent while it prepares.
        step: Option<String>,
    },
    /// An agent stored an output.
    ArtifactStored {
        /// The attempt that made it.
        attempt: AttemptId,
        /// The fence that it holds.
        fence: u32,
        /// The record; its ids are set by the engine.
        kind: crate::artifact::ArtifactKind,
        /// File name.
        name: String,
        /// Digest of its bytes, verified on arrival.
        digest: Digest,
        /// Size, in bytes.
        size: u64,
    },
    /// An attempt is over.
    AttemptFinished {
        /// Which.
        attempt: AttemptId,
        /// The fence that its agent holds.
        fence: u32,
        /// What the supervisor saw.
        facts: Box<ExitFacts>,
        /// Where signatures matched in its log.
        hits: Vec<Hit>,
        /// Last lines of its log.
        tail: Vec<crate::verdict::LogLine>,
    },
    /// A source other than a webhook says how jobs of a forge are. Webhooks come as [`Input::DeliveryRead`].
    DemandReported {
        /// Which source.
        source: Source,
        /// The jobs.
        jobs: Vec<WorkflowJob>,
    },
    /// A forge no longer knows a job.
    DemandGone {
        /// Where.
        forge: ForgeName,
        /// Numeric id of the job.
        job: u64,
    },
    /// Somebody says whether a head commit may run. Counts for everything of the repository at exactly that commit.
    HeadJudged {
        /// Where.
        repository: Repository,
        /// The commit that was looked at.
        head_sha: String,
        /// It may (`true`), or it may not.
        approve: bool,
        /// Why not.
        reason: Option<String>,
        /// Who.
        approver: Approver,
        /// By which way.
        how: Way,
    },
    /// Somebody accepts the terms of service.
    TermsAccepted {
        /// Who.
        person: Person,
        /// The forge of the person; the home forge when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forge: Option<ForgeName>,
        /// The version that was read.
        version: u32,
        /// By which way.
        how: Way,
    },
    /// The farm runs under this configuration from now on.
    ConfigAdopted {
        /// The configuration, as JSON.
        text: String,
        /// Who started the farm with it, as far as that is known.
        started_by: String,
        /// An older version that is the same.
        repeats: Option<u64>,
        /// What is different, when it was read again while the farm ran: a line for each thing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changes: Vec<String>,
    },
    /// A machine fetched the configuration of its runner.
    RunnerConfigFetched {
        /// The attempt.
        attempt: AttemptId,
        /// The fence that its agent holds.
        fence: u32,
    },
    /// The sealed configuration of a runner is no longer there, and the machine never had it.
    RunnerConfigLost {
        /// The attempt.
        attempt: AttemptId,
        /// The fence that its agent holds.
        fence: u32,
    },
    /// A machine that is bound to one job comes for its configuration: what the forge says of exactly that job now.
    RunnerHandover {
        /// Which attempt.
        attempt: AttemptId,
        /// The fence that it holds.
        fence: u32,
        /// The job that it will take.
        job: TakenJob,
        /// What the forge says of its run.
        facts: Box<RunFacts>,
    },
    /// The supervisor of a runner says that the runner program was alone in its machine: no process of a job beside it.
    RunnerQuiet {
        /// Which attempt.
        attempt: AttemptId,
        /// The fence that it holds.
        fence: u32,
        /// For how long so far.
        seconds: u64,
    },
    /// The job-started hook of a runner says what it took, and asks whether that may run. Asked again until it is told.
    RunnerTook {
        /// The attempt.
        attempt: AttemptId,
        /// The fence that its agent holds.
        fence: u32,
        /// What it took.
        job: TakenJob,
    },
    /// The control plane started and has loaded its state. Silence counts from here.
    FarmStarted {
        /// Epoch of this control plane.
        epoch: u64,
    },
    /// Time passed.
    Ticked,
    /// A person asks to stop a job.
    CancelJob {
        /// Which.
        job: JobId,
    },
    /// A person asks to run an ended job again; a test runs on its kept artifact.
    RerunJob {
        /// Which.
        job: JobId,
    },
    /// An operator lifts the quarantine of a device.
    ClearDevice {
        /// Which.
        device: DeviceId,
    },
    /// An operator takes a device out.
    QuarantineDevice {
        /// Which.
        device: DeviceId,
        /// Why.
        reason: String,
    },
    /// An operator declares the host of a lease lost.
    WriteOffLease {
        /// Which.
        lease: LeaseId,
    },
    /// An operator wants a machine left standing.
    KeepRunner {
        /// Which.
        runner: RunnerId,
        /// Why.
        reason: String,
    },
    /// The agent of a machine that waits for work called, with the nonce that it chose. It asks again until it is given an
    /// attempt.
    WarmCalled {
        /// The machine.
        runner: RunnerId,
        /// The client's nonce.
        nonce: String,
    },
    /// An operator stops or resumes giving work to a pool.
    DrainPool {
        /// Which.
        pool: PoolName,
        /// Stop (`true`) or resume.
        drain: bool,
    },
    /// An operator has a pool start machines again at once.
    ResetPool {
        /// Which.
        pool: PoolName,
    },
    /// An operator stops or resumes giving work to a site.
    DrainSite {
        /// Which.
        site: SiteId,
        /// Stop (`true`) or resume.
        drain: bool,
    },
    /// A recipe folder was handed in by a person; its source is already stored.
    RunRequested {
        /// GUID of the request, chosen by the client so that it can ask twice.
        guid: String,
        /// The stored source tree.
        source: StoredSource,
        /// The pipeline file found in it.
        file: Box<crate::plan::PipelineFile>,
    },
    /// An API token was made.
    TokenIssued {
        /// The token's row, without the token.
        token: ApiToken,
    },
    /// An API token was revoked.
    TokenRevoked {
        /// Digest of the token.
        digest: Digest,
    },
}

/// A source tree that a person handed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSource {
    /// Name for people.
    pub name: String,
    /// Digest of the archive.
    pub digest: Digest,
    /// Size, in bytes.
    pub size: u64,
}

/// An input with who gave it, when, and the entropy of its decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Position in the journal, from 1, without gaps.
    pub seq: u64,
    /// Time of the decision.
    pub at: Timestamp,
    /// Entropy of the decision, in hexadecimal.
    pub entropy: String,
    /// Digest of the configuration that it was decided under.
    pub config: Digest,
    /// Who.
    pub by: Principal,
    /// What.
    #[serde(flatten)]
    pub input: Input,
}

/// What the engine answers to an accepted input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Done,
    /// Already so; nothing was changed.
    Unchanged,
    /// The pipeline that was started.
    Pipeline {
        /// Which.
        pipeline: PipelineId,
    },
    /// The site that joined.
    Site {
        /// Which.
        site: SiteId,
    },
    /// The artifact that was recorded.
    Artifact {
        /// The record.
        artifact: Box<Artifact>,
    },
    /// What was decided about the job that a runner took.
    Taken {
        /// The answer.
        answer: TakenAnswer,
    },
    /// The agent goes on, or stops because the farm asks.
    Agent {
        /// Stop the job.
        cancel: bool,
    },
}

/// Why the engine does not accept an input. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// What kind.
    pub kind: RefusalKind,
    /// The reason.
    pub reason: crate::Explanation,
}

/// Kinds of refusal; each is one HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// No such thing.
    NotFound,
    /// It exists, and its state does not allow this.
    Conflict,
    /// The caller was superseded: a newer attempt, a newer epoch.
    Superseded,
    /// The caller may not.
    Forbidden,
    /// The request makes no sense.
    Invalid,
}

impl Refusal {
    /// A refusal of this kind.
    pub fn new(kind: RefusalKind, code: &str, message: impl Into<String>) -> Self {
        Self { kind, reason: crate::Explanation::new(code, message) }
    }

    /// Says what to do.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.reason.fix = Some(fix.into());
        self
    }
}
