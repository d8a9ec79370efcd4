//! Environments: the newest of each name stands and is always loaded.

use crate::table::{Aggregate, Reference, Table, int, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::environment::{Environment, EnvironmentState};
use serde_json::Value;

impl Aggregate for Environment {
    const TABLE: Table = Table {
        kind: "environment",
        columns: &[text("name"), text("pipeline"), text("state"), int("ended_at")],
        uniques: &[],
        references: &[Reference {
            name: "environment_pipeline_exists",
            column: "pipeline",
            parent: "pipeline",
        }],
        wanted: "ended_at is null \
                 or ended_at >= {since} \
                 or pipeline in {owners} \
                 or key in (select max(key) from environment group by name)",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(&self.name), shown(self.pipeline), shown(self.state.name()), time(self.ended_at())]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        (!matches!(self.state, EnvironmentState::Requested)).then_some(self.since)
    }
}
