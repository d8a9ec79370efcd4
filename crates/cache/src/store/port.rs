//! The port, as the log keeps it: see [`super::log`] for the order of things.

use super::append::Segment;
use super::find::AGAIN;
use super::frames::Frames;
use super::index::{Slot, Spot, Word as _};
use super::large::{Large, Spool};
use super::log::{Durability, LogStore, Shared, locked, minute_of};
use super::record::{FRAMES, LARGE, Record, What};
use super::sum::Sum;
use super::{
    Body, Facts, Found, INLINE, Limits, Listed, Outcome, Place, Policy, Provenance, Put, ScopeUse, Settled,
    Store, StoreError, Totals, Which,
};
use crate::name::{LONGEST_KEY, Name, NameHash, half};
use forgeyard_model::{Digest, Timestamp};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

/// Where an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Somebody writes it.
    Writer,
    /// It lies beyond this disk, where it was stored then.
    Beyond(Timestamp),
}

fn check_name(name: &Name, provenance: &[u8]) -> Result<(), StoreError> {
    if name.key.len() > LONGEST_KEY {
        return Err(StoreError::TooLong("key"));
    }
    if provenance.len() > usize::from(u16::MAX) {
        return Err(StoreError::TooLong("provenance"));
    }
    Ok(())
}

impl Shared {
    /// The entry of a slot, if it has this name and is whole.
    fn get_at(
        &self,
        name: NameHash,
        slot: Slot,
        buffer: &mut Vec<u8>,
        stored: &mut Stored,
    ) -> Result<Option<Found>, StoreError> {
        let whole = self.read(slot.segment(), slot.at(), slot.len(), buffer)?.map(|()| Record::read(buffer));
        let Some(Ok((record, head))) = whole else {
            self.forget(name, slot);
            return Ok(None);
        };
        if record.name() != name {
            return Ok(None);
        }
        self.names.touch(name.0, slot, self.minute());
        let facts = Facts { digest: record.digest, size: record.size, stored_at: record.stored_at };
        let range = |head: super::record::Head| head.texts_end()..head.texts_end() + head.payload;
        if record.what.carries() {
            let at = slot.at() + head.texts_end() as u64;
            *stored = match record.flags & FRAMES {
                0 => Stored::Plain(Placed { slot, segment: slot.segment(), digest: facts.digest, at }),
                _ => match Frames::of(record.payload, record.size) {
                    Some(frames) => Stored::Framed(frames),
                    None => {
                        self.forget(name, slot);
                        return Ok(None);
                    }
                },
            };
            return Ok(Some(Found { facts, place: Place::Buffer(range(head)) }));
        }
        if record.flags & LARGE != 0 {
            if let Ok(large) = Large::open(&self.large_path(facts.digest))
                && large.size == facts.size
                && large.digest == facts.digest
            {
                return Ok(Some(Found { facts, place: Place::Large(large) }));
            }
            if !self.went_before(facts.digest) {
                self.forget(name, slot);
                return Ok(None);
            }
        } else {
            let content = half(facts.digest.as_bytes());
            self.ready(content);
            if let Some((spot, head, flags)) = self.content(facts.digest, facts.size, buffer)? {
                self.contents.use_link(content, spot);
                let at = spot.at() + head.texts_end() as u64;
                let frames = || Frames::of(buffer.get(range(head))?, facts.size);
                *stored = match flags & FRAMES {
                    0 => Stored::Plain(Placed { slot, segment: spot.segment(), digest: facts.digest, at }),
                    _ => match frames() {
                        Some(frames) => Stored::Framed(frames),
                        None => {
                            self.forget_content(content, spot);
                            return Ok(None);
                        }
                    },
                };
                return Ok(Some(Found { facts, place: Place::Buffer(range(head)) }));
            }
        }
        self.forget_dangling(name, slot);
        Ok(None)
    }

