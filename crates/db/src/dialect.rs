//! All differences between the two databases: spellings of SQL, and what their errors mean.
//!
//! Sets of rows travel as one JSON argument, so that a statement has the same text for any number of rows: it is
//! prepared once, and a batch needs one round trip per table.

use crate::Error;
use crate::aggregate::{self, lease};
use crate::table::{Column, Type};
use std::fmt::Write as _;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
}

impl Dialect {
    /// A table expression named `n` with one row for each object in the JSON array `argument`; the column for `name` is
    /// `n_name`.
    pub(crate) fn rows(self, argument: &str, columns: &[Column]) -> String {
        let mut sql = String::new();
        for (place, column) in columns.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let name = column.name;
            let _ = match (self, column.of) {
                (Dialect::Sqlite, _) => write!(sql, "{comma}value->>'n_{name}' as n_{name}"),
                (Dialect::Postgres, Type::Text) => write!(sql, "{comma}n_{name} text"),
                (Dialect::Postgres, Type::Int) => write!(sql, "{comma}n_{name} bigint"),
            };
        }
        match self {
            Dialect::Sqlite => format!("(select {sql} from json_each({argument})) as n"),
            Dialect::Postgres => format!("json_to_recordset({argument}::json) as n({sql})"),
        }
    }

    /// A set of texts, from the JSON array `argument`.
    pub(crate) fn texts(self, argument: &str) -> String {
        match self {
            Dialect::Sqlite => format!("(select value from json_each({argument}))"),
            Dialect::Postgres => format!("(select json_array_elements_text({argument}::json))"),
        }
    }

    /// Suffix of a `select` that keeps others from writing the row until the end of the transaction. SQLite has one
    /// writer at a time anyway.
    pub(crate) const fn for_update(self) -> &'static str {
        match self {
            Dialect::Sqlite => "",
            Dialect::Postgres => " for update",
        }
    }

    /// The database's clock, in microseconds.
    pub(crate) const fn now(self) -> &'static str {
        match self {
            Dialect::Sqlite => "cast(unixepoch('subsec') * 1000000 as integer)",
            Dialect::Postgres => "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)",
        }
    }

    /// Keeps other processes from migrating at the same time, until the end of the transaction.
    pub(crate) const fn lock_migrations(self) -> Option<&'static str> {
        match self {
            // The data folder has a lock, and the transaction is begun as a writer.
            Dialect::Sqlite => None,
            Dialect::Postgres => Some("select pg_advisory_xact_lock(7021939614083412)"),
        }
    }

    /// The text of a migration in this dialect.
    pub(crate) fn spell(self, text: &str) -> String {
        let (key, bytes) = match self {
            // Compares bytes by default.
            Dialect::Sqlite => ("text", "blob"),
            // Keys sort by bytes whatever the language of the database is.
            Dialect::Postgres => ("text collate \"C\"", "bytea"),
        };
        text.replace("{key}", key).replace("{bytes}", bytes)
    }

    /// What an error of the driver means to the caller.
    pub(crate) fn classify(self, operation: &'static str, error: sqlx::Error) -> Error {
        let unavailable = |reason: String| Error::Unavailable { operation, reason };
        match error {
            sqlx::Error::Database(database) => {
                let code = database.code().map(|code| code.into_owned()).unwrap_or_default();
                match self {
                    Dialect::Sqlite => sqlite(operation, &code, database.message()),
                    Dialect::Postgres => {
                        postgres(operation, &code, database.constraint(), database.message())
                    }
                }
            }
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::TypeNotFound { .. } => Error::corrupt(format!("{operation}: {error}")),
            sqlx::Error::PoolTimedOut => unavailable("no connection was to be had in time".to_owned()),
            other => unavailable(other.to_string()),
        }
    }
}

/// Name that SQLite gives to a broken foreign key: none. The caller finds out which it was.
pub(crate) const SOME_REFERENCE: &str = "a foreign key";

