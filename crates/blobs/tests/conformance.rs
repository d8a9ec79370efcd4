//! One suite for every backend and decorator. A new backend adds itself to `stores` and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_blobs::{BlobStore, Clock, DiskStore, Error, MemoryStore, Metered, Verified};
use forgeyard_model::{Digest, Timestamp};
use futures::StreamExt as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A clock that stands where the test puts it.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicI64>);

impl Hand {
    fn clock(&self) -> Clock {
        let hand = self.0.clone();
        Arc::new(move || Timestamp::from_micros(hand.load(Ordering::SeqCst)))
    }
    fn set(&self, micros: i64) {
        self.0.store(micros, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Memory,
    Disk,
    VerifiedDisk,
    VerifiedMemory,
    MeteredDisk,
}

struct Under {
    store: Arc<dyn BlobStore>,
    hand: Hand,
}

async fn open(kind: Kind, folder: &std::path::Path) -> Under {
    let hand = Hand::default();
    hand.set(1_000);
    let disk = || DiskStore::open(folder.join("blobs"), hand.clock());
    let store: Arc<dyn BlobStore> = match kind {
        Kind::Memory => Arc::new(MemoryStore::new(hand.clock())),
        Kind::VerifiedMemory => Arc::new(Verified::new(MemoryStore::new(hand.clock()))),
        Kind::Disk => Arc::new(disk().await.unwrap()),
        Kind::VerifiedDisk => Arc::new(Verified::new(disk().await.unwrap())),
        Kind::MeteredDisk => {
            Arc::new(Metered::new(Arc::new(disk().await.unwrap()) as Arc<dyn BlobStore>, "test"))
        }
    };
    Under { store, hand }
}

/// Runs one claim against every store.
async fn all<F: Future<Output = ()>>(claim: impl Fn(Under) -> F) {
    use Kind::*;
    for kind in [Memory, Disk, VerifiedDisk, VerifiedMemory, MeteredDisk] {
        println!("store: {kind:?}");
        let folder = tempfile::tempdir().unwrap();
        claim(open(kind, folder.path()).await).await;
    }
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

#[tokio::test]
async fn what_was_put_is_read_back() {
    all(|under| async move {
        for size in [0, 1, 4096, 512 * 1024, 1_300_001] {
            let bytes = pattern(size);
            let stored = under.store.put(Some(Digest::of(&bytes)), Box::new(&bytes[..])).await.unwrap();
            assert_eq!((stored.digest, stored.size), (Digest::of(&bytes), size as u64));
            let blob = under.store.get(stored.digest, None).await.unwrap();
            assert_eq!((blob.size, blob.range.clone()), (size as u64, 0..size as u64));
            assert!(blob.bytes().await.unwrap() == bytes);
            assert_eq!(under.store.verify(stored.digest).await.unwrap(), stored);
        }
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_not_the_announced_ones_are_refused_and_not_stored() {
    all(|under| async move {
        let announced = Digest::of(b"announced");
        let error = under.store.put(Some(announced), Box::new(&b"other"[..])).await.unwrap_err();
        let Error::Mismatch { expected, found } = error else { panic!("{error}") };
        assert_eq!((expected, found), (announced, Digest::of(b"other")));
        assert_eq!(under.store.stat(found).await.unwrap(), None);
        assert_eq!(under.store.list().count().await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_range_delivers_its_bytes_and_a_wrong_one_is_named() {
    all(|under| async move {
        let bytes = pattern(10_000);
        let digest = under.store.put_bytes(&bytes).await.unwrap().digest;
        for range in [0..10_000, 0..0, 17..4_242, 9_999..10_000, 10_000..10_000] {
            let blob = under.store.get(digest, Some(range.clone())).await.unwrap();
            assert_eq!((blob.size, blob.len()), (10_000, range.end - range.start));
            assert!(blob.bytes().await.unwrap() == bytes[range.start as usize..range.end as usize]);
        }
        let backwards = std::ops::Range { start: 20, end: 10 };
        for range in [0..10_001, 10_001..10_001, backwards, u64::MAX..u64::MAX] {
            let error = under.store.get(digest, Some(range.clone())).await.unwrap_err();
            let Error::Range { start, end, size: 10_000, .. } = error else { panic!("{error}") };
            assert_eq!(start..end, range);
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_blob_is_named() {
    all(|under| async move {
        let digest = Digest::of(b"missing");
        let error = under.store.get(digest, None).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { digest: named } if named == digest));
        assert!(matches!(under.store.verify(digest).await, Err(Error::NotFound { .. })));
        assert_eq!(under.store.stat(digest).await.unwrap(), None);
        assert!(!under.store.touch(digest).await.unwrap());
        assert!(!under.store.delete(digest).await.unwrap());
        assert!(!under.store.bury(digest, Timestamp::from_micros(i64::MAX)).await.unwrap());
        assert!(!under.store.delete_buried(digest).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn puts_of_the_same_bytes_at_the_same_time_all_succeed() {
    all(|under| async move {
        let bytes = pattern(300_000);
        let puts = (0..12).map(|_| {
            let (store, bytes) = (under.store.clone(), bytes.clone());
            tokio::spawn(async move { store.put_bytes(&bytes).await })
        });
        for put in futures::future::join_all(puts).await {
            assert_eq!(put.unwrap().unwrap().digest, Digest::of(&bytes));
        }
        assert_eq!(under.store.list().count().await, 1);
        assert!(under.store.get(Digest::of(&bytes), None).await.unwrap().bytes().await.unwrap() == bytes);
    })
    .await;
}

#[tokio::test]
async fn a_source_that_breaks_off_stores_nothing() {
    all(|under| async move {
        let broken =
            tokio_stream::iter([Ok(&b"first part"[..]), Err(std::io::Error::other("connection reset"))]);
        let reader = Box::new(StreamAsRead::new(broken));
        let error = under.store.put(None, reader).await.unwrap_err();
        let Error::Source { source } = error else { panic!("{error}") };
        assert_eq!(source.to_string(), "connection reset");
        assert_eq!(under.store.list().count().await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_put_that_is_given_up_stores_nothing() {
    all(|under| async move {
        let (mut writer, reader) = tokio::io::duplex(64);
        let store = under.store.clone();
        let put = tokio::spawn(async move { store.put(None, Box::new(reader)).await });
        writer.write_all(b"half of it").await.unwrap();
        put.abort();
        assert!(put.await.unwrap_err().is_cancelled());
        assert_eq!(under.store.list().count().await, 0);
    })
    .await;
}

#[tokio::test]
async fn every_blob_is_listed_with_its_size_and_age() {
    all(|under| async move {
        let mut expected = Vec::new();
        for size in 0..40 {
            under.hand.set(5_000 + size as i64);
            let digest = under.store.put_bytes(&pattern(size)).await.unwrap().digest;
            expected.push((digest, size as u64, 5_000 + size as i64));
        }
        let listed = under.store.list().map(|facts| facts.unwrap());
        let mut listed: Vec<_> =
            listed.map(|facts| (facts.digest, facts.size, facts.stored_at.as_micros())).collect().await;
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
    })
    .await;
}

#[tokio::test]
async fn a_deleted_blob_is_gone_and_can_be_put_again() {
    all(|under| async move {
        let digest = under.store.put_bytes(b"x").await.unwrap().digest;
        assert!(under.store.delete(digest).await.unwrap());
        assert!(!under.store.delete(digest).await.unwrap());
        assert!(matches!(under.store.get(digest, None).await, Err(Error::NotFound { .. })));
        under.store.put_bytes(b"x").await.unwrap();
        assert!(under.store.get(digest, None).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_buried_blob_can_be_read_until_it_is_deleted() {
    all(|under| async move {
        let digest = under.store.put_bytes(b"x").await.unwrap().digest;
        assert!(!under.store.delete_buried(digest).await.unwrap(), "no tombstone yet");
        under.hand.set(2_000);
        assert!(under.store.bury(digest, Timestamp::from_micros(1_000)).await.unwrap());
        under.hand.set(3_000);
        assert!(under.store.bury(digest, Timestamp::from_micros(1_000)).await.unwrap());
        let facts = under.store.stat(digest).await.unwrap().unwrap();
        assert_eq!(facts.buried_at, Some(Timestamp::from_micros(2_000)), "the older tombstone is kept");
        assert_eq!(under.store.get(digest, None).await.unwrap().bytes().await.unwrap(), b"x");
        assert!(under.store.delete_buried(digest).await.unwrap());
        assert_eq!(under.store.stat(digest).await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn put_touch_and_unbury_each_lift_the_tombstone() {
    all(|under| async move {
        let digest = under.store.put_bytes(b"x").await.unwrap().digest;
        for way in ["put", "touch", "unbury"] {
            let seen = under.store.stat(digest).await.unwrap().unwrap().stored_at;
            under.hand.set(seen.as_micros() + 10);
            assert!(under.store.bury(digest, seen).await.unwrap());
            match way {
                "put" => drop(under.store.put_bytes(b"x").await.unwrap()),
                "touch" => assert!(under.store.touch(digest).await.unwrap()),
                _ => under.store.unbury(digest).await.unwrap(),
            }
            let facts = under.store.stat(digest).await.unwrap().unwrap();
            assert_eq!(facts.buried_at, None, "{way}");
            let renewed = facts.stored_at > seen;
            assert_eq!(renewed, way != "unbury", "{way} renews the age, or not");
            assert!(!under.store.delete_buried(digest).await.unwrap(), "{way}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_blob_that_was_put_after_the_decision_is_not_buried() {
    all(|under| async move {
        let digest = under.store.put_bytes(b"x").await.unwrap().digest;
        let seen = under.store.stat(digest).await.unwrap().unwrap().stored_at;
        under.hand.set(9_000);
        under.store.put_bytes(b"x").await.unwrap();
        assert!(!under.store.bury(digest, seen).await.unwrap());
        assert_eq!(under.store.stat(digest).await.unwrap().unwrap().buried_at, None);
    })
    .await;
}

#[tokio::test]
async fn a_reader_outlives_the_blob() {
    all(|under| async move {
        let bytes = pattern(3_000_000);
        let digest = under.store.put_bytes(&bytes).await.unwrap().digest;
        let mut blob = under.store.get(digest, None).await.unwrap();
        let mut first = vec![0; 1000];
        blob.reader.read_exact(&mut first).await.unwrap();
        under.store.delete(digest).await.unwrap();
        let mut rest = Vec::new();
        blob.reader.read_to_end(&mut rest).await.unwrap();
        assert!(rest == bytes[1000..]);
    })
    .await;
}

/// Pieces as a reader; what an upload over a network looks like to a store.
struct StreamAsRead<S> {
    pieces: S,
}

impl<S> StreamAsRead<S> {
    fn new(pieces: S) -> Self {
        Self { pieces }
    }
}

impl<S> tokio::io::AsyncRead for StreamAsRead<S>
where
    S: futures::Stream<Item = std::io::Result<&'static [u8]>> + Unpin,
{
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        self.pieces.poll_next_unpin(cx).map(|piece| {
            if let Some(bytes) = piece.transpose()? {
                into.put_slice(bytes);
            }
            Ok(())
        })
    }
}
