//! Polling: what is queued at a forge, whoever told of it or did not.
//!
//! Only repositories with a grant or with open demand are polled, whatever the App is installed at: two lists of runs for
//! each, every four minutes, less often as the hourly limit shrinks. A list that did not change costs nothing (ETag). A
//! queued job may belong to a run that has begun, and its run's entry does not change when it is queued; so the jobs of
//! runs in progress are read in every round, those first that were not read for longest. Where webhooks speak of a run, it is
//! read once, half a minute after they began to, and again only when there may be something that they did not tell: a job of it ended since (others may have waited
//! for that), every job that they spoke of is over and the run goes on, or [`BACKSTOP`] passed. A run of which they say nothing,
//! because they are off or get lost, is read in every round.
//!
//! A job that is held or refused has no check of its own, since nothing is spent on it; it may have ended all the same, taken by a
//! runner that was made for another. So where its run is in no list any more, the run is read once, and again every
//! [`BACKSTOP`].
//!
//! A session of a scale set that begins, and one whose statistics count more jobs than its messages named (ARC #3420), have the
//! repositories looked at before their time ([`Poll::hurry`]), unless that was done a moment ago.
//!
//! REST lies behind webhooks, so what is found is a report like any other, and the ledger takes only what is news.

use super::sources::Heard;
use super::{RoundError, report};
use crate::app::App;
use crate::core::farm;
use crate::effect::causes;
use crate::forges::Connection;
use forgeyard_engine::demand::labels;
use forgeyard_forges::github::budget::Advice;
use forgeyard_forges::github::{Again, Etag, GithubError, Polled, RunStatus, Target, WorkflowRun};
use forgeyard_model::demand::{DemandState, Source};
use forgeyard_model::forge::{Repository, WorkflowJob};
use forgeyard_model::input::Input;
use forgeyard_model::{ForgeName, Timestamp};
use futures::StreamExt as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time between two polls of a repository. A job that nobody told of is to be known five minutes after it was queued, and a
/// look takes a while as well; thirty repositories are to cost less than a thousand calls an hour.
const EVERY: Duration = Duration::from_secs(240);
/// How soon a look that did not come out is repeated; twice as long each time in a row.
const AGAIN: Duration = Duration::from_secs(5);
/// The same for one that the App may not see: a person must act first.
const BARRED: Duration = Duration::from_secs(1800);
/// How often the jobs of a run are read of which webhooks tell everything, as it seems.
const BACKSTOP: Duration = Duration::from_secs(1800);
/// A look that began so lately need not be repeated for whoever is in a hurry.
const FRESH: Duration = Duration::from_secs(60);
/// A run is read so long after webhooks began to speak of it: what is asked earlier may lie behind them, and would have to be
/// asked again.
const YOUNG: Duration = Duration::from_secs(25);
/// How long the lists of a forge may lie behind what webhooks said.
const BEHIND: Duration = Duration::from_secs(20);
/// Pages of 100 runs that are read of each list.
const PAGES: u32 = 2;
/// Runs whose jobs are read of one repository in one round.
const RUNS: usize = 100;
/// Runs of one repository that are read at once, and repositories: a farm with many would else not be through in time.
const RUNS_AT_ONCE: usize = 4;
const REPOSITORIES_AT_ONCE: usize = 8;

/// What polling remembers. A new one polls everything at once.
#[derive(Default)]
pub struct Poll {
    repositories: BTreeMap<u64, Memory>,
}

/// What is remembered of a repository.
#[derive(Default)]
struct Memory {
    next: Timestamp,
    /// When the last look began.
    looked: Timestamp,
    queued: List,
    in_progress: List,
    /// When the jobs of a run were last read.
    read: BTreeMap<u64, Timestamp>,
    /// The same of runs in no list, of which a job is held or refused here.
    left: BTreeMap<u64, Timestamp>,
    /// Runs whose entry is new since their jobs were last read.
    fresh: BTreeSet<u64>,
    /// Runs that webhooks began to speak of only lately, and when each is read.
    young: BTreeMap<u64, Timestamp>,
    /// Looks in a row that were held up.
    failures: u32,
    /// Whether it was read what an earlier control plane remembered.
    loaded: bool,
}

#[derive(Default)]
struct List {
    etag: Option<Etag>,
    runs: Vec<WorkflowRun>,
}

impl Poll {
    /// Polls the repositories that are due, several at once. Trouble with one is logged, and does not keep the others from
    /// their turn.
    pub async fn round(&mut self, app: &App, connection: &Connection) {
        let wanted = wanted(app, connection.forge());
        self.repositories.retain(|id, _| wanted.contains_key(id));
        for id in wanted.keys() {
            self.repositories.entry(*id).or_default();
        }
        let now = app.clock.now();
        let due = self.repositories.iter_mut().filter(|(_, memory)| memory.due(now));
        let due = due.filter_map(|(id, memory)| Some((memory, wanted.get(id)?)));
        futures::stream::iter(due)
            .for_each_concurrent(REPOSITORIES_AT_ONCE, async |(memory, repository)| {
                memory.turn(app, connection, repository).await;
            })
            .await;
    }

