//! The twin: a store that keeps everything in memory, for tests. It passes the same suite as the store on disk.

use super::large::{Large, Spool};
use super::sum::Sum;
use super::{
    Body, Clock, Facts, Found, Limits, Listed, Outcome, Place, Policy, Provenance, Put, ScopeUse, Settled,
    Store, StoreError, Totals, Which,
};
use crate::name::{Name, NameHash};
use forgeyard_model::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct Entry {
    name: Name,
    facts: Facts,
    bytes: Vec<u8>,
    large: bool,
    by: Provenance,
    used: Timestamp,
}

/// Entries in memory. Large contents come from and go to files in a folder that the test gives, as the port demands.
pub struct MemoryStore {
    folder: PathBuf,
    clock: Clock,
    entries: Mutex<HashMap<NameHash, Entry>>,
    next: AtomicU64,
    /// Scopes over their quota whose entries are leased.
    full: Mutex<BTreeSet<String>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(folder: impl Into<PathBuf>, clock: Clock) -> Self {
        Self {
            folder: folder.into(),
            clock,
            entries: Mutex::default(),
            next: AtomicU64::new(0),
            full: Mutex::default(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<NameHash, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn whole(large: &Large) -> Result<Vec<u8>, StoreError> {
    let (mut all, mut piece) = (Vec::new(), Vec::new());
    for number in 0..large.pieces() {
        large.piece(number, &mut piece)?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

impl Store for MemoryStore {
    fn get(&self, name: NameHash, buffer: &mut Vec<u8>) -> Result<Option<Found>, StoreError> {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&name) else { return Ok(None) };
        entry.used = entry.used.max((self.clock)());
        let facts = entry.facts;
        if entry.large {
            let mut spool = self.spool()?;
            spool.write(&entry.bytes)?;
            // the open file outlives its name
            return Ok(Some(Found { facts, place: Place::Large(spool.finish(false)?.open()?) }));
        }
        buffer.clear();
        buffer.extend_from_slice(&entry.bytes);
        Ok(Some(Found { facts, place: Place::Buffer(0..buffer.len()) }))
    }

    fn facts(&self, name: NameHash) -> Result<Option<Facts>, StoreError> {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&name) else { return Ok(None) };
        entry.used = entry.used.max((self.clock)());
        Ok(Some(entry.facts))
    }

    fn lease(&self, name: NameHash, minutes: u32) -> Result<bool, StoreError> {
        let until = (self.clock)().plus(Duration::from_secs(u64::from(minutes) * 60));
        let mut entries = self.entries();
        let entry = entries.get_mut(&name);
        Ok(entry.map(|entry| entry.used = entry.used.max(until)).is_some())
    }

    fn put(&self, name: &Name, body: Body<'_>, policy: Policy, by: &Provenance) -> Result<Put, StoreError> {
        if name.key.len() > crate::name::LONGEST_KEY {
            return Err(StoreError::TooLong("key"));
        }
        if self.full.lock().unwrap_or_else(PoisonError::into_inner).contains(name.scope.as_str()) {
            return Err(StoreError::Full("a new entry of its scope: clients were promised what is there"));
        }
        let (bytes, large, sum) = match body {
            Body::Inline(bytes) => (bytes.to_vec(), false, Sum::for_kind(name.kind)),
            Body::Checked(bytes, _) => (bytes.to_vec(), false, Sum::Sha256),
            Body::Large(finished) => (whole(&finished.open()?)?, true, Sum::Sha256),
        };
        let now = (self.clock)();
        let facts = Facts { digest: sum.of(&bytes), size: bytes.len() as u64, stored_at: now };
        let mut entries = self.entries();
        let outcome = match entries.get(&name.hash()) {
            None => Outcome::New,
            Some(entry) if entry.facts.digest == facts.digest => Outcome::Same,
            Some(_) if policy == Policy::Keep => Outcome::Kept,
            Some(_) => Outcome::Replaced,
        };
        if matches!(outcome, Outcome::New | Outcome::Replaced) {
            let entry = Entry { name: name.clone(), facts, bytes, large, by: by.clone(), used: now };
            entries.insert(name.hash(), entry);
        } else if let Some(entry) = entries.get_mut(&name.hash()) {
            entry.used = entry.used.max(now);
        }
        Ok(Put { outcome, ticket: 0 })
    }

    fn settled(&self, _ticket: u64) -> Settled {
        Box::pin(std::future::ready(Ok(())))
    }

    fn spool(&self) -> Result<Spool, StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Spool::create(self.folder.join(format!("{number}.part")))
    }

    fn remove(&self, name: &Name) -> Result<bool, StoreError> {
        Ok(self.entries().remove(&name.hash()).is_some())
    }

    fn remove_all(&self, which: &Which) -> Result<u64, StoreError> {
        let mut entries = self.entries();
        let before = entries.len();
        entries.retain(|_, entry| !which.means(entry.name.scope.as_str(), &entry.name.key, &entry.by));
        Ok((before - entries.len()) as u64)
    }

    fn list(&self, scope: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        let now = (self.clock)();
        let entries = self.entries();
        let mut all: Vec<(NameHash, Listed)> = entries
            .iter()
            .filter(|(_, entry)| scope.is_none_or(|scope| entry.name.scope.as_str() == scope))
            .map(|(hash, entry)| {
                let listed = Listed {
                    scope: entry.name.scope.to_string(),
                    kind: entry.name.kind,
                    key: entry.name.key.clone(),
                    digest: entry.facts.digest,
                    size: entry.facts.size,
                    stored_at: entry.facts.stored_at,
                    idle_minutes: (now.since(entry.used).as_secs() / 60) as u32,
                    by: entry.by.clone(),
                };
                (*hash, listed)
            })
            .collect();
        all.sort_by_key(|(hash, _)| *hash);
        Ok(all.into_iter().map(|(_, listed)| listed).collect())
    }

    fn uses(&self) -> Vec<ScopeUse> {
        let mut uses: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for entry in self.entries().values() {
            let count = uses.entry(entry.name.scope.to_string()).or_default();
            count.0 += 1;
            count.1 += entry.facts.size;
        }
        uses.into_iter().map(|(scope, (entries, bytes))| ScopeUse { scope, entries, bytes }).collect()
    }

    fn totals(&self) -> Totals {
        let names = self.entries().len() as u64;
        Totals { names, ..Totals::default() }
    }

    fn maintain(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError> {
        let now = (self.clock)();
        for scope in self.uses() {
            let limits = limits(&scope.scope);
            let mut entries = self.entries();
            let mut old: Vec<(Timestamp, u64, NameHash)> = entries
                .iter()
                .filter(|(_, entry)| entry.name.scope.as_str() == scope.scope)
                .map(|(hash, entry)| (entry.used, entry.facts.size, *hash))
                .collect();
            old.sort_by_key(|entry| entry.0);
            let mut bytes = scope.bytes;
            let over = limits.bytes.is_some_and(|most| bytes > most);
            for (used, size, hash) in old {
                let down_to = limits.bytes.map_or(u64::MAX, |most| (most as f64 * 0.9) as u64);
                let idle = now.since(used).as_secs() / 60;
                let aged = limits.idle_minutes.is_some_and(|most| idle > u64::from(most));
                if used > now || !(aged || over && bytes > down_to) {
                    break;
                }
                entries.remove(&hash);
                bytes -= size;
            }
            let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
            match limits.bytes.is_some_and(|most| bytes > most) {
                true => full.insert(scope.scope),
                false => full.remove(&scope.scope),
            };
        }
        Ok(())
    }
}
