//! Blobs in a folder.
//!
//! ```text
//! lock                        held (flock) by the one process that has the folder open
//! incoming/<number>.part      bytes on their way in; swept when the folder is opened
//! sha256/ab/cd/abcd…          one file per blob, named by its 64 hexadecimal digits; mode 0444
//! tombstones/abcd…            empty; its age is the age of the tombstone
//! ```
//!
//! A put writes to `incoming/`, syncs the file, renames it to its place and syncs the folders; so a crash leaves a part
//! file and nothing else. The modification time of a blob's file is the time of its last put or touch, taken from the
//! store's clock. A rename also replaces what was there, which heals a damaged blob. `put`, `touch`, `bury` and
//! `delete_buried` hold a lock per digest, in this process; the lock on the folder makes that enough.

use crate::reader::{Exact, PIECE, finish, within};
use crate::{Blob, BlobFacts, BlobStore, Clock, Error, Reader, Stored};
use forgeyard_model::{Digest, Timestamp};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use sha2::{Digest as _, Sha256};
use std::fs::{File, FileTimes, Permissions, TryLockError};
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

/// Locks are shared by digests with the same low bits of the first byte.
const LOCKS: usize = 64;

/// A store in a folder. Cheap to clone; all clones are one store.
#[derive(Clone)]
pub struct DiskStore {
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    clock: Clock,
    /// Number of the next part file. The folder is ours alone and was swept, so numbers start at 0.
    next_part: AtomicU64,
    locks: [Mutex<()>; LOCKS],
    /// Held for as long as the store is open.
    _lock: File,
}

/// What a put sends to the thread that writes. Dropping the channel without `End` gives the put up.
enum Piece {
    Bytes(Vec<u8>),
    End,
}

impl DiskStore {
    /// Opens the folder, makes what is missing in it, and removes what a crash left.
    pub async fn open(root: impl Into<PathBuf>, clock: Clock) -> Result<Self, Error> {
        let root = root.into();
        blocking(move || open(root, clock)).await
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Path of a blob's file. For tools that take a path; the file must not be changed.
    pub fn path(&self, digest: Digest) -> PathBuf {
        self.shared.path(digest)
    }
}

fn open(root: PathBuf, clock: Clock) -> Result<DiskStore, Error> {
    let failed = |action| {
        let folder = root.clone();
        move |source| Error::Folder { folder, action, source }
    };
    for folder in ["", "incoming", "sha256", "tombstones"] {
        std::fs::create_dir_all(root.join(folder)).map_err(failed("making folders"))?;
    }
    let lock = File::options().create(true).truncate(false).write(true).open(root.join("lock"));
    let lock = lock.map_err(failed("opening the lock file"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: root }),
        Err(TryLockError::Error(source)) => return Err(failed("locking")(source)),
    }
    let mut swept = 0u64;
    for entry in std::fs::read_dir(root.join("incoming")).map_err(failed("listing"))? {
        let entry = entry.map_err(failed("listing"))?;
        std::fs::remove_file(entry.path()).map_err(failed("removing what a crash left"))?;
        swept += 1;
    }
    if swept > 0 {
        tracing::info!(folder = %root.display(), swept, "removed unfinished uploads of an earlier run");
    }
    // A folder that can be listed may still be read-only; say so now, not at the first upload.
    let probe = root.join("incoming/probe");
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(failed("writing"))?;
    sync_folder(&root)?;
    let locks = std::array::from_fn(|_| Mutex::new(()));
    let shared = Shared { root, clock, next_part: AtomicU64::new(0), locks, _lock: lock };
    Ok(DiskStore { shared: Arc::new(shared) })
}

impl Shared {
    fn path(&self, digest: Digest) -> PathBuf {
        let hex = digest.hex();
        let mut path = self.root.join("sha256");
        path.extend([&hex[..2], &hex[2..4], &hex]);
        path
    }

    fn tombstone(&self, digest: Digest) -> PathBuf {
        self.root.join("tombstones").join(digest.hex())
    }

    fn lock(&self, digest: Digest) -> MutexGuard<'_, ()> {
        let lock = &self.locks[usize::from(digest.as_bytes()[0]) % LOCKS];
        // The lock guards no data of its own, so a panic of another holder leaves nothing half done in it.
        lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn now(&self) -> FileTimes {
        let micros = u64::try_from((self.clock)().as_micros()).unwrap_or(0);
        FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
    }

