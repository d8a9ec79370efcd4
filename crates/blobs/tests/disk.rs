//! Claims about the backend that keeps blobs in a folder: crashes, damage, full disks, folders that cannot be used.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use forgeyard_blobs::{BlobStore as _, Clock, DiskStore, Error, MemoryStore, Metered, Verified};
use forgeyard_model::{Digest, Timestamp};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_micros(1_700_000_000_000_000))
}

fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_flipped_byte_is_found_and_a_new_put_heals_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    let bytes = vec![7; 700_000];
    let digest = store.put_bytes(&bytes).await.unwrap().digest;
    rewrite(&store.path(digest), |bytes| bytes[650_000] ^= 4);

    let error = store.verify(digest).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { digest: named, .. } if named == digest), "{error}");
    let verified = Verified::new(store.clone());
    let error = verified.get(digest, None).await.unwrap().bytes().await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");

    store.put_bytes(&bytes).await.unwrap();
    store.verify(digest).await.unwrap();
    assert!(verified.get(digest, None).await.unwrap().bytes().await.unwrap() == bytes);
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_read_is_an_error_and_not_a_short_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    let digest = store.put_bytes(&[7; 9_000]).await.unwrap().digest;
    let blob = store.get(digest, None).await.unwrap();
    std::fs::set_permissions(store.path(digest), std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::File::options().write(true).open(store.path(digest)).unwrap().set_len(8_000).unwrap();
    let error = blob.bytes().await.unwrap_err();
    assert!(matches!(error, Error::Short { missing: 1_000, .. }), "{error}");
    assert!(matches!(store.verify(digest).await, Err(Error::Corrupt { .. })));
}

#[tokio::test]
async fn what_a_crash_left_is_swept_at_open_and_blobs_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    let digest = store.put_bytes(b"stays").await.unwrap().digest;
    drop(store);
    std::fs::write(folder.path().join("incoming/12.part"), b"half of an upl").unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path().join("incoming")).unwrap().count(), 0);
    assert_eq!(store.get(digest, None).await.unwrap().bytes().await.unwrap(), b"stays");
}

#[tokio::test]
async fn a_failed_put_leaves_no_part_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    store.put(Some(Digest::of(b"other")), Box::new(&b"bytes"[..])).await.unwrap_err();
    store.put_bytes(b"good").await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path().join("incoming")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_folder_is_open_in_one_place_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    let Err(Error::InUse { .. }) = DiskStore::open(folder.path(), clock()).await else {
        panic!("opened twice")
    };
    drop(store);
    DiskStore::open(folder.path(), clock()).await.unwrap();
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_named_with_a_fix() {
    let folder = tempfile::tempdir().unwrap();
    // A file where a folder should be stands in the way of root too, whom permissions do not stop.
    let taken = folder.path().join("taken");
    std::fs::write(&taken, b"").unwrap();
    let Err(error) = DiskStore::open(&taken, clock()).await else { panic!("opened a file") };
    let explanation = error.explanation();
    assert_eq!(explanation.code, "blob.folder");
    assert!(explanation.message.contains("taken"), "{explanation}");
    assert!(explanation.fix.unwrap().contains("chown"));
}

#[tokio::test]
async fn files_that_are_not_ours_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    let digest = store.put_bytes(b"x").await.unwrap().digest;
    let beside = store.path(digest).with_file_name("README");
    std::fs::write(&beside, b"mine").unwrap();
    let listed: Vec<_> = futures::StreamExt::collect::<Vec<_>>(store.list()).await;
    assert_eq!(listed.len(), 1);
    assert!(beside.exists());
}

#[tokio::test]
async fn a_full_disk_is_named_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let flags = nix::mount::MsFlags::empty();
    let mounted = nix::mount::mount(Some("tmpfs"), folder.path(), Some("tmpfs"), flags, Some("size=1m"));
    if let Err(errno) = mounted {
        println!("SKIPPED: this test mounts a small tmpfs and may not ({errno})");
        return;
    }
    let store = DiskStore::open(folder.path(), clock()).await.unwrap();
    assert!(store.free_space().await.unwrap().unwrap() <= 1024 * 1024);
    let small = store.put_bytes(&[1; 1000]).await.unwrap().digest;
    let error = store.put_bytes(&vec![2; 2_000_000]).await.unwrap_err();
    let left = std::fs::read_dir(folder.path().join("incoming")).unwrap().count();
    let kept = store.verify(small).await;
    drop(store);
    nix::mount::umount(folder.path()).unwrap();
    assert!(matches!(&error, Error::NoSpace { place } if place.contains("incoming")), "{error}");
    assert_eq!(left, 0);
    kept.unwrap();
}

#[tokio::test]
async fn memory_twin_is_full_and_damaged_like_a_disk() {
    let store = MemoryStore::with_capacity(clock(), 10);
    let digest = store.put_bytes(b"12345678").await.unwrap().digest;
    assert!(matches!(store.put_bytes(b"abc").await, Err(Error::NoSpace { .. })));
    assert_eq!(store.free_space().await.unwrap(), Some(2));
    assert!(store.damage(digest));
    assert!(matches!(store.verify(digest).await, Err(Error::Corrupt { .. })));
    assert!(store.truncate(digest));
    assert!(matches!(store.verify(digest).await, Err(Error::Short { missing: 1, .. })));
}

#[tokio::test]
async fn errors_are_counted_under_their_code() {
    let recorder = counting::Recorder::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let store = Metered::new(MemoryStore::new(clock()), "main");
    store.put_bytes(b"12345").await.unwrap();
    store.get(Digest::of(b"12345"), Some(1..4)).await.unwrap();
    store.get(Digest::of(b"missing"), None).await.unwrap_err();
    let counted = recorder.counted();
    let expected = [
        ("forgeyard_blobs_bytes_total direction=in store=main", 5),
        ("forgeyard_blobs_bytes_total direction=out store=main", 3),
        ("forgeyard_blobs_operations_total operation=get outcome=blob.not_found store=main", 1),
        ("forgeyard_blobs_operations_total operation=get outcome=ok store=main", 1),
        ("forgeyard_blobs_operations_total operation=put outcome=ok store=main", 1),
    ];
    assert_eq!(counted, expected.map(|(key, count)| (key.to_owned(), count)));
}

/// A recorder that adds counters up in memory.
mod counting {
    use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    type Table = Arc<Mutex<BTreeMap<String, u64>>>;

    #[derive(Default)]
    pub(crate) struct Recorder(Table);

    struct One(Table, String);

    impl CounterFn for One {
        fn increment(&self, value: u64) {
            *self.0.lock().unwrap().entry(self.1.clone()).or_default() += value;
        }
        fn absolute(&self, _: u64) {}
    }

    impl Recorder {
        pub(crate) fn counted(&self) -> Vec<(String, u64)> {
            self.0.lock().unwrap().clone().into_iter().collect()
        }
    }

    impl metrics::Recorder for Recorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let mut labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            labels.sort();
            Counter::from_arc(Arc::new(One(self.0.clone(), format!("{} {}", key.name(), labels.join(" ")))))
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }
}
