//! The core: one task that decides, stores and answers.
//!
//! It holds the live farm in memory, decides with the pure engine, and stores what a batch of decisions wrote in one
//! transaction before any of them is answered. Readers see a replica that only ever holds what is stored.
//!
//! Crash windows:
//! - before the commit: nobody was answered, nothing happened;
//! - after the commit, before the answer: the caller asks again and finds it done, because inputs are idempotent;
//! - the outcome of a commit is unknown: the same batch is offered again; the journal's sequence tells whether it was
//!   stored the first time.
//!
//! Deliveries of a forge go before everything else: a forge waits ten seconds for its answer and does not come again by
//! itself, and a delivery is cheap to store, while what follows from it (a placement, a tick over all runners) is not. So a
//! delivery waits for one batch at most, and a batch holds few inputs of other kinds while deliveries come.

use crate::clock::Clock;
use crate::version::{self, Published, Version};
use bytes::Bytes;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_db::{Batch, Error as DbError, Keep, Store};
use forgeyard_engine::decide::decide;
use forgeyard_engine::demand::past;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::commit::{Commit, Row};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::{Digest, ForgeName, Id, PrincipalId, Timestamp};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Inputs that are decided and stored together, at most.
const BATCH: usize = 256;
/// Inputs that are no deliveries in one batch, at most: deliveries that come meanwhile wait for all of them. Below this the
/// share of the transaction in each of them grows, above it the wait of deliveries.
const OTHERS: usize = 32;
/// How long a caller waits for its answer before it is told to come again.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long rows of ended pipelines are kept in memory, and numbers of jobs whose demands ended.
const KEEP: Duration = Duration::from_secs(14 * 24 * 3600);

/// What of the past is loaded now. Demands as long as the engine keeps them.
fn keep(now: Timestamp) -> Keep {
    let before =
        |span: Duration| Timestamp::from_micros(now.as_micros().saturating_sub(span.as_micros() as i64));
    Keep { since: before(KEEP), demands_since: before(past::KEPT), numbers: past::NUMBERS }
}

/// The farm that is stored, with the numbers that were known before.
fn stored(rows: Vec<Row>, ended: past::Ended, numbers: &[(ForgeName, u64)]) -> Farm {
    let mut farm = Farm { ended, ..Farm::load(rows) };
    for (forge, job) in numbers {
        farm.ended.add(forge, *job);
    }
    farm
}

struct Request {
    input: Input,
    by: Principal,
    body: Option<(String, Bytes)>,
    /// The configuration that counts from this input on.
    config: Option<Arc<FarmConfig>>,
    answer: oneshot::Sender<Result<Reply, ApiError>>,
}

/// What changed, for live views.
#[derive(Debug, Clone)]
pub struct Change {
    /// Kind of row.
    pub kind: &'static str,
    /// Its key.
    pub key: String,
    /// The pipeline that it belongs to, when it belongs to one.
    pub pipeline: Option<forgeyard_model::PipelineId>,
}

/// The way to the core. Cheap to clone.
#[derive(Clone)]
pub struct Core {
    deliveries: mpsc::Sender<Request>,
    others: mpsc::Sender<Request>,
    replica: Arc<RwLock<Farm>>,
    version: Version,
    changes: broadcast::Sender<Change>,
    config: Arc<RwLock<Arc<FarmConfig>>>,
}

/// The farm itself, as a principal.
pub fn farm() -> Principal {
    Principal { id: PrincipalId::from_bits(0), name: "farm".to_owned(), kind: PrincipalKind::Farm }
}

