//! A task that is lost between a forge and its runner program (report 47).
//!
//! A forge assigns a task before it answers the runner program that asked for one. When that answer is lost, a Forgejo gives
//! the same task again for the same request key; a Gitea ignores the key, says that there is nothing, and calls the job running
//! until it gives up by itself. The runner program then waits for a job that it will never get.
//!
//! Neither voice alone tells that: the forge says that the job runs, and the supervisor says that in the machine there was
//! nothing but the waiting program ([`Input::RunnerQuiet`]). When both have been so for [`QUIET`], the task is lost: the
//! machine is ended, and the verdict says what happened and what to do. A program that starts others for its own purposes
//! is never called quiet, so such a loss is not seen; no job that does anything is taken for lost.
//!
//! [`Input::RunnerQuiet`]: forgeyard_model::input::Input::RunnerQuiet

use crate::agents::live;
use crate::ending;
use crate::tx::Tx;
use forgeyard_model::AttemptId;
use forgeyard_model::demand::DemandState;
use forgeyard_model::input::{Refusal, Reply};
use forgeyard_model::registration::RegistrationState;
use forgeyard_model::verdict::{RetryPolicy, Verdict};
use std::time::Duration;

/// How long nothing must have happened. Steps of a job begin at once; the longest that was seen to stand alone is a program
/// that fetches actions.
pub(crate) const QUIET: Duration = Duration::from_secs(180);

/// Class of the verdict.
pub(crate) const LOST: &str = "runner.task_lost";

/// The supervisor says that the runner program has been alone in its machine for so long.
pub(crate) fn heard(tx: &mut Tx<'_>, attempt: AttemptId, fence: u32, seconds: u64) -> Result<Reply, Refusal> {
    let attempt = live(tx, attempt, Some(fence))?;
    let runner = tx.runner(attempt.runner)?;
    let waits = runner.registration.as_deref().is_some_and(|registration| {
        matches!(registration.state, RegistrationState::Minted { .. }) && registration.taken.is_none()
    });
    if !waits || Duration::from_secs(seconds) < QUIET {
        return Ok(Reply::Unchanged);
    }
    let now = tx.now();
    // A forge that names no runner says at least that this one is busy.
    let busy = runner.registration.as_deref().is_some_and(|registration| registration.busy);
    let ids = tx.farm().index.launch_for.get(&attempt.job).into_iter().flatten();
    let mut demands = ids.filter_map(|id| tx.farm().demands.get(id));
    let running = demands.find(|demand| {
        demand.state == DemandState::Running
            && demand.taken_by.as_ref().map_or(busy, |taker| taker.runner == Some(runner.id))
            && now.since(demand.since) >= QUIET
    });
    let Some(demand) = running else { return Ok(Reply::Unchanged) };
    let minutes = now.since(demand.since).as_secs() / 60;
    let cause = format!(
        "the forge says for {minutes} minutes that job `{}` runs on this machine, but its runner program was never given it: the answer with the task was lost on its way, and the forge does not give it a second time",
        demand.name
    );
    let fix = "run the job again at the forge. A forge that keeps to request keys gives a lost task again: Forgejo from \
               February 2026 on; Gitea does not. Look why answers are lost between machine and forge (a proxy, a time limit)";
    let verdict = Verdict { fix: Some(fix.to_owned()), ..ending::lost(LOST, cause, RetryPolicy::R0) };
    ending::end(tx, attempt, verdict, None, None)?;
    Ok(Reply::Done)
}
