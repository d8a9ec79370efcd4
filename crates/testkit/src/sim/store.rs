//! A *simulated* database: the rows as they are stored, with the constraints of the real schema, and the journal.
//!
//! What it holds is a farm of its own, made of stored rows alone. So that every step can be looked at without walking
//! through everything that ever happened, it also notes which rows were written since the last look.

use forgeyard_engine::Farm;
use forgeyard_engine::farm::Entity;
use forgeyard_model::commit::{Commit, Row};
use forgeyard_model::input::JournalEntry;
use forgeyard_model::{AttemptId, JobId, LeaseId, PipelineId, RunnerId};
use std::collections::BTreeSet;

/// Stored rows, the journal, and what was written lately.
#[derive(Debug, Default)]
pub struct Store {
    /// Rows as they are stored.
    pub rows: Farm,
    /// The journal.
    pub journal: Vec<JournalEntry>,
    /// What was written since the last look.
    pub touched: Touched,
}

/// Keys of rows that were written.
#[derive(Debug, Default)]
pub struct Touched {
    /// Pipelines.
    pub pipelines: BTreeSet<PipelineId>,
    /// Jobs.
    pub jobs: BTreeSet<JobId>,
    /// Attempts.
    pub attempts: BTreeSet<AttemptId>,
    /// Runners.
    pub runners: BTreeSet<RunnerId>,
    /// Leases.
    pub leases: BTreeSet<LeaseId>,
    /// Whether a channel was switched.
    pub channels: bool,
}

impl Touched {
    fn note(&mut self, row: &Row) {
        match row {
            Row::Pipeline(row) => drop(self.pipelines.insert(row.id)),
            Row::Job(row) => drop(self.jobs.insert(row.id)),
            Row::Attempt(row) => {
                self.attempts.insert(row.id);
                self.jobs.insert(row.job);
            }
            Row::Runner(row) => drop(self.runners.insert(row.id)),
            Row::Lease(row) => drop(self.leases.insert(row.id)),
            Row::Channel(_) => self.channels = true,
            // Deliveries are looked at when they are acknowledged, devices at every step; the rest has no invariant
            // of its own.
            Row::Delivery(_)
            | Row::Demand(_)
            | Row::Device(_)
            | Row::Site(_)
            | Row::Artifact(_)
            | Row::Environment(_)
            | Row::Effect(_)
            | Row::Token(_)
            | Row::Ledger(_)
            | Row::Pool(_)
            | Row::Approval(_)
            | Row::Acceptance(_)
            | Row::Config(_) => {}
        }
    }
}

impl Store {
    /// Stores a commit, or says which constraint it breaks.
    pub fn apply(&mut self, commit: Commit) -> Result<(), String> {
        for row in commit.rows {
            let known = known(&self.rows, &row);
            if row.generation() != known + 1 {
                let (kind, key) = (row.kind(), row.key());
                return Err(format!("{kind} {key}: generation {} over {known}", row.generation()));
            }
            self.touched.note(&row);
            self.rows.set(row);
        }
        if commit.journal.seq != self.journal.last().map_or(0, |entry| entry.seq) + 1 {
            return Err(format!("journal entry {} out of order", commit.journal.seq));
        }
        self.journal.push(commit.journal);
        Ok(())
    }

    /// What a control plane that starts reads back.
    pub fn load(&self) -> Farm {
        Farm::load(self.rows.rows())
    }
}

/// Generation of the stored row with the key of this one; 0 when there is none.
fn known(farm: &Farm, row: &Row) -> u64 {
    fn of<E: Entity>(farm: &Farm, row: &E) -> u64 {
        E::table(farm).get(&row.key()).map_or(0, Entity::generation)
    }
    match row {
        Row::Delivery(row) => of(farm, row),
        Row::Demand(row) => of(farm, row),
        Row::Pipeline(row) => of(farm, row),
        Row::Job(row) => of(farm, row),
        Row::Attempt(row) => of(farm, row),
        Row::Runner(row) => of(farm, row),
        Row::Lease(row) => of(farm, row),
        Row::Device(row) => of(farm, row),
        Row::Site(row) => of(farm, row),
        Row::Artifact(row) => of(farm, row),
        Row::Channel(row) => of(farm, row),
        Row::Environment(row) => of(farm, row),
        Row::Effect(row) => of(farm, row),
        Row::Token(row) => of(farm, row),
        Row::Ledger(row) => of(farm, row),
        Row::Pool(row) => of(farm, row),
        Row::Approval(row) => of(farm, row),
        Row::Acceptance(row) => of(farm, row),
        Row::Config(row) => of(farm, row),
    }
}
