//! Sends the log to the farm. The farm says how many bytes are durable; the next piece begins there.
//!
//! The job never waits for this: the log is on disk. Bytes are sent until the log is closed and all are durable.

use crate::stop::{Cause, Stop};
use bytes::Bytes;
use forgeyard_api::client::agent::{AgentClient, Session, superseded};
use forgeyard_api::client::{Backoff, ClientError};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::watch;

/// Bytes in one request.
const PIECE: u64 = 256 << 10;
/// Time in which small pieces gather.
const GATHER: Duration = Duration::from_millis(200);

/// Sends until `length` is closed and all is durable, or the attempt is superseded.
pub(crate) async fn ship(
    client: AgentClient,
    session: Session,
    path: PathBuf,
    mut length: watch::Receiver<u64>,
    stop: Stop,
) {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
    // No bytes at the beginning: the answer says how much an earlier life of this agent has sent.
    let mut durable = None;
    loop {
        let end = *length.borrow_and_update();
        match durable {
            Some(durable) if durable >= end => {
                if length.changed().await.is_err() {
                    // Closed; a last change may have come with it.
                    if *length.borrow() <= durable {
                        return;
                    }
                } else {
                    gather(&mut length).await;
                }
                continue;
            }
            _ => {}
        }
        let from = durable.unwrap_or(0);
        let result = match piece(&path, from, if durable.is_none() { from } else { end }).await {
            Ok(bytes) => tokio::select! {
                result = client.log(&session, from, bytes) => result,
                () = stop.asked_superseded() => return,
            },
            Err(error) => {
                tracing::error!(%error, "cannot read the log");
                backoff.sleep().await;
                continue;
            }
        };
        match result {
            // More than was ever written would be a fault of the farm; what is not there cannot be sent.
            Ok(answer) => {
                durable = Some(answer.durable.min(end));
                backoff.reset();
            }
            Err(error) if superseded(&error) => return stop.ask(Cause::Superseded),
            Err(error) => {
                report(&error);
                tokio::select! {
                    () = backoff.sleep() => {}
                    () = stop.asked_superseded() => return,
                }
            }
        }
    }
}

/// Lets small pieces gather, unless the log is over.
async fn gather(length: &mut watch::Receiver<u64>) {
    let time = tokio::time::sleep(GATHER);
    tokio::pin!(time);
    loop {
        tokio::select! {
            () = &mut time => return,
            changed = length.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

fn report(error: &ClientError) {
    tracing::warn!(error = forgeyard_api::client::http::causes(error), "cannot send the log");
}

async fn piece(path: &PathBuf, from: u64, end: u64) -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    if end > from {
        let mut file = tokio::fs::File::open(path).await?;
        file.seek(std::io::SeekFrom::Start(from)).await?;
        file.take((end - from).min(PIECE)).read_to_end(&mut bytes).await?;
    }
    Ok(bytes.into())
}
