//! Listeners: the message queues of runner scale sets, which need no inbound port.
//!
//! Order of a message, so that a crash between any two steps loses nothing: its events are *persisted* as demand, offers
//! are *acquired*, its id is stored as the last one, and only then it is *acknowledged*. A message that is not acknowledged
//! comes again, and all of it may be done twice.
//!
//! A new session may know nothing of what waits (ARC #4027), so it begins with a poll. Every error of a message is
//! retryable (ARC #4285, #4356): the session is made anew when it is gone or keeps failing, and the last id is kept. A
//! session that another listener still holds is waited for (ARC #3209).
//!
//! A message names no job of the REST interface. Its listener looks for it by name among the jobs of its run that the ledger has from
//! elsewhere, which costs no call, else at the forge, once; later events of the same request are told apart by the ledger. What cannot be found here is found by polling.

use super::{RoundError, limited, poll, report, rest};
use crate::app::App;
use crate::effect::causes;
use crate::forges::{Connection, ScaleSetWish};
use forgeyard_engine::demand::labels;
use forgeyard_forges::github::scaleset::{
    JobEvent, JobFacts, Message, NewScaleSet, Opened, ScaleSets, Session,
};
use forgeyard_forges::github::{Cause, Job, RepositoryPath};
use forgeyard_model::Timestamp;
use forgeyard_model::demand::{Demand, DemandState, ScaleSetRequest, Source};
use forgeyard_model::forge::{Repository, WorkflowJob};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause while another listener holds the session.
const CONFLICT: Duration = Duration::from_secs(30);
/// Longest pause after errors.
const LONGEST: Duration = Duration::from_secs(30);
/// Errors in a row after which the session is made anew.
const ERRORS: u32 = 5;
/// How often statistics that count more than is known have the queues polled: a count that nobody can explain must not do it
/// with each message.
const COMPARED: Duration = Duration::from_secs(180);
/// How long the gate may take to say no before an offer is acquired.
const DECISION: Duration = Duration::from_secs(10);

/// Listens until told to stop.
pub async fn run(app: App, connection: Arc<Connection>, wish: ScaleSetWish, stop: CancellationToken) {
    let mut errors = 0u32;
    loop {
        let pause = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            opened = Listener::open(&app, &connection, &wish) => match opened {
                Ok(Some(mut listener)) => {
                    errors = 0;
                    listener.listen(&stop).await;
                    if stop.is_cancelled() {
                        listener.close().await;
                        return;
                    }
                    Duration::from_secs(1)
                }
                Ok(None) => {
                    tracing::warn!(set = %wish.name, "another listener holds the session of the scale set; waiting for it to lapse");
                    CONFLICT
                }
                Err(error) if limited(&error).is_some() => pause_of(&app, &error),
                Err(error) => {
                    errors = errors.saturating_add(1);
                    tracing::warn!(set = %wish.name, error = causes(&error), "the scale set cannot be listened to");
                    backoff(errors)
                }
            },
        };
        if !rest(&app, &stop, pause).await {
            return;
        }
    }
}

/// How long a limit of the forge holds it up; that is no error of the session.
fn pause_of(app: &App, error: &RoundError) -> Duration {
    let until = limited(error).unwrap_or_default();
    tracing::info!(error = causes(error), "a limit of a forge holds a scale set");
    until.since(app.clock.now()).max(Duration::from_secs(1))
}

fn backoff(errors: u32) -> Duration {
    Duration::from_secs(1 << errors.min(8)).min(LONGEST)
}

/// One session of one scale set.
pub struct Listener {
    app: App,
    connection: Arc<Connection>,
    set: u64,
    labels: Vec<String>,
    session: Session,
    last: Option<u64>,
    /// When its statistics last had the queues polled.
    compared: Timestamp,
}

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing happened within the wait.
    Nothing,
    /// A message was taken, and so many offers were acquired.
    Message {
        /// How many.
        acquired: usize,
    },
}

