//! Sending, in the background: claims the name of the writer, sends what grows no more, and looks at what others wrote.

use super::manifest::{FORMAT, Manifest, Sent, write_index};
use super::s3::{Content, If, Trouble};
use super::{Inner, Standing, fetch};
use crate::store::handle::Sealed;
use crate::store::large::PIECE;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Between two looks at what there is to do.
const PACE: Duration = Duration::from_secs(1);
/// Between two looks at what others wrote.
const REFRESH: Duration = Duration::from_secs(10);
/// Longest manifest: some hundred thousand segments.
pub(super) const LONGEST_MANIFEST: u64 = 64 << 20;

/// The manifest as this process wrote it last.
struct Claim {
    manifest: Manifest,
    tag: String,
}

#[derive(Default)]
struct Sender {
    claim: Option<Claim>,
    /// Epoch that this process wrote, or tried to.
    epoch: Option<u64>,
    refreshed: Option<Instant>,
    said: Option<String>,
}

/// Until the service is stopped.
pub(super) async fn run(inner: &Inner) {
    let mut sender = Sender::default();
    loop {
        if inner.remote.may_look() {
            match sender.round(inner).await {
                Ok(()) => sender.said = None,
                Err(trouble) => {
                    inner.figures.failures.fetch_add(1, Relaxed);
                    let text = trouble.to_string();
                    // once, not every second
                    if sender.said.as_ref() != Some(&text) {
                        tracing::warn!("the tier of the cache: {text}");
                    }
                    sender.said = Some(text);
                }
            }
        }
        tokio::time::sleep(PACE).await;
    }
}

impl Inner {
    /// Where this writer's objects are.
    pub(super) fn place(&self, writer: &str) -> String {
        format!("{}/{writer}/", self.config.prefix)
    }

    pub(super) fn manifest_key(&self, writer: &str) -> String {
        format!("{}manifest.json", self.place(writer))
    }

    /// Where this store's objects are.
    pub(super) fn own(&self) -> String {
        format!("{}{}/", self.place(&self.config.writer), self.id)
    }

    pub(super) fn segment_key(&self, number: u32) -> String {
        format!("{}seg/{number:08}.fyl", self.own())
    }

    pub(super) fn large_key(&self, digest: forgeyard_model::Digest) -> String {
        let hex = digest.hex();
        format!("{}/large/{}/{hex}", self.config.prefix, &hex[..2])
    }

