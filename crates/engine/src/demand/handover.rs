//! The second gate of a runner whose program calls no hook: that of a Forgejo.
//!
//! There the handle binds a machine to its job, so what the runner will take is known before its program begins. When the
//! machine comes for its configuration, the forge is asked once more for the job and its run, and the gate is asked about
//! exactly that: run, job, attempt, and whoever the forge now says caused it. Refused, the configuration is not handed over, so
//! no step runs; the machine goes, its registration is forgotten, and the demand is decided anew by what the forge said.
//!
//! Where a server tells no handle, a machine takes whichever job waits. Then this asks about the job that it was made for,
//! and what it really takes is not asked about before it runs. What is missing for that stands in `docs/forgejo.md`; no server
//! that tells runs and no handles is known, and jobs without a run are refused before.

use super::{admit, launch, taken};
use crate::agents::live;
use crate::ending;
use crate::tx::Tx;
use forgeyard_model::AttemptId;
use forgeyard_model::demand::RunFacts;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::registration::{RegistrationState, TakenAnswer, TakenJob};

/// A machine is about to have its configuration.
pub(crate) fn asked(
    tx: &mut Tx<'_>,
    attempt: AttemptId,
    fence: u32,
    job: &TakenJob,
    facts: RunFacts,
) -> Result<Reply, Refusal> {
    let attempt = live(tx, attempt, Some(fence))?;
    let runner = tx.runner(attempt.runner)?;
    let minted = runner.registration.as_deref().filter(|registration| {
        matches!(registration.state, RegistrationState::Minted { .. }) && registration.fetched_at.is_none()
    });
    let Some(made_for) = minted.map(|registration| registration.demand) else {
        let text = format!("{} has no configuration that waits to be handed over", runner.id);
        return Err(Refusal::new(RefusalKind::Conflict, "registration.none", text));
    };
    let mut demand = tx.demand(made_for)?;
    if !taken::of_job(&demand, job) {
        let text = format!("{} was made for another job than the one of run {}", runner.id, job.run);
        return Err(Refusal::new(RefusalKind::Conflict, "registration.other_job", text));
    }
    let answer = taken::ask(tx, &runner, job, &facts);
    let name = runner.state.name();
    let TakenAnswer::Refused { reason } = &answer else {
        let note = format!("job `{}` of run {}, attempt {}", job.key, job.run, job.run_attempt);
        tx.event("HandoverAllowed", runner.id, Some(name), name, Some(note));
        return Ok(Reply::Taken { answer });
    };
    tx.event("HandoverRefused", runner.id, Some(name), name, Some(reason.message.clone()));
    demand.facts = Some(facts);
    tx.put(demand);
    ending::end(tx, attempt, launch::refused_verdict(reason.clone()), None, None)?;
    let demand = tx.demand(made_for)?;
    if !demand.state.ended() {
        // By what the forge says now, and not by what it said when the job was let in.
        admit::decide(tx, made_for)?;
    }
    Ok(Reply::Taken { answer })
}
