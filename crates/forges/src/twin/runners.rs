//! Runners of the simulated GitHub: registration, JIT configurations, groups, and which job goes where.
//!
//! Late binding: a queued job goes to *any* idle runner in reach whose labels cover those that it asks for, whatever
//! the runner was made for (actions/runner #2147, TF-AWS #3013). Which one is a choice of the seed, unless a test
//! steers it. A JIT configuration is used once; a second use is a conflict of sessions (ARC #4148).

use super::jobs::{Conclusion, JobStatus, TakenBy};
use super::state::{State, Timer};
use forgeyard_model::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Where a runner belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// An organisation, by id.
    Organization(u64),
    /// A repository, by id.
    Repository(u64),
}

/// A group of runners of an organisation.
#[derive(Debug, Clone)]
pub struct Group {
    /// Numeric id; 1 is `Default` everywhere, 2 is `GitHub Actions` everywhere.
    pub id: u64,
    /// Organisation.
    pub organization: u64,
    /// Name.
    pub name: String,
    /// Repositories that may use it; none means all.
    pub selected: Option<BTreeSet<u64>>,
    /// Whether public repositories may use it.
    pub public_repositories: bool,
}

/// A registered runner.
#[derive(Debug, Clone)]
pub struct RunnerRow {
    /// Numeric id.
    pub id: u64,
    /// Name, unique in its scope.
    pub name: String,
    /// Where it belongs.
    pub scope: Scope,
    /// Its group.
    pub group: u64,
    /// Labels as given.
    pub labels: Vec<String>,
    /// Labels in lower case.
    pub covers: BTreeSet<String>,
    /// Whether it is for one job.
    pub ephemeral: bool,
    /// Whether it is connected.
    pub online: bool,
    /// Whether it ever was.
    pub connected: bool,
    /// Job that it holds.
    pub job: Option<u64>,
    /// Since when.
    pub busy_since: Option<Timestamp>,
    /// Scale set that made it.
    pub set: Option<u64>,
    /// When it was registered.
    pub created_at: Timestamp,
    pub(super) secret: String,
    pub(super) stand_in: Option<u64>,
}

/// Why a runner could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    /// The name is taken.
    #[error("Already exists - A runner with the name {name} already exists.")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The group of hosted runners takes none.
    #[error("Runners cannot be added to the group of GitHub-hosted runners.")]
    HostedGroup,
    /// There is no such group.
    #[error("Not Found")]
    NoGroup,
    /// The group is full.
    #[error("The runner group has reached max limit of {limit} runners.")]
    GroupFull {
        /// How many it may have.
        limit: usize,
    },
    /// The repository may have none.
    #[error("Repository level self-hosted runners are disabled on this repository.")]
    OwnRunnersDisabled,
    /// The repository runs no workflows.
    #[error("GitHub Actions is disabled for this repository.")]
    ActionsDisabled,
}

/// Why a runner was not removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// There is no such runner.
    #[error("Not Found")]
    Unknown,
    /// It is at a job.
    #[error("Runner \"{name}\" is currently running a job and cannot be deleted.")]
    JobStillRunning {
        /// Its name.
        name: String,
    },
}

/// A runner to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerSpec {
    /// Where it belongs.
    pub scope: Scope,
    /// Name.
    pub name: String,
    /// Group.
    pub group: u64,
    /// Labels.
    pub labels: Vec<String>,
    /// Folder for its work.
    pub work_folder: String,
    /// Scale set.
    pub set: Option<u64>,
}

impl State {
    /// Adds a group to an organisation; `selected` names the repositories that may use it.
    pub fn add_group(&mut self, organization: u64, name: &str, selected: Option<Vec<u64>>) -> u64 {
        self.numbers.group += 1;
        let id = self.numbers.group;
        let group = Group {
            id,
            organization,
            name: name.to_owned(),
            selected: selected.map(|ids| ids.into_iter().collect()),
            public_repositories: true,
        };
        self.groups.insert(id, group);
        id
    }

