//! Devices: all are loaded.

use crate::table::{Aggregate, Reference, Table, shown, text};
use forgeyard_model::device::Device;
use serde_json::Value;

impl Aggregate for Device {
    const TABLE: Table = Table {
        kind: "device",
        columns: &[text("site"), text("state")],
        uniques: &[],
        references: &[Reference { name: "device_site_exists", column: "site", parent: "site" }],
        wanted: "1 = 1",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(self.site), shown(self.state.name())]
    }
}
