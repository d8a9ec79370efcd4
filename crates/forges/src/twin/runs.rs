//! Runs, their attempts and jobs: how they start, wait, are taken, end and run again.
//!
//! A job goes `Blocked` (its needs are not done; GitHub does not show it) → `Waiting` (an environment rule) →
//! `Queued` → `InProgress` → `Completed`. Each step from `Waiting` on sends `workflow_job`. A run again has a new
//! number of attempt and new job ids under the same run id, and is refused while the run is active (runs-on #259).
//! A job that a runner holds but has not begun still reads `queued`, as at GitHub.

use super::jobs::{Conclusion, Job, JobSpec, JobStatus, JobView, Rerun, Run, RunSpec, TakenBy};
use super::repositories::EnvironmentRule;
use super::state::{State, Timer};
use forgeyard_model::forge::Person;
use std::collections::BTreeSet;

impl State {
    /// A job.
    pub fn job(&self, id: u64) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// A run.
    pub fn run(&self, id: u64) -> Option<&Run> {
        self.runs.get(&id)
    }

    /// All jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// Jobs of the current attempt of a run.
    pub fn current_jobs(&self, run: u64) -> Vec<&Job> {
        let Some(run) = self.runs.get(&run) else { return Vec::new() };
        let jobs = run.jobs.iter().filter_map(|id| self.jobs.get(id));
        jobs.filter(|job| job.attempt == run.attempt).collect()
    }

    /// Starts a run; returns its id.
    pub fn start_run(&mut self, spec: RunSpec) -> u64 {
        self.numbers.run += 1;
        let id = self.numbers.run;
        let number = match self.repositories.get_mut(&spec.repository) {
            Some(repository) => {
                repository.run_number += 1;
                repository.workflows.insert(spec.workflow.clone());
                if !spec.tag && spec.head_repository == spec.repository {
                    let commits = repository.branches.entry(spec.head_branch.clone()).or_default();
                    if !commits.contains(&spec.head_sha) {
                        commits.push(spec.head_sha.clone());
                    }
                }
                repository.run_number
            }
            None => 1,
        };
        let held = spec.needs_approval;
        let jobs = if held { Vec::new() } else { spec.jobs.clone() };
        let run = Run {
            id,
            number,
            attempt: 1,
            held,
            triggering_actor: spec.actor.clone(),
            created_at: self.now,
            started_at: self.now,
            updated_at: self.now,
            jobs: Vec::new(),
            spec,
        };
        self.runs.insert(id, run);
        self.add_jobs(id, jobs);
        self.settle();
        id
    }

