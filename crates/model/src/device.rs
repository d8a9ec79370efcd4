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

/// A PCI function that goes where a device goes when that is handed to a virtual machine. All functions of one card go
/// together, and so do all members of an IOMMU group (Linux, `driver-api/vfio.rst`): inside a group the functions reach each
/// other past the IOMMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PciFunction {
    /// Its address (`0000:9b:00.1`).
    pub address: String,
    /// Class code: class, subclass and interface, eight bits each (`0x040300` is a sound card).
    pub class: u32,
    /// Its IOMMU group, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// The driver that has it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

impl PciFunction {
    /// Whether it is a bridge, which is part of the way and not of what is handed over. By the exact class: a mask would take
    /// an NVSwitch (`0x0680`) for one (kata-containers 13430).
    pub const fn bridge(&self) -> bool {
        matches!(self.class >> 8, 0x0600 | 0x0604)
    }

    /// The card that it is a function of: the address without the function.
    pub fn card(&self) -> &str {
        card(&self.address)
    }

    /// Whether a driver of the host has it, so that it cannot be handed over. Drivers that only hold a function for a virtual
    /// machine, or hold it back, do not count.
    pub fn used_by_host(&self) -> bool {
        let held = |driver: &str| {
            driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci") || driver == "pci-stub"
        };
        !self.bridge() && self.driver.as_deref().is_some_and(|driver| !held(driver))
    }
}

/// The card of a PCI address.
pub fn card(address: &str) -> &str {
    address.rsplit_once('.').map_or(address, |(card, _)| card)
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
    /// The other PCI functions that are handed over with it, other devices among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves_with: Vec<PciFunction>,
    /// NUMA node, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Device nodes that a sandbox needs (`/dev/nvidia0`).
    #[serde(default)]
    pub nodes: Vec<String>,
}

impl DeviceFacts {
    /// Its PCI address, if it is a PCI device.
    pub fn address(&self) -> Option<&str> {
        self.key.strip_prefix("pci:")
    }
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
