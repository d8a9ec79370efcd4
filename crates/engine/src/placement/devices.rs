//! Which devices of a site a machine gets.
//!
//! Where jobs are kept apart by virtual machines, devices are handed out in whole units ([`groups`]): a lease has all devices of a
//! unit or none of them, so that no two leases ever share an IOMMU group. What does not add up is said, with the groups as
//! evidence. Elsewhere each device stands for itself.

use crate::groups;
use crate::queue::reserve::Look;
use crate::tx::Tx;
use forgeyard_model::device::{Device, DeviceFacts, DeviceState};
use forgeyard_model::resources::{GpuRequest, Isolation};
use forgeyard_model::site::Site;
use forgeyard_model::{DeviceId, Explanation, Timestamp};

/// Whether a device is what is asked for.
pub(crate) fn suits(device: &Device, request: &GpuRequest) -> bool {
    request.kind.is_none_or(|kind| kind == device.facts.kind)
        && device.facts.memory_mib >= request.min_memory_mib
        && (request.min_compute_capability == 0
            || device.facts.compute_capability >= request.min_compute_capability)
}

/// Devices that are handed out together or not at all.
struct Part<'a> {
    devices: Vec<&'a Device>,
    /// What it is, for people, where it is more than its device.
    members: Option<String>,
}

impl Part<'_> {
    fn ready(&self) -> bool {
        self.devices.iter().all(|device| device.state == DeviceState::Ready)
    }

    fn sick(&self) -> bool {
        self.devices.iter().any(|device| matches!(device.state, DeviceState::Quarantined { .. }))
    }

    /// Since when all of it rests.
    fn since(&self) -> (Timestamp, Option<DeviceId>) {
        let since = self.devices.iter().map(|device| device.since).max().unwrap_or_default();
        (since, self.devices.first().map(|device| device.id))
    }
}

