//! Logs: numbered chunks. The bytes are in the blob store; a row here makes a chunk part of the log.
//!
//! The row of a log holds how many bytes are durable. A chunk is accepted only where the log ends, so a log has no
//! gaps, and appending the same chunk twice changes nothing.

use crate::Error;
use crate::link::{Arg, Link};
use crate::store::{LogAppend, LogChunk, LogState};
use forgeyard_model::AttemptId;

const APPEND: &str = "append to a log";
const READ: &str = "read a log";

/// What is answered to a chunk that does not simply continue the log. Shared with the twin.
pub(crate) fn refusal(state: LogState, chunk: &LogChunk) -> LogAppend {
    let durable = state.durable;
    if chunk.offset.saturating_add(chunk.len) <= durable {
        LogAppend::AlreadyThere
    } else if state.complete {
        LogAppend::Closed { durable }
    } else {
        LogAppend::Gap { durable }
    }
}

/// Appends a chunk where the log ends.
pub(crate) async fn append(link: &mut Link, attempt: AttemptId, chunk: LogChunk) -> Result<LogAppend, Error> {
    let key = attempt.to_string();
    if chunk.offset == 0 {
        let sql = "insert into log (attempt, durable, complete) values ($1, 0, 0) \
                   on conflict (attempt) do nothing";
        link.run(APPEND, sql.to_owned(), vec![Arg::Text(key.clone())]).await?;
    }
    let grown = if chunk.len == 0 {
        0
    } else {
        let sql =
            "update log set durable = durable + $3 where attempt = $1 and durable = $2 and complete = 0";
        let args = vec![Arg::Text(key.clone()), Arg::count(chunk.offset)?, Arg::count(chunk.len)?];
        link.run(APPEND, sql.to_owned(), args).await?
    };
    if grown == 0 {
        return Ok(refusal(state(link, attempt).await?, &chunk));
    }
    let sql = "insert into log_chunk (attempt, position, length, digest) values ($1, $2, $3, $4)";
    let args = vec![
        Arg::Text(key),
        Arg::count(chunk.offset)?,
        Arg::count(chunk.len)?,
        Arg::Text(chunk.digest.to_string()),
    ];
    link.run(APPEND, sql.to_owned(), args).await?;
    Ok(LogAppend::Appended)
}

/// The chunks of a log, in order.
pub(crate) async fn chunks(link: &mut Link, attempt: AttemptId) -> Result<Vec<LogChunk>, Error> {
    let sql = "select position, length, digest from log_chunk where attempt = $1 order by position";
    let found = link.fetch(READ, sql.to_owned(), vec![Arg::Text(attempt.to_string())]).await?;
    found
        .iter()
        .map(|row| {
            let digest = row
                .text(2)?
                .parse()
                .map_err(|error| Error::corrupt(format!("a chunk of the log of {attempt}: {error}")))?;
            Ok(LogChunk { offset: row.count(0)?, len: row.count(1)?, digest })
        })
        .collect()
}

/// Closes a log.
pub(crate) async fn complete(link: &mut Link, attempt: AttemptId) -> Result<(), Error> {
    let sql = "insert into log (attempt, durable, complete) values ($1, 0, 1) \
               on conflict (attempt) do update set complete = 1";
    link.run("complete a log", sql.to_owned(), vec![Arg::Text(attempt.to_string())]).await?;
    Ok(())
}

/// How far a log is.
pub(crate) async fn state(link: &mut Link, attempt: AttemptId) -> Result<LogState, Error> {
    let sql = "select durable, complete from log where attempt = $1".to_owned();
    match link.fetch(READ, sql, vec![Arg::Text(attempt.to_string())]).await?.first() {
        None => Ok(LogState::default()),
        Some(row) => Ok(LogState { durable: row.count(0)?, complete: row.int(1)? == 1 }),
    }
}
