//! What the sources of demand remember together, as long as a control plane runs: what was polled when, what webhooks said of
//! runs lately, and which deliveries were asked for again.
//!
//! All of it saves calls and nothing depends on it: whoever remembers nothing asks more. So it is bounded, and of it only when
//! the jobs of runs were read is kept over a restart (by [`super::poll`]).

use super::poll::Poll;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::{ForgeName, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Runs of which is remembered what webhooks said, at most.
const RUNS: usize = 20_000;
/// Jobs of one run that are told apart; of one with more nothing is concluded.
const JOBS: usize = 1024;
/// How long a run is remembered after the last word of it. Longer than between two polls, however slow they have become.
const LASTS: Duration = Duration::from_secs(2 * 3600);
/// Deliveries that were asked for again and did not arrive yet, at most.
const ASKED: usize = 10_000;

/// What webhooks said of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// When a webhook first spoke of it.
    pub(crate) first: Timestamp,
    /// When a webhook last spoke of it.
    pub(crate) at: Timestamp,
    /// When a job of it was last said to be over: what waited for that job may be queued since.
    pub(crate) over_at: Option<Timestamp>,
    /// Its jobs, and whether they are over.
    jobs: BTreeMap<u64, bool>,
}

impl Heard {
    /// A job was spoken of, perhaps as over since a time.
    pub(crate) fn note(&mut self, job: u64, over: Option<Timestamp>, at: Timestamp) {
        if self.jobs.is_empty() {
            self.first = at;
        }
        self.at = self.at.max(at);
        self.over_at = self.over_at.max(over);
        if self.jobs.len() < JOBS {
            // A late word does not make a job that is over begin again.
            *self.jobs.entry(job).or_default() |= over.is_some();
        }
    }

    /// Whether every job that was spoken of is over. A run that goes on has others then.
    pub(crate) fn all_over(&self) -> bool {
        self.jobs.values().all(|over| *over) || self.jobs.len() >= JOBS
    }
}

/// The memory of the sources. Cheap to make; it begins empty.
#[derive(Default)]
pub struct Sources {
    hurries: Mutex<BTreeMap<ForgeName, Arc<tokio::sync::Notify>>>,
    polls: Mutex<BTreeMap<ForgeName, Arc<tokio::sync::Mutex<Poll>>>>,
    runs: Mutex<BTreeMap<(ForgeName, u64), Heard>>,
    asked: Mutex<BTreeMap<String, Timestamp>>,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sources {
    /// What polling of a forge remembers. Whoever holds it polls.
    pub fn poll(&self, forge: &ForgeName) -> Arc<tokio::sync::Mutex<Poll>> {
        Arc::clone(open(&self.polls).entry(forge.clone()).or_default())
    }

    fn hurry_of(&self, forge: &ForgeName) -> Arc<tokio::sync::Notify> {
        Arc::clone(open(&self.hurries).entry(forge.clone()).or_default())
    }

    /// There is something new at a forge whose lists are asked for: the next one is asked for now.
    pub(crate) fn hurry(&self, forge: &ForgeName) {
        self.hurry_of(forge).notify_one();
    }

    /// Waits for that. Several at once are one.
    pub(crate) async fn hurried(&self, forge: &ForgeName) {
        self.hurry_of(forge).notified().await;
    }

    /// A webhook spoke of a job, whoever may run it.
    pub(crate) fn hear(&self, job: &WorkflowJob, now: Timestamp) {
        let mut runs = open(&self.runs);
        if runs.len() >= RUNS {
            runs.retain(|_, heard| now.since(heard.at) < LASTS);
        }
        if runs.len() >= RUNS {
            // What nothing is known of is asked for as if no webhooks came.
            return;
        }
        let heard = runs.entry((job.repository.forge.clone(), job.run)).or_default();
        heard.note(job.job, (job.action == "completed").then_some(now), now);
    }

    /// What webhooks said of a run lately.
    pub(crate) fn heard(&self, forge: &ForgeName, run: u64, now: Timestamp) -> Option<Heard> {
        let runs = open(&self.runs);
        runs.get(&(forge.clone(), run)).filter(|heard| now.since(heard.at) < LASTS).cloned()
    }

    /// A delivery was asked for again.
    pub(crate) fn ask(&self, guid: String, now: Timestamp) {
        let mut asked = open(&self.asked);
        if asked.len() >= ASKED {
            asked.retain(|_, at| now.since(*at) < LASTS);
        }
        if asked.len() < ASKED {
            asked.insert(guid, now);
        }
    }

    /// Whether a delivery that arrived had been asked for again. Told once.
    pub(crate) fn was_asked(&self, guid: &str) -> bool {
        open(&self.asked).remove(guid).is_some()
    }
}
