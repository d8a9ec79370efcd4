//! Writing a batch: one transaction, a fixed number of statements per table whatever the size of the batch.
//!
//! Within a table the updates come before the inserts, so that a row which ends makes room for its successor before
//! the unique indexes look. References between tables are checked at the end of the transaction.

use crate::Error;
use crate::aggregate::lease;
use crate::dialect::SOME_REFERENCE;
use crate::epoch;
use crate::ledger::{event, journal, usage};
use crate::link::{Arg, Link, Pools};
use crate::store::Batch;
use crate::table::{Column, Table, int, text};
use crate::write::{JOURNAL_GAPLESS, Plan, Wire, Write, first_seq};
use bytes::Bytes;
use std::collections::HashSet;

const COMMIT: &str = "commit a batch";
const DELIVERY_EXISTS: &str = "delivery_body_delivery_exists";

/// Columns that every aggregate table has, as they travel.
const SHARED: [Column; 6] =
    [text("key"), int("expected"), int("generation"), int("v"), text("data"), int("updated_at")];

/// Makes a batch durable.
pub(crate) async fn commit(pools: &Pools, batch: &Batch) -> Result<(), Error> {
    let plan = Plan::of(batch)?;
    let first = first_seq(batch)?;
    match attempt(pools, batch, &plan, first).await {
        Err(Error::Constraint { name }) if name == SOME_REFERENCE => {
            let name = broken_reference(pools, batch, &plan).await?;
            Err(Error::Constraint { name })
        }
        outcome => outcome,
    }
}

async fn attempt(pools: &Pools, batch: &Batch, plan: &Plan<'_>, first: Option<u64>) -> Result<(), Error> {
    let mut link = pools.write(COMMIT).await?;
    let last = epoch::guard(&mut link, batch.epoch).await?;
    if first.is_some_and(|first| first > last + 1) {
        return Err(Error::Constraint { name: JOURNAL_GAPLESS.to_owned() });
    }
    journal::write(&mut link, batch).await?;
    event::write(&mut link, batch).await?;
    usage::write(&mut link, batch).await?;
    for (table, writes) in &plan.tables {
        let (inserts, updates): (Vec<_>, Vec<_>) = writes.iter().partition(|write| write.expected == 0);
        write_rows(&mut link, table, &updates, update_sql).await?;
        write_rows(&mut link, table, &inserts, insert_sql).await?;
        if table.kind == "lease" {
            lease::write_devices(&mut link, writes).await?;
        }
    }
    write_bodies(&mut link, &batch.bodies).await?;
    pools.commit(link, COMMIT).await
}

/// Writes rows of one table; the first whose generation is not as expected is a conflict.
async fn write_rows(
    link: &mut Link,
    table: &'static Table,
    writes: &[&Write<'_>],
    sql: fn(&Table, &str) -> String,
) -> Result<(), Error> {
    if writes.is_empty() {
        return Ok(());
    }
    let wires = writes.iter().map(|write| Wire::of(table, write)).collect::<Result<Vec<_>, _>>()?;
    let columns: Vec<Column> = SHARED.iter().chain(table.columns).copied().collect();
    let sql = sql(table, &link.dialect().rows("$1", &columns));
    let written = link.fetch(COMMIT, sql, vec![Arg::json(&wires)?]).await?;
    if written.len() == writes.len() {
        return Ok(());
    }
    let written = written.iter().map(|row| row.text(0)).collect::<Result<HashSet<_>, _>>()?;
    match writes.iter().find(|write| !written.contains(&write.key)) {
        Some(write) => Err(Error::Conflict { kind: table.kind, key: write.key.clone() }),
        None => Ok(()),
    }
}

fn insert_sql(table: &Table, rows: &str) -> String {
    let kind = table.kind;
    let names = |prefix: &str| -> String {
        table.columns.iter().map(|column| format!(", {prefix}{}", column.name)).collect()
    };
    let (into, from) = (names(""), names("n.n_"));
    // `where true` keeps SQLite from reading `on conflict` as a join condition.
    format!(
        "insert into {kind} (key, generation, v, data, updated_at{into}) \
         select n.n_key, n.n_generation, n.n_v, n.n_data, n.n_updated_at{from} from {rows} where true \
         on conflict (key) do nothing returning key"
    )
}

fn update_sql(table: &Table, rows: &str) -> String {
    let kind = table.kind;
    let sets: String = table.columns.iter().map(|column| format!(", {0} = n.n_{0}", column.name)).collect();
    format!(
        "update {kind} set generation = n.n_generation, v = n.n_v, data = n.n_data, \
         updated_at = n.n_updated_at{sets} from {rows} \
         where key = n.n_key and generation = n.n_expected returning key"
    )
}

/// Numbers of bodies for which there is a statement: bytes do not travel in JSON, so each has arguments of its own.
const BODIES: [usize; 3] = [32, 8, 1];

async fn write_bodies(link: &mut Link, mut bodies: &[(String, Bytes)]) -> Result<(), Error> {
    for count in BODIES {
        while let Some((these, rest)) = bodies.split_at_checked(count) {
            let values: Vec<String> =
                (0..count).map(|place| format!("(${}, ${})", 2 * place + 1, 2 * place + 2)).collect();
            let values = values.join(", ");
            let sql = format!(
                "insert into delivery_body (guid, body) values {values} on conflict (guid) do nothing"
            );
            let args = these
                .iter()
                .flat_map(|(guid, body)| [Arg::Text(guid.clone()), Arg::Bytes(body.to_vec())])
                .collect();
            link.run(COMMIT, sql, args).await?;
            bodies = rest;
        }
    }
    Ok(())
}

/// Which reference of a refused batch is broken; SQLite does not say.
async fn broken_reference(pools: &Pools, batch: &Batch, plan: &Plan<'_>) -> Result<String, Error> {
    let mut link = pools.read(COMMIT).await?;
    let mut references = plan.outside_references();
    let written = |guid: &str| {
        plan.tables
            .iter()
            .any(|(table, writes)| table.kind == "delivery" && writes.iter().any(|write| write.key == guid))
    };
    for (guid, _) in batch.bodies.iter().filter(|(guid, _)| !written(guid)) {
        references.push((DELIVERY_EXISTS, "delivery", guid.clone()));
    }
    for (name, parent, key) in references {
        let sql = format!("select 1 from {parent} where key = $1");
        if link.fetch(COMMIT, sql, vec![Arg::Text(key)]).await?.is_empty() {
            return Ok(name.to_owned());
        }
    }
    Ok(SOME_REFERENCE.to_owned())
}
