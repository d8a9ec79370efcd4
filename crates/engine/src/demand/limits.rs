//! Limits of forges. Waiting for one is no failure: it has its reason and its end, uses up no try of anything and makes no
//! pause longer.
//!
//! Two things follow from a limit:
//! - an effect that met one is done later ([`deferred`]). Who waits for its answer waits longer with it. A machine that would
//!   have to wait for its configuration beyond its own deadline is let go, and its launch enters the queue again after the
//!   limit, with no retry counted: a machine that is up and may not register costs money and serves nobody;
//! - no machine is made that could not register ([`Lanes`]): while a limit that was met holds for long, and no faster than
//!   runners may be registered ([`QueueRules::registrations_per_minute`]: GitHub takes some 180 of an App each minute).
//!
//! A limit holds for one *lane*: a scale set, or by REST the repositories of one owner, whose installation has the limit. It is
//! read from effects that wait or waited, so it survives a restart.
//!
//! [`QueueRules::registrations_per_minute`]: forgeyard_model::rules::QueueRules

use super::{admit, registration, repeat};
use crate::ending;
use crate::farm::Farm;
use crate::tx::Tx;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::demand::{Demand, DemandState};
use forgeyard_model::effect::{Effect, PendingEffect};
use forgeyard_model::forge::Repository;
use forgeyard_model::input::Refusal;
use forgeyard_model::job::Job;
use forgeyard_model::verdict::RetryPolicy;
use forgeyard_model::{AttemptId, EffectId, Explanation, ForgeName, Id, RunnerId, Timestamp, deadline};
use std::collections::BTreeMap;
use std::time::Duration;

/// The class of the verdict over a machine that may not register in time because of a limit.
pub(crate) const LIMITED: &str = "forge.limited";

/// The reason of a launch that waits for the end of a limit.
pub(crate) const WAITS: &str = "queue.forge_limit";

/// The reason of a launch that waits because runners are registered no faster.
pub(crate) const PACE: &str = "queue.registration_pace";

/// What a machine needs after its configuration is there, before its own deadline.
const MARGIN: Duration = Duration::from_secs(20);

/// A limit that ends within this time stops no launch: the machine has to be made first.
const BOOTS: Duration = Duration::from_secs(60);

const MINUTE: Duration = Duration::from_secs(60);

/// Where runners are registered, as far as limits go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    forge: ForgeName,
    /// The owner of the repositories, or the scale set.
    at: String,
}

impl Lane {
    pub(crate) fn of(repository: &Repository, scale_set: Option<u64>) -> Self {
        let owner = || repository.name.split('/').next().unwrap_or_default().to_ascii_lowercase();
        let at = scale_set.map_or_else(owner, |set| format!("set/{set}"));
        Self { forge: repository.forge.clone(), at }
    }

    /// The lane in which an effect registers a runner and had to wait.
    pub(crate) fn waited(row: &PendingEffect) -> Option<Self> {
        match (&row.effect, &row.waits) {
            (Effect::MintRunner { repository, scale_set, .. }, Some(_)) => {
                Some(Self::of(repository, *scale_set))
            }
            _ => None,
        }
    }
}

/// An effect has to wait for a limit: what waits for its answer waits with it.
pub(crate) fn deferred(
    tx: &mut Tx<'_>,
    id: EffectId,
    effect: Effect,
    tried: bool,
    until: Timestamp,
    reason: &Explanation,
) -> Result<(), Refusal> {
    match effect {
        Effect::LookUpRun { runner: None, repository, run, run_attempt, .. } => {
            let run = admit::RunOf { repository, run, attempt: run_attempt };
            let later = deadline::demand(&DemandState::Unread).map(|limit| until.plus(limit));
            for demand in admit::of_run(tx, &run) {
                if demand.state == DemandState::Unread && demand.deadline < later {
                    tx.put(Demand { deadline: later, ..demand });
                }
            }
            Ok(())
        }
        Effect::RepeatJobs { demand, repository, run, run_attempt, .. } if repeat::too_long(tx, demand) => {
            super::settle(tx, id)?;
            let run = admit::RunOf { repository, run, attempt: run_attempt };
            repeat::refused(tx, &run, reason)
        }
        Effect::MintRunner { runner, name, .. } => {
            if !registration::wants_name(tx, runner, &name) {
                super::settle(tx, id)?;
                return registration::abandon(tx, runner, &name);
            }
            let row = tx.runner(runner)?;
            let end = tx.attempt_of(&row)?.deadline;
            if end.is_none_or(|end| until.plus(MARGIN) <= end) {
                return Ok(());
            }
            super::settle(tx, id)?;
            let text = format!("the forge lets its machine register only at {until}: {}", reason.message);
            let verdict = ending::lost(LIMITED, text, RetryPolicy::RB);
            registration::let_go(tx, runner, &name, tried, verdict)
        }
        _ => Ok(()),
    }
}

