//! Logs: numbered pieces in blobs with a row each, so that any replica serves them.

use crate::app::App;
use crate::http::error::{self, HttpError};
use forgeyard_db::{LogAppend, LogChunk};
use forgeyard_engine::verdict::{Rules, Scanner};
use forgeyard_model::AttemptId;
use forgeyard_model::verdict::{Hit, LogLine};
use std::collections::VecDeque;

/// Lines that a verdict keeps when nothing decides.
const TAIL: usize = 200;
/// Longest line that is kept of a log, in characters.
const LINE: usize = 2000;
/// Bytes of a log that are read where the answer is made: some milliseconds.
const AT_ONCE: usize = 64 << 10;

/// Stores a piece of a log. Answers how many bytes from the beginning are durable; the same piece again is fine.
pub async fn append(app: &App, attempt: AttemptId, offset: u64, bytes: &[u8]) -> Result<u64, HttpError> {
    let state = app.store.log_state(attempt).await.map_err(|error| error::database(&error))?;
    // What is durable already is skipped; what would leave a hole is not taken.
    if bytes.is_empty() || offset > state.durable || offset + bytes.len() as u64 <= state.durable {
        return Ok(state.durable);
    }
    let fresh = bytes.get(usize::try_from(state.durable - offset).unwrap_or(0)..).unwrap_or_default();
    let stored = app.blobs.put_bytes(fresh).await.map_err(|error| error::blobs(&error))?;
    let chunk = LogChunk { offset: state.durable, len: fresh.len() as u64, digest: stored.digest };
    match app.store.log_append(attempt, chunk).await.map_err(|error| error::database(&error))? {
        LogAppend::Appended | LogAppend::AlreadyThere => Ok(state.durable + fresh.len() as u64),
        LogAppend::Gap { durable } | LogAppend::Closed { durable } => Ok(durable),
    }
}

/// Bytes of a log from an offset, at most `limit` of them.
pub async fn read(app: &App, attempt: AttemptId, offset: u64, limit: u64) -> Result<Vec<u8>, HttpError> {
    let chunks = app.store.log_chunks(attempt).await.map_err(|error| error::database(&error))?;
    let mut bytes = Vec::new();
    for chunk in chunks.iter().filter(|chunk| chunk.offset + chunk.len > offset) {
        let missing = limit.saturating_sub(bytes.len() as u64);
        if missing == 0 {
            break;
        }
        let start = offset.saturating_sub(chunk.offset);
        let end = chunk.len.min(start + missing);
        let blob =
            app.blobs.get(chunk.digest, Some(start..end)).await.map_err(|error| error::blobs(&error))?;
        bytes.extend(blob.bytes().await.map_err(|error| error::blobs(&error))?);
    }
    Ok(bytes)
}

/// What a verdict needs of a log.
pub struct Reading {
    /// Where signatures matched.
    pub hits: Vec<Hit>,
    /// The last lines.
    pub tail: Vec<LogLine>,
}

/// Reads a whole log once: where signatures match, and its last lines. Lines of the kernel count as line 0.
pub async fn read_for_verdict(
    app: &App,
    attempt: AttemptId,
    kernel: &[String],
) -> Result<Reading, HttpError> {
    let bytes = read(app, attempt, 0, u64::MAX).await?;
    // A thread of its own for a long log only: most are short, and the first word of their end is waited for.
    let of_kernel: usize = kernel.iter().map(String::len).sum();
    if bytes.len() + of_kernel <= AT_ONCE {
        return Ok(reading(&bytes, kernel));
    }
    let kernel = kernel.to_vec();
    let read = tokio::task::spawn_blocking(move || reading(&bytes, &kernel)).await;
    read.map_err(|error| {
        let error = forgeyard_api::ApiError::new(
            forgeyard_api::error::ErrorKind::Internal,
            "log.reading",
            format!("the log could not be read: {error}"),
        );
        HttpError(error)
    })
}

fn reading(bytes: &[u8], kernel: &[String]) -> Reading {
    let text = String::from_utf8_lossy(bytes);
    let mut scanner = Scanner::new(Rules::builtin());
    let mut tail: VecDeque<LogLine> = VecDeque::with_capacity(TAIL + 1);
    for (index, line) in text.lines().enumerate() {
        scanner.line(line);
        tail.push_back(LogLine { number: index as u64 + 1, text: line.chars().take(LINE).collect() });
        if tail.len() > TAIL {
            tail.pop_front();
        }
    }
    let mut hits = scanner.finish();
    let mut from_kernel = Scanner::new(Rules::builtin());
    for line in kernel {
        from_kernel.line(line);
    }
    let of_kernel = from_kernel.finish().into_iter();
    hits.extend(of_kernel.map(|hit| Hit { line: LogLine { number: 0, ..hit.line }, ..hit }));
    Reading { hits, tail: tail.into() }
}
