//! Runner scale sets: who is offered which job, sessions, and the queue of messages.
//!
//! A queued job that a set's labels cover is *offered* (`JobAvailable`), *assigned* when it is acquired
//! (`JobAssigned`), and *running* when a runner of the set begins it (`JobStarted`). An assigned job that no runner
//! takes in five minutes is taken back (`JobCompleted`, result `canceled`) and offered again; after three times it is
//! *stuck*: it stays queued and nobody is asked, until a runner of the set registers (ARC #4602, ci-infra #900).
//!
//! A message stays until it is deleted. A poll gives the oldest one above the `lastMessageId` that the client names, so
//! one that was not acknowledged comes again. There is one session; one that nobody polls lapses.

use super::clock::iso;
use super::jobs::{Conclusion, Job, JobStatus};
use super::runners::Scope;
use super::state::{State, Timer};
use forgeyard_model::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// At most this many entries are in a message (runners.md §3.6).
const ENTRIES: usize = 50;

/// A scale set.
#[derive(Debug, Clone)]
pub struct ScaleSet {
    /// Numeric id.
    pub id: u64,
    /// Name, unique in its group.
    pub name: String,
    /// Where it belongs.
    pub scope: Scope,
    /// Its group.
    pub group: u64,
    /// Labels.
    pub labels: Vec<String>,
    pub(super) settings: Value,
    pub(super) created_at: Timestamp,
    pub(super) session: Option<Session>,
    pub(super) messages: BTreeMap<u64, Message>,
    pub(super) last_message: u64,
    /// The capacity that the last poll named.
    pub capacity: Option<u64>,
    /// Jobs that were there before the session and that it knows nothing of.
    forgotten: BTreeSet<u64>,
}

/// The open session of a set.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) seen: Timestamp,
}

/// A message of a queue.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) entries: Vec<Value>,
    pub(super) given: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Offered,
    Assigned(Timestamp),
    Running,
    Stuck,
}

#[derive(Debug, Clone, Copy)]
struct Claimed {
    set: u64,
    claim: Claim,
    tries: u32,
}

/// All scale sets, and which jobs they hold.
#[derive(Debug, Default)]
pub(super) struct ScaleSets {
    pub(super) rows: BTreeMap<u64, ScaleSet>,
    claims: BTreeMap<u64, Claimed>,
}

impl ScaleSets {
    /// Whether a set has this job, so that other runners may not take it.
    pub(super) fn holds(&self, job: u64) -> bool {
        self.claims.get(&job).is_some_and(|one| matches!(one.claim, Claim::Assigned(_) | Claim::Running))
    }

    fn count(&self, set: u64, which: impl Fn(Claim) -> bool) -> u64 {
        let fits = self.claims.values().filter(|one| one.set == set && which(one.claim)).count();
        u64::try_from(fits).unwrap_or(0)
    }
}

/// Why a scale set could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The name is taken in this group.
    #[error("a runner scale set of the name {0} exists")]
    NameTaken(String),
    /// It has no label.
    #[error("a runner scale set needs a label")]
    NoLabel,
}

impl State {
    /// Makes a scale set.
    pub fn add_scale_set(
        &mut self,
        scope: Scope,
        group: u64,
        name: &str,
        labels: Vec<String>,
        settings: Value,
    ) -> Result<u64, SetError> {
        if labels.is_empty() {
            return Err(SetError::NoLabel);
        }
        let same = |one: &&ScaleSet| one.scope == scope && one.group == group && one.name == name;
        if self.sets.rows.values().any(|one| same(&one)) {
            return Err(SetError::NameTaken(name.to_owned()));
        }
        self.numbers.set += 1;
        let id = self.numbers.set;
        let set = ScaleSet {
            id,
            name: name.to_owned(),
            scope,
            group,
            labels,
            settings,
            created_at: self.now,
            session: None,
            messages: BTreeMap::new(),
            last_message: 0,
            capacity: None,
            forgotten: BTreeSet::new(),
        };
        self.sets.rows.insert(id, set);
        self.to_offer = self.queued.clone();
        self.settle();
        Ok(id)
    }

    /// A scale set.
    pub fn scale_set(&self, id: u64) -> Option<&ScaleSet> {
        self.sets.rows.get(&id)
    }

