//! Keeping to the limits, and the slow questions that read the whole log.
//!
//! **Space** comes back by dropping a whole segment: one that is mostly dead, else the oldest. What was used since that segment was last
//! written moves to the end of the log, latest use first, up to half of the segment, so that dropping always frees
//! something. Names that linked to a moved content move with it; the name in the record itself does so only if it still
//! stands for this content. For every other name in the segment that stands for nothing, a drop is written while an older
//! segment exists: there an older record of the name may lie, and would bring a removed entry back at the next start.
//!
//! **Quota and age** of a scope take the entries out of the index that were not used for longest. They write nothing to
//! the log: after a crash such entries may be back until the next round.
//!
//! **Leases** are kept by both: an entry whose last use lies ahead is not taken out, and moves with whatever is hot, also
//! when it was leased while its segment was on its way out. When leased entries fill the disk to a quarter above its
//! capacity, new entries are refused until leases end.

use super::index::{Slot, Taken};
use super::large::Large;
use super::log::{Shared, Writer, locked, minute_of};
use super::record::{HEAD, Head, LARGE, Record, SEGMENT_HEAD, What};
use super::{Limits, Listed, StoreError, Totals, Which};
use crate::name::{Kind, NameHash, half};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt as _;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// How much a scope is brought down to once it is over its quota, so that this is not done for every put.
const DOWN_TO: f64 = 0.9;

