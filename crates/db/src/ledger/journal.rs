//! The journal: one entry for each accepted input, numbered from 1 without gaps.

use super::{decode, encode};
use crate::Error;
use crate::link::{Arg, Link};
use crate::store::Batch;
use crate::table::{DATA_VERSION, int, text};
use forgeyard_model::Timestamp;
use forgeyard_model::input::JournalEntry;
use serde_json::json;

const WRITE: &str = "write the journal";
const READ: &str = "read the journal";

/// Appends the entries of a batch.
pub(crate) async fn write(link: &mut Link, batch: &Batch) -> Result<(), Error> {
    let mut rows = Vec::with_capacity(batch.commits.len());
    for commit in &batch.commits {
        let entry = &commit.journal;
        rows.push(json!({
            "n_seq": entry.seq,
            "n_at": entry.at,
            "n_config": entry.config,
            "n_v": DATA_VERSION,
            "n_data": encode("a journal entry", entry)?,
        }));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [int("seq"), int("at"), text("config"), int("v"), text("data")];
    let from = link.dialect().rows("$1", &columns);
    let sql = format!(
        "insert into journal (seq, at, config, v, data) \
         select n.n_seq, n.n_at, n.n_config, n.n_v, n.n_data from {from}"
    );
    link.run(WRITE, sql, vec![Arg::json(&rows)?]).await?;
    Ok(())
}

/// Entries from a position on.
pub(crate) async fn read(link: &mut Link, from_seq: u64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
    let sql = "select v, data from journal where seq >= $1 order by seq limit $2".to_owned();
    let found = link.fetch(READ, sql, vec![Arg::count(from_seq)?, Arg::Int(limit.into())]).await?;
    found.iter().map(|row| decode("a journal entry", row.int(0)?, &row.text(1)?)).collect()
}

/// Position and time of the last entry.
pub(crate) async fn last(link: &mut Link) -> Result<(u64, Timestamp), Error> {
    let sql = "select seq, at from journal order by seq desc limit 1".to_owned();
    match link.fetch(READ, sql, Vec::new()).await?.first() {
        None => Ok((0, Timestamp::default())),
        Some(row) => Ok((row.count(0)?, Timestamp::from_micros(row.int(1)?))),
    }
}