    pub(super) fn remove_scale_set(&mut self, id: u64) -> bool {
        self.sets.claims.retain(|_, one| one.set != id);
        let known = self.sets.rows.remove(&id).is_some();
        self.rematch();
        known
    }

    /// Messages of a set that were not deleted.
    pub fn unacknowledged(&self, set: u64) -> usize {
        self.sets.rows.get(&set).map_or(0, |set| set.messages.len())
    }

    fn set_covers(&self, set: &ScaleSet, job: &Job) -> bool {
        let Some(run) = self.runs.get(&job.run) else { return false };
        let Some(repository) = self.repositories.get(&run.spec.repository) else { return false };
        let reach = match set.scope {
            Scope::Repository(id) => id == repository.id,
            Scope::Organization(id) => id == repository.owner,
        };
        let chosen = match self.groups.get(&set.group).and_then(|group| group.selected.as_ref()) {
            Some(selected) => selected.contains(&repository.id),
            None => true,
        };
        let covers =
            job.wanted.iter().all(|label| set.labels.iter().any(|one| one.eq_ignore_ascii_case(label)));
        reach && chosen && covers
    }

    /// Offers queued jobs to the sets that cover them.
    pub(super) fn offer_to_sets(&mut self) {
        if self.sets.rows.is_empty() || self.to_offer.is_empty() {
            self.to_offer.clear();
            return;
        }
        let mut full = BTreeSet::new();
        for id in self.to_offer.iter().copied().collect::<Vec<_>>() {
            if full.len() == self.sets.rows.len() {
                return;
            }
            let job = self.jobs.get(&id).filter(|job| self.queued.contains(&job.id));
            let unclaimed = job.filter(|job| !self.sets.claims.contains_key(&job.id));
            let set = unclaimed.and_then(|job| self.sets.rows.values().find(|set| self.set_covers(set, job)));
            let (Some(job), Some(set)) = (unclaimed, set.map(|set| set.id)) else {
                self.to_offer.remove(&id);
                continue;
            };
            if self.setup.reruns_unannounced && job.attempt > 1 {
                self.claim(id, Claimed { set, claim: Claim::Stuck, tries: 0 });
                self.to_offer.remove(&id);
            } else if !full.contains(&set) && self.room(set) {
                self.offer(set, id, 0);
                self.to_offer.remove(&id);
            } else {
                full.insert(set);
            }
        }
    }

    /// Notes that a set has a job; who may take it is looked at anew.
    fn claim(&mut self, job: u64, claimed: Claimed) {
        self.sets.claims.insert(job, claimed);
        self.new_jobs.insert(job);
    }

    /// Whether the capacity that the listener named has room for one more.
    fn room(&self, set: u64) -> bool {
        let capacity = self.sets.rows.get(&set).and_then(|set| set.capacity);
        capacity.is_none_or(|most| self.sets.count(set, |claim| claim != Claim::Stuck) < most)
    }

    fn offer(&mut self, set: u64, job: u64, tries: u32) {
        self.claim(job, Claimed { set, claim: Claim::Offered, tries });
        self.tell_set(set, job, "JobAvailable", json!({}));
    }

    /// Takes offered jobs; those that are no longer offered are left out.
    pub(super) fn acquire(&mut self, set: u64, requests: &[u64]) -> Vec<u64> {
        let mut taken = Vec::new();
        for request in requests {
            let Some(claimed) = self.sets.claims.get_mut(request) else { continue };
            if claimed.set != set || claimed.claim != Claim::Offered || !self.queued.contains(request) {
                continue;
            }
            claimed.claim = Claim::Assigned(self.now);
            claimed.tries += 1;
            let attempt = claimed.tries;
            self.new_jobs.insert(*request);
            self.tell_set(set, *request, "JobAssigned", json!({}));
            self.after(self.setup.reassign_after, Timer::Reassign { set, job: *request, attempt });
            taken.push(*request);
        }
        self.settle();
        taken
    }

    pub(super) fn reassign(&mut self, set: u64, job: u64, attempt: u32) {
        let Some(claimed) = self.sets.claims.get(&job).copied() else { return };
        let taken = self.jobs.get(&job).is_none_or(|job| job.assigned.is_some());
        if taken || claimed.tries != attempt || !matches!(claimed.claim, Claim::Assigned(_)) {
            return;
        }
        self.tell_set(
            set,
            job,
            "JobCompleted",
            json!({ "result": "canceled", "runnerId": 0, "runnerName": "" }),
        );
        if claimed.tries < self.setup.assign_tries {
            self.offer(set, job, claimed.tries);
        } else {
            self.claim(job, Claimed { claim: Claim::Stuck, ..claimed });
        }
    }

