//! Description of the aggregate tables, from which SQL is built and by which the twin enforces the same constraints.
//!
//! Every aggregate table has the columns `key`, `generation`, `v` (version of the JSON in `data`), `data` and
//! `updated_at`, and further columns only where a constraint or a query needs them. The row is in `data`; the other
//! columns are copies that are written from it in the same statement.

use crate::Error;
use forgeyard_model::Timestamp;
use forgeyard_model::commit::Row;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Version of the JSON that is written.
pub(crate) const DATA_VERSION: i64 = 1;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// `text`.
    Text,
    /// `bigint`.
    Int,
}

/// A column that a constraint or a query needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) of: Type,
}

/// A text column.
pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, of: Type::Text }
}

/// An integer column.
pub(crate) const fn int(name: &'static str) -> Column {
    Column { name, of: Type::Int }
}

/// A unique constraint of the schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unique {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// Holds only among rows that are live.
    #[cfg_attr(not(feature = "twin"), allow(dead_code, reason = "only the twin asks"))]
    pub(crate) live_only: bool,
}

/// A foreign key of the schema, checked at the end of the transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference {
    pub(crate) name: &'static str,
    pub(crate) column: &'static str,
    pub(crate) parent: &'static str,
}

/// One aggregate table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// Its name, which is the kind of its rows.
    pub(crate) kind: &'static str,
    /// Its further columns.
    pub(crate) columns: &'static [Column],
    pub(crate) uniques: &'static [Unique],
    pub(crate) references: &'static [Reference],
    /// Which rows a restart needs: a condition with `{since}` for the time and `{owners}` for the set of pipelines and
    /// demands that are loaded.
    pub(crate) wanted: &'static str,
}

/// What each aggregate says about its table.
pub(crate) trait Aggregate: DeserializeOwned + Into<Row> {
    /// The table.
    const TABLE: Table;

    /// Values of the further columns, in their order.
    fn cells(&self) -> Vec<Value>;

    /// Whether constraints among live rows hold for it.
    fn live(&self) -> bool {
        true
    }

    /// When it ended, for aggregates that end.
    fn ended_at(&self) -> Option<Timestamp> {
        None
    }
}

/// A value of a text column. A zero byte, which PostgreSQL cannot store, is shown as the replacement character; in the
/// row itself it is kept, because JSON escapes it.
pub(crate) fn shown(value: impl ToString) -> Value {
    Value::String(value.to_string().replace('\0', "\u{fffd}"))
}

/// A value of a text column that may be empty.
pub(crate) fn maybe(value: Option<impl ToString>) -> Value {
    value.map_or(Value::Null, shown)
}

/// A value of a time column that may be empty.
pub(crate) fn time(value: Option<Timestamp>) -> Value {
    value.map_or(Value::Null, |at| at.as_micros().into())
}

/// Reads a stored row.
pub(crate) fn decode<A: Aggregate>(version: i64, data: &str) -> Result<Row, Error> {
    let kind = A::TABLE.kind;
    if version != DATA_VERSION {
        return Err(Error::corrupt(format!(
            "a row of `{kind}` has data version {version}, this program reads version {DATA_VERSION}"
        )));
    }
    serde_json::from_str::<A>(data)
        .map(Into::into)
        .map_err(|error| Error::corrupt(format!("a row of `{kind}`: {error}")))
}
