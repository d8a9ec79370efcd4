//! What is put together for reading, from the replica and from the database: the same for API, console and CLI.

pub mod pools;

use crate::app::App;
use crate::http::error::{self, HttpError};
use crate::past;
use forgeyard_api::people::{DemandView, JobView, Outlook, PipelineView, QueueRow, SiteStatus, Status, Why};
use forgeyard_db::EventQuery;
use forgeyard_engine::Farm;
/// Pools of different shape that a job may mix up, for whoever starts a farm.
pub use forgeyard_engine::demand::labels::overlaps;
use forgeyard_engine::queue::predict::Foresight;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::demand::{Demand, DemandState};
use forgeyard_model::device::DeviceState;
use forgeyard_model::job::{Hold, Job, JobKind, JobState};
use forgeyard_model::pool::Breaker;
use forgeyard_model::verdict::CacheFacts;
use forgeyard_model::{ArtifactId, DemandId, Explanation, JobId, Owner, PipelineId, Timestamp, deadline};
use std::collections::BTreeMap;

/// The farm as it is stored, with what is foreseen for its queue.
pub fn foresee<'a>(app: &App, config: &'a FarmConfig, farm: &'a Farm) -> Foresight<'a> {
    Foresight::new(farm, config, app.clock.now())
}

fn outlook(seen: forgeyard_engine::queue::predict::Outlook) -> Outlook {
    Outlook { class: seen.class, expected: seen.expected, basis: seen.basis }
}

fn in_order(jobs: &mut [Job]) {
    let stage = |kind| match kind {
        JobKind::Plan => 0,
        JobKind::Build => 1,
        JobKind::Test => 2,
        JobKind::Runner => 3,
    };
    jobs.sort_by(|a, b| (stage(a.kind), &a.key).cmp(&(stage(b.kind), &b.key)));
}

/// A pipeline with all that belongs to it.
pub fn pipeline(app: &App, id: PipelineId) -> Result<PipelineView, HttpError> {
    let farm = app.core.read();
    let pipeline = farm.pipelines.get(&id).cloned().ok_or_else(|| error::missing("pipeline", id))?;
    let mut jobs: Vec<Job> = farm.jobs_of(id).cloned().collect();
    in_order(&mut jobs);
    let mut attempts: Vec<Attempt> = jobs.iter().flat_map(|job| farm.attempts_of(job.id)).cloned().collect();
    attempts.sort_by_key(|attempt| (attempt.placed_at, attempt.fence));
    let mut artifacts: Vec<_> = farm.artifacts_of(id).cloned().collect();
    artifacts.sort_by_key(|artifact| artifact.stored_at);
    let leases = attempts.iter().filter_map(|attempt| farm.leases.get(&attempt.lease?)).cloned().collect();
    let environment = pipeline.environment.and_then(|id| farm.environments.get(&id)).cloned();
    Ok(PipelineView { pipeline, jobs, attempts, artifacts, leases, environment })
}

/// A job with all that belongs to it.
pub async fn job(app: &App, id: JobId) -> Result<JobView, HttpError> {
    let past = past::of_job(app, id).await?;
    let mut view = {
        let live = app.core.read();
        let farm = past.as_ref().unwrap_or(&live);
        let job = farm.jobs.get(&id).cloned().ok_or_else(|| error::missing("job", id))?;
        let pipeline = job.owner.pipeline().and_then(|id| farm.pipelines.get(&id)).cloned();
        let demand = job.owner.demand().and_then(|id| farm.demands.get(&id)).cloned();
        let attempts: Vec<Attempt> = farm.attempts_of(id).into_iter().cloned().collect();
        let runners =
            attempts.iter().filter_map(|attempt| farm.runners.get(&attempt.runner)).cloned().collect();
        let leases =
            attempts.iter().filter_map(|attempt| farm.leases.get(&attempt.lease?)).cloned().collect();
        let of = |pipeline| farm.artifacts_of(pipeline).filter(|artifact| artifact.job == Some(id)).cloned();
        let artifacts = job.owner.pipeline().into_iter().flat_map(of).collect();
        JobView { job, pipeline, demand, attempts, runners, leases, artifacts, events: Vec::new() }
    };
    let query = EventQuery { subject: Some(id.to_string()), before: None, limit: 100 };
    view.events = app.store.events(query).await.map_err(|error| error::database(&error))?;
    Ok(view)
}

/// Why a job is where it is.
pub fn why(seen: &Foresight<'_>, id: JobId) -> Result<Why, HttpError> {
    let farm = seen.farm;
    let job = farm.jobs.get(&id).ok_or_else(|| error::missing("job", id))?;
    let answer = forgeyard_engine::why::why(seen, job);
    let allowed_by = match job.owner {
        Owner::Pipeline(id) => farm.pipelines.get(&id).map(|pipeline| pipeline.allowed_by.clone()),
        Owner::Demand(id) => {
            let admission = farm.demands.get(&id).and_then(|demand| demand.admission.as_ref());
            admission.map(|admission| admission.by.clone())
        }
    };
    Ok(Why {
        state: job.state.name().to_owned(),
        reason: answer.reason,
        position: answer.outlook.as_ref().map(|seen| seen.position),
        outlook: answer.outlook.map(outlook),
        next: answer.next,
        lines: answer.lines,
        allowed_by: allowed_by.unwrap_or_default(),
        cache: cached(farm, id),
    })
}

