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

use crate::clock::Clock;
use bytes::Bytes;
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_db::{Batch, Error as DbError, Store};
use forgeyard_engine::decide::decide;
use forgeyard_engine::{Ctx, Farm};
use forgeyard_model::commit::{Commit, Row};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::input::{Input, Reply};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::{Digest, Id, PrincipalId, Timestamp};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// Inputs that are decided and stored together, at most.
const BATCH: usize = 256;
/// How long a caller waits for its answer before it is told to come again.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long rows of ended pipelines are kept in memory.
const KEEP: Duration = Duration::from_secs(14 * 24 * 3600);

struct Request {
    input: Input,
    by: Principal,
    body: Option<(String, Bytes)>,
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
    requests: mpsc::Sender<Request>,
    replica: Arc<RwLock<Farm>>,
    version: watch::Receiver<u64>,
    changes: broadcast::Sender<Change>,
    config: Arc<FarmConfig>,
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
        let keep_since =
            Timestamp::from_micros(clock.now().as_micros().saturating_sub(KEEP.as_micros() as i64));
        let snapshot = store.load(keep_since).await?;
        let farm = Farm::load(snapshot.rows);
        let replica = Arc::new(RwLock::new(farm.clone()));
        let (requests, inbox) = mpsc::channel(1024);
        let (published, version) = watch::channel(0);
        let (changes, _) = broadcast::channel(1024);
        let task = Task {
            farm,
            store,
            config: Arc::clone(&config),
            config_digest: config.digest(),
            clock,
            epoch,
            seq: snapshot.last_seq,
            last: snapshot.last_at,
            keep_since,
            replica: Arc::clone(&replica),
            published,
            changes: changes.clone(),
        };
        let handle = tokio::spawn(task.run(inbox));
        let core = Self { requests, replica, version, changes, config };
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
        let busy = || {
            ApiError::new(
                ErrorKind::Unavailable,
                "farm.busy",
                "the farm could not store this in time; nothing was acknowledged",
            )
            .hint("send it again; it is safe to repeat")
        };
        let (answer, answered) = oneshot::channel();
        let request = Request { input, by, body, answer };
        // One patience for both: a sender that gives up after ten seconds must have heard of it before.
        let end = tokio::time::Instant::now() + PATIENCE;
        let sent = tokio::time::timeout_at(end, self.requests.send(request)).await;
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
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// Changes as they are stored.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// The configuration that is decided under.
    pub fn config(&self) -> &Arc<FarmConfig> {
        &self.config
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
    clock: Clock,
    epoch: u64,
    seq: u64,
    last: Timestamp,
    keep_since: Timestamp,
    replica: Arc<RwLock<Farm>>,
    published: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
}

type Waiting = (oneshot::Sender<Result<Reply, ApiError>>, Result<Reply, ApiError>);

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>) -> DbError {
        while let Some(first) = inbox.recv().await {
            let mut requests = vec![first];
            while requests.len() < BATCH
                && let Ok(next) = inbox.try_recv()
            {
                requests.push(next);
            }
            if let Err(error) = self.batch(requests).await {
                return error;
            }
        }
        DbError::Invalid { what: "the core ended: every handle was dropped".to_owned() }
    }

    /// Decides and stores a batch. An error ends this control plane.
    async fn batch(&mut self, requests: Vec<Request>) -> Result<(), DbError> {
        let started = std::time::Instant::now();
        let mut batch = Batch { epoch: self.epoch, ..Batch::default() };
        let mut waiting: Vec<Waiting> = Vec::with_capacity(requests.len());
        let count = requests.len();
        for request in requests {
            let (answer, commit) = self.decide(request.input, request.by);
            if let Some(commit) = commit {
                batch.commits.push(commit);
                // A repeated delivery keeps the body of the first one.
                batch.bodies.extend(request.body.filter(|_| answer == Ok(Reply::Done)));
            }
            waiting.push((request.answer, answer));
        }
        if !batch.commits.is_empty() {
            match self.store(&batch).await {
                Ok(()) => self.publish(batch.commits),
                Err(error) => {
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
        {
            let mut replica = self.replica.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            for commit in commits {
                for row in commit.rows {
                    changed.push(Change { kind: row.kind(), key: row.key(), pipeline: pipeline_of(&row) });
                    replica.set(row);
                }
                for demand in commit.retired {
                    replica.retire(demand);
                }
            }
            replica.epoch = self.farm.epoch;
            replica.resumed_at = self.farm.resumed_at;
        }
        self.published.send_modify(|version| *version += 1);
        for change in changed {
            let _ = self.changes.send(change);
        }
    }

    /// Forgets what was decided and not stored.
    async fn reload(&mut self) -> Result<(), DbError> {
        let mut pause = Duration::from_millis(50);
        let snapshot = loop {
            match self.store.load(self.keep_since).await {
                Ok(snapshot) => break snapshot,
                Err(error) if error.transient() => tokio::time::sleep(pause).await,
                Err(error) => return Err(error),
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        };
        let (epoch, resumed_at) = (self.farm.epoch, self.farm.resumed_at);
        let ended = std::mem::take(&mut self.farm.ended);
        self.farm = Farm::load(snapshot.rows);
        (self.farm.epoch, self.farm.resumed_at, self.farm.ended) = (epoch, resumed_at, ended);
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
