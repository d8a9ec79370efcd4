//! Sites: the name is unique; all are loaded.

use crate::table::{Aggregate, Table, Unique, shown, text};
use forgeyard_model::site::Site;
use serde_json::Value;

impl Aggregate for Site {
    const TABLE: Table = Table {
        kind: "site",
        columns: &[text("name")],
        uniques: &[Unique { name: "site_name_unique", columns: &["name"], live_only: false }],
        references: &[],
        wanted: "1 = 1",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(&self.name)]
    }
}
