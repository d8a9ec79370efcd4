//! Opening SQLite: write-ahead log, full synchronisation, one process.

use crate::Error;
use crate::dialect::Dialect;
use crate::link::Pools;
use crate::wal::Log;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

const OPEN: &str = "open the database";
const READERS: u32 = 4;
const ACQUIRE: Duration = Duration::from_secs(5);
/// How long a connection waits for another one, of whatever program.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Where the database file is: `sqlite:` alone means `farm.db` in the data folder; a relative path is taken from there.
pub(crate) fn path(url: &str, data_dir: &Path) -> Result<PathBuf, Error> {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let name = rest.strip_prefix("//").unwrap_or(rest);
    if name.contains(['?', '#']) || name.starts_with(':') {
        return Err(Error::invalid(format!(
            "`{url}` is not a database of a farm: write `sqlite:` or `sqlite:PATH`, without parameters"
        )));
    }
    Ok(data_dir.join(if name.is_empty() { "farm.db" } else { name }))
}

/// Takes the folder for this process. The lock ends with the process, however it ends.
pub(crate) fn lock(folder: &Path) -> Result<File, Error> {
    let unavailable = |error: std::io::Error| Error::Unavailable {
        operation: "open the data folder",
        reason: error.to_string(),
    };
    fs_err::create_dir_all(folder).map_err(unavailable)?;
    let file = fs_err::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join("farm.lock"))
        .map_err(unavailable)?
        .into_file();
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => Err(unavailable(error)),
    }
}

/// Opens the database file.
pub(crate) async fn open(path: &Path) -> Result<Pools, Error> {
    let base = SqliteConnectOptions::new()
        .filename(path)
        .foreign_keys(true)
        .busy_timeout(PATIENCE)
        .disable_statement_logging();
    let writer = base
        .clone()
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // An answer is given only after the write-ahead log is on the disk.
        .synchronous(SqliteSynchronous::Full)
        // See the module `wal`. A log that grew long behind a slow reader is cut back when it begins anew.
        .pragma("wal_autocheckpoint", "0")
        .pragma("journal_size_limit", "67108864")
        .pragma("cache_size", "-65536");
    let unavailable = |error| Dialect::Sqlite.classify(OPEN, error);
    let keeper = writer.clone();
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(writer)
        .await
        .map_err(unavailable)?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(ACQUIRE)
        .connect_with(base.read_only(true))
        .await
        .map_err(unavailable)?;
    let log = Log::keep(keeper.connect().await.map_err(unavailable)?, writer.clone());
    Ok(Pools::Sqlite { writer, readers, log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_the_path() {
        let folder = Path::new("/var/lib/farm");
        let cases = [
            ("sqlite:", "/var/lib/farm/farm.db"),
            ("sqlite://", "/var/lib/farm/farm.db"),
            ("sqlite:other.db", "/var/lib/farm/other.db"),
            ("sqlite:/srv/x.db", "/srv/x.db"),
            ("sqlite:///srv/x.db", "/srv/x.db"),
        ];
        for (url, wanted) in cases {
            assert_eq!(path(url, folder).unwrap(), Path::new(wanted), "{url}");
        }
        assert!(path("sqlite::memory:", folder).is_err());
        assert!(path("sqlite:x.db?mode=ro", folder).is_err());
    }

    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn full_database_says_so_writes_nothing_and_recovers() {
        use crate::sql_store::SqlStore;
        use crate::testing::samples::Samples;
        use crate::{Batch, Keep, Store as _};

        let test = crate::test_pools::file().await;
        crate::migrate::migrate(&test.pools).await.unwrap();
        let store = SqlStore { pools: test.pools, _lock: None };
        let limit = |pages: u32| {
            let pools = &store.pools;
            async move {
                let mut link = pools.write("test").await.unwrap();
                link.script("test", format!("pragma max_page_count = {pages}")).await.unwrap();
            }
        };
        limit(150).await;
        let mut samples = Samples::new();
        let mut committed = 0;
        let full = loop {
            let rows = samples.farm();
            let commits = vec![samples.commit(rows)];
            match store.commit(&Batch { epoch: 0, commits, bodies: Vec::new() }).await {
                Ok(()) => committed += 1,
                Err(error) => break error,
            }
            assert!(committed < 1000, "the limit has no effect");
        };
        assert!(matches!(full, Error::NoSpace { .. }), "{full:?}");
        limit(1_000_000).await;
        let after = store.load(Keep::since(forgeyard_model::Timestamp::from_micros(0))).await.unwrap();
        assert_eq!(after.last_seq, committed);
        store.set_setting("a", "b").await.unwrap();
    }
}
