//! What a machine is at the forge: asked for when the machine is up, and forgotten before the machine goes.
//!
//! A configuration is good for one job, and the forge drops the runner by itself when that is over. So it is asked to forget a
//! runner only where it has not said itself that its job is over, or where the runner program did not end well.

use super::{launch, time};
use crate::agents::live;
use crate::ending;
use crate::lifecycle::{RegistrationEvent, RunnerEvent};
use crate::tx::Tx;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::demand::{Demand, DemandState, Source};
use forgeyard_model::effect::Effect;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::registration::{Registration, RegistrationState, TakenAnswer};
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::verdict::{RetryPolicy, Verdict};
use forgeyard_model::{AttemptId, DemandId, EffectId, Explanation, Id as _, RunnerId, deadline};
use std::time::Duration;

/// Names that are asked for at most.
const NAMES: u32 = 3;

/// How long the forge's own word is waited for that the job of a runner is over, before it is asked to forget the runner.
const WORD: Duration = Duration::from_secs(10);

/// Longest pause before a forge is asked again to forget a runner.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Whether the forge may still give the machine a job, so that the machine must stand.
pub(crate) fn stands(runner: &Runner) -> bool {
    runner.registration.as_ref().is_some_and(|registration| {
        matches!(registration.state, RegistrationState::Minted { .. } | RegistrationState::Leaving { .. })
    })
}

/// The name of an attempt's runner at the forge: no other attempt has it, and another ask has another.
fn name(attempt: AttemptId, ask: u32) -> String {
    let text = attempt.to_string();
    let body = text.split('_').next_back().unwrap_or_default();
    if ask > 1 { format!("forgeyard-{body}-{ask}") } else { format!("forgeyard-{body}") }
}

/// The machine is up: its configuration is asked for.
pub(crate) fn up(tx: &mut Tx<'_>, attempt: AttemptId, runner: RunnerId) -> Result<(), Refusal> {
    let attempt = tx.attempt(attempt)?;
    let Some(demand) = tx.farm().owed_by(attempt.job).cloned() else {
        return launch::release(
            tx,
            attempt.job,
            &Explanation::new("demand.withdrawn", "nobody wants a runner any more"),
        );
    };
    let runner = tx.runner(runner)?;
    let registration = Registration {
        demand: demand.id,
        repository: demand.repository,
        installation: demand.installation,
        scale_set: demand.scale_set.map(|request| request.set),
        name: name(attempt.id, 1),
        labels: demand.labels,
        state: RegistrationState::Asked,
        asks: 1,
        leaves: 0,
        minted_at: None,
        fetched_at: None,
        busy: false,
        over: false,
        idle_until: None,
        taken: None,
    };
    tx.event("RegistrationAsked", runner.id, None, "asked", Some(registration.name.clone()));
    ask(tx, &runner, &registration);
    tx.put(Runner { registration: Some(Box::new(registration)), ..runner });
    Ok(())
}

/// The scale set of a demand, as far as is known now.
fn set_of(tx: &Tx<'_>, demand: DemandId) -> Option<u64> {
    tx.farm().demands.get(&demand)?.scale_set.map(|request| request.set)
}

fn ask(tx: &mut Tx<'_>, runner: &Runner, registration: &Registration) {
    let effect = Effect::MintRunner {
        demand: registration.demand,
        runner: runner.id,
        repository: registration.repository.clone(),
        installation: registration.installation,
        scale_set: registration.scale_set,
        name: registration.name.clone(),
        labels: registration.labels.clone(),
    };
    tx.effect(runner.id, &mint_key(registration.asks), effect);
}

/// The key of the effect that asks for a configuration.
pub(crate) fn mint_key(asks: u32) -> String {
    format!("mint/{asks}")
}

/// The runner and its registration, when the registration is the one of this name.
fn of_name(tx: &Tx<'_>, runner: RunnerId, name: &str) -> Option<(Runner, Registration)> {
    let runner = tx.farm().runners.get(&runner)?.clone();
    let registration =
        runner.registration.as_deref().filter(|registration| registration.name == name)?.clone();
    Some((runner, registration))
}

