//! The twin: the store in memory, for simulations and for tests of other crates.
//!
//! It is not durable and never reported as the real thing. It keeps the same constraints, by the same tables of
//! constraints that the SQL is built from, and is held to the same conformance suite. Everything inside is synchronous
//! and deterministic; the clock of the "database" stands still until [`Twin::set_time`] moves it.
//!
//! A clone is another handle on the same data, so that a simulation can drop the core, open a new one on a clone, and
//! thereby play a crash.

mod commit;
mod load;

use crate::aggregate::{self, TABLES, demand::rests_at};
use crate::error::Error;
use crate::log;
use crate::store::{Batch, EventQuery, Keep, LogAppend, LogChunk, LogState, Snapshot, Store};
use crate::write::{JOURNAL_GAPLESS, Plan, first_seq, printable};
use async_trait::async_trait;
use bytes::Bytes;
use forgeyard_model::commit::{EventRecord, Row, UsageFact};
use forgeyard_model::effect::Effect;
use forgeyard_model::input::JournalEntry;
use forgeyard_model::{AttemptId, DemandId, EventId, ForgeName, JobId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something that goes wrong with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It does not answer until [`Twin::repair`].
    Gone,
    /// It has no space left until [`Twin::repair`]: reads work, commits do not.
    Full,
    /// The next commit is stored, and its answer is lost.
    AnswerLost,
    /// The next commit is lost, and so is the answer.
    CommitLost,
}

/// The store in memory.
#[derive(Clone, Default)]
pub struct Twin {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    now: Timestamp,
    epoch: u64,
    holder: String,
    expires_at: Timestamp,
    /// Rows by table, in the order of [`TABLES`].
    rows: Vec<BTreeMap<String, Row>>,
    /// Who has what only one may have: by constraint and value, the table and key of the owner.
    claims: HashMap<(&'static str, String), (usize, String)>,
    /// Largest fence of each job.
    fences: HashMap<String, u32>,
    journal: Vec<JournalEntry>,
    /// Position and time of the newest entry of the journal.
    last: (u64, Timestamp),
    /// Whether the journal, events and usage facts are checked and not kept.
    forgets: bool,
    events: Vec<EventRecord>,
    event_places: HashMap<EventId, usize>,
    usage: Vec<UsageFact>,
    bodies: HashMap<String, Bytes>,
    logs: HashMap<AttemptId, (LogState, Vec<LogChunk>)>,
    settings: BTreeMap<String, String>,
}

impl Twin {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one that checks the journal, events and usage facts and does not keep them, for simulations that are too long to hold
    /// all of it in memory.
    pub fn forgetful() -> Self {
        let twin = Self::default();
        twin.lock().forgets = true;
        twin
    }

    /// Sets the clock of the database.
    pub fn set_time(&self, now: Timestamp) {
        self.lock().now = now;
    }

