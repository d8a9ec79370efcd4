//! The farm's memory: SQL and nothing else.
//!
//! One core decides in memory and hands over batches of decisions ([`Batch`]); each batch becomes durable in one
//! transaction or not at all. [`Store`] is the port. It has three implementations, held to one conformance suite:
//! SQLite (one process, the default), PostgreSQL (several replicas), and a twin in memory (feature `twin`).
//!
//! Layout of the database, made by `migrations/`:
//! - a table for each kind of row, with its generation, its JSON, and copies of what constraints and queries need;
//! - `event`, `journal` and `usage`, which are append-only, and that by the schema;
//! - `core`, one row: which epoch may write;
//! - `delivery_body`, `log`, `log_chunk`, `setting`.
//!
//! Invariants that the schema keeps, whoever writes: at most one live attempt of a job, its fences grow; at most one
//! live lease of a device; a delivery is stored once; the journal has no position twice; the past does not change;
//! what is referred to exists. A broken one is [`Error::Constraint`] with the name from the migration.

mod aggregate;
mod commit;
mod dialect;
mod epoch;
mod error;
mod ledger;
mod link;
mod load;
mod log;
mod migrate;
mod postgres;
mod sql_store;
mod sqlite;
mod store;
mod table;
#[cfg(test)]
#[cfg(feature = "testing")]
mod test_pools;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "twin")]
pub mod twin;
mod wal;
mod write;

pub use error::Error;
pub use store::{Batch, EventQuery, Keep, LogAppend, LogChunk, LogState, Snapshot, Store};

use sql_store::SqlStore;
use std::path::Path;
use std::sync::Arc;

/// Opens the farm's database and brings its schema up to date.
///
/// `sqlite:` is `farm.db` in the data folder, `sqlite:PATH` another file; the folder of the file is locked against
/// other processes. `postgres://…` is a server; several processes may use it at once.
pub async fn open(url: &str, data_dir: &Path) -> Result<Arc<dyn Store>, Error> {
    let store = if url.starts_with("sqlite:") {
        let path = sqlite::path(url, data_dir)?;
        let lock = sqlite::lock(path.parent().unwrap_or(data_dir))?;
        SqlStore { pools: sqlite::open(&path).await?, _lock: Some(lock) }
    } else if url.starts_with("postgres:") || url.starts_with("postgresql:") {
        SqlStore { pools: postgres::open(url).await?, _lock: None }
    } else {
        // The rest of the URL may hold a password.
        let scheme = url.split(':').next().unwrap_or_default();
        return Err(Error::invalid(format!(
            "`{scheme}` is not a kind of database that the farm knows: write sqlite: or postgres://…"
        )));
    };
    migrate::migrate(&store.pools).await?;
    if store._lock.is_some() {
        // The lock proves that whoever held the core's lease is gone.
        let mut link = store.pools.write("open the database").await?;
        link.run("open the database", "update core set expires_at = 0".to_owned(), Vec::new()).await?;
        store.pools.commit(link, "open the database").await?;
    }
    Ok(Arc::new(store))
}
