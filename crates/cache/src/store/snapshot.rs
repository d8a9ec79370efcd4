//! The snapshot of the index: written while puts go on, read while requests are answered.
//!
//! ```text
//! index.snap   "FYSNAP3\n", length of the head u32, CRC-32 of the head u32, head, then the images of the shards
//! head         segment u32 and place u64 in the log up to which it holds
//!              number of scopes u32, each: length u16, path, entries i64, bytes i64
//!              number of segments u32, each: number u32, bytes alive i64, minute of the last write u32
//!              number of large contents u32, each: SHA-256, names u32, size u64
//!              for each of the 1024 shards of names: places u32, of which full u32; the same for contents
//! image        CRC-32 of what follows u32, places as `index` packs them; names first, then contents
//!                                                                        all numbers little-endian
//! ```
//!
//! **Writing** stops puts only while the place in the log and the counts are noted. From then on every shard remembers that
//! it must be saved before it changes: whoever changes it first writes its image, and the writer of the snapshot writes the
//! rest. So the file shows one moment, at no more memory than one image. It is synced, after the log, and renamed.
//!
//! **Reading** takes the head alone; the shards stay *away* until somebody asks for one of theirs, or until the thread in
//! the background comes to it. What the log says since the snapshot waits, sorted by shard, and is applied to each as it
//! comes in. So a request that comes early waits for one image, and an unknown name is a miss only once its shard was
//! looked at. An image that does not hold leaves its shard empty; the log is then read for it, in the background.

use super::StoreError;
use super::index::{SHARDS, Slot, Spot, Table, Word, shard_of};
use super::log::{Shared, locked};
use forgeyard_model::Digest;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, PoisonError};

const MAGIC: &[u8; 8] = b"FYSNAP3\n";
/// How the snapshot of any version begins; a digit and the end of a line follow.
const ANY_VERSION: &[u8; 6] = b"FYSNAP";
/// A head is a few megabytes at most.
const LONGEST_HEAD: u32 = 1 << 30;

/// What the log says of a name since the snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    /// Hash of the name.
    pub(super) hash: u128,
    /// The slot; nothing when the name was taken away.
    pub(super) slot: Option<Slot>,
    /// Size of the content.
    pub(super) size: u64,
    /// The content is a large one, for which the name was counted.
    pub(super) large: bool,
}

/// A shard that is still in the snapshot.
#[derive(Debug)]
pub(super) struct Away<W> {
    file: Arc<File>,
    at: u64,
    places: u32,
    pub(super) full: u32,
    word: PhantomData<W>,
}

impl<W: Word> Away<W> {
    /// The places, when the image holds.
    fn read(&self, bytes: &mut Vec<u8>) -> Option<Vec<W>> {
        bytes.resize(4 + self.places as usize * W::BYTES, 0);
        self.file.read_exact_at(bytes, self.at).ok()?;
        let (crc, image) = bytes.split_at_checked(4)?;
        if crc32fast::hash(image).to_le_bytes() != crc {
            return None;
        }
        let places: Vec<W> = image.chunks_exact(W::BYTES).map(W::read).collect();
        let full = places.iter().filter(|word| **word != W::default()).count();
        // a table without a free place would be probed forever
        (full == self.full as usize && (full < places.len() || places.is_empty())).then_some(places)
    }
}

/// Where a shard is to be saved before it changes.
#[derive(Debug)]
pub(super) struct Save {
    file: Arc<File>,
    at: u64,
    failed: Arc<AtomicBool>,
}

impl Save {
    pub(super) fn write(&self, image: &[u8]) {
        let crc = crc32fast::hash(image).to_le_bytes();
        let written = self.file.write_all_at(&crc, self.at);
        if let Err(error) = written.and_then(|()| self.file.write_all_at(image, self.at + 4)) {
            tracing::warn!("writing a part of the index: {error}");
            self.failed.store(true, Relaxed);
        }
    }
}

fn plan<W: Word>(table: &Table<W>, head: &mut Vec<u8>) -> Vec<u64> {
    let mut lengths = Vec::with_capacity(SHARDS);
    for number in 0..SHARDS {
        let shard = table.lock(number);
        head.extend_from_slice(&(shard.places.len() as u32).to_le_bytes());
        head.extend_from_slice(&(shard.full as u32).to_le_bytes());
        lengths.push(4 + (shard.places.len() * W::BYTES) as u64);
    }
    lengths
}

