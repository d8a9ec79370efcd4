//! A commit of the twin: everything is looked at before anything is changed.

use super::*;
use crate::write::Write;

impl State {
    /// Looks at everything first and changes something only when nothing is wrong.
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        let plan = Plan::of(batch)?;
        let first = first_seq(batch)?;
        if batch.epoch != self.epoch {
            return Err(Error::Superseded { epoch: batch.epoch, current: self.epoch });
        }
        self.check_past(batch, first)?;
        self.check_generations(&plan)?;
        let fences = self.check_fences(&plan)?;
        let (released, claimed) = self.check_claims(&plan)?;
        for (name, kind, key) in plan.outside_references() {
            let (number, _) = aggregate::table(kind)?;
            if !self.table(number).is_some_and(|rows| rows.contains_key(&key)) {
                return Err(constraint(name));
            }
        }
        self.check_bodies(batch, &plan)?;

        self.rows.resize(TABLES.len(), BTreeMap::new());
        for (table, writes) in plan.tables {
            let (number, _) = aggregate::table(table.kind)?;
            if let Some(rows) = self.rows.get_mut(number) {
                rows.extend(writes.into_iter().map(|write| (write.key, write.row.clone())));
            }
        }
        for claim in released {
            self.claims.remove(&claim);
        }
        self.claims.extend(claimed);
        self.fences.extend(fences);
        for commit in &batch.commits {
            self.last = (commit.journal.seq, commit.journal.at);
            if !self.forgets {
                self.journal.push(commit.journal.clone());
                self.usage.extend(commit.usage.iter().cloned());
            }
            for event in commit.events.iter().filter(|_| !self.forgets) {
                self.event_places.insert(event.id, self.events.len());
                self.events.push(event.clone());
            }
        }
        for (guid, body) in &batch.bodies {
            self.bodies.entry(guid.clone()).or_insert_with(|| body.clone());
        }
        Ok(())
    }

    fn check_past(&self, batch: &Batch, first: Option<u64>) -> Result<(), Error> {
        let last = self.last.0;
        match first {
            Some(first) if first > last + 1 => return Err(constraint(JOURNAL_GAPLESS)),
            Some(first) if first <= last => return Err(constraint("journal_seq_unique")),
            _ => {}
        }
        let mut seen = HashSet::new();
        for event in batch.commits.iter().flat_map(|commit| &commit.events) {
            if !seen.insert(event.id) || self.event_places.contains_key(&event.id) {
                return Err(constraint("event_id_unique"));
            }
        }
        Ok(())
    }

    fn check_generations(&self, plan: &Plan<'_>) -> Result<(), Error> {
        for (table, writes) in &plan.tables {
            let (number, _) = aggregate::table(table.kind)?;
            for write in writes {
                let stored =
                    self.table(number).and_then(|rows| rows.get(&write.key)).map_or(0, Row::generation);
                if stored != write.expected {
                    return Err(Error::Conflict { kind: table.kind, key: write.key.clone() });
                }
            }
        }
        Ok(())
    }

    fn check_fences(&self, plan: &Plan<'_>) -> Result<HashMap<String, u32>, Error> {
        let mut fences: HashMap<String, u32> = HashMap::new();
        for write in plan.tables.iter().flat_map(|(_, writes)| writes) {
            if let Row::Attempt(attempt) = write.row
                && write.expected == 0
            {
                let job = attempt.job.to_string();
                let last = fences.get(&job).or_else(|| self.fences.get(&job)).copied().unwrap_or(0);
                // An equal fence is left to the unique constraint, which has a name of its own.
                if last > attempt.fence {
                    return Err(constraint("attempt_fence_grows"));
                }
                fences.insert(job, attempt.fence);
            }
        }
        Ok(fences)
    }

    #[expect(clippy::type_complexity, reason = "claims as the state keeps them")]
    fn check_claims(
        &self,
        plan: &Plan<'_>,
    ) -> Result<(HashSet<(&'static str, String)>, HashMap<(&'static str, String), (usize, String)>), Error>
    {
        let mut released = HashSet::new();
        let mut claimed: HashMap<_, (usize, String)> = HashMap::new();
        for (table, writes) in &plan.tables {
            let (number, _) = aggregate::table(table.kind)?;
            let old = |key: &String| self.table(number).and_then(|rows| rows.get(key));
            // Most writes claim what their row has already.
            let moved = |write: &&Write<'_>| {
                old(&write.key).is_none_or(|old| !aggregate::claim_alike(old, write.row))
            };
            let moved: Vec<&Write<'_>> = writes.iter().filter(moved).collect();
            for old in moved.iter().filter_map(|write| old(&write.key)) {
                released.extend(aggregate::claims(table, old));
            }
            for write in moved {
                for claim in aggregate::claims(table, write.row) {
                    let taken = self.claims.contains_key(&claim) && !released.contains(&claim);
                    let name = claim.0;
                    if taken || claimed.insert(claim, (number, write.key.clone())).is_some() {
                        return Err(constraint(name));
                    }
                }
            }
        }
        Ok((released, claimed))
    }

    fn check_bodies(&self, batch: &Batch, plan: &Plan<'_>) -> Result<(), Error> {
        let (number, table) = aggregate::table("delivery")?;
        for (guid, _) in &batch.bodies {
            let stored = self.table(number).is_some_and(|rows| rows.contains_key(guid));
            let written = plan
                .tables
                .iter()
                .any(|(of, writes)| of.kind == table.kind && writes.iter().any(|write| write.key == *guid));
            if !stored && !written {
                return Err(constraint("delivery_body_delivery_exists"));
            }
        }
        Ok(())
    }
}