impl Listener {
    /// Makes the scale set when it is not there, opens its session, and polls once. None while another listener holds
    /// the session.
    pub async fn open(
        app: &App,
        connection: &Arc<Connection>,
        wish: &ScaleSetWish,
    ) -> Result<Option<Self>, RoundError> {
        let sets: ScaleSets = connection.github().scale_sets(wish.at.clone());
        let group = sets.group(&wish.group).await?.ok_or_else(|| {
            let text = format!(
                "{} has no runner group `{}`, or several; make it, or name another",
                wish.at, wish.group
            );
            RoundError::Missing(text)
        })?;
        let new =
            NewScaleSet { name: wish.name.clone(), runner_group_id: group.id, labels: wish.labels.clone() };
        let set = sets.ensure(&new).await?;
        let lacks = set.lacks(&wish.labels);
        if !lacks.is_empty() {
            tracing::warn!(set = %wish.name, missing = lacks.join(", "), "the scale set does not have all of its labels");
        }
        connection.learn_set(set.id, &sets);
        let session = match sets.open_session(set.id, &app.config().farm).await? {
            Opened::Conflict => return Ok(None),
            Opened::Session(session) => *session,
        };
        let last = app.store.setting(&key(connection, set.id)).await?.and_then(|text| text.parse().ok());
        // While another one polls, that is done.
        if let Ok(mut poll) = app.sources.poll(connection.forge()).try_lock() {
            poll.hurry(app, connection).await;
        }
        Ok(Some(Self {
            app: app.clone(),
            connection: Arc::clone(connection),
            set: set.id,
            labels: wish.labels.clone(),
            session,
            last,
            compared: Timestamp::default(),
        }))
    }

    /// Ends the session, so that the next listener need not wait.
    pub async fn close(self) {
        if let Err(error) = self.session.close().await {
            tracing::warn!(
                error = causes(&error),
                "the session of a scale set could not be closed; it lapses"
            );
        }
    }

