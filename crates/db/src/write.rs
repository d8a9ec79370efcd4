//! From a batch to what is written: rows that are written several times are folded into one write each.

use crate::Error;
use crate::aggregate;
use crate::store::Batch;
use crate::table::{DATA_VERSION, Table};
use forgeyard_model::Timestamp;
use forgeyard_model::commit::Row;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::{HashMap, HashSet};

/// One row to write.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    /// Its key.
    pub(crate) key: String,
    /// Generation that the stored row must have; 0 = there must be no row.
    pub(crate) expected: u64,
    /// The row as it shall be.
    pub(crate) row: &'a Row,
    /// Time of the decision.
    pub(crate) at: Timestamp,
}

/// The writes of a batch by table, in the order of [`aggregate::TABLES`]; within a table in order of first writing.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) tables: Vec<(&'static Table, Vec<Write<'a>>)>,
}

impl<'a> Plan<'a> {
    /// Folds the batch. Generations that do not follow each other within the batch are a conflict.
    pub(crate) fn of(batch: &'a Batch) -> Result<Self, Error> {
        let mut tables: Vec<(&'static Table, Vec<Write<'a>>)> =
            aggregate::TABLES.iter().map(|table| (table, Vec::new())).collect();
        for event in batch.commits.iter().flat_map(|commit| &commit.events) {
            printable("event", &event.subject)?;
        }
        for (guid, _) in &batch.bodies {
            printable("delivery", guid)?;
        }
        let mut places: HashMap<(usize, String), usize> = HashMap::new();
        for commit in &batch.commits {
            for row in &commit.rows {
                let (number, _) = aggregate::table(row.kind())?;
                let key = row.key();
                printable(row.kind(), &key)?;
                let conflict = || Error::Conflict { kind: row.kind(), key: row.key() };
                let Some((_, writes)) = tables.get_mut(number) else { return Err(conflict()) };
                let place = places.entry((number, key.clone())).or_insert(writes.len());
                if let Some(write) = writes.get_mut(*place) {
                    if row.generation() != write.row.generation() + 1 {
                        return Err(conflict());
                    }
                    write.row = row;
                    write.at = commit.journal.at;
                } else {
                    let expected = row.generation().checked_sub(1).ok_or_else(conflict)?;
                    writes.push(Write { key, expected, row, at: commit.journal.at });
                }
            }
        }
        tables.retain(|(_, writes)| !writes.is_empty());
        Ok(Self { tables })
    }

    /// Things that the batch refers to and does not write itself: constraint, kind and key of what must exist.
    pub(crate) fn outside_references(&self) -> Vec<(&'static str, &'static str, String)> {
        let written: HashSet<(&str, &str)> = self
            .tables
            .iter()
            .flat_map(|(table, writes)| writes.iter().map(|write| (table.kind, write.key.as_str())))
            .collect();
        let mut found = Vec::new();
        for (table, writes) in &self.tables {
            for write in writes {
                for (name, parent, key) in aggregate::references(table, write.row) {
                    if !written.contains(&(parent, key.as_str())) {
                        found.push((name, parent, key));
                    }
                }
            }
        }
        found
    }
}

/// Refuses what PostgreSQL cannot store in a text, before it could stop a whole batch there.
pub(crate) fn printable(what: &str, text: &str) -> Result<(), Error> {
    if text.contains('\0') {
        return Err(Error::invalid(format!("the name of a {what} holds a zero byte")));
    }
    Ok(())
}

/// Checks that journal positions follow each other within the batch; answers the first.
pub(crate) fn first_seq(batch: &Batch) -> Result<Option<u64>, Error> {
    let mut last: Option<u64> = None;
    for commit in &batch.commits {
        let seq = commit.journal.seq;
        if last.is_some_and(|last| seq != last + 1) {
            return Err(Error::Constraint { name: JOURNAL_GAPLESS.to_owned() });
        }
        last = Some(seq);
    }
    Ok(batch.commits.first().map(|commit| commit.journal.seq))
}

/// Constraint: the journal has no gaps. Checked in the transaction, under the lock of the core's row.
pub(crate) const JOURNAL_GAPLESS: &str = "journal_seq_gapless";

/// A write as one JSON object, in the shape that [`crate::dialect::Dialect::rows`] reads.
pub(crate) struct Wire<'a> {
    pub(crate) table: &'static Table,
    pub(crate) write: &'a Write<'a>,
    pub(crate) data: String,
}

impl<'a> Wire<'a> {
    pub(crate) fn of(table: &'static Table, write: &'a Write<'a>) -> Result<Self, Error> {
        let data = aggregate::encode(write.row).map_err(|error| {
            Error::invalid(format!("the {} `{}` has no JSON: {error}", table.kind, write.key))
        })?;
        Ok(Self { table, write, data })
    }
}

impl Serialize for Wire<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("n_key", &self.write.key)?;
        map.serialize_entry("n_expected", &self.write.expected)?;
        map.serialize_entry("n_generation", &self.write.row.generation())?;
        map.serialize_entry("n_v", &DATA_VERSION)?;
        map.serialize_entry("n_data", &self.data)?;
        map.serialize_entry("n_updated_at", &self.write.at)?;
        for (column, cell) in self.table.columns.iter().zip(aggregate::cells(self.write.row)) {
            map.serialize_entry(&format_args!("n_{}", column.name), &cell)?;
        }
        map.end()
    }
}