/// Whether somebody still waits for the configuration of this name.
pub(crate) fn wants_name(tx: &Tx<'_>, runner: RunnerId, name: &str) -> bool {
    of_name(tx, runner, name).is_some_and(|(runner, registration)| {
        let attempt = runner.work.attempt().and_then(|id| tx.farm().attempts.get(&id));
        registration.state == RegistrationState::Asked && attempt.is_some_and(|attempt| attempt.state.live())
    })
}

/// The configuration is there.
pub(crate) fn minted(tx: &mut Tx<'_>, runner: RunnerId, name: &str, at_forge: u64) -> Result<(), Refusal> {
    let wanted = wants_name(tx, runner, name);
    let Some((mut runner, mut registration)) = of_name(tx, runner, name) else {
        return forget_name(tx, runner, name, Some(at_forge));
    };
    if registration.state != RegistrationState::Asked {
        return Ok(());
    }
    let now = tx.now();
    registration.minted_at = Some(now);
    registration.idle_until = Some(now.plus(deadline::RUNNER_IDLE));
    runner.registration = Some(Box::new(registration));
    let id = runner.id;
    tx.move_registration(
        runner,
        RegistrationEvent::RegistrationMinted,
        RegistrationState::Minted { runner: at_forge },
    )?;
    if !wanted {
        let reason =
            Explanation::new("registration.late", "the machine was let go before its configuration came");
        let runner = tx.runner(id)?;
        return leave(tx, runner, reason);
    }
    Ok(())
}

/// Another runner has the name: another name is asked for.
pub(crate) fn name_taken(tx: &mut Tx<'_>, runner: RunnerId, taken: &str) -> Result<(), Refusal> {
    if !wants_name(tx, runner, taken) {
        return abandon(tx, runner, taken);
    }
    let Some((mut runner, mut registration)) = of_name(tx, runner, taken) else { return Ok(()) };
    if registration.asks >= NAMES {
        let text = format!("{NAMES} names in a row were taken at the forge, the last one `{taken}`");
        return give_up(tx, runner, ending::lost("forge.name_taken", text, RetryPolicy::RB));
    }
    registration.asks += 1;
    registration.name = name(tx.attempt_of(&runner)?.id, registration.asks);
    registration.scale_set = set_of(tx, registration.demand);
    ask(tx, &runner, &registration);
    runner.registration = Some(Box::new(registration));
    tx.move_registration(runner, RegistrationEvent::RegistrationAsked, RegistrationState::Asked)
}

/// The forge gives no configuration, and asking again does not help.
pub(crate) fn not_minted(
    tx: &mut Tx<'_>,
    runner: RunnerId,
    name: &str,
    reason: &Explanation,
) -> Result<(), Refusal> {
    let Some((runner, registration)) = of_name(tx, runner, name) else { return Ok(()) };
    if registration.state != RegistrationState::Asked {
        return Ok(());
    }
    let verdict = Verdict {
        fix: reason.fix.clone(),
        ..ending::lost(&reason.code, reason.message.clone(), RetryPolicy::R0)
    };
    give_up(tx, runner, verdict)
}

/// The machine may not register in time: it is let go, and nobody has the name. Where the forge was asked before, it may have
/// made the runner.
pub(crate) fn let_go(
    tx: &mut Tx<'_>,
    runner: RunnerId,
    name: &str,
    asked: bool,
    verdict: Verdict,
) -> Result<(), Refusal> {
    if asked {
        forget_name(tx, runner, name, None)?;
    }
    let runner = tx.runner(runner)?;
    give_up(tx, runner, verdict)
}

fn give_up(tx: &mut Tx<'_>, runner: Runner, verdict: Verdict) -> Result<(), Refusal> {
    let attempt = tx.attempt_of(&runner)?.id;
    tx.move_registration(runner, RegistrationEvent::RegistrationGone, RegistrationState::Gone)?;
    end_live(tx, attempt, verdict)
}

fn end_live(tx: &mut Tx<'_>, attempt: AttemptId, verdict: Verdict) -> Result<(), Refusal> {
    let attempt = tx.attempt(attempt)?;
    if attempt.state.live() { ending::end(tx, attempt, verdict, None, None) } else { Ok(()) }
}

/// Nobody waits for a configuration any more that may have been made meanwhile.
pub(crate) fn abandon(tx: &mut Tx<'_>, runner: RunnerId, name: &str) -> Result<(), Refusal> {
    let reason =
        Explanation::new("registration.late", "the machine was let go before its configuration came");
    match of_name(tx, runner, name) {
        Some((runner, Registration { state: RegistrationState::Asked, .. })) => leave(tx, runner, reason),
        Some(_) => Ok(()),
        None => forget_name(tx, runner, name, None),
    }
}

