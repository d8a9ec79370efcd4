//! Reading rows: everything that the core needs after a restart, single rows, pages of older ones.

use crate::Error;
use crate::aggregate::{self, TABLES};
use crate::epoch;
use crate::ledger::journal;
use crate::link::{Arg, Link};
use crate::store::{Keep, Snapshot};
use forgeyard_model::commit::Row;
use forgeyard_model::{DemandId, ForgeName};
use std::collections::HashSet;

const LOAD: &str = "load the farm";
const READ: &str = "read rows";

/// Pipelines and demands that are loaded: those that have not ended or ended lately, those to which something live belongs, and
/// those whose launch another demand has now.
const OWNERS: &str = "select key from pipeline where ended_at is null or ended_at >= $1 \
    union select key from demand where rests_at is null or rests_at >= $2 \
    union select coalesce(pipeline, demand) from job where ended_at is null \
    union select owner from attempt where ended_at is null \
    union select pipeline from environment where ended_at is null \
    union select job.demand from demand join job on job.key = demand.launch \
          where demand.ended_at is null and job.demand is not null \
    union select attempt.owner from attempt \
          join runner on runner.attempt = attempt.key where runner.ended_at is null \
    union select attempt.owner from attempt \
          join lease on lease.attempt = attempt.key where lease.ended_at is null \
    union select pipeline from effect where ended_at is null and pipeline is not null \
    union select demand from effect where ended_at is null and demand is not null \
    union select coalesce(job.pipeline, job.demand) from job \
          join effect on effect.job = job.key where effect.ended_at is null \
    union select environment.pipeline from environment \
          join effect on effect.environment = environment.key where effect.ended_at is null";

/// The newest of the demands of which only the number is loaded. An index holds all that is asked for.
const NUMBERS: &str = "select forge, job from demand where rests_at >= $1 and rests_at < $2 \
    order by rests_at desc limit $3";

/// Everything that the core needs after a restart.
pub(crate) async fn load(link: &mut Link, keep: Keep) -> Result<Snapshot, Error> {
    let (since, demands_since) = (keep.since.as_micros(), keep.demands_since.as_micros());
    let epoch = epoch::current(link).await?;
    let (last_seq, last_at) = journal::last(link).await?;
    let args = vec![Arg::Int(since), Arg::Int(demands_since)];
    let found = link.fetch(LOAD, OWNERS.to_owned(), args).await?;
    let owners = found.iter().map(|row| row.text(0)).collect::<Result<Vec<_>, _>>()?;
    let set = link.dialect().texts("$2");
    let mut rows = Vec::new();
    for table in TABLES {
        let wanted = table.wanted.replace("{since}", "$1").replace("{owners}", &set);
        // Every statement uses both arguments, because PostgreSQL refuses arguments that are not used.
        let sql = format!(
            "select v, data from {} where ({wanted}) \
             and cast($1 as bigint) is not null and cast($2 as text) is not null order by key",
            table.kind
        );
        let found = link.fetch(LOAD, sql, vec![Arg::Int(since), Arg::json(&owners)?]).await?;
        for row in &found {
            rows.push(aggregate::decode(table.kind, row.int(0)?, &row.text(1)?)?);
        }
    }
    let args = vec![Arg::Int(since), Arg::Int(demands_since), Arg::Int(keep.numbers.into())];
    let mut numbers = Vec::new();
    for row in link.fetch(LOAD, NUMBERS.to_owned(), args).await?.iter().rev() {
        numbers.push((row.text(0)?, row.text(1)?));
    }
    let numbers = numbers_of(numbers, &rows)?;
    Ok(Snapshot { rows, numbers, last_seq, last_at, epoch })
}

/// Reads the numbers of jobs, those apart whose demands are loaded for another reason.
fn numbers_of(found: Vec<(String, String)>, rows: &[Row]) -> Result<Vec<(ForgeName, u64)>, Error> {
    let loaded: HashSet<(&str, u64)> = rows
        .iter()
        .filter_map(|row| match row {
            Row::Demand(demand) => Some((demand.repository.forge.as_str(), demand.job)),
            _ => None,
        })
        .collect();
    let mut numbers = Vec::with_capacity(found.len());
    for (forge, job) in found {
        let wrong = || Error::corrupt(format!("job `{job}` of the forge `{forge}` is none"));
        let number: u64 = job.parse().map_err(|_| wrong())?;
        if !loaded.contains(&(forge.as_str(), number)) {
            numbers.push((forge.parse().map_err(|_| wrong())?, number));
        }
    }
    Ok(numbers)
}

/// One row.
pub(crate) async fn row(link: &mut Link, kind: &str, key: &str) -> Result<Option<Row>, Error> {
    let (_, table) = aggregate::table(kind)?;
    let sql = format!("select v, data from {} where key = $1", table.kind);
    let found = link.fetch(READ, sql, vec![Arg::Text(key.to_owned())]).await?;
    found.first().map(|row| aggregate::decode(kind, row.int(0)?, &row.text(1)?)).transpose()
}

/// A page of rows, keys descending.
pub(crate) async fn list(
    link: &mut Link,
    kind: &str,
    before_key: Option<&str>,
    limit: u32,
) -> Result<Vec<Row>, Error> {
    let (_, table) = aggregate::table(kind)?;
    let mut args = vec![Arg::Int(limit.into())];
    let condition = match before_key {
        None => "",
        Some(key) => {
            args.push(Arg::Text(key.to_owned()));
            "where key < $2"
        }
    };
    let sql = format!("select v, data from {} {condition} order by key desc limit $1", table.kind);
    let found = link.fetch(READ, sql, args).await?;
    found.iter().map(|row| aggregate::decode(kind, row.int(0)?, &row.text(1)?)).collect()
}

/// The demand of a job of a forge.
pub(crate) async fn demand_of(link: &mut Link, forge: &ForgeName, job: u64) -> Result<Option<Row>, Error> {
    let sql = "select v, data from demand where forge = $1 and job = $2".to_owned();
    let args = vec![Arg::Text(forge.to_string()), Arg::Text(job.to_string())];
    let found = link.fetch(READ, sql, args).await?;
    found.first().map(|row| aggregate::decode("demand", row.int(0)?, &row.text(1)?)).transpose()
}

/// What belongs to a demand, and how it is found. Each of these conditions has an index.
const OF_DEMAND: [(&str, &str); 6] = [
    ("demand", "key = $1"),
    ("job", "demand = $1"),
    ("attempt", "owner = $1"),
    ("runner", "attempt in (select key from attempt where owner = $1)"),
    ("lease", "attempt in (select key from attempt where owner = $1)"),
    ("effect", "demand = $1"),
];

/// A demand with everything that belongs to it.
pub(crate) async fn of_demand(link: &mut Link, demand: DemandId) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (kind, belongs) in OF_DEMAND {
        let sql = format!("select v, data from {kind} where {belongs} order by key");
        for row in link.fetch(READ, sql, vec![Arg::Text(demand.to_string())]).await? {
            rows.push(aggregate::decode(kind, row.int(0)?, &row.text(1)?)?);
        }
    }
    Ok(rows)
}
