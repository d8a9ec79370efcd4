//! The write-ahead log of SQLite, kept short without making commits wait.
//!
//! A commit is durable as soon as the log is. That its pages are copied from the log into the database file (a *checkpoint*) can
//! come later, and is dear: every page once more, and two `fsync`. By itself SQLite does it inside whichever commit finds the log
//! long, and that one takes as long as a hundred others. So the writer never does it, and a connection of its own does:
//!
//! - After some [`STEP`] pages, and whenever nothing was committed for a while, it copies what there is (`passive`: it waits for
//!   nobody and nobody waits for it). Small steps, so that commits never find the disk busy with one large one.
//! - After [`LIMIT`] pages the log begins anew. For that the last few pages must be copied while nobody writes, so it borrows the
//!   writer between two commits (`restart`). The file keeps its length: commits then overwrite it in place, for which a file system
//!   need not write its own journal.
//!
//! Bound of the log: [`LIMIT`] and what is committed during one step. A reader that goes on for long, like the one that loads the
//! farm, keeps the log from beginning anew; then it grows until that reader is done.
//!
//! Durability does not depend on any of this: nothing is answered before the log is synchronised, and after a crash SQLite reads
//! the log whatever part of it was copied.

use crate::sqlite::PATIENCE;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, SqlitePool};
use std::time::Duration;
use tokio::sync::watch;

/// Pages that are copied at once, more or less.
const STEP: i64 = 1024;
/// Pages after which the log begins anew: 16 MiB.
const LIMIT: i64 = 4096;
/// Pages that are few enough to be copied while the writer waits, and how often it is tried to have no more.
const REST: i64 = 128;
const STEPS_BEFORE_RESTART: usize = 3;
/// Bytes of arguments of statements before the first look; from then on as many as made a step. Pages are larger than what was
/// changed on them.
const FIRST: u64 = 256 << 10;
/// Least and most of them between two looks.
const BETWEEN: std::ops::RangeInclusive<u64> = 16 << 10..=4 << 20;
/// What a commit counts for, whatever it wrote.
const COMMIT: u64 = 1 << 10;
/// Without a commit for so long, what there is is copied.
const QUIET: Duration = Duration::from_secs(1);
/// How long the writer is kept from committing for the sake of readers, in milliseconds.
const READERS: u32 = 20;

/// Whoever commits tells it.
#[derive(Debug)]
pub(crate) struct Log {
    /// Bytes that were committed so far; nothing when there will be no more.
    committed: watch::Sender<Option<u64>>,
}

impl Log {
    /// Begins to keep the log, until told to stop or dropped. `link` is a connection that may write.
    pub(crate) fn keep(link: SqliteConnection, writer: SqlitePool) -> Self {
        let (committed, told) = watch::channel(Some(0));
        tokio::spawn(Keeper { link, writer, every: FIRST, known: 0, next_restart: LIMIT }.run(told));
        Self { committed }
    }

    /// So many bytes were committed.
    pub(crate) fn committed(&self, bytes: u64) {
        self.committed.send_modify(|all| *all = all.map(|all| all.saturating_add(bytes + COMMIT)));
    }

    /// Stops, and waits until the connection is closed.
    pub(crate) async fn stop(&self) {
        self.committed.send_replace(None);
        self.committed.closed().await;
    }
}

struct Keeper {
    link: SqliteConnection,
    writer: SqlitePool,
    /// Bytes until the next look.
    every: u64,
    /// Pages of the log when it was last looked at.
    known: i64,
    /// Pages of the log from which on it is tried to let it begin anew.
    next_restart: i64,
}

impl Keeper {
    async fn run(mut self, mut told: watch::Receiver<Option<u64>>) {
        let mut done = 0;
        loop {
            let Some(count) = *told.borrow_and_update() else { break };
            if count - done < self.every {
                let more = told.changed();
                // Nothing wakes a farm at rest.
                let more =
                    if count == done { Ok(more.await) } else { tokio::time::timeout(QUIET, more).await };
                match more {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => break,
                    Err(_) => {}
                }
            }
            self.look(count - done).await;
            done = count;
        }
        if let Err(error) = self.link.close().await {
            tracing::warn!(%error, "the connection that keeps the log of the database did not end well");
        }
    }

    /// Copies what there is, after so many bytes.
    async fn look(&mut self, bytes: u64) {
        let state = match checkpoint(&mut self.link, "passive").await {
            Ok(state) => state,
            Err(error) => return troubled(&error),
        };
        let written = if state.pages >= self.known { state.pages - self.known } else { state.pages };
        self.known = state.pages;
        if written > 0 {
            let ideal = bytes.saturating_mul(STEP.unsigned_abs()) / written.unsigned_abs();
            // A single large commit does not say what the next ones are.
            self.every = ideal
                .clamp(self.every / 2, self.every.saturating_mul(2))
                .clamp(*BETWEEN.start(), *BETWEEN.end());
        }
        if state.pages < self.next_restart {
            return;
        }
        // What came while the last step was copied is copied now, so that the writer is borrowed for little.
        let mut known = state.pages;
        for _ in 0..STEPS_BEFORE_RESTART {
            match checkpoint(&mut self.link, "passive").await {
                Ok(state) if state.pages - known <= REST => break,
                Ok(state) => known = state.pages,
                Err(error) => return troubled(&error),
            }
        }
        match restart(&self.writer).await {
            Ok(true) => (self.known, self.next_restart) = (0, LIMIT),
            // A reader needs the log. The next steps would most likely find it still there.
            Ok(false) => self.next_restart = known + LIMIT / 2,
            Err(error) => troubled(&error),
        }
    }
}