/// The machine fetched its configuration.
pub(crate) fn fetched(tx: &mut Tx<'_>, attempt: AttemptId, fence: u32) -> Result<Reply, Refusal> {
    let attempt = live(tx, attempt, Some(fence))?;
    let mut runner = tx.runner(attempt.runner)?;
    let now = tx.now();
    match runner.registration.as_deref_mut() {
        Some(Registration { state: RegistrationState::Minted { .. }, fetched_at, .. }) => {
            if fetched_at.is_some() {
                return Ok(Reply::Unchanged);
            }
            *fetched_at = Some(now);
            let name = "minted";
            tx.event("RunnerConfigFetched", runner.id, Some(name), name, None);
            tx.put(runner);
            Ok(Reply::Done)
        }
        _ => Err(no_config(&attempt)),
    }
}

fn no_config(attempt: &Attempt) -> Refusal {
    let text = format!("there is no configuration for {} now", attempt.id);
    Refusal::new(RefusalKind::Conflict, "registration.not_minted", text).fix("ask again in a moment")
}

/// The sealed configuration was lost before the machine had it: the name is given up, and another one is asked for.
pub(crate) fn lost(tx: &mut Tx<'_>, attempt: AttemptId, fence: u32) -> Result<Reply, Refusal> {
    let attempt = live(tx, attempt, Some(fence))?;
    let mut runner = tx.runner(attempt.runner)?;
    let Some(mut registration) = runner.registration.clone() else { return Err(no_config(&attempt)) };
    let RegistrationState::Minted { runner: at_forge } = registration.state else {
        return Err(no_config(&attempt));
    };
    if registration.asks >= NAMES {
        let text = "the configuration of the runner was lost again and again before the machine had it";
        leave(tx, runner, Explanation::new("registration.lost", text))?;
        return Ok(Reply::Done);
    }
    forget_name(tx, runner.id, &registration.name, Some(at_forge))?;
    registration.asks += 1;
    registration.name = name(attempt.id, registration.asks);
    registration.scale_set = set_of(tx, registration.demand);
    (registration.minted_at, registration.fetched_at, registration.idle_until) = (None, None, None);
    ask(tx, &runner, &registration);
    runner.registration = Some(registration);
    tx.move_registration(runner, RegistrationEvent::RegistrationAsked, RegistrationState::Asked)?;
    Ok(Reply::Done)
}

/// Asks the forge to forget a name that is no longer that of any machine.
fn forget_name(tx: &mut Tx<'_>, runner: RunnerId, name: &str, at_forge: Option<u64>) -> Result<(), Refusal> {
    let row = tx.runner(runner)?;
    let Some(registration) = &row.registration else { return Ok(()) };
    let effect = deregister(runner, registration, name, at_forge);
    tx.effect(runner, &format!("forget/{name}"), effect);
    Ok(())
}

fn deregister(
    runner: RunnerId,
    registration: &Registration,
    name: &str,
    forge_runner: Option<u64>,
) -> Effect {
    Effect::Deregister {
        demand: registration.demand,
        runner,
        repository: registration.repository.clone(),
        installation: registration.installation,
        scale_set: registration.scale_set,
        name: name.to_owned(),
        forge_runner,
    }
}

/// The forge is asked to forget the machine.
pub(crate) fn leave(tx: &mut Tx<'_>, runner: Runner, reason: Explanation) -> Result<(), Refusal> {
    leave_after(tx, runner, reason, Duration::ZERO)
}

/// The same after a pause, for the case that asking is not needed then.
fn leave_after(
    tx: &mut Tx<'_>,
    mut runner: Runner,
    reason: Explanation,
    pause: Duration,
) -> Result<(), Refusal> {
    let Some(registration) = runner.registration.as_deref_mut() else { return Ok(()) };
    let at_forge = match registration.state {
        RegistrationState::Asked => None,
        RegistrationState::Minted { runner } => Some(runner),
        RegistrationState::Leaving { .. } | RegistrationState::Gone => return Ok(()),
    };
    registration.leaves += 1;
    registration.idle_until = None;
    let registration = registration.clone();
    let effect = deregister(runner.id, &registration, &registration.name, at_forge);
    tx.effect_at(runner.id, &leave_key(registration.leaves), effect, tx.now().plus(pause));
    tx.move_registration(
        runner,
        RegistrationEvent::RegistrationLeaving,
        RegistrationState::Leaving { runner: at_forge, reason },
    )
}