impl Core {
    /// Loads what is stored and starts to decide. The task ends, with an error, when another control plane took over.
    pub async fn start(
        store: Arc<dyn Store>,
        config: Arc<FarmConfig>,
        clock: Clock,
        epoch: u64,
    ) -> Result<(Self, tokio::task::JoinHandle<DbError>), DbError> {
        let snapshot = store.load(keep(clock.now())).await?;
        let farm = stored(snapshot.rows, past::Ended::default(), &snapshot.numbers);
        let replica = Arc::new(RwLock::new(farm.clone()));
        let (deliveries, first) = mpsc::channel(1024);
        let (others, second) = mpsc::channel(1024);
        let (published, version) = version::channel();
        let (changes, _) = broadcast::channel(1024);
        let shown = Arc::new(RwLock::new(Arc::clone(&config)));
        let task = Task {
            farm,
            store,
            config_digest: config.digest(),
            config,
            shown: Arc::clone(&shown),
            clock,
            epoch,
            seq: snapshot.last_seq,
            last: snapshot.last_at,
            replica: Arc::clone(&replica),
            published,
            changes: changes.clone(),
        };
        let handle = tokio::spawn(task.run(Inbox { deliveries: first, others: second }));
        let core = Self { deliveries, others, replica, version, changes, config: shown };
        core.give(Input::FarmStarted { epoch }, farm_principal()).await.map_err(|error| {
            DbError::Invalid { what: format!("the first decision was not taken: {error}") }
        })?;
        Ok((core, handle))
    }

    /// Decides an input, stores it and answers.
    pub async fn give(&self, input: Input, by: Principal) -> Result<Reply, ApiError> {
        self.give_with_body(input, by, None).await
    }

    /// The same, with raw bytes that are stored by the same transaction.
    pub async fn give_with_body(
        &self,
        input: Input,
        by: Principal,
        body: Option<(String, Bytes)>,
    ) -> Result<Reply, ApiError> {
        self.ask(input, by, body, None).await
    }

    /// Decides an input under another configuration than before, which counts from then on; when the input is refused or
    /// cannot be stored, the configuration stays as it was.
    pub async fn give_under(
        &self,
        config: Arc<FarmConfig>,
        input: Input,
        by: Principal,
    ) -> Result<Reply, ApiError> {
        self.ask(input, by, None, Some(config)).await
    }

    async fn ask(
        &self,
        input: Input,
        by: Principal,
        body: Option<(String, Bytes)>,
        config: Option<Arc<FarmConfig>>,
    ) -> Result<Reply, ApiError> {
        let busy = || {
            ApiError::new(
                ErrorKind::Unavailable,
                "farm.busy",
                "the farm could not store this in time; nothing was acknowledged",
            )
            .hint("send it again; it is safe to repeat")
        };
        let (answer, answered) = oneshot::channel();
        let lane = if body.is_some() { &self.deliveries } else { &self.others };
        let request = Request { input, by, body, config, answer };
        // One patience for both: a sender that gives up after ten seconds must have heard of it before.
        let end = tokio::time::Instant::now() + PATIENCE;
        let sent = tokio::time::timeout_at(end, lane.send(request)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return Err(busy());
        }
        match tokio::time::timeout_at(end, answered).await {
            Ok(Ok(answer)) => answer,
            _ => Err(busy()),
        }
    }

    /// What is stored. Hold it briefly: the core waits for readers.
    pub fn read(&self) -> RwLockReadGuard<'_, Farm> {
        self.replica.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells when something changed.
    pub fn version(&self) -> Version {
        self.version.clone()
    }

    /// Changes as they are stored.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// The configuration that is decided under. What asks twice may get two: hold on to one.
    pub fn config(&self) -> Arc<FarmConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

fn farm_principal() -> Principal {
    farm()
}

struct Task {
    farm: Farm,
    store: Arc<dyn Store>,
    config: Arc<FarmConfig>,
    config_digest: Digest,
    /// The configuration as others see it: only what is stored.
    shown: Arc<RwLock<Arc<FarmConfig>>>,
    clock: Clock,
    epoch: u64,
    seq: u64,
    last: Timestamp,
    replica: Arc<RwLock<Farm>>,
    published: Published,
    changes: broadcast::Sender<Change>,
}

type Waiting = (oneshot::Sender<Result<Reply, ApiError>>, Result<Reply, ApiError>);

/// What waits for a decision, deliveries apart.
struct Inbox {
    deliveries: mpsc::Receiver<Request>,
    others: mpsc::Receiver<Request>,
}

impl Inbox {
    /// Waits for an input. Nothing when every handle was dropped.
    async fn first(&mut self) -> Option<Request> {
        tokio::select! {
            biased;
            Some(request) = self.deliveries.recv() => Some(request),
            Some(request) = self.others.recv() => Some(request),
            else => None,
        }
    }

