//! Attempts: at most one of a job is live, and their fences grow.
//!
//! That fences grow is a trigger of the schema; see the migration.

use crate::table::{Aggregate, Reference, Table, Unique, int, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::attempt::Attempt;
use serde_json::Value;

impl Aggregate for Attempt {
    const TABLE: Table = Table {
        kind: "attempt",
        columns: &[text("job"), text("owner"), int("fence"), text("runner"), text("state"), int("ended_at")],
        uniques: &[
            Unique { name: "attempt_one_live_per_job", columns: &["job"], live_only: true },
            Unique { name: "attempt_job_fence_unique", columns: &["job", "fence"], live_only: false },
            Unique { name: "attempt_runner_unique", columns: &["runner"], live_only: false },
        ],
        references: &[
            Reference { name: "attempt_job_exists", column: "job", parent: "job" },
            Reference { name: "attempt_runner_exists", column: "runner", parent: "runner" },
        ],
        wanted: "owner in {owners}",
    };

    fn cells(&self) -> Vec<Value> {
        vec![
            shown(self.job),
            shown(self.owner),
            self.fence.into(),
            shown(self.runner),
            shown(self.state.name()),
            time(self.ended_at()),
        ]
    }

    fn live(&self) -> bool {
        self.state.live()
    }

    fn ended_at(&self) -> Option<Timestamp> {
        (!self.state.live()).then(|| self.ended_at.unwrap_or(self.since))
    }
}
