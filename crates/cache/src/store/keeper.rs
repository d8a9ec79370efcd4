//! Keeping to the limits.
//!
//! **Space** comes back by dropping a whole segment: one that is mostly dead, else the oldest. What was used since that
//! segment was last written moves to the end of the log, latest use first, up to half of the segment with the large
//! contents that it names, so that dropping always frees something. A content that was used through a link moves too; it
//! moves without its own name if that is gone. For every other name in the segment that stands for nothing, a drop is
//! written while an older segment exists: there an older record of the name may lie, and would bring a removed entry back
//! at the next start. Puts go on meanwhile; the file is removed with no lock held.
//!
//! **Quota and age** of a scope take the entries out of the index that were not used for longest. They write nothing to
//! the log: after a crash such entries may be back until the next round.
//!
//! **Leases** are kept by both: an entry whose last use lies ahead is not taken out; it moves, however many there are, and so
//! does the content that it links to. What was leased or linked to while its segment was on its way out is found when it is to
//! go, and moves in another round. A scope over its quota that holds nothing but leases takes nothing new until they end; when
//! they fill the disk, its hard limit does the same. Promises for days (`kept`) give way to room, but to nothing else.

use super::beyond::{Beyond, Gone};
use super::index::{Slot, Spot, minutes_ahead, minutes_since};
use super::log::{Shared, locked, minute_of};
use super::record::{Head, LARGE, Record, SEGMENT_HEAD, What};
use super::walk::walk;
use super::{LEASE_MINUTES, Limits, StoreError};
use crate::name::NameHash;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// How much a scope is brought down to once it is over its quota, so that this is not done for every put.
const DOWN_TO: f64 = 0.9;

