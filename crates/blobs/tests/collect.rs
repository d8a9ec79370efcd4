//! Claims about garbage collection: what is rooted or young stays, and an upload during a sweep survives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_blobs::collect::{Grace, Roots, plan, sweep};
use forgeyard_blobs::{Blob, BlobFacts, BlobStore, DiskStore, Error, MemoryStore, Reader, Stored};
use forgeyard_model::{Digest, Timestamp};
use futures::stream::BoxStream;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn digest(number: u8) -> Digest {
    Digest::of(&[number])
}

proptest! {
    #[test]
    fn a_rooted_or_young_blob_is_never_planned_and_every_other_is(
        blobs in proptest::collection::vec((0u8..40, 0i64..1_000), 0..40),
        rooted in proptest::collection::btree_set(0u8..40, 0..20),
        grace in 0u64..500,
        now in 0i64..1_500,
    ) {
        let all: Vec<_> = blobs
            .iter()
            .map(|(number, stored)| BlobFacts { digest: digest(*number), size: 1, stored_at: at(*stored), buried_at: None })
            .collect();
        let roots: BTreeSet<_> = rooted.iter().map(|number| digest(*number)).collect();
        let planned = plan(&all, &roots, Duration::from_micros(grace), at(now));
        for blob in &all {
            let young = now < blob.stored_at.as_micros() + grace as i64;
            if roots.contains(&blob.digest) {
                prop_assert!(!planned.contains(&blob.digest));
            } else if !young {
                prop_assert!(planned.contains(&blob.digest));
            }
        }
        prop_assert!(planned.iter().all(|d| all.iter().any(|b| b.digest == *d && b.stored_at.as_micros() + grace as i64 <= now)));
    }
}

#[test]
fn a_blob_without_a_date_is_never_planned() {
    let blob = BlobFacts { digest: digest(1), size: 1, stored_at: at(i64::MAX), buried_at: None };
    assert!(plan(&[blob], &BTreeSet::new(), Duration::ZERO, at(i64::MAX - 1)).is_empty());
}

struct Fixed(BTreeSet<Digest>);

#[async_trait::async_trait]
impl Roots for Fixed {
    async fn roots(&self) -> Result<BTreeSet<Digest>, Error> {
        Ok(self.0.clone())
    }
}

/// A store that, before its `step`-th call of the sweep, lets somebody else upload or touch a blob.
struct Meddled {
    inner: MemoryStore,
    calls: AtomicUsize,
    step: usize,
    blob: Vec<u8>,
    by_touch: bool,
}

impl Meddled {
    async fn tick(&self) {
        if self.calls.fetch_add(1, Ordering::SeqCst) == self.step {
            if self.by_touch {
                // Whoever finds it gone uploads it, as the contract of `touch` says.
                if !self.inner.touch(Digest::of(&self.blob)).await.unwrap() {
                    self.inner.put_bytes(&self.blob).await.unwrap();
                }
            } else {
                self.inner.put_bytes(&self.blob).await.unwrap();
            }
        }
    }
}

#[async_trait::async_trait]
impl BlobStore for Meddled {
    async fn put(&self, expected: Option<Digest>, bytes: Reader<'_>) -> Result<Stored, Error> {
        self.inner.put(expected, bytes).await
    }
    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error> {
        self.inner.get(digest, range).await
    }
    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        self.inner.stat(digest).await
    }
    async fn touch(&self, digest: Digest) -> Result<bool, Error> {
        self.inner.touch(digest).await
    }
    async fn delete(&self, digest: Digest) -> Result<bool, Error> {
        self.inner.delete(digest).await
    }
    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>> {
        self.inner.list()
    }
    async fn free_space(&self) -> Result<Option<u64>, Error> {
        self.inner.free_space().await
    }
    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        self.tick().await;
        self.inner.bury(digest, seen).await
    }
    async fn unbury(&self, digest: Digest) -> Result<(), Error> {
        self.tick().await;
        self.inner.unbury(digest).await
    }
    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error> {
        self.tick().await;
        self.inner.delete_buried(digest).await
    }
}

