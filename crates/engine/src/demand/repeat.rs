//! Jobs that were lost with their machine are run again at the forge.
//!
//! When the forge says that a job failed, and the farm knows that its machine was lost (the verdict over the attempt that brought
//! its runner is *lost*, which is always our fault), an **intent** to have it run again is written to its demand. GitHub refuses
//! that while the run goes on (runs-on #259: of several interrupted jobs only one was repeated), so the intent waits in the outbox
//! for the end of the run, over restarts, and all intents of one attempt of a run are asked for together.
//!
//! It is bounded: attempt `n` of a run is repeated only while `n` is not above [`QueueRules::repeat_lost`], whoever began those
//! attempts; an intent is given up after [`PATIENCE`]. It is paced like every effect at a forge. A job that failed by itself is
//! never repeated: where others of the run did, only the lost ones are, as far as the forge lets us.
//!
//! **Whose work it is.** The forge calls the App the one who ran it again. The work is still that of whoever began the attempt
//! before, so the gate is asked about that one; but only where the forge accepted our own request ([`facts`]). When somebody else
//! was faster, it is asked about them.
//!
//! [`QueueRules::repeat_lost`]: forgeyard_model::rules::QueueRules

use super::{admit, limits};
use crate::farm::Farm;
use crate::tx::Tx;
use forgeyard_model::demand::{Demand, DemandState, Repeat, RunFacts};
use forgeyard_model::effect::Effect;
use forgeyard_model::forge::Repository;
use forgeyard_model::input::Refusal;
use forgeyard_model::verdict::{Outcome, Verdict};
use forgeyard_model::{DemandId, EffectId, Explanation, ForgeName, Id as _};
use std::time::Duration;

/// How long an intent waits first: others of the run may be lost by the same cause, and the run may end with them.
const FIRST: Duration = Duration::from_secs(30);

/// How long an intent waits for the end of its run.
pub(crate) const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Classes of lost attempts whose job was not lost with them.
const NOT_THE_JOB: [&str; 4] =
    ["demand.withdrawn", "runner.did_not_leave", "runner.took_nothing", limits::LIMITED];

fn dropped(code: &str, text: impl Into<String>) -> Repeat {
    Repeat::Dropped { reason: Explanation::new(code, text) }
}

/// The verdict by which the job of a demand was lost.
fn lost<'f>(farm: &'f Farm, demand: &Demand) -> Option<&'f Verdict> {
    let runner = farm.runners.get(&demand.taken_by.as_ref()?.runner?)?;
    let verdict = farm.attempts.get(&runner.work.attempt()?)?.verdict.as_ref()?;
    let ours = verdict.outcome == Outcome::Lost
        && verdict.class.as_deref().is_none_or(|class| !NOT_THE_JOB.contains(&class));
    ours.then_some(verdict)
}

/// A job is over at the forge, or its machine is: whether it is to be run again is seen when both are known.
pub(crate) fn consider(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    let failed = demand.state == DemandState::Ended && demand.conclusion.as_deref() == Some("failure");
    if !failed || demand.repeat.is_some() {
        return Ok(());
    }
    let Some(cause) = lost(tx.farm(), &demand).map(|verdict| verdict.cause.clone()) else { return Ok(()) };
    let most = tx.config().queue.repeat_lost;
    let intent = if demand.run_attempt > most {
        let text = match most {
            0 => "the farm has no lost job run again (`repeat-lost` is 0)".to_owned(),
            _ => format!(
                "it was attempt {} of its run, and no more than {most} are repeated",
                demand.run_attempt
            ),
        };
        dropped("repeat.enough", text)
    } else {
        Repeat::Wanted { cause: cause.clone() }
    };
    let wanted = matches!(intent, Repeat::Wanted { .. });
    let name = demand.state.name();
    tx.event("RepeatConsidered", id, Some(name), name, Some(intent.text()));
    demand.repeat = Some(intent);
    tx.put(demand.clone());
    if wanted && !asked(tx.farm(), &demand) {
        let effect = Effect::RepeatJobs {
            demand: id,
            repository: demand.repository.clone(),
            installation: demand.installation,
            run: demand.run,
            run_attempt: demand.run_attempt,
        };
        tx.effect_at(id, KEY, effect, tx.now().plus(FIRST));
    }
    Ok(())
}

pub(crate) const KEY: &str = "repeat";

/// Whether the effect of a sibling waits, which repeats this one as well.
fn asked(farm: &Farm, demand: &Demand) -> bool {
    let all = farm.demands_of_run(&demand.repository.forge, demand.run);
    all.filter(|other| other.run_attempt == demand.run_attempt)
        .filter_map(|other| farm.effects.get(&EffectId::derive(other.id, KEY)))
        .any(|effect| effect.done_at.is_none())
}

/// Demands of an attempt of a run that are to be run again.
pub fn wanted<'f>(
    farm: &'f Farm,
    repository: &'f Repository,
    run: u64,
    attempt: u32,
) -> impl Iterator<Item = &'f Demand> {
    farm.demands_of_run(&repository.forge, run).filter(move |demand| {
        demand.run_attempt == attempt
            && demand.repository.id == repository.id
            && matches!(demand.repeat, Some(Repeat::Wanted { .. }))
    })
}

/// The forge was asked. Jobs of these numbers are run again; what else was wanted is given up.
pub(crate) fn done(tx: &mut Tx<'_>, run: &admit::RunOf, jobs: &[u64]) -> Result<(), Refusal> {
    let at = tx.now();
    settle(tx, run, |demand| {
        if jobs.contains(&demand.job) {
            return Repeat::Done { at };
        }
        dropped(
            "repeat.others_failed",
            "other jobs of the run failed by themselves, and the forge repeats one job at a time",
        )
    })
}

/// It cannot be done.
pub(crate) fn refused(tx: &mut Tx<'_>, run: &admit::RunOf, reason: &Explanation) -> Result<(), Refusal> {
    settle(tx, run, |_| Repeat::Dropped { reason: reason.clone() })
}

fn settle(tx: &mut Tx<'_>, run: &admit::RunOf, becomes: impl Fn(&Demand) -> Repeat) -> Result<(), Refusal> {
    let all: Vec<Demand> = wanted(tx.farm(), &run.repository, run.run, run.attempt).cloned().collect();
    for mut demand in all {
        let repeat = becomes(&demand);
        let name = demand.state.name();
        tx.event("RepeatSettled", demand.id, Some(name), name, Some(repeat.text()));
        demand.repeat = Some(repeat);
        tx.put(demand);
    }
    Ok(())
}

/// An intent still waits for the end of its run: whether that was long enough.
pub(crate) fn too_long(tx: &Tx<'_>, demand: DemandId) -> bool {
    let since = tx.farm().demands.get(&demand).and_then(|demand| demand.ended_at);
    since.is_none_or(|since| tx.now().since(since) > PATIENCE)
}

/// Whose work an attempt of a run is that the farm itself had begun: that of the attempt before, word for word.
pub(crate) fn facts(
    farm: &Farm,
    forge: &ForgeName,
    repository: u64,
    run: u64,
    attempt: u32,
) -> Option<RunFacts> {
    let before = attempt.checked_sub(1)?;
    let all = farm.demands_of_run(forge, run);
    let ours = all.filter(|demand| {
        demand.run_attempt == before
            && demand.repository.id == repository
            && matches!(demand.repeat, Some(Repeat::Done { .. }))
    });
    ours.filter_map(|demand| demand.facts.clone()).next()
}
