//! The outbox: effects that wait are loaded, and done ones with what they were done for.

use crate::table::{Aggregate, Table, int, maybe, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::effect::{Effect, PendingEffect};
use serde_json::Value;

impl Aggregate for PendingEffect {
    const TABLE: Table = Table {
        kind: "effect",
        columns: &[text("pipeline"), text("job"), text("environment"), text("demand"), int("ended_at")],
        uniques: &[],
        references: &[],
        wanted: "ended_at is null \
                 or (ended_at >= {since} and coalesce(pipeline, demand, job, environment) is null) \
                 or pipeline in {owners} \
                 or demand in {owners} \
                 or job in (select key from job where pipeline in {owners} or demand in {owners}) \
                 or environment in (select key from environment where pipeline in {owners})",
    };

    fn cells(&self) -> Vec<Value> {
        let (mut pipeline, mut job, mut environment) = (None, None, None);
        match &self.effect {
            Effect::FetchSource { pipeline: of } | Effect::Promote { pipeline: of, .. } => {
                pipeline = Some(of)
            }
            Effect::ReadPlan { job: of, .. } | Effect::InspectPackage { job: of, .. } => job = Some(of),
            Effect::MakeEnvironment { environment: of } => environment = Some(of),
            Effect::LookUpRun { .. }
            | Effect::ReadJob { .. }
            | Effect::MintRunner { .. }
            | Effect::RepeatJobs { .. }
            | Effect::Deregister { .. } => {}
        }
        vec![
            maybe(pipeline),
            maybe(job),
            maybe(environment),
            maybe(self.effect.demand()),
            time(self.ended_at()),
        ]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        self.done_at
    }
}