    /// The slot and the facts of a name whose content is there too; that is used through its link.
    pub(super) fn known(&self, name: NameHash) -> Result<Option<(Slot, Facts)>, StoreError> {
        self.ready(name.0);
        let found = self.find(name, |record| {
            let facts = Facts { digest: record.digest, size: record.size, stored_at: record.stored_at };
            (facts, record.what, record.flags & LARGE != 0)
        })?;
        let Some((slot, (facts, what, large))) = found else { return Ok(None) };
        if what == What::Entry {
            self.names.carries(name.0, slot);
        }
        let there = match (what, large) {
            (What::Link, true) => locked(&self.large).contains_key(&facts.digest),
            (What::Link, false) => {
                let content = half(facts.digest.as_bytes());
                self.ready(content);
                let spot = self.has_content(facts.digest)?;
                if let Some(spot) = spot {
                    self.contents.use_link(content, spot);
                }
                spot.is_some()
            }
            _ => true,
        };
        if !there {
            self.forget_dangling(name, slot);
            return Ok(None);
        }
        Ok(Some((slot, facts)))
    }

    /// What a put must know before it has the log: whether the name is taken, and whether the content is there. Both are
    /// read whole, since a put that relies on damaged bytes would be acknowledged and lost.
    fn prepare(
        &self,
        name: NameHash,
        digest: Digest,
        inline: Option<u64>,
    ) -> Result<Option<Spot>, StoreError> {
        let content = half(digest.as_bytes());
        self.ready(name.0);
        self.ready(content);
        let mut buffer = Vec::new();
        for slot in self.names.find(name.0) {
            // forgets it when it is not whole
            if let Some(found) = self.get_at(name, slot, &mut buffer, &mut Stored::File)?
                && let Place::Large(large) = found.place
                && found.facts.digest == digest
            {
                let mut pieces = 0..large.pieces();
                if !pieces.all(|piece| large.piece(piece, &mut buffer).is_ok()) {
                    self.forget(name, slot);
                }
            }
        }
        match inline {
            Some(size) => Ok(self.content(digest, size, &mut buffer)?.map(|(spot, ..)| spot)),
            None => Ok(None),
        }
    }

    /// Stores an entry. One that comes from a writer takes the place of what lies beyond this disk; one that comes from there must
    /// not take the place of anything, see [`super::beyond`].
    pub(super) fn put_entry(
        &self,
        name: &Name,
        body: Body<'_>,
        policy: Policy,
        by: &Provenance,
        from: Source,
    ) -> Result<Put, StoreError> {
        let shared = self;
        let provenance = serde_json::to_vec(by).unwrap_or_default();
        check_name(name, &provenance)?;
        let (sum, digest, size, inline) = match &body {
            Body::Inline(bytes) | Body::Checked(bytes, _) if bytes.len() as u64 > INLINE => {
                return Err(StoreError::TooLong("content"));
            }
            Body::Inline(bytes) => {
                let (sum, size) = (Sum::for_kind(name.kind), bytes.len() as u64);
                (sum, sum.of(bytes), size, Some(size))
            }
            Body::Checked(bytes, digest) => {
                (Sum::Sha256, *digest, bytes.len() as u64, Some(bytes.len() as u64))
            }
            Body::Large(large) => (Sum::Sha256, large.digest, large.size, None),
        };
        if size > shared.config.capacity || shared.disk_bytes() + size > shared.hard_limit() {
            return Err(StoreError::Full("an entry within the capacity of the cache"));
        }
        let hash = name.hash();
        let now = (shared.clock)();
        let minute = minute_of(now);
        let content = half(digest.as_bytes());
        let (scope, count) = shared.scope(name.scope.as_str())?;
        if count.full.load(Relaxed) {
            return Err(StoreError::Full("a new entry of its scope: clients were promised what is there"));
        }
        let known = shared.prepare(hash, digest, inline)?;
        let mut writer = locked(&shared.writer);
        let existing = shared.find(hash, |record| (record.digest, record.sum))?;
        let mut outcome = Outcome::New;
        if let Some((slot, (before, its))) = existing {
            // an entry may have been stored when its kind had another digest
            let same = before == digest
                || match &body {
                    Body::Inline(bytes) | Body::Checked(bytes, _) => its != sum && its.of(bytes) == before,
                    Body::Large(_) => false,
                };
            let kept = match (same, policy) {
                (true, _) => Some(Outcome::Same),
                (false, Policy::Keep) => Some(Outcome::Kept),
                (false, Policy::Replace) => None,
            };
            if let Some(outcome) = kept {
                shared.names.touch(hash.0, slot, minute);
                return Ok(Put { outcome, ticket: writer.sequence });
            }
            outcome = Outcome::Replaced;
        }
        let mut record = Record {
            what: What::Entry,
            flags: 0,
            kind: name.kind,
            scope: name.scope.as_str(),
            key: &name.key,
            provenance: &provenance,
            stored_at: now,
            digest,
            sum,
            size,
            payload: &[],
        };
        if let Some(beyond) = &shared.beyond {
            match from {
                Source::Writer => drop(beyond.supersede(hash)?),
                Source::Beyond(stored_at) => {
                    if !beyond.may_arrive(&Record { stored_at, ..record.clone() }, by) {
                        return Err(StoreError::Superseded);
                    }
                }
            }
        }
        // it may have been dropped since it was looked at
        let known = known.filter(|known| shared.contents.find(content).any(|spot| spot.same_place(*known)));
        let large = match body {
            Body::Large(large) => {
                record.what = What::Link;
                record.flags |= LARGE;
                let path = shared.large_path(digest);
                if !locked(&shared.large).contains_key(&digest) || !path.exists() {
                    large.place(&path)?;
                }
                true
            }
            Body::Inline(bytes) | Body::Checked(bytes, _) => {
                match known {
                    Some(_) => record.what = What::Link,
                    None => record.payload = bytes,
                }
                false
            }
        };
        let (segment, at) = shared.append(&mut writer, &record)?;
        let slot = Slot::new(segment, at, record.len(), minute, scope).carrying(record.what.carries());
        match known {
            _ if large => {
                writer.active.large.fetch_add(size, Relaxed);
                shared.name_large(digest, size);
            }
            Some(spot) => shared.contents.use_link(content, spot),
            None => shared.contents.add(content, Spot::new(segment, at)),
        }
        shared.count_in(slot, size);
        match existing {
            Some((before, _)) => {
                shared.names.replace(hash.0, before, slot);
                shared.uncount(before);
            }
            None => shared.names.add(hash.0, slot),
        }
        Ok(Put { outcome, ticket: writer.sequence })
    }

