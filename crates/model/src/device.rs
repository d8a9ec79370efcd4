//! Devices: one GPU (or a slice of one) of a site, with its health.
//!
//! `Ready → Leased → Resetting → Verifying → Ready | Quarantined`.

use crate::resources::DeviceKind;
use crate::{DeviceId, Explanation, LeaseId, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

/// Where a device is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum DeviceState {
    /// Free.
    Ready,
    /// Claimed by a lease.
    Leased {
        /// Which.
        lease: LeaseId,
    },
    /// The lease is ending; the site resets the device.
    Resetting {
        /// The lease that held it.
        lease: LeaseId,
    },
    /// Reset is done; the site proves that the device answers.
    Verifying {
        /// The lease that held it.
        lease: LeaseId,
    },
    /// Not handed out until an operator clears it.
    Quarantined {
        /// Why.
        reason: Explanation,
    },
}

impl DeviceState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            DeviceState::Ready => "ready",
            DeviceState::Leased { .. } => "leased",
            DeviceState::Resetting { .. } => "resetting",
            DeviceState::Verifying { .. } => "verifying",
            DeviceState::Quarantined { .. } => "quarantined",
        }
    }
}

/// What a site found out about a device by asking it in a child process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceFacts {
    /// Key that stays the same over restarts, unique in the site (`pci:0000:9b:00.0`, `opencl:0:0`).
    pub key: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Model as the driver names it.
    pub model: String,
    /// UUID, where the driver gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Driver and its version.
    pub driver: String,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Compute capability times ten; 0 = not known.
    #[serde(default)]
    pub compute_capability: u32,
    /// IOMMU group, where there is one. The group, not the device, is the unit handed to a VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// NUMA node, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Device nodes that a sandbox needs (`/dev/nvidia0`).
    #[serde(default)]
    pub nodes: Vec<String>,
}

/// A device row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Device {
    /// Its id, derived from the site and the key.
    pub id: DeviceId,
    /// Where it is.
    pub site: SiteId,
    /// What it is.
    pub facts: DeviceFacts,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: DeviceState,
    /// Since when.
    pub since: Timestamp,
    /// When the state runs out, unless it rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Row version.
    pub generation: u64,
}