    /// Writes what comes through the channel, then gives it its name.
    fn receive(
        &self,
        expected: Option<Digest>,
        mut pieces: mpsc::Receiver<Piece>,
    ) -> Result<Option<Stored>, Error> {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        let part = Part(self.root.join("incoming").join(format!("{number}.part")));
        let file = File::options().create_new(true).write(true).open(&part.0);
        let mut file = file.map_err(|e| Error::at("creating", &part.0, e))?;
        let mut hash = Sha256::new();
        let mut size = 0u64;
        loop {
            match pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => {
                    hash.update(&bytes);
                    file.write_all(&bytes).map_err(|e| Error::at("writing", &part.0, e))?;
                    size += bytes.len() as u64;
                }
                Some(Piece::End) => break,
                None => return Ok(None),
            }
        }
        let found = finish(hash);
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(Error::Mismatch { expected, found });
        }
        file.set_times(self.now()).map_err(|e| Error::at("dating", &part.0, e))?;
        file.set_permissions(Permissions::from_mode(0o444))
            .map_err(|e| Error::at("protecting", &part.0, e))?;
        file.sync_all().map_err(|e| Error::at("syncing", &part.0, e))?;
        drop(file);
        self.commit(&part.0, found)?;
        Ok(Some(Stored { digest: found, size }))
    }

    fn commit(&self, part: &Path, digest: Digest) -> Result<(), Error> {
        let path = self.path(digest);
        let folder = path.parent().unwrap_or(&self.root);
        let _guard = self.lock(digest);
        if !folder.is_dir() {
            std::fs::create_dir_all(folder).map_err(|e| Error::at("making the folder of", &path, e))?;
            // The entries of the new folders must be as durable as the file in them.
            for outer in folder.ancestors().skip(1).take(2) {
                sync_folder(outer)?;
            }
        }
        // The tombstone goes first: a crash in between leaves an unacknowledged put undone, never a buried young blob.
        remove_if_there(&self.tombstone(digest))?;
        std::fs::rename(part, &path).map_err(|e| Error::at("naming", &path, e))?;
        sync_folder(folder)
    }

    fn facts(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        let Some(blob) = metadata_if_there(&self.path(digest))? else { return Ok(None) };
        let buried_at = metadata_if_there(&self.tombstone(digest))?.map(|stone| modified(&stone));
        Ok(Some(BlobFacts { digest, size: blob.len(), stored_at: modified(&blob), buried_at }))
    }

    fn touch(&self, digest: Digest) -> Result<bool, Error> {
        let _guard = self.lock(digest);
        let path = self.path(digest);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::at("opening", &path, error)),
        };
        remove_if_there(&self.tombstone(digest))?;
        file.set_times(self.now()).map_err(|e| Error::at("dating", &path, e))?;
        Ok(true)
    }

    fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        let _guard = self.lock(digest);
        let blob = metadata_if_there(&self.path(digest))?;
        if blob.is_none_or(|blob| modified(&blob) > seen) {
            return Ok(false);
        }
        let path = self.tombstone(digest);
        match File::options().create_new(true).write(true).open(&path) {
            Ok(file) => file.set_times(self.now()).map_err(|e| Error::at("dating", &path, e))?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::at("creating", &path, error)),
        }
        Ok(true)
    }

    fn delete(&self, digest: Digest, only_buried: bool) -> Result<bool, Error> {
        let _guard = self.lock(digest);
        let stone = self.tombstone(digest);
        if only_buried && metadata_if_there(&stone)?.is_none() {
            return Ok(false);
        }
        let removed = remove_if_there(&self.path(digest))?;
        remove_if_there(&stone)?;
        Ok(removed)
    }

    /// Sends the facts of all blobs, until nobody listens.
    fn walk(&self, to: &mpsc::Sender<Result<BlobFacts, Error>>) -> Result<(), Error> {
        for outer in children(&self.root.join("sha256"))? {
            for inner in children(&outer)? {
                for path in children(&inner)? {
                    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    let Ok(digest) = Digest::from_hex(name) else {
                        tracing::warn!(path = %path.display(), "a file in the blob folder is not ours; left alone");
                        continue;
                    };
                    // A blob that was removed since the folder was listed is simply not listed.
                    let Some(facts) = self.facts(digest)? else { continue };
                    if to.blocking_send(Ok(facts)).is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl BlobStore for DiskStore {
    async fn put(&self, expected: Option<Digest>, mut bytes: Reader<'_>) -> Result<Stored, Error> {
        let (to, pieces) = mpsc::channel(4);
        let shared = self.shared.clone();
        let writer = tokio::task::spawn_blocking(move || shared.receive(expected, pieces));
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            // Small reads are gathered, so that the writer is not woken for each packet of a network.
            while piece.len() < PIECE {
                match bytes.read_buf(&mut piece).await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(source) => return Err(Error::Source { source }),
                }
            }
            let message = if piece.is_empty() { Piece::End } else { Piece::Bytes(piece) };
            let end = matches!(message, Piece::End);
            // A closed channel means that the writer failed; its answer says how.
            if to.send(message).await.is_err() || end {
                break;
            }
        }
        drop(to);
        let gone = || Error::Source { source: std::io::Error::other("the upload was given up") };
        writer.await.map_err(ended)??.ok_or_else(gone)
    }

    async fn get(&self, digest: Digest, range: Option<Range<u64>>) -> Result<Blob, Error> {
        let path = self.path(digest);
        blocking(move || {
            let mut file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NotFound { digest }),
                Err(error) => return Err(Error::at("opening", &path, error)),
            };
            let size = file.metadata().map_err(|e| Error::at("reading the size of", &path, e))?.len();
            let range = within(digest, range, size)?;
            file.seek(SeekFrom::Start(range.start)).map_err(|e| Error::at("seeking in", &path, e))?;
            let mut file = tokio::fs::File::from_std(file);
            file.set_max_buf_size(PIECE);
            // Callers that read in small pieces would pay a trip to another thread for each.
            let file = tokio::io::BufReader::with_capacity(PIECE / 4, file);
            let reader = Box::new(Exact::new(file, digest, range.end - range.start));
            Ok(Blob { size, range, reader })
        })
        .await
    }

    async fn stat(&self, digest: Digest) -> Result<Option<BlobFacts>, Error> {
        let shared = self.shared.clone();
        blocking(move || shared.facts(digest)).await
    }

    async fn touch(&self, digest: Digest) -> Result<bool, Error> {
        let shared = self.shared.clone();
        blocking(move || shared.touch(digest)).await
    }

    async fn delete(&self, digest: Digest) -> Result<bool, Error> {
        let shared = self.shared.clone();
        blocking(move || shared.delete(digest, false)).await
    }

    fn list(&self) -> BoxStream<'static, Result<BlobFacts, Error>> {
        let (to, facts) = mpsc::channel(64);
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = shared.walk(&to) {
                // Nobody to tell when the listener has gone.
                let _ = to.blocking_send(Err(error));
            }
        });
        tokio_stream::wrappers::ReceiverStream::new(facts).boxed()
    }

    async fn free_space(&self) -> Result<Option<u64>, Error> {
        let root = self.shared.root.clone();
        blocking(move || {
            let space = nix::sys::statvfs::statvfs(&root)
                .map_err(|errno| Error::at("asking for the free space of", &root, errno.into()))?;
            Ok(Some(space.blocks_available().saturating_mul(space.fragment_size())))
        })
        .await
    }

    async fn bury(&self, digest: Digest, seen: Timestamp) -> Result<bool, Error> {
        let shared = self.shared.clone();
        blocking(move || shared.bury(digest, seen)).await
    }

    async fn unbury(&self, digest: Digest) -> Result<(), Error> {
        let shared = self.shared.clone();
        blocking(move || {
            let _guard = shared.lock(digest);
            remove_if_there(&shared.tombstone(digest)).map(|_| ())
        })
        .await
    }

    async fn delete_buried(&self, digest: Digest) -> Result<bool, Error> {
        let shared = self.shared.clone();
        blocking(move || shared.delete(digest, true)).await
    }
}

/// A part file; removed when dropped. After its rename there is nothing left to remove.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        // A part that cannot be removed now is swept when the folder is opened next.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

/// The error of a blocking task that did not end by itself: the runtime is shutting down.
fn ended(error: tokio::task::JoinError) -> Error {
    Error::Failed {
        action: "waiting",
        object: "the thread that touches the disk".into(),
        source: std::io::Error::other(error),
    }
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|open| open.sync_all()).map_err(|e| Error::at("syncing", folder, e))
}

fn remove_if_there(path: &Path) -> Result<bool, Error> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::at("removing", path, error)),
    }
}

fn metadata_if_there(path: &Path) -> Result<Option<std::fs::Metadata>, Error> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::at("reading the facts of", path, error)),
    }
}

/// Modification time. A blob without one counts as stored at the end of time, so the collector never finds it old
/// enough.
fn modified(metadata: &std::fs::Metadata) -> Timestamp {
    let since_epoch =
        metadata.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let micros = since_epoch.and_then(|age| i64::try_from(age.as_micros()).ok());
    Timestamp::from_micros(micros.unwrap_or(i64::MAX))
}

fn children(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |e| Error::at("listing", folder, e);
    std::fs::read_dir(folder)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()).map_err(failed))
        .collect()
}
