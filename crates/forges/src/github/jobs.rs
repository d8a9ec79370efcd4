//! Jobs and runs of workflows: what is queued, who started it, and who took it.
//!
//! A webhook tells of a job but not of its actor, event or head repository; those are of the run (runners.md §3.1).
//! REST lags behind webhooks: a job that is not found, or not queued, is a hint and no fact (§4, row 18).

use super::answer;
use super::cause::Cause;
use super::client::{Call, Github};
use super::endpoint::RepositoryPath;
use super::error::GithubError;
use super::link;
use forgeyard_model::Timestamp;
use forgeyard_model::forge::Person;
use serde::Deserialize;

/// A job of one attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Job {
    /// Numeric id; a re-run has a new one.
    pub id: u64,
    /// Its run.
    pub run_id: u64,
    /// Which attempt of the run, from one.
    #[serde(default = "first")]
    pub run_attempt: u64,
    /// Name, with the values of its matrix.
    #[serde(default)]
    pub name: String,
    /// Name of the workflow.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub workflow_name: Option<String>,
    /// `queued`, `waiting`, `in_progress`, `completed`, …
    pub status: String,
    /// How it ended, once it did.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub conclusion: Option<String>,
    /// Commit.
    #[serde(default)]
    pub head_sha: String,
    /// Labels that it asks for.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub labels: Vec<String>,
    /// Runner that took it; none while it is queued.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub runner_id: Option<u64>,
    /// Name of that runner.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub runner_name: Option<String>,
    /// Group of that runner.
    #[serde(default, deserialize_with = "answer::optional_id")]
    pub runner_group_id: Option<u64>,
    /// When it was made.
    #[serde(default, deserialize_with = "answer::optional_time")]
    pub created_at: Option<Timestamp>,
    /// When it began.
    #[serde(default, deserialize_with = "answer::optional_time")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "answer::optional_time")]
    pub completed_at: Option<Timestamp>,
    /// Its page.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub html_url: Option<String>,
}

fn first() -> u64 {
    1
}

/// A repository as other objects name it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RepositoryRef {
    /// Numeric id.
    pub id: u64,
    /// `owner/name`, for display and addresses.
    pub full_name: String,
    /// Who owns it.
    #[serde(default)]
    pub owner: Option<Person>,
    /// Whether it is a fork of another one.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub fork: bool,
}

/// A run of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WorkflowRun {
    /// Numeric id; re-runs keep it.
    pub id: u64,
    /// The latest attempt, from one.
    #[serde(default = "first")]
    pub run_attempt: u64,
    /// `push`, `pull_request`, `schedule`, …
    pub event: String,
    /// `queued`, `in_progress`, …
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub status: Option<String>,
    /// How it ended, once it did.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub conclusion: Option<String>,
    /// Commit.
    pub head_sha: String,
    /// Branch of that commit; a pull request's own one.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub head_branch: Option<String>,
    /// File of the workflow, `.github/workflows/ci.yml`, perhaps with `@ref`.
    #[serde(default, deserialize_with = "answer::optional_text")]
    pub path: Option<String>,
    /// Who caused the first attempt.
    #[serde(default)]
    pub actor: Option<Person>,
    /// Who caused this attempt: the one who pressed "re-run".
    #[serde(default)]
    pub triggering_actor: Option<Person>,
    /// Where the workflow runs.
    pub repository: RepositoryRef,
    /// Where the commit comes from; none when that repository was deleted.
    #[serde(default)]
    pub head_repository: Option<RepositoryRef>,
    /// Numbers of pull requests; always empty for forks.
    #[serde(default, deserialize_with = "numbers")]
    pub pull_requests: Vec<u64>,
    /// When it was made.
    #[serde(default, deserialize_with = "answer::optional_time")]
    pub created_at: Option<Timestamp>,
}

impl WorkflowRun {
    /// Whether the commit comes from another repository, or from one that is gone, which is treated alike.
    pub fn from_elsewhere(&self) -> bool {
        self.head_repository.as_ref().is_none_or(|head| head.id != self.repository.id)
    }
}

fn numbers<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<Vec<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Pull {
        number: u64,
    }
    let pulls: Option<Vec<Pull>> = Option::deserialize(reader)?;
    Ok(pulls.unwrap_or_default().into_iter().map(|pull| pull.number).collect())
}

/// Which runs a poll looks for. A queued job may belong to a run of any of these states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStatus {
    /// No job has begun.
    Queued,
    /// Some jobs have begun, others may be queued.
    InProgress,
    /// It waits for an environment's approval.
    Waiting,
    /// It waits for its concurrency group.
    Pending,
}

impl RunStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
        }
    }
}

/// What came of asking for a repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// GitHub makes new jobs.
    Accepted,
    /// The run still goes on; GitHub repeats nothing of it until it ends (runs-on #259). Keep the intent.
    RunActive,
}

/// Name of a version of an answer, to ask only for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etag(String);

/// An answer to a poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Polled<T> {
    /// As at the last poll. Costs nothing of the hourly limit.
    Unchanged,
    /// Something else.
    Changed {
        /// What.
        value: T,
        /// To be given at the next poll. The account's token is part of it, so it changes hourly at least.
        etag: Option<Etag>,
    },
}

/// Runs that a poll found, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    /// The runs.
    pub runs: Vec<WorkflowRun>,
    /// Whether there are more than were read.
    pub more: bool,
}

#[derive(Deserialize)]
struct RunPage {
    workflow_runs: Vec<WorkflowRun>,
}

#[derive(Deserialize)]
struct JobPage {
    jobs: Vec<Job>,
}

