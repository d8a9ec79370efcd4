//! Backfill under a reservation.
//!
//! The first job in the order that finds no place for lack of devices or memory gets a reservation: a site, the devices
//! there that are free soonest, and the time at which all of it is free, by the predicted ends of what runs. Jobs behind it
//! may start before that time only if they are predicted to be over by then, or take neither a reserved device nor
//! memory that the reservation needs.
//!
//! The prediction for an attempt is made when it is placed and does not change: what nine of ten of the last runs of the
//! same work did not exceed, else its time limit. Where predictions are upper bounds, backfill never moves the start of
//! the reservation back. A reservation is not a row: each look at the queue makes it anew from what runs, for whoever is
//! first then.

use crate::placement;
use crate::pools::canary;
use crate::queue::ledger;
use crate::tx::Tx;
use forgeyard_model::device::{Device, DeviceState};
use forgeyard_model::job::{Job, JobSpec};
use forgeyard_model::resources::{Flavor, GpuRequest, Pool};
use forgeyard_model::site::Site;
use forgeyard_model::{DeviceId, Explanation, JobId, SiteId, Timestamp};
use std::collections::BTreeSet;

/// Places that are kept for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// For whom.
    pub job: JobId,
    /// Where.
    pub site: SiteId,
    /// Which devices.
    pub devices: BTreeSet<DeviceId>,
    /// When all of it is predicted to be free.
    pub start: Timestamp,
    /// Memory that is left beside it then, in MiB.
    pub spare_mib: u64,
}

/// One look at the queue.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// The first job that found no place.
    first: Option<JobId>,
    /// What is kept for it.
    pub(crate) reservation: Option<Reservation>,
    /// For whom it was worked out what is kept.
    kept_for: Option<JobId>,
    /// When the job that is looked at would be over in the place that is looked at.
    pub(crate) ends: Timestamp,
}

impl Look {
    /// Whether the job that is looked at would still run when the reservation begins.
    fn collides(&self, site: SiteId) -> Option<&Reservation> {
        self.reservation.as_ref().filter(|kept| kept.site == site && self.ends > kept.start)
    }

    /// Whether a free device may be taken.
    pub(crate) fn allows(&self, device: &Device) -> bool {
        self.collides(device.site).is_none_or(|kept| !kept.devices.contains(&device.id))
    }

    /// Whether so much memory may be taken.
    pub(crate) fn memory(&self, site: &Site, memory_mib: u64) -> Result<(), Explanation> {
        match self.collides(site.id) {
            Some(kept) if memory_mib > kept.spare_mib => Err(self.refuse(kept, "memory")),
            _ => Ok(()),
        }
    }

    /// The reason when reserved devices are all that is left.
    pub(crate) fn kept_devices(&self, site: SiteId) -> Explanation {
        match self.collides(site) {
            Some(kept) => self.refuse(kept, "devices"),
            None => Explanation::new("queue.device_busy", "devices are in use"),
        }
    }

    fn refuse(&self, kept: &Reservation, what: &str) -> Explanation {
        let text = format!("the {what} that are free are kept for {}, which is before it", kept.job);
        Explanation::new("queue.reserved", text)
            .with(format!("{} is expected to start at {}", kept.job, kept.start))
            .with(format!("this job might run until {}", self.ends))
    }

    /// A job was placed: what it takes beyond the beginning of the reservation is no longer spare.
    pub(crate) fn took(&mut self, site: SiteId, memory_mib: u64, ends: Timestamp) {
        if let Some(kept) = self.reservation.as_mut().filter(|kept| kept.site == site && ends > kept.start) {
            kept.spare_mib = kept.spare_mib.saturating_sub(memory_mib);
        }
    }

    /// A job found no place. The first one that only lacks devices or memory has them kept.
    pub(crate) fn refused(&mut self, job: JobId, reason: &Explanation) {
        let lacks = matches!(reason.code.as_str(), "queue.device_busy" | "queue.host_full");
        if self.first.is_none() && lacks {
            self.first = Some(job);
        }
    }

    /// Works out what is kept, once, and answers whether that is news. Only asked for when a later job found a place: in a
    /// farm where nothing is free nobody has to know.
    pub(crate) fn keep(&mut self, tx: &Tx<'_>) -> bool {
        let job = self.first.filter(|first| self.kept_for != Some(*first));
        let Some(job) = job.and_then(|id| tx.farm().jobs.get(&id)) else { return false };
        self.kept_for = Some(job.id);
        self.reservation = job.spec.as_ref().and_then(|spec| reserve(tx, job, spec));
        self.reservation.is_some()
    }
}

