//! The live state of a farm: every row that a decision may need, and the indexes over them.
//!
//! [`Farm`] is what the database holds, in memory. It changes only through [`Tx`](crate::tx::Tx), which records the
//! rows that a decision wrote; storing exactly those rows and loading them again gives an equal farm.

use crate::demand::limits::Lane;
use crate::demand::past::Ended;
use crate::demand::registration;
use crate::queue;
use crate::same_place;
use forgeyard_model::approval::{Acceptance, ConfigVersion, HeadApproval};
use forgeyard_model::artifact::Artifact;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::channel::Channel;
use forgeyard_model::commit::Row;
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::demand::{Demand, ScaleSetRequest};
use forgeyard_model::device::Device;
use forgeyard_model::effect::PendingEffect;
use forgeyard_model::environment::Environment;
use forgeyard_model::forge::Repository;
use forgeyard_model::job::{Hold, Job, JobState};
use forgeyard_model::lease::Lease;
use forgeyard_model::ledger::LedgerRow;
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::pool::PoolRecord;
use forgeyard_model::principal::ApiToken;
use forgeyard_model::resources::Image;
use forgeyard_model::runner::Runner;
use forgeyard_model::site::Site;
use forgeyard_model::who::ForgeId;
use forgeyard_model::{
    ArtifactId, AttemptId, ChannelName, DemandId, DeviceId, Digest, EffectId, EnvironmentId, ForgeName, Id,
    JobId, LeaseId, Owner, PipelineId, PoolName, RunnerId, SiteId, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};

/// Every live row, and indexes over them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Farm {
    /// Epoch of the control plane that decides.
    pub epoch: u64,
    /// When this control plane started; silence counts from here.
    pub resumed_at: Timestamp,
    /// Webhook deliveries by GUID.
    pub deliveries: BTreeMap<String, Delivery>,
    /// Demands.
    pub demands: BTreeMap<DemandId, Demand>,
    /// Pipelines.
    pub pipelines: BTreeMap<PipelineId, Pipeline>,
    /// Jobs.
    pub jobs: BTreeMap<JobId, Job>,
    /// Attempts.
    pub attempts: BTreeMap<AttemptId, Attempt>,
    /// Runners.
    pub runners: BTreeMap<RunnerId, Runner>,
    /// Leases.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Sites.
    pub sites: BTreeMap<SiteId, Site>,
    /// Artifacts.
    pub artifacts: BTreeMap<ArtifactId, Artifact>,
    /// Channels.
    pub channels: BTreeMap<ChannelName, Channel>,
    /// Environments.
    pub environments: BTreeMap<EnvironmentId, Environment>,
    /// Outbox.
    pub effects: BTreeMap<EffectId, PendingEffect>,
    /// API tokens by digest.
    pub tokens: BTreeMap<Digest, ApiToken>,
    /// Running sums and durations.
    pub ledger: BTreeMap<String, LedgerRow>,
    /// What is remembered of pools.
    pub pools: BTreeMap<PoolName, PoolRecord>,
    /// What was said of heads, by forge, repository and commit.
    pub approvals: BTreeMap<String, HeadApproval>,
    /// Accepted terms by person.
    pub acceptances: BTreeMap<ForgeId, Acceptance>,
    /// Configurations by number; only the newest is sure to be here.
    pub configs: BTreeMap<u64, ConfigVersion>,
    /// Jobs of forges whose demands ended and are only in the database.
    pub ended: Ended,
    /// What is derived from the rows.
    pub index: Index,
}

