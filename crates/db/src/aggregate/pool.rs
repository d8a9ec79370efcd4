//! What is remembered of pools: all are loaded.

use crate::table::{Aggregate, Table};
use forgeyard_model::pool::PoolRecord;
use serde_json::Value;

impl Aggregate for PoolRecord {
    const TABLE: Table = Table { kind: "pool", columns: &[], uniques: &[], references: &[], wanted: "1 = 1" };

    fn cells(&self) -> Vec<Value> {
        Vec::new()
    }
}
