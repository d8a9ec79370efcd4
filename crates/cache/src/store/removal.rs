//! What people ask: which entries there are, and that some go. These read the whole log; builds do not wait for them.

use super::append::{Segment, Writer};
use super::index::{Slot, Word as _, minutes_ahead, minutes_since};
use super::log::{Shared, locked};
use super::record::{Record, SEGMENT_HEAD, What};
use super::walk::{Walked, walk};
use super::{LEASE_MINUTES, Listed, StoreError, Totals, Which};
use crate::name::{Kind, NameHash};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

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
        let beyond = match &self.beyond {
            Some(beyond) => beyond.supersede(hash)?,
            None => false,
        };
        let Some((slot, ())) = self.find(hash, |_| ())? else { return Ok(beyond) };
        self.append(writer, &self.dropping(scope, kind, key))?;
        if self.names.remove(hash.0, slot).is_some() {
            self.uncount(slot);
        }
        Ok(true)
    }

    pub(super) fn dropping<'a>(&self, scope: &'a str, kind: Kind, key: &'a str) -> Record<'a> {
        Record {
            what: What::Drop,
            flags: 0,
            kind,
            scope,
            key,
            provenance: b"",
            stored_at: (self.clock)(),
            digest: forgeyard_model::Digest::from_bytes([0; 32]),
            sum: super::sum::Sum::Sha256,
            size: 0,
            payload: &[],
        }
    }

    pub(super) fn list(&self, scope: Option<&str>) -> Result<Vec<Listed>, StoreError> {
        self.load_all();
        let _held = self.hold();
        let minute = self.minute();
        let mut all: BTreeMap<NameHash, Listed> = BTreeMap::new();
        for segment in self.all_segments() {
            let walked = walk(&segment, SEGMENT_HEAD, |at, record, _| {
                if matches!(record.what, What::Drop | What::Content)
                    || scope.is_some_and(|scope| scope != record.scope)
                {
                    return Ok(());
                }
                let name = record.name();
                let Some(slot) = self.stands_at(name, segment.number, at) else { return Ok(()) };
                let listed = Listed {
                    scope: record.scope.to_owned(),
                    kind: record.kind,
                    key: record.key.to_owned(),
                    digest: record.digest,
                    size: record.size,
                    stored_at: record.stored_at,
                    idle_minutes: minutes_since(slot.minute(), minute),
                    by: serde_json::from_slice(record.provenance).unwrap_or_default(),
                };
                all.insert(name, listed);
                Ok(())
            })?;
            self.forget_behind(&segment, walked);
        }
        Ok(all.into_values().collect())
    }

    /// The slot of a name, if the name stands for the record at this place.
    pub(super) fn stands_at(&self, name: NameHash, segment: u32, at: u64) -> Option<Slot> {
        let place = Slot::new(segment, at, 0, 0, 0);
        self.names.find(name.0).find(|slot| slot.same_place(place))
    }

    /// What lies behind damage can be neither listed nor removed by its writer, so it is not served either.
    pub(super) fn forget_behind(&self, segment: &Segment, walked: Walked) {
        let active = locked(&self.writer).active.number == segment.number;
        // of one that grew meanwhile nothing is known but what was looked at (ncps#1333)
        if active || walked.good >= walked.end {
            return;
        }
        let good = walked.good;
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
        if let Some(beyond) = &self.beyond {
            beyond.purge(which, (self.clock)())?;
        }
        let all = self.list(None)?;
        self.keep_waiting()?;
        for entry in all {
            if which.means(&entry.scope, &entry.key, &entry.by) {
                // a scope goes, but not what readers of its narinfos were promised (nix#1885)
                let promised = matches!(which, Which::Scope { prefix, .. } if prefix.is_empty())
                    && entry.kind == Kind::Nix
                    && entry.key.starts_with("nar/")
                    && self.leased_for(NameHash::of(&entry.scope, entry.kind, &entry.key)) > LEASE_MINUTES;
                if promised {
                    continue;
                }
                let mut writer = locked(&self.writer);
                removed += u64::from(self.drop_name(&mut writer, &entry.scope, entry.kind, &entry.key)?);
            }
        }
        Ok(removed)
    }

    /// For how many minutes a name is leased from now.
    fn leased_for(&self, name: NameHash) -> u32 {
        let slot = self.find(name, |_| ()).ok().flatten();
        slot.map_or(0, |(slot, ())| minutes_ahead(slot.minute(), self.minute()))
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        let large = u64::try_from(self.large_bytes.load(Relaxed)).unwrap_or(0);
        (self.log_bytes.load(Relaxed) + large).saturating_sub(self.shrinking.saved_large())
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            disk_bytes: self.disk_bytes(),
            saved_bytes: self.saved_bytes(),
            names: self.names.len() as u64,
            contents: self.contents.len() as u64,
            index_bytes: (self.names.memory() + self.contents.memory()) as u64,
            tail_idle_minutes: self
                .candidate(false)
                .map(|segment| minutes_since(segment.written.load(Relaxed), self.minute())),
        }
    }
}