/// Sets that are derived from the rows alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Index {
    /// Queued jobs in the order of the queue.
    pub queue: BTreeSet<(Timestamp, JobId)>,
    /// The same by account and age.
    pub waiting: queue::Waiting,
    /// Attempts that may still produce a result, by account.
    pub running: queue::Running,
    /// What was used this month and lately, and what runs may use yet.
    pub books: queue::ledger::Books,
    /// Queued jobs that need several devices, by age.
    pub large: BTreeSet<(Timestamp, JobId)>,
    /// Jobs held for a pause, by its end.
    pub paused: BTreeSet<(Timestamp, JobId)>,
    /// Jobs that somebody asked to stop and that are not over.
    pub cancelling: BTreeSet<JobId>,
    /// Jobs of each pipeline and of each demand.
    pub jobs_of: BTreeMap<Owner, BTreeSet<JobId>>,
    /// Demands by forge and the forge's id of the job.
    pub demand_of: BTreeMap<(ForgeName, u64), DemandId>,
    /// Demands by forge and the request of a scale set by which they came.
    pub demand_requested: BTreeMap<(ForgeName, ScaleSetRequest), DemandId>,
    /// Demands by forge and the forge's id of the run.
    pub demands_of_run: BTreeMap<(ForgeName, u64), BTreeSet<DemandId>>,
    /// Demands by forge, the forge's id of the repository, and the commit that it named when it told of the job.
    pub demands_of_head: BTreeMap<(ForgeName, u64, String), BTreeSet<DemandId>>,
    /// Demands that are not over.
    pub live_demands: BTreeSet<DemandId>,
    /// The same by when something is to be done about them.
    pub demand_deadlines: BTreeSet<(Timestamp, DemandId)>,
    /// Demands that are over, by when that was.
    pub ended_demands: BTreeSet<(Timestamp, DemandId)>,
    /// Effects of each demand.
    pub effects_of: BTreeMap<DemandId, BTreeSet<EffectId>>,
    /// Demands by the launch that is reserved for them.
    pub launch_for: BTreeMap<JobId, BTreeSet<DemandId>>,
    /// Images whose runner program a forge refused as too old, and when.
    pub outdated: BTreeSet<(String, Timestamp, RunnerId)>,
    /// Our runners by forge and by their name there.
    pub runner_named: BTreeMap<(ForgeName, String), RunnerId>,
    /// Effects that register a runner and waited for a limit, by where and until when.
    pub limited: BTreeSet<(Lane, Timestamp, EffectId)>,
    /// Attempts that are runners of a forge, by when they were placed.
    pub forge_launches: BTreeSet<(Timestamp, AttemptId)>,
    /// Attempts of each job.
    pub attempts_of: BTreeMap<JobId, BTreeSet<AttemptId>>,
    /// Artifacts of each pipeline.
    pub artifacts_of: BTreeMap<PipelineId, BTreeSet<ArtifactId>>,
    /// Attempts that may still produce a result.
    pub live_attempts: BTreeSet<AttemptId>,
    /// Machines that may exist, by site.
    pub live_runners: BTreeSet<(SiteId, RunnerId)>,
    /// The same by the end of what they may take in their state.
    pub runner_deadlines: BTreeSet<(Timestamp, RunnerId)>,
    /// Those that are registered and have taken nothing, by when they are asked about it.
    pub runner_idle: BTreeSet<(Timestamp, RunnerId)>,
    /// How full pools and sites are by them.
    pub occupied: crate::occupied::Occupied,
    /// Machines that may exist and wait for work.
    pub warm: BTreeSet<RunnerId>,
    /// Leases that hold devices, by site.
    pub live_leases: BTreeSet<(SiteId, LeaseId)>,
    /// Deliveries that were not looked at.
    pub unread: BTreeSet<String>,
    /// Effects in the outbox.
    pub outbox: BTreeSet<EffectId>,
    /// Pipelines that are not over.
    pub live_pipelines: BTreeSet<PipelineId>,
}

/// An image with all that it is made of: another root is another image, whatever its name.
fn image_key(image: &Image) -> String {
    format!("{image:?}")
}

/// Those whose time has come, in the order of their ids.
pub(crate) fn due<I: Id + Ord>(by_time: &BTreeSet<(Timestamp, I)>, now: Timestamp) -> Vec<I> {
    let mut due: Vec<I> = by_time.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
    due.sort_unstable();
    due
}

fn toggle<T: Ord>(set: &mut BTreeSet<T>, value: T, add: bool) {
    if add {
        set.insert(value);
    } else {
        set.remove(&value);
    }
}

fn toggle_under<K: Ord, T: Ord>(map: &mut BTreeMap<K, BTreeSet<T>>, key: K, value: T, add: bool) {
    if add {
        map.entry(key).or_default().insert(value);
    } else if let Some(set) = map.get_mut(&key) {
        set.remove(&value);
        if set.is_empty() {
            map.remove(&key);
        }
    }
}

/// A kind of row that lives in a [`Farm`].
pub trait Entity: Clone + Into<Row> {
    /// Its primary key.
    type Key: Ord + Clone;
    /// Its primary key.
    fn key(&self) -> Self::Key;
    /// Its table.
    fn table(farm: &Farm) -> &BTreeMap<Self::Key, Self>;
    /// Its table and the indexes.
    fn table_mut(farm: &mut Farm) -> (&mut BTreeMap<Self::Key, Self>, &mut Index);
    /// Its version.
    fn generation(&self) -> u64;
    /// Sets its version.
    fn set_generation(&mut self, generation: u64);
    /// Enters it into the indexes, or takes it out.
    fn index(&self, index: &mut Index, add: bool);
    /// Whether another version of it stands in the same places of the indexes, as far as that is cheap to say. Most writes
    /// change nothing there: a sign of life, another reason to wait.
    fn indexed_like(&self, other: &Self) -> bool;
}

