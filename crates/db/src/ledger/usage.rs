//! The usage facts.

use super::{decode, encode};
use crate::Error;
use crate::link::{Arg, Link};
use crate::store::Batch;
use crate::table::{DATA_VERSION, int, text};
use forgeyard_model::Timestamp;
use forgeyard_model::commit::UsageFact;
use serde_json::json;

/// Appends the usage facts of a batch.
pub(crate) async fn write(link: &mut Link, batch: &Batch) -> Result<(), Error> {
    let mut rows = Vec::new();
    for commit in &batch.commits {
        for (place, fact) in commit.usage.iter().enumerate() {
            rows.push(json!({
                "n_seq": commit.journal.seq,
                "n_place": place,
                "n_at": fact.at,
                "n_v": DATA_VERSION,
                "n_data": encode("a usage fact", fact)?,
            }));
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [int("seq"), int("place"), int("at"), int("v"), text("data")];
    let from = link.dialect().rows("$1", &columns);
    let sql = format!(
        "insert into usage (seq, place, at, v, data) \
         select n.n_seq, n.n_place, n.n_at, n.n_v, n.n_data from {from}"
    );
    link.run("write usage facts", sql, vec![Arg::json(&rows)?]).await?;
    Ok(())
}

/// Facts of a span of time, its end not included.
pub(crate) async fn read(
    link: &mut Link,
    since: Timestamp,
    until: Timestamp,
) -> Result<Vec<UsageFact>, Error> {
    let sql = "select v, data from usage where at >= $1 and at < $2 order by seq, place".to_owned();
    let args = vec![Arg::Int(since.as_micros()), Arg::Int(until.as_micros())];
    let found = link.fetch("read usage facts", sql, args).await?;
    found.iter().map(|row| decode("a usage fact", row.int(0)?, &row.text(1)?)).collect()
}