/// What the last attempt of a job had of the build cache, a line each; nothing when it had none.
pub fn cached(farm: &Farm, job: JobId) -> Vec<String> {
    let attempts = farm.attempts_of(job);
    let facts = attempts.iter().rev().find_map(|attempt| attempt.facts.as_ref()?.cache.as_ref());
    facts.map(CacheFacts::lines).unwrap_or_default()
}

/// A job of a forge.
pub fn demand(seen: &Foresight<'_>, id: DemandId) -> Result<DemandView, HttpError> {
    let farm = seen.farm;
    let demand = farm.demands.get(&id).ok_or_else(|| error::missing("demand", id))?;
    let answer = forgeyard_engine::why::why_demand(seen, demand);
    let allowed_by = demand.admission.as_ref().map(|admission| admission.by.clone());
    Ok(DemandView {
        demand: demand.clone(),
        why: Why {
            state: demand.state.name().to_owned(),
            reason: answer.reason,
            position: answer.outlook.as_ref().map(|seen| seen.position),
            outlook: answer.outlook.map(outlook),
            next: answer.next,
            lines: answer.lines,
            allowed_by: allowed_by.unwrap_or_default(),
            cache: demand.launch.map(|job| cached(farm, job)).unwrap_or_default(),
        },
        launches: farm.jobs_of(id).cloned().collect(),
    })
}

/// Who waits, in the order of the queue and then of age; then those that were refused lately, newest first. A launch is
/// shown as the job of the forge that it is for.
pub fn queue(seen: &Foresight<'_>, most: usize) -> Vec<QueueRow> {
    let farm = seen.farm;
    let waits = |demand: &&Demand| {
        !matches!(demand.state, DemandState::Running | DemandState::Refused { .. }) && !demand.state.ended()
    };
    let forge = farm.demands.values().filter(waits).map(|demand| demand_row(seen, demand));
    let own = farm
        .jobs
        .values()
        .filter(|job| matches!(job.state, JobState::Queued | JobState::Held(_)))
        .filter_map(|job| Some((job, farm.pipelines.get(&job.owner.pipeline()?)?)))
        .map(|(job, pipeline)| {
            let answer = forgeyard_engine::why::why(seen, job);
            QueueRow {
                id: job.id.to_string(),
                what: job.key.clone(),
                repository: pipeline.event.repository.name.clone(),
                repository_id: pipeline.event.repository.id,
                forge: pipeline.event.repository.forge.clone(),
                state: job.state.name().to_owned(),
                approve_head: matches!(job.state, JobState::Held(Hold::Approval { .. }))
                    .then(|| pipeline.event.head_sha.clone()),
                pipeline: Some(pipeline.id),
                since: job.since,
                position: answer.outlook.as_ref().map(|seen| seen.position),
                outlook: answer.outlook.map(outlook),
                reason: answer.reason,
                next: answer.next,
            }
        });
    let mut rows: Vec<QueueRow> = forge.chain(own).collect();
    rows.sort_by_key(|row| (row.position.unwrap_or(u32::MAX), row.since));
    let refused = farm.demands.values().rev().filter(|row| matches!(row.state, DemandState::Refused { .. }));
    rows.extend(refused.take(most).map(|demand| demand_row(seen, demand)));
    rows.truncate(most);
    rows
}

fn demand_row(seen: &Foresight<'_>, demand: &Demand) -> QueueRow {
    let answer = forgeyard_engine::why::why_demand(seen, demand);
    QueueRow {
        id: demand.id.to_string(),
        what: demand.name.clone(),
        repository: demand.repository.name.clone(),
        repository_id: demand.repository.id,
        forge: demand.repository.forge.clone(),
        state: demand.state.name().to_owned(),
        approve_head: matches!(demand.state, DemandState::Held { until: None, .. })
            .then(|| demand.head().to_owned()),
        pipeline: None,
        since: demand.created_at,
        position: answer.outlook.as_ref().map(|seen| seen.position),
        outlook: answer.outlook.map(outlook),
        reason: answer.reason,
        next: answer.next,
    }
}

/// State of the farm.
pub fn status(app: &App) -> Status {
    let farm = app.core.read();
    let now = app.clock.now();
    let mut jobs: BTreeMap<String, u64> = BTreeMap::new();
    for job in farm.jobs.values() {
        *jobs.entry(job.state.name().to_owned()).or_default() += 1;
    }
    let mut runners: BTreeMap<String, u64> = BTreeMap::new();
    for (_, id) in &farm.index.live_runners {
        if let Some(runner) = farm.runners.get(id) {
            *runners.entry(runner.state.name().to_owned()).or_default() += 1;
        }
    }
    let sites = farm.sites.values().map(|site| SiteStatus {
        id: site.id,
        name: site.name.to_string(),
        heard_at: site.heard_at,
        draining: site.draining_since.is_some(),
        host: site.host.clone(),
    });
    Status {
        farm: app.config().farm.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at: now,
        jobs,
        runners,
        devices: farm.devices.values().cloned().collect(),
        sites: sites.collect(),
        alarms: alarms(&farm, now)
            .into_iter()
            .chain(app.rules.alarms())
            .chain(overlaps(&app.config()))
            .collect(),
    }
}