/// The longest limit that holds in a lane now.
fn held(farm: &Farm, lane: &Lane, now: Timestamp) -> Option<(Timestamp, Explanation)> {
    let from = (lane.clone(), now, EffectId::from_bits(0));
    let in_lane = farm.index.limited.range(from..).take_while(|(of, _, _)| of == lane);
    let (_, until, effect) = in_lane.last()?;
    let reason = farm.effects.get(effect)?.waits.clone()?;
    Some((*until, reason))
}

/// Until when the launch of a demand waits that may not register, and why.
pub(crate) fn launch_waits(farm: &Farm, demand: &Demand, now: Timestamp) -> (Timestamp, Explanation) {
    let lane = Lane::of(&demand.repository, demand.scale_set.map(|request| request.set));
    match held(farm, &lane, now) {
        Some((until, reason)) => (until, told(&lane, until, &reason)),
        None => {
            let until = now.plus(MINUTE);
            let reason = Explanation::new(LIMITED, "a limit of the forge");
            (until, told(&lane, until, &reason))
        }
    }
}

fn told(lane: &Lane, until: Timestamp, reason: &Explanation) -> Explanation {
    let text = format!("{} registers no runner for it before {until}: {}", lane.forge, reason.message);
    Explanation {
        evidence: reason.evidence.clone(),
        fix: reason.fix.clone(),
        ..Explanation::new(WAITS, text)
    }
}

/// Why an effect of this id waits, while it does.
pub(crate) fn of_effect(farm: &Farm, id: EffectId) -> Option<Explanation> {
    let effect = farm.effects.get(&id).filter(|effect| effect.done_at.is_none())?;
    let reason = effect.waits.clone()?;
    let text = format!("{}; it goes on at {}", reason.message, effect.not_before);
    Some(Explanation { message: text, ..reason })
}

/// Why the question whose work a demand is waits.
pub(crate) fn of_question(farm: &Farm, demand: &Demand) -> Option<Explanation> {
    let siblings = farm.demands_of_run(&demand.repository.forge, demand.run);
    let same = siblings.filter(|other| other.run_attempt == demand.run_attempt);
    same.filter_map(|other| of_effect(farm, admit::question(other))).next()
}

/// Why the intent to run a job again waits.
pub(crate) fn of_repeat(farm: &Farm, demand: &Demand) -> Option<Explanation> {
    let siblings = farm.demands_of_run(&demand.repository.forge, demand.run);
    let same = siblings.filter(|other| other.run_attempt == demand.run_attempt);
    same.filter_map(|other| of_effect(farm, EffectId::derive(other.id, repeat::KEY))).next()
}

/// Why the configuration of a runner waits.
pub(crate) fn of_registration(farm: &Farm, runner: RunnerId) -> Option<Explanation> {
    let registration = farm.runners.get(&runner)?.registration.as_deref()?;
    of_effect(farm, EffectId::derive(runner, &registration::mint_key(registration.asks)))
}

/// What is left of each lane, and of each forge, while queued jobs are placed.
#[derive(Default)]
pub(crate) struct Lanes {
    /// By the owner as repositories write it.
    lanes: BTreeMap<String, Vec<Known>>,
    forges: BTreeMap<ForgeName, Room>,
}

/// A lane that was looked at, and why nothing registers there.
struct Known {
    forge: ForgeName,
    set: Option<u64>,
    reason: Option<Explanation>,
}

/// How many runners more may be registered at a forge.
struct Room {
    left: u32,
    reason: Option<Explanation>,
}