    /// Whether a runner of a set may take a job now.
    pub(super) fn set_runner_may_take(&self, set: u64, job: &Job) -> bool {
        match self.sets.claims.get(&job.id) {
            Some(one) => one.set == set && one.claim != Claim::Offered,
            None => false,
        }
    }

    pub(super) fn tell_set_started(&mut self, job: u64) {
        let runner = self.jobs.get(&job).and_then(|job| job.view().runner);
        let of_set = runner.as_ref().and_then(|by| self.runners.get(&by.id)).and_then(|row| row.set);
        let Some(claimed) = self.sets.claims.get_mut(&job) else { return };
        let set = claimed.set;
        if of_set != Some(set) {
            // A runner outside the set took it: the offer is gone, and nobody is told.
            self.sets.claims.remove(&job);
            return;
        }
        claimed.claim = Claim::Running;
        if let Some(by) = runner {
            self.tell_set(set, job, "JobStarted", json!({ "runnerId": by.id, "runnerName": by.name }));
        }
    }

    pub(super) fn tell_set_completed(&mut self, job: u64, conclusion: Conclusion) {
        let Some(claimed) = self.sets.claims.remove(&job) else { return };
        if matches!(claimed.claim, Claim::Stuck) {
            return;
        }
        let result = match conclusion {
            Conclusion::Success => "succeeded",
            Conclusion::Failure | Conclusion::TimedOut => "failed",
            Conclusion::Cancelled => "canceled",
            Conclusion::Skipped => "skipped",
        };
        let by = self.jobs.get(&job).and_then(|job| job.view().runner);
        let more = json!({
            "result": result,
            "runnerId": by.as_ref().map_or(0, |by| by.id),
            "runnerName": by.map(|by| by.name).unwrap_or_default(),
        });
        self.tell_set(claimed.set, job, "JobCompleted", more);
    }

    fn tell_set(&mut self, set: u64, job: u64, kind: &str, more: Value) {
        let Some(row) = self.jobs.get(&job) else { return };
        let Some(run) = self.runs.get(&row.run) else { return };
        let full_name = self.full_name(run.spec.repository);
        let (owner, name) = full_name.split_once('/').unwrap_or(("", ""));
        let assigned = match self.sets.claims.get(&job).map(|one| one.claim) {
            Some(Claim::Assigned(at)) => iso(at),
            _ => "0001-01-01T00:00:00Z".to_owned(),
        };
        let view = row.view();
        let none = "0001-01-01T00:00:00Z".to_owned();
        let mut entry = json!({
            "messageType": kind,
            "runnerRequestId": job,
            "repositoryName": name,
            "ownerName": owner,
            "jobId": job.to_string(),
            "jobWorkflowRef": format!(
                "{full_name}/.github/workflows/{}.yml@refs/heads/{}",
                run.spec.workflow, run.spec.head_branch
            ),
            "jobDisplayName": row.spec.name,
            "workflowRunId": row.run,
            "eventName": run.spec.event,
            "requestLabels": row.spec.labels,
            "queueTime": iso(row.created_at),
            "scaleSetAssignTime": assigned,
            "runnerAssignTime": view.started_at.map_or_else(|| none.clone(), iso),
            "finishTime": view.completed_at.map_or(none, iso),
        });
        if let (Some(fields), Value::Object(more)) = (entry.as_object_mut(), more) {
            fields.extend(more);
            if kind == "JobAvailable" {
                let url = format!("{}/_apis/runtime/runnerscalesets/{set}/acquirejobs", self.urls.actions);
                fields.insert("acquireJobUrl".to_owned(), json!(url));
            }
        }
        let Some(row) = self.sets.rows.get_mut(&set) else { return };
        if let Some(mut last) = row.messages.last_entry()
            && !last.get().given
            && last.get().entries.len() < ENTRIES
        {
            last.get_mut().entries.push(entry);
            return;
        }
        row.last_message += 1;
        row.messages.insert(row.last_message, Message { entries: vec![entry], given: false });
    }