    /// Looks at once at the repositories that were not looked at a moment ago; there may be what no message told.
    pub(crate) async fn hurry(&mut self, app: &App, connection: &Connection) {
        let now = app.clock.now();
        for memory in self.repositories.values_mut() {
            if now.since(memory.looked) >= FRESH {
                memory.next = memory.next.min(now);
            }
        }
        self.round(app, connection).await;
    }
}

/// What webhooks said of a run: all that they said since this control plane is up, else what of it the ledger keeps.
fn heard(app: &App, forge: &ForgeName, run: u64, now: Timestamp) -> Option<Heard> {
    app.sources.heard(forge, run, now).or_else(|| {
        let farm = app.core.read();
        let mut heard: Option<Heard> = None;
        let told = farm.demands_of_run(forge, run).filter(|demand| {
            demand.seen.contains_key(&Source::Webhook) || demand.seen.contains_key(&Source::Redelivery)
        });
        for demand in told {
            let over = demand.state.ended().then_some(demand.ended_at.unwrap_or(demand.since));
            heard.get_or_insert_default().note(demand.job, over, demand.since);
        }
        heard
    })
}

/// Whether the jobs of a run are to be read.
#[derive(Debug, PartialEq, Eq)]
enum Worth {
    Now,
    /// At that time, without another look at the lists.
    Then(Timestamp),
    No,
}

/// Whether the jobs of a run in progress are to be read, that were last read at some time.
fn worth_reading(heard: Option<&Heard>, read: Option<Timestamp>, now: Timestamp) -> Worth {
    let Some(heard) = heard else { return Worth::Now };
    let Some(read) = read else {
        let grown = heard.first.plus(YOUNG);
        return if now >= grown { Worth::Now } else { Worth::Then(grown) };
    };
    // A read that was made when the run was this new may have shown it as it was before.
    let early = heard.first.plus(BEHIND) > read;
    let over_since = heard.over_at.is_some_and(|at| at.plus(BEHIND) > read);
    let unexplained = heard.all_over() && now.since(heard.at) > BEHIND;
    let worth = early || over_since || unexplained || now.since(read) >= BACKSTOP;
    if worth { Worth::Now } else { Worth::No }
}

/// Repositories with a grant or with open demand, by numeric id.
pub(crate) fn wanted(app: &App, forge: &ForgeName) -> BTreeMap<u64, Repository> {
    let config = app.config();
    let home = config.access.home();
    let granted: BTreeSet<u64> = config
        .access
        .grants
        .iter()
        .filter(|grant| grant.repository.forge.as_ref().map_or(home, ForgeName::as_str) == forge.as_str())
        .filter_map(|grant| grant.repository.id)
        .collect();
    let own = config.repositories.iter().filter(|repository| repository.forge == *forge);
    let mut found: BTreeMap<u64, Repository> = own
        .filter(|repository| granted.contains(&repository.id))
        .map(|repository| {
            let name = repository.name.clone();
            (repository.id, Repository { forge: repository.forge.clone(), id: repository.id, name })
        })
        .collect();
    let farm = app.core.read();
    let live = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
    for demand in live.filter(|demand| demand.repository.forge == *forge) {
        // The forge's own name of it is the newer one.
        found.insert(demand.repository.id, demand.repository.clone());
    }
    found
}

impl Memory {
    /// Whether its lists are due, or a run that was too young at the last look.
    fn due(&self, now: Timestamp) -> bool {
        self.next <= now || self.young.values().any(|at| *at <= now)
    }

    /// Nothing of it is asked before this time.
    fn rest(&mut self, until: Timestamp) {
        self.next = self.next.max(until);
        self.young.values_mut().for_each(|at| *at = (*at).max(until));
    }