impl Lanes {
    /// Whether a machine for this job could register soon.
    pub(crate) fn lets(
        &mut self,
        farm: &Farm,
        config: &FarmConfig,
        job: &Job,
        now: Timestamp,
    ) -> Result<(), &Explanation> {
        let Some(demand) = owner(farm, job) else { return Ok(()) };
        let set = demand.scale_set.map(|request| request.set);
        let forge = &demand.repository.forge;
        // Asked for each job of the queue: a lane is looked at once, and found again without a copy of its name.
        let at = demand.repository.name.split('/').next().unwrap_or_default();
        if !self.lanes.contains_key(at) {
            self.lanes.insert(at.to_owned(), Vec::new());
        }
        let of_owner = self.lanes.get_mut(at).map(|known| {
            let place = known.iter().position(|known| known.set == set && known.forge == *forge);
            let place = place.unwrap_or_else(|| {
                let lane = Lane::of(&demand.repository, set);
                let long = held(farm, &lane, now).filter(|(until, _)| *until > now.plus(BOOTS));
                let reason = long.map(|(until, reason)| told(&lane, until, &reason));
                known.push(Known { forge: forge.clone(), set, reason });
                known.len() - 1
            });
            (known, place)
        });
        let known = of_owner.and_then(|(known, place)| known.get(place));
        if let Some(reason) = known.and_then(|known| known.reason.as_ref()) {
            return Err(reason);
        }
        // A scale set registers at another service, which has no such limit that is known.
        let Some(rate) = config.queue.registrations_per_minute.get(forge).filter(|_| set.is_none()) else {
            return Ok(());
        };
        let room = self.forges.entry(forge.clone()).or_insert_with(|| room(farm, forge, *rate, now));
        match &room.reason {
            Some(reason) if room.left == 0 => Err(reason),
            _ => Ok(()),
        }
    }

    /// A machine is made, or given, for this job.
    pub(crate) fn took(&mut self, farm: &Farm, config: &FarmConfig, job: &Job, now: Timestamp) {
        let Some(demand) = owner(farm, job).filter(|demand| demand.scale_set.is_none()) else { return };
        let forge = &demand.repository.forge;
        let Some(room) = self.forges.get_mut(forge) else { return };
        room.left = room.left.saturating_sub(1);
        if let Some(rate) = config.queue.registrations_per_minute.get(forge).filter(|_| room.left == 0) {
            room.reason = Some(paced(forge, *rate, now));
        }
    }
}

/// The demand that a launch is owed to, or else the one that it was made for.
pub(crate) fn owner<'f>(farm: &'f Farm, job: &Job) -> Option<&'f Demand> {
    let own = farm.demands.get(&job.owner.demand()?);
    // Most launches are still owed to the demand that they were made for, and the queue is long.
    let owed = own.filter(|demand| demand.launch == Some(job.id) && demand.state.owed());
    owed.or_else(|| farm.owed_by(job.id)).or(own)
}

fn room(farm: &Farm, forge: &ForgeName, rate: u32, now: Timestamp) -> Room {
    let since = Timestamp::from_micros(now.as_micros().saturating_sub(MINUTE.as_micros() as i64));
    let lately = farm.index.forge_launches.range((since, AttemptId::from_bits(0))..);
    let launched = lately.filter(|(_, id)| {
        let demand = farm.attempts.get(id).and_then(|attempt| farm.demands.get(&attempt.owner.demand()?));
        demand.is_some_and(|demand| demand.repository.forge == *forge && demand.scale_set.is_none())
    });
    let left = rate.saturating_sub(u32::try_from(launched.count()).unwrap_or(u32::MAX));
    Room { left, reason: (left == 0).then(|| paced(forge, rate, now)) }
}

fn paced(forge: &ForgeName, rate: u32, now: Timestamp) -> Explanation {
    // To the full minute, so that a long queue is not written anew with each launch.
    let minute = MINUTE.as_micros() as i64;
    let until = Timestamp::from_micros((now.as_micros().div_euclid(minute) + 2) * minute);
    let text = format!(
        "runners are registered at {forge} no faster than {rate} each minute; it goes on before {until}"
    );
    Explanation::new(PACE, text)
        .fix("connect one more App to the forge, which adds its limits, or use a scale set")
}