    /// A maintainer approves a run that waits for it. False when it does not.
    pub fn approve_run(&mut self, id: u64) -> bool {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.held) else { return false };
        run.held = false;
        let jobs = run.spec.jobs.clone();
        self.add_jobs(id, jobs);
        self.settle();
        true
    }

    pub(super) fn add_jobs(&mut self, run: u64, specs: Vec<JobSpec>) {
        let Some(attempt) = self.runs.get(&run).map(|run| run.attempt) else { return };
        for spec in specs {
            self.numbers.job += 1;
            let id = self.numbers.job;
            let wanted: BTreeSet<String> = spec.labels.iter().map(|label| label.to_lowercase()).collect();
            let hosted = wanted.len() == 1 && self.setup.hosted_labels.iter().any(|one| wanted.contains(one));
            let job = Job {
                id,
                run,
                attempt,
                wanted,
                hosted,
                assigned: None,
                cancel_requested: false,
                created_at: self.now,
                history: Vec::new(),
                approved: false,
                spec,
            };
            self.jobs.insert(id, job);
            if let Some(run) = self.runs.get_mut(&run) {
                run.jobs.push(id);
            }
        }
        self.open_jobs(run);
    }

    /// Opens jobs whose needs are done; skips those whose needs will never be.
    fn open_jobs(&mut self, run: u64) {
        loop {
            let jobs: Vec<u64> = self.current_jobs(run).iter().map(|job| job.id).collect();
            let mut changed = false;
            for id in jobs {
                match self.readiness(run, id) {
                    Readiness::NotYet => {}
                    Readiness::Open => {
                        self.open_job(id);
                        changed = true;
                    }
                    Readiness::Never => {
                        self.complete(id, Conclusion::Skipped);
                        changed = true;
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn readiness(&self, run: u64, id: u64) -> Readiness {
        let Some(job) = self.jobs.get(&id) else { return Readiness::NotYet };
        if job.status() != JobStatus::Blocked {
            return Readiness::NotYet;
        }
        if job.spec.skip {
            return Readiness::Never;
        }
        let Some(run) = self.runs.get(&run) else { return Readiness::NotYet };
        let mut open = true;
        for need in &job.spec.needs {
            // The newest job of that name counts: a run again of failed jobs leaves the others where they are.
            let newest = run.jobs.iter().rev().filter_map(|id| self.jobs.get(id));
            match newest.filter(|job| &job.spec.name == need).map(Job::view).next() {
                Some(JobView { status: JobStatus::Completed, conclusion, .. }) => {
                    if conclusion != Some(Conclusion::Success) {
                        return Readiness::Never;
                    }
                }
                _ => open = false,
            }
        }
        if open { Readiness::Open } else { Readiness::NotYet }
    }

    fn open_job(&mut self, id: u64) {
        let rule = self.environment_rule(id);
        match rule {
            EnvironmentRule::Open => return self.queue_job(id),
            EnvironmentRule::Reviewers => {}
            EnvironmentRule::Wait(wait) => self.after(wait, Timer::WaitOver(id)),
        }
        self.see(id, |view| view.status = JobStatus::Waiting);
        self.emit_job(id, "waiting");
    }

    fn environment_rule(&self, id: u64) -> EnvironmentRule {
        let found = || {
            let job = self.jobs.get(&id)?;
            let run = self.runs.get(&job.run)?;
            let repository = self.repositories.get(&run.spec.repository)?;
            repository.environments.get(job.spec.environment.as_ref()?)
        };
        found().map_or(EnvironmentRule::Open, |environment| environment.rule.clone())
    }

    /// Approves a job that waits for reviewers. False when it does not wait.
    pub fn approve_job(&mut self, id: u64) -> bool {
        let waits = self.jobs.get(&id).is_some_and(|job| job.status() == JobStatus::Waiting);
        if waits {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.approved = true;
            }
            self.queue_job(id);
            self.settle();
        }
        waits
    }

    pub(super) fn environment_wait_over(&mut self, id: u64) {
        self.approve_job(id);
    }

    fn queue_job(&mut self, id: u64) {
        self.see(id, |view| view.status = JobStatus::Queued);
        self.emit_job(id, "queued");
        self.after(self.setup.queue_limit, Timer::QueueLimit(id));
        if self.jobs.get(&id).is_some_and(|job| job.hosted) {
            self.after(self.setup.hosted_start, Timer::HostedStart(id));
        } else {
            self.enqueue(id);
        }
    }

    /// A job wants a runner.
    pub(super) fn enqueue(&mut self, id: u64) {
        self.queued.insert(id);
        self.to_offer.insert(id);
        self.new_jobs.insert(id);
    }

    /// Adds a view that begins now.
    pub(super) fn see(&mut self, id: u64, change: impl FnOnce(&mut JobView)) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let mut view = job.view();
        change(&mut view);
        view.at = now;
        job.history.push(view);
        let run = job.run;
        if let Some(run) = self.runs.get_mut(&run) {
            run.updated_at = now;
        }
    }

    /// A runner began a job.
    pub(super) fn begin(&mut self, id: u64, taken_by: TakenBy) {
        let now = self.now;
        self.see(id, |view| {
            view.status = JobStatus::InProgress;
            view.runner = Some(taken_by);
            view.started_at = Some(now);
        });
        self.emit_job(id, "in_progress");
        self.tell_set_started(id);
    }

    /// A job ended, however; its runner is let go by the caller.
    pub(super) fn complete(&mut self, id: u64, conclusion: Conclusion) {
        if self.jobs.get(&id).is_none_or(|job| job.status() == JobStatus::Completed) {
            return;
        }
        let now = self.now;
        self.queued.remove(&id);
        self.to_offer.remove(&id);
        self.new_jobs.remove(&id);
        self.steered.remove(&id);
        self.see(id, |view| {
            view.status = JobStatus::Completed;
            view.conclusion = Some(conclusion);
            view.completed_at = Some(now);
        });
        self.emit_job(id, "completed");
        self.tell_set_completed(id, conclusion);
        if let Some(run) = self.jobs.get(&id).map(|job| job.run) {
            self.open_jobs(run);
        }
    }

    pub(super) fn queue_limit_reached(&mut self, id: u64) {
        let stale = self.jobs.get(&id).is_some_and(|job| job.status() == JobStatus::Queued);
        if stale {
            self.release_unbegun(id);
            self.complete(id, Conclusion::Cancelled);
        }
    }

    /// Takes a job that was not begun from its runner.
    fn release_unbegun(&mut self, id: u64) {
        let runner = self.jobs.get_mut(&id).and_then(|job| job.assigned.take());
        if let Some(runner) = runner {
            self.runner_freed(runner);
        }
    }

    /// Cancels a run: what is not begun ends at once, what runs is told to end. False when the run is over.
    pub fn cancel_run(&mut self, run: u64) -> bool {
        let mut jobs: Vec<(u64, JobStatus)> =
            self.current_jobs(run).iter().map(|job| (job.id, job.status())).collect();
        jobs.retain(|(_, status)| *status != JobStatus::Completed);
        let any = !jobs.is_empty();
        // Blocked jobs first, so that the end of another does not open them.
        jobs.sort_by_key(|(_, status)| *status);
        for (id, status) in jobs {
            if status == JobStatus::InProgress {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.cancel_requested = true;
                }
                self.stand_in_told_to_cancel(id);
                if self.jobs.get(&id).is_some_and(|job| job.hosted) {
                    self.complete(id, Conclusion::Cancelled);
                }
            } else {
                self.release_unbegun(id);
                self.complete(id, Conclusion::Cancelled);
            }
        }
        self.settle();
        any
    }

    /// Whether anything of the current attempt is not over.
    pub fn run_active(&self, run: u64) -> bool {
        self.current_jobs(run).iter().any(|job| job.status() != JobStatus::Completed)
    }

    /// Runs all jobs again, or only those that did not succeed, or one by name. False while the run is active.
    pub fn rerun(&mut self, run: u64, which: Rerun, actor: &Person) -> bool {
        if self.run_active(run) || !self.runs.contains_key(&run) {
            return false;
        }
        let again: Vec<JobSpec> = match which {
            Rerun::All => self.runs.get(&run).map(|run| run.spec.jobs.clone()).unwrap_or_default(),
            Rerun::Failed => {
                let failed = |job: &&&Job| job.view().conclusion != Some(Conclusion::Success);
                self.current_jobs(run).iter().filter(failed).map(|job| job.spec.clone()).collect()
            }
            Rerun::Job(id) => self.jobs.get(&id).map(|job| job.spec.clone()).into_iter().collect(),
        };
        let now = self.now;
        if let Some(run) = self.runs.get_mut(&run) {
            run.attempt += 1;
            run.triggering_actor = actor.clone();
            run.started_at = now;
        }
        self.add_jobs(run, again);
        self.settle();
        true
    }

    pub(super) fn hosted_start(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.status() == JobStatus::Queued) else { return };
        let duration = job.spec.duration;
        let taken_by = TakenBy {
            id: 1_000_000_000 + id % 1_000_000,
            name: format!("GitHub Actions {}", id % 1_000_000),
            group_id: 2,
            group_name: "GitHub Actions".to_owned(),
        };
        self.begin(id, taken_by);
        self.after(duration, Timer::HostedEnd(id));
    }

    pub(super) fn hosted_end(&mut self, id: u64) {
        if let Some(outcome) = self.jobs.get(&id).map(|job| job.spec.outcome) {
            self.complete(id, outcome);
        }
    }
}

enum Readiness {
    NotYet,
    Open,
    Never,
}
