//! Jobs: the key within the pipeline is unique; loaded with their pipeline, ended ones too.

use crate::table::{Aggregate, Reference, Table, Unique, int, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::job::Job;
use serde_json::Value;

impl Aggregate for Job {
    const TABLE: Table = Table {
        kind: "job",
        columns: &[text("pipeline"), text("name"), text("state"), int("ended_at")],
        uniques: &[Unique { name: "job_name_unique", columns: &["pipeline", "name"], live_only: false }],
        references: &[Reference { name: "job_pipeline_exists", column: "pipeline", parent: "pipeline" }],
        wanted: "pipeline in {pipelines}",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(self.pipeline), shown(&self.key), shown(self.state.name()), time(self.ended_at())]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.state.ended().then(|| self.ended_at.unwrap_or(self.since))
    }
}