    /// Opens a session. None when another one is open.
    pub(super) fn open_session(&mut self, set: u64, owner: &str) -> Option<String> {
        let id = self.guid();
        let (now, lapse, forget) = (self.now, self.setup.session_lapse, self.setup.sessions_forget);
        let known: BTreeSet<u64> =
            self.sets.claims.iter().filter(|(_, one)| one.set == set).map(|(job, _)| *job).collect();
        let row = self.sets.rows.get_mut(&set)?;
        if row.session.as_ref().is_some_and(|old| now.since(old.seen) < lapse) {
            return None;
        }
        row.session = Some(Session { id: id.clone(), owner: owner.to_owned(), seen: now });
        if forget {
            row.messages.clear();
            row.forgotten = known;
        }
        Some(id)
    }

    /// The set whose open session this is; being asked for keeps it alive.
    pub(super) fn session_seen(&mut self, session: &str) -> Option<u64> {
        let (now, lapse) = (self.now, self.setup.session_lapse);
        for set in self.sets.rows.values_mut() {
            if let Some(open) = set.session.as_mut().filter(|open| open.id == session) {
                if now.since(open.seen) >= lapse {
                    return None;
                }
                open.seen = now;
                return Some(set.id);
            }
        }
        None
    }

    /// Ends a session from outside, as a restart of the service does.
    pub fn drop_session(&mut self, set: u64) {
        if let Some(set) = self.sets.rows.get_mut(&set) {
            set.session = None;
        }
    }

    /// Statistics of a set, with the gaps that the settings ask for.
    pub(super) fn statistics(&self, set: u64) -> Value {
        let forgotten = self.sets.rows.get(&set).map(|set| &set.forgotten);
        let count = |which: fn(Claim) -> bool| {
            let known = |job: &u64| forgotten.is_none_or(|forgotten| !forgotten.contains(job));
            let claims = self.sets.claims.iter();
            claims.filter(|(job, one)| one.set == set && which(one.claim) && known(job)).count()
        };
        let running = count(|claim| claim == Claim::Running);
        let waiting = count(|claim| matches!(claim, Claim::Assigned(_)));
        let runners: Vec<_> = self.runners.values().filter(|row| row.set == Some(set)).collect();
        let busy = runners.iter().filter(|row| row.job.is_some()).count();
        json!({
            "totalAvailableJobs": count(|claim| claim == Claim::Offered),
            "totalAcquiredJobs": waiting,
            "totalAssignedJobs": if self.setup.statistics_behind { 0 } else { waiting + running },
            "totalRunningJobs": running,
            "totalRegisteredRunners": runners.len(),
            "totalBusyRunners": busy,
            "totalIdleRunners": runners.iter().filter(|row| row.online && row.job.is_none()).count(),
        })
    }

    /// The oldest message above `last`, as a poll gives it.
    pub(super) fn next_message(&mut self, set: u64, last: u64) -> Option<Value> {
        let row = self.sets.rows.get_mut(&set)?;
        let (id, message) = row.messages.range_mut(last + 1..).next()?;
        message.given = true;
        let (id, entries) = (*id, Value::Array(message.entries.clone()));
        Some(json!({
            "messageId": id,
            "messageType": "RunnerScaleSetJobMessages",
            "body": entries.to_string(),
            "statistics": self.statistics(set),
        }))
    }

    pub(super) fn scale_set_json(&self, set: &ScaleSet) -> Value {
        let labels: Vec<Value> =
            set.labels.iter().map(|name| json!({ "id": 0, "name": name, "type": "System" })).collect();
        json!({
            "id": set.id,
            "name": set.name,
            "runnerGroupId": set.group,
            "runnerGroupName": self.group_name(set.group),
            "labels": labels,
            "RunnerSetting": set.settings,
            "createdOn": iso(set.created_at),
            "runnerJitConfigUrl":
                format!("{}/_apis/runtime/runnerscalesets/{}/generatejitconfig", self.urls.actions, set.id),
            "statistics": self.statistics(set.id),
        })
    }

    /// Jobs that a set was asked for too often; they stay queued and nobody is told.
    pub fn stuck_jobs(&self, set: u64) -> Vec<u64> {
        let stuck = |(job, one): (&u64, &Claimed)| {
            let queued = self.jobs.get(job).is_some_and(|job| job.status() == JobStatus::Queued);
            (one.set == set && one.claim == Claim::Stuck && queued).then_some(*job)
        };
        self.sets.claims.iter().filter_map(stuck).collect()
    }
}