fn sizes(parts: &[&Part<'_>]) -> Vec<usize> {
    parts.iter().map(|part| part.devices.len()).collect()
}

/// Devices of a site for a machine whose pool keeps jobs apart like this, or why there are none.
pub(crate) fn choose(
    tx: &Tx<'_>,
    site: &Site,
    isolation: Isolation,
    request: &GpuRequest,
    look: &Look,
) -> Result<Vec<DeviceId>, Explanation> {
    let here: Vec<&Device> = tx.farm().devices.values().filter(|device| device.site == site.id).collect();
    let suitable: Vec<&Device> = here.iter().copied().filter(|device| suits(device, request)).collect();
    let wanted = request.count as usize;
    if suitable.len() < wanted {
        let text = format!(
            "site {} has {} devices, {} of them suitable; the job asks for {wanted} with at least {} MiB",
            site.name,
            here.len(),
            suitable.len(),
            request.min_memory_mib
        );
        return Err(Explanation::new("queue.no_device", text).fix("see `forgeyard device list`"));
    }
    let parts = match isolation {
        Isolation::SharedKernel => singles(suitable.clone()),
        Isolation::Vm => whole(site, &here, request)?,
    };
    let all: Vec<&Part<'_>> = parts.iter().collect();
    let of = |parts: &[&Part<'_>]| groups::exactly(&sizes(parts), wanted);
    let mut ready: Vec<&Part<'_>> = parts.iter().filter(|part| part.ready()).collect();
    let free = of(&ready).is_some();
    ready.retain(|part| part.devices.iter().all(|device| look.allows(device)));
    // What has rested longest: wear and heat are spread, and a sick device is found sooner.
    ready.sort_by_key(|part| part.since());
    if let Some(chosen) = of(&ready) {
        let chosen = chosen.into_iter().filter_map(|place| ready.get(place));
        return Ok(chosen.flat_map(|part| &part.devices).map(|device| device.id).collect());
    }
    if free {
        return Err(look.kept_devices(site.id));
    }
    if of(&all.iter().copied().filter(|part| !part.sick()).collect::<Vec<_>>()).is_none() {
        let sick =
            suitable.iter().filter(|device| matches!(device.state, DeviceState::Quarantined { .. })).count();
        return Err(Explanation::new(
            "queue.device_sick",
            format!("{sick} of {} suitable devices of site {} are quarantined", suitable.len(), site.name),
        )
        .fix("see `forgeyard device list`; `forgeyard device clear` lifts a quarantine"));
    }
    let holders = tx.farm().index.live_leases.iter().filter_map(|(_, id)| tx.farm().leases.get(id));
    let busy = holders.filter(|lease| suitable.iter().any(|device| lease.devices.contains(&device.id))).map(
        |lease| {
            let holder = lease
                .attempt
                .map_or_else(|| format!("{}, which waits for work", lease.runner), |id| id.to_string());
            format!("{} is {} for {holder}", lease.id, lease.state.name())
        },
    );
    let mut reason = Explanation::new(
        "queue.device_busy",
        format!("all suitable devices of site {} are in use; the job waits for one", site.name),
    );
    reason.evidence = busy.collect();
    // A whole group may wait for one member alone.
    reason.evidence.extend(parts.iter().filter(|part| !part.ready()).filter_map(|part| part.members.clone()));
    Err(reason)
}

fn singles(devices: Vec<&Device>) -> Vec<Part<'_>> {
    devices.into_iter().map(|device| Part { devices: vec![device], members: None }).collect()
}

/// The units of a site that are what is asked for, if such units can ever have as many devices.
fn whole<'a>(site: &Site, here: &[&'a Device], request: &GpuRequest) -> Result<Vec<Part<'a>>, Explanation> {
    let facts: Vec<&DeviceFacts> = here.iter().map(|device| &device.facts).collect();
    let (mut parts, mut evidence) = (Vec::new(), Vec::new());
    for unit in groups::units(&facts) {
        let members = groups::members(&unit, &facts);
        let devices: Vec<&Device> =
            unit.devices.iter().filter_map(|place| here.get(*place).copied()).collect();
        if let Some(trouble) = unit.trouble {
            evidence.push(trouble);
        } else if let Some(other) = devices.iter().find(|device| !suits(device, request)) {
            evidence.push(format!("{members}; {} is not what is asked for", other.facts.key));
        } else {
            evidence.push(members.clone());
            parts.push(Part { members: (devices.len() > 1).then_some(members), devices });
        }
    }
    let sizes = sizes(&parts.iter().collect::<Vec<_>>());
    let wanted = request.count as usize;
    if groups::exactly(&sizes, wanted).is_some() {
        return Ok(parts);
    }
    let text = format!(
        "site {} hands devices to virtual machines in whole IOMMU groups only, and no groups have {wanted} suitable devices \
         together",
        site.name
    );
    let offered: Vec<String> = groups::sums(&sizes).iter().map(usize::to_string).collect();
    let mut reason = Explanation::new("queue.iommu_group", text).fix(if offered.is_empty() {
        "see `forgeyard device list` for the groups of the host".to_owned()
    } else {
        format!("use a flavor with {} devices, which this site can give", offered.join(" or "))
    });
    reason.evidence = evidence;
    Err(reason)
}

/// The devices of a site that will be free soonest, together the ones for a machine; each with its time. `free` says when a device
/// is, if ever.
pub(crate) fn soonest(
    tx: &Tx<'_>,
    site: &Site,
    isolation: Isolation,
    request: &GpuRequest,
    free: impl Fn(&Device) -> Option<Timestamp>,
) -> Option<Vec<(Timestamp, DeviceId)>> {
    let here: Vec<&Device> = tx.farm().devices.values().filter(|device| device.site == site.id).collect();
    let parts = match isolation {
        Isolation::SharedKernel => {
            singles(here.into_iter().filter(|device| suits(device, request)).collect())
        }
        Isolation::Vm => whole(site, &here, request).ok()?,
    };
    let mut timed: Vec<(Timestamp, Part<'_>)> = parts
        .into_iter()
        .filter_map(|part| {
            let times = part.devices.iter().map(|device| free(device)).collect::<Option<Vec<_>>>()?;
            Some((times.into_iter().max()?, part))
        })
        .collect();
    timed.sort_by_key(|(at, part)| (*at, part.devices.first().map(|device| device.id)));
    // In the order of their times, so the choice whose last one comes first is the soonest.
    let sizes: Vec<usize> = timed.iter().map(|(_, part)| part.devices.len()).collect();
    let chosen = groups::exactly(&sizes, request.count as usize)?;
    let parts = chosen.into_iter().filter_map(|place| timed.get(place));
    Some(parts.flat_map(|(at, part)| part.devices.iter().map(|device| (*at, device.id))).collect())
}