    fn stand(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    fn standing(&self) -> Standing {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    async fn round(&mut self, inner: &Inner) -> Result<(), Trouble> {
        if self.claim.is_none() && inner.standing() == Standing::Waiting {
            self.claim(inner).await?;
        } else if !inner.remote.closed() {
            // whether it is back
            inner.remote.size(&inner.manifest_key(&inner.config.writer)).await?;
        }
        if self.refreshed.is_none_or(|at| at.elapsed() > REFRESH) {
            let former = self.claim.as_ref().map(|claim| &claim.manifest);
            fetch::refresh(inner, former).await?;
            self.refreshed = Some(Instant::now());
        }
        if self.claim.is_some() {
            self.send(inner).await?;
        }
        Ok(())
    }

    /// Makes the name of the writer this process's own, unless another one took it after this one did.
    async fn claim(&mut self, inner: &Inner) -> Result<(), Trouble> {
        let key = inner.manifest_key(&inner.config.writer);
        let place = inner.place(&inner.config.writer);
        let (mut manifest, on) = match inner.remote.get(&key, None, LONGEST_MANIFEST).await {
            Ok((bytes, Some(tag))) => match Manifest::read(&bytes, &place) {
                Some(manifest) => (manifest, If::Still(tag)),
                None => {
                    return Err(Trouble::Local(format!(
                        "{key} is no manifest of this version; nothing is sent"
                    )));
                }
            },
            Ok((_, None)) => {
                inner.stand(Standing::Unguarded);
                return Err(Trouble::Local("the storage gives no ETag; nothing is sent".to_owned()));
            }
            Err(Trouble::Absent) => {
                let manifest = Manifest {
                    format: FORMAT,
                    writer: inner.config.writer.clone(),
                    epoch: 0,
                    store: String::new(),
                    segments: Vec::new(),
                    purges: Vec::new(),
                };
                (manifest, If::New)
            }
            Err(trouble) => return Err(trouble),
        };
        if let Some(epoch) = self.epoch
            && manifest.epoch >= epoch
            && (manifest.epoch, &manifest.store) != (epoch, &inner.id)
        {
            return self.lost(inner, &manifest);
        }
        manifest.epoch += 1;
        manifest.store.clone_from(&inner.id);
        self.epoch = Some(manifest.epoch);
        let bytes = serde_json::to_vec(&manifest).unwrap_or_default();
        let tag = match inner.remote.put(&key, Content::Bytes(bytes.clone()), on).await {
            Ok(Some(tag)) => tag,
            // somebody else starts too: look again
            Err(Trouble::Condition) => return Ok(()),
            Ok(None) => {
                inner.stand(Standing::Unguarded);
                return Err(Trouble::Local("the storage gives no ETag; nothing is sent".to_owned()));
            }
            Err(trouble) => return Err(trouble),
        };
        // a server that writes though the object is there would let two writers overwrite each other
        match inner.remote.put(&key, Content::Bytes(bytes), If::New).await {
            Err(Trouble::Condition) => {}
            Ok(_) => {
                inner.stand(Standing::Unguarded);
                let text = "the storage does not honour If-None-Match; nothing is sent, as nobody could be kept from writing too";
                return Err(Trouble::Local(text.to_owned()));
            }
            Err(trouble) => return Err(trouble),
        }
        if let Some(beyond) = inner.store.beyond() {
            let own = inner.own();
            let mine = manifest.segments.iter().filter(|sent| sent.segment.starts_with(&own));
            mine.for_each(|sent| beyond.mark(sent.number));
        }
        tracing::info!(
            epoch = manifest.epoch,
            segments = manifest.segments.len(),
            "writing to the tier of the cache"
        );
        self.claim = Some(Claim { manifest, tag });
        inner.stand(Standing::Writing);
        Ok(())
    }

    fn lost(&mut self, inner: &Inner, other: &Manifest) -> Result<(), Trouble> {
        tracing::error!(
            writer = other.writer,
            epoch = other.epoch,
            store = other.store,
            "another process writes to the tier under this name; nothing is sent from here until a restart"
        );
        self.claim = None;
        inner.stand(Standing::Lost);
        Ok(())
    }

    async fn send(&mut self, inner: &Inner) -> Result<(), Trouble> {
        let local = |error: crate::store::StoreError| Trouble::Local(error.to_string());
        if let Some(sealed) = inner.store.seal(inner.config.seal_minutes) {
            sealed.map_err(local)?;
        }
        let (Some(beyond), Some(sealed)) = (inner.store.beyond(), inner.store.sealed()) else {
            return Ok(());
        };
        let mut waiting: Vec<Sealed> = sealed.into_iter().filter(|one| !beyond.is_sent(one.number)).collect();
        inner.figures.waiting.store(waiting.len() as u64, Relaxed);
        // the oldest goes first when there is too little room
        waiting.sort_by_key(|one| one.number);
        for sealed in waiting.into_iter().filter(|sealed| sealed.rests) {
            let sent = self.send_segment(inner, &sealed).await?;
            let (number, size) = (sent.number, sent.size);
            self.write_manifest(inner, Some(sent)).await?;
            if self.claim.is_none() {
                return Ok(());
            }
            beyond.mark(number);
            inner.figures.sent_segments.fetch_add(1, Relaxed);
            inner.figures.sent_bytes.fetch_add(size, Relaxed);
            inner.figures.waiting.fetch_sub(1, Relaxed);
        }
        let known = self.claim.as_ref().map_or(0, |claim| claim.manifest.purges.len());
        if beyond.purges().len() != known {
            self.write_manifest(inner, None).await?;
        }
        Ok(())
    }

    async fn send_segment(&self, inner: &Inner, sealed: &Sealed) -> Result<Sent, Trouble> {
        let local = |error: crate::store::StoreError| Trouble::Local(error.to_string());
        let walked = sealed.clone();
        let walked = tokio::task::spawn_blocking(move || walked.lines()).await;
        let (lines, large) = walked.map_err(|error| Trouble::Local(error.to_string()))?.map_err(local)?;
        for digest in large {
            // one that went meanwhile is no entry any more
            let Some((path, large)) = inner.store.large(digest) else { continue };
            let Ok(file) = std::fs::File::open(&path) else { continue };
            let length = file.metadata().map_or(large.size, |facts| facts.len());
            let key = inner.large_key(digest);
            // another writer may have sent it in the other form, or this one before it was compressed
            let plain = large.size + large.size.div_ceil(PIECE) * 4 + 64;
            if inner.remote.size(&key).await?.is_some_and(|there| there == length || there == plain) {
                continue;
            }
            inner.remote.put(&key, Content::File(file, length), If::Always).await?;
            inner.figures.sent_bytes.fetch_add(length, Relaxed);
        }
        let sent = Sent {
            segment: inner.segment_key(sealed.number),
            index: format!("{}idx/{:08}.fyx", inner.own(), sealed.number),
            size: sealed.size,
            number: sealed.number,
        };
        let file = sealed.open().map_err(local)?;
        inner.remote.put(&sent.segment, Content::File(file, sealed.size), If::Always).await?;
        inner.remote.put(&sent.index, Content::Bytes(write_index(&lines)), If::Always).await?;
        Ok(sent)
    }

    /// Writes the manifest with one more segment. Without a claim afterwards, another process has it.
    async fn write_manifest(&mut self, inner: &Inner, more: Option<Sent>) -> Result<(), Trouble> {
        let Some(claim) = &self.claim else { return Ok(()) };
        let mut manifest = claim.manifest.clone();
        manifest.segments.extend(more);
        manifest.purges = inner.store.purges();
        let bytes = serde_json::to_vec(&manifest).unwrap_or_default();
        let key = inner.manifest_key(&inner.config.writer);
        let on = If::Still(claim.tag.clone());
        match inner.remote.put(&key, Content::Bytes(bytes), on).await {
            Ok(Some(tag)) => {
                self.claim = Some(Claim { manifest, tag });
                Ok(())
            }
            other => {
                // whether it was written is not known, or another process wrote: the next claim finds out
                self.claim = None;
                inner.stand(Standing::Waiting);
                other.map(|_| ())
            }
        }
    }
}
