//! Effects: local things that the control plane does after a decision is durable. At least once, so each is
//! idempotent by its id. Machines are not effects: they are desired state.

use crate::artifact::Artifact;
use crate::channel::ChannelEntry;
use crate::demand::RunFacts;
use crate::environment::EnvironmentState;
use crate::forge::{Repository, WorkflowJob};
use crate::package::PackageFacts;
use crate::plan::{PipelineFile, RenderedPlan};
use crate::{
    ArtifactId, ChannelName, DemandId, EffectId, EnvironmentId, Explanation, JobId, PipelineId, RunnerId,
    Timestamp,
};
use serde::{Deserialize, Serialize};

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// Fetch the source of a pipeline at its head and its pipeline file at its base.
    FetchSource {
        /// Which.
        pipeline: PipelineId,
    },
    /// Read the engine's rendering.
    ReadPlan {
        /// The plan job.
        job: JobId,
        /// The rendering.
        artifact: ArtifactId,
    },
    /// Read the metadata of a package.
    InspectPackage {
        /// The build job.
        job: JobId,
        /// The package.
        artifact: ArtifactId,
    },
    /// Sign statements and prepare the channel entries of a pipeline.
    Promote {
        /// Which.
        pipeline: PipelineId,
        /// Where to.
        channel: ChannelName,
    },
    /// Solve, link and try an environment.
    MakeEnvironment {
        /// Which.
        environment: EnvironmentId,
    },
    /// Ask a forge whose work a run is.
    LookUpRun {
        /// The demand that it is asked for.
        demand: DemandId,
        /// The runner that took a job of the run, when it is asked for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runner: Option<RunnerId>,
        /// Where.
        repository: Repository,
        /// Installation of the app at the forge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<u64>,
        /// Numeric id of the run.
        run: u64,
        /// Number of the attempt of the run.
        run_attempt: u32,
    },
    /// Ask a forge what became of a job of which nobody has spoken for long.
    ReadJob {
        /// The demand.
        demand: DemandId,
        /// Where.
        repository: Repository,
        /// Installation of the app at the forge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<u64>,
        /// Numeric id of the job.
        job: u64,
    },
    /// Ask a forge for a just-in-time configuration. The machine is up by then. The configuration is a secret and does
    /// not come back as a result: whoever does this keeps it sealed until the machine fetches it.
    MintRunner {
        /// The demand that the machine was made for.
        demand: DemandId,
        /// The machine.
        runner: RunnerId,
        /// Where.
        repository: Repository,
        /// Installation of the app at the forge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<u64>,
        /// Scale set to register with, instead of the repository or its organisation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scale_set: Option<u64>,
        /// Name of the runner at the forge.
        name: String,
        /// Labels of the runner at the forge.
        labels: Vec<String>,
    },
    /// Ask a forge to run again what was lost with its machine in an attempt of a run, when the run is over. Which jobs those
    /// are stands in their demands.
    RepeatJobs {
        /// The demand that it is asked for first.
        demand: DemandId,
        /// Where.
        repository: Repository,
        /// Installation of the app at the forge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<u64>,
        /// Numeric id of the run.
        run: u64,
        /// Number of the attempt of the run.
        run_attempt: u32,
    },
    /// Ask a forge to forget a runner; never one that is busy. Whether it is busy is read anew, just before.
    Deregister {
        /// The demand that the machine was made for.
        demand: DemandId,
        /// The machine.
        runner: RunnerId,
        /// Where.
        repository: Repository,
        /// Installation of the app at the forge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        installation: Option<u64>,
        /// Scale set that it registered with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scale_set: Option<u64>,
        /// Name of the runner at the forge.
        name: String,
        /// Numeric id of the runner at the forge; found by name when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forge_runner: Option<u64>,
    },
}

impl Effect {
    /// The demand that an effect at a forge is done for.
    pub const fn demand(&self) -> Option<DemandId> {
        match self {
            Effect::LookUpRun { demand, .. }
            | Effect::ReadJob { demand, .. }
            | Effect::MintRunner { demand, .. }
            | Effect::RepeatJobs { demand, .. }
            | Effect::Deregister { demand, .. } => Some(*demand),
            _ => None,
        }
    }
}

/// How an effect came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum EffectResult {
    /// The source is stored.
    Source {
        /// The stored tree.
        artifact: Artifact,
        /// Commit.
        commit: String,
        /// The pipeline file.
        file: Box<PipelineFile>,
        /// Commit that the pipeline file was read from.
        file_commit: String,
    },
    /// The rendering was read.
    Plan {
        /// What it says.
        plan: RenderedPlan,
    },
    /// The package was read.
    Package {
        /// What it says.
        facts: Box<PackageFacts>,
    },
    /// Statements are signed; the entries are ready to be switched in.
    Promotion {
        /// The entries.
        entries: Vec<ChannelEntry>,
    },
    /// The environment is made.
    Environment {
        /// Ready or failed.
        state: Box<EnvironmentState>,
    },
    /// The run was read.
    Run {
        /// What the forge says.
        facts: Box<RunFacts>,
    },
    /// The forge does not know the run, or does not show it. A hint, not a fact: reads may be behind.
    RunMissing,
    /// The job was read.
    Job {
        /// What the forge says.
        job: Box<WorkflowJob>,
    },
    /// The forge does not know the job.
    JobMissing,
    /// The configuration of a runner is there, sealed.
    Minted {
        /// Numeric id of the runner at the forge.
        runner: u64,
    },
    /// The forge makes new jobs for these.
    Repeated {
        /// Numeric ids of the jobs that were lost.
        jobs: Vec<u64>,
    },
    /// Another runner has the name.
    NameTaken,
    /// The forge does not know the runner (any more).
    Deregistered,
    /// The forge says that the runner is busy; it was left alone.
    RunnerBusy,
    /// It cannot be done, and trying again will not help.
    Refused {
        /// Why.
        reason: Explanation,
    },
}

/// An outbox row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEffect {
    /// Its id, derived from what caused it.
    pub id: EffectId,
    /// What to do.
    #[serde(flatten)]
    pub effect: Effect,
    /// How often it was tried and did not come out.
    pub tries: u32,
    /// Not before.
    pub not_before: Timestamp,
    /// Last trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why it is not done before [`PendingEffect::not_before`], when that is no trouble: a limit of the forge. A wait is no
    /// try. The last one stays, so that what waits for the same limit can be told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Explanation>,
    /// Done: kept for the record, no longer in the outbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_at: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