/// A matrix has at most 256 jobs, but a run may have many matrices.
const MOST_JOB_PAGES: u32 = 20;

impl Github {
    /// One job; none if GitHub does not know it (yet).
    pub async fn job(&self, repository: &RepositoryPath, id: u64) -> Result<Option<Job>, GithubError> {
        let call = Call::get("job", format!("/repos/{repository}/actions/jobs/{id}"));
        let answer = self.installed(&repository.clone().into(), call).await?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// One run: who started it, by what event, from which repository. None if GitHub does not know it (yet).
    pub async fn run(
        &self,
        repository: &RepositoryPath,
        id: u64,
    ) -> Result<Option<WorkflowRun>, GithubError> {
        let call = Call::get("run", format!("/repos/{repository}/actions/runs/{id}"));
        let answer = self.installed(&repository.clone().into(), call).await?;
        if answer.status == 404 { Ok(None) } else { answer.json().map(Some) }
    }

    /// Runs in a state, at most `pages` pages of 100. With the [`Etag`] of the last poll only a change is told; it
    /// covers the first page, which holds the newest runs.
    pub async fn poll_runs(
        &self,
        repository: &RepositoryPath,
        status: RunStatus,
        pages: u32,
        last: Option<&Etag>,
    ) -> Result<Polled<Runs>, GithubError> {
        let mut found = Runs { runs: Vec::new(), more: false };
        let mut etag = None;
        for page in 1..=pages.max(1) {
            let call = Call::get("runs", format!("/repos/{repository}/actions/runs"))
                .query("status", status.as_str())
                .query("per_page", 100)
                .query("page", page)
                .background()
                .etag(last.filter(|_| page == 1).map(|etag| etag.0.clone()));
            let answer = self.installed(&repository.clone().into(), call).await?;
            if answer.status == 304 {
                return Ok(Polled::Unchanged);
            }
            if page == 1 {
                etag = answer.header("etag").map(|text| Etag(text.to_owned()));
            }
            found.more = answer.header("link").is_some_and(|header| link::next(header, "page").is_some());
            found.runs.extend(answer.json::<RunPage>()?.workflow_runs);
            if !found.more {
                break;
            }
        }
        Ok(Polled::Changed { value: found, etag })
    }

    /// All jobs of one attempt of a run.
    pub async fn run_jobs(
        &self,
        repository: &RepositoryPath,
        run: u64,
        attempt: u64,
    ) -> Result<Vec<Job>, GithubError> {
        let mut jobs = Vec::new();
        for page in 1..=MOST_JOB_PAGES {
            let call = Call::get(
                "run-jobs",
                format!("/repos/{repository}/actions/runs/{run}/attempts/{attempt}/jobs"),
            )
            .query("per_page", 100)
            .query("page", page)
            .background();
            let answer = self.installed(&repository.clone().into(), call).await?;
            let more = answer.header("link").is_some_and(|header| link::next(header, "page").is_some());
            jobs.extend(answer.json::<JobPage>()?.jobs);
            if !more {
                break;
            }
        }
        Ok(jobs)
    }

    /// Asks for a job to be repeated, and those that need it.
    pub async fn rerun_job(&self, repository: &RepositoryPath, job: u64) -> Result<Rerun, GithubError> {
        self.rerun(repository, format!("/repos/{repository}/actions/jobs/{job}/rerun")).await
    }

    /// Asks for all failed jobs of a run to be repeated.
    pub async fn rerun_failed_jobs(
        &self,
        repository: &RepositoryPath,
        run: u64,
    ) -> Result<Rerun, GithubError> {
        self.rerun(repository, format!("/repos/{repository}/actions/runs/{run}/rerun-failed-jobs")).await
    }

    async fn rerun(&self, repository: &RepositoryPath, path: String) -> Result<Rerun, GithubError> {
        let answer = self.installed(&repository.clone().into(), Call::post("rerun", path)).await?;
        match answer.succeeded() {
            true => Ok(Rerun::Accepted),
            false if matches!(answer.cause(), Cause::RunActive) => Ok(Rerun::RunActive),
            false => Err(answer.refusal()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_job_has_no_runner_however_that_is_written() {
        for runner in
            [r#""runner_id":null,"runner_name":null"#, r#""runner_id":0,"runner_name":"""#, r#""steps":[]"#]
        {
            let text = format!(
                r#"{{"id":94396871545,"run_id":1,"run_attempt":2,"status":"queued","conclusion":null,"labels":["gpu"],
                "head_sha":"a","name":"build","completed_at":null,{runner}}}"#
            );
            let job: Job = answer::read("GET /x", text.as_bytes()).unwrap();
            assert_eq!(
                (job.id, job.runner_id, job.runner_name, job.completed_at),
                (94_396_871_545, None, None, None)
            );
        }
    }

    #[test]
    fn a_run_whose_head_repository_is_another_or_gone_comes_from_elsewhere() {
        let run = |head: &str| {
            let text = format!(
                r#"{{"id":1,"event":"pull_request","head_sha":"a","repository":{{"id":7,"full_name":"o/r"}},
                "head_repository":{head},"pull_requests":[],"actor":{{"id":5,"login":"p","type":"User"}}}}"#
            );
            answer::read::<WorkflowRun>("GET /x", text.as_bytes()).unwrap()
        };
        assert!(!run(r#"{"id":7,"full_name":"o/r"}"#).from_elsewhere());
        assert!(run(r#"{"id":8,"full_name":"p/r","fork":true}"#).from_elsewhere());
        assert!(run("null").from_elsewhere());
        assert_eq!(run("null").actor.map(|actor| actor.id), Some(5));
    }
}
