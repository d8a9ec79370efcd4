//! What people said once: approvals of heads and accepted terms, which are all loaded, and configurations, of which the
//! newest is.

use crate::table::{Aggregate, Table};
use forgeyard_model::approval::{Acceptance, ConfigVersion, HeadApproval};
use serde_json::Value;

impl Aggregate for HeadApproval {
    const TABLE: Table =
        Table { kind: "approval", columns: &[], uniques: &[], references: &[], wanted: "1 = 1" };

    fn cells(&self) -> Vec<Value> {
        Vec::new()
    }
}

impl Aggregate for Acceptance {
    const TABLE: Table =
        Table { kind: "acceptance", columns: &[], uniques: &[], references: &[], wanted: "1 = 1" };

    fn cells(&self) -> Vec<Value> {
        Vec::new()
    }
}

impl Aggregate for ConfigVersion {
    const TABLE: Table = Table {
        kind: "config",
        columns: &[],
        uniques: &[],
        references: &[],
        wanted: "key = (select max(key) from config)",
    };

    fn cells(&self) -> Vec<Value> {
        Vec::new()
    }
}