macro_rules! entities {
    ($($type:ident in $table:ident by $key:ty, $key_of:expr, $index:expr $(, $like:path)?;)*) => {
        $(impl Entity for $type {
            type Key = $key;
            fn key(&self) -> $key { let key: fn(&$type) -> $key = $key_of; key(self) }
            fn table(farm: &Farm) -> &BTreeMap<$key, Self> { &farm.$table }
            fn table_mut(farm: &mut Farm) -> (&mut BTreeMap<$key, Self>, &mut Index) {
                (&mut farm.$table, &mut farm.index)
            }
            fn generation(&self) -> u64 { self.generation }
            fn set_generation(&mut self, generation: u64) { self.generation = generation; }
            fn index(&self, index: &mut Index, add: bool) {
                let enter: fn(&$type, &mut Index, bool) = $index;
                enter(self, index, add);
            }
            fn indexed_like(&self, other: &Self) -> bool {
                let like: &[fn(&$type, &$type) -> bool] = &[$($like)?];
                like.first().is_some_and(|like| like(self, other))
            }
        })*
    };
}

entities! {
    Delivery in deliveries by String, |row| row.guid.clone(), |row, index, add| {
        if row.state == DeliveryState::Stored {
            toggle(&mut index.unread, row.guid.clone(), add);
        }
    };
    Demand in demands by DemandId, |row| row.id, |row, index, add| {
        let forge = &row.repository.forge;
        if add {
            index.demand_of.insert((forge.clone(), row.job), row.id);
        } else {
            index.demand_of.remove(&(forge.clone(), row.job));
        }
        if let Some(request) = row.scale_set {
            if add {
                index.demand_requested.insert((forge.clone(), request), row.id);
            } else {
                index.demand_requested.remove(&(forge.clone(), request));
            }
        }
        toggle_under(&mut index.demands_of_run, (forge.clone(), row.run), row.id, add);
        let head = (forge.clone(), row.repository.id, row.head_sha.clone());
        toggle_under(&mut index.demands_of_head, head, row.id, add);
        if let Some(launch) = row.launch {
            toggle_under(&mut index.launch_for, launch, row.id, add);
        }
        if row.state.ended() {
            toggle(&mut index.ended_demands, (row.ended_at.unwrap_or(row.since), row.id), add);
        } else {
            toggle(&mut index.live_demands, row.id, add);
            if let Some(deadline) = row.deadline {
                toggle(&mut index.demand_deadlines, (deadline, row.id), add);
            }
        }
    }, same_place::demands;
    Pipeline in pipelines by PipelineId, |row| row.id, |row, index, add| {
        if !row.state.ended() {
            toggle(&mut index.live_pipelines, row.id, add);
        }
    };
    Job in jobs by JobId, |row| row.id, |row, index, add| {
        toggle_under(&mut index.jobs_of, row.owner, row.id, add);
        if row.cancel_requested_at.is_some() && !row.state.ended() {
            toggle(&mut index.cancelling, row.id, add);
        }
        match &row.state {
            JobState::Queued => {
                let place = (row.queued_at.unwrap_or(row.created_at), row.id);
                toggle(&mut index.queue, place, add);
                if row.spec.as_ref().and_then(|spec| spec.gpu.as_ref()).is_some_and(|gpu| gpu.count > 1) {
                    toggle(&mut index.large, place, add);
                }
                queue::enter(&mut index.waiting, row.account.as_ref(), place, add);
            }
            JobState::Held(Hold::Retry { until }) => toggle(&mut index.paused, (*until, row.id), add),
            _ => {}
        }
    }, same_place::jobs;
    Attempt in attempts by AttemptId, |row| row.id, |row, index, add| {
        toggle_under(&mut index.attempts_of, row.job, row.id, add);
        if row.owner.demand().is_some() {
            toggle(&mut index.forge_launches, (row.placed_at, row.id), add);
        }
        if row.state.live() {
            toggle(&mut index.live_attempts, row.id, add);
            if let Some(account) = &row.account {
                index.running.toggle(account, row.id, add);
                index.books.stake(account, row.stake.as_deref(), add);
            }
        }
    }, same_place::attempts;
    Runner in runners by RunnerId, |row| row.id, |row, index, add| {
        index.occupied.enter(row, add);
        if row.state.live() {
            toggle(&mut index.live_runners, (row.site, row.id), add);
            if let Some(deadline) = row.deadline {
                toggle(&mut index.runner_deadlines, (deadline, row.id), add);
            }
            if let Some(until) = registration::idle_until(row) {
                toggle(&mut index.runner_idle, (until, row.id), add);
            }
            if row.work.is_warm() {
                toggle(&mut index.warm, row.id, add);
            }
        }
        if let Some(at) = row.outdated_at {
            toggle(&mut index.outdated, (image_key(&row.boots), at, row.id), add);
        }
        if let Some(registration) = &row.registration {
            let name = (registration.repository.forge.clone(), registration.name.clone());
            if add {
                index.runner_named.insert(name, row.id);
            } else {
                index.runner_named.remove(&name);
            }
        }
    };
    Lease in leases by LeaseId, |row| row.id, |row, index, add| {
        if row.state.live() {
            toggle(&mut index.live_leases, (row.site, row.id), add);
        }
    };
    Device in devices by DeviceId, |row| row.id, |_, _, _| {};
    Site in sites by SiteId, |row| row.id, |_, _, _| {};
    Artifact in artifacts by ArtifactId, |row| row.id, |row, index, add| {
        toggle_under(&mut index.artifacts_of, row.pipeline, row.id, add);
    };
    Channel in channels by ChannelName, |row| row.name.clone(), |_, _, _| {};
    Environment in environments by EnvironmentId, |row| row.id, |_, _, _| {};
    PendingEffect in effects by EffectId, |row| row.id, |row, index, add| {
        if row.done_at.is_none() {
            toggle(&mut index.outbox, row.id, add);
        }
        if let Some(demand) = row.effect.demand() {
            toggle_under(&mut index.effects_of, demand, row.id, add);
        }
        if let Some(lane) = Lane::waited(row) {
            toggle(&mut index.limited, (lane, row.not_before, row.id), add);
        }
    };
    ApiToken in tokens by Digest, |row| row.digest, |_, _, _| {};
    LedgerRow in ledger by String, |row| row.key.clone(), |row, index, add| index.books.enter(row, add);
    PoolRecord in pools by PoolName, |row| row.name.clone(), |_, _, _| {};
    HeadApproval in approvals by String, HeadApproval::key, |_, _, _| {};
    Acceptance in acceptances by ForgeId, Acceptance::who, |_, _, _| {};
    ConfigVersion in configs by u64, |row| row.number, |_, _, _| {};
}