proptest! {
    #[test]
    fn an_upload_at_any_step_of_a_sweep_survives_it(
        count in 1u8..8, which in 0u8..8, step in 0usize..16, by_touch: bool, earlier_sweep: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let hand = Arc::new(AtomicI64::new(0));
            let clock = { let hand = hand.clone(); Arc::new(move || at(hand.load(Ordering::SeqCst))) };
            let inner = MemoryStore::new(clock);
            for number in 0..count {
                inner.put_bytes(&[number]).await.unwrap();
            }
            let none = Fixed(BTreeSet::new());
            hand.store(10_000, Ordering::SeqCst);
            let grace = Grace { young: Duration::from_micros(100), buried: Duration::from_micros(50) };
            if earlier_sweep {
                // Tombstones of an earlier sweep lie there already.
                sweep(&inner, &none, grace, at(10_000)).await.unwrap();
                hand.store(20_000, Ordering::SeqCst);
            }
            let now = at(hand.load(Ordering::SeqCst));
            let blob = vec![which % count];
            let uploaded = Digest::of(&blob);
            let store = Meddled { inner: inner.clone(), calls: AtomicUsize::new(0), step, blob, by_touch };
            let buried = if earlier_sweep { grace.buried } else { Duration::ZERO };
            sweep(&store, &none, Grace { buried, ..grace }, now).await.unwrap();
            if store.calls.load(Ordering::SeqCst) > step {
                assert!(inner.stat(uploaded).await.unwrap().is_some_and(|facts| facts.buried_at.is_none()));
                // Nor does the next sweep take it: it is young.
                sweep(&inner, &none, Grace { buried: Duration::ZERO, ..grace }, now).await.unwrap();
                assert!(inner.stat(uploaded).await.unwrap().is_some());
            }
        });
    }
}

#[tokio::test]
async fn a_blob_goes_in_two_phases_on_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let hand = Arc::new(AtomicI64::new(0));
    let clock = {
        let hand = hand.clone();
        Arc::new(move || at(hand.load(Ordering::SeqCst)))
    };
    let store = DiskStore::open(folder.path(), clock).await.unwrap();
    let kept = store.put_bytes(b"rooted").await.unwrap().digest;
    let garbage = store.put_bytes(b"garbage").await.unwrap().digest;
    let grace = Grace { young: Duration::from_micros(100), buried: Duration::from_micros(50) };
    let roots = Fixed(BTreeSet::from([kept]));

    let young = sweep(&store, &roots, grace, at(99)).await.unwrap();
    assert_eq!((young.seen, young.buried, young.deleted), (2, 0, 0));
    hand.store(100, Ordering::SeqCst);
    let first = sweep(&store, &roots, grace, at(100)).await.unwrap();
    assert_eq!((first.buried, first.deleted), (1, 0));
    assert!(store.verify(garbage).await.is_ok(), "buried, but still there");
    let early = sweep(&store, &roots, grace, at(149)).await.unwrap();
    assert_eq!((early.buried, early.deleted), (0, 0));
    let second = sweep(&store, &roots, grace, at(150)).await.unwrap();
    assert_eq!((second.deleted, second.deleted_bytes), (1, 7));
    assert!(store.stat(garbage).await.unwrap().is_none());
    assert!(store.verify(kept).await.is_ok());
}

#[tokio::test]
async fn a_buried_blob_that_a_record_names_again_is_lifted() {
    let store = MemoryStore::new(Arc::new(|| at(0)));
    let digest = store.put_bytes(b"x").await.unwrap().digest;
    let grace = Grace { young: Duration::ZERO, buried: Duration::from_secs(1) };
    sweep(&store, &Fixed(BTreeSet::new()), grace, at(10)).await.unwrap();
    assert!(store.stat(digest).await.unwrap().unwrap().buried_at.is_some());
    let swept = sweep(&store, &Fixed(BTreeSet::from([digest])), grace, at(2_000_000)).await.unwrap();
    assert_eq!((swept.lifted, swept.deleted), (1, 0));
    assert!(store.stat(digest).await.unwrap().unwrap().buried_at.is_none());
}

#[tokio::test]
async fn a_root_that_appears_between_the_phases_saves_the_blob() {
    struct Late(AtomicUsize, Digest);
    #[async_trait::async_trait]
    impl Roots for Late {
        async fn roots(&self) -> Result<BTreeSet<Digest>, Error> {
            let first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
            Ok(if first { BTreeSet::new() } else { BTreeSet::from([self.1]) })
        }
    }
    let store = MemoryStore::new(Arc::new(|| at(0)));
    let digest = store.put_bytes(b"x").await.unwrap().digest;
    let grace = Grace { young: Duration::ZERO, buried: Duration::ZERO };
    let swept = sweep(&store, &Late(AtomicUsize::new(0), digest), grace, at(10)).await.unwrap();
    assert_eq!((swept.buried, swept.lifted, swept.deleted), (1, 1, 0));
}
