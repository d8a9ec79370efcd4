//! The ledger of demand: jobs of forges that want a runner.
//!
//! Every source says the same thing in the same shape and is merged here: [`reported`] and [`read`]. What is new is what
//! moves a job forward at the forge; everything else is absorbed without a write. From there, one file for each topic:
//!
//! - [`labels`]: which pools serve a job;
//! - [`admit`]: whose work it is, and what the gate says;
//! - [`launch`]: the job of ours that brings it a runner, and what becomes of that;
//! - [`limits`]: waits for what a forge allows, which are no failures;
//! - [`past`]: what ended and leaves memory;
//! - [`registration`]: what the machine is at the forge, from its configuration to being forgotten;
//! - [`repeat`]: jobs that were lost with their machine are run again;
//! - [`taken`]: what a runner really took, and how launches change hands then;
//! - [`time`]: pauses that end, jobs that nobody has spoken of for long, runners that wait in vain.

pub mod admit;
pub(crate) mod handover;
pub mod labels;
pub mod launch;
pub mod limits;
pub mod past;
pub(crate) mod quiet;
pub mod registration;
pub mod repeat;
pub mod taken;
pub mod time;

use crate::lifecycle::DemandEvent;
use crate::tx::Tx;
use forgeyard_model::demand::{Demand, DemandState, ForgeRank, Sighting, Source, demand_id};
use forgeyard_model::effect::{Effect, EffectResult, PendingEffect};
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::{DemandId, EffectId, Explanation, ForgeName, deadline};
use std::collections::BTreeMap;

/// Tries of a question to a forge in a row, before it is parked.
const TRIES: u32 = 5;

/// What became of a report.
enum Merged {
    /// It is none of this farm's business.
    Ignored(Explanation),
    /// It is in the ledger, and the report told something new.
    News(DemandId),
    /// It is in the ledger, and all of it was known.
    Known(DemandId),
}

/// A source other than a webhook reports.
pub(crate) fn reported(tx: &mut Tx<'_>, source: Source, jobs: Vec<WorkflowJob>) -> Result<Reply, Refusal> {
    for job in jobs {
        merge(tx, source, job)?;
    }
    Ok(if tx.changed() { Reply::Done } else { Reply::Unchanged })
}

/// A webhook was read. Answers what is written beside the delivery.
pub(crate) fn read(tx: &mut Tx<'_>, source: Source, job: WorkflowJob) -> Result<Explanation, Refusal> {
    let (number, action) = (job.job, job.action.clone());
    let (id, text) = match merge(tx, source, job)? {
        Merged::Ignored(reason) => return Ok(reason),
        Merged::News(id) => (id, format!("job {number} is {action}")),
        Merged::Known(id) => {
            (id, format!("that job {number} is {action} was known, or is older than what is known"))
        }
    };
    let demand = tx.demand(id)?;
    let mut reason = Explanation::new("demand.merged", text).with(format!("{id} is {}", demand.state.name()));
    reason.evidence.extend(demand.reason().map(|reason| reason.message.clone()));
    Ok(reason)
}

/// A forge no longer knows a job.
pub(crate) fn gone(tx: &mut Tx<'_>, forge: &ForgeName, job: u64) -> Result<Reply, Refusal> {
    let Some(demand) = tx.farm().demand_of(forge, job).filter(|demand| !demand.state.ended()).cloned() else {
        return Ok(Reply::Unchanged);
    };
    let text = format!("{forge} no longer knows job {job}");
    withdraw(tx, demand, Explanation::new("demand.gone", text))?;
    Ok(Reply::Done)
}

