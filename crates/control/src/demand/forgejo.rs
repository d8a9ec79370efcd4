//! Demand of a Forgejo: its list of jobs that wait or run, asked for every few seconds. It is one call for each repository
//! with a grant or with open demand.
//!
//! The list names no runner. A job that runs was taken by the runner that was given its handle, so that one is named; a
//! job without a handle is bound late, and nobody is named. A job that left the list is over: that is believed when two
//! lists in a row lack it, and how it ended is asked of its run.
//!
//! A webhook that speaks of jobs has the list asked for at once; what it says itself is not believed.
//!
//! A list that does not tell the run of a job (before Forgejo 15) tells nothing that the gate could decide by. Such jobs are
//! not reported, and a warning says so once.

use super::RoundError;
use super::poll::{give, wanted};
use crate::app::App;
use crate::effect::causes;
use crate::forges::Connection;
use forgeyard_forges::forgejo::{Forgejo, ForgejoError, WaitingJob};
use forgeyard_forges::github::RepositoryPath;
use forgeyard_model::ForgeName;
use forgeyard_model::demand::{Demand, Source};
use forgeyard_model::forge::{Repository, WorkflowJob};
use forgeyard_model::registration::RegistrationState;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time between two lists.
pub const EVERY: Duration = Duration::from_secs(10);
/// Least time between two lists, when a webhook says that there is something new.
pub(super) const LEAST: Duration = Duration::from_secs(1);
/// Lists in a row that must lack a job before it is called over.
const LACKS: u8 = 2;

/// What polling remembers.
#[derive(Default)]
pub struct Poll {
    /// Demands that lists lacked, and how many of them.
    lacking: BTreeMap<u64, u8>,
    /// Whether it was said that the server tells no runs.
    warned: bool,
}

impl Poll {
    /// Asks for the list of each repository. Trouble with one is logged, and does not keep the others from their turn.
    pub async fn round(&mut self, app: &App, forge: &ForgeName, client: &Forgejo) {
        for repository in wanted(app, forge).into_values() {
            if let Err(error) = self.look(app, client, &repository).await {
                tracing::warn!(repository = %repository.name, error = causes(&error), "its jobs could not be asked for");
            }
        }
    }

    async fn look(&mut self, app: &App, client: &Forgejo, repository: &Repository) -> Result<(), RoundError> {
        let path = Connection::path(repository).map_err(|reason| RoundError::Missing(reason.message))?;
        let refused = |error: ForgejoError| RoundError::Missing(causes(&error));
        let mut jobs = client.jobs(&path, &[]).await.map_err(refused)?;
        // Names change hands: what is of another repository is none of ours.
        jobs.retain(|job| job.repo_id == repository.id);
        if !self.warned && jobs.iter().any(|job| job.run_id.is_none()) {
            self.warned = true;
            tracing::warn!(repository = %repository.name, "the forge does not tell which run a job is of: it is too old");
        }
        let mut reports = Vec::new();
        for job in &jobs {
            let known = app
                .core
                .read()
                .demand_of(&repository.forge, job.number())
                .map(|demand| demand.head_sha.clone());
            let head = match (known, job.run_id) {
                (Some(head), _) => head,
                (None, Some(run)) => {
                    let run = client.run(&path, run).await.map_err(refused)?;
                    run.map(|run| run.commit_sha).unwrap_or_default()
                }
                (None, None) => continue,
            };
            reports.extend(report(app, repository, job, head));
        }
        reports.extend(self.over(app, client, &path, repository, &jobs).await.map_err(refused)?);
        give(app, Source::Poll, reports).await
    }

    /// Jobs that the ledger holds for open and the list lacks.
    async fn over(
        &mut self,
        app: &App,
        client: &Forgejo,
        path: &RepositoryPath,
        repository: &Repository,
        jobs: &[WaitingJob],
    ) -> Result<Vec<WorkflowJob>, ForgejoError> {
        let open: Vec<Demand> = {
            let farm = app.core.read();
            let live = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
            let here = live
                .filter(|one| one.repository.forge == repository.forge && one.repository.id == repository.id);
            here.cloned().collect()
        };
        let mut reports = Vec::new();
        for demand in open {
            if jobs.iter().any(|job| job.number() == demand.job) {
                self.lacking.remove(&demand.job);
                continue;
            }
            let lacks = self.lacking.entry(demand.job).or_default();
            *lacks = lacks.saturating_add(1);
            if *lacks < LACKS {
                continue;
            }
            self.lacking.remove(&demand.job);
            let run = client.run(path, demand.run).await?;
            reports.push(WorkflowJob {
                repository: demand.repository.clone(),
                installation: None,
                job: demand.job,
                run: demand.run,
                run_attempt: demand.run_attempt,
                name: demand.name.clone(),
                workflow: demand.workflow.clone(),
                action: "completed".to_owned(),
                conclusion: Some(run.map_or_else(|| "cancelled".to_owned(), |run| run.status)),
                labels: demand.labels.clone(),
                head_sha: demand.head_sha.clone(),
                head_branch: None,
                runner_name: demand.taken_by.as_ref().map(|taker| taker.name.clone()),
                runner_id: None,
                sender: None,
                scale_set: None,
            });
        }
        Ok(reports)
    }
}

/// What the list says of a job. None of one whose run is not told, or that neither waits nor runs.
pub(crate) fn report(
    app: &App,
    repository: &Repository,
    job: &WaitingJob,
    head_sha: String,
) -> Option<WorkflowJob> {
    let action = match job.status.as_str() {
        "waiting" => "queued",
        "running" => "in_progress",
        _ => return None,
    };
    let number = job.number();
    let runner_name =
        if action == "in_progress" && job.handle.is_some() { bound(app, repository, number) } else { None };
    Some(WorkflowJob {
        repository: repository.clone(),
        installation: None,
        job: number,
        run: job.run_id?,
        run_attempt: u32::try_from(job.attempt.unwrap_or(1)).unwrap_or(u32::MAX),
        name: job.name.clone(),
        workflow: None,
        action: action.to_owned(),
        conclusion: None,
        labels: job.runs_on.clone(),
        head_sha,
        head_branch: None,
        runner_name,
        runner_id: None,
        sender: None,
        scale_set: None,
    })
}

/// The runner that was given the handle of a job.
fn bound(app: &App, repository: &Repository, number: u64) -> Option<String> {
    let farm = app.core.read();
    let demand = farm.demand_of(&repository.forge, number)?.id;
    let registrations = farm.runners.values().filter_map(|runner| runner.registration.as_deref());
    let mut given = registrations
        .filter(|one| one.demand == demand && matches!(one.state, RegistrationState::Minted { .. }));
    given.next().map(|registration| registration.name.clone())
}