/// The soonest place for a job, over all pools and sites that could have it.
fn reserve(tx: &Tx<'_>, job: &Job, spec: &JobSpec) -> Option<Reservation> {
    let config = tx.config();
    let flavor = config.flavor(&spec.flavor)?;
    let pools = canary::candidates(tx.farm(), config, job, flavor, spec, tx.now());
    let places = pools.iter().flat_map(|(pool, flavor)| {
        let gpu = if spec.forge_runner.is_some() { flavor.gpu.as_ref() } else { spec.gpu.as_ref() };
        let sites = tx.farm().sites.values().filter(|site| serves(tx, site, pool, spec));
        sites.filter_map(move |site| at(tx, job, site, pool, flavor, gpu))
    });
    places.min_by_key(|place| (place.start, place.site))
}

fn serves(tx: &Tx<'_>, site: &Site, pool: &Pool, spec: &JobSpec) -> bool {
    let heard = tx.now().since(site.heard_at.unwrap_or(site.joined_at));
    let host = site.host.as_ref().filter(|host| host.providers.contains(&pool.provider));
    site.draining_since.is_none()
        && heard <= forgeyard_model::deadline::SITE_SILENCE
        && host.is_some_and(|host| spec.needs.iter().all(|limit| host.enforces.contains(limit)))
}

/// The soonest place at a site.
fn at(
    tx: &Tx<'_>,
    job: &Job,
    site: &Site,
    pool: &Pool,
    flavor: &Flavor,
    gpu: Option<&GpuRequest>,
) -> Option<Reservation> {
    let (farm, now) = (tx.farm(), tx.now());
    let mut devices: Vec<(Timestamp, DeviceId)> = Vec::new();
    if let Some(request) = gpu {
        let free = |device: &Device| free_at(tx, device);
        devices = placement::devices::soonest(tx, site, pool.isolation, request, free)?;
    }
    let of_devices = devices.iter().map(|(free, _)| *free).max().unwrap_or(now);
    // Memory comes free machine by machine, in the order of their ends.
    let host = site.host.as_ref()?;
    let live = farm.index.live_runners.range((site.id, forgeyard_model::Id::from_bits(0))..);
    let mut machines: Vec<(Timestamp, u64)> = live
        .take_while(|(owner, _)| *owner == site.id)
        .filter_map(|(_, id)| farm.runners.get(id))
        .map(|runner| {
            // A machine that waits for work makes room for who needs it.
            let attempt = runner.work.attempt().and_then(|id| farm.attempts.get(&id));
            let attempt = attempt.filter(|attempt| attempt.state.live());
            let end = attempt.map_or(Some(now), |attempt| ledger::ends(attempt, now));
            (end.unwrap_or(Timestamp::from_micros(i64::MAX)), runner.shape.memory_mib)
        })
        .collect();
    machines.sort_unstable();
    let mut used: u64 = machines.iter().map(|(_, memory)| memory).sum();
    let mut start = of_devices;
    for (end, memory) in machines {
        // What is over by then gives its memory back; more is waited for only while the job does not fit.
        if end > start && used.saturating_add(flavor.memory_mib) <= host.memory_mib {
            break;
        }
        start = start.max(end);
        used = used.saturating_sub(memory);
    }
    let spare_mib = host.memory_mib.checked_sub(used.checked_add(flavor.memory_mib)?)?;
    let devices = devices.into_iter().map(|(_, id)| id).collect();
    Some(Reservation { job: job.id, site: site.id, devices, start, spare_mib })
}

/// When a device is free, as far as anybody knows; never when it is quarantined.
fn free_at(tx: &Tx<'_>, device: &Device) -> Option<Timestamp> {
    match &device.state {
        DeviceState::Ready | DeviceState::Resetting { .. } | DeviceState::Verifying { .. } => Some(tx.now()),
        DeviceState::Leased { lease } => {
            let attempt = tx.farm().leases.get(lease)?.attempt.and_then(|id| tx.farm().attempts.get(&id));
            let live = attempt.filter(|attempt| attempt.state.live());
            live.map_or(Some(tx.now()), |attempt| ledger::ends(attempt, tx.now()))
        }
        DeviceState::Quarantined { .. } => None,
    }
}
