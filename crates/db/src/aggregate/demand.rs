//! Demands: one for each job of a forge. Loaded while they are not over, for a while after that, and as long as something of
//! them lives.
//!
//! A demand **rests** since its end, or since the forge was asked to run its job again if that was later. While it is not over, or
//! its job is still to be run again, it does not rest.

use crate::table::{Aggregate, Table, Unique, int, maybe, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::demand::{Demand, Repeat};
use serde_json::Value;

impl Aggregate for Demand {
    const TABLE: Table = Table {
        kind: "demand",
        columns: &[
            text("forge"),
            text("job"),
            text("run"),
            text("state"),
            text("launch"),
            int("ended_at"),
            int("rests_at"),
        ],
        uniques: &[Unique { name: "demand_job_unique", columns: &["forge", "job"], live_only: false }],
        references: &[],
        wanted: "key in {owners}",
    };

    fn cells(&self) -> Vec<Value> {
        // Ids of forges have 64 bits without a sign, which no integer column of both databases holds.
        vec![
            shown(&self.repository.forge),
            shown(self.job),
            shown(self.run),
            shown(self.state.name()),
            maybe(self.launch),
            time(self.ended_at()),
            time(rests_at(self)),
        ]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.state.ended().then(|| self.ended_at.unwrap_or(self.since))
    }
}

/// Since when a demand rests.
pub(crate) fn rests_at(demand: &Demand) -> Option<Timestamp> {
    let ended = demand.ended_at()?;
    match demand.repeat {
        Some(Repeat::Wanted { .. }) => None,
        Some(Repeat::Done { at }) => Some(at.max(ended)),
        Some(Repeat::Dropped { .. }) | None => Some(ended),
    }
}