/// The meaning of SQLite's result codes; the low byte is the primary one.
fn sqlite(operation: &'static str, code: &str, message: &str) -> Error {
    let reason = message.to_owned();
    let extended: u32 = code.parse().unwrap_or(0);
    match (extended & 0xff, extended) {
        (13, _) => Error::NoSpace { operation, reason },
        (11 | 26, _) => Error::corrupt(format!("{operation}: {message}")),
        (19, 787) => Error::Constraint { name: SOME_REFERENCE.to_owned() },
        (19, 1555 | 2067) => Error::Constraint { name: sqlite_unique(message) },
        // Check constraints and triggers carry their name in the message.
        (19, _) => {
            let name = message.rsplit(": ").next().unwrap_or(message);
            Error::Constraint { name: name.to_owned() }
        }
        // Errors of the statement itself are errors of this program.
        (1, _) => Error::corrupt(format!("{operation}: {message}")),
        _ => Error::Unavailable { operation, reason },
    }
}

/// SQLite names the columns of a unique index, not the index.
fn sqlite_unique(message: &str) -> String {
    let columns = message.trim_start_matches("UNIQUE constraint failed: ");
    let own = [
        (lease::ONE_LIVE_PER_DEVICE, "lease_device.device".to_owned()),
        ("journal_seq_unique", "journal.seq".to_owned()),
        ("event_id_unique", "event.id".to_owned()),
    ];
    let of_tables = aggregate::TABLES.iter().flat_map(|table| {
        table.uniques.iter().map(move |unique| {
            let columns: Vec<String> =
                unique.columns.iter().map(|column| format!("{}.{column}", table.kind)).collect();
            (unique.name, columns.join(", "))
        })
    });
    own.into_iter()
        .chain(of_tables)
        .find(|(_, known)| known == columns)
        .map_or_else(|| columns.to_owned(), |(name, _)| name.to_owned())
}

/// The meaning of PostgreSQL's SQLSTATE classes.
fn postgres(operation: &'static str, code: &str, constraint: Option<&str>, message: &str) -> Error {
    let reason = message.to_owned();
    match code {
        "53100" => Error::NoSpace { operation, reason },
        "XX001" | "XX002" => Error::corrupt(format!("{operation}: {message}")),
        _ if code.starts_with("23") => Error::Constraint { name: constraint.unwrap_or(message).to_owned() },
        // Syntax and missing objects are errors of this program; data that cannot be cast is, too.
        _ if code.starts_with("42") || code.starts_with("22") => {
            Error::corrupt(format!("{operation}: {message}"))
        }
        // Connection, resources, operator intervention, deadlock, timeout, system: all pass.
        _ => Error::Unavailable { operation, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_is_told_from_a_lost_database() {
        assert!(matches!(sqlite("x", "13", "full"), Error::NoSpace { .. }));
        assert!(matches!(sqlite("x", "266", "disk I/O error"), Error::Unavailable { .. }));
        assert!(matches!(sqlite("x", "11", "malformed"), Error::Corrupt { .. }));
        assert!(matches!(postgres("x", "53100", None, "full"), Error::NoSpace { .. }));
        assert!(matches!(postgres("x", "57P01", None, "shutdown"), Error::Unavailable { .. }));
        assert!(matches!(postgres("x", "53300", None, "too many"), Error::Unavailable { .. }));
        assert!(matches!(postgres("x", "XX001", None, "page"), Error::Corrupt { .. }));
    }

    #[test]
    fn unique_columns_of_sqlite_are_given_their_name() {
        let name = |columns: &str| sqlite_unique(&format!("UNIQUE constraint failed: {columns}"));
        assert_eq!(name("attempt.job"), "attempt_one_live_per_job");
        assert_eq!(name("attempt.job, attempt.fence"), "attempt_job_fence_unique");
        assert_eq!(name("lease_device.device"), "lease_device_one_live");
        assert_eq!(name("odd.thing"), "odd.thing");
    }
}
