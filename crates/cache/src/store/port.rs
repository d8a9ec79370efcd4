//! The port, as the log keeps it: see [`super::log`] for the order of things.

use super::index::Slot;
use super::large::{Large, Spool};
use super::log::{Durability, LogStore, locked, minute_of};
use super::record::{LARGE, Record, What};
use super::{
    Body, Facts, Found, INLINE, Limits, Listed, Outcome, Place, Policy, Provenance, Put, ScopeUse, Settled,
    Store, StoreError, Totals, Which,
};
use crate::name::{LONGEST_KEY, Name, NameHash, half};
use forgeyard_model::Digest;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

fn check_name(name: &Name, provenance: &[u8]) -> Result<(), StoreError> {
    if name.key.len() > LONGEST_KEY {
        return Err(StoreError::TooLong("key"));
    }
    if provenance.len() > usize::from(u16::MAX) {
        return Err(StoreError::TooLong("provenance"));
    }
    Ok(())
}

impl Store for LogStore {
    fn get(&self, name: NameHash, buffer: &mut Vec<u8>) -> Result<Option<Found>, StoreError> {
        let shared = &self.shared;
        let Some(slot) = shared.names.touch(name.0, shared.minute()) else { return Ok(None) };
        let whole = shared.read(slot, buffer, usize::MAX)?.map(|()| Record::read(buffer));
        let Some(Ok((record, head))) = whole else {
            shared.forget(name, slot);
            return Ok(None);
        };
        let facts = Facts { digest: record.digest, size: record.size, stored_at: record.stored_at };
        if record.what.carries() {
            let from = head.texts_end();
            return Ok(Some(Found { facts, place: Place::Buffer(from..from + head.payload) }));
        }
        match Large::open(&shared.large_path(facts.digest)) {
            Ok(large) if large.size == facts.size && large.digest == facts.digest => {
                Ok(Some(Found { facts, place: Place::Large(large) }))
            }
            _ => {
                shared.forget(name, slot);
                Ok(None)
            }
        }
    }

    fn facts(&self, name: NameHash) -> Result<Option<Facts>, StoreError> {
        let shared = &self.shared;
        let Some(slot) = shared.names.touch(name.0, shared.minute()) else { return Ok(None) };
        let facts = shared.head(slot, |record| Facts {
            digest: record.digest,
            size: record.size,
            stored_at: record.stored_at,
        })?;
        if facts.is_none() {
            shared.forget(name, slot);
        }
        Ok(facts)
    }

    fn lease(&self, name: NameHash, minutes: u32) -> Result<bool, StoreError> {
        let shared = &self.shared;
        Ok(shared.names.touch(name.0, shared.minute().saturating_add(minutes)).is_some())
    }

    fn put(&self, name: &Name, body: Body<'_>, policy: Policy, by: &Provenance) -> Result<Put, StoreError> {
        let shared = &*self.shared;
        let provenance = serde_json::to_vec(by).unwrap_or_default();
        check_name(name, &provenance)?;
        if shared.promised_away.load(Relaxed) {
            return Err(StoreError::Full("a new entry: clients were promised what is there"));
        }
        let (digest, size) = match &body {
            Body::Inline(bytes) if bytes.len() as u64 > INLINE => return Err(StoreError::TooLong("content")),
            Body::Inline(bytes) => (Digest::of(bytes), bytes.len() as u64),
            Body::Large(large) => (large.digest, large.size),
        };
        let hash = name.hash();
        let now = (shared.clock)();
        let minute = minute_of(now);
        let content = half(digest.as_bytes());
        let (scope, count) = shared.scope(name.scope.as_str());
        if count.full.load(Relaxed) {
            return Err(StoreError::Full("a new entry of its scope: clients were promised what is there"));
        }
        let mut writer = locked(&shared.writer);
        let existing = shared.names.touch(hash.0, minute);
        let mut outcome = Outcome::New;
        if let Some(slot) = existing
            && let Some(before) = shared.head(slot, |record| record.digest)?
        {
            let kept = match (before == digest, policy) {
                (true, _) => Some(Outcome::Same),
                (false, Policy::Keep) => Some(Outcome::Kept),
                (false, Policy::Replace) => None,
            };
            if let Some(outcome) = kept {
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
            size,
            payload: &[],
        };
        let known = shared.contents.get(content).filter(|slot| shared.segment(slot.segment()).is_some());
        let mut target = None;
        match body {
            Body::Large(large) => {
                record.what = What::Link;
                record.flags |= LARGE;
                let path = shared.large_path(digest);
                if !locked(&shared.large).contains_key(&digest) || !path.exists() {
                    large.place(&path)?;
                }
            }
            Body::Inline(bytes) => match known {
                Some(slot) => {
                    record.what = What::Link;
                    target = Some(slot);
                }
                None => record.payload = bytes,
            },
        }
        let (segment, at) = shared.append(&mut writer, &record)?;
        let own = Slot::new(segment, at, record.len() as u32, minute, scope);
        let slot = match target {
            Some(target) => Slot::new(target.segment(), target.at(), target.len(), minute, scope),
            None => own,
        };
        if record.flags & LARGE != 0 {
            let mut large = locked(&shared.large);
            let entry = large.entry(digest).or_insert_with(|| {
                shared.large_bytes.fetch_add(size as i64, Relaxed);
                (0, size)
            });
            entry.0 += 1;
        } else if target.is_none() {
            shared.contents.insert(content, own);
        }
        if let Some(before) = shared.names.insert(hash.0, slot) {
            shared.uncount(before);
        }
        shared.count_in(slot, size);
        Ok(Put { outcome, ticket: writer.sequence })
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
        let number = self.shared.next_part.fetch_add(1, Relaxed);
        Spool::create(self.shared.config.folder.join("incoming").join(format!("{number}.part")))
    }

    fn remove(&self, name: &Name) -> Result<bool, StoreError> {
        let shared = &self.shared;
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