    /// Looks at its repository, as the budget allows, and notes when that is due again.
    async fn turn(&mut self, app: &App, connection: &Connection, repository: &Repository) {
        let now = app.clock.now();
        let lists = self.next <= now;
        if lists {
            self.looked = now;
        }
        let pace = Connection::path(repository).map(|path| connection.github().pace(&Target::from(path)));
        let pause = match pace {
            Ok(Advice::Wait { until, .. }) => return self.rest(until),
            Ok(Advice::Slow(factor)) => EVERY.saturating_mul(factor),
            Ok(Advice::Go) | Err(_) => EVERY,
        };
        match self.look(app, connection, repository, lists).await {
            Ok(()) => {
                self.failures = 0;
                if lists {
                    self.next = now.plus(pause);
                }
            }
            Err(RoundError::Forge(GithubError::Limited { until, .. })) => self.rest(until),
            Err(error) => {
                tracing::warn!(repository = %repository.name, error = causes(&error), "its queue could not be polled");
                let barred = match &error {
                    RoundError::Forge(error) => {
                        error.cause().is_some_and(|cause| cause.again() == Again::AfterChange)
                    }
                    _ => false,
                };
                // What was read is not read again; the rest is due soon.
                let again = AGAIN.saturating_mul(1 << self.failures.min(10)).min(EVERY);
                self.failures = self.failures.saturating_add(1);
                self.rest(now.plus(if barred { BARRED } else { again }));
            }
        }
    }

    async fn look(
        &mut self,
        app: &App,
        connection: &Connection,
        repository: &Repository,
        lists: bool,
    ) -> Result<(), RoundError> {
        let key = format!("poll/{}/{}", repository.forge, repository.id);
        if !self.loaded {
            let kept = app.store.setting(&key).await?;
            self.read = kept.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            self.loaded = true;
        }
        let before = self.read.clone();
        let seen = self.read_queues(app, connection, repository, lists).await;
        if self.read != before
            && let Ok(text) = serde_json::to_string(&self.read)
        {
            app.store.set_setting(&key, &text).await?;
        }
        seen
    }

    async fn read_queues(
        &mut self,
        app: &App,
        connection: &Connection,
        repository: &Repository,
        lists: bool,
    ) -> Result<(), RoundError> {
        let path = Connection::path(repository).map_err(|reason| RoundError::Missing(reason.message))?;
        let github = connection.github();
        // A call that fails takes nothing from the others.
        let mut trouble: Option<RoundError> = None;
        let both = [(RunStatus::Queued, &mut self.queued), (RunStatus::InProgress, &mut self.in_progress)];
        for (status, list) in both.into_iter().filter(|_| lists) {
            match github.poll_runs(&path, status, PAGES, list.etag.as_ref()).await {
                Ok(Polled::Changed { value, etag }) => {
                    // Names change hands: what is of another repository is none of ours.
                    list.runs =
                        value.runs.into_iter().filter(|run| run.repository.id == repository.id).collect();
                    list.etag = etag;
                    self.fresh.extend(list.runs.iter().map(|run| run.id));
                }
                Ok(_) => {}
                Err(error @ GithubError::Limited { .. }) => return Err(error.into()),
                Err(error) => trouble = Some(error.into()),
            }
        }
        let listed: BTreeMap<u64, u64> = self
            .queued
            .runs
            .iter()
            .chain(&self.in_progress.runs)
            .map(|run| (run.id, run.run_attempt))
            .collect();
        self.read.retain(|run, _| listed.contains_key(run));
        self.fresh.retain(|run| listed.contains_key(run));
        self.young.retain(|run, _| listed.contains_key(run));
        let now = app.clock.now();
        let mut due: Vec<u64> = match lists {
            true => self.in_progress.runs.iter().map(|run| run.id).collect(),
            false => self.young.iter().filter(|(_, at)| **at <= now).map(|(run, _)| *run).collect(),
        };
        let queued = self.queued.runs.iter().map(|run| run.id).filter(|_| lists);
        due.extend(queued.filter(|run| self.fresh.contains(run) || !self.read.contains_key(run)));
        due.retain(|run| {
            let heard = heard(app, &repository.forge, *run, now);
            match worth_reading(heard.as_ref(), self.read.get(run).copied(), now) {
                Worth::Now => return true,
                Worth::Then(at) => drop(self.young.insert(*run, at)),
                Worth::No => drop(self.young.remove(run)),
            }
            false
        });
        // A look that is repeated goes on where the last one was held up.
        let since = app.clock.now().as_micros().saturating_sub(EVERY.as_micros() as i64 / 2);
        due.retain(|run| self.failures == 0 || self.read.get(run).is_none_or(|at| at.as_micros() < since));
        let left = waiting_here(app, repository);
        self.left.retain(|run, _| left.contains_key(run) && !listed.contains_key(run));
        due.extend(left.keys().copied().filter(|run| {
            lists
                && !listed.contains_key(run)
                && self.left.get(run).is_none_or(|at| now.since(*at) >= BACKSTOP)
        }));
        due.sort_by_key(|run| (self.read.get(run).copied(), *run));
        due.dedup();
        let reads = due.into_iter().take(RUNS).map(async |run| {
            let attempt = listed.get(&run).or_else(|| left.get(&run)).copied().unwrap_or(1);
            (run, github.run_jobs(&path, run, attempt).await)
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(RUNS_AT_ONCE);
        while let Some((run, jobs)) = reads.next().await {
            match jobs {
                Ok(jobs) => {
                    let jobs = jobs.iter().map(|job| report::of_rest(repository, None, job)).collect();
                    give(app, Source::Poll, jobs).await?;
                    let of_run = if listed.contains_key(&run) { &mut self.read } else { &mut self.left };
                    of_run.insert(run, app.clock.now());
                    self.fresh.remove(&run);
                    self.young.remove(&run);
                }
                Err(error @ GithubError::Limited { .. }) => {
                    self.failures = self.failures.max(1);
                    return Err(error.into());
                }
                // It may be gone for good: nothing is repeated soon for its sake.
                Err(error) if !listed.contains_key(&run) => {
                    tracing::info!(run, error = causes(&error), "a run in no list could not be read");
                    self.left.insert(run, app.clock.now());
                }
                Err(error) => trouble = Some(error.into()),
            }
        }
        trouble.map_or(Ok(()), Err)
    }
}

/// Runs of a repository of which a job is held until somebody acts, or refused, and the newest attempt of each that is known.
fn waiting_here(app: &App, repository: &Repository) -> BTreeMap<u64, u64> {
    let farm = app.core.read();
    let mut runs: BTreeMap<u64, u64> = BTreeMap::new();
    for demand in farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id)) {
        let stays =
            matches!(demand.state, DemandState::Held { until: None, .. } | DemandState::Refused { .. });
        if stays && demand.repository.id == repository.id && demand.repository.forge == repository.forge {
            let attempt = runs.entry(demand.run).or_default();
            *attempt = u64::from(demand.run_attempt).max(*attempt);
        }
    }
    runs
}

