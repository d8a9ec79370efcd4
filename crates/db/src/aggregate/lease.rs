//! Leases. The devices of a lease have rows of their own in `lease_device`, kept by the same transaction, so that the
//! schema itself allows one live lease per device.

use crate::Error;
use crate::link::{Arg, Link};
use crate::table::{Aggregate, Reference, Table, int, maybe, shown, text, time};
use crate::write::Write;
use forgeyard_model::Timestamp;
use forgeyard_model::commit::Row;
use forgeyard_model::lease::Lease;
use serde_json::{Value, json};

/// Constraint: a device has at most one live lease.
pub(crate) const ONE_LIVE_PER_DEVICE: &str = "lease_device_one_live";
/// Constraint: a leased device is known.
pub(crate) const DEVICE_EXISTS: &str = "lease_device_exists";

impl Aggregate for Lease {
    const TABLE: Table = Table {
        kind: "lease",
        columns: &[text("site"), text("attempt"), text("state"), int("ended_at")],
        uniques: &[],
        references: &[Reference { name: "lease_attempt_exists", column: "attempt", parent: "attempt" }],
        wanted: "ended_at is null or (attempt is null and ended_at >= {since}) \
                 or attempt in (select key from attempt where owner in {owners})",
    };

    fn cells(&self) -> Vec<Value> {
        vec![shown(self.site), maybe(self.attempt), shown(self.state.name()), time(self.ended_at())]
    }

    fn live(&self) -> bool {
        self.state.live()
    }

    fn ended_at(&self) -> Option<Timestamp> {
        (!self.state.live()).then(|| self.ended_at.unwrap_or(self.since))
    }
}

/// Rewrites the devices of the written leases. All old rows go before any new one comes, so that a device may change
/// hands within a batch.
pub(crate) async fn write_devices(link: &mut Link, writes: &[Write<'_>]) -> Result<(), Error> {
    let mut keys = Vec::new();
    let mut devices = Vec::new();
    for write in writes {
        if let Row::Lease(lease) = write.row {
            if write.expected > 0 {
                keys.push(write.key.as_str());
            }
            for device in &lease.devices {
                let live = i64::from(lease.state.live());
                devices.push(json!({"n_lease": write.key, "n_device": device, "n_live": live}));
            }
        }
    }
    if !keys.is_empty() {
        let set = link.dialect().texts("$1");
        let sql = format!("delete from lease_device where lease in {set}");
        link.run("write the devices of leases", sql, vec![Arg::json(&keys)?]).await?;
    }
    if !devices.is_empty() {
        let rows = link.dialect().rows("$1", &[text("lease"), text("device"), int("live")]);
        let sql = format!(
            "insert into lease_device (lease, device, live) select n.n_lease, n.n_device, n.n_live from {rows}"
        );
        link.run("write the devices of leases", sql, vec![Arg::json(&devices)?]).await?;
    }
    Ok(())
}
