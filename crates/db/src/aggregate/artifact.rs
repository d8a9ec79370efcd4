//! Artifacts: loaded with their pipeline.

use crate::table::{Aggregate, Reference, Table, shown, text};
use forgeyard_model::artifact::Artifact;
use serde_json::Value;

impl Aggregate for Artifact {
    const TABLE: Table = Table {
        kind: "artifact",
        columns: &[text("pipeline"), text("digest")],
        uniques: &[],
        references: &[Reference { name: "artifact_pipeline_exists", column: "pipeline", parent: "pipeline" }],
        wanted: "pipeline in {owners}",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(self.pipeline), shown(self.digest)]
    }
}
