//! Opening PostgreSQL: a pool that finds the server again by itself after it was gone.

use crate::Error;
use crate::dialect::Dialect;
use crate::link::{Arg, Pools};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};
use std::time::Duration;

const OPEN: &str = "open the database";
const CONNECTIONS: u32 = 8;
/// How long a call waits for a connection before it says that the database is not available.
const ACQUIRE: Duration = Duration::from_secs(3);

/// Set on each connection. A server that is configured to answer before data is on the disk is overruled: what the
/// farm acknowledges is durable. The two timeouts end what a vanished client left behind.
const SESSION: &str = "select set_config('synchronous_commit', 'on', false) \
    where current_setting('synchronous_commit') = 'off'; \
    set statement_timeout = '120s'; set idle_in_transaction_session_timeout = '30s'; \
    set application_name = 'forgeyard'";

/// Opens the database at this URL.
pub(crate) async fn open(url: &str) -> Result<Pools, Error> {
    // The driver's text could hold a part of the URL, and that holds a password.
    let options: PgConnectOptions = url.parse().map_err(|_| {
        Error::invalid("the PostgreSQL URL cannot be read: write postgres://USER@HOST/DATABASE")
    })?;
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(ACQUIRE)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection.execute(sqlx::raw_sql(AssertSqlSafe(SESSION.to_owned()))).await.map(|_| ())
            })
        })
        .connect_with(options.disable_statement_logging())
        .await
        .map_err(|error| Dialect::Postgres.classify(OPEN, error))?;
    let pools = Pools::Postgres(pool);
    check(&pools).await?;
    Ok(pools)
}

/// Refuses a server on which the farm would not work.
async fn check(pools: &Pools) -> Result<(), Error> {
    let mut link = pools.read(OPEN).await?;
    let sql = "select current_setting('server_version_num')::bigint, current_setting('server_encoding')";
    let found = link.fetch(OPEN, sql.to_owned(), Vec::<Arg>::new()).await?;
    let row = found.first().ok_or_else(|| Error::corrupt("the server does not tell its version"))?;
    let (version, encoding) = (row.int(0)?, row.text(1)?);
    if version < 130_000 {
        return Err(Error::invalid(format!(
            "this PostgreSQL is of version {}, the farm needs 13 or later",
            version / 10_000
        )));
    }
    if encoding != "UTF8" {
        return Err(Error::invalid(format!("the database is encoded in {encoding}, the farm needs UTF8")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn error_about_the_url_shows_nothing_of_it() {
        for url in ["postgres://me:hunter2@[/farm", "postgres://me:hunter2@127.0.0.1:1/farm?sslmode=hunter2"]
        {
            let error = open(url).await.err().unwrap();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