/// Trouble that an operator should know of.
pub fn alarms(farm: &Farm, now: Timestamp) -> Vec<Explanation> {
    let mut alarms = Vec::new();
    for site in farm.sites.values() {
        let heard = site.heard_at.unwrap_or(site.joined_at);
        if now.since(heard) > deadline::SITE_SILENCE {
            let text = format!("site {} was last heard at {heard}", site.name);
            alarms.push(
                Explanation::new("site.silent", text).fix("look at the host; its machines go on meanwhile"),
            );
        }
    }
    for device in farm.devices.values() {
        if let DeviceState::Quarantined { reason } = &device.state {
            let text = format!("{} ({}) is quarantined: {}", device.id, device.facts.model, reason.message);
            alarms.push(Explanation::new("device.quarantined", text).fix("see `forgeyard device list`"));
        }
    }
    for record in farm.pools.values() {
        if let Breaker::Open { .. } | Breaker::Probing { .. } = record.breaker {
            let last = record.last_error.as_ref().map_or("unknown", |error| error.reason.message.as_str());
            let text =
                format!("pool {} starts no machine: the last ones did not come up: {last}", record.name);
            alarms.push(
                Explanation::new("pool.stopped", text)
                    .fix(format!("see `forgeyard pool show {}`; its pause ends by itself", record.name)),
            );
        }
        for (site, there) in &record.sites {
            let (Breaker::Open { .. } | Breaker::Probing { .. }) = there.breaker else { continue };
            let Some(site) = farm.sites.get(site) else { continue };
            let last = there.last_error.as_ref().map_or("unknown", |error| error.reason.message.as_str());
            let text = format!(
                "pool {} starts no machine at site {}, where the last ones did not come up: {last}",
                record.name, site.name
            );
            alarms.push(
                Explanation::new("pool.site_stopped", text)
                    .fix("look at that host; other sites go on, and the pause ends by itself"),
            );
        }
    }
    let late = |since: Timestamp| now.since(since).as_secs() > 600;
    for (_, id) in &farm.index.live_leases {
        let Some(lease) = farm.leases.get(id) else { continue };
        if lease.state == forgeyard_model::lease::LeaseState::Releasing && late(lease.since) {
            let text = format!("{id} has been ending since {}; its devices stay with it", lease.since);
            alarms.push(
                Explanation::new("lease.overdue", text)
                    .fix("look at the site, or `forgeyard lease write-off`"),
            );
        }
    }
    for effect in farm.index.outbox.iter().filter_map(|id| farm.effects.get(id)) {
        if effect.tries > 2 {
            let trouble = effect.trouble.clone().unwrap_or_default();
            let text = format!("{} was tried {} times: {trouble}", effect.id, effect.tries);
            alarms.push(Explanation::new("effect.troubled", text));
        }
    }
    alarms
}

/// State of the farm as strangers may see it: no keys, no hosts, no texts that people or programs wrote.
pub fn public_status(app: &App) -> Status {
    let mut status = status(app);
    for device in &mut status.devices {
        device.facts.key.clear();
        device.facts.uuid = None;
        device.facts.nodes.clear();
        (device.facts.iommu_group, device.facts.numa_node) = (None, None);
        if let DeviceState::Quarantined { reason } = &mut device.state {
            *reason = Explanation::new("device.quarantined", "it is not handed out");
        }
    }
    status.sites.iter_mut().for_each(|site| site.host = None);
    status.alarms.retain(|alarm| alarm.code != "pool.labels_overlap");
    for alarm in &mut status.alarms {
        let text = match alarm.code.as_str() {
            "site.silent" => "a site does not report",
            "device.quarantined" => "a device is quarantined",
            "lease.overdue" => "a lease takes long to end",
            "pool.stopped" => "a pool starts no machine for a while",
            "pool.site_stopped" => "a pool starts no machine at one of its sites for a while",
            "rules.unread" => "a change of the configuration cannot be read, and does not count",
            "rules.restart" => "a change of the configuration waits for the next start",
            _ => "something is being tried again",
        };
        *alarm = Explanation::new(alarm.code.clone(), text);
    }
    status
}

/// Digest of the bundle of statements about an artifact, when it was promoted.
pub fn statements(farm: &Farm, id: ArtifactId) -> Option<forgeyard_model::Digest> {
    let entries = farm.channels.values().flat_map(|channel| &channel.entries);
    entries.into_iter().find(|entry| entry.artifact == id).map(|entry| entry.attestation)
}
