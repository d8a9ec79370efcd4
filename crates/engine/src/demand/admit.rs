//! Whose work a job of a forge is, and what the gate says to it.
//!
//! The run is looked up once for all its jobs. A forge that does not know the run, or does not answer, is asked again after
//! growing pauses and never in a loop; a job that nobody can vouch for is held meanwhile, not refused.

use super::{labels, launch, repeat};
use crate::approvals;
use crate::gate::{self, Admitted, Run};
use crate::lifecycle::DemandEvent;
use crate::tx::Tx;
use forgeyard_model::demand::{Admission, Demand, DemandState, RunFacts};
use forgeyard_model::effect::Effect;
use forgeyard_model::forge::Repository;
use forgeyard_model::input::Refusal;
use forgeyard_model::{DemandId, EffectId, Explanation, Id, Lane};
use std::time::Duration;

/// Pauses after something that did not work, in seconds; the last one again and again.
const PAUSES: [u64; 6] = [30, 120, 600, 1800, 3600, 6 * 3600];

/// One attempt of a run.
pub(crate) struct RunOf {
    pub(crate) repository: Repository,
    pub(crate) run: u64,
    pub(crate) attempt: u32,
}

/// The forge does not know the run. Reads may be behind webhooks, so this is a hint.
pub(crate) fn run_missing() -> Explanation {
    Explanation::new("forge.run_missing", "the forge does not show the run of this job")
        .fix("see that the farm's app is installed for the repository and may read actions")
}

/// The forge answered for another attempt of the run.
pub(crate) fn other_attempt() -> Explanation {
    Explanation::new("forge.other_attempt", "the forge answered for another attempt of the run")
}

fn key(demand: &Demand) -> String {
    format!("run/{}", demand.lookups)
}

/// The effect that last asked for the run of a demand, if it was this one that asked.
pub(crate) fn question(demand: &Demand) -> EffectId {
    EffectId::derive(demand.id, &key(demand))
}

pub(crate) fn of_run(tx: &Tx<'_>, run: &RunOf) -> Vec<Demand> {
    let all = tx.farm().demands_of_run(&run.repository.forge, run.run);
    all.filter(|demand| demand.run_attempt == run.attempt && demand.repository.id == run.repository.id)
        .cloned()
        .collect()
}

/// Reads the run of an unread demand: from a sibling that has it, or by asking the forge once for all of them.
pub(crate) fn look_up(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    if demand.facts.is_some() {
        return decide(tx, id);
    }
    if let Some(reason) = foreseen(tx, &demand) {
        return refuse(tx, demand, reason);
    }
    let run = RunOf { repository: demand.repository.clone(), run: demand.run, attempt: demand.run_attempt };
    let siblings = of_run(tx, &run);
    let ours = || began_by_us(tx, &demand);
    if let Some(facts) = siblings.iter().find_map(|sibling| sibling.facts.clone()).or_else(ours) {
        demand.facts = Some(facts);
        tx.put(demand);
        return decide(tx, id);
    }
    let asked = siblings.iter().any(|sibling| {
        tx.farm().effects.get(&question(sibling)).is_some_and(|effect| effect.done_at.is_none())
    });
    if !asked {
        demand.lookups = demand.lookups.saturating_add(1);
        let effect = Effect::LookUpRun {
            demand: id,
            runner: None,
            repository: demand.repository.clone(),
            installation: demand.installation,
            run: demand.run,
            run_attempt: demand.run_attempt,
        };
        tx.effect(id, &key(&demand), effect);
        tx.put(demand);
    }
    Ok(())
}

/// Whose work it is, when the farm itself had it run again.
fn began_by_us(tx: &Tx<'_>, demand: &Demand) -> Option<RunFacts> {
    let repository = &demand.repository;
    repeat::facts(tx.farm(), &repository.forge, repository.id, demand.run, demand.run_attempt)
}

/// A refusal that no fact of the run can change.
fn foreseen(tx: &Tx<'_>, demand: &Demand) -> Option<Explanation> {
    let config = tx.config();
    if let Some(reason) = labels::needs_docker(config, &demand.labels) {
        return Some(reason);
    }
    let repository = config.repository(&demand.repository.forge, demand.repository.id);
    let pools = labels::serving(config, &demand.labels);
    let looks: Vec<Option<Explanation>> = pools
        .iter()
        .map(|pool| gate::foreseen(&demand.repository, repository, pool.name.as_str(), &config.access))
        .collect();
    if looks.iter().any(Option::is_none) { None } else { looks.into_iter().flatten().next() }
}

/// The run was read.
pub(crate) fn found(tx: &mut Tx<'_>, run: &RunOf, facts: &RunFacts) -> Result<(), Refusal> {
    if let Some(number) = facts.pull_request {
        approvals::new_head_of_run(tx, &run.repository, number, facts)?;
    }
    // It may have been asked for before the forge's word came that it was we who ran it again.
    let repository = &run.repository;
    let ours = repeat::facts(tx.farm(), &repository.forge, repository.id, run.run, run.attempt);
    let facts = ours.as_ref().unwrap_or(facts);
    for mut demand in of_run(tx, run) {
        let (id, unread) = (demand.id, demand.state == DemandState::Unread);
        if demand.facts.is_none() && !demand.state.ended() {
            demand.facts = Some(facts.clone());
            tx.put(demand);
        }
        if unread {
            decide(tx, id)?;
        }
    }
    Ok(())
}

/// The run could not be read now: its jobs pause.
pub(crate) fn not_found(tx: &mut Tx<'_>, run: &RunOf, reason: &Explanation) -> Result<(), Refusal> {
    for demand in of_run(tx, run) {
        if demand.state == DemandState::Unread {
            pause(tx, demand, reason.clone())?;
        }
    }
    Ok(())
}