fn leave_key(leaves: u32) -> String {
    format!("leave/{leaves}")
}

/// Whether the runner program of a machine ended by itself and well: then nothing is left there that could take a job.
fn ended_well(tx: &Tx<'_>, runner: &Runner) -> bool {
    let attempt = runner.work.attempt().and_then(|id| tx.farm().attempts.get(&id));
    let facts = attempt.and_then(|attempt| attempt.facts.as_ref());
    facts.is_some_and(|facts| facts.steps.last().is_some_and(|step| step.exit_code == Some(0)))
}

/// The forge says that the job of a runner is over. A configuration is good for one job, after which the forge itself drops the
/// runner; when its program ended as well, there is nothing to ask for.
pub(crate) fn over(tx: &mut Tx<'_>, runner: RunnerId) -> Result<(), Refusal> {
    let mut row = tx.runner(runner)?;
    let well = ended_well(tx, &row);
    let Some(registration) = row.registration.as_deref_mut() else { return Ok(()) };
    if registration.over {
        return Ok(());
    }
    registration.over = true;
    let (state, name) = (registration.state.clone(), registration.name.clone());
    let asked = EffectId::derive(runner, &leave_key(registration.leaves));
    tx.put(row);
    if !matches!(state, RegistrationState::Leaving { .. }) || !well {
        return Ok(());
    }
    if tx.farm().effects.get(&asked).is_some_and(|effect| effect.done_at.is_none()) {
        super::settle(tx, asked)?;
    }
    forgotten(tx, runner, &name, None)
}

/// The attempt of a machine ended. One whose program ended well, and whose job the forge calls over, is forgotten already.
pub(crate) fn spent(tx: &mut Tx<'_>, runner: RunnerId) -> Result<(), Refusal> {
    let row = tx.runner(runner)?;
    let over = row.registration.as_deref().is_some_and(|registration| {
        registration.over && matches!(registration.state, RegistrationState::Minted { .. })
    });
    if over && ended_well(tx, &row) {
        tx.move_registration(row, RegistrationEvent::RegistrationGone, RegistrationState::Gone)?;
    }
    Ok(())
}

/// Whether the forge will probably say by itself, and soon, that the job of a runner is over.
fn will_be_told(tx: &Tx<'_>, runner: &Runner) -> bool {
    let attempt = runner.work.attempt().and_then(|id| tx.farm().attempts.get(&id));
    let demands = attempt.and_then(|attempt| tx.farm().index.launch_for.get(&attempt.job));
    let mut demands = demands.into_iter().flatten().filter_map(|id| tx.farm().demands.get(id));
    demands.any(|demand| demand.state == DemandState::Running && demand.seen.contains_key(&Source::Webhook))
}

/// The attempt of a machine ended: the forge is asked to forget it, whatever became of the machine.
pub(crate) fn attempt_over(tx: &mut Tx<'_>, runner: RunnerId, verdict: &Verdict) -> Result<(), Refusal> {
    let runner = tx.runner(runner)?;
    match runner.registration.as_deref() {
        Some(Registration { state: RegistrationState::Minted { .. }, .. }) => {
            let told = ended_well(tx, &runner) && will_be_told(tx, &runner);
            let pause = if told { WORD } else { Duration::ZERO };
            leave_after(tx, runner, Explanation::new("registration.over", verdict.cause.clone()), pause)
        }
        // Asked: the answer is awaited, and what it brings is forgotten then. The machine never had it.
        _ => Ok(()),
    }
}