    async fn listen(&mut self, stop: &CancellationToken) {
        let mut errors = 0;
        loop {
            let heard = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                heard = self.round() => heard,
            };
            let Err(error) = heard else {
                errors = 0;
                continue;
            };
            if limited(&error).is_some() {
                if !rest(&self.app, stop, pause_of(&self.app, &error)).await {
                    return;
                }
                continue;
            }
            errors += 1;
            tracing::warn!(set = self.set, error = causes(&error), "a message of a scale set was not taken");
            let gone = match &error {
                RoundError::Forge(error) => error.cause() == Some(&Cause::SessionGone),
                _ => false,
            };
            if gone || errors >= ERRORS || !rest(&self.app, stop, backoff(errors)).await {
                return;
            }
        }
    }

    /// Runners that could be had for this set.
    fn capacity(&self) -> u32 {
        labels::serving(&self.app.config(), &self.labels).iter().map(|pool| pool.max).sum()
    }

    /// Waits for one message and does all that follows from it.
    pub async fn round(&mut self) -> Result<Heard, RoundError> {
        let capacity = self.capacity();
        let Some(message) = self.session.poll(self.last, capacity).await? else { return Ok(Heard::Nothing) };
        for entry in &message.unreadable {
            tracing::warn!(set = self.set, place = entry.place, reason = %entry.reason, "an entry of a message cannot be read");
        }
        self.compare(&message).await;
        let jobs = self.resolve(&message).await?;
        poll::give(&self.app, Source::ScaleSet, jobs).await?;
        let offers: Vec<u64> = message
            .events
            .iter()
            .filter_map(|event| match event {
                JobEvent::Available { job } => Some(job.runner_request_id),
                _ => None,
            })
            .collect();
        let offers = self.wanted(offers).await;
        let acquired = self.session.acquire(&offers).await?.len();
        self.app.store.set_setting(&key(&self.connection, self.set), &message.id.to_string()).await?;
        self.last = Some(message.id);
        self.session.acknowledge(message.id).await?;
        Ok(Heard::Message { acquired })
    }

    /// The statistics of a message may count jobs of which no message told, or which it names no more (ARC #3420, pytorch/ci-infra
    /// #900): those are looked for in the queues of the repositories.
    async fn compare(&mut self, message: &Message) {
        let Some(statistics) = message.statistics else { return };
        let named = message.events.iter().filter_map(JobEvent::job).map(|job| job.runner_request_id);
        let named = named.collect::<BTreeSet<u64>>().len();
        let known = {
            let farm = self.app.core.read();
            let live = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
            let forge = self.connection.forge();
            live.filter(|demand| {
                demand.repository.forge == *forge
                    && (demand.scale_set.is_some_and(|request| request.set == self.set)
                        || demand.scale_set.is_none()
                            && labels::asked(&demand.labels) == labels::asked(&self.labels))
            })
            .count()
        };
        let counted = statistics.total_assigned_jobs;
        if !unexplained(counted, known, named) {
            return;
        }
        let now = self.app.clock.now();
        if now.since(self.compared) < COMPARED {
            return;
        }
        self.compared = now;
        tracing::info!(set = self.set, counted, known, named, "a scale set counts more jobs than are known");
        if let Ok(mut poll) = self.app.sources.poll(self.connection.forge()).try_lock() {
            poll.hurry(&self.app, &self.connection).await;
        }
    }

    /// Offers that the gate does not refuse. An offer whose run is not read in time is acquired: it is asked about again
    /// before its first step.
    async fn wanted(&self, offers: Vec<u64>) -> Vec<u64> {
        let end = self.app.clock.now().plus(DECISION);
        let mut version = self.app.core.version();
        loop {
            version.catch_up();
            let states: Vec<(u64, DemandState)> =
                offers.iter().filter_map(|request| Some((*request, self.known(*request)?.state))).collect();
            let open = states.iter().any(|(_, state)| *state == DemandState::Unread);
            let left = end.since(self.app.clock.now());
            let changed = async {
                tokio::select! {
                    biased;
                    () = self.app.stop.cancelled() => false,
                    () = self.app.clock.sleep(left) => false,
                    changed = version.changed() => changed.is_ok(),
                }
            };
            if !open || !changed.await {
                let refused =
                    |state: &DemandState| matches!(state, DemandState::Refused { .. }) || state.ended();
                let wanted = states.into_iter().filter(|(_, state)| !refused(state));
                return wanted.map(|(request, _)| request).collect();
            }
        }
    }

    fn request(&self, request: u64) -> ScaleSetRequest {
        ScaleSetRequest { set: self.set, request }
    }

    /// The demand that came by a request of this set.
    fn known(&self, request: u64) -> Option<Demand> {
        let farm = self.app.core.read();
        farm.demand_requested(self.connection.forge(), self.request(request)).cloned()
    }

    /// What a message says, in the shape in which every source says it.
    async fn resolve(&self, message: &Message) -> Result<Vec<WorkflowJob>, RoundError> {
        let mut found = Vec::new();
        let mut runs: BTreeMap<u64, (Repository, Vec<Job>)> = BTreeMap::new();
        let mut bound: BTreeMap<u64, WorkflowJob> = BTreeMap::new();
        for event in &message.events {
            let Some(facts) = event.job() else { continue };
            let request = facts.runner_request_id;
            let base = match (self.known(request), bound.get(&request)) {
                // Another source was faster, and the ledger takes nothing more of it.
                (Some(demand), _) if demand.state.ended() => continue,
                (Some(demand), _) => of_demand(&demand),
                (None, Some(job)) => job.clone(),
                (None, None) => match self.find(facts, &mut runs, &bound).await? {
                    Some(job) => job,
                    None => {
                        tracing::info!(
                            set = self.set,
                            request,
                            job = %facts.job_display_name,
                            "the job of a message is not found in its run; polling will find it"
                        );
                        continue;
                    }
                },
            };
            let base = WorkflowJob { scale_set: Some(self.request(request)), ..base };
            bound.insert(request, base.clone());
            found.push(match event {
                JobEvent::Started { runner_name, .. } => {
                    WorkflowJob { action: "in_progress".to_owned(), runner_name: runner_name.clone(), ..base }
                }
                JobEvent::Completed { result, runner_name, .. } => {
                    self.completed(base, result, runner_name.clone()).await?
                }
                _ => WorkflowJob { action: "queued".to_owned(), ..base },
            });
        }
        Ok(found)
    }

    /// A job that ended, or that was only taken back from us and is offered again: the forge's own record tells which.
    async fn completed(
        &self,
        base: WorkflowJob,
        result: &str,
        runner_name: Option<String>,
    ) -> Result<WorkflowJob, RoundError> {
        let conclusion = match result.to_ascii_lowercase().as_str() {
            "succeeded" | "success" => "success",
            "failed" | "failure" => "failure",
            "canceled" | "cancelled" => "cancelled",
            "skipped" => "skipped",
            _ => "unknown",
        };
        if runner_name.is_none() {
            let path = path(&base.repository)?;
            if let Some(job) = self.connection.github().job(&path, base.job).await? {
                let job = report::of_rest(&base.repository, base.installation, &job);
                return Ok(WorkflowJob { scale_set: base.scale_set, ..job });
            }
        }
        let conclusion = Some(conclusion.to_owned());
        Ok(WorkflowJob { action: "completed".to_owned(), conclusion, runner_name, ..base })
    }

    async fn find(
        &self,
        facts: &JobFacts,
        runs: &mut BTreeMap<u64, (Repository, Vec<Job>)>,
        bound: &BTreeMap<u64, WorkflowJob>,
    ) -> Result<Option<WorkflowJob>, RoundError> {
        match self.told(facts, bound) {
            Some(job) => Ok(Some(job)),
            None => self.look_up(facts, runs, bound).await,
        }
    }

    /// The job of a message, where another source told of it: the only open one of its run with this name and these labels that no
    /// request has.
    fn told(&self, facts: &JobFacts, bound: &BTreeMap<u64, WorkflowJob>) -> Option<WorkflowJob> {
        let run = facts.workflow_run_id?;
        let named = format!("{}/{}", facts.owner_name, facts.repository_name);
        let wanted = labels::asked(&facts.request_labels);
        let farm = self.app.core.read();
        let mut jobs = farm.demands_of_run(self.connection.forge(), run).filter(|demand| {
            !demand.state.ended()
                && demand.scale_set.is_none()
                && demand.name == facts.job_display_name
                && demand.repository.name.eq_ignore_ascii_case(&named)
                && (wanted.is_empty() || labels::asked(&demand.labels) == wanted)
                && !bound.values().any(|job| job.job == demand.job)
        });
        let only = jobs.next()?;
        jobs.next().is_none().then(|| of_demand(only))
    }

    /// A run of the repository that a message names, with the jobs of its newest attempt.
    async fn read_run(
        &self,
        facts: &JobFacts,
        run: u64,
    ) -> Result<Option<(Repository, Vec<Job>)>, RoundError> {
        let github = self.connection.github();
        let named = format!("{}/{}", facts.owner_name, facts.repository_name);
        let Ok(path) = RepositoryPath::parse(&named) else { return Ok(None) };
        let Some(row) = github.run(&path, run).await? else { return Ok(None) };
        let jobs = github.run_jobs(&path, run, row.run_attempt).await?;
        let repository = Repository {
            forge: self.connection.forge().clone(),
            id: row.repository.id,
            name: row.repository.full_name,
        };
        Ok(Some((repository, jobs)))
    }

    /// Finds the job of a message in its run: of the same name, with these labels, and of no other request.
    async fn look_up(
        &self,
        facts: &JobFacts,
        runs: &mut BTreeMap<u64, (Repository, Vec<Job>)>,
        bound: &BTreeMap<u64, WorkflowJob>,
    ) -> Result<Option<WorkflowJob>, RoundError> {
        let Some(run) = facts.workflow_run_id else { return Ok(None) };
        if let Entry::Vacant(entry) = runs.entry(run) {
            let Some(read) = self.read_run(facts, run).await? else { return Ok(None) };
            entry.insert(read);
        }
        let Some((repository, jobs)) = runs.get(&run) else { return Ok(None) };
        let taken: BTreeSet<u64> = {
            let farm = self.app.core.read();
            let known = farm.demands_of_run(self.connection.forge(), run);
            let known = known.filter(|demand| demand.scale_set.is_some()).map(|demand| demand.job);
            known.chain(bound.values().map(|job| job.job)).collect()
        };
        let wanted = labels::asked(&facts.request_labels);
        let open = |job: &&Job| {
            !taken.contains(&job.id)
                && job.status != "completed"
                && (wanted.is_empty() || labels::asked(&job.labels) == wanted)
        };
        let mut candidates = jobs.iter().filter(open);
        let named = candidates.clone().find(|job| job.name == facts.job_display_name);
        // A name that the two interfaces write differently does not matter where there is only one.
        let only = candidates.next().filter(|_| candidates.next().is_none());
        Ok(named.or(only).map(|job| report::of_rest(repository, None, job)))
    }
}

