//! A decision in progress: changes the farm, records what to write, and can be taken back whole.

use crate::ctx::Ctx;
use crate::farm::{Entity, Farm};
use crate::lifecycle::{
    self, AttemptEvent, DemandEvent, DeviceEvent, JobEvent, LeaseEvent, RegistrationEvent, RunnerEvent,
};
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::commit::{Commit, EventRecord, Row, UsageFact};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::deadline;
use forgeyard_model::demand::{Demand, DemandState};
use forgeyard_model::device::{Device, DeviceState};
use forgeyard_model::effect::{Effect, PendingEffect};
use forgeyard_model::input::{Input, JournalEntry, Refusal, RefusalKind};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::name::FlavorName;
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use forgeyard_model::registration::RegistrationState;
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::site::Site;
use forgeyard_model::{
    AttemptId, DemandId, DeviceId, EffectId, EventId, Id, JobId, LeaseId, Owner, PipelineId, RunnerId,
    SiteId, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How to take one write back.
type Undo = Box<dyn FnOnce(&mut Farm) + Send>;

/// A decision in progress.
pub struct Tx<'a> {
    farm: &'a mut Farm,
    /// Circumstances.
    pub ctx: &'a Ctx<'a>,
    undo: Vec<Undo>,
    /// Rows in the order in which they were first written.
    rows: Vec<Row>,
    /// Where each row lies in `rows`.
    written: BTreeMap<(&'static str, String), usize>,
    events: Vec<EventRecord>,
    usage: Vec<UsageFact>,
    retired: Vec<DemandId>,
    touched_sites: BTreeSet<SiteId>,
    fresh: u32,
    epoch_before: (u64, Timestamp),
}

/// An id that names nothing.
pub fn missing(what: &str, id: impl std::fmt::Display) -> Refusal {
    Refusal::new(RefusalKind::NotFound, "farm.not_found", format!("there is no {what} {id}"))
}

fn illegal(kind: &str, id: impl std::fmt::Display, from: &str, event: &str) -> Refusal {
    Refusal::new(
        RefusalKind::Conflict,
        "farm.illegal_move",
        format!("{kind} {id} is `{from}`; `{event}` does not happen to it there"),
    )
}

impl<'a> Tx<'a> {
    /// Begins a decision.
    pub fn new(farm: &'a mut Farm, ctx: &'a Ctx<'a>) -> Self {
        let epoch_before = (farm.epoch, farm.resumed_at);
        Self {
            farm,
            ctx,
            undo: Vec::new(),
            rows: Vec::new(),
            written: BTreeMap::new(),
            events: Vec::new(),
            usage: Vec::new(),
            retired: Vec::new(),
            touched_sites: BTreeSet::new(),
            fresh: 0,
            epoch_before,
        }
    }

    /// The state, this decision's writes included.
    pub fn farm(&self) -> &Farm {
        self.farm
    }

    /// Time of the decision.
    pub fn now(&self) -> Timestamp {
        self.ctx.now
    }

    /// Sets the epoch of the control plane. Not a row: the store hands it out anew at each start.
    pub fn resume(&mut self, epoch: u64) {
        self.farm.epoch = epoch;
        self.farm.resumed_at = self.ctx.now;
    }

    /// A new id of this moment.
    pub fn new_id<I: Id>(&mut self) -> I {
        self.fresh += 1;
        I::new(self.ctx.now, self.ctx.entropy_for(self.fresh))
    }

    /// Writes a row; its generation is set here.
    pub fn put<E: Entity + Send + 'static>(&mut self, mut row: E)
    where
        E::Key: Send + 'static,
    {
        let key = row.key();
        let known = E::table(self.farm).get(&key).map_or(0, Entity::generation);
        row.set_generation(known + 1);
        let stored: Row = row.clone().into();
        let place = (stored.kind(), stored.key());
        match self.written.get(&place).and_then(|at| self.rows.get_mut(*at)) {
            // A row written twice in one decision is stored once, with the generation after the stored one.
            Some(earlier) => {
                row.set_generation(known);
                *earlier = row.clone().into();
            }
            None => {
                self.written.insert(place, self.rows.len());
                self.rows.push(stored);
            }
        }
        let before = self.farm.place(row);
        self.undo.push(match before {
            Some(before) => Box::new(move |farm: &mut Farm| {
                farm.place(before);
            }),
            None => Box::new(move |farm: &mut Farm| farm.displace::<E>(&key)),
        });
    }

    /// Takes an ended demand out of memory, with everything that belongs to it. The database keeps them.
    pub(crate) fn retire(&mut self, demand: DemandId) {
        let before = self.farm.ended.clone();
        let rows = self.farm.retire(demand);
        self.retired.push(demand);
        self.undo.push(Box::new(move |farm: &mut Farm| {
            farm.ended = before;
            rows.into_iter().for_each(|row| farm.set(row));
        }));
    }

    /// Writes an event row.
    pub fn event(
        &mut self,
        name: &str,
        subject: impl ToString,
        from: Option<&str>,
        to: &str,
        note: Option<String>,
    ) {
        let index = self.events.len() as u128 + 1;
        let id = EventId::new(self.ctx.now, (u128::from(self.ctx.seq) << 24) | (index & 0xff_ffff));
        self.events.push(EventRecord {
            id,
            at: self.ctx.now,
            by: self.ctx.by.clone(),
            name: name.to_owned(),
            subject: subject.to_string(),
            from: from.map(str::to_owned),
            to: to.to_owned(),
            note,
        });
    }

    /// Writes a usage fact.
    pub fn usage(
        &mut self,
        what: &str,
        amount: u64,
        subject: impl ToString,
        repository: Option<&RepositoryKey>,
    ) {
        let at = self.ctx.now;
        self.usage.push(UsageFact {
            what: what.to_owned(),
            amount,
            subject: subject.to_string(),
            repository: repository.map_or(0, |repository| repository.id),
            forge: repository
                .filter(|repository| repository.id != 0)
                .map(|repository| repository.forge.clone()),
            at,
        });
    }

    /// Puts an effect into the outbox. Its id derives from `cause` and `key`, so the same cause asks once.
    pub fn effect<I: Id>(&mut self, cause: I, key: &str, effect: Effect) -> EffectId {
        self.effect_at(cause, key, effect, self.ctx.now)
    }

    /// The same, to be done not before a time.
    pub fn effect_at<I: Id>(
        &mut self,
        cause: I,
        key: &str,
        effect: Effect,
        not_before: Timestamp,
    ) -> EffectId {
        let id = EffectId::derive(cause, key);
        if !self.farm.effects.contains_key(&id) {
            self.put(PendingEffect {
                id,
                effect,
                tries: 0,
                not_before,
                trouble: None,
                waits: None,
                done_at: None,
                generation: 0,
            });
        }
        id
    }

    /// The time limit of a flavor; a flavor that is no longer configured gets the longest one.
    pub fn time_limit(&self, flavor: &FlavorName) -> Duration {
        let longest = || self.ctx.config.flavors.iter().map(|flavor| flavor.time_limit_seconds).max();
        let seconds = self.ctx.config.flavor(flavor).map(|flavor| flavor.time_limit_seconds);
        Duration::from_secs(seconds.or_else(longest).unwrap_or(3600))
    }

    /// A job.
    pub fn job(&self, id: JobId) -> Result<Job, Refusal> {
        self.farm.jobs.get(&id).cloned().ok_or_else(|| missing("job", id))
    }

    /// A demand.
    pub fn demand(&self, id: DemandId) -> Result<Demand, Refusal> {
        self.farm.demands.get(&id).cloned().ok_or_else(|| missing("demand", id))
    }

    /// A pipeline.
    pub fn pipeline(&self, id: PipelineId) -> Result<Pipeline, Refusal> {
        self.farm.pipelines.get(&id).cloned().ok_or_else(|| missing("pipeline", id))
    }

    /// An attempt.
    pub fn attempt(&self, id: AttemptId) -> Result<Attempt, Refusal> {
        self.farm.attempts.get(&id).cloned().ok_or_else(|| missing("attempt", id))
    }

    /// A runner.
    pub fn runner(&self, id: RunnerId) -> Result<Runner, Refusal> {
        self.farm.runners.get(&id).cloned().ok_or_else(|| missing("runner", id))
    }

    /// The attempt of a machine that has one.
    pub fn attempt_of(&self, runner: &Runner) -> Result<Attempt, Refusal> {
        let id = runner.work.attempt().ok_or_else(|| missing("attempt of", runner.id))?;
        self.attempt(id)
    }

    /// A lease.
    pub fn lease(&self, id: LeaseId) -> Result<Lease, Refusal> {
        self.farm.leases.get(&id).cloned().ok_or_else(|| missing("lease", id))
    }

    /// A device.
    pub fn device(&self, id: DeviceId) -> Result<Device, Refusal> {
        self.farm.devices.get(&id).cloned().ok_or_else(|| missing("device", id))
    }

    /// A site.
    pub fn site(&self, id: SiteId) -> Result<Site, Refusal> {
        self.farm.sites.get(&id).cloned().ok_or_else(|| missing("site", id))
    }

    /// Moves a job along its table and writes it.
    pub fn move_job(
        &mut self,
        mut job: Job,
        event: JobEvent,
        to: JobState,
        note: Option<String>,
    ) -> Result<(), Refusal> {
        let from = lifecycle::job_stage(&job.state);
        if lifecycle::job(from, event) != Some(lifecycle::job_stage(&to)) {
            return Err(illegal("job", job.id, from, event.name()));
        }
        let before = job.state.name();
        if to == JobState::Queued {
            job.queued_at = Some(self.ctx.now);
        }
        if to.ended() {
            job.ended_at = Some(self.ctx.now);
            job.waiting = None;
        } else {
            job.ended_at = None;
        }
        job.deadline = deadline::job(&to).map(|limit| self.ctx.now.plus(limit));
        job.since = self.ctx.now;
        job.state = to;
        self.event(event.name(), job.id, Some(before), job.state.name(), note);
        self.put(job);
        Ok(())
    }

    /// Moves an attempt along its table and writes it.
    pub fn move_attempt(
        &mut self,
        mut attempt: Attempt,
        event: AttemptEvent,
        limit: Duration,
    ) -> Result<(), Refusal> {
        let from = attempt.state;
        let to = lifecycle::attempt(from, event)
            .ok_or_else(|| illegal("attempt", attempt.id, from.name(), event.name()))?;
        attempt.state = to;
        attempt.since = self.ctx.now;
        let limit = match attempt.owner {
            Owner::Pipeline(_) => deadline::attempt(to, limit),
            Owner::Demand(_) => deadline::forge_attempt(to, limit),
        };
        attempt.deadline = limit.map(|limit| self.ctx.now.plus(limit));
        if to == AttemptState::Ended {
            attempt.ended_at = Some(self.ctx.now);
        }
        let note = attempt.verdict.as_ref().map(|verdict| verdict.cause.clone());
        self.event(event.name(), attempt.id, Some(from.name()), to.name(), note);
        self.put(attempt);
        Ok(())
    }

    /// Moves a runner along its table and writes it.
    pub fn move_runner(
        &mut self,
        mut runner: Runner,
        event: RunnerEvent,
        to: RunnerState,
    ) -> Result<(), Refusal> {
        let from = runner.state.name();
        if lifecycle::runner(from, event) != Some(to.name()) {
            return Err(illegal("runner", runner.id, from, event.name()));
        }
        let limit = self.time_limit(&runner.flavor);
        if matches!(event, RunnerEvent::RunnerRegistered | RunnerEvent::RunnerReady) {
            runner.ready_at.get_or_insert(self.ctx.now);
        }
        if runner.state.wanted() && !to.wanted() {
            let desired = self.farm.sites.get(&runner.site).map_or(0, |site| site.desired_generation);
            runner.unwanted_from = desired + 1;
        }
        let limit = match runner.work.attempt() {
            Some(_) => deadline::runner(&to, limit),
            None => deadline::warm_runner(&to, limit),
        };
        runner.deadline = limit.map(|limit| self.ctx.now.plus(limit));
        runner.since = self.ctx.now;
        let note = match &to {
            RunnerState::Failed { reason } | RunnerState::Kept { reason } => Some(reason.message.clone()),
            _ => None,
        };
        runner.state = to;
        self.event(event.name(), runner.id, Some(from), runner.state.name(), note);
        self.touched_sites.insert(runner.site);
        self.put(runner);
        Ok(())
    }

    /// Moves a demand along its table and writes it. The end of a pause is its deadline.
    pub fn move_demand(
        &mut self,
        mut demand: Demand,
        event: DemandEvent,
        to: DemandState,
    ) -> Result<(), Refusal> {
        let from = demand.state.name();
        if lifecycle::demand(from, event) != Some(to.name()) {
            return Err(illegal("demand", demand.id, from, event.name()));
        }
        let pause = match &to {
            DemandState::Held { until, .. } => *until,
            _ => None,
        };
        demand.deadline = pause.or_else(|| deadline::demand(&to).map(|limit| self.ctx.now.plus(limit)));
        demand.since = self.ctx.now;
        demand.checks = 0;
        demand.ended_at = to.ended().then_some(self.ctx.now);
        demand.state = to;
        let note = demand.reason().map(|reason| reason.message.clone()).or_else(|| match &demand.state {
            DemandState::Running => demand.taken_by.as_ref().map(|taker| taker.name.clone()),
            DemandState::Ended => demand.conclusion.clone(),
            _ => None,
        });
        self.event(event.name(), demand.id, Some(from), demand.state.name(), note);
        self.put(demand);
        Ok(())
    }

    /// Moves the registration of a runner along its table and writes the runner.
    pub fn move_registration(
        &mut self,
        mut runner: Runner,
        event: RegistrationEvent,
        to: RegistrationState,
    ) -> Result<(), Refusal> {
        let Some(registration) = runner.registration.as_mut() else {
            return Err(missing("registration of runner", runner.id));
        };
        let from = registration.state.name();
        if lifecycle::registration(from, event) != Some(to.name()) {
            return Err(illegal("the registration of runner", runner.id, from, event.name()));
        }
        let note = match &to {
            RegistrationState::Leaving { reason, .. } => reason.message.clone(),
            _ => registration.name.clone(),
        };
        let name = to.name();
        registration.state = to;
        self.event(event.name(), runner.id, Some(from), name, Some(note));
        self.put(runner);
        Ok(())
    }

    /// Moves a lease along its table and writes it.
    pub fn move_lease(&mut self, mut lease: Lease, event: LeaseEvent) -> Result<(), Refusal> {
        let from = lease.state;
        let to = lifecycle::lease(from, event)
            .ok_or_else(|| illegal("lease", lease.id, from.name(), event.name()))?;
        let limit = match lease.attempt {
            Some(_) => self.farm.runners.get(&lease.runner).map(|runner| self.time_limit(&runner.flavor)),
            None => Some(deadline::WARM_LASTS),
        };
        lease.state = to;
        lease.since = self.ctx.now;
        lease.deadline = deadline::lease(to, limit.unwrap_or_default()).map(|limit| self.ctx.now.plus(limit));
        match to {
            LeaseState::Held => lease.held_at = Some(self.ctx.now),
            LeaseState::Ended | LeaseState::WrittenOff => lease.ended_at = Some(self.ctx.now),
            LeaseState::Claimed | LeaseState::Releasing => {}
        }
        self.event(event.name(), lease.id, Some(from.name()), to.name(), None);
        self.touched_sites.insert(lease.site);
        self.put(lease);
        Ok(())
    }

    /// Moves a device along its table and writes it.
    pub fn move_device(
        &mut self,
        mut device: Device,
        event: DeviceEvent,
        to: DeviceState,
    ) -> Result<(), Refusal> {
        let from = device.state.name();
        if lifecycle::device(from, event) != Some(to.name()) {
            return Err(illegal("device", device.id, from, event.name()));
        }
        let note = match &to {
            DeviceState::Quarantined { reason } => Some(reason.message.clone()),
            _ => None,
        };
        device.deadline = deadline::device(&to).map(|limit| self.ctx.now.plus(limit));
        device.since = self.ctx.now;
        device.state = to;
        self.event(event.name(), device.id, Some(from), device.state.name(), note);
        self.put(device);
        Ok(())
    }

    /// Moves a pipeline to another state and writes it. An ended pipeline only runs again through a rerun.
    pub fn move_pipeline(&mut self, mut pipeline: Pipeline, to: PipelineState) {
        let from = pipeline.state.name();
        let note = match &to {
            PipelineState::Failed { reason } | PipelineState::Canceled { reason } => {
                Some(reason.message.clone())
            }
            _ => None,
        };
        pipeline.deadline = deadline::pipeline(&to).map(|limit| self.ctx.now.plus(limit));
        pipeline.since = self.ctx.now;
        pipeline.ended_at = to.ended().then_some(self.ctx.now);
        pipeline.state = to;
        self.event("PipelineMoved", pipeline.id, Some(from), pipeline.state.name(), note);
        self.put(pipeline);
    }

    /// Says that the desired set of a site changed.
    pub fn touch_site(&mut self, site: SiteId) {
        self.touched_sites.insert(site);
    }

    /// The configuration.
    pub fn config(&self) -> &'a FarmConfig {
        self.ctx.config
    }

    /// Whether this decision wrote anything.
    pub fn changed(&self) -> bool {
        !self.rows.is_empty() || !self.events.is_empty() || !self.usage.is_empty() || !self.retired.is_empty()
    }

    /// What was written so far, each row once and as it is now.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Ends the decision and answers what to write.
    pub fn finish(mut self, input: Input) -> Commit {
        for site in std::mem::take(&mut self.touched_sites) {
            if let Some(mut row) = self.farm.sites.get(&site).cloned() {
                row.desired_generation += 1;
                self.put(row);
            }
        }
        Commit {
            journal: JournalEntry {
                seq: self.ctx.seq,
                at: self.ctx.now,
                entropy: hex(&self.ctx.entropy),
                config: self.ctx.config_digest,
                by: self.ctx.by.clone(),
                input,
            },
            rows: self.rows,
            events: self.events,
            usage: self.usage,
            retired: self.retired,
        }
    }

    /// Takes the whole decision back.
    pub fn roll_back(self) {
        for undo in self.undo.into_iter().rev() {
            undo(self.farm);
        }
        (self.farm.epoch, self.farm.resumed_at) = self.epoch_before;
    }
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}