/// Reads records of a segment file in order, up to its end or to the first that does not hold; answers with how far that
/// was. It does not look for further records behind a damaged one: what lies there may be the content of an entry, and
/// whoever wrote that content could have made it look like a record of any scope.
pub(super) fn walk(
    segment: &super::log::Segment,
    from: u64,
    mut see: impl FnMut(u64, &Record<'_>, u64) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let end = segment.size.load(Relaxed);
    let mut buffer = Vec::new();
    let read = |buffer: &mut Vec<u8>, at: u64, length: u64| {
        buffer.resize(length.min(end.saturating_sub(at)) as usize, 0);
        let failed = StoreError::io("reading", &segment.path);
        segment.file.read_exact_at(buffer, at).map_err(failed)
    };
    let mut at = from.max(SEGMENT_HEAD);
    while at < end {
        read(&mut buffer, at, 1024)?;
        let Ok(head) = Head::peek(&buffer) else { break };
        // the last record may be cut off, so its payload is checked; the others' are when they are read
        let last = at + head.len() >= end;
        let wanted = if last { head.len() } else { head.texts_end() as u64 };
        if wanted > buffer.len() as u64 {
            read(&mut buffer, at, wanted)?;
        }
        let found = if last { Record::read(&buffer) } else { Record::read_head(&buffer) };
        let Ok((record, head)) = found else { break };
        if at + head.len() > end {
            break;
        }
        see(at, &record, head.len())?;
        at += head.len();
    }
    Ok(at.min(end))
}

impl Shared {
    /// Takes a name away and writes that down.
    pub(super) fn drop_name(
        &self,
        writer: &mut Writer,
        scope: &str,
        kind: Kind,
        key: &str,
    ) -> Result<bool, StoreError> {
        let hash = NameHash::of(scope, kind, key);
        let Some(slot) = self.names.get(hash.0) else { return Ok(false) };
        self.append(writer, &self.dropping(scope, kind, key))?;
        if let Some(gone) = self.names.remove_at(hash.0, slot) {
            self.uncount(gone);
        }
        Ok(true)
    }

    fn dropping<'a>(&self, scope: &'a str, kind: Kind, key: &'a str) -> Record<'a> {
        Record {
            what: What::Drop,
            flags: 0,
            kind,
            scope,
            key,
            provenance: b"",
            stored_at: (self.clock)(),
            digest: forgeyard_model::Digest::from_bytes([0; 32]),
            size: 0,
            payload: &[],
        }
    }

    pub(super) fn list(&self, scope: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        let minute = self.minute();
        let mut all: BTreeMap<NameHash, Listed> = BTreeMap::new();
        for segment in self.all_segments() {
            let good = walk(&segment, SEGMENT_HEAD, |_, record, _| {
                let name = record.name();
                let Some(slot) = self.names.get(name.0) else { return Ok(()) };
                if matches!(record.what, What::Drop | What::Content)
                    || scope.is_some_and(|scope| scope != record.scope)
                {
                    return Ok(());
                }
                let listed = Listed {
                    scope: record.scope.to_owned(),
                    kind: record.kind,
                    key: record.key.to_owned(),
                    digest: record.digest,
                    size: record.size,
                    stored_at: record.stored_at,
                    idle_minutes: minute.saturating_sub(slot.minute()),
                    by: serde_json::from_slice(record.provenance).unwrap_or_default(),
                };
                all.insert(name, listed);
                Ok(())
            })?;
            self.forget_behind(&segment, good);
        }
        Ok(all.into_values().collect())
    }

    /// What lies behind damage can be neither listed nor removed by its writer, so it is not served either.
    fn forget_behind(&self, segment: &super::log::Segment, good: u64) {
        // a segment that grows has been walked up to an earlier end
        let active = locked(&self.writer).active.number == segment.number;
        if active || good >= segment.size.load(Relaxed) {
            return;
        }
        tracing::error!(
            segment = segment.number,
            at = good,
            "a record is damaged; what lies behind it is given up"
        );
        let mut behind = Vec::new();
        self.names.each(|hash, slot| {
            if slot.segment() == segment.number && slot.at() >= good {
                behind.push((hash, slot));
            }
        });
        for (hash, slot) in behind {
            self.forget(NameHash(hash), slot);
        }
    }

    pub(super) fn remove_all(&self, which: &Which) -> Result<u64, StoreError> {
        let mut removed = 0;
        for entry in self.list(None)? {
            if which.means(&entry.scope, &entry.key, &entry.by) {
                let mut writer = locked(&self.writer);
                removed += u64::from(self.drop_name(&mut writer, &entry.scope, entry.kind, &entry.key)?);
            }
        }
        Ok(removed)
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        let segments: u64 = self.all_segments().iter().map(|segment| segment.size.load(Relaxed)).sum();
        segments + u64::try_from(self.large_bytes.load(Relaxed)).unwrap_or(0)
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            disk_bytes: self.disk_bytes(),
            names: self.names.len() as u64,
            contents: self.contents.len() as u64,
            index_bytes: (self.names.memory() + self.contents.memory()) as u64,
            tail_idle_minutes: self
                .candidate(false)
                .map(|segment| self.minute().saturating_sub(segment.written.load(Relaxed))),
        }
    }

    pub(super) fn maintain(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError> {
        let _keeping = locked(&self.keeping);
        self.keep_scopes(limits)?;
        let before = self.disk_bytes();
        let over = |disk: u64| disk > self.config.capacity;
        let leased = if over(before) { self.leased() } else { 0 };
        let (mut disk, mut oldest, mut dropped) = (before, false, false);
        // once through the log is all that can help; with nothing but leases, not even that
        let mut left = if leased < self.config.capacity { 2 * self.all_segments().len() } else { 0 };
        while over(disk) && left > 0 {
            // large contents have names that age; segments are dropped when those do not suffice
            let Some(segment) = self.candidate(oldest) else { break };
            let size = segment.size.load(Relaxed);
            self.drop_segment(&segment)?;
            let now = self.disk_bytes();
            // a segment of drops moves as a whole while an older one is there
            oldest = now + size / 4 > disk;
            (disk, dropped, left) = (now, true, left - 1);
        }
        let hard = self.config.capacity.saturating_add(self.config.capacity / 4);
        self.promised_away.store(leased > 0 && disk > hard, Relaxed);
        if dropped { self.snapshot() } else { Ok(()) }
    }

    /// Bytes of leased records.
    fn leased(&self) -> u64 {
        let (minute, mut leased) = (self.minute(), 0);
        self.names.each(|_, slot| leased += u64::from(slot.len()) * u64::from(slot.minute() > minute));
        leased
    }

    /// The segment that goes next, never the one that grows: the emptiest, if one is less than half alive, else or when
    /// asked for the oldest, whose entries have had the longest time to be used again.
    fn candidate(&self, oldest: bool) -> Option<std::sync::Arc<super::log::Segment>> {
        let mut all = self.all_segments();
        all.pop();
        let alive = |segment: &super::log::Segment| u64::try_from(segment.live.load(Relaxed)).unwrap_or(0);
        let half =
            |segment: &&std::sync::Arc<super::log::Segment>| alive(segment) * 2 < segment.size.load(Relaxed);
        let emptiest =
            all.iter().filter(half).min_by_key(|segment| (alive(segment), segment.number)).cloned();
        emptiest.filter(|_| !oldest).or_else(|| all.into_iter().next())
    }

    fn keep_scopes(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError> {
        let counts = self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.clone();
        let minute = self.minute();
        // number of the scope → (bytes to free, oldest allowed)
        let mut over: HashMap<u32, (u64, Option<u32>)> = HashMap::new();
        for (number, count) in counts.iter().enumerate() {
            let limits = limits(&count.path);
            let bytes = u64::try_from(count.bytes.load(Relaxed)).unwrap_or(0);
            count.full.store(false, Relaxed);
            let free = match limits.bytes {
                Some(most) if bytes > most => bytes - (most as f64 * DOWN_TO) as u64,
                _ => 0,
            };
            if free > 0 || limits.idle_minutes.is_some() {
                over.insert(number as u32, (free, limits.idle_minutes));
            }
        }
        if over.is_empty() {
            return Ok(());
        }
        let mut old: HashMap<u32, Vec<(u32, u128, Slot)>> = HashMap::new();
        self.names.each(|hash, slot| {
            if over.contains_key(&slot.scope()) {
                old.entry(slot.scope()).or_default().push((slot.minute(), hash, slot));
            }
        });
        for (scope, mut entries) in old {
            let Some((mut free, idle)) = over.remove(&scope) else { continue };
            entries.sort_unstable_by_key(|entry| entry.0);
            let was_over = free > 0;
            for (used, hash, slot) in entries {
                let aged = idle.is_some_and(|most| minute.saturating_sub(used) > most);
                if used > minute || (free == 0 && !aged) {
                    break;
                }
                let _writer = locked(&self.writer);
                let before = self.count(scope).map_or(0, |count| count.bytes.load(Relaxed));
                if let Taken::Removed(slot) = self.names.remove_unless_leased(hash, slot, minute) {
                    self.uncount(slot);
                    let after = self.count(scope).map_or(0, |count| count.bytes.load(Relaxed));
                    free = free.saturating_sub(u64::try_from(before - after).unwrap_or(0));
                }
            }
            let limit = counts.get(scope as usize).and_then(|count| limits(&count.path).bytes);
            if was_over && let (Some(most), Some(count)) = (limit, counts.get(scope as usize)) {
                let bytes = u64::try_from(count.bytes.load(Relaxed)).unwrap_or(0);
                count.full.store(bytes > most, Relaxed);
            }
        }
        Ok(())
    }

    fn drop_segment(&self, segment: &super::log::Segment) -> Result<(), StoreError> {
        let number = segment.number;
        let oldest = self.all_segments().first().is_none_or(|first| first.number == number);
        // no new name may come to stand for what lies here
        let mut here = Vec::new();
        self.contents.each(|content, slot| {
            if slot.segment() == number {
                here.push((content, slot));
            }
        });
        {
            let _writer = locked(&self.writer);
            for (content, slot) in here {
                self.contents.remove_at(content, slot);
            }
        }
        // again for what was leased meanwhile
        while self.clear_out(segment)? {}
        walk(segment, SEGMENT_HEAD, |_, record, _| {
            let link = record.what == What::Link && record.flags & LARGE == 0;
            // locked before the name is looked at: a drop that is written after a new put would undo it at the next start
            let mut writer = locked(&self.writer);
            match self.names.get(record.name().0) {
                // a second name for a content elsewhere; its own record is all that says so
                Some(slot) if link && self.head(slot, |target| target.digest)? == Some(record.digest) => {
                    self.append(&mut writer, record)?;
                }
                None if record.what != What::Content && !oldest => {
                    self.append(&mut writer, &self.dropping(record.scope, record.kind, record.key))?;
                }
                _ => {}
            }
            Ok(())
        })?;
        self.sync_active()?;
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        fs_err::remove_file(&segment.path).map_err(StoreError::io("removing", &segment.path))
    }

    /// Moves what is hot or leased to the end of the log and takes the other names of a segment away. Whether one of those
    /// was leased meanwhile and so is still here.
    fn clear_out(&self, segment: &super::log::Segment) -> Result<bool, StoreError> {
        let (number, minute) = (segment.number, self.minute());
        // place → latest use and the names that stand for it
        let mut places: BTreeMap<u64, (u32, Vec<(u128, Slot)>)> = BTreeMap::new();
        self.names.each(|hash, slot| {
            if slot.segment() == number {
                let place = places.entry(slot.at()).or_default();
                place.0 = place.0.max(slot.minute());
                place.1.push((hash, slot));
            }
        });
        let written = segment.written.load(Relaxed);
        let mut hot: Vec<(u32, u64)> = places.iter().map(|(at, place)| (place.0, *at)).collect();
        hot.retain(|(used, _)| *used > written);
        hot.sort_unstable_by(|a, b| b.cmp(a));
        let mut room = segment.size.load(Relaxed) / 2;
        let mut buffer = Vec::new();
        for (used, at) in hot {
            let Some((_, names)) = places.get(&at) else { continue };
            let Some((_, slot)) = names.first().copied() else { continue };
            room = match room.checked_sub(u64::from(slot.len())) {
                Some(rest) => rest,
                None if used > minute => 0,
                None => break,
            };
            let whole = self.read(slot, &mut buffer, usize::MAX)?.map(|()| Record::read(&buffer));
            let Some(Ok((mut record, _))) = whole else {
                names.iter().for_each(|(hash, slot)| self.forget(NameHash(*hash), *slot));
                continue;
            };
            let own = record.name().0;
            if record.what == What::Entry && !names.iter().any(|(hash, _)| *hash == own) {
                record.what = What::Content;
            }
            let mut writer = locked(&self.writer);
            let (to, place) = self.append(&mut writer, &record)?;
            let moved = slot.moved(to, place);
            let live: i64 = names
                .iter()
                .filter(|(hash, slot)| self.names.move_at(*hash, *slot, to, place))
                .map(|(_, slot)| i64::from(slot.len()))
                .sum();
            if let Some(target) = self.segment(to) {
                target.live.fetch_add(live, Relaxed);
            }
            if record.flags & LARGE == 0 {
                self.contents.insert(half(record.digest.as_bytes()), moved);
            }
            places.remove(&at);
        }
        let mut leased = false;
        for (hash, slot) in places.into_values().flat_map(|(_, names)| names) {
            let _writer = locked(&self.writer);
            match self.names.remove_unless_leased(hash, slot, minute) {
                Taken::Removed(slot) => self.uncount(slot),
                Taken::Leased => leased = true,
                Taken::Elsewhere => {}
            }
        }
        Ok(leased)
    }

    /// What was moved is on disk before what it was moved from goes.
    fn sync_active(&self) -> Result<(), StoreError> {
        let active = std::sync::Arc::clone(&locked(&self.writer).active);
        active.file.sync_data().map_err(StoreError::io("syncing", &active.path))
    }

    pub(super) fn scrub(&self) -> Result<(u64, u64), StoreError> {
        let (mut read, mut damaged) = (0, 0);
        let mut slots = Vec::new();
        self.names.each(|hash, slot| slots.push((slot.segment(), slot.at(), hash, slot)));
        slots.sort_unstable_by_key(|slot| (slot.0, slot.1));
        let (mut buffer, mut piece) = (Vec::with_capacity(HEAD), Vec::new());
        for (_, _, hash, slot) in slots {
            read += 1;
            let whole = self.read(slot, &mut buffer, usize::MAX)?.map(|()| Record::read(&buffer));
            let good = match whole {
                Some(Ok((record, _))) if record.what.carries() => {
                    forgeyard_model::Digest::of(record.payload) == record.digest
                }
                Some(Ok((record, _))) => Large::open(&self.large_path(record.digest))
                    .is_ok_and(|large| (0..large.pieces()).all(|at| large.piece(at, &mut piece).is_ok())),
                _ => false,
            };
            if !good {
                damaged += 1;
                self.forget(NameHash(hash), slot);
            }
        }
        for segment in self.all_segments() {
            let good = walk(&segment, SEGMENT_HEAD, |_, _, _| Ok(()))?;
            self.forget_behind(&segment, good);
        }
        Ok((read, damaged))
    }

    /// Minute of a time, for recovery.
    pub(super) fn minute_at(time: forgeyard_model::Timestamp) -> u32 {
        minute_of(time)
    }
}
