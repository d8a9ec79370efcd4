//! Garbage collection: which blobs go, and how they go without harming an upload that runs at the same time.
//!
//! [`plan`] is pure: every blob that no root names and that was stored at least a grace ago. The grace covers the time
//! between the end of an upload and the commit of the record that names it.
//!
//! [`sweep`] removes in two phases. First a tombstone is laid on each planned blob; it can still be read. Then the
//! roots are asked for again, and a blob goes only if no root names it now and its tombstone still lies there, that is,
//! nobody has put or touched it since. A blob that was put or touched after it was listed is not buried at all. With [`Grace::buried`] above zero the second phase comes in a later sweep.

use crate::{BlobFacts, BlobStore, Error};
use forgeyard_model::{Digest, Timestamp};
use futures::StreamExt as _;
use std::collections::BTreeSet;
use std::time::Duration;

/// Who knows which blobs must stay. Answers from the records, freshly at every call.
#[async_trait::async_trait]
pub trait Roots: Send + Sync {
    /// All digests that a record names.
    async fn roots(&self) -> Result<BTreeSet<Digest>, Error>;
}

/// How long blobs without a root stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// Not buried before this time has passed since they were stored.
    pub young: Duration,
    /// Not removed before this time has passed since they were buried.
    pub buried: Duration,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Blobs that were looked at.
    pub seen: u64,
    /// Tombstones that were laid.
    pub buried: u64,
    /// Tombstones that were lifted, because a root names the blob again.
    pub lifted: u64,
    /// Blobs that were removed.
    pub deleted: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
}

/// The blobs that may go: no root names them and they were stored at least `grace` ago. In the order given.
pub fn plan(all: &[BlobFacts], roots: &BTreeSet<Digest>, grace: Duration, now: Timestamp) -> Vec<Digest> {
    let old = |blob: &&BlobFacts| blob.stored_at.plus(grace) <= now;
    all.iter().filter(old).map(|blob| blob.digest).filter(|digest| !roots.contains(digest)).collect()
}

/// Runs both phases once. Stops at the first error; what was done until then stands and the next sweep goes on.
pub async fn sweep(
    store: &dyn BlobStore,
    roots: &dyn Roots,
    grace: Grace,
    now: Timestamp,
) -> Result<Swept, Error> {
    let mut all = Vec::new();
    let mut listing = store.list();
    while let Some(facts) = listing.next().await {
        all.push(facts?);
    }
    let mut swept = Swept { seen: all.len() as u64, ..Swept::default() };

    let first = roots.roots().await?;
    let planned: BTreeSet<Digest> = plan(&all, &first, grace.young, now).into_iter().collect();
    let mut graves = Vec::new();
    for blob in &all {
        match (planned.contains(&blob.digest), blob.buried_at) {
            (true, None) => {
                if store.bury(blob.digest, blob.stored_at).await? {
                    swept.buried += 1;
                    graves.push((blob, now));
                }
            }
            (true, Some(since)) => graves.push((blob, since)),
            (false, Some(_)) => {
                store.unbury(blob.digest).await?;
                swept.lifted += 1;
            }
            (false, None) => {}
        }
    }

    let second = roots.roots().await?;
    for (blob, since) in graves {
        if second.contains(&blob.digest) {
            store.unbury(blob.digest).await?;
            swept.lifted += 1;
        } else if since.plus(grace.buried) <= now && store.delete_buried(blob.digest).await? {
            swept.deleted += 1;
            swept.deleted_bytes += blob.size;
        }
    }
    Ok(swept)
}