    pub(super) fn new_spool(&self) -> Result<Spool, StoreError> {
        let number = self.next_part.fetch_add(1, Relaxed);
        Spool::create(self.config.folder.join("incoming").join(format!("{number}.part")))
    }
}

/// How the bytes of an entry are stored that were read and found whole.
#[derive(Debug)]
pub enum Stored {
    /// In a file of their own.
    File,
    /// In the log as they are.
    Plain(Placed),
    /// In the log, compressed.
    Framed(Frames),
}

/// Where the bytes of an entry lie that were read and found whole.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    slot: Slot,
    segment: u32,
    digest: Digest,
    /// Place of the bytes in the file.
    pub at: u64,
}

/// A file of the log, to send from. It stays readable after it was evicted.
#[derive(Debug, Clone)]
pub struct Log(Arc<Segment>);

impl Log {
    /// The file.
    pub fn file(&self) -> &std::fs::File {
        &self.0.file
    }
}

impl LogStore {
    /// As [`Store::get`], but the bytes are in the buffer as they are stored, and it says how that is. Whoever asks wants the
    /// content as it is: one that is asked for so stays plain.
    pub fn get_stored(
        &self,
        name: NameHash,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Found, Stored)>, StoreError> {
        let found = self.get_either(name, buffer)?;
        if let Some((found, stored)) = &found {
            let digest = found.facts.digest;
            self.shared.plain_reads.note(half(digest.as_bytes()) as u64);
            let framed = match &found.place {
                Place::Large(large) => large.frames().is_some(),
                Place::Buffer(_) => matches!(stored, Stored::Framed(_)),
            };
            if framed {
                self.shared.note_decoded(digest);
            }
        }
        Ok(found)
    }

    /// As [`LogStore::get_stored`], for somebody to whom the compressed form is as welcome.
    pub fn get_either(
        &self,
        name: NameHash,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Found, Stored)>, StoreError> {
        let shared = &self.shared;
        shared.ready(name.0);
        let mut stored = Stored::File;
        for _ in 0..AGAIN {
            let mut any = false;
            for slot in shared.names.find(name.0) {
                any = true;
                if let Some(found) = shared.get_at(name, slot, buffer, &mut stored)? {
                    return Ok(Some((found, stored)));
                }
            }
            if !any {
                break;
            }
        }
        Ok(None)
    }