fn mark<W: Word>(
    table: &Table<W>,
    lengths: &[u64],
    at: &mut u64,
    file: &Arc<File>,
    failed: &Arc<AtomicBool>,
) {
    for (number, length) in lengths.iter().enumerate() {
        let save = Save { file: Arc::clone(file), at: *at, failed: Arc::clone(failed) };
        table.lock(number).save = Some(Box::new(save));
        *at += length;
    }
}

fn save<W: Word>(table: &Table<W>) {
    for number in 0..SHARDS {
        let mut shard = table.lock(number);
        if let Some(save) = shard.save.take() {
            let image = shard.image();
            drop(shard);
            save.write(&image);
        }
    }
}

impl Shared {
    /// Writes the snapshot. Puts wait only while its place in the log is noted.
    pub(super) fn snapshot(&self) -> Result<(), StoreError> {
        self.load_all();
        let path = self.config.folder.join("index.snap");
        let beside = self.config.folder.join("index.snap.new");
        let failed = || StoreError::io("writing", &beside);
        let file = Arc::new(File::create(&beside).map_err(failed())?);
        let broken = Arc::new(AtomicBool::new(false));
        let (unsynced, written) = {
            let mut writer = locked(&self.writer);
            let mut head = self.counts_now(writer.active.number, writer.active.size.load(Relaxed));
            let names = plan(&self.names, &mut head);
            let contents = plan(&self.contents, &mut head);
            let mut at = 16 + head.len() as u64;
            mark(&self.names, &names, &mut at, &file, &broken);
            mark(&self.contents, &contents, &mut at, &file, &broken);
            let written = file.write_all_at(MAGIC, 0).and_then(|()| {
                file.write_all_at(&(head.len() as u32).to_le_bytes(), 8)?;
                file.write_all_at(&crc32fast::hash(&head).to_le_bytes(), 12)?;
                file.write_all_at(&head, 16)
            });
            let mut unsynced = std::mem::take(&mut writer.unsynced);
            unsynced.push(Arc::clone(&writer.active));
            writer.behind = 0;
            (unsynced, written)
        };
        save(&self.names);
        save(&self.contents);
        written.map_err(failed())?;
        if broken.load(Relaxed) {
            return Err(failed()(std::io::Error::other("a part of it was not written")));
        }
        // a snapshot must not promise what the log does not hold yet
        for segment in unsynced {
            segment.file.sync_data().map_err(StoreError::io("syncing", &segment.path))?;
        }
        file.sync_data().map_err(failed())?;
        fs_err::rename(&beside, &path).map_err(StoreError::io("renaming to", &path))
    }

    fn counts_now(&self, segment: u32, at: u64) -> Vec<u8> {
        let mut head = Vec::new();
        head.extend_from_slice(&segment.to_le_bytes());
        head.extend_from_slice(&at.to_le_bytes());
        let counts = self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.clone();
        head.extend_from_slice(&(counts.len() as u32).to_le_bytes());
        for count in counts {
            head.extend_from_slice(&(count.path.len() as u16).to_le_bytes());
            head.extend_from_slice(count.path.as_bytes());
            head.extend_from_slice(&count.entries.load(Relaxed).to_le_bytes());
            head.extend_from_slice(&count.bytes.load(Relaxed).to_le_bytes());
        }
        let segments = self.all_segments();
        head.extend_from_slice(&(segments.len() as u32).to_le_bytes());
        for segment in segments {
            head.extend_from_slice(&segment.number.to_le_bytes());
            head.extend_from_slice(&segment.live.load(Relaxed).to_le_bytes());
            head.extend_from_slice(&segment.written.load(Relaxed).to_le_bytes());
        }
        let large = locked(&self.large);
        head.extend_from_slice(&(large.len() as u32).to_le_bytes());
        for (digest, (names, size)) in large.iter() {
            head.extend_from_slice(digest.as_bytes());
            head.extend_from_slice(&names.to_le_bytes());
            head.extend_from_slice(&size.to_le_bytes());
        }
        head
    }
}

/// Why there is no snapshot to go on from: then the whole log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoHead {
    /// A new folder, or a process that was killed before it wrote one.
    #[error("there is none")]
    Absent,
    /// Another version of this program wrote it.
    #[error("it is in version {0}, and this program reads version 3")]
    Version(char),
    /// It is something else, or its checksum does not hold.
    #[error("it does not hold")]
    Damaged,
}