    /// A group, to be changed.
    pub fn group_mut(&mut self, id: u64) -> Option<&mut Group> {
        self.groups.get_mut(&id)
    }

    pub(super) fn group_name(&self, id: u64) -> String {
        match id {
            1 => "Default".to_owned(),
            2 => "GitHub Actions".to_owned(),
            _ => self.groups.get(&id).map(|group| group.name.clone()).unwrap_or_default(),
        }
    }

    fn group_in_reach(&self, scope: Scope, id: u64) -> bool {
        match scope {
            Scope::Repository(_) => id == 1,
            Scope::Organization(owner) => {
                id == 1 || self.groups.get(&id).is_some_and(|group| group.organization == owner)
            }
        }
    }

    /// A registered runner.
    pub fn runner(&self, id: u64) -> Option<&RunnerRow> {
        self.runners.get(&id)
    }

    /// All registered runners.
    pub fn runners(&self) -> impl Iterator<Item = &RunnerRow> {
        self.runners.values()
    }

    /// The runner of this name in a scope.
    pub fn runner_by_name(&self, scope: Scope, name: &str) -> Option<&RunnerRow> {
        self.runners.values().find(|one| one.scope == scope && one.name.eq_ignore_ascii_case(name))
    }

    /// Registers a runner of one use; returns its id and the encoded JIT configuration.
    pub fn mint_jit(&mut self, spec: RunnerSpec) -> Result<(u64, String), MintError> {
        if let Scope::Repository(id) = spec.scope {
            let repository = self.repositories.get(&id);
            if repository.is_some_and(|repository| !repository.actions_enabled) {
                return Err(MintError::ActionsDisabled);
            }
            if repository.is_some_and(|repository| !repository.own_runners) {
                return Err(MintError::OwnRunnersDisabled);
            }
        }
        if spec.group == 2 {
            return Err(MintError::HostedGroup);
        }
        if !self.group_in_reach(spec.scope, spec.group) {
            return Err(MintError::NoGroup);
        }
        if self.runner_by_name(spec.scope, &spec.name).is_some() {
            return Err(MintError::NameTaken { name: spec.name });
        }
        let limit = self.setup.group_limit;
        let members =
            self.runners.values().filter(|one| one.scope == spec.scope && one.group == spec.group).count();
        if members >= limit {
            return Err(MintError::GroupFull { limit });
        }
        self.numbers.runner += 1;
        let id = self.numbers.runner;
        let secret = self.secret_text();
        let encoded = self.encode_jit(id, &spec, &secret);
        self.jit.insert(secret.clone(), id);
        let row = RunnerRow {
            id,
            name: spec.name,
            scope: spec.scope,
            group: spec.group,
            covers: spec.labels.iter().map(|label| label.to_lowercase()).collect(),
            labels: spec.labels,
            ephemeral: true,
            online: false,
            connected: false,
            job: None,
            busy_since: None,
            set: spec.set,
            created_at: self.now,
            secret,
            stand_in: None,
        };
        self.runners.insert(id, row);
        self.after(self.setup.unused_runner_kept, Timer::Unused(id));
        Ok((id, encoded))
    }

    /// A runner program goes away. At a job, the job is lost some minutes later.
    pub fn disconnect(&mut self, id: u64) {
        let Some(row) = self.runners.get_mut(&id) else { return };
        row.online = false;
        self.idle.remove(&id);
        self.new_runners.remove(&id);
        let Some(job) = row.job else { return };
        if self.jobs.get(&job).is_some_and(|job| job.status() == JobStatus::InProgress) {
            self.after(self.setup.lost_after, Timer::Lost(id));
        } else {
            self.give_back(id, job);
            self.settle();
        }
    }

