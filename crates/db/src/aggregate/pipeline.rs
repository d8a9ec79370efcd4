//! Pipelines.

use crate::table::{Aggregate, Table, int, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::pipeline::Pipeline;
use serde_json::Value;

impl Aggregate for Pipeline {
    const TABLE: Table = Table {
        kind: "pipeline",
        columns: &[text("delivery"), text("state"), int("ended_at")],
        uniques: &[],
        references: &[],
        wanted: "key in {owners}",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(&self.delivery), shown(self.state.name()), time(self.ended_at())]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.state.ended().then(|| self.ended_at.unwrap_or(self.since))
    }
}
