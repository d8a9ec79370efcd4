//! What the passing of time does to demand. Silence is never taken for an answer: the forge is asked.

use super::{admit, past, registration};
use crate::farm;
use crate::tx::Tx;
use forgeyard_model::demand::{Demand, DemandState};
use forgeyard_model::effect::Effect;
use forgeyard_model::input::Refusal;
use forgeyard_model::{DemandId, Explanation, RunnerId, Timestamp, deadline};

/// Looks at every deadline of demands and of registrations.
pub(crate) fn ticked(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let now = tx.now();
    let due: Vec<DemandId> = farm::due(&tx.farm().index.demand_deadlines, now);
    for id in due {
        let demand = tx.demand(id)?;
        match &demand.state {
            DemandState::Held { until: Some(_), .. } => admit::resume(tx, demand)?,
            DemandState::Unread => {
                let reason =
                    Explanation::new("forge.unheard", "nobody looked up the run of this job in time");
                admit::pause(tx, demand, reason)?;
            }
            _ => check(tx, demand)?,
        }
    }
    let idle: Vec<RunnerId> = farm::due(&tx.farm().index.runner_idle, now)
        .into_iter()
        .filter(|id| {
            let runner = tx.farm().runners.get(id);
            runner.is_some_and(|runner| registration::waits_in_vain(tx, runner))
        })
        .collect();
    for id in idle {
        let runner = tx.runner(id)?;
        registration::idle(tx, runner)?;
    }
    past::ticked(tx);
    Ok(())
}

/// Asks the forge what became of a job, and later again, ever more seldom.
pub(crate) fn check(tx: &mut Tx<'_>, mut demand: Demand) -> Result<(), Refusal> {
    let mut base = deadline::demand(&demand.state).unwrap_or(deadline::DEMAND_ASKED_AGAIN);
    if demand.state == DemandState::Running && runner_gone(tx, &demand) {
        // The forge takes a while to notice; then the job is over.
        base = deadline::RUNNER_LEAVES;
    }
    demand.checks = demand.checks.saturating_add(1);
    let pause = base.saturating_mul(1 << demand.checks.min(10)).min(deadline::DEMAND_ASKED_AGAIN);
    demand.deadline = Some(tx.now().plus(pause));
    ask(tx, &demand);
    tx.put(demand);
    Ok(())
}

/// Asks the forge what became of a job.
pub(crate) fn ask(tx: &mut Tx<'_>, demand: &Demand) {
    let effect = Effect::ReadJob {
        demand: demand.id,
        repository: demand.repository.clone(),
        installation: demand.installation,
        job: demand.job,
    };
    tx.effect(demand.id, &format!("check/{}", demand.generation), effect);
}

/// Whether the runner of ours that has the job is over.
pub(crate) fn runner_gone(tx: &Tx<'_>, demand: &Demand) -> bool {
    if demand.taken_by.is_none() {
        return launch_ended(tx, demand).is_some();
    }
    let runner = demand.taken_by.as_ref().and_then(|taker| tx.farm().runners.get(&taker.runner?));
    let attempt = runner.and_then(|runner| tx.farm().attempts.get(&runner.work.attempt()?));
    attempt.is_some_and(|attempt| !attempt.state.live())
}

/// When what was launched for a demand ended, of which nobody said which runner has it.
pub(crate) fn launch_ended(tx: &Tx<'_>, demand: &Demand) -> Option<Timestamp> {
    let launch = demand.launch.filter(|_| demand.taken_by.is_none())?;
    tx.farm().attempts_of(launch).last().and_then(|attempt| attempt.ended_at)
}
