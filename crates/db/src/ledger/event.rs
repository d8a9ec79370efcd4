//! The events: what changed, by whom, when. Ordered by the journal, not by the time in their ids, so that a page never
//! shows an effect before its cause.

use super::{decode, encode};
use crate::Error;
use crate::link::{Arg, Link};
use crate::store::{Batch, EventQuery};
use crate::table::{DATA_VERSION, int, text};
use forgeyard_model::commit::EventRecord;
use serde_json::json;

/// Appends the events of a batch.
pub(crate) async fn write(link: &mut Link, batch: &Batch) -> Result<(), Error> {
    let mut rows = Vec::new();
    for commit in &batch.commits {
        for (place, event) in commit.events.iter().enumerate() {
            rows.push(json!({
                "n_seq": commit.journal.seq,
                "n_place": place,
                "n_id": event.id,
                "n_at": event.at,
                "n_subject": event.subject,
                "n_v": DATA_VERSION,
                "n_data": encode("an event", event)?,
            }));
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [int("seq"), int("place"), text("id"), int("at"), text("subject"), int("v"), text("data")];
    let from = link.dialect().rows("$1", &columns);
    let sql = format!(
        "insert into event (seq, place, id, at, subject, v, data) \
         select n.n_seq, n.n_place, n.n_id, n.n_at, n.n_subject, n.n_v, n.n_data from {from}"
    );
    link.run("write events", sql, vec![Arg::json(&rows)?]).await?;
    Ok(())
}

/// A page of events, newest first.
pub(crate) async fn read(link: &mut Link, query: EventQuery) -> Result<Vec<EventRecord>, Error> {
    let mut args = vec![Arg::Int(query.limit.into())];
    let mut conditions = Vec::new();
    if let Some(subject) = query.subject {
        args.push(Arg::Text(subject));
        conditions.push(format!("subject = ${}", args.len()));
    }
    if let Some(before) = query.before {
        args.push(Arg::Text(before.to_string()));
        let place = args.len();
        conditions.push(format!("(seq, place) < (select seq, place from event where id = ${place})"));
    }
    let condition =
        if conditions.is_empty() { String::new() } else { format!("where {}", conditions.join(" and ")) };
    let sql = format!("select v, data from event {condition} order by seq desc, place desc limit $1");
    let found = link.fetch("read events", sql, args).await?;
    found.iter().map(|row| decode("an event", row.int(0)?, &row.text(1)?)).collect()
}