/// An effect at a forge came out.
pub(crate) fn settled(tx: &mut Tx<'_>, effect: Effect, result: EffectResult) -> Result<(), Refusal> {
    match (effect, result) {
        (Effect::LookUpRun { runner: Some(runner), run_attempt, .. }, result) => match result {
            EffectResult::Run { facts } if facts.run_attempt == run_attempt => {
                taken::looked_up(tx, runner, *facts)
            }
            EffectResult::Run { .. } => taken::not_looked_up(tx, runner, &admit::other_attempt()),
            EffectResult::RunMissing => taken::not_looked_up(tx, runner, &admit::run_missing()),
            EffectResult::Refused { reason } => taken::not_looked_up(tx, runner, &reason),
            other => Err(wrong(&other)),
        },
        (Effect::LookUpRun { repository, run, run_attempt, .. }, result) => {
            let run = admit::RunOf { repository, run, attempt: run_attempt };
            match result {
                EffectResult::Run { facts } if facts.run_attempt == run_attempt => {
                    admit::found(tx, &run, &facts)
                }
                EffectResult::Run { .. } => admit::not_found(tx, &run, &admit::other_attempt()),
                EffectResult::RunMissing => admit::not_found(tx, &run, &admit::run_missing()),
                EffectResult::Refused { reason } => admit::unreadable(tx, &run, &reason),
                other => Err(wrong(&other)),
            }
        }
        (Effect::ReadJob { .. }, EffectResult::Job { job }) => merge(tx, Source::Poll, *job).map(drop),
        (Effect::ReadJob { repository, job, .. }, EffectResult::JobMissing) => {
            gone(tx, &repository.forge, job).map(drop)
        }
        // Asked again at the next deadline.
        (Effect::ReadJob { .. }, EffectResult::Refused { .. }) => Ok(()),
        (Effect::MintRunner { runner, name, .. }, result) => match result {
            EffectResult::Minted { runner: at_forge } => registration::minted(tx, runner, &name, at_forge),
            EffectResult::NameTaken => registration::name_taken(tx, runner, &name),
            EffectResult::Refused { reason } => registration::not_minted(tx, runner, &name, &reason),
            other => Err(wrong(&other)),
        },
        (Effect::RepeatJobs { repository, run, run_attempt, .. }, result) => {
            let run = admit::RunOf { repository, run, attempt: run_attempt };
            match result {
                EffectResult::Repeated { jobs } => repeat::done(tx, &run, &jobs),
                EffectResult::Refused { reason } => repeat::refused(tx, &run, &reason),
                other => Err(wrong(&other)),
            }
        }
        (Effect::Deregister { runner, name, .. }, result) => match result {
            EffectResult::Deregistered => registration::forgotten(tx, runner, &name, None),
            EffectResult::RunnerBusy => registration::busy(tx, runner, &name),
            EffectResult::Refused { reason } => registration::forgotten(tx, runner, &name, Some(&reason)),
            other => Err(wrong(&other)),
        },
        (_, other) => Err(wrong(&other)),
    }
}

fn wrong(result: &EffectResult) -> Refusal {
    let text = format!("the result does not belong to an effect at a forge: {result:?}");
    Refusal::new(RefusalKind::Invalid, "effect.wrong_result", text)
}

/// An effect at a forge did not come out. What is only a question is parked after a while; what must be done is tried
/// until it is done or until nobody needs it.
pub(crate) fn troubled(
    tx: &mut Tx<'_>,
    id: EffectId,
    effect: Effect,
    tries: u32,
    trouble: &str,
) -> Result<(), Refusal> {
    let reason =
        || Explanation::new("forge.unreachable", "the forge did not answer").with(trouble.to_owned());
    match effect {
        Effect::LookUpRun { runner, repository, run, run_attempt, .. } if tries >= TRIES => {
            settle(tx, id)?;
            match runner {
                Some(runner) => taken::not_looked_up(tx, runner, &reason()),
                None => {
                    let run = admit::RunOf { repository, run, attempt: run_attempt };
                    admit::not_found(tx, &run, &reason())
                }
            }
        }
        Effect::ReadJob { .. } if tries >= TRIES => settle(tx, id),
        Effect::RepeatJobs { repository, run, run_attempt, .. } if tries >= 2 * TRIES => {
            settle(tx, id)?;
            let run = admit::RunOf { repository, run, attempt: run_attempt };
            repeat::refused(tx, &run, &reason())
        }
        Effect::MintRunner { runner, name, .. } if !registration::wants_name(tx, runner, &name) => {
            // Whether the forge made the runner is not known, so it is asked to forget the name.
            settle(tx, id)?;
            registration::abandon(tx, runner, &name)
        }
        _ => Ok(()),
    }
}

