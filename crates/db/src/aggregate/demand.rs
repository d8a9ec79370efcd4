//! Demands: one for each job of a forge. Loaded while they are not over, for a while after that, and as long as something of
//! them lives.

use crate::table::{Aggregate, Table, Unique, int, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::demand::Demand;
use serde_json::Value;

impl Aggregate for Demand {
    const TABLE: Table = Table {
        kind: "demand",
        columns: &[text("forge"), text("job"), text("run"), text("state"), int("ended_at")],
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
            time(self.ended_at()),
        ]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.state.ended().then(|| self.ended_at.unwrap_or(self.since))
    }
}
