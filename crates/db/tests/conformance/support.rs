//! One store to try claims on.

use forgeyard_db::testing::postgres::{self, Schema};
use forgeyard_db::testing::samples::Samples;
use forgeyard_db::twin::Twin;
use forgeyard_db::{Batch, Error, Keep, Store};
use forgeyard_model::Timestamp;
use forgeyard_model::commit::{Commit, Row};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// What a claim is tried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
    Twin,
}

/// What keeps the data of a store while the store itself comes and goes.
enum Ground {
    Sqlite(TempDir),
    Postgres(Schema),
    Twin(Twin),
}

/// An open store, with samples to fill it.
pub(crate) struct Farm {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) samples: Samples,
    pub(crate) epoch: u64,
    ground: Ground,
}

impl Farm {
    /// An empty store; none when the backend is not there.
    pub(crate) async fn open(backend: Backend) -> Option<Farm> {
        let ground = match backend {
            Backend::Sqlite => Ground::Sqlite(TempDir::new().unwrap()),
            Backend::Postgres => Ground::Postgres(postgres::schema().await?),
            Backend::Twin => Ground::Twin(Twin::new()),
        };
        let store = open(&ground).await.unwrap();
        Some(Farm { store, samples: Samples::new(), epoch: 0, ground })
    }

    /// Ends the store in order and opens it again.
    pub(crate) async fn reopen(&mut self) {
        self.store.close().await;
        // The old store must be gone before the data folder can be taken again.
        self.store = Arc::new(Twin::new());
        self.store = open(&self.ground).await.unwrap();
    }

    /// Opens what a crash would leave behind at this moment.
    pub(crate) async fn after_crash(&self) -> (Arc<dyn Store>, Option<TempDir>) {
        match &self.ground {
            // The files as they are while the database is open; shared memory does not survive.
            Ground::Sqlite(folder) => {
                let copy = TempDir::new().unwrap();
                for name in ["farm.db", "farm.db-wal"] {
                    std::fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
                }
                (forgeyard_db::open("sqlite:", copy.path()).await.unwrap(), Some(copy))
            }
            // A crash of the server itself has a test of its own.
            ground => (open(ground).await.unwrap(), None),
        }
    }

    /// The twin's clock stands still until it is moved; the others have real ones.
    pub(crate) async fn pass(&self, time: Duration) {
        match &self.ground {
            Ground::Twin(twin) => twin.set_time(Timestamp::from_micros(0).plus(time)),
            _ => tokio::time::sleep(time).await,
        }
    }

    /// Commits these rows as one decision.
    pub(crate) async fn write(&mut self, rows: Vec<Row>) -> Result<(), Error> {
        let commit = self.samples.commit(rows);
        self.commit(vec![commit]).await
    }

    /// Commits rows that are refused; what the samples count as written stays as it was.
    pub(crate) async fn refused(&mut self, rows: Vec<Row>) -> Error {
        let before = self.samples.clone();
        let error = self.write(rows).await.unwrap_err();
        self.samples = before;
        error
    }

    /// Commits decisions in one batch.
    pub(crate) async fn commit(&self, commits: Vec<Commit>) -> Result<(), Error> {
        self.store.commit(&Batch { epoch: self.epoch, commits, bodies: Vec::new() }).await
    }

    /// Everything that is stored.
    pub(crate) async fn everything(&self) -> Vec<Row> {
        everything(&*self.store).await
    }
}

/// Every row of a store.
pub(crate) async fn everything(store: &dyn Store) -> Vec<Row> {
    store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap().rows
}

async fn open(ground: &Ground) -> Result<Arc<dyn Store>, Error> {
    match ground {
        Ground::Sqlite(folder) => forgeyard_db::open("sqlite:", folder.path()).await,
        Ground::Postgres(schema) => forgeyard_db::open(&schema.url, "/nowhere".as_ref()).await,
        Ground::Twin(twin) => Ok(Arc::new(twin.clone())),
    }
}

/// Rows in the order of their kind and key, for comparing.
pub(crate) fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|row| (row.kind(), row.key()));
    rows
}

/// The constraint that an error names.
pub(crate) fn constraint(error: &Error) -> &str {
    match error {
        Error::Constraint { name } => name,
        other => panic!("not refused by a constraint: {other:?}"),
    }
}

/// The next version of a row, changed.
macro_rules! next {
    ($row:expr, $change:expr) => {{
        let mut row = $row.clone();
        row.generation += 1;
        #[allow(clippy::redundant_closure_call, reason = "the closure is the change")]
        ($change)(&mut row);
        row
    }};
}
pub(crate) use next;

/// Of rows that were written, those that a restart loads: of configurations the newest alone.
pub(crate) fn standing(mut rows: Vec<Row>) -> Vec<Row> {
    let number = |row: &Row| match row {
        Row::Config(config) => Some(config.number),
        _ => None,
    };
    let newest = rows.iter().filter_map(number).max();
    rows.retain(|row| number(row).is_none_or(|number| Some(number) == newest));
    rows
}