    /// A runner falls silent without a word: it counts as online until that is noticed, and may be given a job that
    /// it will never begin (ARC #3953).
    pub fn fall_silent(&mut self, id: u64) {
        self.after(self.setup.noticed_after, Timer::Noticed(id));
    }

    /// A job that was handed out and not begun goes back to the queue.
    fn give_back(&mut self, id: u64, job: u64) {
        if let Some(row) = self.runners.get_mut(&id) {
            row.job = None;
            row.busy_since = None;
        }
        if let Some(row) = self.jobs.get_mut(&job) {
            row.assigned = None;
            self.enqueue(job);
        }
    }

    pub(super) fn runner_lost(&mut self, id: u64) {
        let Some(row) = self.runners.get(&id).filter(|row| !row.online) else { return };
        if let Some(job) = row.job {
            self.complete(job, Conclusion::Failure);
            self.forget_runner(id);
        }
    }

    pub(super) fn runner_unused(&mut self, id: u64) {
        if self.runners.get(&id).is_some_and(|row| !row.connected) {
            self.forget_runner(id);
        }
    }

    fn forget_runner(&mut self, id: u64) {
        self.idle.remove(&id);
        if let Some(row) = self.runners.remove(&id) {
            self.jit.remove(&row.secret);
        }
    }

    /// Removes a runner; refused while it holds a job.
    pub fn remove_runner(&mut self, id: u64) -> Result<(), RemoveError> {
        let row = self.runners.get(&id).ok_or(RemoveError::Unknown)?;
        if row.job.is_some() {
            return Err(RemoveError::JobStillRunning { name: row.name.clone() });
        }
        if let Some(stand_in) = row.stand_in {
            self.stand_in_removed(stand_in);
        }
        self.forget_runner(id);
        Ok(())
    }

    /// The next time this job is handed out, it goes to the runner of this name or waits for it.
    pub fn steer(&mut self, job: u64, runner: &str) {
        self.steered.insert(job, runner.to_owned());
        self.new_jobs.insert(job);
    }

    fn in_reach(&self, runner: &RunnerRow, repository: u64) -> bool {
        let Some(repository) = self.repositories.get(&repository) else { return false };
        match runner.scope {
            Scope::Repository(id) => id == repository.id,
            Scope::Organization(id) if id == repository.owner => match self.groups.get(&runner.group) {
                None => true,
                Some(group) => {
                    (repository.private || group.public_repositories)
                        && group.selected.as_ref().is_none_or(|selected| selected.contains(&repository.id))
                }
            },
            Scope::Organization(_) => false,
        }
    }

    /// Whether this runner may take this job.
    fn fits(&self, runner: u64, job: u64) -> bool {
        let (Some(runner), Some(job)) = (self.runners.get(&runner), self.jobs.get(&job)) else {
            return false;
        };
        let Some(run) = self.runs.get(&job.run) else { return false };
        if !self.in_reach(runner, run.spec.repository) {
            return false;
        }
        if let Some(group) = &job.spec.group
            && &self.group_name(runner.group) != group
        {
            return false;
        }
        match runner.set {
            Some(set) => self.set_runner_may_take(set, job),
            None => !self.sets.holds(job.id) && job.wanted.is_subset(&runner.covers),
        }
    }

    /// Hands queued jobs to idle runners, oldest job first. Only pairs with something new in them are looked at.
    pub(super) fn bind(&mut self) {
        let new_jobs = std::mem::take(&mut self.new_jobs);
        let new_runners = std::mem::take(&mut self.new_runners);
        let jobs: Vec<u64> = match new_runners.is_empty() {
            true => new_jobs.iter().copied().filter(|job| self.queued.contains(job)).collect(),
            false => self.queued.iter().copied().collect(),
        };
        for job in jobs {
            if self.idle.is_empty() {
                return;
            }
            let mut able: Vec<u64> = if new_jobs.contains(&job) {
                self.idle.iter().copied().filter(|runner| self.fits(*runner, job)).collect()
            } else {
                new_runners
                    .intersection(&self.idle)
                    .copied()
                    .filter(|runner| self.fits(*runner, job))
                    .collect()
            };
            if let Some(name) = self.steered.get(&job) {
                able.retain(|id| self.runners.get(id).is_some_and(|row| &row.name == name));
            }
            if able.is_empty() {
                continue;
            }
            let choice = self.rng.below(able.len());
            if let Some(runner) = able.get(choice).copied() {
                self.hand_out(job, runner);
            }
        }
    }