/// Reports jobs, but for those that can mean nothing to this farm.
pub(super) async fn give(app: &App, source: Source, jobs: Vec<WorkflowJob>) -> Result<(), RoundError> {
    let jobs: Vec<WorkflowJob> = jobs.into_iter().filter(|job| concerns(app, job)).collect();
    if !jobs.is_empty() {
        app.core.give(Input::DemandReported { source, jobs }, farm()).await?;
    }
    Ok(())
}

/// A job of which the ledger knows, one that waits for a runner of ours, or one that a runner of ours took.
fn concerns(app: &App, job: &WorkflowJob) -> bool {
    let farm = app.core.read();
    let forge = &job.repository.forge;
    if let Some(known) = farm.demand_of(forge, job.job) {
        return !known.state.ended();
    }
    let waits = matches!(job.action.as_str(), "queued" | "waiting");
    let ours = job
        .runner_name
        .as_ref()
        .is_some_and(|name| farm.index.runner_named.contains_key(&(forge.clone(), name.clone())));
    (waits || (ours && job.action == "in_progress"))
        && !labels::serving(&app.config(), &job.labels).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn run_of_which_webhooks_tell_everything_is_read_once_and_again_when_something_may_be_untold() {
        assert_eq!(worth_reading(None, Some(at(0)), at(240)), Worth::Now, "nobody tells of it");
        let mut heard = Heard::default();
        heard.note(1, None, at(0));
        heard.note(2, None, at(1));
        assert_eq!(
            worth_reading(Some(&heard), None, at(10)),
            Worth::Then(at(25)),
            "it is read a little later, without another look at the lists"
        );
        assert_eq!(
            worth_reading(Some(&heard), Some(at(15)), at(255)),
            Worth::Now,
            "what was read may lie behind"
        );
        assert_eq!(worth_reading(Some(&heard), None, at(60)), Worth::Now);
        assert_eq!(
            worth_reading(Some(&heard), Some(at(60)), at(300)),
            Worth::No,
            "it goes on as it was told"
        );
        heard.note(1, Some(at(310)), at(310));
        assert_eq!(
            worth_reading(Some(&heard), Some(at(60)), at(540)),
            Worth::Now,
            "what waited for job 1 may be queued"
        );
        assert_eq!(worth_reading(Some(&heard), Some(at(540)), at(780)), Worth::No);
        heard.note(2, Some(at(790)), at(790));
        assert_eq!(
            worth_reading(Some(&heard), Some(at(820)), at(1060)),
            Worth::Now,
            "all are over, and the run goes on"
        );
        heard.note(3, None, at(1065));
        assert_eq!(
            worth_reading(Some(&heard), Some(at(1060)), at(1060 + 1800)),
            Worth::Now,
            "once in a while"
        );
    }

    #[test]
    fn a_late_word_does_not_make_a_job_that_is_over_begin_again() {
        let mut heard = Heard::default();
        heard.note(1, Some(at(5)), at(5));
        heard.note(1, None, at(6));
        assert!(heard.all_over());
    }
}