impl Shared {
    pub(super) fn maintain(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError> {
        let _keeping = locked(&self.keeping);
        self.load_all();
        self.keep_waiting()?;
        self.keep_scopes(limits)?;
        let over = self.disk_bytes() > self.config.capacity;
        if over {
            self.weigh_promises()?;
        }
        // with nothing but leases, moving them about frees nothing
        let passes =
            if over && self.leased() >= self.config.capacity { 0 } else { self.all_segments().len() };
        let mut oldest = false;
        // a pass over all segments at most: what is used all the time may not fit
        for _ in 0..passes {
            let before = self.disk_bytes();
            if before <= self.config.capacity {
                break;
            }
            let Some(segment) = self.candidate(oldest) else { break };
            let size = segment.size.load(Relaxed);
            self.drop_segment(&segment)?;
            self.empty_trash();
            // a segment of drops moves as a whole while an older one is there
            oldest = self.disk_bytes() + size / 4 > before;
        }
        self.empty_trash();
        Ok(())
    }

    /// Whether a lease holds a name here, at this minute.
    fn holds(&self, slot: Slot, minute: u32) -> bool {
        (1..=self.holding.load(Relaxed)).contains(&minutes_ahead(slot.minute(), minute))
    }

    /// Promises for days give way to room once they take more than half of it: else one scope that is read through Nix
    /// could keep all others from writing for a month.
    fn weigh_promises(&self) -> Result<(), StoreError> {
        let (minute, mut long) = (self.minute(), Vec::new());
        self.names.each(|_, slot| {
            if minutes_ahead(slot.minute(), minute) > LEASE_MINUTES {
                long.push(slot);
            }
        });
        let mut bytes = 0;
        for slot in long {
            bytes += self.head(slot.segment(), slot.at(), |record| record.size)?.unwrap_or(0);
        }
        let give_way = bytes > self.config.capacity / 2;
        let before = self.holding.swap(if give_way { LEASE_MINUTES } else { u32::MAX }, Relaxed);
        if give_way && before == u32::MAX {
            tracing::warn!(
                bytes,
                "what was promised to readers of Nix for 30 days takes more than half of the cache; it gives way to room"
            );
        }
        Ok(())
    }

    /// Bytes of leased records.
    fn leased(&self) -> u64 {
        let (minute, mut leased) = (self.minute(), 0);
        self.names.each(|_, slot| {
            if self.holds(slot, minute) {
                leased += slot.len();
            }
        });
        leased
    }

    /// Contents that leased names link to.
    fn leased_contents(&self) -> Result<BTreeSet<forgeyard_model::Digest>, StoreError> {
        let (minute, mut leased) = (self.minute(), Vec::new());
        self.names.each(|_, slot| {
            if self.holds(slot, minute) {
                leased.push(slot);
            }
        });
        let mut contents = BTreeSet::new();
        for slot in leased {
            let link = |record: &Record<'_>| (record.what == What::Link).then_some(record.digest);
            contents.extend(self.head(slot.segment(), slot.at(), link)?.flatten());
        }
        Ok(contents)
    }

    /// The segment that goes next, never the one that grows: the emptiest, if one is less than half alive, else or when
    /// asked for the oldest, whose entries have had the longest time to be used again.
    pub(super) fn candidate(&self, oldest: bool) -> Option<std::sync::Arc<super::append::Segment>> {
        let mut all = self.all_segments();
        all.pop();
        let alive = |segment: &super::append::Segment| u64::try_from(segment.live.load(Relaxed)).unwrap_or(0);
        let half = |segment: &&std::sync::Arc<super::append::Segment>| {
            alive(segment) * 2 < segment.size.load(Relaxed)
        };
        let emptiest =
            all.iter().filter(half).min_by_key(|segment| (alive(segment), segment.number)).cloned();
        emptiest.filter(|_| !oldest).or_else(|| all.into_iter().next())
    }

    fn keep_scopes(&self, limits: &dyn Fn(&str) -> Limits) -> Result<(), StoreError> {
        let counts = self.scopes.read().unwrap_or_else(PoisonError::into_inner).counts.clone();
        let minute = self.minute();
        let limits: Vec<Limits> = counts.iter().map(|count| limits(&count.path)).collect();
        let of = |slot: Slot| limits.get(slot.scope() as usize).copied().unwrap_or_default();
        // ages change by the minute
        if self.aged.swap(minute, Relaxed) != minute
            && limits.iter().any(|limits| limits.idle_minutes.is_some())
        {
            let mut old = Vec::new();
            self.names.each(|hash, slot| {
                if of(slot).idle_minutes.is_some_and(|most| minutes_since(slot.minute(), minute) > most) {
                    old.push((hash, slot));
                }
            });
            for (hash, slot) in old {
                self.let_go(hash, slot);
            }
        }
        for (number, count) in counts.iter().enumerate() {
            let Some(most) = limits.get(number).and_then(|limits| limits.bytes) else { continue };
            let bytes =
                |count: &super::counts::ScopeCount| u64::try_from(count.bytes.load(Relaxed)).unwrap_or(0);
            if bytes(count) <= most {
                count.full.store(false, Relaxed);
                continue;
            }
            let down_to = (most as f64 * DOWN_TO) as u64;
            let mut entries = Vec::new();
            self.names.each(|hash, slot| {
                if slot.scope() == number as u32 && minutes_ahead(slot.minute(), minute) == 0 {
                    entries.push((minutes_since(slot.minute(), minute), hash, slot));
                }
            });
            entries.sort_unstable_by_key(|(idle, ..)| std::cmp::Reverse(*idle));
            for (_, hash, slot) in entries {
                if bytes(count) <= down_to {
                    break;
                }
                self.let_go(hash, slot);
            }
            count.full.store(bytes(count) > most, Relaxed);
        }
        Ok(())
    }

    /// Takes a name out of the index, if it still stands there and was not used since.
    fn let_go(&self, hash: u128, slot: Slot) {
        let _writer = locked(&self.writer);
        if self.names.find(hash).any(|found| found == slot) && self.names.remove(hash, slot).is_some() {
            self.uncount(slot);
        }
    }

    fn drop_segment(&self, segment: &super::append::Segment) -> Result<(), StoreError> {
        let number = segment.number;
        // decided once: what of it is known to lie beyond must be the same in memory and in what is written down
        let beyond = self.beyond.as_deref().filter(|beyond| beyond.receives(number));
        // again for what was leased or linked to meanwhile
        let mut gone = Gone::default();
        while !self.clear_out(segment, &mut gone, beyond)? {}
        if let Some(beyond) = beyond {
            beyond.dropping(number, &gone)?;
        }
        self.retire(segment)
    }

    /// Removes a segment that nothing stands in any more.
    pub(super) fn retire(&self, segment: &super::append::Segment) -> Result<(), StoreError> {
        let number = segment.number;
        let oldest = self.all_segments().first().is_none_or(|first| first.number == number);
        if !oldest {
            walk(segment, SEGMENT_HEAD, |_, record, _| {
                if record.what == What::Content || self.find(record.name(), |_| ())?.is_some() {
                    return Ok(());
                }
                let mut writer = locked(&self.writer);
                if self.find(record.name(), |_| ())?.is_none() {
                    self.append(&mut writer, &self.dropping(record.scope, record.kind, record.key))?;
                }
                Ok(())
            })?;
        }
        self.sync_active()?;
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        self.log_bytes.fetch_sub(segment.size.load(Relaxed), Relaxed);
        fs_err::remove_file(&segment.path).map_err(StoreError::io("removing", &segment.path))
    }

    /// Moves what is hot, leased or linked to by a lease to the end of the log, and takes the rest of a segment away. Whether
    /// all of it is gone: something may have been leased meanwhile.
    fn clear_out(
        &self,
        segment: &super::append::Segment,
        gone: &mut Gone,
        beyond: Option<&Beyond>,
    ) -> Result<bool, StoreError> {
        let number = segment.number;
        let written = segment.written.load(Relaxed);
        let now = self.minute();
        let used_since = |slot: Slot| minutes_since(slot.minute(), now) < minutes_since(written, now);
        // place → minutes since the last use, and its name and content
        type Place = (u32, Option<(u128, Slot)>, Option<(u128, Spot)>);
        let mut places: BTreeMap<u64, Place> = BTreeMap::new();
        let mut links = false;
        self.names.each(|hash, slot| {
            if slot.segment() == number {
                let hot = used_since(slot) || minutes_ahead(slot.minute(), now) > 0;
                let idle = if hot { minutes_since(slot.minute(), now) } else { u32::MAX };
                places.insert(slot.at(), (idle, Some((hash, slot)), None));
            }
        });
        self.contents.each(|hash, spot| {
            if spot.segment() == number {
                let place = places.entry(spot.at()).or_insert((u32::MAX, None, None));
                place.2 = Some((hash, spot));
                links |= spot.linked();
                if spot.linked() && spot.used() {
                    place.0 = 0;
                }
            }
        });
        let promised = if links { self.leased_contents()? } else { BTreeSet::new() };
        if !promised.is_empty() {
            for (at, place) in &mut places {
                let linked = place.2.is_some_and(|(_, spot)| spot.linked());
                let digest = if linked { self.head(number, *at, |record| record.digest)? } else { None };
                if digest.is_some_and(|digest| promised.contains(&digest)) {
                    place.0 = 0;
                }
            }
        }
        let mut hot: Vec<(u32, u64)> = places
            .iter()
            .filter(|(_, place)| place.0 != u32::MAX)
            .map(|(at, place)| (place.0, *at))
            .collect();
        hot.sort_unstable();
        let mut room = (segment.size.load(Relaxed) + segment.large.load(Relaxed)) / 2;
        let mut buffer = Vec::new();
        // a scan of large contents does not take the room of small ones that everybody reads (bb-storage#121)
        let (mut hot, mut large_ones) = (VecDeque::from(hot), VecDeque::new());
        let mut small = true;
        while let Some((idle, at)) = hot.pop_front().or_else(|| {
            small = false;
            large_ones.pop_front()
        }) {
            let Some((_, name, content)) = places.get(&at).copied() else { continue };
            let length = name.map_or(1 << 12, |(_, slot)| slot.len());
            let mut whole = self.read(number, at, length, &mut buffer)?.is_some();
            if let Ok(head) = Head::peek(&buffer)
                && head.len() > buffer.len() as u64
            {
                whole = self.read(number, at, head.len(), &mut buffer)?.is_some();
            }
            let Some(Ok((mut record, _))) = whole.then(|| Record::read(&buffer)) else {
                // no lease keeps what is damaged
                if let Some((hash, slot)) = name {
                    self.forget(NameHash(hash), slot);
                }
                if let Some((hash, spot)) = content {
                    self.forget_content(hash, spot);
                }
                places.remove(&at);
                continue;
            };
            let large = record.flags & LARGE != 0;
            if large && small {
                large_ones.push_back((idle, at));
                continue;
            }
            let costs = record.len() + if large { record.size } else { 0 };
            let leased = name.is_some_and(|(_, slot)| self.holds(slot, now));
            let linked = content.is_some_and(|(_, spot)| spot.linked()) && idle == 0;
            room = match room.checked_sub(costs) {
                Some(rest) => rest,
                None if leased || linked => 0,
                None => continue,
            };
            let mut writer = locked(&self.writer);
            let stands =
                name.is_some_and(|(_, slot)| self.stands_at(record.name(), number, slot.at()).is_some());
            if !stands {
                if !record.what.carries() {
                    continue;
                }
                record.what = What::Content;
            }
            let (to, place) = self.append(&mut writer, &record)?;
            if large {
                writer.active.large.fetch_add(record.size, Relaxed);
            }
            if let Some((hash, slot)) = name
                && stands
                && self.names.move_to(hash, slot, to, place)
                && let Some(target) = self.segment(to)
            {
                target.live.fetch_add(slot.len() as i64, Relaxed);
            }
            if let Some((hash, spot)) = content {
                self.contents.replace(hash, spot, spot.moved(to, place));
            }
            places.remove(&at);
        }
        let mut all = true;
        for (_, name, content) in places.into_values() {
            let _writer = locked(&self.writer);
            if let Some((hash, slot)) = name {
                let most = self.holding.load(Relaxed);
                let (free, removed) = self.names.remove_unless_leased(hash, slot, self.minute(), most);
                all &= free;
                if removed.is_some() {
                    // with the end of the log held: whoever writes the name next finds it there
                    if let Some(beyond) = beyond {
                        beyond.went(hash, slot);
                    }
                    gone.names.push((hash, slot));
                    self.uncount(slot);
                }
            }
            if let Some((hash, spot)) = content {
                let free = self.contents.remove_unless_used(hash, spot);
                all &= free;
                if free {
                    gone.contents.push((hash, spot));
                }
            }
        }
        Ok(all)
    }

    /// What was moved is on disk before what it was moved from goes.
    fn sync_active(&self) -> Result<(), StoreError> {
        let active = std::sync::Arc::clone(&locked(&self.writer).active);
        active.file.sync_data().map_err(StoreError::io("syncing", &active.path))
    }

    /// Minute of a time, for recovery.
    pub(super) fn minute_at(time: forgeyard_model::Timestamp) -> u32 {
        minute_of(time)
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