    /// The next one of a batch that already holds so many deliveries and so many others. Neither kind can keep the other
    /// out.
    fn next(&mut self, deliveries: usize, others: usize) -> Option<Request> {
        let first = if deliveries < BATCH - OTHERS { self.deliveries.try_recv().ok() } else { None };
        first.or_else(|| if others < OTHERS { self.others.try_recv().ok() } else { None })
    }
}

impl Task {
    async fn run(mut self, mut inbox: Inbox) -> DbError {
        while let Some(first) = inbox.first().await {
            if let Err(error) = self.batch(first, &mut inbox).await {
                return error;
            }
        }
        DbError::Invalid { what: "the core ended: every handle was dropped".to_owned() }
    }

    /// Decides and stores a batch. An error ends this control plane.
    async fn batch(&mut self, first: Request, inbox: &mut Inbox) -> Result<(), DbError> {
        let started = std::time::Instant::now();
        let mut batch = Batch { epoch: self.epoch, ..Batch::default() };
        let mut waiting: Vec<Waiting> = Vec::new();
        let before = (Arc::clone(&self.config), self.config_digest);
        let (mut next, mut others) = (Some(first), 0);
        while let Some(request) = next {
            others += usize::from(request.body.is_none());
            let last = (Arc::clone(&self.config), self.config_digest);
            if let Some(config) = request.config {
                (self.config_digest, self.config) = (config.digest(), config);
            }
            let (answer, commit) = self.decide(request.input, request.by);
            if answer.is_err() {
                (self.config, self.config_digest) = last;
            }
            if let Some(commit) = commit {
                batch.commits.push(commit);
                // A repeated delivery keeps the body of the first one.
                batch.bodies.extend(request.body.filter(|_| answer == Ok(Reply::Done)));
            }
            waiting.push((request.answer, answer));
            next = inbox.next(waiting.len() - others, others);
        }
        let count = waiting.len();
        if !batch.commits.is_empty() {
            match self.store(&batch).await {
                Ok(()) => self.publish(batch.commits),
                Err(error) => {
                    (self.config, self.config_digest) = before;
                    let refused = refused(&error);
                    for (answer, _) in waiting {
                        let _ = answer.send(Err(refused.clone()));
                    }
                    if matches!(error, DbError::Superseded { .. } | DbError::Locked { .. }) {
                        return Err(error);
                    }
                    return self.reload().await;
                }
            }
        }
        if before.1 != self.config_digest {
            let mut shown = self.shown.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            *shown = Arc::clone(&self.config);
        }
        for (answer, reply) in waiting {
            let _ = answer.send(reply);
        }
        metrics::histogram!("forgeyard_core_batch_seconds").record(started.elapsed().as_secs_f64());
        metrics::counter!("forgeyard_core_decisions_total").increment(count as u64);
        Ok(())
    }

    fn decide(&mut self, input: Input, by: Principal) -> (Result<Reply, ApiError>, Option<Commit>) {
        // The clock never runs behind what is stored.
        let now = self.clock.now().max(self.last);
        let ctx = Ctx {
            seq: self.seq + 1,
            now,
            entropy: self.clock.entropy(),
            by,
            config: &self.config,
            config_digest: self.config_digest,
        };
        match decide(&mut self.farm, &ctx, input) {
            Ok(decided) => {
                if decided.commit.is_some() {
                    self.seq += 1;
                    self.last = now;
                }
                (Ok(decided.reply), decided.commit)
            }
            Err(refusal) => (Err(ApiError::from(refusal)), None),
        }
    }

    /// Stores a batch. While the database is away the batch is held: nothing of it has been answered.
    async fn store(&self, batch: &Batch) -> Result<(), DbError> {
        let mut pause = Duration::from_millis(50);
        let mut unknown = false;
        loop {
            match self.store.commit(batch).await {
                Ok(()) => return Ok(()),
                Err(DbError::Constraint { name, .. }) if unknown && name == "journal_seq_unique" => {
                    return Ok(());
                }
                Err(error @ DbError::NoSpace { .. }) => return Err(error),
                Err(error) if error.transient() => {
                    unknown = true;
                    tracing::warn!(%error, "the database does not answer; the batch is held");
                    metrics::counter!("forgeyard_database_unavailable_total").increment(1);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) => {
                    tracing::error!(%error, "a batch was refused by the database");
                    return Err(error);
                }
            }
        }
    }

