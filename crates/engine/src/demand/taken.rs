//! What a runner really took. Forges bind late: any job whose labels suit may get the runner that was made for another.
//!
//! Two voices say what a runner took. The forge names the runner in its reports ([`by_forge`]); the hook of the runner says
//! it before the first step, and asks whether that may run ([`by_hook`]): the second gate. When it is not what the runner
//! was made for, launches change hands: the robbed demand gets the launch of the one that was served, or a new one, and
//! keeps its place in the queue.

use super::{launch, repeat, time};
use crate::agents::live;
use crate::farm::Farm;
use crate::gate::{self, Admitted, Run};
use crate::lifecycle::DemandEvent;
use crate::tx::{Tx, missing};
use crate::{approvals, people};
use forgeyard_model::demand::{Demand, DemandState, ForgeRank, RunFacts, Taker};
use forgeyard_model::effect::Effect;
use forgeyard_model::forge::WorkflowJob;
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::job::JobState;
use forgeyard_model::registration::{Registration, RegistrationState, Taken, TakenAnswer, TakenJob};
use forgeyard_model::runner::Runner;
use forgeyard_model::{AttemptId, DemandId, Explanation, ForgeName, JobId, RunnerId};
use std::time::Duration;

/// Our runner of this name.
pub(crate) fn named(farm: &Farm, forge: &ForgeName, name: Option<&str>) -> Option<RunnerId> {
    farm.index.runner_named.get(&(forge.clone(), name?.to_owned())).copied()
}

/// The forge says that a runner has a job.
pub(crate) fn by_forge(tx: &mut Tx<'_>, id: DemandId, report: &WorkflowJob) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    let name = report.runner_name.as_deref().filter(|name| !name.is_empty());
    let runner = named(tx.farm(), &report.repository.forge, name);
    if let (Some(name), None) = (name, &demand.taken_by) {
        demand.taken_by = Some(Taker { name: name.to_owned(), id: report.runner_id, runner });
        tx.put(demand.clone());
    } else if demand.state == DemandState::Running {
        return Ok(());
    }
    match (runner, name) {
        (Some(runner), _) => bind(tx, id, runner),
        // Another farm's runner, or one of the forge's own: what was launched here is not needed.
        (None, Some(_)) => {
            let launch = demand.launch.take();
            run(tx, demand)?;
            let why =
                Explanation::new("demand.taken_elsewhere", "a runner that is not of this farm has the job");
            launch.map_or(Ok(()), |launch| launch::release(tx, launch, &why))
        }
        // A runner has it, nobody says which: probably ours. One that waits in vain is found by the clock.
        (None, None) => {
            let launch = demand.launch;
            run(tx, demand)?;
            match launch {
                // One that still waits for a place is surely not what has it.
                Some(launch) if tx.job(launch)?.state.attempt().is_none() => {
                    let why = Explanation::new("demand.served", "another runner has the job");
                    launch::release(tx, launch, &why)
                }
                _ => Ok(()),
            }
        }
    }
}

fn run(tx: &mut Tx<'_>, mut demand: Demand) -> Result<(), Refusal> {
    demand.pauses = 0;
    if demand.state == DemandState::Running {
        tx.put(demand);
        return Ok(());
    }
    tx.move_demand(demand, DemandEvent::DemandTaken, DemandState::Running)
}

/// A runner of ours has a job: the reservation moves.
fn bind(tx: &mut Tx<'_>, id: DemandId, runner: RunnerId) -> Result<(), Refusal> {
    let mut runner = tx.runner(runner)?;
    let taker = tx.attempt_of(&runner)?.job;
    if let Some(registration) = runner.registration.as_deref_mut() {
        (registration.idle_until, registration.busy) = (None, false);
        tx.put(runner);
    }
    let robbed = tx.farm().owed_by(taker).filter(|demand| demand.id != id).map(|demand| demand.id);
    let robbed = robbed.or_else(|| guessed(tx, taker, id));
    let mut demand = tx.demand(id)?;
    let before = demand.launch.replace(taker).filter(|launch| *launch != taker);
    run(tx, demand)?;
    if time::runner_gone(tx, &tx.demand(id)?) {
        // The report is late: whoever had it is gone, and nobody will say how it ended but the forge.
        launch::hurry(tx, taker)?;
    }
    match robbed {
        None => {
            let why = Explanation::new("demand.served", "another runner of this farm has the job");
            before.map_or(Ok(()), |launch| launch::release(tx, launch, &why))
        }
        Some(robbed) => rob(tx, robbed, before.map(|launch| (launch, id))),
    }
}