/// Head of a snapshot that holds.
pub(super) struct Head {
    file: Arc<File>,
    images_at: u64,
    length: u64,
    pub(super) segment: u32,
    pub(super) at: u64,
    pub(super) scopes: Vec<(String, i64, i64)>,
    pub(super) segments: BTreeMap<u32, (i64, u32)>,
    pub(super) large: HashMap<Digest, (u32, u64)>,
    names: Vec<(u32, u32)>,
    contents: Vec<(u32, u32)>,
}

/// Reads from bytes that may end anywhere.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn shards(&mut self) -> Option<Vec<(u32, u32)>> {
        (0..SHARDS).map(|_| Some((self.u32()?, self.u32()?))).collect()
    }
}

impl Head {
    /// Of the file at this path, when there is one that holds.
    pub(super) fn read(path: &Path) -> Result<Self, NoHead> {
        Self::read_own(path).ok_or_else(|| {
            let Ok(mut file) = File::open(path) else { return NoHead::Absent };
            let mut magic = [0; 8];
            let read = std::io::Read::read_exact(&mut file, &mut magic).is_ok();
            match magic.strip_prefix(ANY_VERSION) {
                Some([version, b'\n']) if read && magic != *MAGIC => NoHead::Version(char::from(*version)),
                _ => NoHead::Damaged,
            }
        })
    }

    fn read_own(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let mut fixed = [0; 16];
        file.read_exact_at(&mut fixed, 0).ok()?;
        let mut input = Input(&fixed);
        if input.take(8)? != MAGIC {
            return None;
        }
        let (head, crc) = (input.u32()?, input.u32()?);
        if head > LONGEST_HEAD || u64::from(head) > length {
            return None;
        }
        let mut bytes = vec![0; head as usize];
        file.read_exact_at(&mut bytes, 16).ok()?;
        if crc32fast::hash(&bytes) != crc {
            return None;
        }
        let mut input = Input(&bytes);
        let (segment, at) = (input.u32()?, input.u64()?);
        let (mut scopes, mut segments, mut large) = (Vec::new(), BTreeMap::new(), HashMap::new());
        for _ in 0..input.u32()? {
            let length = u16::from_le_bytes(input.array()?);
            let path = std::str::from_utf8(input.take(usize::from(length))?).ok()?;
            scopes.push((path.to_owned(), input.i64()?, input.i64()?));
        }
        for _ in 0..input.u32()? {
            segments.insert(input.u32()?, (input.i64()?, input.u32()?));
        }
        for _ in 0..input.u32()? {
            let digest = Digest::from_bytes(input.array()?);
            large.insert(digest, (input.u32()?, input.u64()?));
        }
        let (names, contents) = (input.shards()?, input.shards()?);
        let images_at = 16 + u64::from(head);
        let bytes_of = |shards: &[(u32, u32)], width: usize| -> u64 {
            shards.iter().map(|(places, _)| 4 + u64::from(*places) * width as u64).sum()
        };
        let all = bytes_of(&names, Slot::BYTES) + bytes_of(&contents, Spot::BYTES);
        (images_at + all == length && input.0.is_empty()).then_some(Self {
            file: Arc::new(file),
            images_at,
            length,
            segment,
            at,
            scopes,
            segments,
            large,
            names,
            contents,
        })
    }

    /// Leaves the shards where they are, until somebody asks for them.
    pub(super) fn hang(&self, names: &Table<Slot>, contents: &Table<Spot>) {
        let mut at = self.images_at;
        self.hang_table(&self.names, names, &mut at);
        self.hang_table(&self.contents, contents, &mut at);
        debug_assert_eq!(at, self.length);
    }

    fn hang_table<W: Word>(&self, shards: &[(u32, u32)], table: &Table<W>, at: &mut u64) {
        for (number, (places, full)) in shards.iter().enumerate() {
            let file = Arc::clone(&self.file);
            let away = Away { file, at: *at, places: *places, full: *full, word: PhantomData };
            table.lock(number).away = Some(Box::new(away));
            *at += 4 + u64::from(*places) * W::BYTES as u64;
        }
    }
}

/// What is known while shards are away. What the log says lies in two pieces of memory and not beside each shard, so that
/// all of it is given back.
#[derive(Debug, Default)]
pub(super) struct Loading {
    /// Names that the log speaks of, by shard; each once.
    pub(super) names: Vec<Since>,
    /// Contents that the log carries, by shard.
    pub(super) contents: Vec<(u128, Spot)>,
    buffer: Vec<u8>,
    /// Segments that the snapshot knew and that are gone.
    pub(super) gone: BTreeSet<u32>,
    /// Shards of names, and of contents, whose image did not hold.
    pub(super) broken_names: BTreeSet<usize>,
    pub(super) broken_contents: BTreeSet<usize>,
}

