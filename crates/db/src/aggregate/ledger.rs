//! The ledger: running sums and durations. Few and small; all are loaded.

use crate::table::{Aggregate, Table};
use forgeyard_model::ledger::LedgerRow;
use serde_json::Value;

impl Aggregate for LedgerRow {
    const TABLE: Table =
        Table { kind: "ledger", columns: &[], uniques: &[], references: &[], wanted: "1 = 1" };

    fn cells(&self) -> Vec<Value> {
        Vec::new()
    }
}