/// The demand that was thought to be served by a launch without the forge having named the runner.
fn guessed(tx: &Tx<'_>, launch: JobId, but: DemandId) -> Option<DemandId> {
    let ids = tx.farm().index.launch_for.get(&launch).into_iter().flatten();
    let mut others = ids.filter(|id| **id != but).filter_map(|id| tx.farm().demands.get(id));
    others
        .find(|demand| demand.state == DemandState::Running && demand.taken_by.is_none())
        .map(|demand| demand.id)
}

/// A demand lost its runner to another job. It gets the launch of whoever was served instead, when that suits it, or a new
/// one; it stays wanted, at its own place.
fn rob(tx: &mut Tx<'_>, id: DemandId, offered: Option<(JobId, DemandId)>) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    let name = demand.state.name();
    tx.event("DemandRobbed", id, Some(name), name, Some("its runner took another job".to_owned()));
    demand.launch = None;
    tx.put(demand.clone());
    let Some((launch, other)) = offered else { return launch::want(tx, id) };
    if !suits(tx, &demand, launch, other)? {
        let why = Explanation::new("demand.served", "another runner of this farm has the job");
        launch::release(tx, launch, &why)?;
        return launch::want(tx, id);
    }
    demand.launch = Some(launch);
    let placed = tx.job(launch)?.state.attempt().is_some();
    if demand.state == DemandState::Running {
        // It was only guessed that it ran.
        tx.move_demand(demand, DemandEvent::DemandWanted, DemandState::Wanted)?;
        demand = tx.demand(id)?;
    }
    match (placed, &demand.state) {
        (true, DemandState::Wanted) => {
            tx.move_demand(demand, DemandEvent::DemandLaunched, DemandState::Launching)
        }
        (false, DemandState::Launching) => {
            tx.move_demand(demand, DemandEvent::DemandWanted, DemandState::Wanted)
        }
        _ => {
            tx.put(demand);
            Ok(())
        }
    }
}

/// Whether the launch of another demand can serve this one just as well: the same labels, the same pools, the same
/// isolation, and nothing taken yet.
fn suits(tx: &Tx<'_>, demand: &Demand, launch: JobId, other: DemandId) -> Result<bool, Refusal> {
    let other = tx.demand(other)?;
    let job = tx.job(launch)?;
    let alike = match (&demand.admission, &other.admission) {
        (Some(one), Some(another)) => one.pools == another.pools && one.isolation == another.isolation,
        _ => false,
    };
    let labels = |labels: &[String]| -> std::collections::BTreeSet<String> {
        labels.iter().map(|label| label.to_lowercase()).collect()
    };
    let same_place =
        demand.repository.forge == other.repository.forge && demand.repository.id == other.repository.id;
    if !alike || !same_place || labels(&demand.labels) != labels(&other.labels) {
        return Ok(false);
    }
    if matches!(job.state, JobState::Ended { .. }) || job.cancel_requested_at.is_some() {
        return Ok(false);
    }
    let Some(attempt) = job.state.attempt() else { return Ok(true) };
    let runner = tx.runner(tx.attempt(attempt)?.runner)?;
    Ok(runner.registration.as_deref().is_none_or(|registration| {
        registration.taken.is_none()
            && !registration.busy
            && matches!(registration.state, RegistrationState::Asked | RegistrationState::Minted { .. })
    }))
}

/// What REST says may lie so far behind.
const BEHIND: Duration = Duration::from_secs(60);

/// A poll says that a job waits although its runner is busy: the runner has another job. The same when it was only guessed that
/// it ran, and what was launched for it is over.
pub(crate) fn still_queued(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let demand = tx.demand(id)?;
    let ended = time::launch_ended(tx, &demand);
    if demand.state == DemandState::Running && ended.is_some_and(|at| tx.now().since(at) >= BEHIND) {
        return rob(tx, id, None);
    }
    let Some(launch) = demand.launch.filter(|_| demand.state == DemandState::Launching) else {
        return Ok(());
    };
    let attempt = tx.job(launch)?.state.attempt();
    let runner = attempt.and_then(|attempt| tx.farm().runners.get(&tx.farm().attempts.get(&attempt)?.runner));
    let busy = runner
        .and_then(|runner| runner.registration.as_deref())
        .is_some_and(|registration| registration.busy);
    if busy { rob(tx, id, None) } else { Ok(()) }
}

