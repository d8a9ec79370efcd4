//! One connection in one transaction, of either database, with the few calls that the rest of the crate needs.

use crate::Error;
use crate::dialect::Dialect;
use crate::wal::Log;
use serde::Serialize;
use sqlx::{AssertSqlSafe, PgPool, Postgres, Row as _, Sqlite, SqlitePool, Transaction};

/// Connections to one database.
pub(crate) enum Pools {
    /// SQLite has one writer and several readers.
    Sqlite {
        /// One connection.
        writer: SqlitePool,
        /// Several, read-only.
        readers: SqlitePool,
        /// What keeps the write-ahead log short.
        log: Log,
    },
    /// PostgreSQL.
    Postgres(PgPool),
}

impl Pools {
    /// Which database.
    pub(crate) const fn dialect(&self) -> Dialect {
        match self {
            Pools::Sqlite { .. } => Dialect::Sqlite,
            Pools::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Begins a transaction that writes.
    pub(crate) async fn write(&self, operation: &'static str) -> Result<Link, Error> {
        let begun = match self {
            // Taking the write lock at once means that no later statement can fail for want of it.
            Pools::Sqlite { writer, .. } => writer.begin_with("begin immediate").await.map(Link::of_sqlite),
            Pools::Postgres(pool) => pool.begin().await.map(Link::Postgres),
        };
        begun.map_err(|error| self.dialect().classify(operation, error))
    }

    /// Makes a transaction that writes durable.
    pub(crate) async fn commit(&self, link: Link, operation: &'static str) -> Result<(), Error> {
        let bytes = link.bytes();
        link.commit(operation).await?;
        if let Pools::Sqlite { log, .. } = self {
            log.committed(bytes);
        }
        Ok(())
    }

    /// Ends all connections in order.
    pub(crate) async fn close(&self) {
        match self {
            Pools::Sqlite { writer, readers, log } => {
                log.stop().await;
                readers.close().await;
                writer.close().await;
            }
            Pools::Postgres(pool) => pool.close().await,
        }
    }

    /// Begins a transaction that reads one consistent view.
    pub(crate) async fn read(&self, operation: &'static str) -> Result<Link, Error> {
        let begun = match self {
            Pools::Sqlite { readers, .. } => readers.begin().await.map(Link::of_sqlite),
            Pools::Postgres(pool) => {
                pool.begin_with("begin isolation level repeatable read read only").await.map(Link::Postgres)
            }
        };
        begun.map_err(|error| self.dialect().classify(operation, error))
    }
}

/// An argument of a statement.
#[derive(Debug)]
pub(crate) enum Arg {
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Arg {
    const fn len(&self) -> usize {
        match self {
            Arg::Int(_) => size_of::<i64>(),
            Arg::Text(text) => text.len(),
            Arg::Bytes(bytes) => bytes.len(),
        }
    }

    /// A number that the program keeps unsigned.
    pub(crate) fn count(value: u64) -> Result<Self, Error> {
        i64::try_from(value)
            .map(Arg::Int)
            .map_err(|_| Error::invalid(format!("the number {value} is too large for the database")))
    }

    /// A set of rows or texts, as JSON.
    pub(crate) fn json<T: Serialize>(value: &[T]) -> Result<Self, Error> {
        serde_json::to_string(value)
            .map(Arg::Text)
            .map_err(|error| Error::invalid(format!("rows have no JSON: {error}")))
    }
}

macro_rules! bound {
    ($sql:expr, $args:expr) => {{
        let mut query = sqlx::query(AssertSqlSafe($sql));
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

/// An open transaction. Dropping it rolls back.
pub(crate) enum Link {
    /// With the number of bytes of all arguments so far.
    Sqlite(Transaction<'static, Sqlite>, u64),
    Postgres(Transaction<'static, Postgres>),
}

impl Link {
    const fn of_sqlite(tx: Transaction<'static, Sqlite>) -> Self {
        Link::Sqlite(tx, 0)
    }

    const fn bytes(&self) -> u64 {
        match self {
            Link::Sqlite(_, bytes) => *bytes,
            Link::Postgres(_) => 0,
        }
    }

    fn count(&mut self, args: &[Arg]) {
        if let Link::Sqlite(_, bytes) = self {
            *bytes += args.iter().map(|arg| arg.len() as u64).sum::<u64>();
        }
    }

    /// Which database.
    pub(crate) const fn dialect(&self) -> Dialect {
        match self {
            Link::Sqlite(..) => Dialect::Sqlite,
            Link::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Runs a statement; answers the number of rows that it changed.
    pub(crate) async fn run(
        &mut self,
        operation: &'static str,
        sql: String,
        args: Vec<Arg>,
    ) -> Result<u64, Error> {
        self.count(&args);
        let done = match self {
            Link::Sqlite(tx, _) => {
                bound!(sql, args).execute(&mut **tx).await.map(|done| done.rows_affected())
            }
            Link::Postgres(tx) => bound!(sql, args).execute(&mut **tx).await.map(|done| done.rows_affected()),
        };
        done.map_err(|error| self.dialect().classify(operation, error))
    }

    /// Runs a statement that gives rows.
    pub(crate) async fn fetch(
        &mut self,
        operation: &'static str,
        sql: String,
        args: Vec<Arg>,
    ) -> Result<Vec<Record>, Error> {
        self.count(&args);
        let found = match self {
            Link::Sqlite(tx, _) => bound!(sql, args)
                .fetch_all(&mut **tx)
                .await
                .map(|rows| rows.into_iter().map(Record::Sqlite).collect()),
            Link::Postgres(tx) => bound!(sql, args)
                .fetch_all(&mut **tx)
                .await
                .map(|rows| rows.into_iter().map(Record::Postgres).collect()),
        };
        found.map_err(|error| self.dialect().classify(operation, error))
    }

    /// Runs several statements without arguments.
    pub(crate) async fn script(&mut self, operation: &'static str, sql: String) -> Result<(), Error> {
        let done = match self {
            Link::Sqlite(tx, _) => sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await.map(|_| ()),
            Link::Postgres(tx) => sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await.map(|_| ()),
        };
        done.map_err(|error| self.dialect().classify(operation, error))
    }

    /// Makes the transaction durable.
    pub(crate) async fn commit(self, operation: &'static str) -> Result<(), Error> {
        let dialect = self.dialect();
        let done = match self {
            Link::Sqlite(tx, _) => tx.commit().await,
            Link::Postgres(tx) => tx.commit().await,
        };
        done.map_err(|error| dialect.classify(operation, error))
    }
}

/// A row of an answer.
pub(crate) enum Record {
    Sqlite(sqlx::sqlite::SqliteRow),
    Postgres(sqlx::postgres::PgRow),
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self, column: usize) -> Result<$type, Error> {
            let (dialect, value) = match self {
                Record::Sqlite(row) => (Dialect::Sqlite, row.try_get(column)),
                Record::Postgres(row) => (Dialect::Postgres, row.try_get(column)),
            };
            value.map_err(|error| dialect.classify("read a column", error))
        }
    )*};
}

impl Record {
    getters! {
        /// An integer.
        int: i64;
        /// A text.
        text: String;
        /// Bytes.
        bytes: Vec<u8>;
    }

    /// An integer that the program keeps unsigned.
    pub(crate) fn count(&self, column: usize) -> Result<u64, Error> {
        let value = self.int(column)?;
        u64::try_from(value).map_err(|_| Error::corrupt(format!("the count {value} is negative")))
    }
}