impl Farm {
    /// A farm with these rows.
    pub fn load(rows: impl IntoIterator<Item = Row>) -> Self {
        let mut farm = Farm::default();
        for row in rows {
            farm.set(row);
        }
        farm
    }

    /// Puts a row as it is, generation and all. For loading and for replicas; decisions go through a transaction.
    pub fn set(&mut self, row: Row) {
        match row {
            Row::Delivery(row) => drop(self.place(row)),
            Row::Demand(row) => drop(self.place(row)),
            Row::Pipeline(row) => drop(self.place(row)),
            Row::Job(row) => drop(self.place(row)),
            Row::Attempt(row) => drop(self.place(row)),
            Row::Runner(row) => drop(self.place(row)),
            Row::Lease(row) => drop(self.place(row)),
            Row::Device(row) => drop(self.place(row)),
            Row::Site(row) => drop(self.place(row)),
            Row::Artifact(row) => drop(self.place(row)),
            Row::Channel(row) => drop(self.place(row)),
            Row::Environment(row) => drop(self.place(row)),
            Row::Effect(row) => drop(self.place(row)),
            Row::Token(row) => drop(self.place(row)),
            Row::Ledger(row) => drop(self.place(row)),
            Row::Pool(row) => drop(self.place(row)),
            Row::Approval(row) => drop(self.place(row)),
            Row::Acceptance(row) => drop(self.place(row)),
            Row::Config(row) => drop(self.place(row)),
        }
    }

    /// Puts a row and answers what was there before. A known row is replaced where it lies: rows are large, and taking
    /// one out of a map only to put another in moves its neighbours twice.
    pub(crate) fn place<E: Entity>(&mut self, row: E) -> Option<E> {
        let key = row.key();
        let (table, index) = E::table_mut(self);
        match table.get_mut(&key) {
            Some(place) => {
                if !place.indexed_like(&row) {
                    place.index(index, false);
                    row.index(index, true);
                }
                Some(std::mem::replace(place, row))
            }
            None => {
                row.index(index, true);
                table.insert(key, row)
            }
        }
    }

    /// Takes a row out.
    pub(crate) fn displace<E: Entity>(&mut self, key: &E::Key) {
        let (table, index) = E::table_mut(self);
        if let Some(before) = table.remove(key) {
            before.index(index, false);
        }
    }