/// Takes an effect out of the outbox without a result.
fn settle(tx: &mut Tx<'_>, id: EffectId) -> Result<(), Refusal> {
    let pending = tx.farm().effects.get(&id).cloned().ok_or_else(|| crate::tx::missing("effect", id))?;
    let done_at = Some(tx.now());
    tx.put(PendingEffect { done_at, ..pending });
    Ok(())
}

fn merge(tx: &mut Tx<'_>, source: Source, report: WorkflowJob) -> Result<Merged, Refusal> {
    let Some(rank) = ForgeRank::of(&report.action) else {
        let text = format!("job {} is `{}`, which says nothing about runners", report.job, report.action);
        return Ok(Merged::Ignored(Explanation::new("demand.unknown_action", text)));
    };
    if tx.farm().ended.has(&report.repository.forge, report.job) {
        let text = format!("job {} ended long ago; nothing that is said of it now counts", report.job);
        return Ok(Merged::Ignored(Explanation::new("demand.ended_before", text)));
    }
    match tx.farm().demand_of(&report.repository.forge, report.job).cloned() {
        Some(known) => again(tx, source, rank, &report, known),
        None => first(tx, source, rank, &report),
    }
}

/// A job of which nobody has spoken before.
fn first(tx: &mut Tx<'_>, source: Source, rank: ForgeRank, report: &WorkflowJob) -> Result<Merged, Refusal> {
    let ours = taken::named(tx.farm(), &report.repository.forge, report.runner_name.as_deref());
    let docker = labels::needs_docker(tx.config(), &report.labels).is_some();
    if labels::serving(tx.config(), &report.labels).is_empty() && ours.is_none() && !docker {
        return Ok(Merged::Ignored(labels::nobody(tx.config(), report)));
    }
    let now = tx.now();
    let id = demand_id(&report.repository.forge, report.job, now);
    let state = DemandState::Unread;
    tx.event("DemandSeen", id, None, state.name(), Some(format!("{}, by {}", rank.name(), source.name())));
    tx.put(Demand {
        id,
        repository: report.repository.clone(),
        installation: report.installation,
        job: report.job,
        run: report.run,
        run_attempt: report.run_attempt,
        name: report.name.clone(),
        workflow: report.workflow.clone(),
        labels: report.labels.clone(),
        head_sha: report.head_sha.clone(),
        head_branch: report.head_branch.clone(),
        sender: report.sender.clone(),
        scale_set: report.scale_set,
        rank,
        conclusion: None,
        seen: BTreeMap::from([(source, Sighting { first: now, news: 1 })]),
        facts: None,
        lookups: 0,
        admission: None,
        decided_under: None,
        launch: None,
        launches: 0,
        taken_by: None,
        repeat: None,
        deadline: deadline::demand(&state).map(|limit| now.plus(limit)),
        state,
        pauses: 0,
        checks: 0,
        created_at: now,
        ended_at: None,
        since: now,
        generation: 0,
    });
    apply(tx, id, rank, report)?;
    Ok(Merged::News(id))
}

/// A job that is in the ledger.
fn again(
    tx: &mut Tx<'_>,
    source: Source,
    rank: ForgeRank,
    report: &WorkflowJob,
    mut demand: Demand,
) -> Result<Merged, Refusal> {
    let id = demand.id;
    // A rule of an environment that is told of after a machine was asked for is late: the job was queued since.
    let late = rank == ForgeRank::Waiting && demand.state == DemandState::Launching;
    let news = demand.rank.allows(rank) && !late && !demand.state.ended();
    let mut changed = complete(&mut demand, report);
    let now = tx.now();
    match demand.seen.get_mut(&source) {
        None => {
            demand.seen.insert(source, Sighting { first: now, news: u32::from(news) });
            changed = true;
        }
        Some(sighting) if news => sighting.news = sighting.news.saturating_add(1),
        Some(_) => {}
    }
    if news {
        demand.rank = rank;
    }
    if news || changed {
        tx.put(demand);
    }
    if news {
        apply(tx, id, rank, report)?;
        return Ok(Merged::News(id));
    }
    if rank == ForgeRank::Queued {
        admit::reconsider(tx, id)?;
        if source == Source::Poll {
            taken::still_queued(tx, id)?;
        }
    }
    // The forge may name the runner only in a later report.
    if rank >= ForgeRank::InProgress && tx.demand(id)?.state == DemandState::Running {
        taken::by_forge(tx, id, report)?;
    }
    Ok(Merged::Known(id))
}