    /// Shows readers what is stored now.
    fn publish(&mut self, commits: Vec<Commit>) {
        let mut changed = Vec::new();
        // Texts of keys are made only for whoever listens.
        let heard = self.changes.receiver_count() > 0;
        {
            let mut replica = self.replica.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            for commit in commits {
                for row in commit.rows {
                    if heard {
                        let pipeline = pipeline_of(&row);
                        changed.push(Change { kind: row.kind(), key: row.key(), pipeline });
                    }
                    replica.set(row);
                }
                for demand in commit.retired {
                    replica.retire(demand);
                }
            }
            replica.epoch = self.farm.epoch;
            replica.resumed_at = self.farm.resumed_at;
        }
        self.published.grow();
        for change in changed {
            let _ = self.changes.send(change);
        }
    }

    /// Forgets what was decided and not stored.
    async fn reload(&mut self) -> Result<(), DbError> {
        let mut pause = Duration::from_millis(50);
        let snapshot = loop {
            match self.store.load(keep(self.clock.now())).await {
                Ok(snapshot) => break snapshot,
                Err(error) if error.transient() => tokio::time::sleep(pause).await,
                Err(error) => return Err(error),
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        };
        let (epoch, resumed_at) = (self.farm.epoch, self.farm.resumed_at);
        let ended = std::mem::take(&mut self.farm.ended);
        self.farm = stored(snapshot.rows, ended, &snapshot.numbers);
        (self.farm.epoch, self.farm.resumed_at) = (epoch, resumed_at);
        self.seq = snapshot.last_seq;
        self.last = snapshot.last_at;
        let mut replica = self.replica.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        *replica = self.farm.clone();
        Ok(())
    }
}

fn refused(error: &DbError) -> ApiError {
    match error {
        DbError::NoSpace { .. } => ApiError::new(
            ErrorKind::NoSpace,
            "database.no_space",
            "the disk of the database is full; nothing was stored",
        )
        .hint("free space on the disk of the data folder; the farm goes on by itself"),
        _ => ApiError::new(
            ErrorKind::Unavailable,
            "database.refused",
            "the database refused to store this; nothing was stored",
        )
        .hint("send it again; if it stays so, see the log of the farm"),
    }
}

fn pipeline_of(row: &Row) -> Option<forgeyard_model::PipelineId> {
    match row {
        Row::Pipeline(row) => Some(row.id),
        Row::Job(row) => row.owner.pipeline(),
        Row::Attempt(row) => row.owner.pipeline(),
        Row::Artifact(row) => Some(row.pipeline),
        Row::Environment(row) => Some(row.pipeline),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(delivery: bool) -> Request {
        let body = delivery.then(|| ("guid".to_owned(), Bytes::new()));
        Request { input: Input::Ticked, by: farm(), body, config: None, answer: oneshot::channel().0 }
    }

    /// How many deliveries and others make up the next batch when so many wait.
    async fn batch_of(deliveries: usize, others: usize) -> (usize, usize, Option<bool>) {
        let (first, second) = (mpsc::channel(1024), mpsc::channel(1024));
        for _ in 0..others {
            assert!(second.0.send(request(false)).await.is_ok());
        }
        for _ in 0..deliveries {
            assert!(first.0.send(request(true)).await.is_ok());
        }
        let mut inbox = Inbox { deliveries: first.1, others: second.1 };
        let mut next = inbox.first().await;
        let led_by_delivery = next.as_ref().map(|request| request.body.is_some());
        let (mut seen, mut rest) = (0, 0);
        while let Some(request) = next {
            if request.body.is_some() {
                seen += 1
            } else {
                rest += 1
            }
            next = inbox.next(seen, rest);
        }
        (seen, rest, led_by_delivery)
    }

    #[tokio::test]
    async fn deliveries_go_before_everything_else() {
        assert_eq!(batch_of(3, 1000).await, (3, OTHERS, Some(true)));
    }

    #[tokio::test]
    async fn a_flood_of_deliveries_leaves_room_for_others() {
        assert_eq!(batch_of(1000, 1000).await, (BATCH - OTHERS, OTHERS, Some(true)));
    }

    #[tokio::test]
    async fn others_alone_make_a_batch() {
        assert_eq!(batch_of(0, 5).await, (0, 5, Some(false)));
    }
}
