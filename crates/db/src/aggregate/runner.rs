//! Runners: loaded while they may exist, and with the owner of their attempt; those that never had one for a while.

use crate::table::{Aggregate, Reference, Table, int, maybe, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::runner::Runner;
use serde_json::Value;

impl Aggregate for Runner {
    const TABLE: Table = Table {
        kind: "runner",
        columns: &[text("site"), text("attempt"), text("state"), int("ended_at")],
        uniques: &[],
        references: &[Reference { name: "runner_site_exists", column: "site", parent: "site" }],
        wanted: "ended_at is null \
                 or (attempt is null and ended_at >= {since}) \
                 or attempt in (select key from attempt where owner in {owners})",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(self.site), maybe(self.work.attempt()), shown(self.state.name()), time(self.ended_at())]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        (!self.state.live()).then_some(self.since)
    }
}
