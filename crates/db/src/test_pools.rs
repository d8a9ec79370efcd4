//! Bare databases of both kinds for unit tests.

use crate::link::Pools;
use crate::testing::postgres::{self, Schema};
use crate::{postgres as opening, sqlite};
use tempfile::TempDir;

/// An empty database, and what keeps it.
pub(crate) struct TestPools {
    pub(crate) pools: Pools,
    _folder: Option<TempDir>,
    _schema: Option<Schema>,
}

/// An empty SQLite database.
pub(crate) async fn file() -> TestPools {
    let folder = TempDir::new().unwrap();
    let pools = sqlite::open(&folder.path().join("farm.db")).await.unwrap();
    TestPools { pools, _folder: Some(folder), _schema: None }
}

/// SQLite, and PostgreSQL where there is one.
pub(crate) async fn both() -> Vec<TestPools> {
    let mut found = vec![file().await];
    if let Some(schema) = postgres::schema().await {
        let pools = opening::open(&schema.url).await.unwrap();
        found.push(TestPools { pools, _folder: None, _schema: Some(schema) });
    }
    found
}