/// What a checkpoint found.
struct State {
    /// Somebody was in the way.
    busy: bool,
    /// Pages of the log.
    pages: i64,
}

async fn checkpoint(link: &mut SqliteConnection, how: &'static str) -> Result<State, sqlx::Error> {
    let sql = AssertSqlSafe(format!("pragma wal_checkpoint({how})"));
    let (busy, pages, _): (i64, i64, i64) = sqlx::query_as(sql).fetch_one(link).await?;
    Ok(State { busy: busy != 0, pages })
}

/// Lets the log begin anew with the next commit; answers whether it will.
async fn restart(writer: &SqlitePool) -> Result<bool, sqlx::Error> {
    let mut link = writer.acquire().await?;
    let patience = |millis: u128| AssertSqlSafe(format!("pragma busy_timeout = {millis}"));
    sqlx::query(patience(READERS.into())).execute(&mut *link).await?;
    let state = checkpoint(&mut link, "restart").await;
    sqlx::query(patience(PATIENCE.as_millis())).execute(&mut *link).await?;
    Ok(!state?.busy)
}

/// What could not be copied is tried again with the next commits; until then all of it is in the log.
fn troubled(error: &sqlx::Error) {
    tracing::warn!(%error, "the log of the database cannot be copied into it");
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use super::*;
    use crate::sql_store::SqlStore;
    use crate::testing::samples::Samples;
    use crate::{Batch, Store as _};
    use bytes::Bytes;
    use std::path::Path;

    fn length(folder: &Path) -> u64 {
        std::fs::metadata(folder.join("farm.db-wal")).map_or(0, |log| log.len())
    }

    /// A decision that stores a delivery with so many bytes.
    async fn commit(store: &SqlStore, samples: &mut Samples, bytes: usize) {
        let delivery = samples.delivery();
        let bodies = vec![(delivery.guid.clone(), Bytes::from(vec![b'x'; bytes]))];
        let commits = vec![samples.commit(vec![delivery.into()])];
        store.commit(&Batch { epoch: 0, commits, bodies }).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn log_begins_anew_however_much_is_committed_and_nothing_of_it_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let pools = crate::sqlite::open(&folder.path().join("farm.db")).await.unwrap();
        crate::migrate::migrate(&pools).await.unwrap();
        let store = SqlStore { pools, _lock: None };
        let mut samples = Samples::new();
        let limit = u64::try_from(LIMIT).unwrap() * 4096;
        let mut longest = 0;
        // Three times the limit, in commits of a megabyte, and then in commits as small as they come.
        for round in 0..120 {
            commit(&store, &mut samples, if round < 48 { 1 << 20 } else { 10 }).await;
            longest = longest.max(length(folder.path()));
        }
        assert!(longest < 2 * limit, "the log grew to {longest} bytes");
        let snapshot =
            store.load(crate::Keep::since(forgeyard_model::Timestamp::from_micros(0))).await.unwrap();
        assert_eq!((snapshot.last_seq, snapshot.rows.len()), (120, 120));
        store.close().await;
        assert_eq!(length(folder.path()), 0, "whoever closes the database last takes the log along");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slow_reader_delays_the_log_and_not_the_commits() {
        let folder = tempfile::tempdir().unwrap();
        let pools = crate::sqlite::open(&folder.path().join("farm.db")).await.unwrap();
        crate::migrate::migrate(&pools).await.unwrap();
        let store = SqlStore { pools, _lock: None };
        let mut samples = Samples::new();
        commit(&store, &mut samples, 10).await;
        let mut reader = store.pools.read("test").await.unwrap();
        let count = "select count(*) from delivery".to_owned();
        assert_eq!(reader.fetch("test", count.clone(), Vec::new()).await.unwrap()[0].int(0).unwrap(), 1);
        let limit = u64::try_from(LIMIT).unwrap() * 4096;
        for _ in 0..70 {
            commit(&store, &mut samples, 1 << 20).await;
        }
        assert!(length(folder.path()) > 4 * limit, "the reader still needs what is in the log");
        assert_eq!(reader.fetch("test", count.clone(), Vec::new()).await.unwrap()[0].int(0).unwrap(), 1);
        drop(reader);
        // Without the reader it begins anew, and is cut back.
        let begun = std::time::Instant::now();
        while length(folder.path()) > 64 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the log stays at {}", length(folder.path()));
            commit(&store, &mut samples, 1 << 20).await;
        }
        store.close().await;
    }
}
