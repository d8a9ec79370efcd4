//! Jobs: the key within the owner is unique; loaded with their owner, ended ones too.

use crate::table::{Aggregate, Reference, Table, Unique, int, maybe, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::job::Job;
use serde_json::Value;

impl Aggregate for Job {
    const TABLE: Table = Table {
        kind: "job",
        columns: &[text("pipeline"), text("demand"), text("name"), text("state"), int("ended_at")],
        uniques: &[
            Unique { name: "job_name_unique", columns: &["pipeline", "name"], live_only: false },
            Unique { name: "job_demand_name_unique", columns: &["demand", "name"], live_only: false },
        ],
        references: &[
            Reference { name: "job_pipeline_exists", column: "pipeline", parent: "pipeline" },
            Reference { name: "job_demand_exists", column: "demand", parent: "demand" },
        ],
        wanted: "pipeline in {owners} or demand in {owners}",
    };

    fn cells(&self) -> Vec<Value> {
        vec![
            maybe(self.owner.pipeline()),
            maybe(self.owner.demand()),
            shown(&self.key),
            shown(self.state.name()),
            time(self.ended_at()),
        ]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.state.ended().then(|| self.ended_at.unwrap_or(self.since))
    }
}