    /// Jobs of a pipeline or of a demand.
    pub fn jobs_of(&self, owner: impl Into<Owner>) -> impl Iterator<Item = &Job> {
        self.index.jobs_of.get(&owner.into()).into_iter().flatten().filter_map(|id| self.jobs.get(id))
    }

    /// The demand of a job of a forge.
    pub fn demand_of(&self, forge: &ForgeName, job: u64) -> Option<&Demand> {
        self.demands.get(self.index.demand_of.get(&(forge.clone(), job))?)
    }

    /// The demand that came by a request of a scale set.
    pub fn demand_requested(&self, forge: &ForgeName, request: ScaleSetRequest) -> Option<&Demand> {
        self.demands.get(self.index.demand_requested.get(&(forge.clone(), request))?)
    }

    /// Demands of a run of a forge.
    pub fn demands_of_run(&self, forge: &ForgeName, run: u64) -> impl Iterator<Item = &Demand> {
        let ids = self.index.demands_of_run.get(&(forge.clone(), run)).into_iter().flatten();
        ids.filter_map(|id| self.demands.get(id))
    }

    /// Demands of a commit, the ended ones too.
    pub fn demands_of_head(
        &self,
        forge: &ForgeName,
        repository: u64,
        head_sha: &str,
    ) -> impl Iterator<Item = &Demand> {
        let ids = self.index.demands_of_head.get(&(forge.clone(), repository, head_sha.to_owned()));
        ids.into_iter().flatten().filter_map(|id| self.demands.get(id))
    }

    /// The demand to which a launch still owes a runner.
    pub fn owed_by(&self, launch: JobId) -> Option<&Demand> {
        let ids = self.index.launch_for.get(&launch).into_iter().flatten();
        ids.filter_map(|id| self.demands.get(id)).find(|demand| demand.state.owed())
    }

    /// The repository that an owner works for; its number is 0 for work that a person handed in.
    pub fn repository_of(&self, owner: Owner) -> Option<&Repository> {
        match owner {
            Owner::Pipeline(id) => self.pipelines.get(&id).map(|pipeline| &pipeline.event.repository),
            Owner::Demand(id) => self.demands.get(&id).map(|demand| &demand.repository),
        }
    }

    /// Attempts of a job, oldest first.
    pub fn attempts_of(&self, job: JobId) -> Vec<&Attempt> {
        let ids = self.index.attempts_of.get(&job).into_iter().flatten();
        let mut attempts: Vec<&Attempt> = ids.filter_map(|id| self.attempts.get(id)).collect();
        attempts.sort_by_key(|attempt| attempt.fence);
        attempts
    }

    /// When a forge last refused the runner program of exactly this image as too old.
    pub fn outdated_at(&self, image: &Image) -> Option<Timestamp> {
        let key = image_key(image);
        let from = (key.clone(), Timestamp::default(), RunnerId::from_bits(0));
        let of_image = self.index.outdated.range(from..).take_while(|(of, _, _)| *of == key);
        of_image.map(|(_, at, _)| *at).last()
    }

    /// Artifacts of a pipeline.
    pub fn artifacts_of(&self, pipeline: PipelineId) -> impl Iterator<Item = &Artifact> {
        self.index.artifacts_of.get(&pipeline).into_iter().flatten().filter_map(|id| self.artifacts.get(id))
    }

    /// Rows in a fixed order, as a database would hand them out.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        rows.extend(self.deliveries.values().cloned().map(Row::from));
        rows.extend(self.demands.values().cloned().map(Row::from));
        rows.extend(self.pipelines.values().cloned().map(Row::from));
        rows.extend(self.jobs.values().cloned().map(Row::from));
        rows.extend(self.attempts.values().cloned().map(Row::from));
        rows.extend(self.runners.values().cloned().map(Row::from));
        rows.extend(self.leases.values().cloned().map(Row::from));
        rows.extend(self.devices.values().cloned().map(Row::from));
        rows.extend(self.sites.values().cloned().map(Row::from));
        rows.extend(self.artifacts.values().cloned().map(Row::from));
        rows.extend(self.channels.values().cloned().map(Row::from));
        rows.extend(self.environments.values().cloned().map(Row::from));
        rows.extend(self.effects.values().cloned().map(Row::from));
        rows.extend(self.tokens.values().cloned().map(Row::from));
        rows.extend(self.ledger.values().cloned().map(Row::from));
        rows.extend(self.pools.values().cloned().map(Row::from));
        rows.extend(self.approvals.values().cloned().map(Row::from));
        rows.extend(self.acceptances.values().cloned().map(Row::from));
        rows.extend(self.configs.values().cloned().map(Row::from));
        rows
    }
}