/// Whether a scale set counts more assigned jobs than the ledger knows and the message names.
fn unexplained(counted: u64, known: usize, named: usize) -> bool {
    counted > u64::try_from(known.saturating_add(named)).unwrap_or(u64::MAX)
}

fn key(connection: &Connection, set: u64) -> String {
    format!("scale-set/{}/{set}/last-message", connection.forge())
}

fn path(repository: &Repository) -> Result<RepositoryPath, RoundError> {
    Connection::path(repository).map_err(|reason| RoundError::Missing(reason.message))
}

fn of_demand(demand: &Demand) -> WorkflowJob {
    WorkflowJob {
        repository: demand.repository.clone(),
        installation: demand.installation,
        job: demand.job,
        run: demand.run,
        run_attempt: demand.run_attempt,
        name: demand.name.clone(),
        workflow: demand.workflow.clone(),
        action: demand.rank.name().to_owned(),
        conclusion: None,
        labels: demand.labels.clone(),
        head_sha: demand.head_sha.clone(),
        head_branch: demand.head_branch.clone(),
        runner_name: None,
        runner_id: None,
        sender: None,
        scale_set: demand.scale_set,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arc_3420_statistics_that_count_more_than_is_known_have_the_queues_polled() {
        assert!(unexplained(3, 1, 1), "one is missing");
        assert!(!unexplained(2, 1, 1));
        assert!(!unexplained(0, 5, 0), "statistics can lie behind what is known, and hide nothing then");
        assert!(!unexplained(u64::MAX, usize::MAX, 1));
    }
}
