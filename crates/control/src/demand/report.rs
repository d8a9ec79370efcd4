//! What the answers of a forge say of a job, in the shape in which every source says it.

use forgeyard_forges::github::Job;
use forgeyard_model::forge::{Repository, WorkflowJob};

/// A job as the REST interface tells it. It does not know the sender.
pub(crate) fn of_rest(repository: &Repository, installation: Option<u64>, job: &Job) -> WorkflowJob {
    WorkflowJob {
        repository: repository.clone(),
        installation,
        job: job.id,
        run: job.run_id,
        run_attempt: u32::try_from(job.run_attempt).unwrap_or(u32::MAX),
        name: job.name.clone(),
        workflow: job.workflow_name.clone(),
        action: job.status.clone(),
        conclusion: job.conclusion.clone(),
        labels: job.labels.clone(),
        head_sha: job.head_sha.clone(),
        head_branch: None,
        runner_name: job.runner_name.clone(),
        runner_id: job.runner_id,
        sender: None,
        scale_set: None,
    }
}