    /// Lets something go wrong.
    pub fn inject(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Ends what went wrong.
    pub fn repair(&self) {
        self.lock().fault = None;
    }

    /// [`Store::commit`], without waiting.
    pub fn commit_now(&self, batch: &Batch) -> Result<(), Error> {
        let mut state = self.lock();
        let fault = state.fault;
        match fault {
            Some(Fault::Gone) => return Err(gone("commit a batch")),
            Some(Fault::Full) => {
                return Err(Error::NoSpace { operation: "commit a batch", reason: "simulated".to_owned() });
            }
            Some(Fault::CommitLost) => {
                state.fault = None;
                return Err(gone("commit a batch"));
            }
            Some(Fault::AnswerLost) => state.fault = None,
            None => {}
        }
        state.commit(batch)?;
        if fault == Some(Fault::AnswerLost) { Err(gone("commit a batch")) } else { Ok(()) }
    }

    /// [`Store::load`], without waiting.
    pub fn load_now(&self, keep: Keep) -> Result<Snapshot, Error> {
        Ok(self.open("load the farm")?.load(keep))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here leaves the state half changed, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, operation: &'static str) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        if state.fault == Some(Fault::Gone) { Err(gone(operation)) } else { Ok(state) }
    }
}

fn gone(operation: &'static str) -> Error {
    Error::Unavailable { operation, reason: "simulated".to_owned() }
}

fn constraint(name: &str) -> Error {
    Error::Constraint { name: name.to_owned() }
}

impl State {
    fn table(&self, number: usize) -> Option<&BTreeMap<String, Row>> {
        self.rows.get(number)
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Row> {
        aggregate::table(kind)
            .ok()
            .and_then(|(number, _)| self.table(number))
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    fn fenced(&self, epoch: u64) -> Result<(), Error> {
        if epoch == self.epoch { Ok(()) } else { Err(Error::Superseded { epoch, current: self.epoch }) }
    }
}

fn count(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[async_trait]
impl Store for Twin {
    async fn load(&self, keep: Keep) -> Result<Snapshot, Error> {
        self.load_now(keep)
    }

    async fn commit(&self, batch: &Batch) -> Result<(), Error> {
        self.commit_now(batch)
    }

    async fn delivery_body(&self, guid: &str) -> Result<Option<Bytes>, Error> {
        Ok(self.open("read a delivery")?.bodies.get(guid).cloned())
    }

    async fn events(&self, query: EventQuery) -> Result<Vec<EventRecord>, Error> {
        let state = self.open("read events")?;
        let end = match query.before {
            None => state.events.len(),
            Some(before) => state.event_places.get(&before).copied().unwrap_or(0),
        };
        let older = state.events.iter().take(end).rev();
        let asked =
            older.filter(|event| query.subject.as_ref().is_none_or(|subject| event.subject == *subject));
        Ok(asked.take(count(query.limit)).cloned().collect())
    }

    async fn journal(&self, from_seq: u64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
        let state = self.open("read the journal")?;
        let from = state.journal.partition_point(|entry| entry.seq < from_seq);
        Ok(state.journal.iter().skip(from).take(count(limit)).cloned().collect())
    }

    async fn usage(&self, since: Timestamp, until: Timestamp) -> Result<Vec<UsageFact>, Error> {
        let state = self.open("read usage facts")?;
        Ok(state.usage.iter().filter(|fact| since <= fact.at && fact.at < until).cloned().collect())
    }

    async fn row(&self, kind: &str, key: &str) -> Result<Option<Row>, Error> {
        let (number, _) = aggregate::table(kind)?;
        Ok(self.open("read a row")?.table(number).and_then(|rows| rows.get(key)).cloned())
    }

    async fn list(&self, kind: &str, before_key: Option<&str>, limit: u32) -> Result<Vec<Row>, Error> {
        let (number, _) = aggregate::table(kind)?;
        let state = self.open("list rows")?;
        let rows = state.table(number).into_iter().flatten().rev();
        let older = rows.filter(|(key, _)| before_key.is_none_or(|before| key.as_str() < before));
        Ok(older.take(count(limit)).map(|(_, row)| row.clone()).collect())
    }

    async fn demand_of(&self, forge: &ForgeName, job: u64) -> Result<Option<Row>, Error> {
        let state = self.open("read a demand")?;
        let of = |row: &&Row| matches!(row, Row::Demand(demand) if demand.job == job && demand.repository.forge == *forge);
        Ok(state.of_kind("demand").find(of).cloned())
    }

    async fn of_demand(&self, demand: DemandId) -> Result<Vec<Row>, Error> {
        let state = self.open("read a demand")?;
        let mut attempts = BTreeSet::new();
        let mut rows = Vec::new();
        for kind in ["demand", "job", "attempt", "runner", "lease", "effect"] {
            let of = |row: &&Row| match row {
                Row::Demand(row) => row.id == demand,
                Row::Job(row) => row.owner.demand() == Some(demand),
                Row::Attempt(row) => row.owner.demand() == Some(demand),
                Row::Runner(row) => row.work.attempt().is_some_and(|attempt| attempts.contains(&attempt)),
                Row::Lease(row) => row.attempt.is_some_and(|attempt| attempts.contains(&attempt)),
                Row::Effect(row) => row.effect.demand() == Some(demand),
                _ => false,
            };
            let found: Vec<Row> = state.of_kind(kind).filter(of).cloned().collect();
            attempts.extend(found.iter().filter_map(|row| match row {
                Row::Attempt(row) => Some(row.id),
                _ => None,
            }));
            rows.extend(found);
        }
        Ok(rows)
    }

    async fn log_append(&self, attempt: AttemptId, chunk: LogChunk) -> Result<LogAppend, Error> {
        let mut state = self.open("append to a log")?;
        let (log, chunks) = state.logs.entry(attempt).or_default();
        if chunk.len == 0 || chunk.offset != log.durable || log.complete {
            return Ok(log::refusal(*log, &chunk));
        }
        log.durable += chunk.len;
        chunks.push(chunk);
        Ok(LogAppend::Appended)
    }

    async fn log_chunks(&self, attempt: AttemptId) -> Result<Vec<LogChunk>, Error> {
        Ok(self.open("read a log")?.logs.get(&attempt).map(|(_, chunks)| chunks.clone()).unwrap_or_default())
    }

    async fn log_complete(&self, attempt: AttemptId) -> Result<(), Error> {
        self.open("complete a log")?.logs.entry(attempt).or_default().0.complete = true;
        Ok(())
    }

    async fn log_state(&self, attempt: AttemptId) -> Result<LogState, Error> {
        Ok(self.open("read a log")?.logs.get(&attempt).map(|(state, _)| *state).unwrap_or_default())
    }

    async fn setting(&self, key: &str) -> Result<Option<String>, Error> {
        Ok(self.open("read a setting")?.settings.get(key).cloned())
    }

    async fn set_setting(&self, key: &str, value: &str) -> Result<(), Error> {
        printable("setting", key)?;
        printable("setting", value)?;
        self.open("write a setting")?.settings.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    async fn take_epoch(&self, holder: &str, ttl: Duration) -> Result<u64, Error> {
        let mut state = self.open("take the core's lease")?;
        let remaining = state.expires_at.since(state.now);
        if !remaining.is_zero() && state.holder != holder {
            return Err(Error::Held { holder: state.holder.clone(), remaining });
        }
        state.epoch += 1;
        state.holder = holder.to_owned();
        state.expires_at = state.now.plus(ttl);
        Ok(state.epoch)
    }

    async fn renew_epoch(&self, epoch: u64, ttl: Duration) -> Result<(), Error> {
        let mut state = self.open("renew the core's lease")?;
        state.fenced(epoch)?;
        state.expires_at = state.now.plus(ttl);
        Ok(())
    }

    async fn release_epoch(&self, epoch: u64) -> Result<(), Error> {
        self.renew_epoch(epoch, Duration::ZERO).await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.open("ask the database").map(|_| ())
    }

    async fn close(&self) {}
}