/// Takes over what was not known before. What was known is never replaced: sources differ in what they can say.
fn complete(demand: &mut Demand, report: &WorkflowJob) -> bool {
    let before = (demand.installation, demand.sender.is_some(), demand.workflow.is_some(), demand.scale_set);
    demand.installation = demand.installation.or(report.installation);
    demand.sender = demand.sender.take().or_else(|| report.sender.clone());
    demand.workflow = demand.workflow.take().or_else(|| report.workflow.clone());
    demand.head_branch = demand.head_branch.take().or_else(|| report.head_branch.clone());
    demand.scale_set = demand.scale_set.or(report.scale_set);
    before != (demand.installation, demand.sender.is_some(), demand.workflow.is_some(), demand.scale_set)
}

/// What follows from how far a job is at the forge.
fn apply(tx: &mut Tx<'_>, id: DemandId, rank: ForgeRank, report: &WorkflowJob) -> Result<(), Refusal> {
    match rank {
        ForgeRank::Waiting => waits(tx, id),
        ForgeRank::Queued => {
            let demand = tx.demand(id)?;
            if demand.state == DemandState::Waiting {
                tx.move_demand(demand, DemandEvent::DemandUnread, DemandState::Unread)?;
            }
            match tx.demand(id)?.state {
                DemandState::Unread => admit::look_up(tx, id),
                _ => Ok(()),
            }
        }
        ForgeRank::InProgress => taken::by_forge(tx, id, report),
        ForgeRank::Completed => {
            if report.runner_name.is_some() {
                taken::by_forge(tx, id, report)?;
            }
            completed(tx, id, report)
        }
    }
}

/// The forge itself holds the job: nobody is asked, and nothing is launched.
fn waits(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    if matches!(demand.state, DemandState::Waiting | DemandState::Launching | DemandState::Running) {
        return Ok(());
    }
    let launch = demand.launch.take();
    tx.move_demand(demand, DemandEvent::DemandWaits, DemandState::Waiting)?;
    match launch {
        Some(launch) => {
            launch::release(tx, launch, &Explanation::new("demand.waits", "the forge itself holds the job"))
        }
        None => Ok(()),
    }
}

/// The forge says that the job is over.
fn completed(tx: &mut Tx<'_>, id: DemandId, report: &WorkflowJob) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    let conclusion = report.conclusion.clone().unwrap_or_else(|| "unknown".to_owned());
    demand.conclusion = Some(conclusion.clone());
    if demand.state == DemandState::Running {
        let runner = demand.taken_by.as_ref().and_then(|taker| taker.runner);
        tx.move_demand(demand, DemandEvent::DemandEnded, DemandState::Ended)?;
        launch::served(tx, id)?;
        if let Some(runner) = runner {
            registration::over(tx, runner)?;
        }
        return repeat::consider(tx, id);
    }
    let text = format!("the forge ended it as `{conclusion}` before a runner had it");
    withdraw(tx, demand, Explanation::new("demand.canceled", text))
}

/// Takes a demand out, and lets go what was launched for it.
pub(crate) fn withdraw(tx: &mut Tx<'_>, demand: Demand, reason: Explanation) -> Result<(), Refusal> {
    let (launch, running) = (demand.launch, demand.state == DemandState::Running);
    tx.move_demand(demand, DemandEvent::DemandWithdrawn, DemandState::Withdrawn { reason: reason.clone() })?;
    match launch {
        // What runs is left to its runner, which notices by itself.
        Some(launch) if !running => launch::release(tx, launch, &reason),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
