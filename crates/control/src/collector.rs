//! Garbage collection of bytes: what no record names goes, after a grace time, in two phases.
//!
//! Roots are read from the database, not from memory: artifacts, statements of channels, environment locks, pieces of
//! logs, bodies of images, inputs of jobs. A blob that was uploaded and never recorded (a refused result, a broken
//! upload, the log of a superseded attempt that was not accepted) has no root. Records themselves are not removed: how
//! long they are kept is a choice that an operator has not been given yet.

use crate::app::App;
use forgeyard_blobs::collect::{Grace, Roots, Swept, sweep};
use forgeyard_model::Digest;
use forgeyard_model::commit::Row;
use forgeyard_model::resources::ImageRoot;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often is swept.
const EVERY: Duration = Duration::from_secs(3600);
/// How long a blob without a root stays. An upload is recorded within seconds; a day forgives every restart.
pub const GRACE: Grace =
    Grace { young: Duration::from_secs(24 * 3600), buried: Duration::from_secs(24 * 3600) };
/// Rows in one page.
const PAGE: u32 = 500;

/// Sweeps until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        match collect(&app, GRACE).await {
            Ok(swept) => tracing::info!(
                seen = swept.seen,
                buried = swept.buried,
                lifted = swept.lifted,
                deleted = swept.deleted,
                deleted_bytes = swept.deleted_bytes,
                "blobs were swept"
            ),
            // The next sweep goes on where this one stopped; nothing is deleted on doubt.
            Err(error) => tracing::warn!(%error, "blobs were not swept"),
        }
    }
}

/// Runs both phases once.
pub async fn collect(app: &App, grace: Grace) -> Result<Swept, forgeyard_blobs::Error> {
    let swept = sweep(&*app.blobs, &Records(app), grace, app.clock.now()).await?;
    metrics::counter!("forgeyard_blobs_deleted_total").increment(swept.deleted);
    Ok(swept)
}

/// Every digest that a record names.
struct Records<'a>(&'a App);

fn unread(error: forgeyard_db::Error) -> forgeyard_blobs::Error {
    forgeyard_blobs::Error::Source { source: std::io::Error::other(error) }
}

#[async_trait::async_trait]
impl Roots for Records<'_> {
    async fn roots(&self) -> Result<BTreeSet<Digest>, forgeyard_blobs::Error> {
        let mut roots = BTreeSet::new();
        for image in &self.0.config().images {
            if let ImageRoot::Rootfs { digest } = &image.root {
                roots.insert(*digest);
            }
        }
        for kind in ["artifact", "channel", "job", "runner", "pipeline", "attempt"] {
            let mut before: Option<String> = None;
            loop {
                let page = self.0.store.list(kind, before.as_deref(), PAGE).await.map_err(unread)?;
                let Some(last) = page.last() else { break };
                before = Some(last.key());
                for row in &page {
                    named(row, &mut roots);
                    if let Row::Attempt(attempt) = row {
                        let chunks = self.0.store.log_chunks(attempt.id).await.map_err(unread)?;
                        roots.extend(chunks.into_iter().map(|chunk| chunk.digest));
                    }
                }
            }
        }
        Ok(roots)
    }
}

fn named(row: &Row, roots: &mut BTreeSet<Digest>) {
    match row {
        Row::Artifact(artifact) => {
            roots.insert(artifact.digest);
        }
        Row::Channel(channel) => {
            roots.extend(channel.entries.iter().flat_map(|entry| [entry.digest, entry.attestation]));
        }
        Row::Job(job) => {
            let inputs = job.spec.iter().flat_map(|spec| &spec.inputs);
            roots.extend(inputs.map(|input| input.digest));
        }
        Row::Runner(runner) => {
            if let ImageRoot::Rootfs { digest } = &runner.boots.root {
                roots.insert(*digest);
            }
        }
        Row::Pipeline(pipeline) => {
            roots.extend(pipeline.source.iter().map(|source| source.digest));
        }
        _ => {}
    }
}