/// The hook of a runner says what it took, and asks whether that may run.
pub(crate) fn by_hook(
    tx: &mut Tx<'_>,
    attempt: AttemptId,
    fence: u32,
    job: TakenJob,
) -> Result<Reply, Refusal> {
    let attempt = live(tx, attempt, Some(fence))?;
    let mut runner = tx.runner(attempt.runner)?;
    let Some(registration) = runner.registration.as_deref_mut() else {
        let text = format!("{} is not a runner of a forge", runner.id);
        return Err(Refusal::new(RefusalKind::Conflict, "registration.none", text));
    };
    if let Some(taken) = &registration.taken {
        if taken.job == job {
            return Ok(Reply::Taken { answer: taken.answer.clone() });
        }
        let text = format!("{} already took job `{}` of run {}", runner.id, taken.job.key, taken.job.run);
        return Err(Refusal::new(RefusalKind::Conflict, "registration.one_job", text)
            .fix("a runner takes one job; destroy the machine"));
    }
    registration.idle_until = None;
    registration.taken =
        Some(Taken { job: job.clone(), facts: None, answer: TakenAnswer::Asked, at: tx.now() });
    let (made_for, installation) = (registration.demand, registration.installation);
    let name = runner.state.name();
    let note = format!(
        "job `{}` of run {}, attempt {}, in {}",
        job.key, job.run, job.run_attempt, job.repository.name
    );
    tx.event("RunnerTook", runner.id, Some(name), name, Some(note));
    let id = runner.id;
    tx.put(runner);
    // Whatever it is, it is not what the runner was made for when the run is another.
    if let Some(owed) = tx.farm().owed_by(attempt.job).filter(|owed| !of_job(owed, &job)).map(|owed| owed.id)
    {
        rob(tx, owed, None)?;
    }
    let known = {
        let mut of_run = tx.farm().demands_of_run(&job.repository.forge, job.run);
        of_run.find_map(|demand| demand.facts.clone().filter(|_| of_job(demand, &job)))
    };
    match known {
        Some(facts) => looked_up(tx, id, facts)?,
        None => {
            let effect = Effect::LookUpRun {
                demand: made_for,
                runner: Some(id),
                repository: job.repository.clone(),
                installation,
                run: job.run,
                run_attempt: job.run_attempt,
            };
            tx.effect(id, "took", effect);
        }
    }
    let runner = tx.runner(id)?;
    let taken = runner.registration.and_then(|registration| registration.taken);
    let answer = taken.map(|taken| taken.answer).ok_or_else(|| missing("registration of runner", id))?;
    Ok(Reply::Taken { answer })
}

/// Whether a demand is of the run of which a runner took a job.
pub(crate) fn of_job(demand: &Demand, job: &TakenJob) -> bool {
    demand.repository.forge == job.repository.forge
        && demand.repository.id == job.repository.id
        && demand.run == job.run
        && demand.run_attempt == job.run_attempt
}

/// The run of the job that a runner took is known: the gate is asked about exactly that.
pub(crate) fn looked_up(tx: &mut Tx<'_>, id: RunnerId, facts: RunFacts) -> Result<(), Refusal> {
    let runner = tx.runner(id)?;
    let Some(taken) = open(&runner).cloned() else { return Ok(()) };
    let answer = ask(tx, &runner, &taken.job, &facts);
    answered(tx, runner, answer, Some(facts))
}

/// Nobody can say whose work it is: nobody vouches, nothing runs.
pub(crate) fn not_looked_up(tx: &mut Tx<'_>, id: RunnerId, why: &Explanation) -> Result<(), Refusal> {
    let runner = tx.runner(id)?;
    if open(&runner).is_none() {
        return Ok(());
    }
    let text = format!("whose work it is could not be learned in time: {}", why.message);
    let reason = Explanation { fix: why.fix.clone(), ..Explanation::new("gate.run_unknown", text) };
    answered(tx, runner, TakenAnswer::Refused { reason }, None)
}

fn open(runner: &Runner) -> Option<&Taken> {
    let taken = runner.registration.as_deref()?.taken.as_ref()?;
    (taken.answer == TakenAnswer::Asked).then_some(taken)
}

