//! The aggregates: one file each. A file names the table, its columns and constraints, and which of its rows a restart
//! needs. The tables themselves are made by the migrations.

mod approval;
mod artifact;
mod attempt;
mod channel;
mod delivery;
pub(crate) mod demand;
mod device;
mod effect;
mod environment;
mod job;
pub(crate) mod lease;
mod ledger;
mod pipeline;
mod pool;
mod runner;
mod site;
mod token;

use crate::Error;
use crate::table::{self, Aggregate, Table};
use forgeyard_model::Timestamp;
use forgeyard_model::approval::{Acceptance, ConfigVersion, HeadApproval};
use forgeyard_model::artifact::Artifact;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::channel::Channel;
use forgeyard_model::commit::Row;
use forgeyard_model::delivery::Delivery;
use forgeyard_model::demand::Demand;
use forgeyard_model::device::Device;
use forgeyard_model::effect::PendingEffect;
use forgeyard_model::environment::Environment;
use forgeyard_model::job::Job;
use forgeyard_model::lease::Lease;
use forgeyard_model::ledger::LedgerRow;
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::pool::PoolRecord;
use forgeyard_model::principal::ApiToken;
use forgeyard_model::runner::Runner;
use forgeyard_model::site::Site;
use serde_json::Value;

macro_rules! aggregates {
    ($($variant:ident: $type:ty;)*) => {
        /// All tables, parents before children.
        pub(crate) const TABLES: &[Table] = &[$(<$type as Aggregate>::TABLE,)*];

        /// Values of the further columns of a row.
        pub(crate) fn cells(row: &Row) -> Vec<Value> {
            match row { $(Row::$variant(row) => row.cells(),)* }
        }

        /// Whether constraints among live rows hold for a row.
        #[cfg_attr(not(feature = "twin"), allow(dead_code, reason = "only the twin asks"))]
        pub(crate) fn live(row: &Row) -> bool {
            match row { $(Row::$variant(row) => row.live(),)* }
        }

        /// When a row ended.
        #[cfg_attr(not(feature = "twin"), allow(dead_code, reason = "only the twin asks"))]
        pub(crate) fn ended_at(row: &Row) -> Option<Timestamp> {
            match row { $(Row::$variant(row) => row.ended_at(),)* }
        }

        /// The row as JSON.
        pub(crate) fn encode(row: &Row) -> Result<String, serde_json::Error> {
            match row { $(Row::$variant(row) => serde_json::to_string(row),)* }
        }

        /// Reads a row of a kind.
        pub(crate) fn decode(kind: &str, version: i64, data: &str) -> Result<Row, Error> {
            match kind {
                $(kind if kind == <$type as Aggregate>::TABLE.kind => table::decode::<$type>(version, data),)*
                other => Err(unknown(other)),
            }
        }
    };
}

aggregates! {
    Site: Site;
    Device: Device;
    Delivery: Delivery;
    Demand: Demand;
    Pipeline: Pipeline;
    Job: Job;
    Runner: Runner;
    Attempt: Attempt;
    Lease: Lease;
    Artifact: Artifact;
    Channel: Channel;
    Environment: Environment;
    Effect: PendingEffect;
    Token: ApiToken;
    Ledger: LedgerRow;
    Pool: PoolRecord;
    Approval: HeadApproval;
    Acceptance: Acceptance;
    Config: ConfigVersion;
}

fn unknown(kind: &str) -> Error {
    Error::invalid(format!("there is no kind of row called `{kind}`"))
}

/// The table of a kind and its place in [`TABLES`].
pub(crate) fn table(kind: &str) -> Result<(usize, &'static Table), Error> {
    TABLES.iter().enumerate().find(|(_, table)| table.kind == kind).ok_or_else(|| unknown(kind))
}

/// Things that a row refers to, with the constraint that demands that they exist.
pub(crate) fn references(table: &Table, row: &Row) -> Vec<(&'static str, &'static str, String)> {
    let cells = if table.references.is_empty() { Vec::new() } else { cells(row) };
    let mut found = Vec::new();
    for reference in table.references {
        let cell = table.columns.iter().zip(&cells).find(|(column, _)| column.name == reference.column);
        if let Some((_, Value::String(key))) = cell {
            found.push((reference.name, reference.parent, key.clone()));
        }
    }
    if let Row::Lease(lease) = row {
        found.extend(lease.devices.iter().map(|device| (lease::DEVICE_EXISTS, "device", device.to_string())));
    }
    found
}

/// Whether two versions of a row surely have the same [`claims`]. It may say `false` too often.
#[cfg(feature = "twin")]
pub(crate) fn claim_alike(old: &Row, new: &Row) -> bool {
    match (old, new) {
        (Row::Job(old), Row::Job(new)) => old.owner == new.owner && old.key == new.key,
        (Row::Demand(old), Row::Demand(new)) => {
            old.job == new.job && old.repository.forge == new.repository.forge
        }
        (Row::Attempt(old), Row::Attempt(new)) => {
            let claim = |row: &Attempt| (row.job, row.fence, row.runner, row.state.live());
            claim(old) == claim(new)
        }
        (Row::Site(old), Row::Site(new)) => old.name == new.name,
        _ => false,
    }
}

/// What only one row of a table may have: constraint and value.
#[cfg(feature = "twin")]
pub(crate) fn claims(table: &Table, row: &Row) -> Vec<(&'static str, String)> {
    let cells = if table.uniques.is_empty() { Vec::new() } else { cells(row) };
    let mut found = Vec::new();
    for unique in table.uniques {
        if unique.live_only && !live(row) {
            continue;
        }
        let values: Vec<&Value> = unique
            .columns
            .iter()
            .filter_map(|name| table.columns.iter().zip(&cells).find(|(column, _)| column.name == *name))
            .map(|(_, cell)| cell)
            .collect();
        // As in SQL, what is not there is like nothing else.
        if values.iter().any(|value| value.is_null()) {
            continue;
        }
        let values: Vec<String> = values.into_iter().map(Value::to_string).collect();
        found.push((unique.name, values.join(",")));
    }
    if let Row::Lease(lease) = row
        && lease.state.live()
    {
        found.extend(lease.devices.iter().map(|device| (lease::ONE_LIVE_PER_DEVICE, device.to_string())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_children_and_columns_exist() {
        for (place, table) in TABLES.iter().enumerate() {
            for reference in table.references {
                assert!(super::table(reference.parent).unwrap().0 < place, "{}", reference.name);
                assert!(table.columns.iter().any(|column| column.name == reference.column));
            }
            for unique in table.uniques {
                for column in unique.columns {
                    assert!(table.columns.iter().any(|known| known.name == *column), "{}", unique.name);
                }
            }
        }
    }
}