    /// A runner waits for a job.
    pub(super) fn listen(&mut self, runner: u64) {
        self.idle.insert(runner);
        self.new_runners.insert(runner);
    }

    /// Something changed that decides who may take what: everything is matched anew.
    pub fn rematch(&mut self) {
        self.new_jobs = self.queued.clone();
        self.to_offer = self.queued.clone();
        self.settle();
    }

    fn hand_out(&mut self, job: u64, runner: u64) {
        self.queued.remove(&job);
        self.idle.remove(&runner);
        let now = self.now;
        if let Some(row) = self.jobs.get_mut(&job) {
            row.assigned = Some(runner);
        }
        let mut stand_in = None;
        if let Some(row) = self.runners.get_mut(&runner) {
            row.job = Some(job);
            row.busy_since = Some(now);
            stand_in = row.stand_in;
        }
        if let Some(stand_in) = stand_in {
            self.stand_in_got_job(stand_in);
        }
    }

    /// The runner begins the job that it holds. False when it holds none, or one that it began before.
    pub fn begin_job(&mut self, runner: u64) -> bool {
        let Some(row) = self.runners.get(&runner) else { return false };
        let Some(job) = row.job else { return false };
        if self.jobs.get(&job).is_none_or(|job| job.status() != JobStatus::Queued) {
            return false;
        }
        let taken_by = TakenBy {
            id: runner,
            name: row.name.clone(),
            group_id: row.group,
            group_name: self.group_name(row.group),
        };
        self.begin(job, taken_by);
        self.settle();
        true
    }

    /// The runner ends the job that it holds; a runner of one use is gone then. False when it holds none.
    pub fn end_job(&mut self, runner: u64, conclusion: Conclusion) -> bool {
        let Some(job) = self.runners.get(&runner).and_then(|row| row.job) else { return false };
        self.complete(job, conclusion);
        if self.runners.get(&runner).is_some_and(|row| row.ephemeral) {
            self.forget_runner(runner);
        } else {
            self.runner_freed(runner);
        }
        self.settle();
        true
    }

    pub(super) fn runner_freed(&mut self, runner: u64) {
        if let Some(row) = self.runners.get_mut(&runner) {
            row.job = None;
            row.busy_since = None;
            if row.online {
                self.listen(runner);
            }
        }
    }

    /// A runner as REST tells it; in lists `busy` may lie behind.
    pub(super) fn runner_json(&self, row: &RunnerRow, in_list: bool) -> Value {
        let labels: Vec<Value> = row
            .labels
            .iter()
            .enumerate()
            .map(|(place, name)| {
                let fixed = ["self-hosted", "linux", "windows", "macos", "x64", "arm64"]
                    .contains(&&*name.to_lowercase());
                json!({
                    "id": place + 1,
                    "name": name,
                    "type": if fixed { "read-only" } else { "custom" },
                })
            })
            .collect();
        let lag = if in_list { self.setup.list_lag } else { std::time::Duration::ZERO };
        let busy = row.busy_since.is_some_and(|since| self.now.since(since) >= lag);
        json!({
            "id": row.id,
            "runner_group_id": row.group,
            "name": row.name,
            "os": if row.connected { "linux" } else { "unknown" },
            "status": if row.online { "online" } else { "offline" },
            "busy": busy,
            "ephemeral": row.ephemeral,
            "labels": labels,
        })
    }
}
