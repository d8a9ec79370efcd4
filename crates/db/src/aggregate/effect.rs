//! The outbox: effects that wait are loaded, and done ones with their pipeline.

use crate::table::{Aggregate, Table, int, maybe, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::effect::{Effect, PendingEffect};
use serde_json::Value;

impl Aggregate for PendingEffect {
    const TABLE: Table = Table {
        kind: "effect",
        columns: &[text("pipeline"), text("job"), text("environment"), int("ended_at")],
        uniques: &[],
        references: &[],
        wanted: "ended_at is null \
                 or ended_at >= {since} \
                 or pipeline in {pipelines} \
                 or job in (select key from job where pipeline in {pipelines}) \
                 or environment in (select key from environment where pipeline in {pipelines})",
    };

    fn cells(&self) -> Vec<Value> {
        let (mut pipeline, mut job, mut environment) = (None, None, None);
        match &self.effect {
            Effect::FetchSource { pipeline: of } | Effect::Promote { pipeline: of, .. } => {
                pipeline = Some(of)
            }
            Effect::ReadPlan { job: of, .. } | Effect::InspectPackage { job: of, .. } => job = Some(of),
            Effect::MakeEnvironment { environment: of } => environment = Some(of),
        }
        vec![maybe(pipeline), maybe(job), maybe(environment), time(self.ended_at())]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.done_at
    }
}