impl Shared {
    /// Brings in the shards of a hash, if they are still away. Not with the writer locked.
    pub(super) fn ready(&self, hash: u128) {
        if self.loading.load(Acquire) {
            self.load(shard_of(hash));
        }
    }

    /// Brings in everything.
    pub(super) fn load_all(&self) {
        if self.loading.load(Acquire) {
            (0..SHARDS).for_each(|number| self.load(number));
        }
    }

    /// Whoever waits for the lock finds the shard whole: image and what the log says since.
    pub(super) fn load(&self, number: usize) {
        let loading = locked(&self.load_state);
        self.load_contents(number, loading);
        let loading = locked(&self.load_state);
        self.load_names(number, loading);
    }

    fn load_contents(&self, number: usize, mut loading: MutexGuard<'_, Loading>) {
        let mut shard = self.contents.lock(number);
        let Some(away) = shard.away.take() else { return };
        match away.read(&mut loading.buffer) {
            Some(places) => (shard.places, shard.full) = (places, away.full as usize),
            None => {
                loading.broken_contents.insert(number);
            }
        }
        drop(shard);
        let mut lost = Vec::new();
        if !loading.gone.is_empty() {
            self.contents.each_of(number, |hash, spot| {
                if loading.gone.contains(&spot.segment()) {
                    lost.push((hash, spot));
                }
            });
        }
        for (hash, spot) in lost {
            self.contents.remove(hash, spot);
        }
        let from = loading.contents.partition_point(|(hash, _)| shard_of(*hash) < number);
        for (hash, spot) in loading.contents[from..].iter().take_while(|(hash, _)| shard_of(*hash) == number)
        {
            self.set_content(*hash, *spot);
        }
    }

    fn load_names(&self, number: usize, mut loading: MutexGuard<'_, Loading>) {
        let mut shard = self.names.lock(number);
        let Some(away) = shard.away.take() else { return };
        match away.read(&mut loading.buffer) {
            Some(places) => (shard.places, shard.full) = (places, away.full as usize),
            None => {
                tracing::error!(shard = number, "a part of the snapshot of the index does not hold");
                loading.broken_names.insert(number);
            }
        }
        drop(shard);
        let mut lost = Vec::new();
        if !loading.gone.is_empty() {
            self.names.each_of(number, |hash, slot| {
                if loading.gone.contains(&slot.segment()) {
                    lost.push((hash, slot));
                }
            });
        }
        for (hash, slot) in lost {
            if self.names.remove(hash, slot).is_some() {
                self.uncount(slot);
            }
        }
        let from = loading.names.partition_point(|since| shard_of(since.hash) < number);
        for since in loading.names[from..].iter().take_while(|since| shard_of(since.hash) == number) {
            self.set_name(*since);
        }
    }

    /// Sets what the log says of a name, and counts.
    pub(super) fn set_name(&self, since: Since) {
        let Since { hash, slot, size, .. } = since;
        let before = self.names.find(hash).find(|slot| self.is_named(*slot, hash));
        match (slot, before) {
            (Some(slot), Some(before)) => {
                self.names.replace(hash, before, slot);
            }
            (Some(slot), None) => self.names.add(hash, slot),
            (None, Some(before)) => {
                self.names.remove(hash, before);
            }
            (None, None) => {}
        }
        // counted in before the old one is counted out, so that a large content is not removed in between
        if let Some(slot) = slot {
            self.count_in(slot, size);
        }
        if let Some(before) = before {
            self.uncount(before);
        }
    }

    /// Whether the record of a slot has this name.
    pub(super) fn is_named(&self, slot: Slot, hash: u128) -> bool {
        matches!(self.head(slot.segment(), slot.at(), |record| record.name().0 == hash), Ok(Some(true)))
    }

    /// Sets where a content is.
    pub(super) fn set_content(&self, hash: u128, spot: Spot) {
        let same = |found: &Spot| {
            let half = |record: &super::record::Record<'_>| crate::name::half(record.digest.as_bytes());
            matches!(self.head(found.segment(), found.at(), |record| half(record) == hash), Ok(Some(true)))
        };
        match self.contents.find(hash).find(same) {
            Some(before) => {
                self.contents.replace(hash, before, spot);
            }
            None => self.contents.add(hash, spot),
        }
    }
}
