//! What runs and jobs are: how they are described before they start, and what can be seen of them.

use forgeyard_model::Timestamp;
use forgeyard_model::forge::Person;
use std::collections::BTreeSet;
use std::time::Duration;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conclusion {
    /// All steps passed.
    Success,
    /// A step failed, or the runner was lost.
    Failure,
    /// Somebody ended it.
    Cancelled,
    /// It did not run, because another job failed or its condition was false.
    Skipped,
    /// It took longer than its own limit.
    TimedOut,
}

impl Conclusion {
    /// GitHub's spelling.
    pub const fn name(self) -> &'static str {
        match self {
            Conclusion::Success => "success",
            Conclusion::Failure => "failure",
            Conclusion::Cancelled => "cancelled",
            Conclusion::Skipped => "skipped",
            Conclusion::TimedOut => "timed_out",
        }
    }
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobStatus {
    /// Its needs are not done.
    Blocked,
    /// An environment rule holds it.
    Waiting,
    /// It wants a runner, or has one that has not begun.
    Queued,
    /// A runner is at it.
    InProgress,
    /// It is over.
    Completed,
}

impl JobStatus {
    /// GitHub's spelling.
    pub const fn name(self) -> &'static str {
        match self {
            JobStatus::Blocked => "pending",
            JobStatus::Waiting => "waiting",
            JobStatus::Queued => "queued",
            JobStatus::InProgress => "in_progress",
            JobStatus::Completed => "completed",
        }
    }
}

/// A job of a run to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Name.
    pub name: String,
    /// Labels that it asks for.
    pub labels: Vec<String>,
    /// Runner group that it asks for, which no payload tells.
    pub group: Option<String>,
    /// Environment that it names.
    pub environment: Option<String>,
    /// Names of jobs that must succeed before.
    pub needs: Vec<String>,
    /// Whether its condition is false.
    pub skip: bool,
    /// How long its steps take.
    pub duration: Duration,
    /// How its steps end.
    pub outcome: Conclusion,
}

impl JobSpec {
    /// A job of one simulated minute that succeeds.
    pub fn new(name: &str, labels: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            group: None,
            environment: None,
            needs: Vec::new(),
            skip: false,
            duration: Duration::from_secs(60),
            outcome: Conclusion::Success,
        }
    }
}

/// A run to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpec {
    /// Repository whose workflow runs.
    pub repository: u64,
    /// Name of the workflow.
    pub workflow: String,
    /// `push`, `pull_request`, `schedule`, `workflow_dispatch`, …
    pub event: String,
    /// Branch of the head, or the tag.
    pub head_branch: String,
    /// Whether a tag was pushed and no branch; its run looks the same.
    pub tag: bool,
    /// Head commit.
    pub head_sha: String,
    /// Repository of the head; another one for a fork.
    pub head_repository: u64,
    /// Pull request that it belongs to.
    pub pull: Option<u64>,
    /// Who caused it.
    pub actor: Person,
    /// Whether it waits for a maintainer's approval, as runs of first-time contributors from forks do.
    pub needs_approval: bool,
    /// Its jobs.
    pub jobs: Vec<JobSpec>,
}

impl RunSpec {
    /// A run of a push to `main`.
    pub fn push(repository: u64, actor: &Person, jobs: Vec<JobSpec>) -> Self {
        Self {
            repository,
            workflow: "ci".to_owned(),
            event: "push".to_owned(),
            head_branch: "main".to_owned(),
            tag: false,
            head_sha: "5d1e0bc5a1d9a0f2f4c1f0c1d0e5a7b3c9d2e1f0".to_owned(),
            head_repository: repository,
            pull: None,
            actor: actor.clone(),
            needs_approval: false,
            jobs,
        }
    }
}

/// A run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Id, the same in each attempt.
    pub id: u64,
    /// What it was made of.
    pub spec: RunSpec,
    /// Number in its repository.
    pub number: u64,
    /// Attempt that is current, from 1.
    pub attempt: u32,
    /// Who asked for the current attempt.
    pub triggering_actor: Person,
    /// Whether it still waits for approval; then it has no jobs.
    pub held: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When the current attempt was made.
    pub started_at: Timestamp,
    /// When anything of it last changed.
    pub updated_at: Timestamp,
    /// Jobs of all attempts, in order.
    pub jobs: Vec<u64>,
}

/// Who took a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBy {
    /// Id of the runner.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its group.
    pub group_id: u64,
    /// The group's name.
    pub group_name: String,
}

/// What can be seen of a job at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// Since when.
    pub at: Timestamp,
    /// Where it stands.
    pub status: JobStatus,
    /// How it ended.
    pub conclusion: Option<Conclusion>,
    /// Who took it.
    pub runner: Option<TakenBy>,
    /// When it was begun.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Id; also that of its check run.
    pub id: u64,
    /// Its run.
    pub run: u64,
    /// Its attempt.
    pub attempt: u32,
    /// What it was made of.
    pub spec: JobSpec,
    /// Labels in lower case.
    pub wanted: BTreeSet<String>,
    /// Whether it is for hosted runners.
    pub hosted: bool,
    /// Runner that holds it.
    pub assigned: Option<u64>,
    /// Whether somebody asked to end it while it ran.
    pub cancel_requested: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// Everything that could be seen of it, oldest first; never empty.
    pub history: Vec<JobView>,
    pub(super) approved: bool,
}

impl Job {
    /// What is true of it now.
    pub fn view(&self) -> JobView {
        self.history.last().cloned().unwrap_or(JobView {
            at: self.created_at,
            status: JobStatus::Blocked,
            conclusion: None,
            runner: None,
            started_at: None,
            completed_at: None,
        })
    }

    /// What was true of it at a time.
    pub(super) fn view_at(&self, at: Timestamp) -> Option<&JobView> {
        self.history.iter().rev().find(|view| view.at <= at)
    }

    /// Where it stands.
    pub fn status(&self) -> JobStatus {
        self.history.last().map_or(JobStatus::Blocked, |view| view.status)
    }
}

/// What is to run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// Every job.
    All,
    /// Those that did not succeed.
    Failed,
    /// One.
    Job(u64),
}
