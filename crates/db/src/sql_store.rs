//! The store on a real database. Every method opens a transaction, does its one thing and ends, within a time limit.

use crate::link::{Arg, Pools};
use crate::store::{Batch, EventQuery, Keep, LogAppend, LogChunk, LogState, Snapshot, Store};
use crate::{Error, commit, epoch, ledger, load, log, write};
use async_trait::async_trait;
use bytes::Bytes;
use forgeyard_model::commit::{EventRecord, Row, UsageFact};
use forgeyard_model::input::JournalEntry;
use forgeyard_model::{AttemptId, DemandId, ForgeName, Timestamp};
use std::fs::File;
use std::time::Duration;

/// Limit of an ordinary call. A database that hangs is as good as one that is gone.
const CALL: Duration = Duration::from_secs(10);
/// Limit of loading the farm, which reads much.
const LOAD: Duration = Duration::from_secs(300);

/// A store on SQLite or PostgreSQL.
pub(crate) struct SqlStore {
    pub(crate) pools: Pools,
    /// Keeps other processes from the data folder, where that matters.
    pub(crate) _lock: Option<File>,
}

/// Bounds a call.
async fn within<T>(
    limit: Duration,
    operation: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        Err(Error::Unavailable { operation, reason: format!("no answer within {} s", limit.as_secs()) })
    })
}

macro_rules! reading {
    ($store:expr, $limit:expr, $operation:literal, |$link:ident| $body:expr) => {
        within($limit, $operation, async {
            let mut opened = $store.pools.read($operation).await?;
            let $link = &mut opened;
            let answer = $body?;
            opened.commit($operation).await?;
            Ok(answer)
        })
        .await
    };
}

macro_rules! writing {
    ($store:expr, $operation:literal, |$link:ident| $body:expr) => {
        within(CALL, $operation, async {
            let mut opened = $store.pools.write($operation).await?;
            let $link = &mut opened;
            let answer = $body?;
            $store.pools.commit(opened, $operation).await?;
            Ok(answer)
        })
        .await
    };
}

#[async_trait]
impl Store for SqlStore {
    async fn load(&self, keep: Keep) -> Result<Snapshot, Error> {
        reading!(self, LOAD, "load the farm", |link| load::load(link, keep).await)
    }

    async fn commit(&self, batch: &Batch) -> Result<(), Error> {
        within(CALL, "commit a batch", commit::commit(&self.pools, batch)).await
    }

    async fn delivery_body(&self, guid: &str) -> Result<Option<Bytes>, Error> {
        reading!(self, CALL, "read a delivery", |link| {
            let sql = "select body from delivery_body where guid = $1".to_owned();
            let found = link.fetch("read a delivery", sql, vec![Arg::Text(guid.to_owned())]).await?;
            found.first().map(|row| row.bytes(0).map(Bytes::from)).transpose()
        })
    }

    async fn events(&self, query: EventQuery) -> Result<Vec<EventRecord>, Error> {
        reading!(self, CALL, "read events", |link| ledger::event::read(link, query).await)
    }

    async fn journal(&self, from_seq: u64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
        reading!(self, CALL, "read the journal", |link| ledger::journal::read(link, from_seq, limit).await)
    }

    async fn usage(&self, since: Timestamp, until: Timestamp) -> Result<Vec<UsageFact>, Error> {
        reading!(self, CALL, "read usage facts", |link| ledger::usage::read(link, since, until).await)
    }

    async fn row(&self, kind: &str, key: &str) -> Result<Option<Row>, Error> {
        reading!(self, CALL, "read a row", |link| load::row(link, kind, key).await)
    }

    async fn list(&self, kind: &str, before_key: Option<&str>, limit: u32) -> Result<Vec<Row>, Error> {
        reading!(self, CALL, "list rows", |link| load::list(link, kind, before_key, limit).await)
    }

    async fn demand_of(&self, forge: &ForgeName, job: u64) -> Result<Option<Row>, Error> {
        reading!(self, CALL, "read a demand", |link| load::demand_of(link, forge, job).await)
    }

    async fn of_demand(&self, demand: DemandId) -> Result<Vec<Row>, Error> {
        reading!(self, CALL, "read a demand", |link| load::of_demand(link, demand).await)
    }

    async fn log_append(&self, attempt: AttemptId, chunk: LogChunk) -> Result<LogAppend, Error> {
        writing!(self, "append to a log", |link| log::append(link, attempt, chunk).await)
    }

    async fn log_chunks(&self, attempt: AttemptId) -> Result<Vec<LogChunk>, Error> {
        reading!(self, CALL, "read a log", |link| log::chunks(link, attempt).await)
    }

    async fn log_complete(&self, attempt: AttemptId) -> Result<(), Error> {
        writing!(self, "complete a log", |link| log::complete(link, attempt).await)
    }

    async fn log_state(&self, attempt: AttemptId) -> Result<LogState, Error> {
        reading!(self, CALL, "read a log", |link| log::state(link, attempt).await)
    }

    async fn setting(&self, key: &str) -> Result<Option<String>, Error> {
        reading!(self, CALL, "read a setting", |link| {
            let sql = "select value from setting where key = $1".to_owned();
            let found = link.fetch("read a setting", sql, vec![Arg::Text(key.to_owned())]).await?;
            found.first().map(|row| row.text(0)).transpose()
        })
    }

    async fn set_setting(&self, key: &str, value: &str) -> Result<(), Error> {
        write::printable("setting", key)?;
        write::printable("setting", value)?;
        writing!(self, "write a setting", |link| {
            let sql = "insert into setting (key, value) values ($1, $2) \
                       on conflict (key) do update set value = excluded.value";
            let args = vec![Arg::Text(key.to_owned()), Arg::Text(value.to_owned())];
            link.run("write a setting", sql.to_owned(), args).await.map(|_| ())
        })
    }

    async fn take_epoch(&self, holder: &str, ttl: Duration) -> Result<u64, Error> {
        writing!(self, "take the core's lease", |link| epoch::take(link, holder, ttl).await)
    }

    async fn renew_epoch(&self, epoch: u64, ttl: Duration) -> Result<(), Error> {
        writing!(self, "renew the core's lease", |link| epoch::renew(link, epoch, ttl).await)
    }

    async fn release_epoch(&self, epoch: u64) -> Result<(), Error> {
        writing!(self, "release the core's lease", |link| epoch::renew(link, epoch, Duration::ZERO).await)
    }

    async fn ping(&self) -> Result<(), Error> {
        reading!(self, CALL, "ask the database", |link| {
            link.fetch("ask the database", "select 1".to_owned(), Vec::new()).await.map(|_| ())
        })
    }

    async fn close(&self) {
        self.pools.close().await;
    }
}