/// The forge does not know the machine, or will never tell. Only now may the machine go.
pub(crate) fn forgotten(
    tx: &mut Tx<'_>,
    runner: RunnerId,
    name: &str,
    unheard: Option<&Explanation>,
) -> Result<(), Refusal> {
    let Some((runner, registration)) = of_name(tx, runner, name) else { return Ok(()) };
    let RegistrationState::Leaving { reason, .. } = registration.state else { return Ok(()) };
    let id = runner.id;
    if let Some(unheard) = unheard {
        // Keeping it would keep it for ever: nobody can ask the forge.
        let text = format!("the forge could not be asked to forget it: {}", unheard.message);
        tx.event("RunnerNotForgotten", id, Some("leaving"), "gone", Some(text));
    }
    tx.move_registration(runner, RegistrationEvent::RegistrationGone, RegistrationState::Gone)?;
    let runner = tx.runner(id)?;
    let attempt = tx.attempt_of(&runner)?;
    if attempt.state.live() {
        let owed = tx.farm().owed_by(attempt.job).is_some();
        let verdict = if owed {
            ending::lost("runner.took_nothing", reason.message, RetryPolicy::RB)
        } else {
            launch::canceled_verdict(&reason.message)
        };
        return ending::end(tx, attempt, verdict, None, None);
    }
    if runner.state == RunnerState::Leaving {
        return tx.move_runner(runner, RunnerEvent::RunnerDrained, RunnerState::Draining);
    }
    Ok(())
}

/// The forge says that the machine is busy. One at work is left alone; one whose attempt is over is kept, and the forge is
/// asked again.
pub(crate) fn busy(tx: &mut Tx<'_>, runner: RunnerId, name: &str) -> Result<(), Refusal> {
    let Some((mut runner, mut registration)) = of_name(tx, runner, name) else {
        // A name that was given up before its machine had it cannot be busy for long; the forge drops it by itself.
        return Ok(());
    };
    let RegistrationState::Leaving { runner: at_forge, .. } = registration.state else { return Ok(()) };
    let attempt = tx.attempt_of(&runner)?;
    match at_forge.filter(|_| attempt.state.live()) {
        Some(at_forge) => {
            registration.busy = true;
            runner.registration = Some(Box::new(registration));
            let kept = RegistrationState::Minted { runner: at_forge };
            tx.move_registration(runner, RegistrationEvent::RegistrationKept, kept)?;
            // It took something, and nobody said what: perhaps what it was made for, perhaps not.
            match tx.farm().owed_by(attempt.job).cloned() {
                Some(demand) => time::check(tx, demand),
                None => Ok(()),
            }
        }
        None => {
            registration.leaves += 1;
            let pause = Duration::from_secs(1 << registration.leaves.min(9)).min(LONGEST_PAUSE);
            let effect = deregister(runner.id, &registration, name, at_forge);
            let key = leave_key(registration.leaves);
            tx.effect_at(runner.id, &key, effect, tx.now().plus(pause));
            runner.registration = Some(Box::new(registration));
            tx.put(runner);
            Ok(())
        }
    }
}

/// A registered runner that has taken nothing for long is forgotten, unless it is busy after all.
pub(crate) fn idle(tx: &mut Tx<'_>, runner: Runner) -> Result<(), Refusal> {
    let attempt = tx.attempt_of(&runner)?;
    if !attempt.state.live() {
        return Ok(());
    }
    let minutes = deadline::RUNNER_IDLE.as_secs();
    let text = format!("it took no job within {minutes} seconds of its registration");
    leave(tx, runner, Explanation::new("registration.idle", text))
}

/// When a registered runner is asked whether it is busy, while it has taken nothing that is known here.
pub(crate) fn idle_until(runner: &Runner) -> Option<forgeyard_model::Timestamp> {
    let registration = runner.registration.as_deref()?;
    let taken = registration.taken.as_ref().is_some_and(|taken| !matches!(taken.answer, TakenAnswer::Asked));
    let waits =
        !taken && !registration.busy && matches!(registration.state, RegistrationState::Minted { .. });
    registration.idle_until.filter(|_| waits)
}

/// Whether a registered runner waits in vain since this time.
pub(crate) fn waits_in_vain(tx: &Tx<'_>, runner: &Runner) -> bool {
    idle_until(runner).is_some_and(|until| until <= tx.now()) && {
        let attempt = runner.work.attempt().and_then(|id| tx.farm().attempts.get(&id));
        let demands = attempt.and_then(|attempt| tx.farm().index.launch_for.get(&attempt.job));
        let mut demands = demands.into_iter().flatten().filter_map(|id| tx.farm().demands.get(id));
        !demands.any(|demand: &Demand| demand.state == DemandState::Running && demand.taken_by.is_some())
    }
}