/// The run can never be read as things are. A change of the configuration asks again.
pub(crate) fn unreadable(tx: &mut Tx<'_>, run: &RunOf, reason: &Explanation) -> Result<(), Refusal> {
    for demand in of_run(tx, run) {
        if demand.state == DemandState::Unread {
            refuse(tx, demand, reason.clone())?;
        }
    }
    Ok(())
}

/// Parks a demand for a growing while. It is never looped and never forgotten.
pub(crate) fn pause(tx: &mut Tx<'_>, mut demand: Demand, reason: Explanation) -> Result<(), Refusal> {
    let place = usize::try_from(demand.pauses).unwrap_or(usize::MAX).min(PAUSES.len() - 1);
    let until = tx.now().plus(Duration::from_secs(PAUSES[place]));
    demand.pauses = demand.pauses.saturating_add(1);
    let reason = reason.with(format!("tried again at {until}"));
    tx.move_demand(demand, DemandEvent::DemandHeld, DemandState::Held { reason, until: Some(until) })
}

fn refuse(tx: &mut Tx<'_>, mut demand: Demand, reason: Explanation) -> Result<(), Refusal> {
    demand.decided_under = Some(tx.ctx.config_digest);
    tx.move_demand(demand, DemandEvent::DemandRefused, DemandState::Refused { reason })
}

/// What the gate says of a demand.
pub(crate) enum Judged {
    /// It may use these pools.
    Allowed(Admission),
    /// It may, once somebody approves its head.
    Held(Explanation),
    /// It may not.
    Refused(Explanation),
}

/// Asks the gate for every pool that serves the labels. One that allows is enough. Without facts of the run nobody is
/// allowed anything.
pub(crate) fn judge(tx: &Tx<'_>, demand: &Demand) -> Judged {
    let Some(facts) = &demand.facts else { return Judged::Refused(run_missing()) };
    let config = tx.config();
    let repository = config.repository(&demand.repository.forge, demand.repository.id);
    // What the farm had run again is sent by its App.
    let sender = demand.sender.as_ref().filter(|_| began_by_us(tx, demand).is_none());
    let run = Run { repository: &demand.repository, facts, sender, hook_actor: None };
    let approval = approvals::of_head(tx, &demand.repository, &facts.head_sha);
    let access = approvals::access(tx);
    let mut admission: Option<Admission> = None;
    let (mut holds, mut denials) = (Vec::new(), Vec::new());
    for pool in labels::serving(config, &demand.labels) {
        let name = pool.name.as_str();
        match gate::decide_run(&run, repository, name, &access, approval.as_ref()) {
            Admitted::Allow { isolation, .. } if pool.isolation < isolation => {
                let text = format!(
                    "pool {name} keeps jobs apart by {:?}, this job needs {isolation:?}",
                    pool.isolation
                );
                denials.push(
                    Explanation::new("gate.isolation", text)
                        .fix("ask for a pool of virtual machines, or have an operator write `isolation` into the grant"),
                );
            }
            Admitted::Allow { by, lane, isolation, .. } => {
                let entry = admission.get_or_insert_with(|| Admission {
                    pools: Vec::new(),
                    by: Vec::new(),
                    lane: Lane::Protected,
                    isolation,
                });
                entry.pools.push(pool.name.clone());
                entry.by.extend(by);
                entry.lane = entry.lane.min(lane);
                entry.isolation = entry.isolation.min(isolation);
            }
            Admitted::Hold { reason } => holds.push(reason),
            Admitted::Deny { reason } => denials.push(reason),
        }
    }
    if let Some(mut admission) = admission {
        admission.by.sort();
        admission.by.dedup();
        return Judged::Allowed(admission);
    }
    let held = !holds.is_empty();
    let mut reasons = holds.into_iter().chain(denials);
    let mut reason = reasons.next().unwrap_or_else(|| {
        Explanation::new("demand.no_pool", "no pool serves its labels any more")
            .with(demand.labels.join(", "))
    });
    for other in reasons {
        if other.message != reason.message {
            reason = reason.with(other.message);
        }
    }
    match held.then(|| approvals::refused(tx, &demand.repository, &facts.head_sha)) {
        Some(Some(refused)) => Judged::Refused(refused),
        Some(None) => Judged::Held(reason),
        None => Judged::Refused(reason),
    }
}

/// Asks the gate, and lets the demand in, holds or refuses it.
pub(crate) fn decide(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    if demand.facts.is_none() {
        return Ok(());
    }
    let judged = judge(tx, &demand);
    demand.decided_under = Some(tx.ctx.config_digest);
    demand.admission = None;
    match judged {
        Judged::Allowed(admission) => {
            demand.admission = Some(admission);
            tx.put(demand);
            launch::want(tx, id)
        }
        Judged::Held(reason) => {
            tx.move_demand(demand, DemandEvent::DemandHeld, DemandState::Held { reason, until: None })
        }
        Judged::Refused(reason) => refuse(tx, demand, reason),
    }
}

/// A demand that was refused or held under another configuration is decided again.
pub(crate) fn reconsider(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let demand = tx.demand(id)?;
    let decided = matches!(demand.state, DemandState::Refused { .. } | DemandState::Held { until: None, .. });
    if !decided || demand.decided_under == Some(tx.ctx.config_digest) {
        return Ok(());
    }
    resume(tx, demand)
}

/// Decides again from what is known, or looks it up first.
pub(crate) fn resume(tx: &mut Tx<'_>, demand: Demand) -> Result<(), Refusal> {
    let id = demand.id;
    if demand.facts.is_some() {
        return decide(tx, id);
    }
    tx.move_demand(demand, DemandEvent::DemandUnread, DemandState::Unread)?;
    look_up(tx, id)
}
