//! Sites: places with hosts. A site dials out, makes the desired set so, and reports what it sees.

use crate::device::DeviceFacts;
use crate::name::{ProviderName, SiteName};
use crate::resources::{Flavor, Image, Limit};
use crate::runner::ObservedRunner;
use crate::{AttemptId, DeviceId, Digest, LeaseId, RunnerId, SiteId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a host offers in all, for admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostFacts {
    /// Host name, for display.
    pub host: String,
    /// CPUs, in thousandths.
    pub cpu_millis: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// Providers that work here.
    pub providers: BTreeSet<ProviderName>,
    /// Limits that this host can enforce.
    pub enforces: BTreeSet<Limit>,
    /// Limits that it cannot, each with the reason.
    #[serde(default)]
    pub cannot: Vec<(Limit, String)>,
}

/// A site row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Site {
    /// Its id.
    pub id: SiteId,
    /// Its name.
    pub name: SiteName,
    /// SHA-256 of its token.
    pub token: Digest,
    /// Its public key, in hexadecimal.
    pub public_key: String,
    /// What its host offers, once reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostFacts>,
    /// Last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
    /// No new work goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Timestamp>,
    /// Grows with each change of its desired set.
    pub desired_generation: u64,
    /// When it joined.
    pub joined_at: Timestamp,
    /// Row version.
    pub generation: u64,
}

/// A machine that should exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DesiredRunner {
    /// Which.
    pub runner: RunnerId,
    /// What makes it.
    pub provider: ProviderName,
    /// Its shape.
    pub flavor: Flavor,
    /// What it boots.
    pub image: Image,
    /// The attempt that it is for; absent while it waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// Devices that it gets.
    pub devices: Vec<DeviceFacts>,
    /// The claim that gives it the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// Limits that must hold.
    pub needs: BTreeSet<Limit>,
    /// One-shot token for its agent. Only ever on this answer.
    pub token: String,
    /// Left standing for an autopsy even when its agent ends.
    #[serde(default)]
    pub keep: bool,
}

/// A lease that the site is to end: reset the devices, verify them, confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReleasingLease {
    /// Which.
    pub lease: LeaseId,
    /// Its machine, which must be gone first.
    pub runner: RunnerId,
    /// The devices.
    pub devices: Vec<(DeviceId, String)>,
}

/// What should be so at a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DesiredSet {
    /// Grows when the control plane changes hands; a report for an older epoch is refused.
    pub epoch: u64,
    /// Grows with each change.
    pub generation: u64,
    /// Machines that should exist. Every other machine with our tag should not.
    pub runners: Vec<DesiredRunner>,
    /// Leases to end.
    pub releasing: Vec<ReleasingLease>,
}

/// What a site did about a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "lease_state", rename_all = "snake_case")]
pub enum ObservedLease {
    /// The devices are given to the machine.
    Held {
        /// Which.
        lease: LeaseId,
    },
    /// The machine is gone; the devices are being reset.
    Resetting {
        /// Which.
        lease: LeaseId,
    },
    /// The devices are reset; they are being verified.
    Verifying {
        /// Which.
        lease: LeaseId,
    },
    /// The devices are free and answer.
    Released {
        /// Which.
        lease: LeaseId,
        /// Devices that did not come back, each with what was seen.
        #[serde(default)]
        sick: Vec<(DeviceId, String)>,
    },
}

/// What a site reports. Complete: a machine that is not listed is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteReport {
    /// Epoch of the desired set that the site works from.
    pub epoch: u64,
    /// Generation of the desired set that the site works from.
    pub generation: u64,
    /// What its host offers.
    pub host: HostFacts,
    /// Devices that it has.
    pub devices: Vec<DeviceFacts>,
    /// Machines that it has.
    pub runners: Vec<ObservedRunner>,
    /// What it did about leases.
    pub leases: Vec<ObservedLease>,
}
