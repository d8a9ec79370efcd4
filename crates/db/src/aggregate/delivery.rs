//! Deliveries. The key is the GUID of the sender, so that a GUID is stored once. The body is in a table of its own, because
//! lists never need it.

use crate::table::{Aggregate, Table, int, shown, text, time};
use forgeyard_model::Timestamp;
use forgeyard_model::delivery::{Delivery, DeliveryState};
use serde_json::Value;

impl Aggregate for Delivery {
    const TABLE: Table = Table {
        kind: "delivery",
        columns: &[text("state"), int("ended_at")],
        uniques: &[],
        references: &[],
        wanted: "ended_at is null \
                 or ended_at >= {since} \
                 or key in (select delivery from pipeline where key in {owners})",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(self.state.name()), time(self.ended_at())]
    }

    fn ended_at(&self) -> Option<Timestamp> {
        (!matches!(self.state, DeliveryState::Stored)).then_some(self.received_at)
    }
}
