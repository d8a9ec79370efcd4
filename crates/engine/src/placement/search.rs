//! Where a job can go now: pools in their order, sites in theirs, machines that wait before new ones; or why nowhere.

use super::*;

/// What a machine must be for some work.
pub(crate) struct Wants<'a> {
    pub(crate) flavor: &'a Flavor,
    pub(crate) needs: &'a BTreeSet<Limit>,
    pub(crate) gpu: Option<&'a GpuRequest>,
}

/// Where a job can go now, or why nowhere.
pub(super) fn find<'a>(
    tx: &Tx<'a>,
    job: &Job,
    spec: &JobSpec,
    look: &mut Look,
) -> Result<Place<'a>, Explanation> {
    let config: &'a FarmConfig = tx.config();
    let farm = tx.farm();
    let flavor = config.flavor(&spec.flavor).ok_or_else(|| {
        Explanation::new("queue.no_flavor", format!("flavor {} is not configured", spec.flavor))
            .fix("declare it in forgeyard.toml")
    })?;
    let isolation = isolation(farm, job);
    let mut reasons = Vec::new();
    for (pool, flavor) in canary::candidates(farm, config, job, flavor, spec, tx.now()) {
        let runners = spec.forge_runner.is_some();
        let gpu = if runners { flavor.gpu.as_ref() } else { spec.gpu.as_ref() };
        if runners && let Some(reason) = outdated(tx, pool) {
            reasons.push(reason);
            continue;
        }
        let devices = gpu.map_or(0, |gpu| gpu.count);
        let stake = queue::ledger::stake(farm, config, job, pool, flavor, devices);
        if let Err(reason) = queue::budget::check(farm, config, tx.now(), job.account.as_ref(), &stake) {
            reasons.push(reason);
            continue;
        }
        look.ends = tx.now().plus(std::time::Duration::from_secs(stake.expected.unwrap_or(stake.seconds)));
        let wants = Wants { flavor, needs: &spec.needs, gpu };
        match in_pool(tx, job, pool, isolation, &wants, look) {
            Ok((site, machine)) => return Ok(Place { site, pool, flavor, machine, stake }),
            Err(refusals) => reasons.extend(refusals),
        }
    }
    Err(combine(flavor, reasons))
}

/// A place in one pool: a machine that waits there, or else a new one.
fn in_pool(
    tx: &Tx<'_>,
    job: &Job,
    pool: &Pool,
    isolation: Isolation,
    wants: &Wants<'_>,
    look: &Look,
) -> Result<(SiteId, Machine), Vec<Explanation>> {
    let farm = tx.farm();
    if pool.isolation < isolation {
        let text = format!(
            "pool {} keeps jobs apart by {:?}, this work needs {isolation:?}",
            pool.name, pool.isolation
        );
        return Err(vec![Explanation::new("queue.isolation", text)]);
    }
    if let Some(reason) = pools::drained(farm, pool) {
        return Err(vec![reason]);
    }
    let counted = counted(tx, job);
    if let Some(id) = warm::suiting(tx, pool, wants, job, counted, look)
        && let Some(runner) = farm.runners.get(&id)
    {
        return Ok((runner.site, Machine::Waiting(id)));
    }
    // Machines that failed, or are kept for an autopsy, are no machines of the pool any more (ARC 4168).
    let most = schedule::terms(pool, tx.now()).max;
    if farm.index.occupied.places(&pool.name) >= u64::from(most) {
        let text = format!("pool {} has its {most} machines", pool.name);
        return Err(vec![Explanation::new("queue.pool_full", text)]);
    }
    if let Err(reason) = launch::lets(farm.pools.get(&pool.name), pool, tx.now()) {
        return Err(vec![reason]);
    }
    // A site to avoid is the last resort, not a refusal: it may be the only one. So is one whose results do not count for
    // promotion.
    let mut sites: Vec<&Site> = farm.sites.values().collect();
    sites.sort_by_key(|site| {
        (job.avoid.contains(site.name.as_str()), counted.is_some_and(|named| !named.contains(&site.name)))
    });
    let mut reasons = Vec::new();
    for site in sites {
        let open = launch::site_lets(farm.pools.get(&pool.name), site, tx.now());
        match open.and_then(|()| fits(tx, site, pool, wants, look)) {
            Ok(devices) => return Ok((site.id, Machine::New { devices })),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons)
}

/// Sites that are preferred, because the work can be promoted only from them.
fn counted<'a>(tx: &Tx<'a>, job: &Job) -> Option<&'a BTreeSet<SiteName>> {
    let Owner::Pipeline(id) = job.owner else { return None };
    let pipeline = tx.farm().pipelines.get(&id).filter(|pipeline| pipeline.lane.promotable())?;
    let config: &'a FarmConfig = tx.config();
    let repository = &pipeline.event.repository;
    let named = &config.repository(&repository.forge, repository.id)?.sites;
    (!named.is_empty()).then_some(named)
}

