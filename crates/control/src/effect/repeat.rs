//! Jobs that were lost with their machine are run again at GitHub, when their run is over.
//!
//! Which jobs those are is read from the ledger when it is done, so that all that were lost by then are asked for together. GitHub
//! repeats either one job or all that failed; the second is used only where every job that failed was lost. A lost answer is not
//! asked for blindly again: the run is read first, and has another attempt then. Nobody can tell who began that one, so the farm
//! does not call it its own.

use super::Trouble;
use super::forge::{again, unless_refused};
use crate::app::App;
use crate::forges::Connection;
use forgeyard_engine::demand::repeat::wanted;
use forgeyard_forges::github::Rerun;
use forgeyard_model::Explanation;
use forgeyard_model::effect::EffectResult;
use forgeyard_model::forge::Repository;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often it is looked whether a run is over.
const LOOK: Duration = Duration::from_secs(120);

fn runs_yet(text: &str) -> Trouble {
    Trouble::NotYet { reason: Explanation::new("repeat.run_active", text), pause: LOOK }
}

fn never(code: &str, text: &str) -> Trouble {
    Trouble::Never(Explanation::new(code, text))
}

pub(super) async fn run(
    app: &App,
    repository: &Repository,
    run: u64,
    run_attempt: u32,
) -> Result<EffectResult, Trouble> {
    let github = app.forges.of(&repository.forge)?.github();
    let path = Connection::path(repository)?;
    let lost: BTreeSet<u64> = {
        let farm = app.core.read();
        let mut of_run = farm.demands_of_run(&repository.forge, run);
        if of_run.any(|demand| demand.run_attempt == run_attempt && !demand.state.ended()) {
            // Without asking: a job of it that is known here goes on.
            return Err(runs_yet(
                "its run goes on with other jobs, and the forge runs nothing of it again before it is over",
            ));
        }
        wanted(&farm, repository, run, run_attempt).map(|demand| demand.job).collect()
    };
    let Some(found) = github.run(&path, run).await.map_err(|error| again(&error))? else {
        return Err(never("repeat.run_gone", "the forge no longer shows its run"));
    };
    if found.repository.id != repository.id {
        return Err(never("repeat.run_gone", "the forge no longer shows its run"));
    }
    if found.run_attempt != u64::from(run_attempt) {
        return Err(never("repeat.begun", "its run was begun again by somebody meanwhile"));
    }
    if found.status.as_deref() != Some("completed") {
        return Err(runs_yet("its run goes on, and the forge runs nothing of it again before it is over"));
    }
    let jobs = github.run_jobs(&path, run, found.run_attempt).await.map_err(|error| again(&error))?;
    let failed = jobs
        .iter()
        .filter(|job| !matches!(job.conclusion.as_deref(), None | Some("success" | "skipped" | "neutral")));
    let failed: BTreeSet<u64> = failed.map(|job| job.id).collect();
    let lost: BTreeSet<u64> = lost.intersection(&failed).copied().collect();
    let Some(first) = lost.first().copied() else {
        return Err(never("repeat.nothing", "the forge calls nothing of it failed"));
    };
    let (asked, jobs) = if lost == failed {
        (github.rerun_failed_jobs(&path, run).await, lost.into_iter().collect())
    } else {
        (github.rerun_job(&path, first).await, vec![first])
    };
    match asked.map_err(|error| unless_refused(&error))? {
        Rerun::Accepted => Ok(EffectResult::Repeated { jobs }),
        Rerun::RunActive => Err(runs_yet("its run goes on, as the forge says")),
    }
}