    /// Whether an entry still lies at this place; marks it as used.
    pub fn stands(&self, name: NameHash, placed: &Placed) -> bool {
        let shared = &self.shared;
        let slot = shared.names.find(name.0).find(|slot| slot.same_place(placed.slot));
        let Some(slot) = slot else { return false };
        shared.names.touch(name.0, slot, shared.minute());
        shared.plain_reads.note(half(placed.digest.as_bytes()) as u64);
        true
    }

    /// The file in which an entry still lies at this place; marks it as used.
    pub fn still(&self, name: NameHash, placed: &Placed) -> Option<Log> {
        self.stands(name, placed).then(|| self.shared.segment(placed.segment))?.map(Log)
    }
}

impl Store for LogStore {
    fn get(&self, name: NameHash, buffer: &mut Vec<u8>) -> Result<Option<Found>, StoreError> {
        let Some((mut found, stored)) = self.get_stored(name, buffer)? else { return Ok(None) };
        if let (Stored::Framed(frames), Place::Buffer(range)) = (&stored, &mut found.place) {
            let mut plain = Vec::new();
            let decoded = frames.decode_all(buffer.get(range.clone()).unwrap_or_default(), &mut plain);
            if decoded.is_none() {
                self.shared.undecodable(name);
                return Ok(None);
            }
            (*buffer, *range) = (plain, 0..found.facts.size as usize);
        }
        Ok(Some(found))
    }

    fn facts(&self, name: NameHash) -> Result<Option<Facts>, StoreError> {
        let shared = &self.shared;
        let Some((slot, facts)) = shared.known(name)? else { return Ok(None) };
        shared.names.touch(name.0, slot, shared.minute());
        Ok(Some(facts))
    }

    fn lease(&self, name: NameHash, minutes: u32) -> Result<bool, StoreError> {
        let shared = &self.shared;
        let now = shared.minute();
        shared.ready(name.0);
        if shared.names.promise(name.0, now.wrapping_add(minutes), now) {
            return Ok(true);
        }
        while let Some((slot, _)) = shared.known(name)? {
            if shared.names.lease(name.0, slot, now.wrapping_add(minutes), now) {
                return Ok(true);
            }
            // it was moved while it was looked at
        }
        Ok(false)
    }

    fn put(&self, name: &Name, body: Body<'_>, policy: Policy, by: &Provenance) -> Result<Put, StoreError> {
        self.shared.put_entry(name, body, policy, by, Source::Writer)
    }

    fn settled(&self, ticket: u64) -> Settled {
        let shared = Arc::clone(&self.shared);
        if shared.config.durability == Durability::PageCache {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(async move {
            let mut synced = shared.synced.subscribe();
            {
                let mut wanted = locked(&shared.wanted);
                wanted.ticket = wanted.ticket.max(ticket);
            }
            shared.wake.notify_one();
            let reached = |done: &u64| *done >= ticket || shared.broken.load(Relaxed);
            let done = synced.wait_for(reached).await.map_or(0, |done| *done);
            if done >= ticket { Ok(()) } else { Err(StoreError::Broken) }
        })
    }

    fn spool(&self) -> Result<Spool, StoreError> {
        self.shared.new_spool()
    }

    fn remove(&self, name: &Name) -> Result<bool, StoreError> {
        let shared = &self.shared;
        shared.ready(name.hash().0);
        let mut writer = locked(&shared.writer);
        shared.drop_name(&mut writer, name.scope.as_str(), name.kind, &name.key)
    }

    fn remove_all(&self, which: &Which) -> Result<u64, StoreError> {
        self.shared.remove_all(which)
    }

    fn list(&self, scope: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        self.shared.list(scope)
    }

    fn uses(&self) -> Vec<ScopeUse> {
        let scopes = self.shared.scopes.read().unwrap_or_else(PoisonError::into_inner);
        let positive = |count: &AtomicI64| u64::try_from(count.load(Relaxed)).unwrap_or(0);
        let uses = scopes.counts.iter().map(|count| ScopeUse {
            scope: count.path.to_string(),
            entries: positive(&count.entries),
            bytes: positive(&count.bytes),
        });
        uses.filter(|scope| scope.entries > 0).collect()
    }

    fn totals(&self) -> Totals {
        self.shared.totals()
    }

    fn maintain(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError> {
        self.shared.maintain(limits)
    }
}