/// One reason out of many: the nearest miss first, the others as evidence.
pub(crate) fn combine(flavor: &Flavor, mut reasons: Vec<Explanation>) -> Explanation {
    reasons.sort_by_key(|reason| rank(&reason.code));
    let mut all = reasons.into_iter();
    let Some(mut first) = all.next() else {
        return Explanation::new(
            "queue.no_site",
            format!("no site has joined that could offer {}", flavor.name),
        )
        .fix("start one: `forgeyard site run`, or `forgeyard up` for a farm on this machine");
    };
    for other in all.filter(|other| other.code != "queue.no_site") {
        first = first.with(other.message);
    }
    first
}

fn rank(code: &str) -> u8 {
    match code {
        "queue.device_busy" | "queue.host_full" | "queue.pool_full" | "queue.reserved" => 0,
        "queue.launch_pace"
        | "queue.breaker_probing"
        | "queue.breaker_open"
        | "queue.pool_draining"
        | "queue.site_silent"
        | "queue.site_draining"
        | "queue.budget" => 1,
        "queue.device_sick" => 2,
        _ => 3,
    }
}

/// Why nothing is launched from the image of a pool: the forge no longer accepts its runner program. The image stops, and
/// no other does.
fn outdated(tx: &Tx<'_>, pool: &Pool) -> Option<Explanation> {
    let image = tx.config().image(&pool.image)?;
    let at = tx.farm().outdated_at(image)?;
    if tx.now().since(at) >= demand::launch::IMAGE_RESTS {
        return None;
    }
    let text = format!(
        "image {} of pool {} holds a runner program that the forge refused as too old at {at}",
        image.name, pool.name
    );
    Some(Explanation::new("queue.image_outdated", text).fix(
        "build the image again with the newest runner program, and let the pool name it; until then nothing is launched \
         from this one",
    ))
}

/// Devices of a site for a new machine, or why it cannot have one.
pub(crate) fn fits(
    tx: &Tx<'_>,
    site: &Site,
    pool: &Pool,
    wants: &Wants<'_>,
    look: &Look,
) -> Result<Vec<DeviceId>, Explanation> {
    let Wants { flavor, needs, gpu } = *wants;
    let name = &site.name;
    let say = |code: &str, text: String| Err(Explanation::new(code, text));
    let Some(host) = &site.host else {
        return say("queue.site_silent", format!("site {name} has not reported yet"));
    };
    let heard = site.heard_at.unwrap_or(site.joined_at);
    if tx.now().since(heard) > deadline::SITE_SILENCE {
        return say("queue.site_silent", format!("site {name} was last heard at {heard}"));
    }
    if site.draining_since.is_some() {
        let text = format!("site {name} is being drained");
        return Err(Explanation::new("queue.site_draining", text)
            .fix(format!("`forgeyard site resume {name}` when the host is well")));
    }
    if !host.providers.contains(&pool.provider) {
        return say("queue.no_provider", format!("site {name} has no working provider {}", pool.provider));
    }
    if let Some(limit) = needs.iter().find(|limit| !host.enforces.contains(limit)) {
        let why = host.cannot.iter().find(|(other, _)| other == limit).map(|(_, why)| why.as_str());
        return Err(Explanation::new(
            "queue.cannot_enforce",
            format!("site {name} cannot enforce the {limit:?} limit that the job needs"),
        )
        .with(why.unwrap_or("the site gives no reason"))
        .fix("run `forgeyard doctor` on the host"));
    }
    if flavor.memory_mib > host.memory_mib || flavor.cpu_millis > host.cpu_millis {
        return Err(Explanation::new(
            "queue.never_fits",
            format!(
                "site {name} has {} MiB and {} CPUs in all; {} asks for {} MiB and {} CPUs",
                host.memory_mib,
                f64::from(host.cpu_millis) / 1000.0,
                flavor.name,
                flavor.memory_mib,
                f64::from(flavor.cpu_millis) / 1000.0
            ),
        )
        .fix("make the flavor smaller, or join a larger host"));
    }
    let used = tx.farm().index.occupied.memory_mib(site.id);
    if used.saturating_add(flavor.memory_mib) > host.memory_mib {
        return say(
            "queue.host_full",
            format!(
                "site {name} has {used} of {} MiB in use; {} asks for {}",
                host.memory_mib, flavor.name, flavor.memory_mib
            ),
        );
    }
    look.memory(site, flavor.memory_mib)?;
    match gpu {
        None => Ok(Vec::new()),
        Some(request) => devices::choose(tx, site, pool.isolation, request, look),
    }
}