pub(crate) fn ask(tx: &Tx<'_>, runner: &Runner, job: &TakenJob, facts: &RunFacts) -> TakenAnswer {
    let config = tx.config();
    let repository = config.repository(&job.repository.forge, job.repository.id);
    let siblings =
        || tx.farm().demands_of_run(&job.repository.forge, job.run).filter(|demand| of_job(demand, job));
    let approval = approvals::of_head(tx, &job.repository, &facts.head_sha);
    let access = approvals::access(tx);
    let sender = siblings().find_map(|demand| demand.sender.as_ref());
    let repository_id = job.repository.id;
    let ours = repeat::facts(tx.farm(), &job.repository.forge, repository_id, job.run, job.run_attempt);
    // What the farm had run again is its App's in the forge's words, and the work of whoever began it before.
    let run = match &ours {
        Some(facts) => Run { repository: &job.repository, facts, sender: None, hook_actor: None },
        None => Run { repository: &job.repository, facts, sender, hook_actor: job.actor.as_ref() },
    };
    let pool = config.pool(&runner.pool);
    let asked = |resource: &str| gate::decide_run(&run, repository, resource, &access, approval.as_ref());
    // Who may use a pool may use its canary.
    let of = pool.and_then(|pool| pool.canary.as_ref()).map(|canary| asked(canary.of.as_str()));
    let by_itself = asked(runner.pool.as_str());
    let decided = match (by_itself, of) {
        (Admitted::Hold { .. } | Admitted::Deny { .. }, Some(of @ Admitted::Allow { .. })) => of,
        (by_itself, _) => by_itself,
    };
    match decided {
        Admitted::Allow { isolation, .. } if pool.is_none_or(|pool| pool.isolation < isolation) => {
            let text = format!("it needs {isolation:?}, which pool {} does not give", runner.pool);
            TakenAnswer::Refused { reason: Explanation::new("gate.isolation", text) }
        }
        Admitted::Allow { by, .. } => TakenAnswer::Allowed { by },
        Admitted::Hold { reason } | Admitted::Deny { reason } => TakenAnswer::Refused { reason },
    }
}

/// Asks the second gate again about what a runner already works on. Refused now, its machine is ended.
pub(crate) fn again(tx: &mut Tx<'_>, id: RunnerId) -> Result<(), Refusal> {
    let mut runner = tx.runner(id)?;
    let taken = runner.registration.as_deref().and_then(|registration| registration.taken.clone());
    let Some(Taken { job, facts: Some(facts), answer: TakenAnswer::Allowed { .. }, .. }) = taken else {
        return Ok(());
    };
    let TakenAnswer::Refused { reason } = ask(tx, &runner, &job, &facts) else { return Ok(()) };
    let name = runner.state.name();
    let why = format!("no longer allowed: {}", reason.message);
    tx.event("TakenRevoked", id, Some(name), name, Some(why.clone()));
    let launch = tx.attempt_of(&runner)?.job;
    if let Some(Registration { taken: Some(taken), .. }) = runner.registration.as_deref_mut() {
        taken.answer = TakenAnswer::Refused { reason };
    }
    tx.put(runner);
    people::stop(tx, launch, &why)
}

fn answered(
    tx: &mut Tx<'_>,
    mut runner: Runner,
    answer: TakenAnswer,
    facts: Option<RunFacts>,
) -> Result<(), Refusal> {
    let Some(Registration { taken: Some(taken), .. }) = runner.registration.as_deref_mut() else {
        return Ok(());
    };
    (taken.answer, taken.facts) = (answer.clone(), facts);
    let (name, job) = (runner.state.name(), taken.job.clone());
    let (attempt, id) = (tx.attempt_of(&runner)?.id, runner.id);
    let (event, note) = match &answer {
        TakenAnswer::Refused { reason } => ("TakenRefused", reason.message.clone()),
        TakenAnswer::Asked | TakenAnswer::Allowed { .. } => ("TakenAllowed", format!("job `{}`", job.key)),
    };
    tx.event(event, id, Some(name), name, Some(note));
    tx.put(runner);
    // With one candidate there is no need to wait for the forge to name the runner.
    let of_it =
        |demand: &&Demand| of_job(demand, &job) && !demand.state.ended() && demand.rank <= ForgeRank::Queued;
    let candidates: Vec<DemandId> = tx
        .farm()
        .demands_of_run(&job.repository.forge, job.run)
        .filter(of_it)
        .map(|demand| demand.id)
        .collect();
    let refused = matches!(answer, TakenAnswer::Refused { .. });
    if let ([only], false) = (candidates.as_slice(), refused) {
        bind(tx, *only, id)?;
    }
    if refused {
        // The runner program tells the forge by failing the job; then it ends, or is ended.
        let mut attempt = tx.attempt(attempt)?;
        attempt.deadline = Some(tx.now().plus(launch::REFUSED_LEAVES));
        let job = attempt.job;
        tx.put(attempt);
        // Of several jobs of one run that wait, it cannot be told which one it was; the forge is asked.
        if let Some(owed) = tx.farm().owed_by(job).cloned() {
            time::check(tx, owed)?;
        }
    }
    Ok(())
}
